"""The form of an address's token: `hk_`, the environment's id without its prefix, 32 random base62 characters (190
bits), 6 of checksum. Pure computation.

The environment says in which region to look, so that the address needs no header. It is no secret; the rest is, and
stands in the address alone. What is stored and compared is the SHA-256 of the whole.
"""

from typing import Final

from accounts import opaque
from platform_site.api import ids

PREFIX: Final = "hk_"
_OF_ENVIRONMENT: Final = "env_"
_ID: Final = 26
_LENGTH: Final = 32


def make(environment_id: str) -> str:
    """A fresh token. It is shown once and never stored."""
    return opaque.make(PREFIX + environment_id.removeprefix(_OF_ENVIRONMENT), _LENGTH)


def environment_of(token: str) -> str | None:
    """The environment that the token names; None if it cannot be a token. Whether there are such is not known yet."""
    prefix = token[: len(PREFIX) + _ID]
    environment_id = _OF_ENVIRONMENT + prefix.removeprefix(PREFIX)
    if not ids.matches("env", environment_id) or not opaque.is_well_formed(prefix, _LENGTH, token):
        return None
    return environment_id if prefix.startswith(PREFIX) else None


def digest(token: str) -> bytes:
    """What is stored of a token."""
    return opaque.digest(token)
