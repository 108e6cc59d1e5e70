from datetime import UTC, datetime, timedelta
from typing import Final

from django.utils.http import parse_http_date_safe

SCHEDULE: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (0, 5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
)
"""The wait before attempt 1, 2, …; after the last one the delivery is exhausted."""
JITTER: Final = 0.2


def delay_after(
    attempts: int, *, draw: float, retry_after: timedelta | None = None, schedule: tuple[timedelta, ...] = SCHEDULE
) -> timedelta | None:
    """The wait after the `attempts`th failed attempt (from 1); None if exhausted. `draw`, uniform in [0, 1), spreads it
    by ±20 %. `retry_after` is honoured within [d, 2d] of the scheduled d."""
    if attempts >= len(schedule):
        return None
    scheduled = schedule[attempts]
    jittered = scheduled * (1 + JITTER * (2 * draw - 1))
    if retry_after is None:
        return jittered
    return min(max(retry_after, jittered), scheduled * 2)


def parse_retry_after(header: str | None, now: datetime) -> timedelta | None:
    """The wait of a `Retry-After` header (seconds or an HTTP date, RFC 9110 10.2.3), None for nonsense."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return timedelta(seconds=int(text))
    at = parse_http_date_safe(text)
    return None if at is None else max(timedelta(0), datetime.fromtimestamp(at, UTC) - now)
