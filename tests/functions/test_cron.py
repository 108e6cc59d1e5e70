"""Schedules: which texts are read, what they mean, and when they come next. Pure."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from celery.schedules import crontab_parser
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.triggers import cron


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("* * * * *", "* * * * *"),
        ("  */15\t8-18 * *  MON-Fri ", "*/15 8-18 * * mon-fri"),
        ("0 0 1 Jan *", "0 0 1 jan *"),
        ("0,30 0-23/6 1,15 */3 0,7", "0,30 0-23/6 1,15 */3 0,7"),
        ("@Daily", "@daily"),
        ("0 0 30 2 1", "0 0 30 2 1"),  # the Mondays come
        ("0 0 29 2 *", "0 0 29 2 *"),
        (",".join(str(each) for each in range(60)) + " * * * *",) * 2,
    ],
)
def test_what_is_read(text: str, normal: str) -> None:
    assert cron.normal(text) == normal


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "five fields"),
        ("* * * *", "This one ends before the day of the week."),
        ("* *", "This one ends before the day of the month."),
        ("* * * * * *", '"*" is a sixth field: there are no seconds and no years.'),
        ("0 9 * * * mon", '"mon" is a sixth field'),
        ("0 9 * * * 2027 x", 'It ends before "2027".'),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", '"cron_tz=europe/berlin" is a time zone, and schedule times are UTC.'),
        ("TZ=UTC 0 9 * * *", '"tz=utc" is a time zone, and schedule times are UTC.'),
        ("TZ=Europe/Berlin @daily", '"tz=europe/berlin" is a time zone'),
        ("0 9 * * * Europe/Berlin", '"europe/berlin" is a time zone, and schedule times are UTC.'),
        ("0 0 9 * * * America/Argentina/Buenos_Aires", "is a time zone"),
        ("0 9 * * * CET", '"cet" is a time zone'),
        ("a=b 9 * * * CET", '"cet" is a time zone'),
        ("@daily UTC+2", '"utc+2" is a time zone'),
        ("60 * * * *", '"60" is not a valid minute'),
        ("* 24 * * *", '"24" is not a valid hour'),
        ("* * 0 * *", '"0" is not a valid day of the month'),
        ("* * 32 * *", '"32" is not a valid day of the month'),
        ("* * * 13 *", '"13" is not a valid month: write *, a number from 1 to 12 (or jan to dec)'),
        ("* * * * 8", '"8" is not a valid day of the week'),
        ("jan * * * *", '"jan" is not a valid minute'),
        ("* * * mon *", '"mon" is not a valid month'),
        ("* * * * monday", '"monday" is not a valid day of the week'),
        ("-1 * * * *", '"-1" is not a valid minute'),
        ("1.5 * * * *", '"1.5" is not a valid minute'),
        ("1,,2 * * * *", '"" is not a valid minute'),
        ("1-5; * * * *", '"1-5;" is not a valid minute'),
        ("1_0 * * * *", '"1_0" is not a valid minute'),
        ("005 * * * *", '"005" is not a valid minute'),
        ("5/15 * * * *", "such as 5-59/15"),
        ("*/0 * * * *", "a step of the minute is 1 to 59"),
        ("*/90 * * * *", "a step of the minute is 1 to 59"),
        ("* 22-6 * * *", "a range goes upwards"),
        ("? * * * *", '"?" is not a valid minute'),
        ("* * L * *", '"l" is not a valid day of the month'),
        ("@reboot", '"@reboot" is none of @hourly'),
        ("@daily * * * *", '"@daily * * * *" is none of'),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 2,4,6,9,11 *", "never comes"),
        ("0 0 31 feb */2", "never comes"),
        ("٣ * * * *", '"٣" is not a valid minute'),
        ("１ * * * *", '"１" is not a valid minute'),
        ("*\u00a0*\u00a0*\u00a0*\u00a0*", "This one ends before the hour."),
        ("0\n* * * *", "This one ends before the day of the week."),
        ("0\x00 * * * *", '"0\x00" is not a valid minute'),
        ("0," * 5_000 + "0 * * * *", "at most 200 characters"),
        ("* " * 5_000, "at most 200 characters"),
    ],
)
def test_what_is_refused_says_why(text: str, says: str) -> None:
    with pytest.raises(cron.BadSchedule) as refused:
        cron.normal(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("text", "after", "comes"),
    [
        ("* * * * *", "2026-11-24 12:00:00", "2026-11-24 12:01"),
        ("* * * * *", "2026-11-24 12:00:59.999999", "2026-11-24 12:01"),
        ("*/15 * * * *", "2026-11-24 12:44:59", "2026-11-24 12:45"),
        ("*/15 * * * *", "2026-11-24 12:45:00", "2026-11-24 13:00"),
        ("*/15 * * * *", "2026-12-31 23:45:00", "2027-01-01 00:00"),
        ("59 23 31 12 *", "2026-12-31 23:59:00", "2027-12-31 23:59"),
        # Nothing is left out or done twice where Europe and America change their clocks.
        ("30 2 * * *", "2026-03-28 02:30", "2026-03-29 02:30"),
        ("30 1 * * *", "2026-10-25 00:59", "2026-10-25 01:30"),
        ("30 1 * * *", "2026-10-25 01:30", "2026-10-26 01:30"),
        ("30 2 8 3 *", "2026-03-01 00:00", "2026-03-08 02:30"),
        # The ends of months.
        ("0 0 31 * *", "2026-01-31 00:00", "2026-03-31 00:00"),
        ("0 0 30 * *", "2026-01-30 00:00", "2026-03-30 00:00"),
        ("0 0 28-31 2 *", "2027-02-28 00:00", "2028-02-28 00:00"),
        ("0 0 28-31 2 *", "2028-02-28 00:00", "2028-02-29 00:00"),
        # Leap days.
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-02-29 00:00", "2104-02-29 00:00"),
        ("0 0 29 2 */7", "2072-02-28 00:00", "2088-02-29 00:00"),
        ("0 12 29 feb sun", "2026-02-01 12:00", "2026-02-08 12:00"),
        # Where both days are restricted, either is enough; not where one begins with *.
        ("0 0 13 * fri", "2026-11-10 00:00", "2026-11-13 00:00"),
        ("0 0 13 * fri", "2026-11-13 00:00", "2026-11-20 00:00"),
        ("0 0 13 * fri", "2026-12-11 00:00", "2026-12-13 00:00"),
        ("0 0 */2 * mon", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("0 0 */2 * mon", "2026-11-23 00:00", "2026-12-07 00:00"),
        # Sunday is 0 and 7.
        ("0 0 * * 0", "2026-11-24 00:00", "2026-11-29 00:00"),
        ("0 0 * * 7", "2026-11-24 00:00", "2026-11-29 00:00"),
        ("0 0 * * 6-7", "2026-11-28 00:00", "2026-11-29 00:00"),
        ("0 0 * * sat-sun", "2026-11-28 00:00", "2026-11-29 00:00"),
        ("0 0 * * 0-0", "2026-11-24 00:00", "2026-11-29 00:00"),
        ("0 0 * * mon-fri", "2026-11-27 00:00", "2026-11-30 00:00"),
        ("@hourly", "2026-11-24 12:00", "2026-11-24 13:00"),
        ("@daily", "2026-11-24 12:00", "2026-11-25 00:00"),
        ("@weekly", "2026-11-24 12:00", "2026-11-29 00:00"),
        ("@monthly", "2026-11-24 12:00", "2026-12-01 00:00"),
        ("@yearly", "2026-11-24 12:00", "2027-01-01 00:00"),
    ],
)
def test_when_it_comes_next(text: str, after: str, comes: str) -> None:
    assert cron.read(cron.normal(text)).next_after(at(after)) == at(comes)


def test_times_are_utc_wherever_the_moment_is_from() -> None:
    found = cron.read("0 12 * * *").next_after(datetime(2026, 7, 1, 13, 30, tzinfo=timezone(timedelta(hours=2))))
    assert (found, found.tzinfo) == (at("2026-07-01 12:00"), UTC)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    """A field's text; only what Celery reads as well."""
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(st.one_of(st.just("*"), ranges), st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.lists(st.one_of(st.just("*"), number.map(str), ranges, stepped), min_size=1, max_size=3).map(",".join)


MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2110, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
TEXTS = st.tuples(field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)).map(" ".join)


