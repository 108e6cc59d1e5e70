"""The statements that change rows: each checks, writes, records its event and returns the row, all in one.

    WITH _w AS (UPDATE …  WHERE <id> AND <may be changed> AND <the row after passes> AND <references can be seen>
                          AND <If-Match> AND <version>  RETURNING …),
         _e AS (INSERT INTO platform.rows_outboxevent … SELECT … FROM _w)
    SELECT <the row as the caller sees it> FROM _w

If no row is returned, nothing was written, and a `probe` finds the reason. The conditions about the row after the write
are in its WHERE, with parameters in place of the changed cells, so that PostgreSQL evaluates them again for the row
that it has locked. Without subscribers, the statement only tests that there are none (saves 20-40 µs). Compiled like
reads (`rows.query.select`); `rows.write.service` runs them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from django.db.models import Exists, F
from django.db.models.sql import DeleteQuery, UpdateQuery

from rows.outbox.models import ANY
from rows.query.select import (
    AS_TEXT,
    ENVIRONMENT,
    LIMIT,
    ROW_ID,
    VERSION,
    After,
    Cell,
    Statement,
    Writer,
    assign_parameter_numbers,
    combine,
    etag,
    is_current,
    is_row,
    listed,
    shown,
    whole_row,
)
from rows.query.sql import ALWAYS, Parameter, Piece, Sql, boolean, joined
from rows.query.sql_conditions import CURRENT_ROW, AliasedRow, RowSource, WrittenRow, hops_of
from rows.rules.conditions import OLD, TRUE, Condition, Variable, operands
from rows.rules.rules import WriteRule
from rows.schema.model import SQL_TYPES, Column, Table
from rows.write import update_operators
from rows.write.row_size import fits
from rows.write.update_operators import Operator

if TYPE_CHECKING:
    from rows.query.managers import RowQuerySet
    from rows.query.role_view import RoleView

Action = Literal["update", "delete"]

ETAGS: Final = "etags"
EVENT_ID: Final = "event"
REQUEST: Final = "request"
DEPTH: Final = "depth"

_OLD_PREFIX: Final = "_o_"
_STAMP: Final = Sql("statement_timestamp()")


@dataclass(frozen=True, slots=True)
class InsertShape:
    """`stamped` are the columns that were not sent and whose default is the moment."""

    table: str
    stamped: tuple[str, ...] = ()
    events: bool = False


@dataclass(frozen=True, slots=True)
class UpdateShape:
    """`columns` are those sent, sorted; `matches` says that there is an If-Match, `large` that the new cells may have
    more than `sizes.LARGE_WRITE`, so that the row's size must be looked at. `update_operators` are those of the
    columns, sorted, whose new cells an operator makes of the old ones."""

    table: str
    columns: tuple[str, ...]
    matches: bool = False
    events: bool = False
    large: bool = False
    computed: tuple[tuple[str, Operator], ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteShape:
    table: str
    matches: bool = False
    events: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseShape:
    """A referential action: given rows let go of what `column` refers to. No rule is asked."""

    table: str
    column: str
    events: bool


@dataclass(frozen=True, slots=True)
class DeleteWithEventsShape:
    """A referential action: given rows of several tables go at once. `parts` are the tables, and for each whether
    events are recorded. No rule is asked."""

    parts: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class LockShape:
    """The row that an update or delete may take, locked, with the text of `cells`."""

    write: "UpdateShape | DeleteShape"
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenShape:
    """The rows that an `action` on many may take and that fit `where`, in the order of their ids, locked, at most
    LIMIT. `after`: only those behind an id."""

    table: str
    action: Action
    where: Condition
    after: bool


@dataclass(frozen=True, slots=True)
class BulkShape:
    """The same update for all of given rows."""

    write: UpdateShape


@dataclass(frozen=True, slots=True)
class ChildrenShape:
    """Which rows of `table` refer to given rows by `column`; locked, at most `most`."""

    table: str
    column: str
    most: int


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """Why a write of this shape came to nothing."""

    write: InsertShape | UpdateShape | DeleteShape


@dataclass(frozen=True, slots=True)
class AfterwardsShape:
    """Whether the row that a write of this shape has left passes its checks."""

    write: InsertShape | UpdateShape


@dataclass(frozen=True, slots=True)
class OldCell:
    """What a column's value was before the write."""

    column: str


