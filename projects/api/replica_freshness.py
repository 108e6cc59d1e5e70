"""How current a replica must be to answer a request: the environment's last write (`platform_site.postgres.replicas`),
whose mark is read in the request's round trip. The mark's name is known from an earlier request."""

from typing import Final

from django.http import HttpRequest

from platform_site.concurrency.memo import Memo
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import replicas
from platform_site.redis.round_trip import Fetched, RoundTrip

_mark_names: Final[Memo[str, str]] = Memo(5_000)
"""By the name of an environment's record."""
PendingMark = tuple[str, Fetched]
"""Its name, and its value after the round trip."""


def fetch(trip: RoundTrip, record_name: str) -> PendingMark | None:
    """None while the mark's name is unknown."""
    name = _mark_names.get(record_name)
    return None if name is None else (name, trip.highest(name))


def set_on(request: HttpRequest, record_name: str, environment: EnvironmentRef, mark: PendingMark | None) -> None:
    """Set `freshness` on the request, if a replica may answer it."""
    name = replicas.mark_name(environment.cluster, environment.environment_id)
    if name is None:
        return
    if mark is None or mark[0] != name:
        _mark_names.put(record_name, name)
        return
    value = mark[1].value
    position = None if value is None else int(float(value))
    request.__dict__["freshness"] = replicas.freshness(environment.cluster, name, position)
