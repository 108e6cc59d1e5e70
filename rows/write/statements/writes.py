"""The statements that change rows: each checks, writes, records its event and returns the row, all in one.

    WITH _w0 AS (UPDATE …  WHERE <id> AND <may be changed> AND <the row after passes> AND <references can be seen>
                           AND <If-Match> AND <version>  RETURNING …),
         _e0 AS (INSERT INTO platform.rows_outboxevent … SELECT … FROM _w0)
    SELECT <the row as the caller sees it> FROM _w0

If no row is returned, nothing was written. The conditions about the row after the write are in its WHERE, with
parameters in place of the changed cells, so that PostgreSQL evaluates them again for the row that it has locked.
Without subscribers, the statement only tests that there are none (saves 20-40 µs)."""

from dataclasses import replace
from typing import Any

from django.db.models import F

from rows.query.role_view import RoleView
from rows.query.sql.conditions import CURRENT_ROW, AliasedRow, GivenRow, RowSource
from rows.query.sql.expressions import ALWAYS, Parameter, Sql, boolean, joined, listed
from rows.query.sql.row_json import select_list
from rows.query.sql.statement import (
    AS_TEXT,
    LIMIT,
    ROW_ID,
    After,
    Cell,
    Statement,
    build_statement,
    is_current,
    is_row,
)
from rows.rules.conditions import TRUE, Condition
from rows.schema.model import Table
from rows.write.statements.changes import delete_of, update_of, with_event
from rows.write.statements.conditions import (
    STAMP,
    cells_of,
    conditions_of_row,
    has_no_subscribers,
    is_among,
    needs_second_statement,
    only_if_changeable,
    rule_of,
    with_preconditions,
)
from rows.write.statements.shapes import Action, DeleteShape, Ids, InsertShape, UpdateShape


def insert(role_view: RoleView, shape: InsertShape) -> Statement:
    table = role_view.schema.tables[shape.table]
    change = _inserted(role_view, table, shape, cells_of(role_view, shape))
    work = with_event(table, change, "insert", shape.events, tuple(table.columns))
    return _returning(role_view, table, work, shape.events)


def insert_many(role_view: RoleView, shape: InsertShape) -> Statement:
    """Takes the id and each cell as an array of texts, in the order of the rows. Their timestamps are a microsecond
    apart, the last one now, so that a list by `created_at` shows them in their order."""
    table = role_view.schema.tables[shape.table]
    sent: dict[str, Parameter] = {}
    cells = cells_of(role_view, shape)
    number = ("cardinality(", Parameter(ROW_ID, "text[]"), ") - _s._number")
    for name, cell in cells.items():
        if isinstance(cell, Parameter) and (cell.key == ROW_ID or isinstance(cell.key, Cell)):
            sent[name] = Parameter(cell.key, "text[]")
            cells[name] = Sql(f'_s."{name}"::{cell.sql_type}')
        elif cell is STAMP:
            cells[name] = Sql("(", STAMP, " - (", *number, ") * interval '1 microsecond')")
    names = ", ".join(f'"{name}"' for name in sent)
    source = Sql(" FROM unnest(", listed(sent.values()), f") WITH ORDINALITY _s ({names}, _number)")
    change = Sql(_inserted(role_view, table, shape, cells, source), " ORDER BY _s._number")
    work = with_event(table, change, "insert", shape.events, tuple(table.columns), part=0)
    return _returning(role_view, table, work, shape.events)


def _inserted(
    role_view: RoleView, table: Table, shape: InsertShape, cells: dict[str, Any], source: Sql | str = ""
) -> Sql:
    conditions = [is_current(), *_after_write(role_view, shape, cells, None)]
    if not shape.events:
        conditions.append(has_no_subscribers(shape))
    columns = ", ".join(f'"{name}"' for name in table.all_columns)
    return Sql(
        f"INSERT INTO {role_view.models[table.name]._meta.db_table} ({columns}) SELECT ",
        listed(cells[name] for name in table.all_columns),
        source,
        " WHERE ",
        joined(" AND ", conditions, ALWAYS),
    )


def update(role_view: RoleView, shape: UpdateShape) -> Statement:
    table = role_view.schema.tables[shape.table]
    change, changed = _updated(role_view, table, shape, is_row())
    work = with_event(table, change, "update", shape.events, changed)
    return _returning(role_view, table, work, shape.events)


def bulk_update(role_view: RoleView, shape: UpdateShape) -> Statement:
    """Returns the ids of the updated rows."""
    table = role_view.schema.tables[shape.table]
    change, changed = _updated(role_view, table, shape, is_among("id", Ids()))
    work = with_event(table, change, "update", shape.events, changed, part=0)
    return build_statement(role_view.alias, "WITH ", work, ' SELECT _r."id" FROM _w0 _r')