@dataclass(frozen=True, slots=True)
class OldRow:
    """The source of a row that is no more: its cells are OldCells."""

    table: Table

    def column(self, name: str, depth: int = 0) -> Any:
        return Parameter(OldCell(name), SQL_TYPES[self.table.all_columns[name].type])


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids (text[]) of the rows of part `number` of a referential action."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class EventIds:
    """As many fresh event ids (text[]) as part `number` has rows."""

    number: int = 0


# ── What must hold ──────────────────────────────────────────────────────────────────────────────────────────────────


def cells_of(role_view: "RoleView", table: Table, shape: InsertShape | UpdateShape) -> dict[str, Any]:
    """The new cells by column: sent, forced by the rule, or stamped."""
    rule = _rule_of(role_view, table, shape)
    if isinstance(shape, InsertShape):
        sent: Iterable[str] = (name for name in table.columns if name not in shape.stamped)
        made: dict[str, Any] = {ROW_ID: Parameter(ROW_ID, "text"), "created_at": _STAMP, "updated_at": _STAMP}
        made |= {name: _stamp(table.columns[name]) for name in shape.stamped}
    else:
        sent, made = shape.columns, {"updated_at": _STAMP}
    made |= {name: _sent(table.columns[name]) for name in sent if name not in rule.set}
    if isinstance(shape, UpdateShape):
        made |= {
            name: update_operators.cell(
                table.columns[name], operator, role_view.reading.cell(table.name, name, CURRENT_ROW)
            )
            for name, operator in shape.computed
        }
    for name, operand in rule.set.items():
        type_ = SQL_TYPES[table.columns[name].type]
        made[name] = Sql(f"NULL::{type_}") if operand is None else role_view.operand(operand)
    return made


def _sent(column: Column) -> Parameter:
    return Parameter(Cell(column.name), SQL_TYPES[column.type])


def _stamp(column: Column) -> Sql:
    return Sql("(statement_timestamp() AT TIME ZONE 'UTC')::date") if column.type == "date" else _STAMP


def _rule_of(role_view: "RoleView", table: Table, shape: InsertShape | UpdateShape) -> WriteRule:
    access = role_view.access(table.name)
    rule = access.insert if isinstance(shape, InsertShape) else access.update
    if rule is None:
        raise LookupError("there is no rule for this write")
    return rule


def references_of(role_view: "RoleView", table: Table, shape: InsertShape | UpdateShape) -> list[Column]:
    """The references that the caller sends: each must lead to a row that it can see."""
    if isinstance(shape, UpdateShape):
        return [table.columns[name] for name in shape.columns if table.columns[name].is_reference]
    writable = _rule_of(role_view, table, shape).columns
    return [column for column in table.columns.values() if column.is_reference and column.name in writable]


def _is_seen(role_view: "RoleView", table: Table, column: Column, cell: Any, before: RowSource | None) -> Sql:
    """The reference is null, leads to a row that the caller can see, or stays what the caller sees it to be."""
    seen = role_view.reading.far(column.references or "").filter(boolean("(", F("id"), " = ", cell, ")"))
    unchanged: list[Any] = []
    if before is not None:
        unchanged = [" OR ", role_view.reading.cell(table.name, column.name, before), " = ", cell]
    return boolean("(", cell, " IS NULL OR ", Exists(seen), *unchanged, ")")


def _is_computable_sql(role_view: "RoleView", table: Table, shape: UpdateShape) -> list[Any]:
    """For each computed column, whether the caller may read the cell that it is computed from, and whether the result
    fits."""
    flags: list[Any] = []
    for name, operator in shape.computed:
        readable, seen = (
            role_view.readable(table.name, name, CURRENT_ROW),
            role_view.reading.cell(table.name, name, CURRENT_ROW),
        )
        flags += [
            ALWAYS if readable is None else readable,
            update_operators.fits(table.columns[name], operator, seen),
        ]
    return flags


