"""Inserts, updates and deletes rows: one statement where the rules allow it, otherwise one transaction.

A statement that returns no row wrote nothing. Then `rows.write.errors` finds the reason: 404 for a row that does not
exist for this principal, 412 for another `If-Match`, 422 for a reference or value that the rules refuse. If there is no
reason any more because of a concurrent change, the write is tried again. `rows.write.referential_actions` handles what
else a deletion changes. Contract section 4.8.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from django.db import DatabaseError, transaction

from platform_site.http.errors import Conflict, FieldError, ValidationFailed
from platform_site.http.fields import WHOLE_BODY
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.libpq import Row
from rows.query.context import MAX_RUNS, QueryContext, run
from rows.query.service import RowAnswer
from rows.query.sql import select, statement
from rows.query.sql.row_json import MAX_ANSWER_BYTES
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import ROW_ID, Cell
from rows.rules.access import Access
from rows.rules.principal import Principal
from rows.schema import column_values, values
from rows.schema.model import MAX_ERRORS, NOW, RANDOM, SQL_TYPES, Column, Table
from rows.write import body_parsing, insert_pipeline, referential_actions, row_size
from rows.write.errors import (
    WriteRefused,
    error_after_write,
    error_of,
    error_of_constraint,
    probed,
    too_large,
    unknown_users,
    unseen_references,
)
from rows.write.insert_pipeline import NotInOneTrip, insert_in_one_trip
from rows.write.pending_write import Named, PendingWrite, announce_recorded, answer_of
from rows.write.statements import conditions, writes
from rows.write.statements.shapes import ETAGS, DeleteShape, InsertShape, LockShape, OldCell, UpdateShape

MAX_BATCH: Final = 100
"""Rows in one insert."""


def insert_row(place: EnvironmentRef, principal: Principal, table: str, body: Any, *, depth: int = 0) -> RowAnswer:
    """One new row. `depth` counts the webhooks and functions that led to it.

    Raises NotFound, ValidationFailed naming every invalid column, and Conflict for an id that is taken.
    """
    return run(place, principal, lambda asking: insert(asking, table, body, depth))


def insert_rows(
    place: EnvironmentRef, principal: Principal, table: str, bodies: Sequence[Any], *, depth: int = 0
) -> list[RowAnswer]:
    """1 to MAX_BATCH new rows, all or none. Fields of errors begin with the row's number: `3.title`."""
    check_count(bodies)
    return run(place, principal, lambda asking: _insert(asking, table, bodies, depth, numbered=True))


def check_count(bodies: Sequence[Any]) -> None:
    """Raise ValidationFailed for more rows than one request writes, or none."""
    if not 1 <= len(bodies) <= MAX_BATCH:
        raise ValidationFailed.of(WHOLE_BODY, "out_of_range", f"Send 1 to {MAX_BATCH} rows at once.")


def update_row(
    place: EnvironmentRef,
    principal: Principal,
    table: str,
    row_id: str,
    body: Any,
    *,
    matches: Sequence[str] | None = None,
    depth: int = 0,
) -> RowAnswer:
    """The columns in `body` changed, the others as they were. `matches` are the hex digests of an If-Match, None
    without.

    Nothing in `body` changes nothing and records no event. Raises NotFound (not there for this principal, or not to be
    changed by it), PreconditionFailed and ValidationFailed. Contract section 4.8.
    """
    return run(place, principal, lambda asking: update(asking, table, row_id, body, depth, matches))


def delete_row(
    place: EnvironmentRef,
    principal: Principal,
    table: str,
    row_id: str,
    *,
    matches: Sequence[str] | None = None,
    depth: int = 0,
) -> None:
    """One row gone, and with it, or set free of it, the rows that refer to it, each with its event.

    Raises NotFound, PreconditionFailed, and Conflict where a row refers to it that keeps it from going, or more than
    `referential_actions.MAX_CASCADE` would go or change.
    """
    run(place, principal, lambda asking: delete(asking, table, row_id, matches, depth))


# ── What all writes share ───────────────────────────────────────────────────────────────────────────────────────────


