"""Verbs that change rows: insert, update, delete. Each is one statement where the rules allow it, else one transaction.

A statement that came back with nothing wrote nothing; a second one, the probe, then says why: 404 for a row that is not
there for this principal, 412 for another `If-Match`, 422 for a reference or a value that the rules refuse, or nothing
at all, when somebody else's change came between and the write is tried again. Contract section 4.8; design section 6.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from django.db import DatabaseError, IntegrityError, transaction

from accounts.models import User
from platform_site.api import ids, sqlstates
from platform_site.api.callers import Place
from platform_site.api.errors import (
    ApiError,
    Conflict,
    FieldError,
    NotFound,
    PreconditionFailed,
    Unavailable,
    ValidationFailed,
)
from platform_site.api.fields import WHOLE_BODY
from platform_site.api.requests import current_request_id
from platform_site.api.signals import row_written
from platform_site.postgres.compiled import Compiled
from rows import compiler, names, states, values, writing
from rows.asking import MAX_RUNS, Asking, asked
from rows.compiler import MAX_ANSWER_BYTES, ROW_ID, Cell, ReadShape
from rows.conditions import Condition, Quantified, parts, paths_of
from rows.documents import MAX_ERRORS, NOW, RANDOM, Column, Table
from rows.execution import Row
from rows.outbox import EventInterest
from rows.reads import RowAnswer, etag_of
from rows.rules import Access, Clause, Principal, WriteRule
from rows.values import MAX_ROW_BYTES
from rows.writing import (
    DEPTH,
    ETAGS,
    EVENT_ID,
    LARGE_WRITE,
    REQUEST,
    ChildrenShape,
    DeleteShape,
    EventIds,
    Ids,
    InsertShape,
    LockShape,
    OldCell,
    ProbeShape,
    ReleaseShape,
    RemovalShape,
    UpdateShape,
)

MAX_BATCH: Final = 100
"""Rows in one insert."""
MAX_CASCADE: Final = 10_000
"""Rows that one delete may take with it or change."""

_Cells = values.Cells
_Named = dict[Any, bytes | None]


def insert_row(place: Place, principal: Principal, table: str, body: Any, *, depth: int = 0) -> RowAnswer:
    """One new row. `depth` counts the webhooks and functions that led to it (reliability F27).

    Raises NotFound, ValidationFailed naming every invalid column, and Conflict for an id that is taken.
    """
    [made] = asked(place, principal, lambda asking: _insert(asking, table, [body], depth, numbered=False))
    return made


def insert_rows(
    place: Place, principal: Principal, table: str, bodies: Sequence[Any], *, depth: int = 0
) -> list[RowAnswer]:
    """1 to MAX_BATCH new rows, all or none. Fields of errors begin with the row's number: `3.title`."""
    if not 1 <= len(bodies) <= MAX_BATCH:
        raise ValidationFailed.of(WHOLE_BODY, "out_of_range", f"Send 1 to {MAX_BATCH} rows at once.")
    return asked(place, principal, lambda asking: _insert(asking, table, bodies, depth, numbered=True))