def wanted(table: str, action: str) -> Sql:
    """Whether `action` on `table` has subscribers in the environment."""
    return boolean(
        '(EXISTS (SELECT FROM "platform"."rows_eventinterest" WHERE environment_id = ', Parameter(ENVIRONMENT, "text"),
        " AND table_name IN (", _constant(table), ", ", _constant(ANY), ") AND action IN (",
        _constant(action), ", ", _constant(ANY), ")))",
    )  # fmt: skip


def _constant(text: str) -> Parameter:
    return Parameter(text, "text", text.encode())


def uses_old_row(role_view: "RoleView", table: str, shape: InsertShape | UpdateShape) -> bool:
    """Whether a rule that is asked of the row after the write walks back into its table.

    One statement sees the table as it was before, so such a rule has to be asked afterwards, in a second one.
    """
    known = role_view.remembered.get(("looks back", table, type(shape)))
    if known is None:
        read = role_view.access(table).read
        asked = [_rule_of(role_view, role_view.schema.tables[table], shape).check]
        if read is not None:
            asked += [read.where, *read.partial.values()]
        known = any(hop.table == table for condition in asked for hop in hops_of(condition))
        role_view.remembered["looks back", table, type(shape)] = known
    return bool(known)


def compared_with(role_view: "RoleView", table: Table, shape: UpdateShape) -> tuple[str, ...]:
    """The columns whose cells before the write its checks name as `$old`, sorted."""
    rule = _rule_of(role_view, table, shape)
    found = {
        operand.name.removeprefix(OLD)
        for check in (rule.check, *(clause.condition for clause in rule.check_clauses))
        for operand in operands(check)
        if isinstance(operand, Variable) and operand.name.startswith(OLD)
    }
    return tuple(sorted(found))


# ── Writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def insert(role_view: "RoleView", shape: InsertShape) -> Statement:
    """One new row. Answers as `_answer`; no row where a check, a reference or the version refused it."""
    writer, table = Writer(role_view), role_view.schema.tables[shape.table]
    cells = cells_of(role_view, table, shape)
    new = WrittenRow(cells)
    conditions: list[Any] = [is_current()]
    rule = _rule_of(role_view, table, shape)
    if not uses_old_row(role_view, table.name, shape):
        conditions.append(role_view.rules.condition(rule.check, table.name, new))
    conditions += [
        _is_seen(role_view, table, column, cells[column.name], None)
        for column in references_of(role_view, table, shape)
    ]  # fmt: skip
    if not shape.events:
        conditions.append(boolean("(NOT ", wanted(table.name, "insert"), ")"))
    select: list[Any] = []
    for name in table.all_columns:
        select += [cells[name], ", "]
    where: list[Any] = []
    for condition in conditions:
        where += [condition, " AND "]
    columns = ", ".join(f'"{name}"' for name in table.all_columns)
    change = combine(
        f"INSERT INTO {role_view.models[table.name]._meta.db_table} ({columns}) ",
        writer.expression(Sql("SELECT ", *select[:-1], " WHERE ", *where[:-1]), table.name),
    )
    return _answer(writer, table, change, "insert", shape.events, tuple(table.columns))


def update(role_view: "RoleView", shape: UpdateShape) -> Statement:
    """One row changed. Answers as `_answer`; no row where there is none to be changed, or something refused it."""
    writer, table = Writer(role_view), role_view.schema.tables[shape.table]
    change, changed = _updated(writer, table, shape, is_row())
    return _answer(writer, table, change, "update", shape.events, changed)


def bulk_update(role_view: "RoleView", shape: BulkShape) -> Statement:
    """Of the rows with Ids all changed that may be and that nothing refuses. Answers their ids."""
    writer, table = Writer(role_view), role_view.schema.tables[shape.write.table]
    change, changed = _updated(writer, table, shape.write, _is_among("id", Ids()))
    work = _written(writer, table, change, "update", shape.write.events, changed, part=0)
    return assign_parameter_numbers(*combine("WITH ", work, ' SELECT _r."id" FROM _w0 _r'))


