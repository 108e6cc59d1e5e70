"""Public identifiers: a prefix, an underscore and a UUIDv7 in 26 characters of Crockford base32 (TypeID 0.3,
https://github.com/jetify-com/typeid). Ids of one process sort by creation, those of several to the millisecond."""

import os
import re
import threading
import time
from datetime import UTC, datetime
from typing import Final

PREFIXES: Final = frozenset(
    "prj env usr key ses wh evt dlv fn run req aud idp idn rdu mem sch brn eml inv inb pln sgr".split()
)

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGITS: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_PATTERN: Final = re.compile(r"([a-z]{2,4})_([0-7][0-9a-hjkmnp-tv-z]{25})", re.ASCII)
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]

_lock = threading.Lock()
_last = 0


def _uuid7() -> int:
    """RFC 9562, strictly increasing in this process."""
    global _last
    now = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    candidate = (now << 80) | (7 << 76) | (((random >> 62) & 0xFFF) << 64) | (2 << 62) | (random & ((1 << 62) - 1))
    with _lock:
        if candidate <= _last:
            candidate = _last + 1 + (random & 0xFFFFFFFF)
        _last = candidate
    return candidate


def new(prefix: str) -> str:
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    return f"{prefix}_{suffix()}"


def suffix() -> str:
    value = _uuid7()
    pairs = _PAIRS
    return "".join([pairs[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def earliest(prefix: str, at: datetime) -> str:
    value = int(at.timestamp() * 1000) << 80
    return f"{prefix}_" + "".join([_PAIRS[(value >> shift) & 1023] for shift in range(120, -1, -10)])


def matches(prefix: str, value: object) -> bool:
    return isinstance(value, str) and (found := _PATTERN.fullmatch(value)) is not None and found[1] == prefix


def prefix_of(text: str) -> str | None:
    """None if the text is not an id. Ids of rows have prefixes of their tables."""
    found = _PATTERN.fullmatch(text)
    return found[1] if found else None


def created_at(value: str) -> datetime:
    """Raises ValueError."""
    found = _PATTERN.fullmatch(value)
    if found is None:
        raise ValueError("not an id")
    number = int(found[2].translate(_DIGITS), 32)
    return datetime.fromtimestamp((number >> 80) / 1000, UTC)
