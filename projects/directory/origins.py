"""Web origins of a CORS list (RFC 6454), or `*` alone; on localhost `*` may replace the port. Pure."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from platform_site.http.errors import FieldError, ValidationFailed

EVERY: Final = "*"
MAX_ORIGINS: Final = 50
MAX_LENGTH: Final = 200
OF_DEVELOPMENT: Final = ("http://localhost:*", "http://127.0.0.1:*")
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_EVERY_PORT: Final = ":*"


class NotAnOrigin(ValidationFailed):
    def __init__(self, message: str) -> None:
        super().__init__(fields=[FieldError("allowed_origins", "not_an_origin", message)])


def normalised(origins: Sequence[str]) -> list[str]:
    """As browsers send them (lower case, no default port or slash), unique. Raises NotAnOrigin."""
    found = list(dict.fromkeys(_normalised(origin) for origin in origins))
    if EVERY in found and len(found) > 1:
        raise NotAnOrigin("* means every origin and cannot be combined with others.")
    if len(found) > MAX_ORIGINS:
        raise NotAnOrigin(f"At most {MAX_ORIGINS} origins.")
    return found


def _normalised(text: str) -> str:
    text = text.strip()
    if text == EVERY:
        return text
    every_port = text.endswith(_EVERY_PORT)
    try:
        parts = urlsplit(text.removesuffix(_EVERY_PORT))
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = (parts.hostname or "").lower()
    well_formed = parts.scheme in {"http", "https"} and host and parts.username is None and text.isascii()
    if (
        not well_formed
        or parts.path not in {"", "/"}
        or "?" in text
        or "#" in text
        or "*" in host
        or len(text) > MAX_LENGTH
        or (every_port and (host not in _LOOPBACK or port is not None or parts.path))
    ):
        raise NotAnOrigin(
            "An origin is a scheme and a host, such as https://app.example.com or http://localhost:5173."
            " Every port (http://localhost:*) is possible for localhost, 127.0.0.1 and [::1] only."
        )
    if ":" in host:
        host = f"[{host}]"
    if every_port:
        return f"{parts.scheme}://{host}{_EVERY_PORT}"
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, usual) else "")