def _updated(writer: Writer, table: Table, shape: UpdateShape, which: Sql) -> tuple[Piece, tuple[str, ...]]:
    """The UPDATE of the rows that `which` is true of, with all that must hold, and the columns that it writes."""
    role_view, cells = writer.role_view, cells_of(writer.role_view, table, shape)
    rows = role_view.models[table.name].objects.changeable_by(role_view, "update").filter(which, is_current())
    rule = _rule_of(role_view, table, shape)
    conditions = _is_computable_sql(role_view, table, shape)
    if not uses_old_row(role_view, table.name, shape):
        conditions.append(
            role_view.rules_with(CURRENT_ROW).condition(rule.check, table.name, WrittenRow(cells, CURRENT_ROW))
        )
    conditions += [
        _is_seen(role_view, table, column, cells[column.name], CURRENT_ROW)
        for column in references_of(role_view, table, shape)
    ]
    if shape.large:
        conditions.append(fits(role_view, table, cells, rule.columns))
    if conditions:
        rows = rows.filter(_of_changeable(role_view, table, "update", conditions))
    rows = _settled(role_view, table, rows, "update", shape.matches, shape.events)
    return _changed(writer, rows, cells), tuple(name for name in cells if name != "updated_at")


def delete(role_view: "RoleView", shape: DeleteShape) -> Statement:
    """Delete one row of a table without referrers. Returns its id, and with events whether there were subscribers."""
    writer, table = Writer(role_view), role_view.schema.tables[shape.table]
    rows = role_view.models[table.name].objects.changeable_by(role_view, "delete").filter(is_row(), is_current())
    rows = _settled(role_view, table, rows, "delete", shape.matches, shape.events)
    flags = [writer.expression(wanted(table.name, "delete"), table.name)] if shape.events else []
    return assign_parameter_numbers(
        *combine(
            "WITH ",
            _written(writer, table, _deleted(writer, rows), "delete", shape.events, ()),
            " SELECT ",
            listed(['_r."id"', *flags]),
            " FROM _w _r",
        )
    )


def locked(role_view: "RoleView", shape: LockShape) -> Statement:
    """The row that a write of this shape may take, locked: its id and its cells as text."""
    writer, write = Writer(role_view), shape.write
    table = role_view.schema.tables[write.table]
    action: Action = "delete" if isinstance(write, DeleteShape) else "update"
    rows = role_view.models[table.name].objects.changeable_by(role_view, action).filter(is_row(), is_current())
    rows = _settled(role_view, table, rows, action, write.matches, events=True)
    cells = {f"_c{index}": Sql(F(name), AS_TEXT) for index, name in enumerate(shape.cells)}
    return assign_parameter_numbers(
        *writer.queryset(rows.select_for_update().annotate(**cells).values_list("id", *cells))
    )


def chosen(role_view: "RoleView", shape: ChosenShape) -> Statement:
    """The ids of the rows that a write of many takes."""
    writer = Writer(role_view)
    rows = role_view.models[shape.table].objects.changeable_by(role_view, shape.action).filter(is_current())
    if shape.where != TRUE:
        rule = role_view.may_change(shape.table, shape.action)
        rows = role_view.reading.narrowed(rows, shape.where, shape.table, rule)
    if shape.after:
        rows = rows.filter(boolean("(", F("id"), " > ", Parameter(After(0), "text"), ")"))
    found = writer.queryset(rows.order_by("id").select_for_update().values_list("id"))
    return assign_parameter_numbers(*combine(found, (" LIMIT %s::bigint", [Parameter(LIMIT, "bigint")])))


# ── Referential actions ─────────────────────────────────────────────────────────────────────────────────────────────


def children(role_view: "RoleView", shape: ChildrenShape) -> Statement:
    """The ids of the rows whose `column` is among Ids, locked in the order of their ids."""
    writer = Writer(role_view)
    rows = _among(role_view, shape.table, shape.column, Ids())
    return assign_parameter_numbers(
        *writer.queryset(rows.order_by("id").select_for_update().values_list("id")[: shape.most])
    )


