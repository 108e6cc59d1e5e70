"""Renamed tables and columns, and the SQL that renames them. Django's own renames can lose data and keep the old names
of constraints. So `rename` returns the old schema under the new names (here called the middle schema); Django's
autodetector plans the remaining differences (`rows.migrate.planning.planner`). Pure.
docs/adr/0002-schema-changes.md.

What is dropped and has the name of something new gets a temporary name in the middle schema."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Literal, NamedTuple

from psycopg import sql

from platform_site.http.errors import FieldError
from rows.query.tables import table_models
from rows.query.tables.table_checks import constraint_name
from rows.rules.checks import renamed
from rows.schema import identifiers
from rows.schema.model import Column, ColumnType, Errors, IndexSpec, InvalidDocument, Schema, Table

Conversion = Literal["free", "checked", "lossy"]
"""`free` keeps all values, `checked` fails if a value cannot be converted, `lossy` may lose data and must be
confirmed."""

_TEXTUAL: Final = frozenset({"text", "enum", "user", "reference"})
_WRITTEN: Final[tuple[ColumnType, ...]] = (
    "integer", "decimal", "float", "boolean", "date", "timestamp", "uuid", "json"
)  # fmt: skip
_CONVERSIONS: Final[Mapping[tuple[ColumnType, ColumnType], Conversion]] = {
    **{(old, "text"): "free" for old in _WRITTEN},
    **{("text", new): "checked" for new in _WRITTEN},
    ("integer", "decimal"): "checked",
    ("integer", "float"): "lossy",
    ("decimal", "integer"): "lossy",
    ("decimal", "float"): "lossy",
    ("float", "decimal"): "lossy",
    ("float", "integer"): "lossy",
    ("date", "timestamp"): "free",
    ("timestamp", "date"): "lossy",
}


@dataclass(frozen=True, slots=True)
class Statement:
    operation: str
    table: str
    """By its old name."""
    text: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """`schema` is the old schema under the new names. `tables` and `columns` map new names to old ones; missing names
    are new. `was_table` and `was_column` map every name in `schema` to its old name, including the temporary names of
    dropped ones. `unconstrained`: columns that become references and have no foreign key yet."""

    schema: Schema
    statements: tuple[Statement, ...]
    tables: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]
    was_table: Mapping[str, str]
    was_column: Mapping[tuple[str, str], str]
    unconstrained: frozenset[tuple[str, str]]
    checks: table_models.Checks
    """Their documents have the old names."""

    @property
    def record(self) -> dict[str, dict[str, object]]:
        columns = {
            table: {new_name: old_name for new_name, old_name in pairs.items() if new_name != old_name}
            for table, pairs in self.columns.items()
        }
        return {
            "tables": {new: old for new, old in self.tables.items() if new != old},
            "columns": {table: pairs for table, pairs in columns.items() if pairs},
        }


def conversion(old: Column, new: Column) -> Conversion | None:
    if old.type == new.type or (old.type in _TEXTUAL and new.type in _TEXTUAL):
        return "free"
    return _CONVERSIONS.get((old.type, new.type))


@dataclass(frozen=True, slots=True)
class _MiddleNames:
    """The name of an old table in the middle schema, and those of its columns, by their old names."""

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
    tables = _old_names_of_tables(old, new, errors)
    columns = {name: _old_names_of_columns(old.tables[was], new.tables[name], errors) for name, was in tables.items()}
    if errors:
        raise InvalidDocument(errors)
    return _Renaming(old, new, tables, columns).run()


# ── Which old name a new one continues ──────────────────────────────────────────────────────────────────────────────


def _old_names_of_tables(old: Schema, new: Schema, errors: Errors) -> dict[str, str]:
    sources = {name: table.renamed_from for name, table in new.tables.items()}
    for name, source in sources.items():
        if source is None or not old.tables:
            continue  # a document that was renamed in elsewhere starts afresh here
        if source not in old.tables and name not in old.tables:
            message = f'there is no table "{source}"{identifiers.did_you_mean(source, old.tables)}'
            errors.append(FieldError(f"tables.{name}.renamed_from", "unknown", message))
    paths = {name: f"tables.{name}" for name in sources}
    return _old_names(sources, old.tables, paths, errors)


def _old_names_of_columns(old: Table, new: Table, errors: Errors) -> dict[str, str]:
    sources: dict[str, str | None] = {}
    paths = {name: f"tables.{new.name}.columns.{column.key}" for name, column in new.columns.items()}
    for name, column in new.columns.items():
        source = old.column(column.renamed_from) if column.renamed_from else None
        sources[name] = source.name if source and not source.implicit else None
        if column.renamed_from and sources[name] is None and name not in old.columns:
            suggestion = identifiers.did_you_mean(column.renamed_from, old.columns)
            message = f'"{old.name}" has no column "{column.renamed_from}"{suggestion}'
            errors.append(FieldError(f"{paths[name]}.renamed_from", "unknown", message))
    return _old_names(sources, old.columns, paths, errors)


def _old_names(
    sources: Mapping[str, str | None], old: Collection[str], paths: Mapping[str, str], errors: Errors
) -> dict[str, str]:
    """New name → the old name that it continues. `sources` maps new names to their `renamed_from`, which was applied
    before if there is no such name anymore. An error for each name for which that is ambiguous."""
    moves = {
        name: source for name, source in sources.items() if source is not None and source in old and source != name
    }
    taken: dict[str, str] = {}
    for name, source in moves.items():
        if name in old and source in sources and source not in moves:
            message = f'"{name}" and "{source}" both exist: remove this if the rename was already applied'
            errors.append(FieldError(f"{paths[name]}.renamed_from", "unknown", message))
        elif source in taken:  # a reference has two names: `owner` and `owner_id`
            message = f'"{taken[source]}" is renamed from "{source}" too'
            errors.append(FieldError(f"{paths[name]}.renamed_from", "taken", message))
        taken.setdefault(source, name)
    return {name: moves.get(name, name) for name in sources if name in moves or (name in old and name not in taken)}


def _middle_names(
    old: Schema, new: Schema, tables: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]
) -> dict[str, _MiddleNames]:
    """By the old names of the tables."""
    temporary_names = (f"_dropped_{number}" for number in count(1))
    new_names = {was: name for name, was in tables.items()}
    table_names = {
        name: new_names.get(name) or (next(temporary_names) if name in new.tables else name) for name in old.tables
    }
    found = {}
    for old_name, table in old.tables.items():
        moves: dict[str, str] = {}
        if new_name := new_names.get(old_name):
            moves = _column_moves(table, new.tables[new_name], columns[new_name], temporary_names)
        names = {name: moves.get(name, name) for name in table.all_columns}
        found[old_name] = _MiddleNames(table_names[old_name], names)
    return found


def _column_moves(
    old: Table, new: Table, old_names: Mapping[str, str], temporary_names: Iterator[str]
) -> dict[str, str]:
    moves = {was: name for name, was in old_names.items()}
    fields = {table_models.field_name(column) for column in new.columns.values()}
    for name, column in old.columns.items():
        if name not in moves and (name in new.columns or table_models.field_name(column) in fields):
            moves[name] = next(temporary_names) + ("_id" if column.is_reference else "")
    return moves


# ── The middle schema and its statements ────────────────────────────────────────────────────────────────────────────


class _Renaming:
    def __init__(
        self, old: Schema, new: Schema, tables: Mapping[str, str], columns: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.old, self.new, self.tables, self.columns = old, new, tables, columns
        self.names = _middle_names(old, new, tables, columns)
        self.errors = Errors()
        self.statements: list[Statement] = []
        self.unconstrained: set[tuple[str, str]] = set()

    def run(self) -> Renamed:
        middle = {self.names[name].table: self._renamed_table(table) for name, table in self.old.tables.items()}
        self._rename_tables()
        self._rename_columns()
        self._rename_constraints_and_indexes(middle)
        for name in self.tables:
            middle[name] = self._with_new_types(middle[name], self.new.tables[name])
        if self.errors:
            raise InvalidDocument(self.errors)
        return Renamed(
            schema=Schema(middle, self.old.document),
            statements=tuple(self.statements),
            tables=self.tables,
            columns=self.columns,
            was_table={names.table: old_name for old_name, names in self.names.items()},
            was_column={(names.table, now): was for names in self.names.values() for was, now in names.columns.items()},
            unconstrained=frozenset(self.unconstrained),
            checks={
                self.names[old_name].table: {
                    name: renamed(check, self.names[old_name].columns) for name, check in found.items()
                }
                for old_name, found in table_models.checks_of(self.old).items()
            },
        )

    def _renamed_table(self, old: Table) -> Table:
        names = self.names[old.name]
        columns = {}
        for name, column in old.columns.items():
            now = names.columns[name]
            key = now.removesuffix("_id") if column.is_reference or column.is_user else now
            target = self.names[column.references].table if column.references else None
            columns[now] = replace(column, name=now, key=key, references=target)
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

    def _rename_tables(self) -> None:
        moves = {old_name: names.table for old_name, names in self.names.items() if old_name != names.table}
        for source, target, was in _in_order(moves):
            self._add(self._table_operation(was), was, "ALTER TABLE {} RENAME TO {}", source, target)

    def _rename_columns(self) -> None:
        for old_name, names in self.names.items():
            moves = {was: now for was, now in names.columns.items() if was != now}
            for source, target, was in _in_order(moves):
                statement = "ALTER TABLE {} RENAME COLUMN {} TO {}"
                self._add(self._column_operation(old_name, was), old_name, statement, names.table, source, target)

    def _rename_constraints_and_indexes(self, middle: Mapping[str, Table]) -> None:
        """The names of constraints are of their table, those of indexes are of the whole schema."""
        indexes: dict[str, str] = {}
        operations: dict[str, tuple[str, str]] = {}
        for old_name, old_table in self.old.tables.items():
            table = middle[self.names[old_name].table]
            constraints: dict[str, str] = {}
            for was, now in zip(_named_objects(old_table), _named_objects(table), strict=True):
                if was.name != now.name:
                    (indexes if was.is_index else constraints)[was.name] = now.name
                    operations[was.name] = self._operation_of(old_name, was), old_name
            for source, target, name in _in_order(constraints):
                statement = "ALTER TABLE {} RENAME CONSTRAINT {} TO {}"
                self._add(*operations[name], statement, table.name, source, target)
        for source, target, name in _in_order(indexes):
            # It may still be waiting to be made (rows.migrate.concurrent_indexes).
            self._add(*operations[name], "ALTER INDEX IF EXISTS {} RENAME TO {}", source, target)

    def _operation_of(self, old_name: str, named: _NamedObject) -> str:
        """The operation because of which an index or constraint gets another name."""
        names = self.names[old_name]
        if names.table != old_name:
            return self._table_operation(old_name)
        return self._column_operation(old_name, next(name for name in named.columns if names.columns[name] != name))

    def _table_operation(self, old_name: str) -> str:
        middle_name = self.names[old_name].table
        return f"rename table {old_name} to {middle_name}" if middle_name in self.tables else f"drop table {old_name}"

    def _column_operation(self, old_name: str, column: str) -> str:
        names = self.names[old_name]
        shown = f"column {names.table}.{self.old.tables[old_name].columns[column].key}"
        new = self.new.tables[names.table].columns.get(names.columns[column])
        return f"rename {shown} to {new.key}" if new else f"drop {shown}"

    def _with_new_types(self, middle: Table, new: Table) -> Table:
        columns = dict(middle.columns)
        for name in self.columns[new.name]:
            was, becomes = columns[name], new.columns[name]
            if was.type == becomes.type and (was.max_length is None) == (becomes.max_length is None):
                columns[name] = replace(was, key=becomes.key)
            elif conversion(was, becomes) is None:
                path = f"tables.{new.name}.columns.{becomes.key}.type"
                message = f"{was.type} cannot become {becomes.type}; drop the column and add another"
                self.errors.append(FieldError(path, "invalid", message))
            else:
                columns[name] = self._convert(new.name, was, becomes)
        return replace(middle, columns=columns)

    def _convert(self, table: str, was: Column, becomes: Column) -> Column:
        def alter(change: str, *named: str) -> None:
            operation = f"alter column {table}.{becomes.key}"
            self._add(operation, self.tables[table], f"ALTER TABLE {{}} {change}", table, *named)

        if was.default is not None:  # PostgreSQL would have to convert it too, and often cannot
            alter("ALTER COLUMN {} DROP DEFAULT", was.name)
        if was.is_reference:
            alter("DROP CONSTRAINT {}", table_models.foreign_key_name(table, was.name))
        if becomes.is_reference:
            if table_models.check_of(was) is not None:
                alter("DROP CONSTRAINT {}", table_models.check_name(table, was.name))
            if was.max_length is not None:
                alter("ALTER COLUMN {} TYPE text COLLATE {}", was.name, table_models.COLLATION)
            self.unconstrained.add((table, was.name))
            # Pointing to itself until the autodetector points it to the table that may not exist yet.
            return Column(
                was.name, becomes.key, "reference", null=was.null, references=table, on_delete=becomes.on_delete
            )
        if was.is_reference:
            return Column(was.name, becomes.key, "text", null=was.null)
        return replace(was, key=becomes.key, default=None)


def _in_order(moves: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Renames one at a time, each with the name before all of them; what occupies a name steps aside first."""
    later = []
    for at, (source, target) in enumerate(moves.items()):
        if target in moves:
            yield source, f"_moving_{at}", source
            later.append((f"_moving_{at}", target, source))
    yield from ((source, target, source) for source, target in moves.items() if target not in moves)
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
