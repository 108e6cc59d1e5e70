"""Plans the operations between two schemas. Renames come first, by our own SQL, then what Django's autodetector finds,
then what Django does not see (rules, id prefixes). docs/adr/0002-schema-changes.md."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from django.db.migrations import operations as migrations
from django.db.migrations.operations.base import Operation as DjangoOperation
from psycopg import sql

from rows.migrate.planning import renames
from rows.migrate.planning.conversions import conversion
from rows.migrate.planning.detection import column_of, detect, model_of
from rows.migrate.planning.plan import AddedUnique, Gap, NewCheck, Plan, Step
from rows.query.tables import table_checks, table_models
from rows.rules import checks
from rows.rules.named_conditions import Name, used_by_rules
from rows.rules.principal import BUILT_IN_ROLES, USER
from rows.schema.model import ID, SQL_TYPES, Column, Schema, Table
from rows.schema.user_fields import UserFields, visible_to

_RULES_SHOWN = 20


def plan(old: Schema, new: Schema) -> Plan:
    """Raises InvalidDocument for a rename of nothing or an impossible type change."""
    return _Planning(old, new).result()


class _Planning:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self.renamed = renames.rename(old, new)
        tables = [*self.renamed.schema.tables.values(), *new.tables.values()]
        self.unique_names = {
            table_models.unique_name(table.name, columns): columns for table in tables for columns in table.unique
        }
        self.index_names = {
            table_models.index_name(table.name, spec): spec for table in tables for spec in table.indexes
        }
        self.check_names = {
            table_models.check_name(table.name, column): column for table in tables for column in table.columns
        }
        self.new_table_checks = table_models.checks_of(new)
        self.table_check_names = {
            table_checks.constraint_name(table, check): check
            for of_schema in (self.renamed.checks, self.new_table_checks)
            for table, found in of_schema.items()
            for check in found
        }

    def result(self) -> Plan:
        operations = detect(self.renamed, self.new)
        self.dropped = {op.name for op in operations if isinstance(op, migrations.DeleteModel)}
        self.added = {
            (model_of(op), column_of(self.new.tables[model_of(op)], op.name).name)
            for op in operations
            if isinstance(op, migrations.AddField)
        }
        steps = tuple(self._step(operation) for operation in operations)
        altered = {name for step in steps if (name := self.renamed.old_tables.get(model_of(step.django)))}
        exclusive = altered | {statement.table for statement in self.renamed.statements}
        pointed_to, formerly_referenced = self._targets(operations)
        return Plan(
            old=self.old,
            new=self.new,
            renamed=self.renamed,
            steps=steps,
            notes=tuple(dict.fromkeys(self._notes())),
            destructive=frozenset(self._destructive(steps)),
            gaps=tuple(self._gaps()),
            new_checks=(*self._new_checks(steps), *self._new_lengths()),
            added_uniques=tuple(self._added_uniques(steps)),
            exclusive=frozenset(exclusive | formerly_referenced),
            guarded=frozenset(pointed_to - exclusive - formerly_referenced),
        )

    def _step(self, operation: DjangoOperation) -> Step:
        model = model_of(operation)
        table = model if model in self.new.tables else self.renamed.old_tables[model]  # a temporary name is not shown
        path = f"tables.{table}"
        added = isinstance(operation, migrations.AddField | migrations.AddIndex | migrations.AddConstraint)
        verb = "add" if added else "drop"
        match operation:
            case migrations.CreateModel():
                return Step(operation, f"create table {table}", path)
            case _ if model in self.dropped:  # Django drops the references first; users see one operation
                return Step(operation, f"drop table {table}", path)
            case migrations.AddField() | migrations.AlterField():
                column = column_of(self.new.tables[model], operation.name)
                verb = "add" if (model, column.name) in self.added else "alter"  # also for a default or check of it
                return Step(operation, f"{verb} column {table}.{column.key}", f"{path}.columns.{column.key}", column)
            case migrations.RemoveField():
                key = self._old_key(model, column_of(self.renamed.schema.tables[model], operation.name).name)
                return Step(operation, f"drop column {table}.{key}", f"{path}.columns.{key}")
            case migrations.AddIndex() | migrations.RemoveIndex():
                spec = self.index_names[operation.index.name if added else operation.name]  # type: ignore[union-attr]
                keys = ", ".join(str(key).replace(key.column, self._shown(model, key.column), 1) for key in spec.keys)
                called = f"{verb} index {table} ({keys})"
                columns = tuple(self._shown(model, key.column) for key in spec.keys if key.column != ID.name)
                return Step(operation, called, f"{path}.indexes", columns=columns)
            case migrations.AddConstraint() | migrations.RemoveConstraint():
                name = operation.constraint.name if added else operation.name  # type: ignore[union-attr]
                if name in self.unique_names:
                    columns = tuple(self._shown(model, column) for column in self.unique_names[name])
                    called = f"{verb} unique {table} ({', '.join(columns)})"
                    return Step(operation, called, f"{path}.unique", columns=columns)
                if name in self.table_check_names:
                    check = self.table_check_names[name]
                    called = f"{verb} check {table}.{check}"
                    return Step(operation, called, f"{path}.checks.{check}")
                key, new = self.check_names[name], self.new.tables[model]
                if key not in new.columns:
                    old_key = self._old_key(model, key)
                    return Step(operation, f"drop column {table}.{old_key}", f"{path}.columns.{old_key}")
                verb = "add" if added and (model, key) in self.added else "alter"
                shown = new.columns[key].key
                return Step(operation, f"{verb} column {table}.{shown}", f"{path}.columns.{shown}")
            case _:
                raise NotImplementedError(f"the autodetector planned {operation!r}")

    def _old_key(self, model: str, column: str) -> str:
        old_table = self.old.tables[self.renamed.old_tables[model]]
        return old_table.columns[self.renamed.old_columns[model, column]].key

    def _shown(self, model: str, column: str) -> str:
        return self.renamed.old_columns[model, column] if column.startswith("_") else column

    def _kept_columns(self) -> Iterator[tuple[Table, Table, Column, Column]]:
        """The old and the new table and column."""
        for name, old_name in self.renamed.kept_tables.items():
            old, new = self.old.tables[old_name], self.new.tables[name]
            for column, old_column in self.renamed.kept_columns[name].items():
                yield old, new, old.columns[old_column], new.columns[column]

    def _destructive(self, steps: Collection[Step]) -> Iterator[str]:
        for step in steps:
            if step.name.startswith(("drop table ", "drop column ")):
                yield step.name
        for _, table, old, new in self._kept_columns():
            if conversion(old, new) == "lossy":
                yield f"alter column {table.name}.{new.key}"

    def _gaps(self) -> Iterator[Gap]:
        for name, old_name in self.renamed.kept_tables.items():
            for column in self.new.tables[name].columns.values():
                if column.null or column.default is not None or column.backfill is not None:
                    continue
                old_column = self.renamed.kept_columns[name].get(column.name)
                if old_column is None or self.old.tables[old_name].columns[old_column].null:
                    yield Gap(old_name, old_column, f"tables.{name}.columns.{column.key}")

    def _added_constraints(self, steps: Collection[Step]) -> Iterator[tuple[Step, str, str]]:
        """Those of existing tables, with the table and the constraint's name."""
        for step in steps:
            table = model_of(step.django)
            if isinstance(step.django, migrations.AddConstraint) and table in self.renamed.kept_tables:
                yield step, table, step.django.constraint.name

    def _new_checks(self, steps: Collection[Step]) -> Iterator[NewCheck]:
        for step, table, name in self._added_constraints(steps):
            old_names, old_table = self.renamed.kept_columns[table], self.renamed.kept_tables[table]
            if name in self.check_names:
                column = self.new.tables[table].columns[self.check_names[name]]
                if self._keeps_type(table, column.name):
                    yield NewCheck(old_table, replace(column, name=old_names[column.name]), step.path)
            elif name in self.table_check_names:
                condition = self.new_table_checks[table][self.table_check_names[name]]
                if all(self._keeps_type(table, column) for column in checks.columns_of(condition)):
                    text = table_checks.text_of(self.old.tables[old_table], checks.renamed(condition, old_names))
                    yield NewCheck(old_table, sql.SQL(text), step.path)

    def _new_lengths(self) -> Iterator[NewCheck]:
        for old_table, table, old, new in self._kept_columns():
            is_text = SQL_TYPES[old.type] == SQL_TYPES[new.type] == "text"
            if is_text and new.max_length is not None and (old.max_length is None or old.max_length > new.max_length):
                fits = sql.SQL("char_length({}) <= {}").format(sql.Identifier(old.name), sql.Literal(new.max_length))
                path = f"tables.{table.name}.columns.{new.key}"
                yield NewCheck(old_table.name, fits, path, "existing rows have longer values")

    def _added_uniques(self, steps: Collection[Step]) -> Iterator[AddedUnique]:
        for step, table, name in self._added_constraints(steps):
            columns = self.unique_names.get(name, ())
            if columns and all(self._keeps_type(table, column) for column in columns):
                old_names = self.renamed.kept_columns[table]
                yield AddedUnique(
                    step=step,
                    constraint=name,
                    table=self.renamed.kept_tables[table],
                    columns=tuple(old_names.get(column, column) for column in columns),
                    index=table_models.new_unique_name(table, columns),
                    keeps_values=all(self._keeps_values(table, column) for column in columns),
                )

    def _old_and_new(self, table: str, name: str) -> tuple[Column | None, Column]:
        """The column `name` of the kept table `table`, before and after."""
        new, old_name = self.new.tables[table].all_columns[name], self.renamed.kept_columns[table].get(name)
        if new.implicit:
            return new, new
        return self.old.tables[self.renamed.kept_tables[table]].columns[old_name] if old_name else None, new

    def _keeps_type(self, table: str, column: str) -> bool:
        old, new = self._old_and_new(table, column)
        return old is not None and SQL_TYPES[old.type] == SQL_TYPES[new.type]

    def _keeps_values(self, table: str, column: str) -> bool:
        old, new = self._old_and_new(table, column)
        if old is None or (old.type, old.max_length) != (new.type, new.max_length):
            return False
        return new.null or not old.null

    def _targets(self, operations: Collection[Any]) -> tuple[set[str], set[str]]:
        """Existing tables, by old name, that gain or lose foreign keys to them."""
        pointed_to: set[str] = set()
        formerly_referenced: set[str] = set()

        def targets(schema: Schema, operation: Any) -> set[str]:
            table = schema.tables[model_of(operation)]
            is_table = isinstance(operation, migrations.CreateModel | migrations.DeleteModel)
            columns = table.columns.values() if is_table else [column_of(table, operation.name)]
            return {name for column in columns if (name := self.renamed.old_tables.get(column.references or ""))}

        for operation in operations:
            if isinstance(operation, migrations.CreateModel | migrations.AddField | migrations.AlterField):
                pointed_to |= targets(self.new, operation)
            if isinstance(operation, migrations.DeleteModel | migrations.RemoveField | migrations.AlterField):
                formerly_referenced |= targets(self.renamed.schema, operation)
        for old_table, _, old, new in self._kept_columns():
            if old.is_reference and not new.is_reference and old.references:
                formerly_referenced |= {old.references, old_table.name}
        return pointed_to, formerly_referenced

    def _changed_condition(self, old_table: str, table: str, condition: str) -> str:
        before, after = self._rules_by_condition
        listed = sorted({*before.get((old_table, condition), ()), *after.get((table, condition), ())})
        more = f" and {len(listed) - _RULES_SHOWN} more" if len(listed) > _RULES_SHOWN else ""
        affected = f"; affects {', '.join(listed[:_RULES_SHOWN])}{more}" if listed else ""
        return f"change condition {condition} of {table}{affected}"

    @cached_property
    def _rules_by_condition(self) -> tuple[Mapping[Name, list[str]], Mapping[Name, list[str]]]:
        return used_by_rules(self.old), used_by_rules(self.new)

    def _notes(self) -> Iterator[str]:
        yield from _user_field_notes(self.old.users, self.new.users)
        for name, old_name in self.renamed.kept_tables.items():
            old_table, table = self.old.tables[old_name], self.new.tables[name]
            if old_table.rules != table.rules:
                yield f"change rules of {name}"
            for condition in sorted(old_table.conditions.keys() | table.conditions.keys()):
                if old_table.conditions.get(condition) != table.conditions.get(condition):
                    yield self._changed_condition(old_name, name, condition)
            if old_table.id_prefix != table.id_prefix:
                yield f"change id prefix of {name}"
        for _, table, old, new in self._kept_columns():
            facts = (old.on_user_delete, old.related_name, old.is_user)
            if facts != (new.on_user_delete, new.related_name, new.is_user):
                yield f"alter column {table.name}.{new.key}"


def user_field_changes(old: UserFields, new: UserFields) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Each role that sees other fields of users than before: those that it gains, and those that it loses."""
    for role in sorted(old.keys() | new.keys()):
        base = role if role in BUILT_IN_ROLES else USER
        before, after = visible_to(old, role, base), visible_to(new, role, base)
        more = tuple(name for name in after if name not in before)
        less = tuple(name for name in before if name not in after)
        if more or less:
            yield role, more, less


def _user_field_notes(old: UserFields, new: UserFields) -> Iterator[str]:
    """Such as `widen users.anonymous: name` and `narrow …`."""
    changes = list(user_field_changes(old, new))
    for role, more, less in changes:
        if more:
            yield f"widen users.{role}: {', '.join(more)}"
        if less:
            yield f"narrow users.{role}: {', '.join(less)}"
    if old != new and not changes:
        yield "change users"
