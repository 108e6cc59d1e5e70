"""The form of a refresh token: `rt_`, 22 characters of family, 43 random ones (256 bits), 6 of checksum. Pure
computation. All tokens of one session share the family, so that one which was replaced long ago still finds its session
and can be recognised as reused, although the session remembers only two hashes. Who makes up a token without having
seen a real one meets no session (131 bits)."""

from dataclasses import dataclass
from typing import Final

from accounts.tokens import token_format

PREFIX: Final = "rt_"
_FAMILY: Final = 22
_SECRET: Final = 43


@dataclass(frozen=True, slots=True)
class RefreshToken:
    """One token, in clear: never stored, never logged."""

    text: str

    @property
    def hash(self) -> bytes:
        """What a session stores of it."""
        return token_format.digest(self.text)

    @property
    def family_hash(self) -> bytes:
        """What all tokens of the session have in common, hashed."""
        return token_format.digest(self._family)

    @property
    def _family(self) -> str:
        return self.text[: len(PREFIX) + _FAMILY]

    def successor(self) -> "RefreshToken":
        """Another token of the same session."""
        return RefreshToken(token_format.make(self._family, _SECRET))

    def __repr__(self) -> str:
        return "RefreshToken(…)"


def first() -> RefreshToken:
    """The first token of a new session."""
    return RefreshToken(token_format.make(PREFIX + token_format.characters(_FAMILY), _SECRET))


def parse(text: str) -> RefreshToken | None:
    """The token, or None if `text` cannot be one: checked by its checksum, without the database."""
    family = text[: len(PREFIX) + _FAMILY]
    if not family.startswith(PREFIX) or not family[len(PREFIX) :].isalnum():
        return None
    return RefreshToken(text) if token_format.is_well_formed(family, _SECRET, text) else None