def release(role_view: "RoleView", shape: ReleaseShape) -> Statement:
    """The rows with Ids refer to nothing by `column` any more. Answers their ids."""
    writer, table = Writer(role_view), role_view.schema.tables[shape.table]
    rows = _among(role_view, table.name, "id", Ids())
    change = _changed(writer, rows, {shape.column: Sql("NULL::text"), "updated_at": _STAMP})
    work = _written(writer, table, change, "update", shape.events, (shape.column,), part=0)
    return assign_parameter_numbers(*combine("WITH ", work, ' SELECT _r."id" FROM _w0 _r'))


def delete_with_events(role_view: "RoleView", shape: DeleteWithEventsShape) -> Statement:
    """All the given rows gone, in one statement: rows that refer to each other in a circle have no order to go in, and
    what PostgreSQL's own cascade took would go without its event. Answers how many."""
    writer = Writer(role_view)
    work = [
        _written(
            writer,
            role_view.schema.tables[name],
            _deleted(writer, _among(role_view, name, "id", Ids(number))),
            "delete",
            events,
            (),
            part=number,
        )
        for number, (name, events) in enumerate(shape.parts)
    ]
    gone = [f"SELECT FROM _w{number}" for number in range(len(work))]
    return assign_parameter_numbers(
        *combine("WITH ", listed(work), " SELECT count(*) FROM (", listed(gone, " UNION ALL "), ") _r")
    )


def _among(role_view: "RoleView", table: str, column: str, ids: Ids) -> "RowQuerySet":
    rows: RowQuerySet = role_view.models[table].unruled.using(role_view.alias)
    return rows.filter(_is_among(column, ids))


def _is_among(column: str, ids: Ids) -> Sql:
    return boolean("(", F(column), " = ANY (", Parameter(ids, "text[]"), "))")


def _changed(writer: Writer, rows: "RowQuerySet", cells: Mapping[str, Any]) -> Piece:
    query: Any = rows.query.chain(UpdateQuery)
    query.add_update_values(cells)
    return writer.query(query)


def _deleted(writer: Writer, rows: "RowQuerySet") -> Piece:
    return writer.query(rows.query.chain(DeleteQuery))


# ── Parts of statements ─────────────────────────────────────────────────────────────────────────────────────────────


def _settled(
    role_view: "RoleView", table: Table, rows: "RowQuerySet", action: Action, matches: bool, events: bool
) -> "RowQuerySet":
    """`rows` under the request's If-Match and, if no event is recorded, only without subscribers."""
    if matches:
        rows = rows.filter(_of_changeable(role_view, table, action, [_matches(role_view, table)]))
    if not events:
        rows = rows.filter(boolean("(NOT ", wanted(table.name, action), ")"))
    return rows


def _of_changeable(role_view: "RoleView", table: Table, action: Action, conditions: Sequence[Any]) -> Any:
    """`conditions`, asked only of a row that may be changed: PostgreSQL asks first what it takes to be cheap, and what
    takes as long as the row's cells are would tell of a hidden row."""
    asked, may = joined(" AND ", conditions, ALWAYS), role_view.may_change(table.name, action)
    return asked if may == ALWAYS else boolean("(CASE WHEN ", may, " THEN ", asked, " END)")


def _matches(role_view: "RoleView", table: Table) -> Sql:
    return boolean("(", etag(role_view, table, CURRENT_ROW), " = ANY (", Parameter(ETAGS, "text[]"), "))")


def _answer(
    writer: Writer, table: Table, change: Piece, action: str, events: bool, changed: tuple[str, ...]
) -> Statement:
    """The write with its event and its result: the row as JSON (null if the caller may not read it any more), its id,
    and with `events` whether there were subscribers."""
    role_view = writer.role_view
    read = role_view.access(table.name).read
    select, joins = shown(writer, table, AliasedRow("_r"))
    body: str | Piece = "row_to_json(_q)"
    if read is None:
        body, select = "NULL::json", ("1", [])
    elif read.where != TRUE:
        visible = writer.expression(role_view.rules.condition(read.where, table.name, AliasedRow("_r")), table.name)
        body = combine("CASE WHEN ", visible, " THEN row_to_json(_q) END")
    flags = [writer.expression(wanted(table.name, action), table.name)] if events else []
    return assign_parameter_numbers(
        *combine(
            "WITH ",
            _written(writer, table, change, action, events, changed),
            " SELECT ",
            listed([body, '_r."id"', *flags]),
            " FROM _w _r",
            joins,
            " CROSS JOIN LATERAL (SELECT ",
            select,
            ") _q",
        )
    )


