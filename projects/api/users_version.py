"""The version of an environment's users (`accounts.directory.kept_users`), read in the round trip of a request that may
embed some.

Which pool has the users is part of a record that the same trip reads, so it is known from an earlier request.
"""

import time
from typing import Final

from django.http import HttpRequest

from accounts.directory import kept_users
from platform_site.redis.round_trip import Fetched, RoundTrip
from projects.api import pending_records

_MOST_REMEMBERED: Final = 5000
pools: Final[dict[str, str]] = {}
"""Of environments whose rows embed users, by the name of their record."""
Asked = tuple[str, Fetched]
"""A pool, and its version once the trip is made."""


def ask(trip: RoundTrip, where: str) -> Asked:
    """`where` is among `pools`."""
    pool_id = pools[where]
    return pool_id, trip.get(kept_users.version_name(pool_id))


def note(request: HttpRequest, where: str, pool_id: str, asked: Asked | None) -> None:
    """Leave the version of the pool with the request, or begin one if there is none."""
    if asked is None or asked[0] != pool_id:
        while len(pools) >= _MOST_REMEMBERED:
            pools.pop(next(iter(pools), ""), None)
        pools[where] = pool_id
        return
    version = asked[1].value
    if version is None:
        pending_records.add(time.monotonic(), kept_users.version_name(pool_id), kept_users.new_version())
    elif kept_users.is_version(version):
        request.__dict__["users_version"] = version
