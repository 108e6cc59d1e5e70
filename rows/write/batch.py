"""Batches of writes in one transaction, each with the rules, checks and events of the single write. A later operation
can use a cell of an earlier one's response by `{"$ref": "name.column"}`: the cell as the caller sees it, so that a
reference reveals nothing that the response does not. docs/reference/rows.md."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import orjson
from django.db import transaction

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.http.errors import ApiError, FieldError, Forbidden, ValidationFailed
from platform_site.http.fields import WHOLE_BODY
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import sqlstates
from rows.query.context import QueryContext, run
from rows.query.service import RowResult
from rows.query.sql.statement import ROW_ID
from rows.rules.principal import Principal
from rows.schema import column_values, values
from rows.schema.model import ID, SQL_TYPES, Column, Schema
from rows.schema.values import InvalidValue
from rows.write import inserts, service, upserts
from rows.write.errors import check_answer_size
from rows.write.insert_pipeline import NotInOneTrip, insert_in_one_trip
from rows.write.pending_write import PendingInsert
from rows.write.statements import writes
from rows.write.statements.shapes import Action, Ids

MAX_OPERATIONS: Final = 100
Op = Literal["insert", "update", "upsert", "delete"]
_OPS: Final[tuple[Op, ...]] = get_args(Op)
_REQUIRED: Final[Mapping[str, frozenset[str]]] = {
    "insert": frozenset({"table", "values"}),
    "update": frozenset({"table", "id", "values"}),
    "upsert": frozenset({"table", "values", "on_conflict"}),
    "delete": frozenset({"table", "id"}),
}
_TEXTS: Final = ("if_match", "name", "on_conflict", "table")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_REFERENCE: Final = "$ref"


@dataclass(frozen=True, slots=True)
class Operation:
    """`id` and the fields of `values` may be references. `matches` are the digests of `if_match`."""

    op: Op
    table: str
    id: Any = None
    values: Any = None
    on_conflict: str = ""
    matches: tuple[str, ...] | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    row: RowResult | None


def read_operations(body: Any, read_tags: Any) -> list[Operation]:
    """`read_tags` reads the text of an `if_match`. Raises ValidationFailed, of the first invalid operation with its
    number as `operation`."""
    if not isinstance(body, list):
        raise ValidationFailed.of("operations", "wrong_type", "Must be an array of operations.")
    if not 1 <= len(body) <= MAX_OPERATIONS:
        raise ValidationFailed.of("operations", "out_of_range", f"Send 1 to {MAX_OPERATIONS} operations.")
    operations: list[Operation] = []
    names: set[str] = set()
    for number, item in enumerate(body):
        try:
            operation = _read_operation(item, read_tags)
            if operation.name is not None:
                if operation.name in names:
                    raise ValidationFailed.of("name", "taken", "An earlier operation has this name.")
                names.add(operation.name)
        except ValidationFailed as error:
            raise _numbered(error, number) from None
        operations.append(operation)
    return operations


def require_scopes(caller: Caller, operations: Sequence[Operation]) -> None:
    """All but inserts return rows that exist. Raises Forbidden."""
    number = next((number for number, operation in enumerate(operations) if operation.op != "insert"), None)
    if number is not None:
        try:
            caller.need("rows:read")
        except Forbidden as error:
            raise _numbered(error, number) from None


def execute(
    environment: EnvironmentRef,
    principal: Principal,
    operations: Sequence[Operation],
    *,
    dry_run: bool = False,
) -> list[Result]:
    """Raises the error of the first operation that fails, with its number as `operation`."""

    def run_all(context: QueryContext, *, in_one_trip: bool) -> list[Result]:
        with transaction.atomic(using=context.compiled.alias):
            if context.met_deadlock:  # repeated one after the other, batches do not block each other again
                advisory_locks.lock(context.compiled.alias, LockSpace.REPEATED_WRITES, environment.environment_id)
            results = _Batch(context, operations, in_one_trip).run()
            if dry_run:
                transaction.set_rollback(True, using=context.compiled.alias)
        return results

    def run_batch(context: QueryContext) -> list[Result]:
        try:
            return run_all(context, in_one_trip=True)
        except NotInOneTrip:
            return run_all(context, in_one_trip=False)

    return run(environment, principal, run_batch)


def as_json(results: Sequence[Result]) -> bytes:
    return b'{"results":[' + b",".join(map(_result_as_json, results)) + b"]}"


def _result_as_json(result: Result) -> bytes:
    if result.row is None:
        return b'{"status":%d}' % result.status
    etag = b"" if result.row.etag is None else b',"etag":' + orjson.dumps(result.row.etag)
    return b'{"status":%d,"row":%s%s}' % (result.status, result.row.body, etag)


@dataclass(slots=True)
class _Batch:
    """One run of the operations. With `in_one_trip`, inserts wait until an operation needs their results, and are then
    sent together. If an operation fails meanwhile, NotInOneTrip is raised: only a run of one after the other finds the
    first error."""

    context: QueryContext
    operations: Sequence[Operation]
    in_one_trip: bool
    results: list[Result] = field(default_factory=list)
    waiting: list[PendingInsert] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def run(self) -> list[Result]:
        try:
            return self._run()
        except sqlstates.DATABASE_ERRORS as error:
            sqlstates.add_extra(error, operation=len(self.results))
            raise

    def _run(self) -> list[Result]:
        is_locked = False
        for number, operation in enumerate(self.operations):
            try:
                if not self._defer(operation):
                    self._send()
                    if not is_locked and operation.op in ("update", "delete"):
                        self._lock(self.operations[number:])
                        is_locked = True
                    self.results.append(self._write(operation))
                    self._check_size()
            except ApiError as error:
                if self.waiting:
                    raise NotInOneTrip from error
                raise _numbered(error, number) from error
            if operation.name is not None:
                self.numbers[operation.name] = number
        self._send()
        return self.results

    def _lock(self, operations: Sequence[Operation]) -> None:
        """Lock the rows to update and delete in one order for all batches, so that two with rows in common wait for
        each other and do not deadlock. Rows that the caller may not change are left to their operations."""
        chosen: defaultdict[str, set[str]] = defaultdict(set)
        actions: defaultdict[str, set[Action]] = defaultdict(set)
        for each in operations:
            if each.op in ("update", "delete") and isinstance(each.id, str) and column_values.ROW_ID.fullmatch(each.id):
                chosen[each.table].add(each.id)
                actions[each.table].add(each.op)
        if sum(map(len, chosen.values())) < 2:
            return
        context = self.context
        for table in _referenced_first(context.compiled.schema, chosen):
            access = context.compiled.rules.access(table, context.role_key)
            allowed = tuple(action for action in sorted(actions[table]) if access.read and getattr(access, action))
            if allowed:
                named = {Ids(): values.wire("text[]", tuple(chosen[table]))}
                context.write(context.statement(writes.lock_rows, table, allowed), named)

    def _defer(self, operation: Operation) -> bool:
        """Whether the operation now waits to be sent with others."""
        if not self.in_one_trip or operation.op != "insert":
            return False
        pending, _ = inserts.new_row(self.context, operation.table, self._values(operation))
        if pending.needs_second_statement(self.context):
            return False
        self.waiting.append(pending)
        return True

    def _send(self) -> None:
        if self.waiting:
            rows = insert_in_one_trip(self.context, self.waiting)
            self.results += [Result(201, row) for row in rows]
            self.waiting = []
            try:
                self._check_size()
            except ValidationFailed as error:
                raise NotInOneTrip from error

    def _check_size(self) -> None:
        check_answer_size(result.row for result in self.results if result.row is not None)

    def _write(self, operation: Operation) -> Result:
        context, name = self.context, operation.table
        match operation.op:
            case "insert":
                return Result(201, inserts.insert(context, name, self._values(operation)))
            case "upsert":
                upserted = upserts.upsert(context, name, self._values(operation), operation.on_conflict)
                return Result(201 if upserted.is_new else 200, upserted.row)
            case "update":
                row_id, body = self._row_id(operation), self._values(operation)
                return Result(200, service.update(context, name, row_id, body, matches=operation.matches))
            case "delete":
                service.delete(context, name, self._row_id(operation), matches=operation.matches)
                return Result(204, None)

    def _row_id(self, operation: Operation) -> str:
        if not _is_reference(operation.id):
            return str(operation.id)
        try:
            found = self._cell(operation.id[_REFERENCE], ID)
        except InvalidValue as error:
            raise ValidationFailed(fields=[error.of("id")]) from None
        if found is None:
            raise ValidationFailed.of("id", "required", "The referenced cell is null.")
        return str(found)

    def _values(self, operation: Operation) -> Any:
        """With cells in place of references. Only columns that the caller may know are looked at."""
        sent = operation.values
        if not isinstance(sent, dict) or not any(map(_is_reference, sent.values())):
            return sent
        table, access = self.context.table(operation.table)
        known = {ID.name, *self.context.resolver.columns(table.name)}
        for rule in (access.insert, access.update if operation.op != "insert" else None):
            if rule is not None:
                known |= rule.columns
        found, errors = dict(sent), []
        for name, value in sent.items():
            if not _is_reference(value):
                continue
            column = table.all_columns.get(name) if name in known else None
            if column is not None and column.type != "json":
                try:
                    found[name] = self._cell(value[_REFERENCE], column)
                except InvalidValue as error:
                    errors.append(error.of(name))
        if errors:
            raise ValidationFailed(fields=errors)
        return found

    def _cell(self, reference: Any, target: Column) -> Any:
        """The cell that `name.column` means, in the response of the operation called `name`. Raises InvalidValue."""
        name, _, column = reference.partition(".") if isinstance(reference, str) else ("", "", "")
        number = self.numbers.get(name)
        if number is not None and number >= len(self.results):
            if column == ID.name and SQL_TYPES[ID.type] == SQL_TYPES[target.type]:
                return (self.waiting[number - len(self.results)].named[ROW_ID] or b"").decode()
            self._send()
        row = None if number is None else self.results[number].row
        cells = {} if row is None else orjson.loads(row.body)
        if number is None or column not in cells:
            message = 'Must be "name.column": an earlier operation that has this name, and a column of its response.'
            raise InvalidValue("unknown", message)
        table, _ = self.context.table(self.operations[number].table)
        source = table.all_columns[column]
        if SQL_TYPES[source.type] != SQL_TYPES[target.type]:
            raise InvalidValue("wrong_type", f"{reference} is of type {source.type}, not {target.type}.")
        return cells[column]


def _referenced_first(schema: Schema, tables: Iterable[str]) -> list[str]:
    """By name, but each table after those that it refers to, as a deletion locks the rows that refer to a row after
    it. In a cycle of references any is first."""
    order: dict[str, None] = {}
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name in schema.tables and name not in visited:
            visited.add(name)
            for column in schema.tables[name].columns.values():
                if column.references is not None:
                    visit(column.references)
            order[name] = None

    wanted = sorted(tables)
    for name in wanted:
        visit(name)
    return [name for name in order if name in wanted]


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {_REFERENCE}


def _numbered(error: ApiError, number: int) -> ApiError:
    error.extra["operation"] = number
    return error


def _read_operation(item: Any, read_tags: Any) -> Operation:
    if not isinstance(item, dict):
        raise ValidationFailed.of(WHOLE_BODY, "wrong_type", "An operation is an object.")
    op = item.get("op")
    if not isinstance(op, str) or op not in _OPS:
        raise ValidationFailed.of("op", "not_among", f"Must be one of {', '.join(_OPS)}.")
    required = _REQUIRED[op]
    allowed = required | {"op", "name"}
    if op in ("update", "delete"):
        allowed |= {"if_match"}
    errors = [
        FieldError(str(name)[:100], "unknown_field", f"{op} takes {', '.join(sorted(allowed))}.")
        for name in item
        if name not in allowed
    ]
    errors += [FieldError(name, "required", "Required.") for name in sorted(required - item.keys())]
    for name in _TEXTS:
        if name not in item or name not in allowed:
            continue
        if not isinstance(item[name], str):
            errors.append(FieldError(name, "wrong_type", "Must be a string."))
        elif name == "name" and not _NAME.fullmatch(item[name]):
            errors.append(FieldError(name, "invalid", "Must be a lower-case letter, then letters, digits or _."))
    if "id" in item and "id" in allowed and not (isinstance(item["id"], str) or _is_reference(item["id"])):
        errors.append(FieldError("id", "wrong_type", 'Must be a string or {"$ref": "name.column"}.'))
    if errors:
        raise ValidationFailed(fields=errors)
    known: dict[str, Any] = {name: item[name] for name in item if name != "if_match"}
    return Operation(**known, matches=read_tags(item["if_match"]) if "if_match" in item else None)
