"""The schedule of attempts."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhooks.delivery import retry

NOW = datetime(2026, 1, 1, tzinfo=UTC)
draws = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, len(retry.SCHEDULE) - 1), draws)
def test_a_wait_stays_within_its_jitter(attempts: int, draw: float) -> None:
    scheduled = retry.SCHEDULE[attempts]
    wait = retry.delay_after(attempts, draw=draw)
    assert wait is not None
    assert scheduled * 0.8 <= wait <= scheduled * 1.2


@given(st.integers(1, len(retry.SCHEDULE) - 1), draws, st.timedeltas(timedelta(0), timedelta(days=9000)))
def test_a_receiver_can_slow_us_down_but_not_hurry_or_park_us(attempts: int, draw: float, asked: timedelta) -> None:
    scheduled = retry.SCHEDULE[attempts]
    wait = retry.delay_after(attempts, draw=draw, retry_after=asked)
    plain = retry.delay_after(attempts, draw=draw)
    assert wait is not None
    assert plain is not None
    assert plain <= wait <= max(plain, scheduled * 2)
    if plain <= asked <= scheduled * 2:
        assert wait == asked


def test_after_the_last_attempt_there_is_none() -> None:
    assert retry.delay_after(len(retry.SCHEDULE), draw=0.5) is None


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        (None, None),
        ("120", timedelta(seconds=120)),
        (" 7 ", timedelta(seconds=7)),
        ("Thu, 01 Jan 2026 00:01:00 GMT", timedelta(seconds=60)),
        ("Thu, 01 Jan 2015 00:01:00 GMT", timedelta(0)),
        ("soon", None),
        ("-5", None),
        ("٣", None),
        ("99999999999999999999", None),
        ("Thu, 01 Jan 99999999999999 00:00:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:00 +99999999999999999999", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_or_ignored(header: str | None, wait: timedelta | None) -> None:
    assert retry.parse_retry_after(header, NOW) == wait
