"""Compiles querysets into prepared statements, one per shape of a request: a `RoleView` with open operands and a shape
without values become a `Statement`. The innermost select *is* the row manager's queryset, compiled by Django; JSON is
rendered outside of the LIMIT (17 ms instead of 155 ms):

    SELECT row_to_json(_q), row_to_json(_w), _r."due_on"::text, …
    FROM (<the ruled queryset>) _r
    CROSS JOIN LATERAL (SELECT <cell through `json_rendering`>, …) _q
    CROSS JOIN LATERAL (SELECT (SELECT … far row …) AS "list", …) _w
    WHERE <the environment is still at the version this was compiled for>"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet

from platform_site.http import cursors
from rows.query.params import OrderKey, With, Withs, WithUser
from rows.query.sql.expressions import Piece
from rows.query.sql.pages import page
from rows.query.sql.row_json import MAX_ANSWER_BYTES, TrackedRow, held, needed_columns, relation_json, shown, user_id
from rows.query.sql.statement import (
    AS_TEXT,
    Statement,
    Writer,
    assign_parameter_numbers,
    combine,
    is_current,
    is_row,
    listed,
)
from rows.rules.conditions import TRUE, Condition

if TYPE_CHECKING:
    from rows.query.role_view import RoleView
    from rows.query.tables.managers import RowQuerySet


@dataclass(frozen=True, slots=True)
class ReadShape:
    """A reading request without its values. `after`: None for a first page, else per order key whether its value was
    null. `order` None: one row, by `id`. `columns` None: all."""

    table: str
    where: Condition = TRUE
    order: tuple[OrderKey, ...] | None = None
    withs: Withs = ()
    after: tuple[bool, ...] | None = None
    columns: tuple[str, ...] | None = None

    @property
    def has_only_users(self) -> bool:
        return With not in map(type, self.withs)


def read(role_view: "RoleView", shape: ReadShape) -> Statement:
    """The statement of a list or row: the row as JSON; with `withs` the relations as JSON, or only users' ids; for a
    list the text of each order key. JSON beyond MAX_ANSWER_BYTES is null."""
    writer = Writer(role_view)
    table = role_view.schema.tables[shape.table]
    row = TrackedRow("_r")
    select, joins = shown(writer, table, row, shape.columns)
    columns: list[str | Piece] = ["row_to_json(_q)"]
    joined_with: str | Piece = ""
    user_ids: list[str | Piece] = []
    if shape.has_only_users:
        columns_of_users = [one.column for one in shape.withs if isinstance(one, WithUser)]
        user_ids = [writer.expression(user_id(writer, name, table.name, row), table.name) for name in columns_of_users]
    else:
        columns.append("row_to_json(_w)")
        relations = [relation_json(writer, one, table.name, row) for one in shape.withs]
        joined_with = combine(" CROSS JOIN LATERAL (SELECT ", listed(relations), ") _w")
    rows: QuerySet[Any, Any] = filtered(role_view, shape)
    needed = needed_columns(table, row, shape.columns)
    if shape.order is None:
        inner, keys = writer.queryset(rows.filter(is_row()).values_list(*needed)), []
    else:
        inner, names = page(writer, table, rows, needed, shape.order, shape.after)
        # Of a text as long as that there is no cursor anyway, and each row carries it a second time.
        keys = [f'left(_r."{name}"{AS_TEXT}, {cursors.MAX_CHARACTERS})' for name in names]
    found = combine(
        "SELECT ",
        listed([*columns, *user_ids, *keys]),
        " FROM (",
        inner,
        ") _r",
        joins,
        " CROSS JOIN LATERAL (SELECT ",
        select,
        ") _q",
        joined_with,
        " WHERE ",
        writer.expression(is_current(), table.name),
    )
    if shape.order is None and shape.has_only_users:
        return assign_parameter_numbers(*found)
    return assign_parameter_numbers(*_bounded(found, shape, len(user_ids) + len(keys)))


def _bounded(found: Piece, shape: ReadShape, texts_beside: int) -> Piece:
    """The rows of `found` within MAX_ANSWER_BYTES. OFFSET 0 keeps the planner from making the JSON twice."""
    names, size = ["_j"], "pg_column_size(_s._j)"
    relations = f"CASE WHEN pg_column_size(_s._k) <= {MAX_ANSWER_BYTES} THEN _s._k END"
    if not shape.has_only_users:
        names, size = ["_j", "_k"], f"{size} + pg_column_size(_s._k)"
    shown = ["_s._j", relations][: len(names)]
    if shape.order is not None:
        shown = [held(json, size) for json in shown]
    texts = [f"_o{number}" for number in range(texts_beside)]
    return combine(
        "SELECT ",
        listed([*shown, *(f"_s.{text}" for text in texts)]),
        " FROM (",
        found,
        " OFFSET 0) _s (",
        listed([*names, *texts]),
        ")",
    )


@dataclass(frozen=True, slots=True)
class CountShape:
    rows: ReadShape
    most: int | None


def counted(role_view: "RoleView", shape: CountShape) -> Statement:
    writer = Writer(role_view)
    limit = "" if shape.most is None else f" LIMIT {shape.most:d}"
    return assign_parameter_numbers(
        *combine(
            "SELECT count(*) FROM (",
            writer.queryset(filtered(role_view, shape.rows).values_list("id")),
            limit,
            ") _r HAVING ",
            writer.expression(is_current(), shape.rows.table),
        )
    )


def planned(role_view: "RoleView", shape: ReadShape) -> Statement:
    sql, params = Writer(role_view).queryset(filtered(role_view, shape).values_list("id"))
    return assign_parameter_numbers(*combine("EXPLAIN (FORMAT JSON) ", (sql, params)))


def filtered(role_view: "RoleView", shape: ReadShape) -> "RowQuerySet":
    rows = role_view.models[shape.table].objects.visible_to(role_view)
    if shape.where == TRUE:
        return rows
    return role_view.reading.narrowed(rows, shape.where, shape.table, role_view.may_read(shape.table))
