"""Web origins as an environment's CORS list holds them (RFC 6454): `https://app.example.com`, or `*` alone. Pure."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

EVERY: Final = "*"
MOST: Final = 50
LONGEST: Final = 200


class NotAnOrigin(ValueError):
    """The message says what is wrong, for the user."""


def normalised(origins: Sequence[str]) -> list[str]:
    """The same origins as browsers send them (lower case, no default port, no trailing slash), each once, in order.

    Raises NotAnOrigin.
    """
    found = list(dict.fromkeys(_normalised(origin) for origin in origins))
    if EVERY in found and len(found) > 1:
        raise NotAnOrigin("* stands for every origin and cannot be combined with others.")
    if len(found) > MOST:
        raise NotAnOrigin(f"At most {MOST} origins.")
    return found


def _normalised(text: str) -> str:
    text = text.strip()
    if text == EVERY:
        return text
    try:
        parts = urlsplit(text)
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
        or len(text) > LONGEST
    ):
        raise NotAnOrigin("An origin is a scheme and a host, such as https://app.example.com or http://localhost:5173.")
    if ":" in host:
        host = f"[{host}]"
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, usual) else "")
