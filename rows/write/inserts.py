import uuid
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from django.db import transaction

from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.http.fields import WHOLE_BODY
from platform_site.identity import ids
from rows.query.context import QueryContext
from rows.query.role_view import RoleView
from rows.query.service import RowResult
from rows.query.sql.row_json import MAX_ANSWER_BYTES
from rows.query.sql.statement import ROW_ID, Cell
from rows.schema import column_values, literals, values
from rows.schema.model import ID, MAX_ERRORS, NOW, SQL_TYPES, Column, Table
from rows.write import body_parsing, row_size
from rows.write.errors import (
    WriteRefused,
    check_answer_size,
    check_written,
    too_large,
    unknown_users,
    unseen_references,
)
from rows.write.execution import persist, read_back
from rows.write.insert_pipeline import NotInOneTrip, insert_in_one_trip
from rows.write.pending_write import Named, PendingInsert, PendingWrite, result_of
from rows.write.statements import writes
from rows.write.statements.shapes import InsertShape

MAX_ROWS: Final = 100


def insert(context: QueryContext, name: str, body: Any) -> RowResult:
    """Raises NotFound, ValidationFailed naming every invalid column, and Conflict for an id that is taken."""
    pending, _ = new_row(context, name, body)
    return _insert_one(context, pending)


def insert_many(context: QueryContext, name: str, bodies: Sequence[Any]) -> list[RowResult]:
    """1 to MAX_ROWS rows, all or none. Fields of errors begin with the row's number: `3.title`."""
    check_count(bodies)
    pending_writes = new_rows(context, name, bodies)
    made = insert_all(context, dict(enumerate(pending_writes)))
    return [made[number] for number in range(len(pending_writes))]


def check_count(bodies: Sequence[Any]) -> None:
    if not 1 <= len(bodies) <= MAX_ROWS:
        raise ValidationFailed.of(WHOLE_BODY, "out_of_range", f"Send 1 to {MAX_ROWS} rows at once.")


def new_rows(context: QueryContext, name: str, bodies: Sequence[Any]) -> list[PendingInsert]:
    """Raises NotFound, and ValidationFailed with the numbered errors of all of `bodies`."""
    pending_writes: list[PendingInsert] = []
    errors: list[FieldError] = []
    row_ids: set[bytes | None] = set()
    size = 0
    for number, body in enumerate(bodies):
        if len(errors) >= MAX_ERRORS:
            break
        try:
            with numbered(number):
                pending, length = new_row(context, name, body)
                if (row_id := pending.named[ROW_ID]) in row_ids:
                    raise ValidationFailed.of(ID.name, "taken", "An earlier one of these rows has the same id.")
            row_ids.add(row_id)
            pending_writes.append(pending)
            size += length
        except ValidationFailed as error:
            if not error.fields:
                raise
            errors += error.fields
        if size > MAX_ANSWER_BYTES:
            message = f"The rows of one insert hold at most {MAX_ANSWER_BYTES >> 20} MB. Send fewer at once."
            raise ValidationFailed.of(WHOLE_BODY, "too_large", message)
    if errors:
        raise ValidationFailed(fields=errors)
    return pending_writes


def insert_all(context: QueryContext, pending_writes: Mapping[int, PendingInsert]) -> dict[int, RowResult]:
    """In one transaction. Returns the rows by number."""
    if len(pending_writes) == 1:
        [(number, pending)] = pending_writes.items()
        with numbered(number):
            return {number: _insert_one(context, pending)}
    order = _insert_order(pending_writes)
    if not any(pending.needs_second_statement(context) for pending in pending_writes.values()):
        try:
            with transaction.atomic(using=context.compiled.alias):
                rows = insert_in_one_trip(context, [pending_writes[number] for number in order])
                check_answer_size(rows)
            return dict(zip(order, rows, strict=True))
        except NotInOneTrip:
            pass  # one after the other, which finds the refused row and the reason
    made: dict[int, RowResult] = {}
    with transaction.atomic(using=context.compiled.alias):
        for number in order:
            with numbered(number):
                made[number] = _insert_one(context, pending_writes[number])
            check_answer_size(made.values())
    return made


@contextmanager
def numbered(number: int) -> Generator[None]:
    try:
        yield
    except ValidationFailed as error:
        error.fields = [replace(field, field=f"{number}.{field.field}") for field in error.fields]
        raise


