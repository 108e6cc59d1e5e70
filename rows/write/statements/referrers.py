"""Statements on the rows that refer to given rows. They ignore rules."""

from rows.query.role_view import RoleView
from rows.query.sql.expressions import Sql, listed
from rows.query.sql.statement import Statement, build_statement
from rows.query.tables.managers import RowQuerySet
from rows.write.statements.changes import delete_of, update_of, with_event
from rows.write.statements.conditions import STAMP, is_among
from rows.write.statements.shapes import Ids


def lock_referrers(role_view: RoleView, table: str, column: str, most: int) -> Statement:
    """The ids of at most `most` rows whose `column` is among Ids, locked in the order of their ids."""
    rows = _among(role_view, table, column, Ids()).order_by("id").select_for_update()
    return build_statement(role_view.alias, rows.values_list("id")[:most])


def detach(role_view: RoleView, table: str, column: str, events: bool) -> Statement:
    """Sets `column` of the rows in Ids to null. Returns their ids."""
    rows = _among(role_view, table, "id", Ids())
    change = update_of(rows, {column: Sql("NULL::text"), "updated_at": STAMP})
    work = with_event(role_view.schema.tables[table], change, "update", events, (column,), part=0)
    return build_statement(role_view.alias, "WITH ", work, ' SELECT _r."id" FROM _w0 _r')


def delete_with_events(role_view: RoleView, parts: tuple[tuple[str, bool], ...]) -> Statement:
    """Deletes the rows with Ids of several tables; `parts` are these, and whether events are recorded. One statement,
    because rows that refer to each other in a cycle cannot be deleted one after the other."""
    work = []
    for number, (name, events) in enumerate(parts):
        change = delete_of(_among(role_view, name, "id", Ids(number)))
        work.append(with_event(role_view.schema.tables[name], change, "delete", events, (), part=number))
    deleted = listed((f"SELECT FROM _w{number}" for number in range(len(work))), " UNION ALL ")
    return build_statement(role_view.alias, "WITH ", listed(work), " SELECT count(*) FROM (", deleted, ") _r")


def _among(role_view: RoleView, table: str, column: str, ids: Ids) -> RowQuerySet:
    rows: RowQuerySet = role_view.models[table].unruled.using(role_view.alias)
    return rows.filter(is_among(column, ids))
