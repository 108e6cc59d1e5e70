"""The input of a function that is called by an inbound endpoint. Signatures are computed over bytes, so nothing is
parsed, decoded or sorted. The input is stored with the run, so credentials are removed, also any header or query that
repeats the endpoint's token."""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import orjson

from platform_site.identity import call_depth

_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding"}
    | {"upgrade"}
)
_LEFT_OUT: Final = _CREDENTIALS | _HOP_BY_HOP | {call_depth.HEADER.lower()}
# Control characters, which are six times as long in JSON.
_NO_TEXT: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def input_of(meta: Mapping[str, Any], body: bytes, token: str, facts: Mapping[str, Any]) -> str:
    """The input as JSON. `facts` are fields that do not come from the request."""
    query = meta.get("QUERY_STRING", "")
    message: dict[str, Any] = {
        "method": meta["REQUEST_METHOD"],
        "query": "" if _repeats(query, token) else _text(query),
        "headers": _headers(meta, token),
        **facts,
        **_body(body),
    }
    return orjson.dumps(message).decode()


def _headers(meta: Mapping[str, Any], token: str) -> dict[str, str]:
    """By lower-case name, without connection headers (RFC 9110, 7.6.1) and credentials."""
    left_out = _LEFT_OUT | {name.strip().lower() for name in meta.get("HTTP_CONNECTION", "").split(",")}
    found = {}
    for key, value in meta.items():
        if key.startswith("HTTP_") or (key in ("CONTENT_TYPE", "CONTENT_LENGTH") and value):
            name = key.removeprefix("HTTP_").replace("_", "-").lower()
            if name not in left_out and not _repeats(value, token):
                found[name] = _text(value)
    return found


def _repeats(text: str, token: str) -> bool:
    return token in text or ("%" in text and token in unquote(text))


def _body(body: bytes) -> dict[str, str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _NO_TEXT.search(text):
        return {"body_base64": base64.b64encode(body).decode()}
    return {"body": text}


def _text(value: str) -> str:
    """Lone surrogates, which a server may make of undecodable bytes, become question marks."""
    return value.encode("utf-8", "replace").decode()