def _written(
    writer: Writer,
    table: Table,
    change: Piece,
    action: str,
    events: bool,
    changed: tuple[str, ...],
    *,
    part: int | None = None,
) -> Piece:
    """`_w AS (the change), _e AS (its event)`, numbered where there are several parts, each of many rows.

    `_w` has the columns of the row after (of a deleted one, before), and, where an event is to tell of it, under a
    prefix those of the row before.
    """
    number = "" if part is None else str(part)
    kept = "_o" if action == "delete" else "_n"
    columns = [f'{kept}."{name}" AS "{name}"' for name in table.all_columns]
    if events and action == "update":
        columns += [f'_o."{name}" AS "{_OLD_PREFIX}{name}"' for name in table.all_columns]
    work = combine(f"_w{number} AS (", change, " RETURNING WITH (OLD AS _o, NEW AS _n) ", ", ".join(columns), ")")
    if not events:
        return work
    return combine(work, f", _e{number} AS (", _event(writer, table, action, changed, part), ")")


def _event(writer: Writer, table: Table, action: str, changed: tuple[str, ...], part: int | None) -> Piece:
    """The insert into the outbox, from `_w`. Inserts nothing if there are no subscribers any more."""
    here, before = AliasedRow("_r"), AliasedRow("_r", _OLD_PREFIX if action == "update" else "")
    none, nothing = "NULL::json", ""

    def record(source: RowSource, alias: str) -> tuple[str | Piece, str | Piece]:
        cells = writer.expression(Sql(*whole_row(table, source)), table.name)
        return f"row_to_json({alias})", combine(" CROSS JOIN LATERAL (SELECT ", cells, f") {alias}")

    new, new_join = (none, nothing) if action == "delete" else record(here, "_new")
    old, old_join = (none, nothing) if action == "insert" else record(before, "_old")
    names = "'{}'::text[]"
    if action == "update":
        differing = [
            f"""CASE WHEN _r."{name}" IS DISTINCT FROM _r."{_OLD_PREFIX}{name}" THEN '{name}' END""" for name in changed
        ]
        names = f"array_remove(ARRAY[{', '.join(differing)}]::text[], NULL)"
    event_id: list[Any] = [Parameter(EVENT_ID, "text")]
    if part is not None:
        event_id = ["(", Parameter(EventIds(part), "text[]"), ")[row_number() OVER ()]"]
    about = Sql(
        *event_id, ", ", Parameter(ENVIRONMENT, "text"), ", ", _constant(f"{table.name}.{action}"), ", ",
        _constant(f"{table.name}/"), ' || _r."id", ', Parameter(VERSION, "integer"), ", ",
        Parameter(REQUEST, "text"), ", ", Parameter(DEPTH, "smallint"),
    )  # fmt: skip
    return combine(
        'INSERT INTO "platform"."rows_outboxevent" '
        "(event_id, environment_id, type, subject, schema_version, request_id, depth, data) SELECT ",
        writer.expression(about, table.name),
        ", (SELECT row_to_json(_d)::text FROM (SELECT ",
        writer.expression(Sql(_constant(table.name)), table.name),
        ' AS "table", _r."id" AS "id", ',
        new,
        ' AS "record", ',
        old,
        ' AS "old_record", ',
        names,
        f' AS "changed") _d) FROM _w{"" if part is None else part} _r',
        new_join,
        old_join,
        " WHERE ",
        writer.expression(wanted(table.name, action), table.name),
    )