def _persist(asking: QueryContext, attempt: PendingWrite, compile: Callable[..., statement.Statement]) -> Row:
    """Run the statement that `compile` makes of the attempt until it wrote a row, which it answers, or a probe says why
    it cannot.

    Raises what the probe found, or Conflict if others kept changing the row.
    """
    for _ in range(MAX_RUNS):
        wants = asking.environment.wants_events(attempt.table.name, attempt.action)
        current = attempt.with_events(wants)
        try:
            rows = asking.write(asking.statement(current.shape, compile), current.named)
        except DatabaseError as error:
            if refusal := error_of_constraint(asking, attempt, error):
                raise refusal from error
            raise
        if rows:
            announce_recorded(asking, current, rows[0])
            return rows[0]
        asking.verify()
        refusal = error_of(asking, current)
        if refusal is not None:
            raise refusal
    raise Conflict


def _read_back(asking: QueryContext, table: str, row_id: str) -> RowAnswer:
    rows = asking.read(asking.statement(ReadShape(table), select.read), {ROW_ID: row_id.encode()})
    return answer_of(row_id, rows[0][0] if rows else None)


# ── Insert ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def insert(asking: QueryContext, name: str, body: Any, depth: int) -> RowAnswer:
    """As `insert_row`, in the current transaction."""
    [made] = _insert(asking, name, [body], depth, numbered=False)
    return made


def _insert(asking: QueryContext, name: str, bodies: Sequence[Any], depth: int, *, numbered: bool) -> list[RowAnswer]:
    attempts = new_rows(asking, name, bodies, depth, numbered=numbered)
    made = insert_all(asking, dict(enumerate(attempts)), numbered=numbered)
    return [made[number] for number in range(len(attempts))]


def new_rows(
    asking: QueryContext, name: str, bodies: Sequence[Any], depth: int, *, numbered: bool
) -> list[PendingWrite]:
    """The inserts that `body_parsing` ask for, none of them made yet. Raises NotFound, and ValidationFailed with the
    errors of all of them, which begin with the row's number if they are `numbered`."""
    table, access = asking.table(name)
    if access.insert is None:
        raise WriteRefused(f"You may insert no rows into {name}.")
    attempts: list[PendingWrite] = []
    errors: list[FieldError] = []
    size = 0
    for number, body in enumerate(bodies):
        if len(errors) >= MAX_ERRORS:
            break
        try:
            attempts.append(attempt := _new_row(asking, table, access, body, depth))
            size += _size(table, attempt.named)
        except ValidationFailed as error:
            errors += of_row(error, number, numbered=numbered).fields
        if size > MAX_ANSWER_BYTES:
            message = f"The rows of one insert hold at most {MAX_ANSWER_BYTES >> 20} MB. Send fewer at once."
            raise ValidationFailed.of(WHOLE_BODY, "too_large", message)
    if errors:
        raise ValidationFailed(fields=errors)
    return attempts


def insert_all(asking: QueryContext, attempts: Mapping[int, PendingWrite], *, numbered: bool) -> dict[int, RowAnswer]:
    """The rows, made in one transaction, by their number."""
    if len(attempts) == 1:
        [(number, attempt)] = attempts.items()
        return {number: _insert_one(asking, attempt, number, numbered=numbered)}
    turns = _turns(attempts)
    if all(insert_pipeline.is_possible(asking, attempt) for attempt in attempts.values()):
        try:
            with transaction.atomic(using=asking.environment.alias):
                made = insert_in_one_trip(asking, [attempts[number] for number in turns])
            return dict(zip(turns, made, strict=True))
        except NotInOneTrip:
            pass  # one by one says which is refused, and why
    with transaction.atomic(using=asking.environment.alias):
        return {number: _insert_one(asking, attempts[number], number, numbered=numbered) for number in turns}


def of_row(error: ValidationFailed, number: int, *, numbered: bool) -> ValidationFailed:
    """The error as one of the row `number` of several: `3.title`; as it is, if they are not `numbered`."""
    if not numbered:
        return error
    return ValidationFailed(fields=[replace(field, field=f"{number}.{field.field}") for field in error.fields])


