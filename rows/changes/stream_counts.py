"""Counts the open streams of all web processes in Redis, by environment and by caller. Without Redis there is no limit.
Each stream is in sorted sets, by the time when its process last reported it open."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import redis

from platform_site.http.errors import RateLimited
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from rows.changes import notifications
from rows.changes.streams import Stream

logger = logging.getLogger("platform.changes")

REFRESH_SECONDS: Final = 5
_EXPIRY_SECONDS: Final = 3 * REFRESH_SECONDS
"""After this the streams of a killed process no longer count."""
_RETRY_SECONDS: Final = 5


_ALL: Final = "streams"


def _keys(environment: EnvironmentRef, caller: Caller) -> tuple[str, str, str]:
    return f"streams:{environment.environment_id}", f"streams:{environment.environment_id}:{caller.id}", _ALL


def count_all() -> int | None:
    """The open streams of all environments; None without Redis."""
    try:
        return int(notifications.connect().zcount(_ALL, time.time() - _EXPIRY_SECONDS, "+inf"))
    except (redis.RedisError, OSError):
        return None


def add(stream: Stream) -> None:
    """Count a stream that is about to open. Raises RateLimited if the plan allows no more."""
    environment, caller = stream.environment, stream.caller
    allowed = plan_limits(environment.plan)
    own = allowed.streams_per_environment // 2 if caller.kind == "anonymous" else allowed.streams_per_caller
    keys = _keys(environment, caller)
    try:
        with notifications.connect().pipeline() as pipe:
            for key in keys:
                pipe.zremrangebyscore(key, 0, time.time() - _EXPIRY_SECONDS)
                _add(pipe, key, [stream.id])
                pipe.zcard(key)
            found = pipe.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("streams are not counted: %s", type(error).__name__)
        return
    in_all, of_caller = found[3], found[7]  # of each key: removed, added, expiry set, counted
    if in_all > allowed.streams_per_environment or of_caller > own:
        remove([stream])
        message = "The environment has too many open streams."
        if of_caller > own:
            message = f"This caller has {own} open streams. Put several subscriptions into one stream."
        raise RateLimited(_RETRY_SECONDS, message)


def _add(pipe: Any, key: str, stream_ids: Iterable[str]) -> None:
    pipe.zadd(key, dict.fromkeys(stream_ids, time.time()))
    pipe.expire(key, 2 * _EXPIRY_SECONDS)


def refresh(streams: Iterable[Stream]) -> None:
    """Report these streams as still open."""
    _execute(streams, _add)


def remove(streams: Iterable[Stream]) -> None:
    """Stop counting these streams."""
    _execute(streams, lambda pipe, key, stream_ids: pipe.zrem(key, *stream_ids))


def _execute(streams: Iterable[Stream], command: Callable[[Any, str, list[str]], Any]) -> None:
    """`command(pipe, key, stream_ids)` for each key, in one round trip."""
    ids: dict[str, list[str]] = defaultdict(list)
    for stream in streams:
        for key in _keys(stream.environment, stream.caller):
            ids[key].append(stream.id)
    if not ids:
        return
    try:
        with notifications.connect().pipeline(transaction=False) as pipe:
            for key, stream_ids in ids.items():
                command(pipe, key, stream_ids)
            pipe.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("streams are not counted: %s", type(error).__name__)
