"""Statements on the rows that refer to given rows: find, detach or delete them. They ignore rules."""

from rows.query.role_view import RoleView
from rows.query.sql.expressions import Sql
from rows.query.sql.statement import Statement, Writer, build_statement, listed
from rows.query.tables.managers import RowQuerySet
from rows.write.statements.changes import delete_of, update_of, with_event
from rows.write.statements.conditions import STAMP, is_among
from rows.write.statements.shapes import ChildrenShape, DeleteWithEventsShape, DetachShape, Ids


def children(role_view: RoleView, shape: ChildrenShape) -> Statement:
    """The ids of the rows whose `column` is among Ids, locked in the order of their ids."""
    writer = Writer(role_view)
    rows = _among(role_view, shape.table, shape.column, Ids())
    return build_statement(writer.queryset(rows.order_by("id").select_for_update().values_list("id")[: shape.most]))


def detach(role_view: RoleView, shape: DetachShape) -> Statement:
    """Sets `column` of the rows in Ids to null. Returns their ids."""
    writer, table = Writer(role_view), role_view.schema.tables[shape.table]
    rows = _among(role_view, table.name, "id", Ids())
    change = update_of(writer, rows, {shape.column: Sql("NULL::text"), "updated_at": STAMP})
    work = with_event(writer, table, change, "update", shape.events, (shape.column,), part=0)
    return build_statement("WITH ", work, ' SELECT _r."id" FROM _w0 _r')


def delete_with_events(role_view: RoleView, shape: DeleteWithEventsShape) -> Statement:
    """Deletes all given rows in one statement: rows that refer to each other in a cycle cannot be deleted one after the
    other, and rows deleted by PostgreSQL's own cascade would have no event. Returns how many were deleted."""
    writer = Writer(role_view)
    work = [
        with_event(
            writer,
            role_view.schema.tables[name],
            delete_of(writer, _among(role_view, name, "id", Ids(number))),
            "delete",
            events,
            (),
            part=number,
        )
        for number, (name, events) in enumerate(shape.parts)
    ]
    gone = [f"SELECT FROM _w{number}" for number in range(len(work))]
    return build_statement("WITH ", listed(work), " SELECT count(*) FROM (", listed(gone, " UNION ALL "), ") _r")


def _among(role_view: RoleView, table: str, column: str, ids: Ids) -> RowQuerySet:
    rows: RowQuerySet = role_view.models[table].unruled.using(role_view.alias)
    return rows.filter(is_among(column, ids))