def _turns(attempts: Mapping[int, PendingWrite]) -> list[int]:
    """In which order a batch is inserted: by id, so that two batches with ids in common wait for each other and do not
    deadlock; but a row that others of the batch refer to before these. Rows in a circle come last, to be refused."""
    numbers = {attempt.named[ROW_ID]: number for number, attempt in attempts.items()}
    waits_for = {
        number: {
            numbers[cell]
            for column in attempt.table.columns.values()
            if column.references == attempt.table.name and (cell := attempt.named.get(Cell(column.name))) in numbers
        }
        for number, attempt in attempts.items()
    }
    waiting = sorted(waits_for, key=lambda number: attempts[number].named[ROW_ID] or b"")
    turns: list[int] = []
    done: set[int] = set()
    while waiting:
        ready = [number for number in waiting if waits_for[number] <= done] or waiting
        turns += ready
        done.update(ready)
        waiting = [number for number in waiting if number not in done]
    return turns


def _new_row(asking: QueryContext, table: Table, access: Access, body: Any, depth: int) -> PendingWrite:
    """The insert that `body` asks for. Raises ValidationFailed."""
    rule = access.insert
    assert rule is not None  # noqa: S101 - asked by the caller

    def further(cells: body_parsing.Cells, errors: list[FieldError]) -> list[FieldError]:
        found = unknown_users(asking, table, cells)
        if (chosen := cells.get(ROW_ID)) is not None and chosen.decode() in column_values.RESERVED_IDS:
            found.append(FieldError(ROW_ID, "reserved", "Is a word of the API; choose another."))
        if errors or found:
            whole: Named = {Cell(name): cells.get(name) for name in table.columns} | {ROW_ID: b""}
            found += unseen_references(asking, PendingWrite(table, access, InsertShape(table.name), whole))
        return found

    given = body_parsing.read_insert(
        table, body, writable=rule.columns, readable=asking.resolver.columns(table.name), further=further
    )
    named: Named = {}
    stamped: list[str] = []
    for column in table.columns.values():
        if column.name in rule.set:
            continue
        if column.name in given:
            named[Cell(column.name)] = given[column.name]
        elif column.default == NOW and column.type in ("date", "timestamp"):
            stamped.append(column.name)
        else:
            named[Cell(column.name)] = _default(column)
    named[ROW_ID] = given.get(ROW_ID) or f"{table.id_prefix}{ids.suffix()}".encode()
    role_view = asking.environment.open_role_view(asking.role_key)
    if not row_size.new_fits(role_view, table, _lengths(table, named), rule.columns):
        raise too_large(row_size.shares(role_view, table, rule.columns))
    return PendingWrite(table, access, InsertShape(table.name, tuple(stamped)), named, depth)


def _lengths(table: Table, named: Named) -> dict[str, int]:
    """Bytes of the texts, arrays and JSON that a write brings in, as stored, by column."""
    return {
        key.column: column_values.stored_size(column, cell)
        for key, cell in named.items()
        if cell is not None
        and isinstance(key, Cell)
        and (column := table.columns[key.column]).type in column_values.LONG_TYPES
    }


def _size(table: Table, named: Named) -> int:
    return sum(_lengths(table, named).values())


def is_large(table: Table, named: Named) -> bool:
    """Whether an update brings in so much that the row's size must be looked at."""
    return _size(table, named) > row_size.LARGE_WRITE


def _default(column: Column) -> bytes | None:
    """What a column holds that was not sent."""
    if column.default is None:
        return None
    if column.type == "uuid" and column.default == RANDOM:
        return str(uuid.uuid4()).encode()
    type_ = SQL_TYPES[column.type]
    return values.wire(type_, column_values.read_cell(column, column.default))


def _insert_one(asking: QueryContext, attempt: PendingWrite, number: int, *, numbered: bool) -> RowAnswer:
    try:
        if insert_pipeline.is_possible(asking, attempt):
            row = _persist(asking, attempt, writes.insert)
            return answer_of((row[1] or b"").decode(), row[0])
        with transaction.atomic(using=asking.environment.alias):
            row = _persist(asking, attempt, writes.insert)
            refusal = error_after_write(asking, attempt, {})
            if refusal is not None:
                raise refusal
            return _read_back(asking, attempt.table.name, (row[1] or b"").decode())
    except ValidationFailed as error:
        raise of_row(error, number, numbered=numbered) from error


