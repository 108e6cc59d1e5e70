"""The commands of one request to Redis, sent together in one round trip."""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

import hiredis

logger = logging.getLogger(__name__)

RECORD_TTL: Final = 60
"""Seconds that a filled record lives, which bounds every failure to mark it."""
HIGHEST: Final = "highest"

Command = tuple[str | bytes | int, ...]
pack: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]  # its stub: one word only


class Fetched:
    """The result of a `get`: None before the run, for an absent key, and while Redis is unavailable."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: bytes | None = None


class Counted:
    """The result of a `count`: the count including this one (1 for the first), or None while Redis is unavailable."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | None = None


class Unavailable(Exception):
    """Redis did not do it: refused, silent for too long, takes no writes, or the breaker is open."""


@lru_cache(maxsize=4096)
def _get(key: str) -> bytes:
    return pack(("GET", key))


@lru_cache(maxsize=4096)
def _count(key: str, ttl: int, amount: int = 1) -> bytes:
    return pack(("INCRBY", key, amount)) + pack(("EXPIRE", key, ttl))


class Exchanger(Protocol):
    """What a round trip runs on: a `Store`."""

    def exchange(self, packed: bytes, expected: int) -> list[Any]:
        """Send packed commands and return the replies. Raises Unavailable."""


class RoundTrip:
    """The questions of one request to Redis, asked together. Not for several threads; runs once."""

    __slots__ = ("_packed", "_replies", "_store")

    def __init__(self, store: Exchanger) -> None:
        self._store = store
        self._packed: list[bytes] = []
        self._replies: list[Fetched | Counted | None] = []

    def get(self, key: str) -> Fetched:
        """Ask for the value of `key`."""
        self._packed.append(_get(key))
        fetched = Fetched()
        self._replies.append(fetched)
        return fetched

    def highest(self, key: str) -> Fetched:
        """Ask for the number that `Store.raise_to` keeps under `key`, as text."""
        self._packed.append(pack(("ZSCORE", key, HIGHEST)))
        fetched = Fetched()
        self._replies.append(fetched)
        return fetched

    def count(self, key: str, ttl: int, into: Counted | None = None, amount: int = 1) -> Counted:
        """Add `amount` to the counter `key`, which expires `ttl` seconds after the last count. Returns `into`, or a new
        one."""
        self._packed.append(_count(key, ttl, amount))
        counted = into or Counted()
        self._replies.append(counted)
        self._replies.append(None)
        return counted

    def fill(self, key: str, value: bytes, ttl: int = RECORD_TTL) -> None:
        """As `Store.fill`, on this trip."""
        self._packed.append(pack(("SET", key, value, "EX", ttl, "NX")))
        self._replies.append(None)

    def run(self) -> bool:
        """Send the commands. Returns False if Redis is unavailable; every value is None then. Never raises."""
        waiting = self._replies
        if not waiting:
            return True
        try:
            replies = self._store.exchange(b"".join(self._packed), len(waiting))
        except Unavailable:
            return False
        for reply, asked in zip(replies, waiting, strict=True):
            if asked is not None:
                if isinstance(reply, hiredis.ReplyError):  # a key of another type
                    logger.warning("Redis refused a command: %s", reply)
                else:
                    asked.value = reply
        return True
