"""Identities and time windows for tests of rate limits."""

import time
import uuid
from collections.abc import Callable

from django_ratelimit.core import _get_window

from platform_site.redis import rate_limits
from tests.support.flush import flush_redis


def assert_within_one_window(attempt: Callable[[], list[int]], expected: list[int]) -> None:
    """A window of the limit may turn over in the middle of a series, which admits more; three in a row do not.

    Counts of earlier tests, above all for this machine's IP address, are deleted first.
    """
    found: list[list[int]] = []
    while len(found) < 3 and expected not in found:
        flush_redis()
        found.append(attempt())
    assert expected in found


def has_time(identity: str) -> bool:
    """Whether its window lasts long enough for a test to happen within it."""
    return bool(_get_window(identity, rate_limits.PERIOD) - time.time() > 15)


def fresh_identity(make: Callable[[int], str] = lambda n: f"usr_{uuid.uuid4()}") -> str:
    """An identity without any counted request, with time left in its window."""
    start = uuid.uuid4().int % 1_000_000
    return next(identity for n in range(1000) if has_time(identity := make(start + n)))


def address_with_time(*about: str) -> str:
    """A client's IP address whose refused tokens have time left in their windows, for each of `about`."""
    start = uuid.uuid4().int
    addresses = (f"203.0.{(start + n) >> 8 & 255}.{(start + n) & 255}" for n in range(1000))
    return next(address for address in addresses if all(has_time(f"{each}\0{address}") for each in about))