# ── Why not ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def probe(role_view: "RoleView", shape: ProbeShape) -> Statement:
    """The result of each condition of a write that was not made: one row of booleans, or none if no changeable row has
    that id, so that nothing about it is computed.

    The booleans: If-Match fits (an insert: true); no event is missing; then, except for a delete, the conditions of the
    row after the write (`_of_what_would_be`).
    """
    table = role_view.schema.tables[shape.write.table]
    match shape.write:
        case InsertShape() as write:
            would_be = _of_what_would_be(role_view, table, write, None)
            return _verdicts(role_view, table, [ALWAYS, _has_subscribers(table, "insert", write), *would_be])
        case UpdateShape() as write:
            would_be = _of_what_would_be(role_view, table, write, CURRENT_ROW)
            rows = role_view.models[table.name].objects.changeable_by(role_view, "update")
            return _verdicts_of_row(role_view, rows, [*_of_what_is(role_view, table, "update", write), *would_be])
        case DeleteShape() as write:
            rows = role_view.models[table.name].objects.changeable_by(role_view, "delete")
            return _verdicts_of_row(role_view, rows, _of_what_is(role_view, table, "delete", write))


def probe_afterwards(role_view: "RoleView", shape: AfterwardsShape) -> Statement:
    """The verdicts of `_checks` on the row as a write has left it; what it was is known by its OldCells."""
    table = role_view.schema.tables[shape.write.table]
    rows = role_view.models[table.name].unruled.using(role_view.alias)
    return _verdicts_of_row(role_view, rows, _checks(role_view, table, shape.write, CURRENT_ROW, OldRow(table)))


def _of_what_is(role_view: "RoleView", table: Table, action: Action, write: UpdateShape | DeleteShape) -> list[Any]:
    matches = _matches(role_view, table) if write.matches else ALWAYS
    return [matches, _has_subscribers(table, action, write)]


def _has_subscribers(table: Table, action: str, write: InsertShape | UpdateShape | DeleteShape) -> Sql:
    """The write records its event, or there are no subscribers."""
    return ALWAYS if write.events else boolean("(NOT ", wanted(table.name, action), ")")


def _of_what_would_be(
    role_view: "RoleView", table: Table, write: InsertShape | UpdateShape, before: RowSource | None
) -> list[Any]:
    """Of an update two for each computed column; for a large one, whether the row stays small enough; one for each of
    `references_of`; then `_checks`."""
    cells = cells_of(role_view, table, write)
    computable = _is_computable_sql(role_view, table, write) if isinstance(write, UpdateShape) else []
    small = []
    if isinstance(write, UpdateShape) and write.large:
        small = [fits(role_view, table, cells, _rule_of(role_view, table, write).columns)]
    seen = [
        _is_seen(role_view, table, column, cells[column.name], before)
        for column in references_of(role_view, table, write)
    ]
    return [*computable, *small, *seen, *_checks(role_view, table, write, WrittenRow(cells, before), before)]


def _checks(
    role_view: "RoleView", table: Table, write: InsertShape | UpdateShape, source: RowSource, before: RowSource | None
) -> list[Any]:
    """One for each clause of the rule's check, and the whole check. `source` is the row that it is asked of."""
    rule, translator = _rule_of(role_view, table, write), role_view.rules_with(before)
    checks = [*(clause.condition for clause in rule.check_clauses), rule.check]
    return [translator.condition(check, table.name, source) for check in checks]


def _verdicts(role_view: "RoleView", table: Table, conditions: Sequence[Any]) -> Statement:
    """Each condition by itself, of no row in particular."""
    parts: list[Any] = ["SELECT "]
    for condition in conditions:
        parts += [_verdict(condition), ", "]
    return assign_parameter_numbers(*Writer(role_view).expression(Sql(*parts[:-1]), table.name))


def _verdicts_of_row(role_view: "RoleView", rows: "RowQuerySet", conditions: Sequence[Any]) -> Statement:
    """Each condition by itself, of the row with the id, if it is among `rows`."""
    named = {f"_f{index}": _verdict(condition) for index, condition in enumerate(conditions)}
    return assign_parameter_numbers(
        *Writer(role_view).queryset(rows.filter(is_row()).annotate(**named).values_list(*named))
    )


def _verdict(condition: Any) -> Sql:
    return boolean("(", condition, " IS TRUE)")
