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
Asked = tuple[str, Fetched]
"""A pool, and its version after the round trip."""


def ask(trip: RoundTrip, where: str) -> Asked | None:
    """None while the pool is unknown, or its users are not embedded."""
    pool_id = _pools.get(where)
    return None if pool_id is None else (pool_id, trip.get(user_cache.version_name(pool_id)))


def note(request: HttpRequest, where: str, pool_id: str, asked: Asked | None) -> None:
    """Set the pool's version on the request, or begin one."""
    if not user_cache.embedding.get(pool_id):
        return
    if asked is None or asked[0] != pool_id:
        _pools.put(where, pool_id)
        return
    version = asked[1].value
    if version is None:
        pending_records.add(time.monotonic(), user_cache.version_name(pool_id), user_cache.new_version())
    elif user_cache.is_version(version):
        request.__dict__["users_version"] = version
