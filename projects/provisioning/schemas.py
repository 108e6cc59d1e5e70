"""PostgreSQL schemas of environments: creating, dropping, and finding orphans. An environment is a row in the control
database and a schema of the same name in its region, without a common transaction. They are kept consistent as follows:

* Creating: the schema is created and committed in the region while the control transaction with the row is still open.
  So a crash can leave a schema without a row, never a row without a schema.
* Meanwhile the control transaction holds an advisory lock on the environment's id (`hold`). A schema without a row
  whose lock is free will never get its row, because that transaction is over. `drop_orphans` relies on this and not on
  time; its minimum age only avoids checking schemas that are being created now.
* A new schema has a mark (a comment in the catalog), which is removed once its row is committed. So a schema with a
  mark and no row never had data of a tenant, and is dropped. A schema with neither had a row once: since a row is
  removed after its schema, the control database was restored to an earlier time. It is kept, and shown in the log and
  in the console, until an operator decides (`projects.provisioning.orphaned_schemas`).
* Dropping: the row is marked first and removed last, so a crash in between leaves a mark for the periodic job.

Every function may run twice, and concurrently in two processes."""

import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, ProgrammingError, connections, transaction
from psycopg import sql

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.background.periodic import after_commit
from platform_site.fastpath.libpq import session
from platform_site.identity import ids, signals
from platform_site.identity.callers import EnvironmentRef
from projects.directory import locks as environment_locks
from projects.models import Environment
from projects.provisioning import failpoints

TABLES_PER_TRANSACTION: Final = 50
"""Each dropped table holds a lock until the commit, and the lock table of the server is finite (64 per connection)."""
_DROP_LOCK_TIMEOUT: Final = "500ms"
_DROP_STATEMENT_TIMEOUT: Final = "60s"
_ORPHANS_PER_LOOK: Final = 200
_ENVIRONMENT_NAME: Final = "^env_[0-7][0-9a-hjkmnp-tv-z]{25}$"
"""`ids.matches("env", …)` as a PostgreSQL regular expression. Other schemas are never touched."""


BEING_CREATED: Final = "no environment yet"
"""The mark."""


class SchemaBusy(Exception):
    """Another process is filling or dropping the same schema right now."""


def hold(environment_ids: Iterable[str]) -> None:
    """Take the lock on environments about to be made, until the end of the control transaction at hand."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        for environment_id in environment_ids:
            advisory_locks.lock(cursor, LockSpace.NAMED, environment_id)


def make_schemas(places: Sequence[EnvironmentRef]) -> None:
    """Create the schemas of new environments of one project, all or none, in one transaction of their region. Called in
    the control transaction that writes the rows, after `hold`, as its last step. Raises DatabaseError (with nothing
    created) if the region is unavailable."""
    cluster = places[0].cluster
    with transaction.atomic(using=cluster):
        with connections[cluster].cursor() as cursor:
            for place in places:
                create_schema(cursor, place.environment_id)
        failpoints.reach("create.before_region_commit")
    failpoints.reach("create.after_region_commit")


def has_schema(environment_id: str, cluster: str) -> bool:
    """Whether the environment's schema is there for all to see. One query."""
    with connections[cluster].cursor() as cursor:
        cursor.execute("SELECT to_regnamespace(%s) IS NOT NULL", [environment_id])
        return bool(cursor.fetchone()[0])


def size_of(environment_id: str, cluster: str) -> int:
    """Bytes of the environment's tables without their indexes. One query, which opens each table's files."""
    with connections[cluster].cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(pg_table_size(oid)), 0) FROM pg_class"
            " WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'",
            [environment_id],
        )
        return int(cursor.fetchone()[0])


def count_tables(environment_id: str, cluster: str) -> int:
    """How many tables the environment's schema holds; 0 if it is gone. One query."""
    with connections[cluster].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p')",
            [environment_id],
        )
        return int(cursor.fetchone()[0])