def _updated(role_view: RoleView, table: Table, shape: UpdateShape, which: Sql) -> tuple[Any, tuple[str, ...]]:
    """The UPDATE, and the columns that it writes."""
    cells = cells_of(role_view, shape)
    rows = role_view.models[table.name].objects.changeable_by(role_view, "update").filter(which, is_current())
    if conditions := _after_write(role_view, shape, cells, CURRENT_ROW):
        rows = rows.filter(only_if_changeable(role_view, shape, conditions))
    rows = with_preconditions(role_view, rows, shape)
    return update_of(rows, cells), tuple(name for name in cells if name != "updated_at")


def _after_write(
    role_view: RoleView, shape: InsertShape | UpdateShape, cells: dict[str, Any], before: RowSource | None
) -> list[Any]:
    conditions = conditions_of_row(role_view, shape, cells, before)
    if not needs_second_statement(role_view, shape):
        check, row = rule_of(role_view, shape).check, GivenRow(cells, before)
        conditions.append(role_view.rules_with(before).condition(check, shape.table, row))
    return conditions


def delete(role_view: RoleView, shape: DeleteShape) -> Statement:
    """Of a table without referrers. Returns the row's id, and with events whether there were subscribers."""
    rows = role_view.models[shape.table].objects.changeable_by(role_view, "delete").filter(is_row(), is_current())
    rows = with_preconditions(role_view, rows, shape)
    work = with_event(role_view.schema.tables[shape.table], delete_of(rows), "delete", shape.events, ())
    is_due = ", (SELECT is_due FROM _e0)" if shape.events else ""
    return build_statement(role_view.alias, "WITH ", work, ' SELECT _r."id"', is_due, " FROM _w0 _r")


def lock_row(role_view: RoleView, write: UpdateShape | DeleteShape, columns: tuple[str, ...]) -> Statement:
    rows = role_view.models[write.table].objects.changeable_by(role_view, write.action).filter(is_row(), is_current())
    rows = with_preconditions(role_view, rows, replace(write, events=True))
    cells = {f"_c{index}": Sql(F(name), AS_TEXT) for index, name in enumerate(columns)}
    return build_statement(role_view.alias, rows.select_for_update().annotate(**cells).values_list("id", *cells))


def select_rows(role_view: RoleView, table: str, action: Action, where: Condition, is_after: bool) -> Statement:
    """The ids of the rows that a bulk `action` may change and that match `where`, locked in their order, at most LIMIT.
    `is_after`: only those after the cursor's."""
    rows = role_view.models[table].objects.changeable_by(role_view, action).filter(is_current())
    if where != TRUE:
        rows = role_view.reading.narrowed(rows, where, table, role_view.may_change(table, action))
    if is_after:
        rows = rows.filter(boolean("(", F("id"), " > ", Parameter(After(0), "text"), ")"))
    found = rows.order_by("id").select_for_update().values_list("id")
    return build_statement(role_view.alias, found, " LIMIT ", Parameter(LIMIT, "bigint"))


def lock_rows(role_view: RoleView, table: str, actions: tuple[Action, ...]) -> Statement:
    """Locks, in the order of their ids, those that one of `actions` may change."""
    may = boolean("(", joined(" OR ", [role_view.may_change(table, action) for action in actions], ALWAYS), ")")
    rows = role_view.models[table].unruled.using(role_view.alias).filter(may, is_among("id", Ids()), is_current())
    locked = rows.order_by("id").select_for_update(no_key="delete" not in actions)
    return build_statement(role_view.alias, locked.values_list("id"))


def _returning(role_view: RoleView, table: Table, work: Sql, events: bool) -> Statement:
    """Each row that `work` wrote as JSON (null if the caller may no longer read it), its id, and with `events` whether
    its event is due (null without subscribers)."""
    row = AliasedRow("_r")
    read = role_view.access(table.name).read
    select, joins = select_list(role_view, table, row)
    body: str | Sql = "row_to_json(_q)"
    if read is None:
        body, select = "NULL::json", Sql("1")
    elif read.where != TRUE:
        visible = role_view.rules.condition(read.where, table.name, row)
        body = Sql("CASE WHEN ", visible, " THEN row_to_json(_q) END")
    return build_statement(
        role_view.alias,
        "WITH ",
        work,
        " SELECT ",
        body,
        ', _r."id"',
        ", (SELECT is_due FROM _e0 LIMIT 1)" if events else "",
        " FROM _w0 _r",
        joins,
        " CROSS JOIN LATERAL (SELECT ",
        select,
        ") _q",
    )
