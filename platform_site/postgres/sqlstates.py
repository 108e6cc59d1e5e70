"""Maps each SQLSTATE to an API error, so that no message of PostgreSQL reaches a client. A message, a detail or a hint
of PostgreSQL names constraints, tables and other tenants' values; the log gets them, the client gets one of a few
sentences. Reliability section 3, "SQLSTATE map"."""

from collections.abc import Iterator
from typing import Final

import psycopg
from django.db import Error as DjangoDatabaseError
from psycopg_pool import PoolTimeout

from platform_site.http.errors import ApiError, Internal, NotFound, Unavailable, ValidationFailed
from platform_site.http.fields import WHOLE_BODY

# 54000: a value longer than an index takes, or more of something than PostgreSQL can hold.
INVALID: Final = frozenset(
    {
        "22001",
        "22003",
        "22007",
        "22008",
        "22P02",
        "22P05",
        "22021",
        "22012",
        "22023",
        "2201X",
        "2201W",
        "23502",
        "23514",
        "54000",
    }
)
TOO_LONG_FOR_AN_INDEX: Final = "54000"
CONFLICTS: Final = frozenset({"23503", "23505", "23P01"})
"""Unique, foreign key and exclusion: one response for all, so that a hidden row looks like a missing one."""
REPEATABLE: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: PostgreSQL undid the transaction and says to run it again."""
LOCKED: Final = "55P03"
"""A lock was not won within `lock_timeout`."""
CANCELLED: Final = "57014"
INTERFERED: Final = REPEATABLE | {LOCKED}
"""Others were in the way: nothing was done, and the same, begun anew, likely succeeds."""
BUSY: Final = frozenset({
    LOCKED, CANCELLED,
    "53100", "53200", "53300", "53400",  # out of disk, memory, connections, temporary files
    "57P01", "57P02", "57P03", "57P05", "25P03",  # stopping, starting, idle for too long
    "25006",  # not promoted yet
})  # fmt: skip
"""Not now: the same may succeed later."""
ENDED: Final = frozenset({"57P01", "57P02", "57P05", "25P03"})
"""The server ended the session. psycopg calls the last one, idle in a transaction for too long, an InternalError."""
FORBIDDEN: Final = frozenset({"42501"})

_DATABASE_ERRORS: Final = (DjangoDatabaseError, psycopg.Error)


def is_database_error(error: BaseException) -> bool:
    return isinstance(error, _DATABASE_ERRORS)


def _causes(error: BaseException) -> Iterator[psycopg.Error]:
    """psycopg's errors behind `error`; Django wraps them and keeps them as the cause."""
    at: BaseException | None = error
    for _ in range(5):
        if at is None:
            return
        if isinstance(at, psycopg.Error):
            yield at
        at = at.__cause__


def sqlstate(error: BaseException) -> str | None:
    """The five characters, or None where the error did not come from the server (or is none of a database's)."""
    return next((cause.sqlstate for cause in _causes(error) if cause.sqlstate), None)


def constraint(error: BaseException) -> str | None:
    """The name of the constraint or index that the server's error is about, if it says so."""
    return next((cause.diag.constraint_name for cause in _causes(error) if cause.diag.constraint_name), None)


def is_repeatable(error: BaseException) -> bool:
    """Whether the transaction was undone and would likely succeed if it ran again."""
    return is_database_error(error) and sqlstate(error) in REPEATABLE


def lost_connection(error: BaseException) -> bool:
    """Whether an open connection turned out dead under a statement. A connection that could not be opened is not this:
    trying again at once would double the wait."""
    if not is_database_error(error):
        return False
    for cause in _causes(error):
        if isinstance(cause, PoolTimeout | psycopg.errors.ConnectionTimeout) or cause.pgconn is not None:
            return False
        state = cause.sqlstate
        if state in ENDED:
            return True
        if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
            return state is None or state.startswith("08")
    return False


def is_unavailable(error: BaseException) -> bool:
    """Whether the database is unavailable, busy or gave up, so that the statement itself is not at fault."""
    return is_database_error(error) and error_for(error).status == Unavailable.status


def error_for(error: BaseException) -> ApiError:
    """The answer to a database error. 500 for whatever the table does not name: that one wants an alert."""
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
        return _invalid("conflict", "A value is taken already, or refers to something that is not there.")
    if state == CANCELLED:
        return Unavailable("The query took too long and was cancelled. Narrow it, or ask for less at once.")
    if state in REPEATABLE or state in BUSY or state.startswith("08"):
        return Unavailable()
    if state in FORBIDDEN:
        return NotFound()
    return Internal()


def _invalid(code: str, message: str) -> ValidationFailed:
    return ValidationFailed.of(WHOLE_BODY, code, message)
