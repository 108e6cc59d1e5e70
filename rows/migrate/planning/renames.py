"""Renames tables and columns by our own SQL: Django's renames can lose data and keep the old names of constraints.
`rename` returns the old schema under the new names, and Django's autodetector plans the remaining differences
(`rows.migrate.planning.planner`). What is dropped and has the name of something new gets a temporary name. Pure.
docs/adr/0002-schema-changes.md."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from psycopg import sql

from platform_site.http.errors import FieldError
from rows.migrate.planning.conversions import conversion
from rows.query.tables import table_models
from rows.query.tables.table_checks import constraint_name
from rows.rules import checks
from rows.schema import identifiers
from rows.schema.model import Column, Errors, IndexSpec, InvalidDocument, Schema, Table


@dataclass(frozen=True, slots=True)
class Statement:
    operation: str
    table: str
    """By its old name."""
    text: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """`schema` is the old schema after the renames. `kept_tables` and `kept_columns` map the new names of what is kept
    to old ones; `old_tables` and `old_columns` map every name in `schema`, including those of dropped ones.
    `unconstrained`: columns that become references and have no foreign key yet."""

    schema: Schema
    statements: tuple[Statement, ...]
    kept_tables: Mapping[str, str]
    kept_columns: Mapping[str, Mapping[str, str]]
    old_tables: Mapping[str, str]
    old_columns: Mapping[tuple[str, str], str]
    unconstrained: frozenset[tuple[str, str]]
    checks: table_models.Checks
    """Their documents have the old names."""

    @property
    def record(self) -> dict[str, dict[str, object]]:
        columns = {
            table: {new: old for new, old in names.items() if new != old} for table, names in self.kept_columns.items()
        }
        return {
            "tables": {new: old for new, old in self.kept_tables.items() if new != old},
            "columns": {table: names for table, names in columns.items() if names},
        }


@dataclass(frozen=True, slots=True)
class _Names:
    """Those that a table and its columns, by their old names, get by the renames."""

    table: str
    columns: Mapping[str, str]


class _NamedObject(NamedTuple):
    """An index (also of a primary key or unique) or another constraint."""

    name: str
    columns: Sequence[str]
    is_index: bool


def rename(old: Schema, new: Schema) -> Renamed:
    """Raises InvalidDocument if a `renamed_from` names nothing, or for an impossible type change."""
    errors = Errors()
    tables = _kept_tables(old, new, errors)
    columns = {name: _kept_columns(old.tables[old_name], new.tables[name], errors) for name, old_name in tables.items()}
    if errors:
        raise InvalidDocument(errors)
    return _Renaming(old, new, tables, columns).run()


# ── Which old name a new one continues ──────────────────────────────────────────────────────────────────────────────


def _kept_tables(old: Schema, new: Schema, errors: Errors) -> dict[str, str]:
    sources = {name: table.renamed_from for name, table in new.tables.items()}
    for name, source in sources.items():
        if source is None or not old.tables:
            continue  # a document that was renamed in elsewhere starts afresh here
        if source not in old.tables and name not in old.tables:
            message = f'there is no table "{source}"{identifiers.did_you_mean(source, old.tables)}'
            errors.append(FieldError(f"tables.{name}.renamed_from", "unknown", message))
    paths = {name: f"tables.{name}" for name in sources}
    return _kept_names(sources, old.tables, paths, errors)


def _kept_columns(old: Table, new: Table, errors: Errors) -> dict[str, str]:
    sources: dict[str, str | None] = {}
    paths = {name: f"tables.{new.name}.columns.{column.key}" for name, column in new.columns.items()}
    for name, column in new.columns.items():
        source = old.column(column.renamed_from) if column.renamed_from else None
        sources[name] = source.name if source and not source.implicit else None
        if column.renamed_from and sources[name] is None and name not in old.columns:
            suggestion = identifiers.did_you_mean(column.renamed_from, old.columns)
            message = f'"{old.name}" has no column "{column.renamed_from}"{suggestion}'
            errors.append(FieldError(f"{paths[name]}.renamed_from", "unknown", message))
    return _kept_names(sources, old.columns, paths, errors)


def _kept_names(
    sources: Mapping[str, str | None], old: Collection[str], paths: Mapping[str, str], errors: Errors
) -> dict[str, str]:
    """New name → the old name that it continues. `sources` maps new names to their `renamed_from`, which was applied
    before if there is no such name anymore."""
    renamed_from = {
        name: source for name, source in sources.items() if source is not None and source in old and source != name
    }
    taken: dict[str, str] = {}
    for name, source in renamed_from.items():
        if name in old and source in sources and source not in renamed_from:
            message = f'"{name}" and "{source}" both exist: remove this if the rename was already applied'
            errors.append(FieldError(f"{paths[name]}.renamed_from", "unknown", message))
        elif source in taken:  # a reference has two names: `owner` and `owner_id`
            message = f'"{taken[source]}" is renamed from "{source}" too'
            errors.append(FieldError(f"{paths[name]}.renamed_from", "taken", message))
        taken.setdefault(source, name)
    return {
        name: renamed_from.get(name, name)
        for name in sources
        if name in renamed_from or (name in old and name not in taken)
    }


def _names_after(
    old: Schema, new: Schema, tables: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]
) -> dict[str, _Names]:
    """By the old names of the tables."""
    temporary_names = (f"_dropped_{number}" for number in count(1))
    new_names = {old_name: name for name, old_name in tables.items()}
    table_names = {
        name: new_names.get(name) or (next(temporary_names) if name in new.tables else name) for name in old.tables
    }
    found = {}
    for old_name, table in old.tables.items():
        renames: dict[str, str] = {}
        if new_name := new_names.get(old_name):
            renames = _column_renames(table, new.tables[new_name], columns[new_name], temporary_names)
        names = {name: renames.get(name, name) for name in table.all_columns}
        found[old_name] = _Names(table_names[old_name], names)
    return found


def _column_renames(
    old: Table, new: Table, kept_columns: Mapping[str, str], temporary_names: Iterator[str]
) -> dict[str, str]:
    renames = {old_name: name for name, old_name in kept_columns.items()}
    fields = {table_models.field_name(column) for column in new.columns.values()}
    for name, column in old.columns.items():
        if name not in renames and (name in new.columns or table_models.field_name(column) in fields):
            renames[name] = next(temporary_names) + ("_id" if column.is_reference else "")
    return renames


# ── The renamed schema and its statements ───────────────────────────────────────────────────────────────────────────


class _Renaming:
    def __init__(
        self, old: Schema, new: Schema, kept_tables: Mapping[str, str], kept_columns: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.old, self.new, self.kept_tables, self.kept_columns = old, new, kept_tables, kept_columns
        self.names = _names_after(old, new, kept_tables, kept_columns)
        self.errors = Errors()
        self.statements: list[Statement] = []
        self.unconstrained: set[tuple[str, str]] = set()

    def run(self) -> Renamed:
        tables = {self.names[name].table: self._renamed_table(table) for name, table in self.old.tables.items()}
        for source, target, name in _in_order({old_name: names.table for old_name, names in self.names.items()}):
            self._add(self._table_operation(name), name, "ALTER TABLE {} RENAME TO {}", source, target)
        for table, names in self.names.items():
            for source, target, name in _in_order(names.columns):
                statement = "ALTER TABLE {} RENAME COLUMN {} TO {}"
                self._add(self._column_operation(table, name), table, statement, names.table, source, target)
        self._rename_constraints_and_indexes(tables)
        for name in self.kept_tables:
            tables[name] = self._with_new_types(tables[name], self.new.tables[name])
        if self.errors:
            raise InvalidDocument(self.errors)
        return Renamed(
            schema=Schema(tables, self.old.document),
            statements=tuple(self.statements),
            kept_tables=self.kept_tables,
            kept_columns=self.kept_columns,
            old_tables={names.table: old_name for old_name, names in self.names.items()},
            old_columns={
                (names.table, name): old_name
                for names in self.names.values()
                for old_name, name in names.columns.items()
            },
            unconstrained=frozenset(self.unconstrained),
            checks={
                self.names[old_name].table: {
                    name: checks.renamed(check, self.names[old_name].columns) for name, check in found.items()
                }
                for old_name, found in table_models.checks_of(self.old).items()
            },
        )

    def _renamed_table(self, old: Table) -> Table:
        names = self.names[old.name]
        columns = {}
        for old_name, column in old.columns.items():
            name = names.columns[old_name]
            key = name.removesuffix("_id") if column.is_reference or column.is_user else name
            target = self.names[column.references].table if column.references else None
            columns[name] = replace(column, name=name, key=key, references=target)
        return Table(
            name=names.table,
            columns=columns,
            unique=tuple(tuple(names.columns[name] for name in unique) for unique in old.unique),
            indexes=tuple(
                IndexSpec(tuple(replace(key, column=names.columns[key.column]) for key in spec.keys))
                for spec in old.indexes
            ),
            checks=old.checks,
        )

    def _add(self, operation: str, old_table: str, statement: str, *names: str) -> None:
        text = sql.SQL(statement).format(*map(sql.Identifier, names))
        self.statements.append(Statement(operation, old_table, text.as_string(None)))

    def _rename_constraints_and_indexes(self, renamed: Mapping[str, Table]) -> None:
        """The names of constraints are of their table, those of indexes are of the whole schema."""
        indexes: dict[str, str] = {}
        operations: dict[str, tuple[str, str]] = {}
        for old_name, old_table in self.old.tables.items():
            table = renamed[self.names[old_name].table]
            constraints: dict[str, str] = {}
            for before, after in zip(_named_objects(old_table), _named_objects(table), strict=True):
                if before.name != after.name:
                    (indexes if before.is_index else constraints)[before.name] = after.name
                    operations[before.name] = self._operation_of(old_name, before), old_name
            for source, target, name in _in_order(constraints):
                statement = "ALTER TABLE {} RENAME CONSTRAINT {} TO {}"
                self._add(*operations[name], statement, table.name, source, target)
        for source, target, name in _in_order(indexes):
            # It may still be waiting to be made (rows.migrate.concurrent_indexes).
            self._add(*operations[name], "ALTER INDEX IF EXISTS {} RENAME TO {}", source, target)

    def _operation_of(self, old_table: str, named: _NamedObject) -> str:
        """The operation because of which an index or constraint gets another name."""
        names = self.names[old_table]
        if names.table != old_table:
            return self._table_operation(old_table)
        return self._column_operation(old_table, next(name for name in named.columns if names.columns[name] != name))

    def _table_operation(self, old_name: str) -> str:
        name = self.names[old_name].table
        return f"rename table {old_name} to {name}" if name in self.kept_tables else f"drop table {old_name}"

    def _column_operation(self, old_table: str, old_name: str) -> str:
        names = self.names[old_table]
        shown = f"column {names.table}.{self.old.tables[old_table].columns[old_name].key}"
        new = self.new.tables[names.table].columns.get(names.columns[old_name])
        return f"rename {shown} to {new.key}" if new else f"drop {shown}"

    def _with_new_types(self, renamed: Table, new_table: Table) -> Table:
        columns = dict(renamed.columns)
        for name in self.kept_columns[new_table.name]:
            old, new = columns[name], new_table.columns[name]
            if old.type == new.type and (old.max_length is None) == (new.max_length is None):
                columns[name] = replace(old, key=new.key)
            elif conversion(old, new) is None:
                path = f"tables.{new_table.name}.columns.{new.key}.type"
                message = f"{old.type} cannot become {new.type}; drop the column and add another"
                self.errors.append(FieldError(path, "invalid", message))
            else:
                columns[name] = self._convert(new_table.name, old, new)
        return replace(renamed, columns=columns)

    def _convert(self, table: str, old: Column, new: Column) -> Column:
        """Prepares what Django's AlterField cannot change together with the type."""

        def alter(change: str, *named: str) -> None:
            operation = f"alter column {table}.{new.key}"
            self._add(operation, self.kept_tables[table], f"ALTER TABLE {{}} {change}", table, *named)

        if old.default is not None:  # PostgreSQL would have to convert it too, and often cannot
            alter("ALTER COLUMN {} DROP DEFAULT", old.name)
        if old.is_reference:
            alter("DROP CONSTRAINT {}", table_models.foreign_key_name(table, old.name))
        if new.is_reference:
            if table_models.check_of(old) is not None:
                alter("DROP CONSTRAINT {}", table_models.check_name(table, old.name))
            if old.max_length is not None:
                alter("ALTER COLUMN {} TYPE text COLLATE {}", old.name, table_models.COLLATION)
            self.unconstrained.add((table, old.name))
            # Pointing to itself until the autodetector points it to the table that may not exist yet.
            return Column(old.name, new.key, "reference", null=old.null, references=table, on_delete=new.on_delete)
        if old.is_reference:
            return Column(old.name, new.key, "text", null=old.null)
        return replace(old, key=new.key, default=None)


def _in_order(new_names: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Source, target and old name of each rename. A source that is also a target gets a temporary name first."""
    renames = {old_name: name for old_name, name in new_names.items() if old_name != name}
    later = []
    for at, (source, target) in enumerate(renames.items()):
        if target in renames:
            yield source, f"_moving_{at}", source
            later.append((f"_moving_{at}", target, source))
    yield from ((source, target, source) for source, target in renames.items() if target not in renames)
    yield from later


def _named_objects(table: Table) -> Iterator[_NamedObject]:
    yield _NamedObject(table_models.primary_key_name(table.name), (), True)
    for unique in table.unique:
        yield _NamedObject(table_models.unique_name(table.name, unique), unique, True)
    for spec in table.indexes:
        yield _NamedObject(table_models.index_name(table.name, spec), [key.column for key in spec.keys], True)
    for check in table.checks:
        yield _NamedObject(constraint_name(table.name, check), (), False)
    for name, column in table.columns.items():
        if column.is_reference:
            yield _NamedObject(table_models.foreign_key_name(table.name, name), [name], False)
        elif table_models.check_of(column) is not None:
            yield _NamedObject(table_models.check_name(table.name, name), [name], False)