def _insert_order(pending_writes: Mapping[int, PendingInsert]) -> list[int]:
    """By id, so that two batches with common ids wait for each other and do not deadlock, but each row before those
    that refer to it. Rows in a reference cycle come last, to be refused."""
    numbers = {pending.named[ROW_ID]: number for number, pending in pending_writes.items()}
    waits_for: dict[int, set[int]] = {}
    for number, pending in pending_writes.items():
        columns = [column for column in pending.table.columns.values() if column.references == pending.table.name]
        targets = {pending.named.get(Cell(column.name)) for column in columns}
        waits_for[number] = {numbers[target] for target in targets if target in numbers}
    waiting = sorted(waits_for, key=lambda number: pending_writes[number].named[ROW_ID] or b"")
    order: list[int] = []
    done: set[int] = set()
    while waiting:
        ready = [number for number in waiting if waits_for[number] <= done] or waiting
        order += ready
        done.update(ready)
        waiting = [number for number in waiting if number not in done]
    return order


def new_row(context: QueryContext, name: str, body: Any) -> tuple[PendingInsert, int]:
    """The pending insert, and the bytes of its long cells. Raises as `insert`."""
    table, access = context.table(name)
    rule = access.insert
    if rule is None:
        raise WriteRefused(f"You have no permission to insert rows into {table.name}.")
    given, errors = body_parsing.read_insert(
        table, body, writable=rule.columns, readable=context.resolver.columns(table.name)
    )
    if len(errors) < MAX_ERRORS:
        errors += unknown_users(context, table, given)
        if (chosen := given.get(ROW_ID)) is not None and chosen.decode() in column_values.RESERVED_IDS:
            errors.append(FieldError(ROW_ID, "reserved", "This id is reserved by the API. Choose another one."))
        if errors:
            whole: Named = {Cell(name): given.get(name) for name in table.columns} | {ROW_ID: b""}
            errors += unseen_references(context, PendingWrite(table, access, InsertShape(table.name), whole))
    if errors:
        raise ValidationFailed(fields=errors)
    named: Named = {}
    stamped: list[str] = []
    role_view = context.compiled.role_view(context.role_key)
    for name, cell, default in _cells_of(role_view, table, rule.set):
        if name in given:
            named[cell] = given[name]
        elif default == NOW:
            stamped.append(name)
        else:
            named[cell] = str(uuid.uuid4()).encode() if isinstance(default, str) else default
    named[ROW_ID] = given.get(ROW_ID) or f"{table.id_prefix}{ids.suffix()}".encode()
    lengths = row_size.stored_lengths(table, named)
    if not row_size.new_row_fits(role_view, table, lengths, rule.columns):
        raise too_large(row_size.shares(role_view, table, rule.columns))
    pending = PendingWrite(table, access, InsertShape(table.name, tuple(stamped)), named)
    return pending, sum(lengths.values())


_Default = bytes | str | None
"""A value on the wire, or NOW or RANDOM, which differ by row."""


def _cells_of(
    role_view: RoleView, table: Table, without: Collection[str]
) -> list[tuple[str, Cell, _Default]]:  # fmt: skip
    """The columns of a new row that rules do not set, with the key and the default of each."""
    key = "new row", table.name
    found = role_view.cache.get(key)
    if found is None:
        columns = [column for column in table.columns.values() if column.name not in without]
        found = [(column.name, Cell(column.name), _default(column)) for column in columns]
        role_view.cache[key] = found
    return cast("list[tuple[str, Cell, _Default]]", found)


def _default(column: Column) -> _Default:
    if column.default is None or column.default == literals.WORDS.get(column.type):
        return cast(str | None, column.default)
    return values.wire(SQL_TYPES[column.type], column_values.read_cell(column, column.default))


def _insert_one(context: QueryContext, pending: PendingInsert) -> RowResult:
    if not pending.needs_second_statement(context):
        row = persist(context, pending, writes.insert)
        return result_of((row[1] or b"").decode(), row[0])
    with transaction.atomic(using=context.compiled.alias):
        row = persist(context, pending, writes.insert)
        check_written(context, pending, {})
        return read_back(context, pending.table.name, (row[1] or b"").decode())
