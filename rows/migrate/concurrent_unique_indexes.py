"""Builds unique indexes of large tables concurrently, before the schema change that makes them constraints (`ADD
CONSTRAINT … USING INDEX`). PostgreSQL enforces even incomplete ones, so failed changes, the next change or a periodic
job drop leftovers; writers retry. A session lock marks a running build. docs/adr/0002-schema-changes.md."""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from django.db import Error as DatabaseError
from django.db import connections
from psycopg import sql

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.concurrency import server_hints
from platform_site.http.errors import FieldError
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates, statements
from platform_site.postgres.direct import without_timeouts
from projects.provisioning import failpoints
from rows.migrate import apply, existing_rows
from rows.migrate.apply import LockNotAvailable, StatementTimeout
from rows.migrate.planning.plan import AddedUnique, Plan
from rows.schema.model import InvalidDocument

log = logging.getLogger("platform.rows")

Progress = Callable[[str], None]

_CLEARING_MS: Final = 2_000


def wanted(environment: EnvironmentRef, plan: Plan) -> tuple[AddedUnique, ...]:
    """At most one query."""
    if not plan.new_uniques:
        return ()
    large = apply.large_tables(environment.cluster, environment.environment_id)
    return tuple(unique for unique in plan.new_uniques if unique.table in large)


class _BuildRunning(LockNotAvailable):
    """Another build is running here, or leftovers cannot be dropped yet."""


@contextmanager
def built(
    environment: EnvironmentRef, uniques: Sequence[AddedUnique], *, limit_ms: int, progress: Progress
) -> Generator[None]:
    """Build the indexes of `uniques` for a change in the block; dropped if it fails. `limit_ms` is for all, 0 for no
    limit. Raises LockNotAvailable, StatementTimeout, and InvalidDocument (not unique)."""
    server_hints.will_block()
    try:
        with _build_lock(environment.cluster, environment.environment_id) as cursor:
            with _without_idle_timeout(environment.cluster):
                _make(cursor, uniques, limit_ms, progress)
            failpoints.reach("schema.uniques_made")
            yield
    except _BuildRunning:
        raise
    except BaseException:
        # On another connection, because the build's own may be what failed.
        _clear_or_warn(environment.cluster, environment.environment_id)
        raise


def clear_all(cluster: str) -> None:
    found = statements.column(
        cluster,
        "SELECT DISTINCT n.nspname FROM pg_catalog.pg_class i JOIN pg_catalog.pg_namespace n"
        " ON n.oid = i.relnamespace WHERE i.relkind = 'i' AND i.relname LIKE %s",
        [apply.NEW_UNIQUE_NAMES],
    )
    for environment_id in found:
        _clear_or_warn(cluster, environment_id)


def _clear_or_warn(cluster: str, environment_id: str) -> None:
    try:
        with suppress(_BuildRunning), _build_lock(cluster, environment_id) as cursor:
            _clear(cursor)
    except DatabaseError as error:
        log.warning(
            "leftover unique indexes of %s will be dropped by the next periodic job: %s",
            environment_id,
            sqlstates.sqlstate(error),
        )


def is_building(cluster: str, environment_id: str) -> bool:
    """Whether a build is running; in a transaction, prevents a new one."""
    return not advisory_locks.try_lock(cluster, LockSpace.UNIQUE_INDEXES, environment_id)


@contextmanager
def _build_lock(cluster: str, environment_id: str) -> Generator[Any]:
    """A cursor in the environment's schema with the lock for builds. Raises _BuildRunning."""
    with without_timeouts(cluster) as connection, connection.cursor() as cursor:
        if not advisory_locks.try_lock_session(cursor, LockSpace.UNIQUE_INDEXES, environment_id):
            raise _BuildRunning
        try:
            cursor.execute("SELECT set_config('search_path', %s, false)", [f'"{environment_id}"'])
            yield cursor
        finally:
            # A closed connection's session ends a moment later; the next process must not find the lock taken.
            with suppress(DatabaseError):
                advisory_locks.unlock_session(cursor, LockSpace.UNIQUE_INDEXES, environment_id)


def _make(cursor: Any, uniques: Sequence[AddedUnique], limit_ms: int, progress: Progress) -> None:
    began = time.monotonic()
    try:
        with apply.raise_lock_errors():
            _clear(cursor)
    except LockNotAvailable as error:
        raise _BuildRunning from error
    for unique in uniques:
        progress(unique.step.name)
        left = limit_ms - int((time.monotonic() - began) * 1000)
        if limit_ms and left <= 0:
            raise StatementTimeout(unique.step.name)
        _limit(cursor, max(left, 0))
        try:
            cursor.execute(apply.new_unique_sql(unique))
        except DatabaseError as error:
            if sqlstates.sqlstate(error) == "23505" and (found := _duplicates(cursor, unique)):
                raise InvalidDocument([found]) from error
            if (translated := apply.exception_for(unique.step, error)) is None:
                raise
            raise translated from error


def _duplicates(cursor: Any, unique: AddedUnique) -> FieldError | None:
    _limit(cursor, existing_rows.DUPLICATES_MS)
    with suppress(DatabaseError):
        return existing_rows.duplicates(cursor, unique)
    return None


def _clear(cursor: Any) -> None:
    _limit(cursor, _CLEARING_MS)
    for name in apply.indexes(cursor, apply.NEW_UNIQUE_NAMES):
        cursor.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(name)))


def _limit(cursor: Any, milliseconds: int) -> None:
    cursor.execute("SELECT set_config('statement_timeout', %s, false)", [str(milliseconds)])


@contextmanager
def _without_idle_timeout(alias: str) -> Generator[None]:
    """The surrounding transaction, for example that of an Idempotency-Key, waits for the build."""
    if not connections[alias].in_atomic_block:
        yield
        return
    setting = "idle_in_transaction_session_timeout"
    before = statements.value(alias, "SELECT current_setting(%s)", [setting])
    # Without parameters, hence by the simple protocol: a portal of the extended one stays open with its snapshot,
    # and `CREATE INDEX CONCURRENTLY` would wait for its end, which would wait for the index.
    statements.execute(alias, "SET LOCAL idle_in_transaction_session_timeout = 0")
    yield
    statements.execute(alias, "SELECT set_config(%s, %s, true)", [setting, before])
