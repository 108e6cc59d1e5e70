"""Plans the operations between two schemas. Renames come first, by our own SQL (`rows.migrate.planning.renames`), then
what Django's autodetector finds, then what Django does not see (rules, id prefixes). Pure: `rows.migrate.apply` runs a
plan. docs/adr/0002-schema-changes.md."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from django.db.migrations import operations as migrations
from django.db.migrations.operations.base import Operation as DjangoOperation

from rows.migrate.planning import renames
from rows.migrate.planning.detection import column_of, detect, model_of
from rows.migrate.planning.plan import Gap, NewCheck, NewUnique, Plan, Step
from rows.query.tables import table_models
from rows.query.tables.table_checks import constraint_name
from rows.rules import checks
from rows.rules.named_conditions import Name, used_by_rules
from rows.rules.principal import ANONYMOUS, MEMBER, SERVER, USER
from rows.schema.model import ID, SQL_TYPES, Column, IndexSpec, Schema, Table
from rows.schema.user_fields import UserFields, visible_to

_RULES_SHOWN = 20


def plan(old: Schema, new: Schema) -> Plan:
    """Raises InvalidDocument for a rename of nothing or an impossible type change."""
    return _Planning(old, new).result()


class _Planning:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self.renamed = renames.rename(old, new)
        self.middle = self.renamed.schema
        tables = [*self.middle.tables.values(), *new.tables.values()]
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
            constraint_name(table, check): check
            for of_schema in (self.renamed.checks, self.new_table_checks)
            for table, found in of_schema.items()
            for check in found
        }

    def result(self) -> Plan:
        operations = detect(self.renamed, self.new)
        self.dropped = {op.name for op in operations if isinstance(op, migrations.DeleteModel)}
        steps = tuple(self._step(operation) for operation in operations)
        altered = {was for step in steps if (was := self.renamed.was_table.get(model_of(step.django)))}
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
            new_checks=tuple(self._new_checks(steps)),
            new_uniques=tuple(self._new_uniques(steps)),
            exclusive=frozenset(exclusive | formerly_referenced),
            guarded=frozenset(pointed_to - exclusive - formerly_referenced),
        )

    def _step(self, operation: DjangoOperation) -> Step:
        at = model_of(operation)
        table = at if at in self.new.tables else self.renamed.was_table[at]  # a temporary name is not shown
        path = f"tables.{table}"
        added = isinstance(operation, migrations.AddField | migrations.AddIndex | migrations.AddConstraint)
        verb = "add" if added else "drop"
        match operation:
            case migrations.CreateModel():
                return Step(operation, f"create table {table}", path)
            case _ if at in self.dropped:  # Django drops the references first; users see one operation
                return Step(operation, f"drop table {table}", path)
            case migrations.AddField() | migrations.AlterField():
                column = column_of(self.new.tables[at], operation.name)
                verb = "add" if added else "alter"
                return Step(operation, f"{verb} column {table}.{column.key}", f"{path}.columns.{column.key}", column)
            case migrations.RemoveField():
                column = column_of(self.middle.tables[at], operation.name)
                was = self.old.tables[self.renamed.was_table[at]].columns[self.renamed.was_column[at, column.name]]
                return Step(operation, f"drop column {table}.{was.key}", f"{path}.columns.{was.key}")
            case migrations.AddIndex() | migrations.RemoveIndex():
                spec = self.index_names[operation.index.name if added else operation.name]  # type: ignore[union-attr]
                called = f"{verb} index {table} ({self._spelled(at, spec)})"
                columns = tuple(self._was(at, key.column) for key in spec.keys if key.column != ID.name)
                return Step(operation, called, f"{path}.indexes", columns=columns)
            case migrations.AddConstraint() | migrations.RemoveConstraint():
                name = operation.constraint.name if added else operation.name  # type: ignore[union-attr]
                if name in self.unique_names:
                    columns = tuple(self._was(at, column) for column in self.unique_names[name])
                    called = f"{verb} unique {table} ({', '.join(columns)})"
                    return Step(operation, called, f"{path}.unique", columns=columns)
                if name in self.table_check_names:
                    check = self.table_check_names[name]
                    called = f"{verb} check {table}.{check}"
                    return Step(operation, called, f"{path}.checks.{check}")
                key, new = self.check_names[name], self.new.tables.get(at)
                column = (new.columns.get(key) if new else None) or self.middle.tables[at].columns[key]
                return Step(operation, f"alter column {table}.{column.key}", f"{path}.columns.{column.key}")
            case _:
                raise NotImplementedError(f"the autodetector planned {operation!r}")

    def _was(self, at: str, column: str) -> str:
        return self.renamed.was_column[at, column] if column.startswith("_") else column

    def _spelled(self, at: str, spec: IndexSpec) -> str:
        return ", ".join(str(key).replace(key.column, self._was(at, key.column), 1) for key in spec.keys)

    def _pairs(self) -> Iterator[tuple[Table, Table, Column, Column]]:
        for name, was in self.renamed.tables.items():
            old, new = self.old.tables[was], self.new.tables[name]
            for column, column_was in self.renamed.columns[name].items():
                yield old, new, old.columns[column_was], new.columns[column]

    def _destructive(self, steps: Collection[Step]) -> Iterator[str]:
        for step in steps:
            if step.name.startswith(("drop table ", "drop column ")):
                yield step.name
        for _, new, was, becomes in self._pairs():
            if renames.conversion(was, becomes) == "lossy":
                yield f"alter column {new.name}.{becomes.key}"

    def _gaps(self) -> Iterator[Gap]:
        for name, was in self.renamed.tables.items():
            for column in self.new.tables[name].columns.values():
                if column.null or column.default is not None or column.backfill is not None:
                    continue
                continued = self.renamed.columns[name].get(column.name)
                if continued is None or self.old.tables[was].columns[continued].null:
                    yield Gap(was, continued, f"tables.{name}.columns.{column.key}")

    def _added_constraints(self, steps: Collection[Step]) -> Iterator[tuple[Step, str, str]]:
        """Those of existing tables, with the table and the constraint's name."""
        for step in steps:
            at = model_of(step.django)
            if isinstance(step.django, migrations.AddConstraint) and at in self.renamed.tables:
                yield step, at, step.django.constraint.name

    def _new_checks(self, steps: Collection[Step]) -> Iterator[NewCheck]:
        for step, at, name in self._added_constraints(steps):
            was, table = self.renamed.columns[at], self.renamed.tables[at]
            if name in self.check_names:
                column = self.new.tables[at].columns[self.check_names[name]]
                if self._keeps_type(at, column.name):
                    yield NewCheck(table, replace(column, name=was[column.name]), step.path)
            elif name in self.table_check_names:
                condition = self.new_table_checks[at][self.table_check_names[name]]
                if all(self._keeps_type(at, column) for column in checks.columns_of(condition)):
                    yield NewCheck(table, checks.renamed(condition, was), step.path)

    def _continued(self, at: str, name: str) -> tuple[Column | None, Column]:
        """The old column that a column of the existing table `at` continues, and that column."""
        becomes, was = self.new.tables[at].all_columns[name], self.renamed.columns[at].get(name)
        if becomes.implicit:
            return becomes, becomes
        return self.old.tables[self.renamed.tables[at]].columns[was] if was else None, becomes

    def _keeps_type(self, at: str, column: str) -> bool:
        was, becomes = self._continued(at, column)
        return was is not None and SQL_TYPES[was.type] == SQL_TYPES[becomes.type]

    def _new_uniques(self, steps: Collection[Step]) -> Iterator[NewUnique]:
        for step, at, name in self._added_constraints(steps):
            columns = self.unique_names.get(name)
            if columns is not None and all(self._keeps_values(at, column) for column in columns):
                yield NewUnique(
                    step=step,
                    constraint=name,
                    table=self.renamed.tables[at],
                    columns=tuple(self.renamed.columns[at].get(column, column) for column in columns),
                    index=table_models.new_unique_name(at, columns),
                )

    def _keeps_values(self, at: str, column: str) -> bool:
        was, becomes = self._continued(at, column)
        if was is None or (was.type, was.max_length) != (becomes.type, becomes.max_length):
            return False
        return becomes.null or not was.null

    def _targets(self, operations: Collection[Any]) -> tuple[set[str], set[str]]:
        """Existing tables, by old name, that gain or lose foreign keys to them."""
        pointed_to: set[str] = set()
        formerly_referenced: set[str] = set()

        def targets(schema: Schema, operation: Any) -> set[str]:
            table = schema.tables[model_of(operation)]
            is_table = isinstance(operation, migrations.CreateModel | migrations.DeleteModel)
            columns = table.columns.values() if is_table else [column_of(table, operation.name)]
            return {was for column in columns if (was := self.renamed.was_table.get(column.references or ""))}

        for operation in operations:
            if isinstance(operation, migrations.CreateModel | migrations.AddField | migrations.AlterField):
                pointed_to |= targets(self.new, operation)
            if isinstance(operation, migrations.DeleteModel | migrations.RemoveField | migrations.AlterField):
                formerly_referenced |= targets(self.middle, operation)
        for old, _, was, becomes in self._pairs():
            if was.is_reference and not becomes.is_reference and was.references:
                formerly_referenced |= {was.references, old.name}
        return pointed_to, formerly_referenced

    def _changed_condition(self, was: str, table: str, condition: str) -> str:
        before, after = self._rules_by_condition
        listed = sorted({*before.get((was, condition), ()), *after.get((table, condition), ())})
        more = f" and {len(listed) - _RULES_SHOWN} more" if len(listed) > _RULES_SHOWN else ""
        affected = f"; affects {', '.join(listed[:_RULES_SHOWN])}{more}" if listed else ""
        return f"change condition {condition} of {table}{affected}"

    @cached_property
    def _rules_by_condition(self) -> tuple[Mapping[Name, list[str]], Mapping[Name, list[str]]]:
        return used_by_rules(self.old), used_by_rules(self.new)

    def _notes(self) -> Iterator[str]:
        yield from _user_field_notes(self.old.users, self.new.users)
        for name, table in self.new.tables.items():
            was = self.old.tables.get(self.renamed.tables.get(name, ""))
            if was is None:
                continue
            if was.rules != table.rules:
                yield f"change rules of {name}"
            for condition in sorted(was.conditions.keys() | table.conditions.keys()):
                if was.conditions.get(condition) != table.conditions.get(condition):
                    yield self._changed_condition(was.name, name, condition)
            if was.id_prefix != table.id_prefix:
                yield f"change id prefix of {name}"
        for _, new, column_was, becomes in self._pairs():
            facts = (column_was.on_user_delete, column_was.related_name, column_was.is_user)
            if facts != (becomes.on_user_delete, becomes.related_name, becomes.is_user):
                yield f"alter column {new.name}.{becomes.key}"


def user_field_changes(old: UserFields, new: UserFields) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Each role that sees other fields of users than before: those that it gains, and those that it loses."""
    for role in sorted(old.keys() | new.keys()):
        base = role if role in (USER, MEMBER, SERVER, ANONYMOUS) else USER
        before, after = visible_to(old, role, base), visible_to(new, role, base)
        more = tuple(name for name in after if name not in before)
        less = tuple(name for name in before if name not in after)
        if more or less:
            yield role, more, less


def shows_more_of_users(old: UserFields, new: UserFields) -> bool:
    return any(more for _, more, _ in user_field_changes(old, new))


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
