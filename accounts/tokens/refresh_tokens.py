"""Format of a refresh token: `rt_`, 22 characters of family, 43 random ones (256 bits), 6 of checksum. Pure
computation. All tokens of a session share the family, by which a reused one is recognised."""

from dataclasses import dataclass
from typing import Final

from accounts.tokens import token_format

PREFIX: Final = "rt_"
_FAMILY: Final = 22
_SECRET: Final = 43


@dataclass(frozen=True, slots=True)
class RefreshToken:
    text: str

    @property
    def hash(self) -> bytes:
        return token_format.digest(self.text)

    @property
    def family_hash(self) -> bytes:
        return token_format.digest(self._family)

    @property
    def _family(self) -> str:
        return self.text[: len(PREFIX) + _FAMILY]

    def successor(self) -> "RefreshToken":
        return RefreshToken(token_format.make(self._family, _SECRET))

    def __repr__(self) -> str:
        return "RefreshToken(…)"


def first() -> RefreshToken:
    return RefreshToken(token_format.make(PREFIX + token_format.characters(_FAMILY), _SECRET))


def parse(text: str) -> RefreshToken | None:
    family = text[: len(PREFIX) + _FAMILY]
    if not family.startswith(PREFIX) or not family[len(PREFIX) :].isalnum():
        return None
    return RefreshToken(text) if token_format.is_well_formed(family, _SECRET, text) else None
