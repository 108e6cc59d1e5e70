"""Builds indexes of large tables concurrently, after the schema change that declared them. `make_due` compares the
document with the catalog, so it can be interrupted and repeated."""

from collections.abc import Callable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.direct import without_timeouts
from rows.migrate import apply
from rows.migrate import versions as schema_versions
from rows.migrate.schema_editor import RowSchemaEditor
from rows.models import CurrentVersion
from rows.query.tables import table_models
from rows.schema.model import Schema

Progress = Callable[[str], None]


def make_due(environment: EnvironmentRef, progress: Progress = lambda name: None) -> bool:
    """True once none is missing, False if another process is at it. Without time limit: call it from a worker or
    command, outside transactions."""
    with without_timeouts(environment.cluster) as connection:
        cursor = connection.cursor()
        if not advisory_locks.try_lock_session(cursor, LockSpace.INDEXES, environment.environment_id):
            return False
        cursor.execute("SELECT set_config('search_path', %s, false)", [f'"{environment.environment_id}"'])
        while True:
            state = schema_versions.current(environment)
            _build_missing(connection, cursor, state.schema, progress)
            settled = CurrentVersion.objects.using(environment.cluster).filter(
                environment_id=environment.environment_id, version=state.version
            )
            if state.version == 0 or settled.update(indexes_due=False):
                return True


def _build_missing(connection: BaseDatabaseWrapper, cursor: Any, schema: Schema, progress: Progress) -> None:
    present, models = apply.indexes(cursor), table_models.state_of(schema)
    for table in schema.tables.values():
        for spec in table.indexes:
            name = table_models.index_name(table.name, spec)
            if present.get(name, False):
                continue
            progress(f"{table.name} ({spec})")
            if name in present:  # not valid: a build was interrupted
                cursor.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(name)))
            model = models.apps.get_model(table_models.LABEL, table.name)
            index = table_models.index_for(table, spec)
            cursor.execute(str(index.create_sql(model, RowSchemaEditor(connection), concurrently=True)))
