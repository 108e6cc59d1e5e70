from collections.abc import Iterable
from dataclasses import dataclass

from platform_site.http.errors import Forbidden
from platform_site.identity.callers import Caller


@dataclass(frozen=True, slots=True)
class TriggerKind:
    """`how` completes "The function runs …"; `scopes` are those that its run-as identity needs."""

    how: str
    remedy: str
    scopes: tuple[str, ...]


def check(by: Caller | None, ways: Iterable[TriggerKind | None]) -> None:
    """Raises Forbidden with every scope that `by` lacks for one of the triggers. None is staff or a command."""
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
