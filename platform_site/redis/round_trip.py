"""One pipelined round trip to Redis: commands are collected, sent together, and their replies are read afterwards."""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import hiredis

logger = logging.getLogger(__name__)

RECORD_TTL: Final = 60
"""Lifetime of a record, which bounds every failure to mark it."""
HIGHEST: Final = "highest"

Command = tuple[str | bytes | int, ...]
pack: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]  # its stub: one word only


class Fetched:
    value: bytes | None = None
    """None before the run, for an absent key, and without Redis."""


class Counted:
    value: int | None = None


class Unavailable(Exception):
    """Refused, too slow, read-only, or the circuit breaker is open."""


@lru_cache(maxsize=4096)
def _get(key: str) -> bytes:
    return pack(("GET", key))


@lru_cache(maxsize=4096)
def _count(key: str, ttl: int, amount: int = 1) -> bytes:
    return pack(("INCRBY", key, amount)) + pack(("EXPIRE", key, ttl))


class RoundTrip:
    def __init__(self, exchange: Callable[[bytes, int, Sequence[bytes]], list[Any]]) -> None:
        self._exchange = exchange
        self._fills: list[bytes] = []
        self._packed: list[bytes] = []
        self._replies: list[Fetched | Counted | None] = []

    def get(self, key: str) -> Fetched:
        self._packed.append(_get(key))
        fetched = Fetched()
        self._replies.append(fetched)
        return fetched

    def highest(self, key: str) -> Fetched:
        self._packed.append(pack(("ZSCORE", key, HIGHEST)))
        fetched = Fetched()
        self._replies.append(fetched)
        return fetched

    def count(self, key: str, ttl: int, amount: int = 1) -> Counted:
        """Add `amount` to `key`, which expires `ttl` seconds after the last count."""
        self._packed.append(_count(key, ttl, amount))
        counted = Counted()
        self._replies.append(counted)
        self._replies.append(None)
        return counted

    def fill(self, key: str, value: bytes) -> None:
        """Before the other commands; left out where Redis may have been restarted since `value` was read."""
        self._fills.append(pack(("SET", key, value, "EX", RECORD_TTL, "NX")))

    def run(self) -> bool:
        """False if Redis is unavailable; every value is None then. Never raises."""
        waiting = self._replies
        if not waiting and not self._fills:
            return True
        try:
            replies = self._exchange(b"".join(self._packed), len(waiting), self._fills)
        except Unavailable:
            return False
        for reply, asked in zip(replies, waiting, strict=True):
            if asked is not None:
                if isinstance(reply, hiredis.ReplyError):  # a key of another type
                    logger.warning("Redis refused a command: %s", reply)
                else:
                    asked.value = reply
        return True
