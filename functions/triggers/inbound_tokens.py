"""An inbound endpoint's token: `hk_`, the environment's id without its prefix, 21 random base62 characters (125 bits),
11 characters of a MAC over everything before it, 6 of a checksum. Only its SHA-256 is stored. The MAC authorises
nothing: it tells tokens of this platform from invented ones without a lookup, so that guessing does not use up the rate
limits of real endpoints. A token whose key was removed still works, but counts as unverified."""

import hmac
from typing import Final

from accounts.tokens import token_format
from platform_site.identity import ids
from platform_site.security import keyring

digest: Final = token_format.digest
PREFIX: Final = "hk_"
_OF_ENVIRONMENT: Final = "env_"
_ID: Final = 26
_RANDOM: Final = 21
_MAC: Final = 11
_PURPOSE: Final = "functions.inbound"


def make(environment_id: str) -> str:
    text = PREFIX + environment_id.removeprefix(_OF_ENVIRONMENT) + token_format.characters(_RANDOM)
    return token_format.checked(text + _spelled(keyring.mac(text.encode(), purpose=_PURPOSE)))


def environment_of(token: str) -> str | None:
    """None if it cannot be a token. The environment may not exist."""
    prefix = token[: len(PREFIX) + _ID]
    environment_id = _OF_ENVIRONMENT + prefix.removeprefix(PREFIX)
    if not ids.matches("env", environment_id) or not token_format.is_well_formed(prefix, _RANDOM + _MAC, token):
        return None
    return environment_id


def is_valid(token: str) -> bool:
    """Whether `make` made this well-formed token under a key that the platform still has. It may be revoked."""
    end = len(PREFIX) + _ID + _RANDOM
    text, given = token[:end], token[end : end + _MAC]
    return any(hmac.compare_digest(given, _spelled(each)) for each in keyring.macs(text.encode(), purpose=_PURPOSE))


def _spelled(mac: bytes) -> str:
    return token_format.spelled(int.from_bytes(mac), _MAC)
