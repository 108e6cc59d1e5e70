"""Reads request bodies as strict JSON. orjson refuses invalid UTF-8, byte order marks, lone surrogates, NaN, Infinity,
1e400 and deep nesting; then the standard library finds duplicate keys and keeps large integers exact."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NoReturn

import orjson
from django.conf import settings
from django.http import HttpRequest

from platform_site.http import exact_json
from platform_site.http.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType

MEDIA_TYPE: Final = "application/json"
MAX_DEPTH: Final = 64
MAX_ON_LOOP: Final = 16 * 1024
"""Bytes of a body that the event loop parses, in up to 10 ms. Larger ones are parsed in a thread."""

_SYNTAX_HINT: Final = "JSON requires double quotes, and allows no comments and no trailing commas."
_TOO_DEEP: Final = f"The body is nested more than {MAX_DEPTH} levels deep."
_CHARSET: Final = re.compile(r';\s*charset\s*=\s*"?([^\s;"]+)"?', re.IGNORECASE)
_POSITION: Final = re.compile(r": line \d+ column \d+ \(char \d+\)\Z")
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
"""`\\u0000` behind an even number of backslashes."""
# Possessive, and with an optional end quote, so that hostile quotes and backslashes take linear time.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)


class DuplicateName(ValueError):
    """JSON would silently ignore the first one."""


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise DuplicateName
    return made


LongFloats = Literal["rounded", "kept", "refused"]
"""What becomes of numbers with more digits than a float keeps; "kept": as `exact_json.LongFloat`."""
_DECODERS: Final[dict[LongFloats, json.JSONDecoder]] = {
    "rounded": json.JSONDecoder(object_pairs_hook=object_of),
    "kept": json.JSONDecoder(object_pairs_hook=object_of, parse_float=exact_json.read_float),
    "refused": json.JSONDecoder(object_pairs_hook=object_of, parse_float=exact_json.read_exact_float),
}


def read(body: bytes, *, long_floats: LongFloats = "rounded") -> Any:
    if not body or body.isspace():
        raise InvalidRequest("The body is empty; a JSON value is needed.")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        _explain(body, error)
    # Only a body with many brackets can be too deep. Checked first, since the second parser recurses.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _is_too_deep(value):
        raise InvalidRequest(_TOO_DEEP)
    if b"\\u0000" in body and _NUL.search(body):
        raise InvalidRequest("The body contains a NUL character (\\u0000), which cannot be stored.")
    try:
        return _DECODERS[long_floats].decode(body.decode())
    except DuplicateName:
        raise InvalidRequest("Duplicate key in a JSON object of the body.") from None
    except exact_json.RoundedNumber as error:
        raise InvalidRequest(str(error)) from None
    except ValueError:  # more digits than int() accepts (4,300); orjson usually refuses such a number first
        raise InvalidRequest("The body contains a number that is too long.") from None


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [at.values() if type(at) is dict else at for at in level if type(at) in (dict, list)]
        level = [each for container in containers for each in container]
    return any(type(at) in (dict, list) for at in level)


def _explain(body: bytes, error: orjson.JSONDecodeError) -> NoReturn:
    if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidRequest("The body starts with a byte order mark; send plain UTF-8 without one.") from None
    try:
        text = body.decode()
    except UnicodeDecodeError as wrong:
        raise InvalidRequest(f"The body is not UTF-8 (at byte {wrong.start}).") from None
    if re.search(r"\b(?:NaN|Infinity)\b", _STRING.sub('""', text)):
        raise InvalidRequest("The body contains NaN or Infinity, which are not valid JSON.") from None
    message = str(error)
    if "depth" in message:
        raise InvalidRequest(_TOO_DEEP) from None
    if "surrogate" in message:
        raise InvalidRequest("The body contains a lone surrogate (\\ud800 to \\udfff).") from None
    if "infinity" in message or "out of range" in message:
        raise InvalidRequest("The body contains a number that is out of range.") from None
    position = _POSITION.search(message)
    raise InvalidRequest(f"The body is not JSON{position[0] if position else ''}. {_SYNTAX_HINT}") from None


def check_content_type(meta: Mapping[str, Any]) -> None:
    declared: str = meta.get("CONTENT_TYPE") or ""
    media_type, _, parameters = declared.partition(";")
    if media_type.strip().lower() != MEDIA_TYPE:
        raise UnsupportedMediaType("The body must be JSON, sent with the header Content-Type: application/json.")
    if parameters:
        charset = _CHARSET.search(f";{parameters}")
        if charset and charset[1].lower() not in {"utf-8", "utf8"}:
            raise UnsupportedMediaType("The body must be UTF-8; no other charset is supported.")
    encoding = meta.get("HTTP_CONTENT_ENCODING")
    if encoding and encoding.lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not supported; leave out Content-Encoding.")


def declared_length(meta: Mapping[str, Any]) -> int:
    text = meta.get("CONTENT_LENGTH")
    if not text:
        return 0
    if not (isinstance(text, str) and text.isascii() and text.isdigit()):
        raise InvalidRequest("Content-Length is not a number.")
    if len(text) > 18 or int(text) > settings.MAX_BODY_BYTES:
        raise PayloadTooLarge
    return int(text)


def read_request(request: HttpRequest, *, long_floats: LongFloats = "rounded") -> Any:
    meta = request.META
    declared_length(meta)
    body = request.body
    if not body:
        raise InvalidRequest("The body is empty; a JSON value is needed.")
    check_content_type(meta)
    return read(body, long_floats=long_floats)
