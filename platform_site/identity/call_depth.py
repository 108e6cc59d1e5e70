"""Call depth: the number of webhooks and functions that led to a call, in a header with a MAC over depth, minute and
environment (`X-Platform-Depth: 3.29948640.q83vEjRWeJCrze8SNFZ4kA`), so that loops through external servers end. Loops
through two environments are not detected."""

import base64
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from platform_site.http.errors import Conflict
from platform_site.security import keyring

HEADER: Final = "X-Platform-Depth"
META: Final = "HTTP_X_PLATFORM_DEPTH"
MAX_DEPTH: Final = 8
VALID_MINUTES: Final = 60
"""Enough for a receiver with a queue, and clock differences."""
_PURPOSE: Final = "platform.chain"
_here: Final[ContextVar[str | int | None]] = ContextVar("chain", default=None)
"""The header of the current request, or the depth that `at` has set."""
_FORM: Final = re.compile(r"(\d{1,3})\.(\d{1,10})\.([A-Za-z0-9_-]{22})", re.ASCII)


def sign(depth: int, environment_id: str) -> str:
    """The header for a call by the environment, which `depth` includes."""
    minute = _minute()
    mac = keyring.mac(_message(depth, minute, environment_id), purpose=_PURPOSE)
    return f"{depth}.{minute}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def depth_of(meta: Mapping[str, Any], environment_id: str) -> int:
    """0 unless signed for this environment within VALID_MINUTES."""
    return _read(meta.get(META), environment_id)


def begin_request() -> None:
    """The header counts after `trust_header` only: with a copied one, an app's users could stop the functions and
    webhooks of their calls."""
    _here.set(None)


def trust_header(meta: Mapping[str, Any]) -> None:
    """For requests by a key or an account."""
    _here.set(meta.get(META))


@contextmanager
def at(depth: int) -> Generator[None]:
    token = _here.set(depth)
    try:
        yield
    finally:
        _here.reset(token)


def depth_here(environment_id: str) -> int:
    here = _here.get()
    return here if isinstance(here, int) else _read(here, environment_id)


def refuse_loop(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Conflict(f"Refused, to prevent a loop: a chain of {depth} functions and webhooks led to this call.")


def _read(value: str | None, environment_id: str) -> int:
    found = None if value is None else _FORM.fullmatch(value)
    if found is None:
        return 0
    depth, minute, mac = int(found[1]), int(found[2]), base64.urlsafe_b64decode(found[3] + "==")
    if abs(_minute() - minute) > VALID_MINUTES:
        return 0
    return depth if keyring.is_mac(mac, _message(depth, minute, environment_id), purpose=_PURPOSE) else 0


def _message(depth: int, minute: int, environment_id: str) -> bytes:
    return f"{depth} {minute} {environment_id}".encode()


def _minute() -> int:
    return int(time.time() // 60)
