"""Renders a row as JSON: the select list of its cells, used by every response, relation, event and `ETag`, so that the
bytes are always the same. Also renders embedded relations, and limits their size."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import QuerySet

from rows.query.params import With, WithUser
from rows.query.role_view import RoleView
from rows.query.sql.conditions import AliasedRow, RowSource
from rows.query.sql.expressions import Sql, listed
from rows.rules.conditions import Condition
from rows.schema.model import Column, Hop, Table

MAX_EMBEDDED: Final = 100
MAX_ANSWER_BYTES: Final = 16 * 2**20
"""Per response: unbounded texts or nested relations could exhaust PostgreSQL's memory or ours."""


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """Records the used columns, so that no others are read."""

    alias: str
    used: set[str] = field(default_factory=set)

    def column(self, name: str, depth: int = 0) -> Any:
        self.used.add(name)
        return AliasedRow(self.alias).column(name, depth)


def json_format(column: Column) -> tuple[str, str]:
    """The SQL before and after a cell. PostgreSQL's own form, if that is exact and stable."""
    if column.type == "decimal":
        # A JSON number would lose digits in every client that reads it as a float. Always the column's scale: "1.50".
        return "round(", f", {column.scale or 0:d})::text"
    if column.type == "timestamp":
        # PostgreSQL trims the fraction and follows the session's zone; these are always UTC, Z and six digits.
        return "to_char(", " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    return "", ""


def cells(
    role_view: RoleView,
    table: Table,
    source: RowSource,
    masked: Callable[[Condition], Any] | None = None,
    chosen: Collection[str] | None = None,
) -> Sql:
    """The readable cells at `source`. `masked` applies a read condition; `chosen` names the columns, `id` among them
    (None: all)."""
    ask = masked or (lambda mask: role_view.rules.condition(mask, table.name, source))
    made: list[Sql] = []
    for column in role_view.columns(table.name):
        if chosen is not None and column.name not in chosen:
            continue
        before, after = json_format(column)
        mask = role_view.mask(table.name, column.name)
        spelled: list[Any] = [before, source.column(column.name), after]
        if mask is not None:
            spelled = ["CASE WHEN ", ask(mask), " THEN ", *spelled, " END"]
        made.append(Sql(*spelled, f' AS "{column.name}"'))
    return listed(made)


def whole_row(table: Table, source: RowSource) -> Sql:
    formats = {column.name: json_format(column) for column in table.all_columns.values()}
    return listed(Sql(before, source.column(name), f'{after} AS "{name}"') for name, (before, after) in formats.items())


def etag(role_view: RoleView, table: Table, source: RowSource) -> Sql:
    return Sql(
        "(SELECT encode(sha256(convert_to(row_to_json(_q)::text, 'UTF8')), 'hex') FROM (SELECT ",
        cells(role_view, table, source),
        ") _q)",
    )


def select_list(
    role_view: RoleView, table: Table, source: AliasedRow | TrackedRow, chosen: Collection[str] | None = None
) -> tuple[Sql, Sql]:
    """`cells`, and the join with the conditions of masked ones."""
    masks: dict[Condition, int] = {}
    flags = f"_m{source.alias}"

    def flag(mask: Condition) -> Sql:
        return Sql(f"{flags}._m{masks.setdefault(mask, len(masks))}")

    select = cells(role_view, table, source, flag, chosen)
    if not masks:
        return select, Sql()
    conditions = [
        Sql(role_view.rules.condition(mask, table.name, source), f" AS _m{number}") for mask, number in masks.items()
    ]
    # OFFSET 0 keeps the planner from copying each condition into each cell that asks for it.
    return select, Sql(" CROSS JOIN LATERAL (SELECT ", listed(conditions), f" OFFSET 0) {flags}")


