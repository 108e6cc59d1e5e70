"""Counts the open streams of all web processes, by environment, caller, and client network of an anonymous caller, in
sorted sets in Redis by the time when their process last reported them open. Without Redis there is no limit."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import redis

from platform_site.http.errors import RateLimited
from platform_site.identity.plans import plan_limits
from rows.changes import notifications
from rows.changes.streams import Stream

logger = logging.getLogger("platform.changes")

REFRESH_SECONDS: Final = 5
_EXPIRY_SECONDS: Final = 3 * REFRESH_SECONDS
"""After this the streams of a killed process no longer count."""
_RETRY_SECONDS: Final = 5


_ALL: Final = "streams"


def _keys(stream: Stream) -> list[str]:
    of_environment = f"streams:{stream.environment.environment_id}"
    of_caller = f"{of_environment}:{stream.caller.id}"
    keys = [of_environment, of_caller, _ALL]
    return keys if stream.network is None else [*keys, f"{of_caller}:{stream.network}"]


def count_all() -> int | None:
    try:
        return int(notifications.connect().zcount(_ALL, time.time() - _EXPIRY_SECONDS, "+inf"))
    except (redis.RedisError, OSError):
        return None


def add(stream: Stream) -> None:
    """Raises RateLimited if the plan allows no more."""
    allowed = plan_limits(stream.environment.plan)
    own = allowed.streams_per_caller if stream.network is None else allowed.streams_per_environment // 2
    try:
        with notifications.connect().pipeline() as pipe:
            for key in _keys(stream):
                pipe.zremrangebyscore(key, 0, time.time() - _EXPIRY_SECONDS)
                _add(pipe, key, [stream.id])
                pipe.zcard(key)
            found = pipe.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("streams are not counted: %s", type(error).__name__)
        return
    in_all, of_caller, _, *of_network = found[3::4]  # of each key: removed, added, expiry set, counted
    message = None
    if in_all > allowed.streams_per_environment:
        message = "The environment has too many open streams."
    if of_caller > own:
        message = f"This caller has {own} open streams. Put several subscriptions into one stream."
    if of_network and of_network[0] > own // 2:
        message = f"This client network has {own // 2} open streams. Put several subscriptions into one stream."
    if message is not None:
        remove([stream])
        raise RateLimited(_RETRY_SECONDS, message)


def _add(pipe: Any, key: str, stream_ids: Iterable[str]) -> None:
    pipe.zadd(key, dict.fromkeys(stream_ids, time.time()))
    pipe.expire(key, 2 * _EXPIRY_SECONDS)


def refresh(streams: Iterable[Stream]) -> None:
    _execute(streams, _add)


def remove(streams: Iterable[Stream]) -> None:
    _execute(streams, lambda pipe, key, stream_ids: pipe.zrem(key, *stream_ids))


def _execute(streams: Iterable[Stream], command: Callable[[Any, str, list[str]], Any]) -> None:
    ids: dict[str, list[str]] = defaultdict(list)
    for stream in streams:
        for key in _keys(stream):
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
