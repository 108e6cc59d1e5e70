"""Row isolation: refuses SQL over tenant tables that bypasses the row manager."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.sql import Composable

from platform_site.postgres import libpq_connection


class RowsClosed(RuntimeError):
    pass


_row_access_allowed: ContextVar[bool] = ContextVar("row_access_allowed", default=False)
_TENANT_TABLE: Final = re.compile(r'\benv_[0-9a-z]{26}"?\s*\.')
_DEFINES: Final = re.compile(r"\s*(?:CREATE|ALTER|DROP|COMMENT|GRANT|REVOKE)\b", re.IGNORECASE)


@contextmanager
def row_access() -> Generator[None]:
    """For the row manager's queries, and for migrations and transfers of whole environments."""
    token = _row_access_allowed.set(True)
    try:
        yield
    finally:
        _row_access_allowed.reset(token)


def forbid_unruled_statements(
    execute: Callable[[Any, Any, bool, dict[str, Any]], Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Raises RowsClosed for tenant tables outside `row_access`. Definitions pass: they show no rows."""
    text = sql if isinstance(sql, str) else _text_of(sql)
    if _TENANT_TABLE.search(text) and not _DEFINES.match(text):
        if not _row_access_allowed.get():
            raise RowsClosed("read rows through the row manager: visible_to(role_view), or unruled")
        wrapper = context["connection"]
        libpq_connection.of(wrapper.connection).note_tables(wrapper, text.encode())
    return execute(sql, params, many, context)


def _text_of(statement: Any) -> str:
    if isinstance(statement, Composable):
        return statement.as_string()
    return statement.decode(errors="replace") if isinstance(statement, bytes) else str(statement)


def guard_connection(sender: object, connection: BaseDatabaseWrapper, **_: object) -> None:
    """Receiver of `connection_created`: installs the check once per region connection."""
    if connection.alias in settings.REGION_DATABASES and forbid_unruled_statements not in connection.execute_wrappers:
        connection.execute_wrappers.append(forbid_unruled_statements)