def relation_json(role_view: RoleView, one: With | WithUser, table: str, source: RowSource, depth: int = 1) -> Sql:
    if isinstance(one, WithUser):
        user_id = role_view.reading.cell(table, one.column, source)
        # A marker that `rows.query.embedded_users` replaces.
        found = Sql(r"(E'\t' || to_json(", user_id, ")::text)::json")
    else:
        found = _embedded(role_view, one, table, source, depth)
    return Sql(found, f' AS "{one.name}"')


def _embedded(role_view: RoleView, one: With, table: str, source: RowSource, depth: int) -> Sql:
    """A row or null, or an array of at most MAX_EMBEDDED rows, with a CONTINUATION element if there are more. If it
    exceeds MAX_ANSWER_BYTES, a text of that size replaces it, so that everything that contains it is left out too."""
    far = role_view.schema.tables[one.hop.table]
    seen, guard = role_view.reading.linked(one.hop, table, source)
    row, made = TrackedRow(f"_r{depth}"), f"_q{depth}"
    select, joins = select_list(role_view, far, row, one.columns)
    inside = [relation_json(role_view, inner, far.name, row, depth + 1) for inner in one.inside]
    rows: QuerySet[Any, Any] = seen.values_list(*needed_columns(far, row, one.columns))
    if one.hop.many:
        near = role_view.schema.tables[table]
        is_taken = f"{one.hop.relation}_next" in {*near.all_columns, *near.relations}
        rows = rows.order_by("id")[: MAX_EMBEDDED if is_taken else MAX_EMBEDDED + 1]
    found = Sql(
        f"(SELECT row_to_json({made}) AS _j",
        f', {row.alias}."id" AS _id' if one.hop.many else "",
        " FROM (",
        rows,
        f") {row.alias}",
        joins,
        " CROSS JOIN LATERAL (SELECT ",
        listed([select, *inside]),
        f") {made}",
        " OFFSET 0)" if one.hop.many else ")",
    )
    if one.hop.many:
        found = Sql(
            "(SELECT CASE WHEN count(_b._j) < count(*) THEN ",
            _TOO_LARGE,
            " ELSE coalesce(array_to_json(array_agg(_b._j)), '[]'::json) END FROM (SELECT ",
            f"CASE WHEN row_number() OVER () <= {MAX_EMBEDDED} THEN ",
            limited("_a._j", "pg_column_size(_a._j)"),
            " ELSE ",
            _continuation(one.hop, source),
            " END AS _j FROM ",
            found,
            " _a) _b)",
        )
    if guard is None:
        return found
    return Sql("CASE WHEN ", guard, " THEN ", found, " END")


def _continuation(hop: Hop, source: RowSource) -> Sql:
    """The element after the last embedded row. Only raw tabs mark it, which PostgreSQL escapes in cells."""
    names = f"'{hop.relation}', '{hop.table}', '{hop.column}', "
    values = [names, source.column("id"), ", lag(_a._id) OVER ()"]
    return Sql("(chr(9) || json_build_array(", *values, ")::text || chr(9))::json")


CONTINUATION: Final = re.compile(rb",\t(\[[^\t]*\])\t\]")
"""The end of a truncated array: texts of relation, table, column, its id, and the last row's id."""


def needed_columns(table: Table, row: TrackedRow, chosen: Collection[str] | None) -> list[str]:
    """The innermost select's columns, known once all above is written: all, or those that `row` recorded."""
    return [name for name in table.all_columns if chosen is None or name in row.used]


_TOO_LARGE: Final = f"to_json(repeat('.', {MAX_ANSWER_BYTES} + 0 * count(*)::int))"
"""Not constant: PostgreSQL would evaluate it when planning (50 ms, and 16 MB per cached plan)."""
_EARLIER: Final = "OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"


def limited(json: str, size: str) -> str:
    """`json`, but null once previous rows exceed MAX_ANSWER_BYTES. For a query around the one that makes the JSON."""
    return f"CASE WHEN coalesce(sum({size}) {_EARLIER}, 0) <= {MAX_ANSWER_BYTES} THEN {json} END"
