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
Asked = tuple[str, Fetched]
"""A mark's name, and its value after the round trip."""


def ask(trip: RoundTrip, where: str) -> Asked | None:
    """None while the mark's name is unknown."""
    name = _mark_names.get(where)
    return None if name is None else (name, trip.highest(name))


def note(request: HttpRequest, where: str, environment: EnvironmentRef, asked: Asked | None) -> None:
    """Set `freshness` on the request, if a replica may answer it."""
    name = replicas.mark_name(environment.cluster, environment.environment_id)
    if name is None:
        return
    if asked is None or asked[0] != name:
        _mark_names.put(where, name)
        return
    value = asked[1].value
    position = None if value is None else int(float(value))
    request.__dict__["freshness"] = replicas.freshness(environment.cluster, name, position)
