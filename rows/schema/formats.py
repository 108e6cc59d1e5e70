r"""Formats of text columns: one regular expression for Python and PostgreSQL, so without `.`, `\s`, `\d`, `\w` and
repetitions above 255, which differ."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Format:
    pattern: str
    max_length: int | None
    message: str

    @property
    def sql_pattern(self) -> str:
        return f"^(?:{self.pattern})$"

    def matches(self, text: str) -> bool:
        if self.max_length is not None and len(text) > self.max_length:
            return False
        return re.fullmatch(self.pattern, text) is not None


_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
# Without the limit of 63 characters: with {0,61}, PostgreSQL takes seven times as long.
_LABEL: Final = r"[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*"
_LAST_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9]|-+[A-Za-z0-9])+"
_PORT: Final = r"0*(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# Control characters, spaces, what changes the direction of text, and what RFC 3986 wants percent-encoded.
_NOT_IN_URLS: Final = (
    r"\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff" r'"<>\\^`{|}'
)

FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        # As for accounts (`accounts.users.emails`): ASCII, no quotes, nothing that mail programs decode (`=?`).
        "email": Format(
            rf"(?![!-~]*=[?]){_ATOM}(?:[.]{_ATOM})*@(?:{_LABEL}[.])+{_LAST_LABEL}",
            254,
            "Must be an email such as ada@example.com: ASCII, at most 254 characters.",
        ),
        # Without user and password: `https://bank.example@evil.example` leads to evil.example.
        "url": Format(
            rf"[Hh][Tt][Tt][Pp][Ss]?://(?:[^/?#@:%\[\]{_NOT_IN_URLS}]+|\[[0-9A-Fa-f:.]+\])"
            rf"(?::{_PORT})?(?:[/?#][^{_NOT_IN_URLS}]*)?",
            2048,
            "Must be a complete http or https URL, such as https://example.com/about, of at most 2,048 characters.",
        ),
        "slug": Format(
            r"[a-z0-9]+(?:[-_][a-z0-9]+)*",
            None,
            "Must be lower-case letters and digits, with single hyphens or underscores between them.",
        ),
    }
)
