"""Maps SQLSTATEs to API errors. PostgreSQL's messages only go to the log."""

from collections.abc import Iterator
from typing import Any, Final

import psycopg
from django.db import Error as DjangoDatabaseError
from django.db import OperationalError

from platform_site.http.errors import ApiError, Internal, NotFound, Unavailable, ValidationFailed
from platform_site.http.fields import WHOLE_BODY

INVALID: Final = frozenset({
    "22001", "22003", "22007", "22008", "22012", "22021", "22023", "22P02", "22P05", "2201W", "2201X",  # data
    "23502", "23514",  # not null, check
    "54000",  # a value longer than an index takes, or more of something than PostgreSQL can hold
})  # fmt: skip
TOO_LONG_FOR_AN_INDEX: Final = "54000"
CONFLICTS: Final = frozenset({"23503", "23505", "23P01"})
"""Unique, foreign key and exclusion: one response, so that a hidden row looks like a missing one."""
REPEATABLE: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: repeat the transaction."""
LOCKED: Final = "55P03"
CANCELLED: Final = "57014"
INTERFERED: Final = REPEATABLE | {LOCKED}
"""Concurrent changes: nothing was done, a repetition may succeed."""
BUSY: Final = frozenset({
    LOCKED, CANCELLED,
    "53100", "53200", "53300", "53400",  # out of disk, memory, connections, temporary files
    "57P01", "57P02", "57P03", "57P05", "25P03",  # stopping, starting, idle for too long
    "25006",  # not promoted yet
})  # fmt: skip
ENDED: Final = frozenset({"57P01", "57P02", "57P05", "25P03"})
FORBIDDEN: Final = frozenset({"42501"})

DATABASE_ERRORS: Final = (DjangoDatabaseError, psycopg.Error)
_EXTRA: Final = "api_extra"


def is_database_error(error: BaseException) -> bool:
    return isinstance(error, DATABASE_ERRORS)


def add_extra(error: BaseException, **extra: Any) -> None:
    setattr(error, _EXTRA, extra)


def _causes(error: BaseException) -> Iterator[psycopg.Error]:
    at: BaseException | None = error
    for _ in range(5):
        if at is None:
            return
        if isinstance(at, psycopg.Error):
            yield at
        at = at.__cause__


def sqlstate(error: BaseException) -> str | None:
    return next((cause.sqlstate for cause in _causes(error) if cause.sqlstate), None)


def constraint(error: BaseException) -> str | None:
    return next((cause.diag.constraint_name for cause in _causes(error) if cause.diag.constraint_name), None)


class RetriesExhausted(OperationalError):
    """Raised from the last error of a transaction that was repeated often enough."""


def is_repeatable(error: BaseException) -> bool:
    return is_database_error(error) and sqlstate(error) in REPEATABLE and not isinstance(error, RetriesExhausted)


def lost_connection(error: BaseException) -> bool:
    """Whether an open connection was dead; not a failure to connect."""
    if not is_database_error(error):
        return False
    for cause in _causes(error):
        if isinstance(cause, psycopg.errors.ConnectionTimeout) or cause.pgconn is not None:
            return False
        state = cause.sqlstate
        if state in ENDED:
            return True
        if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
            return state is None or state.startswith("08")
    return False


def is_unavailable(error: BaseException) -> bool:
    return is_database_error(error) and error_for(error).status == Unavailable.status


def error_for(error: BaseException) -> ApiError:
    found = _error_for(error)
    cause = error.__cause__ if isinstance(error, RetriesExhausted) else error
    found.extra.update(getattr(cause, _EXTRA, {}))
    return found


def _error_for(error: BaseException) -> ApiError:
    state = sqlstate(error)
    if state is None:
        causes = tuple(_causes(error))
        if any(isinstance(cause, psycopg.DataError) for cause in causes):
            # psycopg refuses a value before it is sent: NUL in text, a year that PostgreSQL does not have.
            return _invalid("invalid", "A value cannot be stored.")
        if any(isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) for cause in causes):
            return Unavailable()
        return Internal()
    if state in INVALID:
        return _invalid("invalid", "A value is missing, malformed or out of range.")
    if state in CONFLICTS:
        return _invalid("conflict", "A value is already taken, or refers to something that does not exist.")
    if state == CANCELLED:
        return Unavailable("The query took too long and was cancelled. Narrow it, or ask for less at once.")
    if state in REPEATABLE or state in BUSY or state.startswith("08"):
        return Unavailable()
    if state in FORBIDDEN:
        return NotFound()
    return Internal()


def _invalid(code: str, message: str) -> ValidationFailed:
    return ValidationFailed.of(WHOLE_BODY, code, message)