# ── Update ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def update(
    asking: QueryContext, name: str, row_id: str, body: Any, depth: int, matches: Sequence[str] | None = None
) -> RowAnswer:
    """As `update_row`, in the current transaction."""
    table, access = asking.table(name)
    if access.read is None or access.update is None or not column_values.ROW_ID.fullmatch(row_id):
        raise WriteRefused
    rule = access.update

    def further(cells: body_parsing.Cells, errors: list[FieldError]) -> list[FieldError]:
        found = unknown_users(asking, table, cells)
        if errors or found:
            references = {key: cell for key, cell in cells.items() if table.columns[key].is_reference}
            sent: Named = {Cell(key): cell for key, cell in references.items()} | {ROW_ID: row_id.encode()}
            found += unseen_references(
                asking, PendingWrite(table, access, UpdateShape(name, tuple(sorted(references))), sent)
            )
        return found

    cells, changes = body_parsing.read_update(
        table, body, writable=rule.columns, readable=asking.resolver.columns(name), further=further
    )
    named: Named = {Cell(column): cell for column, cell in cells.items()}
    named[ROW_ID] = row_id.encode()
    if matches is not None:
        named[ETAGS] = values.wire("text[]", tuple(matches))
    shape = UpdateShape(name, tuple(sorted(cells)), matches is not None, large=is_large(table, named))
    attempt = PendingWrite(table, access, shape, named, depth)
    if changes:
        attempt = attempt.computing(changes)
    if not cells:
        return _unchanged(asking, attempt, row_id)
    if not conditions.uses_old_row(asking.environment.open_role_view(asking.role_key), name, shape):
        row = _persist(asking, attempt, writes.update)
        return answer_of(row_id, row[0])
    with transaction.atomic(using=asking.environment.alias):
        old = _lock(asking, attempt)
        _persist(asking, attempt, writes.update)
        refusal = error_after_write(asking, attempt, old)
        if refusal is not None:
            raise refusal
        return _read_back(asking, name, row_id)


def _lock(asking: QueryContext, attempt: PendingWrite) -> Named:
    """The cells of the row that its checks are to compare with, once it is locked. Of others nothing is read: its time
    would tell how long they are. Raises what keeps it from being changed."""
    assert isinstance(attempt.shape, UpdateShape)  # noqa: S101 - for the type checker
    role_view = asking.environment.open_role_view(asking.role_key)
    columns = conditions.compared_with(role_view, attempt.table, attempt.shape)
    rows = asking.write(asking.statement(LockShape(attempt.shape, columns), writes.locked), attempt.named)
    if rows:
        return {OldCell(column): cell for column, cell in zip(columns, rows[0][1:], strict=True)}
    asking.verify()
    refusal = error_of(asking, attempt.with_events(True))
    raise refusal or Conflict


def _unchanged(asking: QueryContext, attempt: PendingWrite, row_id: str) -> RowAnswer:
    """The answer to an update of nothing: the row, if it may be updated and matches. Its check is not asked."""
    _, refusal = probed(asking, attempt.with_events(True))
    if refusal is not None:
        raise refusal
    rows = asking.read(asking.statement(ReadShape(attempt.table.name), select.read), attempt.named)
    if not rows:
        asking.verify()
        raise WriteRefused
    return answer_of(row_id, rows[0][0])


# ── Delete ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def delete(asking: QueryContext, name: str, row_id: str, matches: Sequence[str] | None, depth: int) -> None:
    """As `delete_row`, in the current transaction."""
    table, access = asking.table(name)
    if access.read is None or access.delete is None or not column_values.ROW_ID.fullmatch(row_id):
        raise WriteRefused
    named: Named = {ROW_ID: row_id.encode()}
    if matches is not None:
        named[ETAGS] = values.wire("text[]", tuple(matches))
    attempt = PendingWrite(table, access, DeleteShape(name, matches is not None), named, depth)
    if not referential_actions.referring_columns(asking, name):
        _persist(asking, attempt, writes.delete)
        return
    with transaction.atomic(using=asking.environment.alias):
        _lock_for_delete(asking, attempt)
        referential_actions.delete_with_referrers(asking, table, [row_id], depth)


def _lock_for_delete(asking: QueryContext, attempt: PendingWrite) -> None:
    """Hold the row until the transaction ends. Raises what keeps it from being deleted."""
    assert isinstance(attempt.shape, DeleteShape)  # noqa: S101 - for the type checker
    for _ in range(MAX_RUNS):
        if asking.write(asking.statement(LockShape(attempt.shape), writes.locked), attempt.named):
            return
        asking.verify()
        refusal = error_of(asking, attempt.with_events(True))
        if refusal is not None:
            raise refusal
    raise Conflict
