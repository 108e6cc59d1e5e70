"""Tokens in the system's keyring, if `keyring` is installed. Imported late: it is slow."""

import json
from contextlib import suppress
from typing import Any

from platform_site.developer_cli.failures import Exit, Failure

_SERVICE = "platform"


def write(url: str, tokens: dict[str, Any]) -> bool:
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return False
    if isinstance(keyring.get_keyring(), fail.Keyring | null.Keyring):
        return False
    try:
        keyring.set_password(_SERVICE, url, json.dumps(tokens))
        return keyring.get_password(_SERVICE, url) is not None
    except Exception:  # backends raise errors of their own, for a locked keyring or a bus that is not there
        return False


def read(url: str) -> dict[str, Any]:
    try:
        import keyring

        found: dict[str, Any] = json.loads(keyring.get_password(_SERVICE, url) or "")
    except Exception:
        raise Failure(
            Exit.CREDENTIALS,
            "keyring_unavailable",
            f"The keyring did not return the credentials for {url}.",
            "Unlock it, or sign in again: platform login",
        ) from None
    return found


def remove(url: str) -> None:
    with suppress(Exception):
        import keyring

        keyring.delete_password(_SERVICE, url)