def drop_schema(environment_id: str, cluster: str) -> None:
    """Drop the schema and everything in it, tables in batches; no effect if it does not exist. Raises SchemaBusy if
    another process is dropping it, DatabaseError if the region is unavailable or a reader locks a table. What was
    dropped by then stays dropped."""
    while _drop_some_tables(environment_id, cluster):
        failpoints.reach("drop.between_batches")
    with transaction.atomic(using=cluster), connections[cluster].cursor() as cursor:
        _prepare_drop(cursor, environment_id)
        environment_locks.lock_exclusive(
            environment_id, cluster
        )  # what is written of it is there for `environment_deleted` to find
        cursor.execute(_quoted("DROP SCHEMA IF EXISTS {} CASCADE", environment_id))
    failpoints.reach("drop.after_schema")


def _drop_some_tables(environment_id: str, cluster: str) -> bool:
    """Drop up to TABLES_PER_TRANSACTION tables in one transaction. False when none was left."""
    with transaction.atomic(using=cluster), connections[cluster].cursor() as cursor:
        _prepare_drop(cursor, environment_id)
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p') "
            "ORDER BY oid DESC LIMIT %s",
            [environment_id, TABLES_PER_TRANSACTION],
        )
        tables = [row[0] for row in cursor.fetchall()]
        for table in tables:
            cursor.execute(_quoted("DROP TABLE IF EXISTS {} CASCADE", environment_id, table))
    return len(tables) == TABLES_PER_TRANSACTION


def claim_schema(cursor: Any, environment_id: str) -> None:
    """Be the only one to fill or drop this schema until the region's transaction at hand ends. Raises SchemaBusy."""
    if not advisory_locks.try_lock(cursor, LockSpace.SCHEMA, environment_id):
        raise SchemaBusy(environment_id)


def _prepare_drop(cursor: Any, environment_id: str) -> None:
    claim_schema(cursor, environment_id)
    cursor.execute(
        "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
        [_DROP_LOCK_TIMEOUT, _DROP_STATEMENT_TIMEOUT],
    )


def create_schema(cursor: Any, environment_id: str) -> None:
    """Make an empty schema in the region's transaction at hand, marked until the control transaction at hand has
    committed its row. Without one the row is there already, or will be before the region commits."""
    cursor.execute(_quoted("CREATE SCHEMA {}", environment_id))
    cursor.execute(_quoted(f"COMMENT ON SCHEMA {{}} IS '{BEING_CREATED}'", environment_id))
    # After a failure the next periodic run continues.
    cluster = cursor.db.alias
    after_commit(f"the mark of {environment_id}", _remove_mark, environment_id, cluster, using=cluster)


def _remove_mark(environment_id: str, cluster: str) -> None:
    with suppress(ProgrammingError), connections[cluster].cursor() as cursor:  # it may have been dropped meanwhile
        cursor.execute(_quoted("COMMENT ON SCHEMA {} IS NULL", environment_id))


def _quoted(statement: str, *names: str) -> str:
    """`statement` with the dotted, quoted name in place of `{}`."""
    return sql.SQL(statement).format(sql.Identifier(*names)).as_string(None)


@contextmanager
def alone(environment_id: str, cluster: str) -> Generator[None]:
    """Be the only one to remove or reset this environment within the block. Raises SchemaBusy."""
    with session(cluster) as own:
        with own.cursor() as cursor:
            # A session lock: what is done takes several transactions, and the lock ends with the process.
            if not advisory_locks.try_lock_session(cursor, LockSpace.ORPHANED_SCHEMA, environment_id):
                raise SchemaBusy(environment_id)
        try:
            yield
        finally:
            # A connection that broke meanwhile has released it already.
            with suppress(Error), own.cursor() as cursor:
                advisory_locks.unlock_session(cursor, LockSpace.ORPHANED_SCHEMA, environment_id)


