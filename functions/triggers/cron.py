"""Cron expressions of five fields, in UTC, such as `*/15 8-18 * * mon-fri`. As in crontab(5) and pg_cron, one of the
two day fields is enough if both are restricted; if one begins with `*`, both must match. Celery's `crontab` is not
used: it always requires both days, does not know 7, accepts `jan` as a minute and `1_0` and `٣` as numbers, and ignores
what follows a range (`1-5;`). The package `cronsim` accepts more (`L`, `5#2`), which the API would have to support."""

import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final

MAX_LENGTH: Final = 200
ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_HORIZON: Final = timedelta(days=41 * 366)
"""Beyond the longest wait: a 29 February on a given day of the week, from 2072 to 2112 say."""
_ZONE: Final = re.compile(r"[a-z_]+(?:/[a-z0-9_+-]+)+|(?:utc|gmt)(?:[+-][0-9:]+)?|[a-z]{2,4}t")
"""`europe/berlin`, `utc`, `utc+2`, `cet`."""
_PART: Final = re.compile(r"(\*|([0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?)(?:/([0-9]{1,2}))?")


class BadSchedule(ValueError):
    """The message is for the author of the schedule."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """The names of the values from `low` on."""

    def number(self, text: str) -> int | None:
        if text in self.names:
            return self.low + self.names.index(text)
        return int(text) if text.isdigit() and self.low <= int(text) <= self.high else None


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """`days_of_week` counts from Sunday, 0. `either`: one of the two day fields is enough."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days_of_month: frozenset[int]
    months: frozenset[int]
    days_of_week: frozenset[int]
    either: bool

    def next_after(self, moment: datetime) -> datetime:
        first = moment.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        for day in self._days(first.date()):
            earliest = first.time() if day == first.date() else time.min
            for hour in self.hours:
                for minute in self.minutes:
                    if (hour, minute) >= (earliest.hour, earliest.minute):
                        return datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
        raise AssertionError("the schedule never matches, which `read` refuses")

    def _days(self, day: date) -> Iterator[date]:
        last = day + _HORIZON
        while day <= last:
            if day.month not in self.months:
                day = (day.replace(day=1) + timedelta(days=31)).replace(day=1)
                continue
            of_month, of_week = day.day in self.days_of_month, day.isoweekday() % 7 in self.days_of_week
            if of_month or of_week if self.either else of_month and of_week:
                yield day
            day += timedelta(days=1)


def normal(text: str) -> str:
    """The stored form: lower case, one space between fields. Raises BadSchedule."""
    stored = " ".join(re.split(r"[ \t]+", text.strip(" \t"))).lower() if len(text) <= MAX_LENGTH else text
    read(stored)
    return stored


@lru_cache(maxsize=1024)
def read(text: str) -> Schedule:
    """Parse a text in its stored form. Raises BadSchedule, also for one that never matches."""
    if len(text) > MAX_LENGTH:
        raise BadSchedule(f"A schedule has at most {MAX_LENGTH} characters.")
    _check_for_a_zone(text)
    fields = ALIASES.get(text, text).split(" ")
    if text.startswith("@") and text not in ALIASES:
        raise BadSchedule(f'"{text[:20]}" is none of {", ".join(ALIASES)}.')
    if len(fields) != len(_FIELDS):
        raise BadSchedule(
            "A schedule has five fields: minute, hour, day of the month, month, day of the week, such as "
            f'"*/15 * * * *"; or it is one of {", ".join(ALIASES)}. {_what_is_wrong(fields)}'
        )
    minutes, hours, days_of_month, months, days_of_week = map(_values, _FIELDS, fields)
    either = not (fields[2].startswith("*") or fields[4].startswith("*"))
    if not either and not any(day <= monthrange(2000, month)[1] for month in months for day in days_of_month):
        raise BadSchedule("That day never comes: none of these months has it.")
    return Schedule(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days_of_month),
        frozenset(months),
        frozenset(day % 7 for day in days_of_week),
        either,
    )


def _check_for_a_zone(text: str) -> None:
    """Raises BadSchedule for a time zone, which other schedulers accept before or after the fields."""
    first, *rest = text.split(" ")
    last = rest[-1] if len(rest) >= len(_FIELDS) or (rest and first in ALIASES) else ""
    if first.startswith(("cron_tz=", "tz=", "timezone=")):
        zone = first
    elif _ZONE.fullmatch(last) and last not in _MONTHS + _DAYS:
        zone = last
    else:
        return
    raise BadSchedule(
        f'"{zone[:40]}" is a time zone, and schedule times are UTC. Remove it, and write the hours in UTC.'
    )


def _what_is_wrong(fields: list[str]) -> str:
    if fields == [""]:
        return "This one is empty."
    if len(fields) < len(_FIELDS):
        return f"This one ends before the {_FIELDS[len(fields)].name}."
    if len(fields) == len(_FIELDS) + 1:
        return f'"{fields[-1][:20]}" is a sixth field: there are no seconds and no years.'
    return f'It ends before "{fields[len(_FIELDS)][:20]}".'


def _values(field: _Field, text: str) -> set[int]:
    return {value for part in text.split(",") for value in _part(field, part)}


def _part(field: _Field, text: str) -> range:
    found = _PART.fullmatch(text)
    if found is None:
        raise _bad(field, text)
    whole, first, last, step = found.groups()
    if step is not None and whole != "*" and last is None:
        raise BadSchedule(f'"{text}": a step follows * or a range, such as {first}-{field.high}/{step}.')
    if step is not None and not 1 <= int(step) <= field.high:
        raise BadSchedule(f'"{text}": a step of the {field.name} is 1 to {field.high}.')
    if whole == "*":
        low, high = field.low, 6 if field.names == _DAYS else field.high
    else:
        from_, to = field.number(first), field.number(last if last is not None else first)
        if from_ is None or to is None:
            raise _bad(field, text)
        if to == 0 < from_ and field.names == _DAYS:
            to = 7  # sat-sun
        if to < from_:
            raise BadSchedule(f'"{text}": a range goes upwards; write two, with a comma between them.')
        low, high = from_, to
    return range(low, high + 1, int(step or 1))


def _bad(field: _Field, text: str) -> BadSchedule:
    names = f" (or {field.names[0]} to {field.names[-1]})" if field.names else ""
    return BadSchedule(
        f'"{text[:20]}" is not a valid {field.name}: write *, a number from {field.low} to {field.high}{names}, '
        f"a range such as {field.low}-{field.low + 2}, several with commas between them, or */n for each n-th."
    )
