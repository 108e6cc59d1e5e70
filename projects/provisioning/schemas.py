"""PostgreSQL schemas of environments, consistent with their control rows without a common transaction. A schema is
committed while the control transaction is open, so a crash can leave a schema without a row, never the opposite. `hold`
locks the id meanwhile: without lock and row, the row will never come. A new schema has a mark until its row is
committed: an unmarked one without a row had data once (a restored control database), and is kept for operators
(`projects.provisioning.orphaned_schemas`). All functions may run twice and concurrently."""

import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, ProgrammingError, transaction
from psycopg import sql

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.background.periodic import after_commit
from platform_site.identity import ids, signals
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import statements
from platform_site.postgres.direct import session
from projects.directory import locks as environment_locks
from projects.models import Environment
from projects.provisioning import failpoints

TABLES_PER_TRANSACTION: Final = 50
"""Each dropped table holds a lock until the commit, and the lock table is finite."""
_DROP_LOCK_TIMEOUT: Final = "500ms"
_DROP_STATEMENT_TIMEOUT: Final = "60s"
_ORPHANS_PER_LOOK: Final = 200
_ENVIRONMENT_NAME: Final = "^env_[0-7][0-9a-hjkmnp-tv-z]{25}$"
"""`ids.matches("env", …)` as a PostgreSQL regular expression. Other schemas are never touched."""
BEING_CREATED: Final = "no environment yet"
"""The mark, a comment on the schema."""


class SchemaBusy(Exception):
    pass


def hold(environment_ids: Iterable[str]) -> None:
    """Lock the ids until the control transaction ends."""
    for environment_id in environment_ids:
        advisory_locks.lock(DEFAULT_DB_ALIAS, LockSpace.NAMED, environment_id)


def make_schemas(environments: Sequence[EnvironmentRef]) -> None:
    """Create schemas of one project, atomically, as the last step of the control transaction that writes the rows,
    after `hold`. Raises DatabaseError."""
    cluster = environments[0].cluster
    with transaction.atomic(using=cluster):
        for environment in environments:
            create_schema(environment.environment_id, cluster)
        failpoints.reach("create.before_region_commit")
    failpoints.reach("create.after_region_commit")


def has_schema(environment_id: str, cluster: str) -> bool:
    return bool(statements.value(cluster, "SELECT to_regnamespace(%s) IS NOT NULL", [environment_id]))


def size_of(environment_id: str, cluster: str) -> int:
    """Bytes of the tables without indexes. Opens each table's files."""
    statement = (
        "SELECT coalesce(sum(pg_table_size(oid)), 0) FROM pg_class"
        " WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
    )
    return int(statements.value(cluster, statement, [environment_id]))


def count_tables(environment_id: str, cluster: str) -> int:
    statement = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p')"
    return int(statements.value(cluster, statement, [environment_id]))


def drop_schema(environment_id: str, cluster: str) -> None:
    """Idempotent. Raises SchemaBusy, and DatabaseError (the region is unavailable or a reader locks a table); dropped
    tables stay dropped."""
    while _drop_some_tables(environment_id, cluster):
        failpoints.reach("drop.between_batches")
    with transaction.atomic(using=cluster):
        _prepare_drop(environment_id, cluster)
        # Waits for concurrent writers, so that `environment_deleted` finds all rows of the environment.
        environment_locks.lock_exclusive(environment_id, cluster)
        statements.execute(cluster, _quoted("DROP SCHEMA IF EXISTS {} CASCADE", environment_id))
    failpoints.reach("drop.after_schema")


def _drop_some_tables(environment_id: str, cluster: str) -> bool:
    newest = (
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p') "
        "ORDER BY oid DESC LIMIT %s"
    )
    with transaction.atomic(using=cluster):
        _prepare_drop(environment_id, cluster)
        tables = statements.column(cluster, newest, [environment_id, TABLES_PER_TRANSACTION])
        for table in tables:
            statements.execute(cluster, _quoted("DROP TABLE IF EXISTS {} CASCADE", environment_id, table))
    return len(tables) == TABLES_PER_TRANSACTION


def claim_schema(environment_id: str, cluster: str) -> None:
    """Lock this schema for filling or dropping, until the region's transaction ends. Raises SchemaBusy."""
    if not advisory_locks.try_lock(cluster, LockSpace.SCHEMA, environment_id):
        raise SchemaBusy(environment_id)


def _prepare_drop(environment_id: str, cluster: str) -> None:
    claim_schema(environment_id, cluster)
    limits = "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)"
    statements.execute(cluster, limits, [_DROP_LOCK_TIMEOUT, _DROP_STATEMENT_TIMEOUT])


def create_schema(environment_id: str, cluster: str) -> None:
    """Create an empty schema, marked until the control transaction has committed its row, if there is one."""
    statements.execute(cluster, _quoted("CREATE SCHEMA {}", environment_id))
    statements.execute(cluster, _quoted(f"COMMENT ON SCHEMA {{}} IS '{BEING_CREATED}'", environment_id))
    # After a failure the next periodic run continues.
    after_commit(f"the mark of {environment_id}", _remove_mark, environment_id, cluster, using=cluster)


