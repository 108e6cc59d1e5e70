"""How many webhooks and functions in a row led to a call, told by a header that nobody can make up.

    X-Platform-Depth: 3.29948640.q83vEjRWeJCrze8SNFZ4kA

Each delivery and each `ctx.fetch` carries it, and whoever answers one by calling the API passes it on as it came: so a
circle through a stranger's server is cut as well. It is the number, the minute in which it was made,
and a MAC over both and the environment, under the platform's keys. If it were believed from anybody, a user who sends a
high one would keep what they set in motion from every webhook; so what was not made here, for this environment and of
late, counts as if it were not there.

Nothing else can be known of it: for BELIEVED_MINUTES whoever it was sent to can send it again. Each attempt at a
delivery and each fetch carries one of its own time. A circle through two environments is not recognised, for neither
takes the other's word, nor one whose links take longer than that.
"""

import base64
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from platform_site.security import keyring

HEADER: Final = "X-Platform-Depth"
META: Final = "HTTP_X_PLATFORM_DEPTH"
LONGEST: Final = 8
"""A chain of webhooks, functions and row writes is cut here."""
BELIEVED_MINUTES: Final = 60
"""Long enough for a receiver that answers by a queue of its own, and for the clocks of two hosts."""
_PURPOSE: Final = "platform.chain"
_said_here: Final[ContextVar[str | None]] = ContextVar("chain", default=None)
_FORM: Final = re.compile(r"(\d{1,3})\.(\d{1,10})\.([A-Za-z0-9_-]{22})", re.ASCII)


def signed(depth: int, environment_id: str) -> str:
    """The header's value for a call that the environment makes; `depth` counts that call."""
    minute = _minute()
    mac = keyring.mac(_said(depth, minute, environment_id), purpose=_PURPOSE)
    return f"{depth}.{minute}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def depth_of(meta: Mapping[str, Any], environment_id: str) -> int:
    """What the header of a call into the environment says, of which `meta` is `request.META`; 0 unless it was signed
    for that environment within the hour."""
    return _depth_said(meta.get(META), environment_id)


def arrive(meta: Mapping[str, Any]) -> None:
    """Remember what the header of the request at hand says, for code that is not handed the request."""
    _said_here.set(meta.get(META))


def depth_here(environment_id: str) -> int:
    """As `depth_of`, of the request at hand; 0 outside of one."""
    return _depth_said(_said_here.get(), environment_id)


def _depth_said(value: str | None, environment_id: str) -> int:
    found = None if value is None else _FORM.fullmatch(value)
    if found is None:
        return 0
    depth, minute, mac = int(found[1]), int(found[2]), base64.urlsafe_b64decode(found[3] + "==")
    if abs(_minute() - minute) > BELIEVED_MINUTES:
        return 0
    return depth if keyring.is_mac(mac, _said(depth, minute, environment_id), purpose=_PURPOSE) else 0


def _said(depth: int, minute: int, environment_id: str) -> bytes:
    return f"{depth} {minute} {environment_id}".encode()


def _minute() -> int:
    return int(time.time() // 60)
