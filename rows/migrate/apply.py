"""Runs a plan in one environment's PostgreSQL schema, in the caller's transaction. `apply` changes the live tables,
`rehearse` an empty copy that is rolled back, without locks on live tables. docs/adr/0002-schema-changes.md."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections, transaction
from django.db.migrations import operations as migrations
from psycopg import sql

from platform_site.http.errors import FieldError, Unavailable
from platform_site.identity import ids
from platform_site.postgres import sqlstates, statements, transaction_settings
from platform_site.postgres.libpq_connection import discard_when_idle
from platform_site.postgres.row_access import row_access
from projects.provisioning import failpoints
from rows.migrate import existing_rows, stored_values
from rows.migrate.planning.plan import AddedUnique, Plan, Step
from rows.migrate.schema_editor import RowSchemaEditor
from rows.query.tables import table_models
from rows.query.tables.catalog import estimated_sizes
from rows.schema import identifiers
from rows.schema.model import InvalidDocument, Schema


class LockNotAvailable(Exception):
    pass


class StatementTimeout(Unavailable):
    message = "A step of the change took too long. Nothing was changed; split it into smaller changes."

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__()


@dataclass(frozen=True, slots=True)
class Operation:
    """`name` confirms it; `sql` is empty for what is not in PostgreSQL."""

    name: str
    sql: tuple[str, ...]
    destructive: bool

    def as_dict(self) -> dict[str, Any]:
        return {"operation": self.name, "sql": list(self.sql), "destructive": self.destructive}


@dataclass(frozen=True, slots=True)
class Applied:
    operations: tuple[Operation, ...]
    indexes_due: bool


_ROW_ERRORS: Final = {
    "23502": "existing rows have no value here",
    "23505": "existing rows are not unique in these columns",
    "23514": "existing rows have values that this does not allow",
    "23503": "existing rows refer to rows that do not exist",
    "22001": "existing rows have longer values",
    "54000": "existing rows have values too long for an index",
    "54001": "existing rows have values that are nested too deep",
    "54011": "the table has reached PostgreSQL's limit of 1,600 columns, which counts dropped columns too: create a new"
    " table, or restore a backup of the environment, which recreates its tables",
}


@contextmanager
def use_schema(alias: str, schema: str, *, limited: bool = True) -> Generator[None]:
    """In the block, unqualified names mean tables of `schema`. `limited`: with limits of schema changes."""
    values = {"search_path": f'"{schema}"'}
    if limited:
        values["lock_timeout"] = f"{settings.SCHEMA_LOCK_TIMEOUT_MS}"
        values["statement_timeout"] = f"{settings.SCHEMA_STATEMENT_TIMEOUT_MS}"
    with transaction_settings.changed(alias, **values):
        discard_when_idle(connections[alias])  # its backend now caches catalog entries of all tables used here
        yield


def large_tables(alias: str, schema: str) -> frozenset[str]:
    """Tables whose indexes are built concurrently."""
    sizes = estimated_sizes(alias, schema)
    return frozenset(name for name, (rows, _) in sizes.items() if rows >= settings.SCHEMA_LARGE_TABLE_ROWS)


NEW_UNIQUE_NAMES: Final = identifiers.prefix("nu").replace("_", r"\_") + "%"
"""The names of indexes of new uniques, for LIKE."""


def new_unique_sql(unique: AddedUnique, *, concurrently: bool = True) -> sql.Composed:
    return sql.SQL("CREATE UNIQUE INDEX {}{} ON {} ({})").format(
        sql.SQL("CONCURRENTLY " if concurrently else ""),
        sql.Identifier(unique.index),
        sql.Identifier(unique.table),
        sql.SQL(", ").join(map(sql.Identifier, unique.columns)),
    )


def indexes(cursor: Any, names: str = "%", tables: Collection[str] | None = None) -> dict[str, bool]:
    """Those of `tables` (None: of all) in the current schema with names LIKE `names`, and whether they are valid."""
    cursor.execute(
        "SELECT i.relname, x.indisvalid FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid"
        " JOIN pg_catalog.pg_class t ON t.oid = x.indrelid JOIN pg_catalog.pg_namespace n ON n.oid = i.relnamespace"
        " WHERE n.nspname = pg_catalog.current_schema() AND i.relname LIKE %(names)s"
        " AND (%(tables)s::text[] IS NULL OR t.relname = ANY (%(tables)s::text[]))",
        {"names": names, "tables": None if tables is None else list(tables)},
    )
    return dict(cursor.fetchall())


def _check_prebuilt_indexes(alias: str, plan: Plan, made: Sequence[AddedUnique]) -> None:
    """Each is valid, or dropped if not in `made`. Raises LockNotAvailable if one of `made` is missing."""
    if not plan.exclusive:
        return
    with connections[alias].cursor() as cursor:
        present = indexes(cursor, NEW_UNIQUE_NAMES, plan.exclusive)
        if not all(present.pop(unique.index, False) for unique in made):
            raise LockNotAvailable
        for name in present:
            cursor.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))


def apply(alias: str, schema: str, plan: Plan, made: Sequence[AddedUnique] = ()) -> Applied:
    """`made`: uniques with prebuilt indexes. Raises LockNotAvailable, StatementTimeout, and InvalidDocument (existing
    rows do not fit); then roll back."""
    with use_schema(alias, schema):
        _lock(alias, plan)
        _check_prebuilt_indexes(alias, plan, made)
        _refuse_unfit_rows(alias, plan, made)
        return _run(alias, plan, large_tables(alias, schema), made)


def rehearse(alias: str, schema: str, plan: Plan) -> tuple[Operation, ...]:
    """What `apply` would do, on an empty copy. Raises InvalidDocument (existing rows) and StatementTimeout."""
    with transaction.atomic(using=alias):
        with use_schema(alias, schema):
            _refuse_unfit_rows(alias, plan)
        large = large_tables(alias, schema)
        twin = create_schema(alias, "twin")
        with use_schema(alias, twin):
            build(alias, plan.old)
            made = [unique for unique in plan.new_uniques if unique.table in large]
            for unique in made:
                statements.execute(alias, new_unique_sql(unique, concurrently=False))
            operations = _run(alias, plan, large, made).operations
        transaction.set_rollback(True, using=alias)
    return operations


def check_existing_rows(alias: str, schema: str, plan: Plan) -> None:
    """Raise InvalidDocument, as `apply` would, if existing rows do not fit, and StatementTimeout."""
    with transaction.atomic(using=alias), use_schema(alias, schema):
        _refuse_unfit_rows(alias, plan)


def create_schema(alias: str, kind: str) -> str:
    name = f"{kind}_{ids.suffix()}"
    statements.execute(alias, sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    return name


def build(alias: str, schema: Schema, fill: Callable[[], None] | None = None) -> Applied:
    """Create all tables of `schema` in the empty PostgreSQL schema of `use_schema`. `fill` adds rows before indexes and
    foreign keys are created."""
    with RowSchemaEditor(connections[alias]) as editor:
        editor.build(table_models.state_of(schema).apps.get_models(), fill)
    return Applied(tuple(Operation(name, (text,), False) for name, text in editor.recorded), editor.postponed)


def exchange(alias: str, schema: str, old: Schema, beside: str, new: Schema) -> None:
    """Replace the tables of `schema` by those of `beside`. Raises LockNotAvailable; then roll back."""
    with raise_lock_errors():
        if old.tables:
            tables = sql.SQL(", ").join(sql.Identifier(schema, name) for name in sorted(old.tables))
            with row_access():
                statements.execute(alias, sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(tables))
            statements.execute(alias, sql.SQL("DROP TABLE {}").format(tables))
        for name in new.tables:
            move = sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(sql.Identifier(beside, name), sql.Identifier(schema))
            statements.execute(alias, move)
        statements.execute(alias, sql.SQL("DROP SCHEMA {}").format(sql.Identifier(beside)))


def _lock(alias: str, plan: Plan) -> None:
    """All locks at once and in one order."""
    with raise_lock_errors():
        transaction_settings.set_local(alias, statement_timeout=f"{settings.SCHEMA_LOCK_TIMEOUT_MS * 3 // 2}")
        for tables, mode in (
            (plan.exclusive, sql.SQL("ACCESS EXCLUSIVE")),
            (plan.guarded, sql.SQL("SHARE ROW EXCLUSIVE")),
        ):
            if tables:
                named = sql.SQL(", ").join(map(sql.Identifier, sorted(tables)))
                statements.execute(alias, sql.SQL("LOCK TABLE {} IN {} MODE").format(named, mode))
        transaction_settings.set_local(alias, statement_timeout=f"{settings.SCHEMA_STATEMENT_TIMEOUT_MS}")


@contextmanager
def raise_lock_errors() -> Generator[None]:
    try:
        yield
    except DatabaseError as error:
        if sqlstates.sqlstate(error) in {*sqlstates.INTERFERED, sqlstates.CANCELLED}:
            raise LockNotAvailable from error
        raise


def _refuse_unfit_rows(alias: str, plan: Plan, made: Sequence[AddedUnique] = ()) -> None:
    try:
        existing_rows.check(alias, plan, proven={unique.step.name for unique in made})
    except DatabaseError as error:
        if sqlstates.sqlstate(error) == sqlstates.CANCELLED:
            raise StatementTimeout("existing rows") from error
        raise


def _run(alias: str, plan: Plan, large: Collection[str], made: Sequence[AddedUnique]) -> Applied:
    names = {old_name: name for name, old_name in plan.renamed.old_tables.items()}
    renamed_large = [names[old_name] for old_name in large if old_name in names]
    indexes = {unique.constraint: (unique.index, new_unique_sql(unique).as_string()) for unique in made}
    with RowSchemaEditor(connections[alias], renamed_large, indexes) as editor:
        for statement in plan.renamed.statements:
            with editor.during(statement.operation), raise_lock_errors():
                editor.execute(statement.text, None)
        if plan.old.tables:
            _run_steps(editor, plan)
            stored_values.refuse_large_rows(editor, plan)
        else:
            editor.build(table_models.state_of(plan.new).apps.get_models())
    return Applied(_operations(plan, editor.recorded), editor.postponed)


def _run_steps(editor: RowSchemaEditor, plan: Plan) -> None:
    renamed = plan.renamed
    state = table_models.state_of(renamed.schema, unconstrained=renamed.unconstrained, checks=renamed.checks)
    for steps in _grouped(plan.steps):
        before = state.clone()
        if len(steps) > 1:
            state.__dict__.pop("apps", None)
        for step in steps:
            step.django.state_forwards(table_models.LABEL, state)
        for step in steps:
            failpoints.reach("schema.between_steps")
            try:
                with editor.during(step.name):
                    step.django.database_forwards(table_models.LABEL, editor, before, state)
                    stored_values.refuse_unreadable(editor, plan, step)
            except DatabaseError as error:
                if (translated := exception_for(step, error)) is None:
                    raise
                raise translated from error


def _grouped(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Groups steps that create tables: Django rebuilds all related models at each, which takes seconds."""
    for makes_tables, group in groupby(steps, lambda step: isinstance(step.django, migrations.CreateModel)):
        found = list(group)
        yield from [found] if makes_tables else [[step] for step in found]


