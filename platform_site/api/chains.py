"""How many webhooks and functions in a row led to a call, told by a header that nobody can make up.

    X-Platform-Depth: 3.q83vEjRWeJCrze8SNFZ4kA

Each delivery and each `ctx.fetch` carries it, and whoever answers one by calling the API passes it on as it came: so a
circle through a stranger's server is cut as well (reliability F27). It is the number and a MAC over it and the
environment, under the platform's keys. If it were believed from anybody, a user who sends a high one would keep what
they set in motion from every webhook; so what was not made here, for this environment, counts as if it were not there.

Nothing else can be known of it: one that came this way can be sent again, by whom it was sent to. A circle through two
environments is not recognised, for neither takes the other's word.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from platform_site.api import keyring

HEADER: Final = "X-Platform-Depth"
META: Final = "HTTP_X_PLATFORM_DEPTH"
LONGEST: Final = 8
"""A chain of webhooks, functions and row writes is cut here."""
_PURPOSE: Final = "platform.chain"
_FORM: Final = re.compile(r"(\d{1,3})\.([A-Za-z0-9_-]{22})", re.ASCII)


def signed(depth: int, environment_id: str) -> str:
    """The header's value for a call that the environment makes; `depth` counts that call."""
    mac = keyring.mac(_said(depth, environment_id), purpose=_PURPOSE)
    return f"{depth}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def depth_of(meta: Mapping[str, Any], environment_id: str) -> int:
    """What the header of a call into the environment says, of which `meta` is `request.META`; 0 unless it was signed
    for that environment."""
    value = meta.get(META)
    found = None if value is None else _FORM.fullmatch(value)
    if found is None:
        return 0
    depth, mac = int(found[1]), base64.urlsafe_b64decode(found[2] + "==")
    return depth if keyring.is_mac(mac, _said(depth, environment_id), purpose=_PURPOSE) else 0


def _said(depth: int, environment_id: str) -> bytes:
    return f"{depth} {environment_id}".encode()
