"""The custom HTTP response of a function to a caller that waits at an inbound endpoint.

    {"$response": {"status": 410, "headers": {"content-type": "text/xml", "retry-after": "60"}, "body": "<Response/>"}}

The executor checks it when the call ends, so an invalid response is a failure of the run. Endpoints are on the host
that has the console's cookies, so the response of a tenant's function must not act in a browser: only content types
that no browser executes or renders as a page are allowed, or XML under the sandbox of `CONTENT_POLICY`; only the
headers that providers need; no redirects; no caching, which would outlive a revocation."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

CONTENT_POLICY: Final = "sandbox; default-src 'none'; frame-ancestors 'none'"
"""An opaque origin without scripts, forms and windows."""
_MARK: Final = "$response"
_FIELDS: Final = frozenset({"status", "headers", "body", "body_base64"})
_TEXT_TYPES: Final = frozenset({"text/plain", "text/csv", "text/xml", "application/xml"})
"""Sent with `charset=utf-8`."""
_OTHER_TYPES: Final = frozenset({"application/json", "application/octet-stream", "application/x-www-form-urlencoded"})
_JSON: Final = re.compile(r"application/[a-z0-9][a-z0-9.-]{0,60}\+json", re.ASCII)
_TYPE: Final = re.compile(r"([^;\s]{1,100})(?:\s*;\s*charset=\"?utf-8\"?)?\s*", re.IGNORECASE)
_HEADERS: Final = frozenset({"content-type", "retry-after", "x-adobesign-clientid", "x-hook-secret"})
"""The last two confirm an endpoint for Adobe, Asana and others: they expect their own value in the response."""
_VALUE: Final = re.compile(r"[!-~](?:[ -~]{0,998}[!-~])?", re.ASCII)
_BODILESS: Final = frozenset({204, 205})


class BadResponse(Exception):
    """The message is for the author of the function."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    body: bytes


def read(output: str) -> Response | None:
    """None for ordinary output. Raises BadResponse."""
    if not output.startswith("{") or _MARK not in output:
        return None
    fields = orjson.loads(output)
    if _MARK not in fields:
        return None
    if len(fields) > 1:
        raise BadResponse(f"{_MARK} must be the only field")
    return _response(fields[_MARK])


def _response(given: Any) -> Response:
    if not isinstance(given, dict):
        raise BadResponse(f"{_MARK} is an object with status, headers, and body or body_base64")
    if unknown := given.keys() - _FIELDS:
        raise BadResponse(f"{_MARK} has no field {_named(min(unknown))}: use status, headers, body or body_base64")
    status = given.get("status", 200)
    if type(status) is not int or not (200 <= status <= 299 or 400 <= status <= 599):
        raise BadResponse("status is a number from 200 to 299 or from 400 to 599: there are no redirects")
    headers = _headers(given.get("headers", {}))
    body = _body(given)
    if status in _BODILESS:
        if body or "content-type" in headers:
            raise BadResponse(f"a {status} has no body and no content-type")
        return Response(status, headers, b"")
    usual = "application/octet-stream" if "body_base64" in given else "text/plain; charset=utf-8"
    return Response(status, {"content-type": usual, **headers}, body)


def _headers(given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise BadResponse('headers must be an object, such as {"content-type": "text/xml"}')
    headers: dict[str, str] = {}
    for written, value in given.items():
        name = written.lower()
        if name not in _HEADERS:
            raise BadResponse(f"the header {_named(written)} is not allowed: {', '.join(sorted(_HEADERS))}")
        if name in headers:
            raise BadResponse(f"the header {name} is given twice")
        if not isinstance(value, str) or _VALUE.fullmatch(value) is None:
            raise BadResponse(f"the header {name} is a text of 1 to 1,000 printable ASCII characters")
        headers[name] = _content_type(value) if name == "content-type" else value
    return headers


def _content_type(given: str) -> str:
    """Other charsets and parameters are refused, because browsers could misinterpret them."""
    found = _TYPE.fullmatch(given)
    kind = found[1].lower() if found is not None else ""
    if kind in _TEXT_TYPES:
        return f"{kind}; charset=utf-8"
    if kind in _OTHER_TYPES or _JSON.fullmatch(kind) is not None:
        return kind
    kinds = ", ".join(sorted(_TEXT_TYPES | _OTHER_TYPES))
    raise BadResponse(f"the content-type {_named(given)} is not allowed: {kinds} or one that ends in +json, in UTF-8")


def _body(given: Mapping[str, Any]) -> bytes:
    body, encoded = given.get("body", ""), given.get("body_base64", "")
    if not isinstance(body, str) or not isinstance(encoded, str):
        raise BadResponse("body is a text, and body_base64 bytes in base64: JSON.stringify makes JSON one")
    if "body" in given and "body_base64" in given:
        raise BadResponse("send body or body_base64, not both")
    try:
        return body.encode() or base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise BadResponse("body_base64 is not base64") from error


def _named(text: str) -> str:
    return ascii(text[:60])
