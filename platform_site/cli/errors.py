"""Messages of `manage.py` for errors that an operator can fix; `--traceback` shows the traceback."""

from typing import Final

from django.conf import settings
from django.db import Error
from psycopg.errors import UndefinedTable

from platform_site.postgres import sqlstates

_NOT_THERE: Final = (
    "Is `manage.py up` running on {data_dir}? DATA_DIR names another data directory, DATABASE_URL and REGION_…_URL "
    "name other servers."
)
_NOT_THERE_IN_PRODUCTION: Final = "Check DATABASE_URL, REGION_…_URL, the servers that they name, and their pg_hba.conf."
_HELD: Final = "Another session holds a lock that this command needs (see pg_stat_activity)."
_CANCELLED: Final = "PostgreSQL cancelled a statement that took too long."
_AGAIN: Final = "The current step was undone: run the command again."


def error_text(error: Error | UnicodeEncodeError) -> str | None:
    """A sentence for an unavailable or unmigrated database, or an argument that is not UTF-8; None for other errors."""
    if isinstance(error, UnicodeEncodeError):
        # Python reads such bytes as lone surrogates, which are valid in file names only.
        return "An argument is not UTF-8." if "surrogates not allowed" in error.reason else None
    cause = error.__cause__
    if isinstance(cause, UndefinedTable):
        return "The database lacks a table of this release: run `manage.py migrate` first."
    if "connection" in str(error) and getattr(cause, "sqlstate", None) is None:  # not an error of the server
        why = str(error).strip().splitlines()[0]
        hint = _NOT_THERE_IN_PRODUCTION if settings.PRODUCTION else _NOT_THERE.format(data_dir=settings.DATA_DIR)
        return f"{why}\n{hint}"
    state = sqlstates.sqlstate(error)
    if state in sqlstates.INTERFERED:
        return f"{_HELD} {_AGAIN}"
    if state == sqlstates.CANCELLED:
        return f"{_CANCELLED} {_AGAIN}"
    if state in sqlstates.BUSY:
        return f"PostgreSQL refused a statement ({type(cause).__name__}). {_AGAIN}"
    return None
