"""Renamed tables and columns, and the SQL that renames them. Django's own renames can lose data and keep the old names
of constraints. So `rename` returns the old schema under the new names (here called the middle schema); Django's
autodetector plans the remaining differences (`rows.migrate.planning.planner`). Pure.
docs/adr/0002-schema-changes.md."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

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
_CONVERSIONS: Final[Mapping[tuple[ColumnType, ColumnType], Conversion]] = {
    **{
        (old, "text"): "free" for old in ("integer", "decimal", "float", "boolean", "date", "timestamp", "uuid", "json")
    },
    **{
        ("text", new): "checked"
        for new in ("integer", "decimal", "float", "boolean", "date", "timestamp", "uuid", "json")
    },
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


def rename(old: Schema, new: Schema) -> Renamed:
    """Raises InvalidDocument if a `renamed_from` names nothing, or for an impossible type change."""
    return _Renaming(old, new).result()


def _continued(sources: Mapping[str, str | None], present: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """New name → the old name it continues, and names for which that is ambiguous. `sources` maps new names to their
    `renamed_from`; one whose old name is gone was applied before."""
    old = set(present)
    moves = {
        new_name: source
        for new_name, source in sources.items()
        if source is not None and source in old and source != new_name
    }
    unclear = [
        new_name for new_name, source in moves.items() if new_name in old and source in sources and source not in moves
    ]
    taken = set(moves.values())
    return {
        new_name: moves.get(new_name, new_name)
        for new_name in sources
        if new_name in moves or (new_name in old and new_name not in taken)
    }, unclear


def _in_order(moves: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Renames one at a time, each with the name before all of them; what occupies a name steps aside first."""
    later = []
    for at, (source, target) in enumerate(moves.items()):
        if target in moves:
            yield source, f"_moving_{at}", source
            later.append((f"_moving_{at}", target, source))
    yield from ((source, target, source) for source, target in moves.items() if target not in moves)
    yield from later


def _unclear(name: str, source: str | None) -> str:
    return f'"{name}" and "{source}" both exist: remove this if the rename was already applied'