def readable(text: str) -> cron.Schedule | None:
    try:
        return cron.read(text)
    except cron.BadSchedule as refused:
        if "never comes" in str(refused):
            return None
        raise


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_fields_are_read_as_celery_reads_them(text: str) -> None:
    found = readable(text)
    if found is not None:
        expected = [
            crontab_parser(*size).parse(part)
            for size, part in zip([(60,), (24,), (31, 1), (12, 1), (7,)], text.split(" "), strict=True)
        ]
        assert [set(found.minutes), set(found.hours), found.days_of_month, found.months, found.days_of_week] == expected


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(TEXTS, MOMENTS)
def test_the_next_time_is_the_first_later_minute_that_fits(text: str, moment: datetime) -> None:
    found = readable(text)
    if found is None:
        return

    def fits(minute: datetime) -> bool:
        of_month, of_week = minute.day in found.days_of_month, minute.isoweekday() % 7 in found.days_of_week
        stars = text.split(" ")[2].startswith("*") or text.split(" ")[4].startswith("*")
        return (
            minute.minute in found.minutes
            and minute.hour in found.hours
            and minute.month in found.months
            and ((of_month and of_week) if stars else (of_month or of_week))
        )

    comes = found.next_after(moment)
    assert comes > moment
    assert (comes.second, comes.microsecond, comes.tzinfo) == (0, 0, UTC)
    assert fits(comes)
    minute = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
    for _ in range(3_000):
        if minute >= comes:
            break
        assert not fits(minute)
        minute += timedelta(minutes=1)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        cron.read(cron.normal(text))
    except cron.BadSchedule:
        pass