# ── Orphans ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def schemas_in(cluster: str, after: str, limit: int) -> list[str]:
    """Up to `limit` environment ids for which the cluster has a schema, in order, after `after`. One query."""
    with connections[cluster].cursor() as cursor:
        cursor.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname ~ %s AND nspname > %s ORDER BY nspname LIMIT %s",
            [_ENVIRONMENT_NAME, after, limit],
        )
        return [name for (name,) in cursor.fetchall()]


def being_created(environment_ids: Sequence[str], cluster: str) -> set[str]:
    """Which of these schemas carry the mark. One query."""
    with connections[cluster].cursor() as cursor:
        cursor.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname = ANY (%s) AND obj_description(oid, 'pg_namespace') = %s",
            [list(environment_ids), BEING_CREATED],
        )
        return {name for (name,) in cursor.fetchall()}


def drop_orphans(cluster: str, deadline: float = math.inf, *, batch: int = _ORPHANS_PER_LOOK) -> Iterator[str]:
    """Drop the cluster's schemas of environments that were never committed; yields the id of each. Removes the mark
    from schemas that have an environment. Skips schemas younger than `settings.ORPHAN_GRACE_SECONDS`, those that are
    being created, and orphaned ones (`orphaned`). Starts nothing after `deadline` (`time.monotonic()`). Raises
    DatabaseError if the region or the control database is unavailable."""
    after = ""
    while found := schemas_in(cluster, after, batch):
        after = found[-1]
        marked = being_created(found, cluster)  # first: a schema that loses its mark has a row by then
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
    """Drop a schema that no environment owns, and let the apps drop what they keep of it. Raises SchemaBusy,
    DatabaseError."""
    drop_schema(environment_id, cluster)
    signals.environment_deleted.send(sender=Environment, environment_id=environment_id, cluster=cluster)


def orphaned(cluster: str) -> Iterator[str]:
    """The cluster's schemas whose environments the control database has forgotten, by id. After a restore it may be
    thousands, each of which is looked at when it is asked for. Raises DatabaseError."""
    without_owner, _ = compare(cluster)
    marked = being_created(without_owner, cluster)
    return (each for each in without_owner if each not in marked and _is_kept_alone(each, cluster))


def is_orphaned(environment_id: str, cluster: str) -> bool:
    """Whether the cluster has the schema of such an environment. Raises DatabaseError."""
    return (
        ids.matches("env", environment_id)
        and not being_created([environment_id], cluster)
        and _is_kept_alone(environment_id, cluster)
    )


def _is_kept_alone(environment_id: str, cluster: str) -> bool:
    """One that is deleted at this moment loses both, one after the other."""
    return is_gone(environment_id) and has_schema(environment_id, cluster)


def compare(cluster: str) -> tuple[list[str], list[str]]:
    """The cluster's schemas without an environment, and its environments without a schema, by id. Both are empty except
    after a restore of only one database, and briefly while something is created or removed. Changes nothing. Raises
    DatabaseError if the region or the control database is unavailable."""
    schemas: set[str] = set()
    after = ""
    while found := schemas_in(cluster, after, _ORPHANS_PER_LOOK):
        schemas.update(found)
        after = found[-1]
    owned = Environment.objects.filter(project__cluster=cluster)
    without_owner = schemas.difference(owned.values_list("pk", flat=True))
    return sorted(without_owner), sorted(set(owned.reachable().values_list("pk", flat=True)) - schemas)


def is_gone(environment_id: str) -> bool:
    """Whether an environment that the control database did not know will never be there: it is older than
    `settings.ORPHAN_GRACE_SECONDS`, no transaction is making it, and none has made it. Raises DatabaseError."""
    grace = timedelta(seconds=settings.ORPHAN_GRACE_SECONDS)
    if ids.created_at(environment_id) >= datetime.now(UTC) - grace:
        return False
    with transaction.atomic(), connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        if not advisory_locks.try_lock(cursor, LockSpace.NAMED, environment_id):
            return False
        # A new statement sees what was committed before the lock was free.
        return not Environment.objects.filter(pk=environment_id).exists()