def _remove_mark(environment_id: str, cluster: str) -> None:
    with suppress(ProgrammingError):  # it may have been dropped meanwhile
        statements.execute(cluster, _quoted("COMMENT ON SCHEMA {} IS NULL", environment_id))


def _quoted(statement: str, *names: str) -> str:
    return sql.SQL(statement).format(sql.Identifier(*names)).as_string(None)


@contextmanager
def alone(environment_id: str, cluster: str) -> Generator[None]:
    """Lock the environment for removal or reset. Raises SchemaBusy."""
    with session(cluster) as own:
        with own.cursor() as cursor:
            # A session lock, because the block has several transactions. It ends with the process.
            if not advisory_locks.try_lock_session(cursor, LockSpace.ORPHANED_SCHEMA, environment_id):
                raise SchemaBusy(environment_id)
        try:
            yield
        finally:
            # A connection that broke meanwhile has released it already.
            with suppress(Error), own.cursor() as cursor:
                advisory_locks.unlock_session(cursor, LockSpace.ORPHANED_SCHEMA, environment_id)


def schemas_in(cluster: str, after: str, limit: int) -> list[str]:
    statement = "SELECT nspname FROM pg_namespace WHERE nspname ~ %s AND nspname > %s ORDER BY nspname LIMIT %s"
    return statements.column(cluster, statement, [_ENVIRONMENT_NAME, after, limit])


def being_created(environment_ids: Sequence[str], cluster: str) -> set[str]:
    statement = (
        "SELECT nspname FROM pg_namespace WHERE nspname = ANY (%s) AND obj_description(oid, 'pg_namespace') = %s"
    )
    return set(statements.column(cluster, statement, [list(environment_ids), BEING_CREATED]))


def drop_orphans(cluster: str, deadline: float = math.inf, *, batch: int = _ORPHANS_PER_LOOK) -> Iterator[str]:
    """Drop schemas of environments that were never committed; yields their ids. Unmarks schemas with an environment.
    Starts nothing after `deadline` (`time.monotonic()`). Raises DatabaseError."""
    after = ""
    while found := schemas_in(cluster, after, batch):
        after = found[-1]
        marked = being_created(found, cluster)  # read first: a schema that loses its mark then has a row
        known = set(Environment.objects.filter(pk__in=marked).values_list("pk", flat=True))
        for environment_id in sorted(marked):
            if time.monotonic() >= deadline:
                return
            if environment_id in known:
                _remove_mark(environment_id, cluster)
            elif is_gone(environment_id):
                try:
                    drop_orphan(environment_id, cluster)
                except SchemaBusy:
                    continue
                yield environment_id


def drop_orphan(environment_id: str, cluster: str) -> None:
    """Drop a schema without an environment, and the apps' data. Raises SchemaBusy, DatabaseError."""
    drop_schema(environment_id, cluster)
    signals.environment_deleted.send(sender=Environment, environment_id=environment_id, cluster=cluster)


def orphaned(cluster: str) -> Iterator[str]:
    """Raises DatabaseError."""
    without_owner, _ = compare(cluster)
    marked = being_created(without_owner, cluster)
    return (each for each in without_owner if each not in marked and _has_only_a_schema(each, cluster))


def is_orphaned(environment_id: str, cluster: str) -> bool:
    return (
        ids.matches("env", environment_id)
        and not being_created([environment_id], cluster)
        and _has_only_a_schema(environment_id, cluster)
    )


def _has_only_a_schema(environment_id: str, cluster: str) -> bool:
    """The environment is checked first, because deletions remove it last."""
    return is_gone(environment_id) and has_schema(environment_id, cluster)


def compare(cluster: str) -> tuple[list[str], list[str]]:
    """Ids of schemas without an environment, and of environments without a schema, as after a restore of one database,
    and briefly during changes. Raises DatabaseError."""
    schemas: set[str] = set()
    after = ""
    while found := schemas_in(cluster, after, _ORPHANS_PER_LOOK):
        schemas.update(found)
        after = found[-1]
    owned = Environment.objects.filter(project__cluster=cluster)
    without_owner = schemas.difference(owned.values_list("pk", flat=True))
    return sorted(without_owner), sorted(set(owned.reachable().values_list("pk", flat=True)) - schemas)


def is_gone(environment_id: str) -> bool:
    """Whether an unknown environment is too old, and no transaction has made or makes it. Raises DatabaseError."""
    grace = timedelta(seconds=settings.ORPHAN_GRACE_SECONDS)
    if ids.created_at(environment_id) >= datetime.now(UTC) - grace:
        return False
    with transaction.atomic():
        if not advisory_locks.try_lock(DEFAULT_DB_ALIAS, LockSpace.NAMED, environment_id):
            return False
        # A new statement, which sees what was committed before the lock was free.
        return not Environment.objects.filter(pk=environment_id).exists()
