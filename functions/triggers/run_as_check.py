"""Whether whoever deploys a function may stand behind all that runs it by itself, since it runs as them from then on.

Its schedule (`functions.triggers.schedules`), its events (`functions.triggers.event_subscriptions`) and its inbound
addresses (`functions.triggers.inbound_endpoints`) say each what that takes; what somebody lacks of it they are told at
once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from platform_site.http.errors import Forbidden
from platform_site.identity.callers import Caller


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a function runs without being called, in words that complete "The function runs …"."""

    how: str
    remedy: str
    """How its owner takes it away."""
    scopes: tuple[str, ...]
    """What whoever it runs as must have."""


def check(by: Caller | None, ways: Iterable[Way | None]) -> None:
    """Raises Forbidden with every scope that `by` lacks for one of the ways that there are. None is nobody whom a
    function could run as, staff or a command: it stays whose it was."""
    if by is None:
        return
    lacking = [way for way in ways if way is not None and not all(map(by.may, way.scopes))]
    if not lacking:
        return
    missing = dict.fromkeys(scope for way in lacking for scope in way.scopes if not by.may(scope))
    raise Forbidden(
        f"The function runs {' and '.join(way.how for way in lacking)}, and would do so as you: that needs "
        f"{', '.join(missing)}, too. Or {' and '.join(way.remedy for way in lacking)}."
    )