class _Renaming:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self.errors = Errors()
        self.statements: list[Statement] = []
        self.unconstrained: set[tuple[str, str]] = set()
        self._aside = 0

    def result(self) -> Renamed:
        self.tables = self._tables()
        new_names = {old_name: new_name for new_name, old_name in self.tables.items()}
        # By old name, the name in the middle schema: the new one, or a temporary one for a dropped table whose name is
        # reused.
        self.middle_names = {
            old_name: new_names.get(old_name) or (self._temporary_name() if old_name in self.new.tables else old_name)
            for old_name in self.old.tables
        }
        self.columns = {
            new_name: self._columns(self.old.tables[old_name], self.new.tables[new_name])
            for new_name, old_name in self.tables.items()
        }
        middle: dict[str, Table] = {}
        was_column: dict[tuple[str, str], str] = {}
        column_names: dict[str, dict[str, str]] = {}
        for old_name, old_table in self.old.tables.items():
            at = self.middle_names[old_name]
            moves = self._column_moves(old_table, self.new.tables[at]) if at in self.tables else {}
            column_names[old_name] = {name: moves.get(name, name) for name in old_table.all_columns}
            was_column |= {(at, moved): name for name, moved in column_names[old_name].items()}
        if self.errors:
            raise InvalidDocument(self.errors)

        self._rename_tables()
        for old_name, old_table in self.old.tables.items():
            self._rename_columns(old_name, column_names[old_name])
            middle[self.middle_names[old_name]] = self._moved_table(old_table, column_names[old_name])
        self._rename_objects(middle, column_names)
        for new_name in self.tables:
            middle[new_name] = self._converted(middle[new_name], self.new.tables[new_name])
        if self.errors:
            raise InvalidDocument(self.errors)
        return Renamed(
            schema=Schema(middle, self.old.document),
            statements=tuple(self.statements),
            tables=self.tables,
            columns=self.columns,
            was_table={middle_name: old_name for old_name, middle_name in self.middle_names.items()},
            was_column=was_column,
            unconstrained=frozenset(self.unconstrained),
            checks={
                self.middle_names[old_name]: {
                    name: renamed(check, column_names[old_name]) for name, check in found.items()
                }
                for old_name, found in table_models.checks_of(self.old).items()
            },
        )

    def _tables(self) -> dict[str, str]:
        sources = {name: table.renamed_from for name, table in self.new.tables.items()}
        for name, source in sources.items():
            if source is None or not self.old.tables:
                continue  # a document that was renamed in elsewhere starts afresh here
            if source not in self.old.tables and name not in self.old.tables:
                suggestion = identifiers.did_you_mean(source, self.old.tables)
                self._fail(f"tables.{name}.renamed_from", f'there is no table "{source}"{suggestion}')
        found, unclear = _continued(sources, self.old.tables)
        for name in unclear:
            self._fail(f"tables.{name}.renamed_from", _unclear(name, sources[name]))
        return found

    def _columns(self, old: Table, new: Table) -> dict[str, str]:
        sources: dict[str, str | None] = {}
        for name, column in new.columns.items():
            source = old.column(column.renamed_from) if column.renamed_from else None
            sources[name] = source.name if source and not source.implicit else None
            if column.renamed_from and sources[name] is None and name not in old.columns:
                suggestion = identifiers.did_you_mean(column.renamed_from, old.columns)
                self._fail(
                    f"tables.{new.name}.columns.{column.key}.renamed_from",
                    f'"{old.name}" has no column "{column.renamed_from}"{suggestion}',
                )
        found, unclear = _continued(sources, old.columns)
        for name in unclear:
            path = f"tables.{new.name}.columns.{new.columns[name].key}.renamed_from"
            self._fail(path, _unclear(name, sources[name]))
        return found

    def _column_moves(self, old: Table, new: Table) -> dict[str, str]:
        moves = {old_name: new_name for new_name, old_name in self.columns[new.name].items()}
        fields = {table_models.field_name(column) for column in new.columns.values()}
        for name, column in old.columns.items():
            if name not in moves and (name in new.columns or table_models.field_name(column) in fields):
                aside = self._temporary_name()
                moves[name] = f"{aside}_id" if column.is_reference else aside
        return moves

    def _temporary_name(self) -> str:
        self._aside += 1
        return f"_dropped_{self._aside}"

    def _fail(self, field: str, message: str) -> None:
        self.errors.append(FieldError(field, "unknown", message))

    def _moved_table(self, old: Table, moved: Mapping[str, str]) -> Table:
        at = self.middle_names[old.name]
        columns = {}
        for name, column in old.columns.items():
            now = moved[name]
            key = now.removesuffix("_id") if column.is_reference or column.is_user else now
            target = self.middle_names[column.references] if column.references else None
            columns[now] = replace(column, name=now, key=key, references=target)
        return Table(
            name=at,
            columns=columns,
            unique=tuple(tuple(moved[name] for name in unique) for unique in old.unique),
            indexes=tuple(_moved_index(spec, moved) for spec in old.indexes),
            checks=old.checks,
        )

    def _converted(self, middle: Table, new: Table) -> Table:
        columns = dict(middle.columns)
        for name in self.columns[new.name]:
            was, becomes = columns[name], new.columns[name]
            if was.type == becomes.type and (was.max_length is None) == (becomes.max_length is None):
                columns[name] = replace(was, key=becomes.key)
                continue
            if conversion(was, becomes) is None:
                self.errors.append(
                    FieldError(
                        f"tables.{new.name}.columns.{becomes.key}.type",
                        "invalid",
                        f"{was.type} cannot become {becomes.type}; drop the column and add another",
                    )
                )
                continue
            columns[name] = self._convert(new.name, was, becomes)
        return replace(middle, columns=columns)

    def _convert(self, table: str, was: Column, becomes: Column) -> Column:
        def alter(change: sql.SQL, *named: str) -> None:
            text = sql.SQL("ALTER TABLE {} ").format(sql.Identifier(table)) + change.format(*map(sql.Identifier, named))
            self._add_statement(f"alter column {table}.{becomes.key}", self.tables[table], text)

        if was.default is not None:  # PostgreSQL would have to convert it too, and often cannot
            alter(sql.SQL("ALTER COLUMN {} DROP DEFAULT"), was.name)
        if was.is_reference:
            alter(sql.SQL("DROP CONSTRAINT {}"), table_models.foreign_key_name(table, was.name))
        if becomes.is_reference:
            if table_models.check_of(was) is not None:
                alter(sql.SQL("DROP CONSTRAINT {}"), table_models.check_name(table, was.name))
            if was.max_length is not None:
                alter(sql.SQL("ALTER COLUMN {} TYPE text COLLATE {}"), was.name, table_models.COLLATION)
            self.unconstrained.add((table, was.name))
            # Pointing to itself until the autodetector points it to the table that may not exist yet.
            return Column(
                was.name, becomes.key, "reference", null=was.null, references=table, on_delete=becomes.on_delete
            )
        if was.is_reference:
            return Column(was.name, becomes.key, "text", null=was.null)
        return replace(was, key=becomes.key, default=None)

    def _add_statement(self, operation: str, table: str, text: sql.Composable) -> None:
        self.statements.append(Statement(operation, table, text.as_string(None)))

    def _table_operation(self, old_name: str) -> str:
        middle_name = self.middle_names[old_name]
        return f"rename table {old_name} to {middle_name}" if middle_name in self.tables else f"drop table {old_name}"

    def _column_operation(self, old_name: str, column: str, now: str) -> str:
        table = self.middle_names[old_name]
        shown = f"column {table}.{self.old.tables[old_name].columns[column].key}"
        new = self.new.tables[table].columns.get(now)
        return f"rename {shown} to {new.key}" if new else f"drop {shown}"

    def _rename_tables(self) -> None:
        moves = {
            old_name: middle_name for old_name, middle_name in self.middle_names.items() if old_name != middle_name
        }
        for source, target, old_name in _in_order(moves):
            statement = sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier(source), sql.Identifier(target))
            self._add_statement(self._table_operation(old_name), old_name, statement)

    def _rename_columns(self, old_name: str, moved: Mapping[str, str]) -> None:
        moves = {name: now for name, now in moved.items() if name != now}
        for source, target, name in _in_order(moves):
            statement = sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(
                sql.Identifier(self.middle_names[old_name]), sql.Identifier(source), sql.Identifier(target)
            )
            self._add_statement(self._column_operation(old_name, name, moved[name]), old_name, statement)

    def _rename_objects(self, middle: Mapping[str, Table], moved: Mapping[str, Mapping[str, str]]) -> None:
        indexes: dict[str, str] = {}
        reasons: dict[str, tuple[str, str]] = {}
        for old_name, old_table in self.old.tables.items():
            at = middle[self.middle_names[old_name]]
            constraints: dict[str, str] = {}
            for (was, columns, is_index), (now, _, _) in zip(
                _named_objects(old_table), _named_objects(at), strict=True
            ):
                if was != now:
                    (indexes if is_index else constraints)[was] = now
                    reasons[was] = (self._reason(old_name, moved[old_name], columns), old_name)
            self._rename_each(constraints, reasons, at.name)
        self._rename_each(indexes, reasons, None)

    def _rename_each(self, moves: Mapping[str, str], reasons: Mapping[str, tuple[str, str]], table: str | None) -> None:
        for source, target, was in _in_order(moves):
            operation, old_name = reasons[was]
            pair = (sql.Identifier(source), sql.Identifier(target))
            if table is None:
                # It may still be waiting to be made (rows.migrate.concurrent_indexes).
                statement = sql.SQL("ALTER INDEX IF EXISTS {} RENAME TO {}").format(*pair)
            else:
                statement = sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(sql.Identifier(table), *pair)
            self._add_statement(operation, old_name, statement)

    def _reason(self, old_name: str, moved: Mapping[str, str], columns: Iterable[str]) -> str:
        if self.middle_names[old_name] != old_name:
            return self._table_operation(old_name)
        name = next(name for name in columns if moved[name] != name)
        return self._column_operation(old_name, name, moved[name])


def _named_objects(table: Table) -> Iterator[tuple[str, Sequence[str], bool]]:
    """Each name, its columns, and whether it is an index (of a primary key or unique, too) or another constraint."""
    yield table_models.primary_key_name(table.name), (), True
    for unique in table.unique:
        yield table_models.unique_name(table.name, unique), unique, True
    for spec in table.indexes:
        yield table_models.index_name(table.name, spec), [key.column for key in spec.keys], True
    for check in table.checks:
        yield constraint_name(table.name, check), (), False
    for name, column in table.columns.items():
        if column.is_reference:
            yield table_models.foreign_key_name(table.name, name), [name], False
        elif table_models.check_of(column) is not None:
            yield table_models.check_name(table.name, name), [name], False


def _moved_index(spec: IndexSpec, moved: Mapping[str, str]) -> IndexSpec:
    return IndexSpec(tuple(replace(key, column=moved[key.column]) for key in spec.keys))
