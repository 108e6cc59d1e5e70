"""Inserts rows, or updates those whose key exists: `id` or the columns of one of the table's uniques. Only rows that
the caller sees and may update are updated: a key of a hidden row is taken, as for an insert, and unreadable values are
not looked for. docs/reference/rows.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction

from platform_site.http.errors import Conflict, NotFound, ValidationFailed
from rows.query.context import MAX_RUNS, QueryContext
from rows.query.params import DEFAULT_ORDER
from rows.query.service import RowResult
from rows.query.sql import select
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import LIMIT, ROW_ID, Cell
from rows.rules.conditions import Compare, Condition, Operand, Path, Slot, all_of
from rows.schema.model import ID, SQL_TYPES
from rows.write import inserts, update_operators
from rows.write import service as write_service
from rows.write.errors import check_answer_size
from rows.write.pending_write import PendingInsert
from rows.write.statements import writes


@dataclass(frozen=True, slots=True)
class Upserted:
    row: RowResult
    is_new: bool


def upsert(context: QueryContext, name: str, body: Any, key: str) -> Upserted:
    """As `upsert_many`. Fields of errors are not numbered."""
    try:
        [made] = upsert_many(context, name, [body], key)
    except ValidationFailed as error:
        error.fields = [replace(field, field=field.field.removeprefix("0.")) for field in error.fields]
        raise
    return made


def upsert_many(context: QueryContext, name: str, bodies: Sequence[Any], key: str) -> list[Upserted]:
    """1 to MAX_ROWS rows, all or none. Each body must be valid for an insert. A row with a null in its key, or without
    its `id`, is inserted. Raises NotFound, ValidationFailed on `on_conflict` for another key and on the fields of rows
    as `insert_many`, and Conflict for an existing row that may not be updated."""
    inserts.check_count(bodies)
    columns = _key_columns(context, name, key)
    pending_writes = inserts.new_rows(context, name, bodies)
    _refuse_computed(pending_writes, bodies, columns)
    return _Upsert(context, name, columns, bodies, pending_writes).run()


def _key_columns(context: QueryContext, name: str, key: str) -> tuple[str, ...]:
    """Raises NotFound, and ValidationFailed if no unique that the caller may know has these columns."""
    table, _ = context.table(name)
    known = frozenset(context.resolver.columns(name))
    keys = [(ID.name,), *(unique for unique in table.unique if known.issuperset(unique))]
    wanted = {column.strip() for column in key.split(",", len(table.all_columns))}
    for columns in keys:
        if set(columns) == wanted:
            return columns
    choice = ", or ".join(",".join(columns) for columns in keys)
    raise ValidationFailed.of("on_conflict", "not_unique", f"Must name a unique constraint: {choice}.")


def _refuse_computed(
    pending_writes: Sequence[PendingInsert], bodies: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> None:
    """No row can be found by an operator."""
    for number, (pending, body) in enumerate(zip(pending_writes, bodies, strict=True)):
        for name in key:
            if pending.table.all_columns[name].type in update_operators.OPERATORS and isinstance(body.get(name), dict):
                message = "An `on_conflict` column needs a plain value, not an operator."
                raise ValidationFailed.of(f"{number}.{name}", "misplaced", message)


@dataclass(frozen=True, slots=True)
class _Upsert:
    context: QueryContext
    name: str
    key: tuple[str, ...]
    bodies: Sequence[Mapping[str, Any]]
    pending_writes: Sequence[PendingInsert]

    def run(self) -> list[Upserted]:
        existing = self._existing_ids()
        for _ in range(MAX_RUNS - 1):
            try:
                return self._write(existing)
            except (Conflict, NotFound, ValidationFailed):
                # Somebody may have inserted or deleted one of them since it was looked for.
                before, existing = existing, self._existing_ids()
                if existing == before:
                    raise
        return self._write(existing)

    def _existing_ids(self) -> dict[int, str]:
        """By the number of the body with their key. Raises ValidationFailed if two have one key."""
        existing: dict[int, str] = {}
        for number, pending in enumerate(self.pending_writes):
            if pending.access.read is None:
                continue  # the insert tells that a key is taken
            if self.key == (ID.name,) and ID.name not in self.bodies[number]:
                continue
            found = self._find(pending)
            if found in existing.values():
                message = "An earlier one of these rows has the same key."
                raise ValidationFailed.of(f"{number}.{self.key[-1]}", "taken", message)
            if found is not None:
                existing[number] = found
        return existing

    def _find(self, pending: PendingInsert) -> str | None:
        key = self._key_of(pending)
        if key is None:
            return None
        where, filter_values = key
        shape = ReadShape(pending.table.name, where, DEFAULT_ORDER, columns=(ID.name,))
        rows = self.context.read(self.context.statement(select.read, shape), {LIMIT: b"1"}, filter_values)
        if not rows:
            self.context.verify()
            return None
        _, row_id = rows[0]  # the row as JSON, and what a cursor would name
        return (row_id or b"").decode()

    def _still_has_key(self, pending: PendingInsert, row_id: str) -> bool:
        """Locks the row that has the key now: another transaction may have changed it since it was found."""
        key = self._key_of(pending)
        if key is None or self.key == (ID.name,):  # an id is for good
            return True
        where, filter_values = key
        statement = self.context.statement(writes.select_rows, pending.table.name, "update", where, False)
        rows = self.context.write(statement, {LIMIT: b"1"}, filter_values)
        return rows == [(row_id.encode(),)]

    def _key_of(self, pending: PendingInsert) -> tuple[Condition, list[bytes]] | None:
        """The condition that a row has the key, and its values; None where no row can have it."""
        table, rule = pending.table, pending.access.insert
        forced: Mapping[str, Operand | None] = rule.set if rule else {}
        conditions: list[Condition] = []
        filter_values: list[bytes] = []
        for column in self.key:
            operand = forced.get(column)
            wire = pending.named.get(ROW_ID if column == ID.name else Cell(column))
            if wire is not None:
                operand = Slot(len(filter_values), SQL_TYPES[table.all_columns[column].type])
                filter_values.append(wire)
            if operand is None:
                return None  # no null is equal to another, and no row has the time of this write
            conditions.append(Compare(Path((), column), "eq", operand))
        return all_of(conditions), filter_values

    def _write(self, existing: Mapping[int, str]) -> list[Upserted]:
        new = {number: pending for number, pending in enumerate(self.pending_writes) if number not in existing}
        with transaction.atomic(using=self.context.compiled.alias):
            made = inserts.insert_all(self.context, new)
            # By id, so that two batches with rows in common wait for each other and do not deadlock.
            for row_id, number in sorted((row_id, number) for number, row_id in existing.items()):
                made[number] = self._update(number, row_id)
                check_answer_size(made.values())
        return [Upserted(made[number], number in new) for number in range(len(self.pending_writes))]

    def _update(self, number: int, row_id: str) -> RowResult:
        changes = {column: value for column, value in self.bodies[number].items() if column not in self.key}
        if changes.get(ID.name) == row_id:
            del changes[ID.name]  # another one is refused: an id is for good
        refusal = Conflict(f"The row {row_id} exists, and you have no permission to update it.")
        pending = self.pending_writes[number]
        if pending.access.update is None or not self._still_has_key(pending, row_id):
            raise refusal
        try:
            with inserts.numbered(number):
                return write_service.update(self.context, self.name, row_id, changes)
        except NotFound as error:
            raise refusal from error
