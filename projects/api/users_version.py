"""The version of an environment's users (`accounts.directory.user_cache`), read in the round trip of a request that may
embed some. The pool is known from an earlier request."""

import time
from typing import Final

from django.http import HttpRequest

from accounts.directory import user_cache
from platform_site.concurrency.memo import Memo
from platform_site.redis.round_trip import Fetched, RoundTrip
from projects.api import pending_records

_pools: Final[Memo[str, str]] = Memo(2_500)
"""By record name, pools of environments whose rows embed users."""
PendingVersion = tuple[str, Fetched]
"""A pool, and its version after the round trip."""


def fetch(trip: RoundTrip, record_name: str) -> PendingVersion | None:
    """None while the pool is unknown, or its users are not embedded."""
    pool_id = _pools.get(record_name)
    return None if pool_id is None else (pool_id, trip.get(user_cache.version_name(pool_id)))


def set_on(request: HttpRequest, record_name: str, pool_id: str, pending: PendingVersion | None) -> None:
    """Set the pool's version on the request, or begin one."""
    if not user_cache.embedding.get(pool_id):
        return
    if pending is None or pending[0] != pool_id:
        _pools.put(record_name, pool_id)
        return
    version = pending[1].value
    if version is None:
        pending_records.add(time.monotonic(), user_cache.version_name(pool_id), user_cache.new_version())
    elif user_cache.is_version(version):
        request.__dict__["users_version"] = version