def update_row(
    place: Place,
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
    return asked(place, principal, lambda asking: _update(asking, table, row_id, body, matches, depth))


def delete_row(
    place: Place,
    principal: Principal,
    table: str,
    row_id: str,
    *,
    matches: Sequence[str] | None = None,
    depth: int = 0,
) -> None:
    """One row gone, and with it, or set free of it, the rows that refer to it, each with its event.

    Raises NotFound, PreconditionFailed, and Conflict where a row refers to it that keeps it from going, or more than
    MAX_CASCADE would go or change.
    """
    asked(place, principal, lambda asking: _delete(asking, table, row_id, matches, depth))


# ── What all writes share ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One write of one row: its shape, and the values that its statements take."""

    table: Table
    access: Access
    shape: InsertShape | UpdateShape | DeleteShape
    named: _Named
    depth: int = 0

    @property
    def action(self) -> Literal["insert", "update", "delete"]:
        match self.shape:
            case InsertShape():
                return "insert"
            case UpdateShape():
                return "update"
            case DeleteShape():
                return "delete"

    def with_events(self, wanted: bool) -> "_Attempt":
        """The same write with an event, or without one."""
        if not wanted:
            return self if not self.shape.events else replace(self, shape=replace(self.shape, events=False))
        named = self.named if EVENT_ID in self.named else self.named | _event_values(self.depth)
        return replace(self, shape=replace(self.shape, events=True), named=named)


def _event_values(depth: int) -> _Named:
    request_id = current_request_id()
    return {
        EVENT_ID: ids.new("evt").encode(),
        REQUEST: None if request_id is None else request_id.encode(),
        DEPTH: b"%d" % depth,
    }


def _persist(asking: Asking, attempt: _Attempt, once: Callable[[_Attempt], Row | None]) -> Row:
    """Run `once`, which gives the written row or None, until it wrote or a probe says why it cannot.

    Raises what the probe found, or Conflict if others kept changing the row.
    """
    for _ in range(MAX_RUNS):
        wants = asking.environment.wants_events(attempt.table.name, attempt.action)
        current = attempt.with_events(wants)
        try:
            row = once(current)
        except DatabaseError as error:
            if refusal := _meaning(asking, attempt, error):
                raise refusal from error
            raise
        if row is not None:
            _tell(asking, current, row)
            return row
        asking.verify()
        refusal = _refusal(asking, current)
        if refusal is not None:
            raise refusal
    raise Conflict


def _tell(asking: Asking, attempt: _Attempt, row: Row) -> None:
    """Where an event was recorded, say so to the floor above; where nobody listened any more, remember that."""
    if not attempt.shape.events:
        return
    if row[-1] == b"f":
        asking.environment.learn_interest(attempt.table.name, attempt.action, False)
        return
    identity = row[0] if attempt.action == "delete" else row[1]
    _announce(asking, attempt.table.name, attempt.action, (identity or b"").decode())


def _announce(asking: Asking, table: str, action: str, row_id: str) -> None:
    row_written.send(
        sender=None, place=asking.place, table=table, action=action, row_id=row_id, using=asking.environment.alias
    )


def _probed(asking: Asking, attempt: _Attempt) -> tuple[list[bool], ApiError | None]:
    """What the probe says of a write that is still to be made: its verdicts from the third on, and what keeps the row
    itself from being written."""
    rows = asking.read(asking.statement(ProbeShape(attempt.shape), writing.probe), attempt.named)
    if not rows:
        return [], NotFound()
    may_change, matches, *rest = [cell == b"t" for cell in rows[0]]
    if not may_change:
        return rest, NotFound()
    return rest, None if matches else PreconditionFailed()


def _refusal(asking: Asking, attempt: _Attempt) -> ApiError | None:
    """Why the write came to nothing; None if nothing stands in its way any more."""
    rest, refusal = _probed(asking, attempt)
    if refusal is not None:
        return refusal
    is_settled, *verdicts = rest
    if not is_settled:
        asking.environment.learn_interest(attempt.table.name, attempt.action, True)
        return None
    if isinstance(attempt.shape, DeleteShape):
        return None
    if isinstance(attempt.shape, UpdateShape) and attempt.shape.large:
        fits, *verdicts = verdicts
        if not fits:
            return _too_large()
    viewer = asking.environment.open_viewer(asking.standing)
    references = writing.references_of(viewer, attempt.table, attempt.shape)
    if unseen := _unseen(references, verdicts):
        return ValidationFailed(fields=unseen)
    if writing.looks_back(viewer, attempt.table.name, attempt.shape):
        return None  # its checks are asked afterwards
    return _checked(asking, attempt, verdicts[len(references) :])


def _unseen(references: Sequence[Column], verdicts: Sequence[bool]) -> list[FieldError]:
    """Errors for the references that lead to no row which the caller can see. Their verdicts come first."""
    missing = values.missing_row()
    return [
        FieldError(column.name, missing.code, missing.message)
        for column, is_seen in zip(references, verdicts, strict=False)
        if not is_seen
    ]


def _refused_afterwards(asking: Asking, attempt: _Attempt, old: _Named) -> ApiError | None:
    """Whether the row, as the write left it, fails its checks."""
    shape = ProbeShape(attempt.shape, after=True)
    [row] = asking.read(asking.statement(shape, writing.probe), attempt.named | old)
    return _checked(asking, attempt, [cell == b"t" for cell in row])


def _checked(asking: Asking, attempt: _Attempt, verdicts: Sequence[bool]) -> ApiError | None:
    """The answer to a failed check. `verdicts` are those of its clauses, and last of the whole."""
    *clauses, passed = verdicts
    if passed:
        return None
    rule = _rule(attempt)
    failed = [clause for clause, held in zip(rule.check_clauses, clauses, strict=True) if not held]
    return _check_refused(asking, attempt, failed)


def _rule(attempt: _Attempt) -> WriteRule:
    rule: WriteRule | None = getattr(attempt.access, attempt.action)
    if rule is None:
        raise NotFound
    return rule


def _check_refused(asking: Asking, attempt: _Attempt, clauses: Iterable[Clause]) -> ApiError:
    """422 naming the columns that this principal may know of; without one, the row might as well not be there."""
    known = {*asking.sight.columns(attempt.table.name), *_rule(attempt).columns}
    named = dict.fromkeys(
        column for clause in clauses for column in _columns_of(clause.condition) if column in known
    )  # fmt: skip
    if not named:
        return NotFound()
    message = "The rules do not allow this value."
    return ValidationFailed(fields=[FieldError(column, "not_allowed", message) for column in named])


def _columns_of(condition: Condition) -> Iterable[str]:
    """The columns of the row itself that a condition asks about: of a path and of a relation to one row, the column
    that it starts from. What is asked of other rows has names of its own, which may be the same words."""
    for part in parts(condition):
        if isinstance(part, Quantified) and not part.hop.many:
            yield part.hop.column
        for path in paths_of(part):
            yield path.hops[0].column if path.hops else path.column


def _meaning(asking: Asking, attempt: _Attempt, error: DatabaseError) -> ApiError | None:
    """What a constraint's or an index's refusal means. Its name says which columns; PostgreSQL's text, with its values,
    is not sent. None for an error of another kind.

    A unique constraint also sees rows that the principal cannot (reliability finding 10): its columns are named only to
    who may know them all, and nothing else is said.
    """
    table = attempt.table
    name = sqlstates.constraint(error) or ""
    state = sqlstates.sqlstate(error)
    known = {*asking.sight.columns(table.name), *(_rule(attempt).columns)}
    if state == "23505":
        if name.startswith(names.prefix("nu")):
            # A change under way holds writers to a unique that it may yet have to give up (`rows.uniques`).
            return Unavailable("The schema is changing. Try again shortly.")
        for unique in table.unique:
            if name == states.unique_name(table.name, unique):
                if not known.issuperset(unique):
                    break
                message = "Another row has this value already." if len(unique) == 1 else "Another row has these values."
                return ValidationFailed(fields=[FieldError(column, "taken", message) for column in unique])
        else:
            return Conflict("The id is taken.")
        return ValidationFailed.of(WHOLE_BODY, "taken", "Another row has these values already.")
    if state == "23503":
        missing = values.missing_row()
        for column in table.columns.values():
            if name == states.foreign_key_name(table.name, column.name) and column.name in known:
                return ValidationFailed.of(column.name, missing.code, missing.message)
    if state == sqlstates.TOO_LONG_FOR_AN_INDEX and (long := states.too_long_together(table, name)):
        message = "Too long together for an index of these columns (about 2,700 bytes)."
        if known.issuperset(long):
            return ValidationFailed(fields=[FieldError(column, "too_long", message) for column in long])
        return ValidationFailed.of(WHOLE_BODY, "too_long", "Values are too long together for an index.")
    return sqlstates.answer_for(error) if isinstance(error, IntegrityError) else None


def _check_users(asking: Asking, table: Table, cells: _Cells) -> list[FieldError]:
    """Errors for the user columns in `cells` that name nobody of the pool. A query for each of them but the caller."""
    own = asking.principal.user_id if asking.principal.kind == "user" else None
    named = {
        column.name: cell.decode()
        for column in table.columns.values()
        if column.is_user and (cell := cells.get(column.name)) is not None
    }
    unknown = {user for user in set(named.values()) - {own} if _USER.first(asking.place.pool_id, user) is None}
    missing = values.missing_user()
    return [FieldError(column, missing.code, missing.message) for column, user in named.items() if user in unknown]


def _also_unseen(asking: Asking, attempt: _Attempt) -> list[FieldError]:
    """Errors for the references of a write that is refused for something else: to be named with that, not after it.

    None where the row is not there for this principal: of what it refers to nothing is told.
    """
    assert not isinstance(attempt.shape, DeleteShape)  # noqa: S101 - for the type checker
    viewer = asking.environment.open_viewer(asking.standing)
    references = writing.references_of(viewer, attempt.table, attempt.shape)
    if not any(attempt.named.get(Cell(column.name)) for column in references):
        return []
    found, refusal = _probed(asking, attempt.with_events(True))
    return [] if isinstance(refusal, NotFound) else _unseen(references, found[1:])


_USER: Final = Compiled(lambda pool_id, pk: User.objects.in_pool(pool_id).filter(pk=pk).values_list("pk"))


def _is_readable_answer(row_id: str, body: bytes | None) -> RowAnswer:
    """The row after its write; only its id where the principal may not read it any more."""
    if body is None:
        return RowAnswer(row_id, b'{"id":"%s"}' % row_id.encode(), None)
    return RowAnswer(row_id, body, etag_of(body))


def _read_back(asking: Asking, table: str, row_id: str) -> RowAnswer:
    rows = asking.read(asking.statement(ReadShape(table), compiler.read), {ROW_ID: row_id.encode()})
    return _is_readable_answer(row_id, rows[0][0] if rows else None)


# ── Insert ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _insert(asking: Asking, name: str, bodies: Sequence[Any], depth: int, *, numbered: bool) -> list[RowAnswer]:
    table, access = asking.table(name)
    if access.insert is None:
        raise NotFound
    attempts: list[_Attempt] = []
    errors: list[FieldError] = []
    size = 0
    for number, body in enumerate(bodies):
        if len(errors) >= MAX_ERRORS:
            break
        prefix = f"{number}." if numbered else ""
        try:
            attempts.append(attempt := _new_row(asking, table, access, body, depth))
            size += _size(table, attempt.named)
        except ValidationFailed as error:
            errors += [replace(field, field=f"{prefix}{field.field}") for field in error.fields]
        if size > MAX_ANSWER_BYTES:
            message = f"The rows of one insert hold at most {MAX_ANSWER_BYTES >> 20} MB. Send fewer at once."
            raise ValidationFailed.of(WHOLE_BODY, "too_large", message)
    if errors:
        raise ValidationFailed(fields=errors)
    if len(attempts) == 1:
        return [_insert_one(asking, attempts[0], "0." if numbered else "")]
    with transaction.atomic(using=asking.environment.alias):
        made = {number: _insert_one(asking, attempts[number], f"{number}.") for number in _turns(table, attempts)}
    return [made[number] for number in range(len(attempts))]


def _turns(table: Table, attempts: Sequence[_Attempt]) -> list[int]:
    """In which order a batch is inserted: by id, so that two batches with ids in common wait for each other and do not
    deadlock; but a row that others of the batch refer to before these. Rows in a circle come last, to be refused."""
    numbers = {attempt.named[ROW_ID]: number for number, attempt in enumerate(attempts)}
    own = [Cell(column.name) for column in table.columns.values() if column.references == table.name]
    waits_for = {
        number: {numbers[cell] for key in own if (cell := attempt.named.get(key)) in numbers}
        for number, attempt in enumerate(attempts)
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


def _new_row(asking: Asking, table: Table, access: Access, body: Any, depth: int) -> _Attempt:
    """The insert that `body` asks for. Raises ValidationFailed."""
    rule = access.insert
    assert rule is not None  # noqa: S101 - asked by the caller

    def further(cells: _Cells, errors: list[FieldError]) -> list[FieldError]:
        found = _check_users(asking, table, cells)
        if (chosen := cells.get(ROW_ID)) is not None and chosen.decode() in values.RESERVED_IDS:
            found.append(FieldError(ROW_ID, "reserved", "Is a word of the API; choose another."))
        if errors or found:
            whole: _Named = {Cell(name): cells.get(name) for name in table.columns} | {ROW_ID: b""}
            found += _also_unseen(asking, _Attempt(table, access, InsertShape(table.name), whole))
        return found

    given = values.read_insert(
        table, body, writable=rule.columns, readable=asking.sight.columns(table.name), further=further
    )
    named: _Named = {}
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
    if _size(table, named) > MAX_ROW_BYTES:
        raise _too_large()
    return _Attempt(table, access, InsertShape(table.name, tuple(stamped)), named, depth)


def _size(table: Table, named: _Named) -> int:
    """Bytes of the texts, arrays and JSON that a write brings in, as stored."""
    return sum(
        values.stored_size(column, cell)
        for key, cell in named.items()
        if cell is not None
        and isinstance(key, Cell)
        and (column := table.columns[key.column]).type in values.LONG_TYPES
    )


def _too_large() -> ValidationFailed:
    message = f"A row holds at most {MAX_ROW_BYTES >> 20} MB, and this one would have more."
    return ValidationFailed.of(WHOLE_BODY, "too_large", message)


def _default(column: Column) -> bytes | None:
    """What a column holds that was not sent."""
    if column.default is None:
        return None
    if column.type == "uuid" and column.default == RANDOM:
        return str(uuid.uuid4()).encode()
    type_ = values.OPERAND_TYPES[column.type]
    return values.wire(type_, values.read_cell(column, column.default))


def _insert_one(asking: Asking, attempt: _Attempt, prefix: str) -> RowAnswer:
    assert isinstance(attempt.shape, InsertShape)  # noqa: S101 - for the type checker
    viewer = asking.environment.open_viewer(asking.standing)
    try:
        if not writing.looks_back(viewer, attempt.table.name, attempt.shape):
            row = _persist(asking, attempt, lambda current: _first(_run(asking, current, writing.insert)))
            return _is_readable_answer((row[1] or b"").decode(), row[0])
        with transaction.atomic(using=asking.environment.alias):
            row = _persist(asking, attempt, lambda current: _first(_run(asking, current, writing.insert)))
            refusal = _refused_afterwards(asking, attempt, {})
            if refusal is not None:
                raise refusal
            return _read_back(asking, attempt.table.name, (row[1] or b"").decode())
    except ValidationFailed as error:
        raise ValidationFailed(
            fields=[
                field if field.field == WHOLE_BODY else replace(field, field=f"{prefix}{field.field}")
                for field in error.fields
            ]
        ) from error


def _run(asking: Asking, attempt: _Attempt, compile: Callable[..., compiler.Statement]) -> list[Row]:
    return asking.write(asking.statement(attempt.shape, compile), attempt.named)


def _first(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None


# ── Update ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _update(asking: Asking, name: str, row_id: str, body: Any, matches: Sequence[str] | None, depth: int) -> RowAnswer:
    table, access = asking.table(name)
    if access.read is None or access.update is None or not values.ROW_ID.fullmatch(row_id):
        raise NotFound
    rule = access.update

    def further(cells: _Cells, errors: list[FieldError]) -> list[FieldError]:
        found = _check_users(asking, table, cells)
        if errors or found:
            references = {key: cell for key, cell in cells.items() if table.columns[key].is_reference}
            sent: _Named = {Cell(key): cell for key, cell in references.items()} | {ROW_ID: row_id.encode()}
            found += _also_unseen(asking, _Attempt(table, access, UpdateShape(name, tuple(sorted(references))), sent))
        return found

    cells = values.read_update(table, body, writable=rule.columns, readable=asking.sight.columns(name), further=further)
    named: _Named = {Cell(column): cell for column, cell in cells.items()}
    named[ROW_ID] = row_id.encode()
    if matches is not None:
        named[ETAGS] = values.wire("text[]", tuple(matches))
    is_large = _size(table, named) > LARGE_WRITE
    shape = UpdateShape(name, tuple(sorted(cells)), matches is not None, large=is_large)
    attempt = _Attempt(table, access, shape, named, depth)
    if not cells:
        return _unchanged(asking, attempt, row_id)
    if not writing.looks_back(asking.environment.open_viewer(asking.standing), name, shape):
        row = _persist(asking, attempt, lambda current: _first(_run(asking, current, writing.update)))
        return _is_readable_answer(row_id, row[0])
    with transaction.atomic(using=asking.environment.alias):
        before = _lock(asking, attempt)
        _persist(asking, attempt, lambda current: _first(_run(asking, current, writing.update)))
        old: _Named = {OldCell(column): cell for column, cell in zip(table.all_columns, before, strict=True)}
        refusal = _refused_afterwards(asking, attempt, old)
        if refusal is not None:
            raise refusal
        return _read_back(asking, name, row_id)


def _lock(asking: Asking, attempt: _Attempt) -> Row:
    """All cells of the row, as text, once it is locked. Raises what keeps it from being changed."""
    assert not isinstance(attempt.shape, InsertShape)  # noqa: S101 - for the type checker
    statement = asking.statement(LockShape(attempt.shape, cells=True), writing.locked)
    rows = asking.write(statement, attempt.named)
    if rows:
        return rows[0]
    asking.verify()
    refusal = _refusal(asking, attempt.with_events(True))
    raise refusal or Conflict


def _unchanged(asking: Asking, attempt: _Attempt, row_id: str) -> RowAnswer:
    """The answer to an update of nothing: the row, if it may be updated and matches. Its check is not asked."""
    _, refusal = _probed(asking, attempt.with_events(True))
    if refusal is not None:
        raise refusal
    rows = asking.read(asking.statement(ReadShape(attempt.table.name), compiler.read), attempt.named)
    if not rows:
        asking.verify()
        raise NotFound
    return _is_readable_answer(row_id, rows[0][0])


# ── Delete ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _delete(asking: Asking, name: str, row_id: str, matches: Sequence[str] | None, depth: int) -> None:
    table, access = asking.table(name)
    if access.read is None or access.delete is None or not values.ROW_ID.fullmatch(row_id):
        raise NotFound
    named: _Named = {ROW_ID: row_id.encode()}
    if matches is not None:
        named[ETAGS] = values.wire("text[]", tuple(matches))
    attempt = _Attempt(table, access, DeleteShape(name, matches is not None), named, depth)
    if not _incoming(asking, name):
        _persist(asking, attempt, lambda current: _first(_run(asking, current, writing.delete)))
        return
    with transaction.atomic(using=asking.environment.alias):
        _lock_for_delete(asking, attempt)
        _take(asking, table, [row_id], depth)


def _incoming(asking: Asking, name: str) -> list[tuple[Table, Column]]:
    """The references that lead to a table."""
    return [
        (table, column)
        for table in asking.environment.schema.tables.values()
        for column in table.columns.values()
        if column.references == name
    ]


def _lock_for_delete(asking: Asking, attempt: _Attempt) -> None:
    assert isinstance(attempt.shape, DeleteShape)  # noqa: S101 - for the type checker
    for _ in range(MAX_RUNS):
        if asking.write(asking.statement(LockShape(attempt.shape), writing.locked), attempt.named):
            return
        asking.verify()
        refusal = _refusal(asking, attempt.with_events(True))
        if refusal is not None:
            raise refusal
    raise Conflict


def _take(asking: Asking, table: Table, rows: Sequence[str], depth: int) -> None:
    """Delete locked rows and what goes with them.

    All rows that go are found and locked first. A concurrent insert that refers to one of them waits for our lock, and
    fails when we are done; one that came before is found.
    """
    going: dict[str, dict[str, None]] = defaultdict(dict)
    going[table.name].update(dict.fromkeys(rows))
    freed: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    held: dict[str, set[str]] = defaultdict(set)
    budget = MAX_CASCADE
    waiting = [(table.name, list(rows))]
    while waiting:
        parent, parents = waiting.pop()
        for child, column in _incoming(asking, parent):
            # Those that go already may be found once more: with as many as there are of them, none hides another.
            found = _referring(asking, child, column, parents, budget + 1 + len(going[child.name]))
            fresh = [one for one in found if one not in going[child.name]]
            if column.on_delete == "restrict":
                held[child.name].update(fresh)
                continue
            budget -= len(fresh)
            if budget < 0:
                raise Conflict(f"More than {MAX_CASCADE:,} rows refer to this one. Delete them first.")
            if column.on_delete == "null":
                freed[child.name, column.name].update(dict.fromkeys(fresh))
            elif fresh:
                going[child.name].update(dict.fromkeys(fresh))
                waiting.append((child.name, fresh))
    if any(holding - going[child].keys() for child, holding in held.items()):
        raise Conflict("Other rows refer to this one and keep it from being deleted.")
    _refresh_interests(asking)
    for (child_name, column_name), found_rows in freed.items():
        _free(asking, child_name, column_name, [one for one in found_rows if one not in going[child_name]], depth)
    _remove(asking, {name: list(gone) for name, gone in going.items() if gone}, depth)


def _referring(asking: Asking, table: Table, column: Column, targets: Sequence[str], most: int) -> list[str]:
    """The rows of `table` whose `column` holds one of `targets`, locked."""
    statement = asking.statement(ChildrenShape(table.name, column.name, most), writing.children)
    rows = asking.write(statement, {Ids(): values.wire("text[]", tuple(targets))})
    return [(cell or b"").decode() for (cell,) in rows]


def _refresh_interests(asking: Asking) -> None:
    """Know for sure who listens: these statements do not test it."""
    environment = asking.environment
    interests = EventInterest.objects.using(environment.alias).filter(environment_id=environment.id)
    environment.set_interests(set(interests.values_list("table_name", "action")))


def _free(asking: Asking, table: str, column: str, rows: list[str], depth: int) -> None:
    if not rows:
        return
    wants = asking.environment.wants_events(table, "update")
    statement = asking.statement(ReleaseShape(table, column, wants), writing.release)
    asking.write(statement, _event_values(depth) | _rows_and_events(0, rows))
    if wants:
        for row_id in rows:
            _announce(asking, table, "update", row_id)


def _remove(asking: Asking, going: Mapping[str, list[str]], depth: int) -> None:
    parts = tuple((name, asking.environment.wants_events(name, "delete")) for name in sorted(going))
    named: _Named = _event_values(depth)
    for number, (name, _) in enumerate(parts):
        named |= _rows_and_events(number, going[name])
    asking.write(asking.statement(RemovalShape(parts), writing.removal), named)
    for name, wants in parts:
        if wants:
            for row_id in going[name]:
                _announce(asking, name, "delete", row_id)


def _rows_and_events(number: int, rows: Sequence[str]) -> _Named:
    return {
        Ids(number): values.wire("text[]", tuple(rows)),
        EventIds(number): values.wire("text[]", tuple(ids.new("evt") for _ in rows)),
    }


# ── Users who are gone ──────────────────────────────────────────────────────────────────────────────────────────────

_OPERATOR: Final = Principal("key", bypass=True)
_BATCH: Final = 500


def let_go_of_user(place: Place, user_id: str, *, entirely: bool = True) -> None:
    """Apply the policy of each user column to the rows that name a user who is no more: `null` or `delete`, in batches,
    each a transaction with its events. Design section 6; may run twice.

    Where a row may not go because another refers to it: raises Conflict, and batches before that one stay done; or, if
    not `entirely`, that row stays as it is and the others go.
    """
    asked(place, _OPERATOR, lambda asking: _let_go_of_user(asking, user_id, entirely))


def _let_go_of_user(asking: Asking, user_id: str, entirely: bool) -> None:
    asking.verify()  # its statements do not test the version
    tables = asking.environment.schema.tables.values()
    for policy in ("delete", "null"):  # first what may be refused
        for table in tables:
            for column in table.columns.values():
                if column.on_user_delete == policy:
                    staying: set[str] | None = None if entirely else set()
                    while _let_go_of_some(asking, table, column, user_id, staying):
                        pass


def _let_go_of_some(asking: Asking, table: Table, column: Column, user_id: str, staying: set[str] | None) -> bool:
    """One batch. Whether there may be more. `staying` takes up the rows that may not go; None: that is a Conflict."""
    with transaction.atomic(using=asking.environment.alias):
        found = _referring(asking, table, column, [user_id], _BATCH + len(staying or ()))
        rows = [row_id for row_id in found if row_id not in (staying or ())]
        if rows and column.on_user_delete == "delete":
            if staying is None:
                _take(asking, table, rows, 0)
            else:
                _take_or_leave(asking, table, rows, staying)
        elif rows:
            _refresh_interests(asking)
            _free(asking, table.name, column.name, rows, 0)
    return len(rows) == _BATCH


def _take_or_leave(asking: Asking, table: Table, rows: Sequence[str], staying: set[str]) -> None:
    """`_take` what may go: all at once or, where some may not, each by itself."""
    try:
        with transaction.atomic(using=asking.environment.alias):
            return _take(asking, table, rows, 0)
    except Conflict:
        if len(rows) == 1:
            staying.update(rows)
            return None
    for row_id in rows:
        _take_or_leave(asking, table, [row_id], staying)
    return None