def exception_for(step: Step, error: DatabaseError) -> Exception | None:
    """LockNotAvailable, StatementTimeout, or InvalidDocument for existing rows that do not fit; None for another error.
    Without PostgreSQL's message, which contains values of rows."""
    state = sqlstates.sqlstate(error)
    if state in sqlstates.INTERFERED:
        return LockNotAvailable()
    if state == sqlstates.CANCELLED:
        return StatementTimeout(step.name)
    message, columns = _ROW_ERRORS.get(state or ""), ", ".join(step.columns)
    if state == "23505" and columns:
        message = f"existing rows are not unique in {columns}"
    if state == sqlstates.TOO_LONG_FOR_AN_INDEX and columns:
        message = f"existing rows have values too long for an index of {columns} (about 2,700 bytes)"
    if message is not None:
        return InvalidDocument([FieldError(step.path, "conflict", message)])
    if state and state.startswith("22") and step.column:
        return InvalidDocument([FieldError(step.path, "invalid", f"existing values cannot become {step.column.type}")])
    return None


def _operations(plan: Plan, recorded: Iterable[tuple[str, str]]) -> tuple[Operation, ...]:
    found: dict[str, list[str]] = {}
    for name, text in recorded:
        found.setdefault(name, []).append(text)
    for name in (*(step.name for step in plan.steps), *plan.notes):
        found.setdefault(name, [])
    return tuple(Operation(name, tuple(texts), name in plan.destructive) for name, texts in found.items())
