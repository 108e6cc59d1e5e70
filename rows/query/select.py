"""Compiles querysets into prepared statements: one per shape of a request.

In: a `RoleView` whose operands are parameters, and the shape of a request (a condition, an order, relations, columns)
without values. Out: a `Statement`, one text with `$1 … $n` and the names of the values to bind. Its innermost select
*is* the row manager's queryset, compiled by Django. The JSON is rendered outside of the LIMIT, only for the rows that
are sent (17 ms instead of 155 ms).

    SELECT row_to_json(_q), row_to_json(_w), _r."due_on"::text, …          one row per row: Python joins the bytes
    FROM (<the ruled queryset>) _r
    CROSS JOIN LATERAL (SELECT <cell>, <cell>, …) _q                        the cells, each through `json_rendering`
    CROSS JOIN LATERAL (SELECT (SELECT … far row …) AS "list", …) _w        `with`
    WHERE <the environment is still at the version this was compiled for>

Names that begin with an underscore are reserved: no column can have one. `rows.query.context` calls it and caches the
statements; `rows.write.statements` has the statements that write. Runs no query.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from django.db import connections
from django.db.models import Expression, F, OrderBy, QuerySet
from django.db.models.sql import Query

from platform_site.http import cursors
from rows.query import embedded_users, json_rendering, table_models
from rows.query.params import OrderKey, With, Withs, WithUser
from rows.query.sql import NEVER, Parameter, Piece, Sql, boolean, joined
from rows.query.sql_conditions import AliasedRow, RowSource
from rows.rules.conditions import TRUE, Condition, Hop, Variable
from rows.rules.principal import Principal, bind
from rows.schema.model import Table

if TYPE_CHECKING:
    from rows.query.managers import RowQuerySet
    from rows.query.role_view import RoleView

MAX_EMBEDDED: Final = 100
"""Rows of a to-many relation that are embedded in one row."""
MAX_ANSWER_BYTES: Final = 16 * 2**20
"""Of the rows of one answer. PostgreSQL leaves out what is beyond: without a bound some few requests for long texts, or
for relations of relations, each leading to a hundred rows, would take all the memory that it or our process has."""

AS_TEXT: Final = f'::text COLLATE "{table_models.COLLATION}"'
"""Behind a column that a statement answers with. The answer's types and collations are then those of before when the
column's type changes; PostgreSQL refuses a prepared statement whose are not, and its text may be the same."""

ENVIRONMENT: Final = "environment"
VERSION: Final = "version"
ROW_ID: Final = "id"
LIMIT: Final = "limit"
Key = Hashable


@dataclass(frozen=True, slots=True)
class After:
    """The value of order key `index` at the place where the page before ended."""

    index: int


@dataclass(frozen=True, slots=True)
class Cell:
    """The new value of a column."""

    column: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One text, and what its parameters take: a constant (bytes), the number of a filter's value (int), a rule's
    `Variable`, or a name (`After`, `Cell`, one of this module's words) that the request looks up."""

    sql: bytes
    keys: tuple[Key, ...]

    def bind(
        self, named: Mapping[Key, bytes | None], wires: Sequence[bytes], principal: Principal
    ) -> list[bytes | None]:
        """The values in order. Raises KeyError for a name that the request does not know: a null would not do."""
        values: list[bytes | None] = []
        for key in self.keys:
            match key:
                case int():
                    values.append(wires[key])
                case bytes():
                    values.append(key)
                case Variable():
                    values.append(bind(key, principal))
                case _:
                    values.append(named[key])
        return values


def assign_parameter_numbers(sql: str, params: Iterable[Any]) -> Statement:
    """The finished statement: `%s` becomes `$n`, one number for each (key, type) however often it occurs."""
    numbers: dict[tuple[Key, str], int] = {}
    spelled: list[str] = []
    for param in params:
        if isinstance(param, Parameter):
            key = param.wire if param.wire is not None else param.key
            number = numbers.setdefault((key, param.sql_type), len(numbers) + 1)
            spelled.append(f"${number}")
        elif isinstance(param, int) and not isinstance(param, bool):
            spelled.append(str(int(param)))  # Django's own: EXISTS(SELECT 1 …)
        else:
            raise TypeError(f"a value got into a statement: {param!r}")
    return Statement((sql % tuple(spelled)).encode(), tuple(key for key, _ in numbers))


# ── Pieces ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Writer:
    """Puts a statement together: texts of this module, and what Django compiles."""

    def __init__(self, role_view: "RoleView") -> None:
        self.role_view = role_view
        self.connection = connections[role_view.alias]
        self._numbers = count()

    def number(self) -> int:
        """A number for aliases, fresh in this statement."""
        return next(self._numbers)

    def queryset(self, rows: "QuerySet[Any, Any]") -> Piece:
        return self.query(rows.query)

    def query(self, query: Query) -> Piece:
        sql, params = query.get_compiler(connection=self.connection).as_sql()
        return sql, list(params)

    def expression(self, expression: Any, table: str) -> Piece:
        """An expression outside of any queryset: it only refers to aliases and parameters."""
        query = Query(self.role_view.models[table])
        compiler = query.get_compiler(connection=self.connection)
        sql, params = compiler.compile(expression.resolve_expression(query))
        return sql, list(params)


def combine(*parts: "str | Piece") -> Piece:
    """One piece of several."""
    texts: list[str] = []
    params: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        else:
            texts.append(part[0])
            params += part[1]
    return "".join(texts), params


def listed(pieces: Iterable["str | Piece"], separator: str = ", ") -> Piece:
    parts: list[str | Piece] = []
    for piece in pieces:
        parts += [piece, separator]
    return combine(*parts[:-1])


def is_current() -> Sql:
    """Whether the environment still is at the version that the statement was compiled for.

    Evaluated once, before any row is read; in the same snapshot as the rows.
    """
    return boolean(
        "(SELECT version = ", Parameter(VERSION, "integer"), ' FROM "platform"."rows_currentversion"'
        " WHERE environment_id = ", Parameter(ENVIRONMENT, "text"), ")",
    )  # fmt: skip


def is_row() -> Sql:
    """The condition that the current row is the one that the request addresses."""
    return boolean("(", F("id"), " = ", Parameter(ROW_ID, "text"), ")")


# ── Rows as JSON ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """A row under an alias, which records the columns that are used, so that no others are read."""

    alias: str
    asked: set[str] = field(default_factory=set)

    def column(self, name: str, depth: int = 0) -> Any:
        self.asked.add(name)
        return AliasedRow(self.alias).column(name, depth)


def cells(
    role_view: "RoleView",
    table: Table,
    source: RowSource,
    masked: Callable[[Condition], Any] | None = None,
    chosen: Collection[str] | None = None,
) -> list[Any]:
    """The select list that makes a row's JSON: each readable cell of the row at `source`, through `json_rendering`.

    `masked` gives the expression of a condition under which a cell may be read; `chosen` names the columns to show,
    `id` among them, None all.
    """
    ask = masked or (lambda mask: role_view.rules.condition(mask, table.name, source))
    made: list[Any] = []
    for column in role_view.columns(table.name):
        if chosen is not None and column.name not in chosen:
            continue
        before, after = json_rendering.fragment(column)
        mask = role_view.mask(table.name, column.name)
        spelled: list[Any] = [before, source.column(column.name), after]
        if mask is not None:
            spelled = ["CASE WHEN ", ask(mask), " THEN ", *spelled, " END"]
        made += [*spelled, f' AS "{column.name}"', ", "]
    return made[:-1]


def whole_row(table: Table, source: RowSource) -> list[Any]:
    """As `cells`, for the whole row, whoever looks: what events carry."""
    made: list[Any] = []
    for column in table.all_columns.values():
        before, after = json_rendering.fragment(column)
        made += [before, source.column(column.name), after, f' AS "{column.name}"', ", "]
    return made[:-1]


def etag(role_view: "RoleView", table: Table, source: RowSource) -> Sql:
    """The SHA-256, in hex, of the row's JSON as this role_view sees it, without `with`."""
    return Sql(
        "(SELECT encode(sha256(convert_to(row_to_json(_q)::text, 'UTF8')), 'hex') FROM (SELECT ",
        *cells(role_view, table, source),
        ") _q)",
    )


def shown(
    writer: Writer, table: Table, source: RowSource, chosen: Collection[str] | None = None
) -> tuple[Piece, Piece]:  # fmt: skip
    """`cells` of the row at `source`, and what must be joined for them."""
    role_view = writer.role_view
    masks: dict[Condition, int] = {}
    flags = f"_m{writer.number()}"

    def flag(mask: Condition) -> Sql:
        return Sql(f"{flags}._m{masks.setdefault(mask, len(masks))}")

    select = writer.expression(Sql(*cells(role_view, table, source, flag, chosen)), table.name)
    if not masks:
        return select, ("", [])
    asked = [
        combine(writer.expression(role_view.rules.condition(mask, table.name, source), table.name), f" AS _m{number}")
        for mask, number in masks.items()
    ]
    # OFFSET 0 keeps the planner from copying each condition into each cell that asks for it.
    return select, combine(" CROSS JOIN LATERAL (SELECT ", listed(asked), f" OFFSET 0) {flags}")


def _relation(writer: Writer, one: With | WithUser, table: str, source: RowSource) -> Piece:
    """What `one` puts under its name into the JSON of the row at `source`."""
    if isinstance(one, WithUser):
        user_id = writer.role_view.reading.cell(table, one.column, source)
        found = writer.expression(embedded_users.mark(user_id), table)
    else:
        found = embedded(writer, one, table, source)
    return combine(found, f' AS "{one.name}"')


def embedded(writer: Writer, one: With, table: str, source: RowSource) -> Piece:
    """The JSON of relation `one` of the row at `source`: the far row or null, or an array of at most MAX_EMBEDDED.

    Where there are more, the array has one more element, between two tabs: the values of a cursor (CONTINUATION).

    An array of more than MAX_ANSWER_BYTES is never put together: in its place is a text that is longer than that, so
    that whatever it becomes a part of is left out as well.
    """
    far = writer.role_view.schema.tables[one.hop.table]
    seen, guard = writer.role_view.reading.linked(one.hop, table, source)
    number = writer.number()
    row, made = TrackedRow(f"_r{number}"), f"_q{number}"
    select, joins = shown(writer, far, row, one.columns)
    inside = [_relation(writer, inner, far.name, row) for inner in one.inside]
    rows: QuerySet[Any, Any] = seen.values_list(*_needed(far, row, one.columns))
    if one.hop.many:
        near = writer.role_view.schema.tables[table]
        is_taken = f"{one.hop.relation}_next" in {*near.all_columns, *near.relations}
        rows = rows.order_by("id")[: MAX_EMBEDDED if is_taken else MAX_EMBEDDED + 1]
    found = combine(
        "(SELECT ",
        f"row_to_json({made}) AS _j" + (f', {row.alias}."id" AS _id' if one.hop.many else ""),
        " FROM (",
        writer.queryset(rows),
        f") {row.alias}",
        joins,
        " CROSS JOIN LATERAL (SELECT ",
        listed([select, *inside]),
        f") {made}",
        " OFFSET 0)" if one.hop.many else ")",
    )
    if one.hop.many:
        found = combine(
            "(SELECT CASE WHEN count(_b._j) < count(*) THEN ",
            _TOO_LARGE,
            " ELSE coalesce(array_to_json(array_agg(_b._j)), '[]'::json) END FROM (SELECT ",
            f"CASE WHEN row_number() OVER () <= {MAX_EMBEDDED} THEN ",
            held("_a._j", "pg_column_size(_a._j)"),
            " ELSE ",
            writer.expression(_continuation(one.hop, source), table),
            " END AS _j FROM ",
            found,
            " _a) _b)",
        )
    if guard is None:
        return found
    return combine("CASE WHEN ", writer.expression(guard, table), " THEN ", found, " END")


def _continuation(hop: Hop, source: RowSource) -> Sql:
    """The element after the last embedded row of `_a`. PostgreSQL writes no tab into JSON by itself, and escapes those
    of texts, so that no cell can look like it."""
    names = f"'{hop.relation}', '{hop.table}', '{hop.column}', "
    values = [names, source.column("id"), ", lag(_a._id) OVER ()"]
    return Sql("(chr(9) || json_build_array(", *values, ")::text || chr(9))::json")


CONTINUATION: Final = re.compile(rb",\t(\[[^\t]*\])\t\]")
"""In JSON: where an array of `embedded` rows goes on, up to its end. The group is an array of the texts relation, far
table, its column, the id in it, and the id of the last row."""


def _needed(table: Table, row: TrackedRow, chosen: Collection[str] | None) -> list[str]:
    """The columns that the innermost select has to have, once everything above it was written: all of them, or, where
    some were chosen, what was asked of `row` for these and for the rules and relations that lean on others."""
    return [name for name in table.all_columns if chosen is None or name in row.asked]


_TOO_LARGE: Final = f"to_json(repeat('.', {MAX_ANSWER_BYTES} + 0 * count(*)::int))"
"""Of a constant length PostgreSQL would make the text as it plans: 50 ms, and 16 MB in each plan that it keeps."""
_EARLIER: Final = "OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"


def held(json: str, size: str) -> str:
    """`json`, but null once the rows before it have more than MAX_ANSWER_BYTES. `size` is an expression of one row's.

    Written for a query around the one that makes the JSON, so that each is made once.
    """
    return f"CASE WHEN coalesce(sum({size}) {_EARLIER}, 0) <= {MAX_ANSWER_BYTES} THEN {json} END"


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ReadShape:
    """What a reading request asks for, without its values. `after` is None for a first page, else for each order key
    whether its value was null. `order` None: one row, by `id`. `columns` None: all that may be read."""

    table: str
    where: Condition = TRUE
    order: tuple[OrderKey, ...] | None = None
    withs: Withs = ()
    after: tuple[bool, ...] | None = None
    columns: tuple[str, ...] | None = None


def read(role_view: "RoleView", shape: ReadShape) -> Statement:
    """The statement of a list, or of one row.

    Its columns: the row as JSON; where there are `withs`, the relations as JSON; for a list the text of each order key,
    for the cursor. JSON of rows behind more than MAX_ANSWER_BYTES is null, as are relations of more than that.
    """
    writer = Writer(role_view)
    table = role_view.schema.tables[shape.table]
    row = TrackedRow("_r")
    select, joins = shown(writer, table, row, shape.columns)
    columns: list[str | Piece] = ["row_to_json(_q)"]
    joined_with: str | Piece = ""
    if shape.withs:
        columns.append("row_to_json(_w)")
        relations = [_relation(writer, one, table.name, row) for one in shape.withs]
        joined_with = combine(" CROSS JOIN LATERAL (SELECT ", listed(relations), ") _w")
    rows: QuerySet[Any, Any] = filtered(role_view, shape)
    needed = _needed(table, row, shape.columns)
    if shape.order is None:
        inner, keys = writer.queryset(rows.filter(is_row()).values_list(*needed)), []
    else:
        inner, names = _page(writer, table, rows, needed, shape.order, shape.after)
        # Of a text as long as that there is no cursor anyway, and each row carries it a second time.
        keys = [f'left(_r."{name}"{AS_TEXT}, {cursors.MAX_CHARACTERS})' for name in names]
    found = combine(
        "SELECT ",
        listed([*columns, *keys]),
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
    if shape.order is None and not shape.withs:
        return assign_parameter_numbers(*found)
    return assign_parameter_numbers(*_bounded(found, shape, len(keys)))


def _bounded(found: Piece, shape: ReadShape, keys: int) -> Piece:
    """The rows of `found` without the JSON that no answer holds. OFFSET 0 keeps the planner from making it twice."""
    names, size = ["_j"], "pg_column_size(_s._j)"
    relations = f"CASE WHEN pg_column_size(_s._k) <= {MAX_ANSWER_BYTES} THEN _s._k END"
    if shape.withs:
        names, size = ["_j", "_k"], f"{size} + pg_column_size(_s._k)"
    shown = ["_s._j", relations][: len(names)]
    if shape.order is not None:
        shown = [held(json, size) for json in shown]
    texts = [f"_o{number}" for number in range(keys)]
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
    """How many rows a list has in all; counting stops at `most`."""

    rows: ReadShape
    most: int | None


def counted(role_view: "RoleView", shape: CountShape) -> Statement:
    """The number of rows of a list without its page. No row comes back where the version is stale."""
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
    """PostgreSQL's plan for a list without its page, as JSON."""
    sql, params = Writer(role_view).queryset(filtered(role_view, shape).values_list("id"))
    return assign_parameter_numbers(*combine("EXPLAIN (FORMAT JSON) ", (sql, params)))


def filtered(role_view: "RoleView", shape: ReadShape) -> "RowQuerySet":
    rows = role_view.models[shape.table].objects.visible_to(role_view)
    if shape.where == TRUE:
        return rows
    return role_view.reading.narrowed(rows, shape.where, shape.table, role_view.may_read(shape.table))


# ── Pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _page(
    writer: Writer,
    table: Table,
    rows: "QuerySet[Any, Any]",
    columns: Collection[str],
    order: tuple[OrderKey, ...],
    after: tuple[bool, ...] | None,
) -> tuple[Piece, list[str]]:
    """The rows of one page, with `columns` of theirs, and under which names they carry their order keys.

    Behind a cursor the page is a UNION ALL of ranges, each ordered and limited by itself, and both again outside: every
    range is a stretch of the index that has the page's order, also across the border into nulls and with mixed
    directions, where one condition with OR would walk the index from its start.
    """
    keys: list[tuple[OrderKey, str, Any]] = []
    extra: dict[str, Any] = {}
    for index, key in enumerate(order):
        path = key.path
        if not path.hops and writer.role_view.mask(table.name, path.column) is None:
            keys.append((key, path.column, F(path.column)))
        else:
            extra[f"_k{index}"] = value = writer.role_view.reading.value(path, table.name)
            keys.append((key, f"_k{index}", value))
    limit: Piece = (" LIMIT %s::bigint", [Parameter(LIMIT, "bigint")])
    names = [name for _, name, _ in keys]
    selected = [name for name in table.all_columns if name in columns or name in names]
    rows = rows.annotate(**extra).values_list(*selected, *extra).order_by(
        *[_order(key, F(name)) for key, name, _ in keys]
    )  # fmt: skip
    ranges = [[]] if after is None else list(_ranges([(key, value) for key, _, value in keys], after))
    pages = [combine(writer.queryset(rows.filter(*conditions)), limit) for conditions in ranges]
    if len(pages) == 1:
        return pages[0], names
    ordered = ", ".join(f'"{name}"{direction(key)}' for key, name, _ in keys)
    return combine(
        listed([combine("(", page, ")") for page in pages], " UNION ALL "), f" ORDER BY {ordered}", limit
    ), names


def _order(key: OrderKey, value: Any) -> OrderBy:
    """Says where nulls go only where PostgreSQL would put them elsewhere: an index on the column can then serve it."""
    if key.nulls_first == key.descending:
        return OrderBy(value, descending=key.descending)
    return OrderBy(
        value, descending=key.descending, nulls_first=key.nulls_first or None, nulls_last=not key.nulls_first or None
    )


def direction(key: OrderKey) -> str:
    nulls = "" if key.nulls_first == key.descending else " NULLS FIRST" if key.nulls_first else " NULLS LAST"
    return f"{' DESC' if key.descending else ''}{nulls}"


def _ranges(keys: list[tuple[OrderKey, Any]], after: tuple[bool, ...]) -> Iterable[list[Expression]]:
    """The conditions of each range behind the cursor, nearest first. The last key is `id`: unique and never null."""
    tail = len(keys) - 1
    while tail > 0 and _joins_row(keys[tail - 1][0], keys[tail][0]) and not after[tail - 1]:
        tail -= 1
    # Keys from `tail` on run in one direction and are never null: PostgreSQL compares them as a row, one range of an
    # index.
    left = joined(", ", [value for _, value in keys[tail:]], NEVER)
    right = joined(", ", [_bound(index, key) for index, (key, _) in list(enumerate(keys))[tail:]], NEVER)
    sign = " < " if keys[-1][0].descending else " > "
    yield [*_equal(keys[:tail], after), boolean("(", left, sign, right, ")")]
    for index in range(tail - 1, -1, -1):
        key, value = keys[index]
        before = _equal(keys[:index], after)
        if after[index]:
            if key.nulls_first:
                yield [*before, boolean("(", value, " IS NOT NULL)")]
            continue
        yield [*before, boolean("(", value, " < " if key.descending else " > ", _bound(index, key), ")")]
        if key.null and not key.nulls_first:
            yield [*before, boolean("(", value, " IS NULL)")]


def _joins_row(one: OrderKey, other: OrderKey) -> bool:
    return one.descending == other.descending and not one.null


def _bound(index: int, key: OrderKey) -> Parameter:
    return Parameter(After(index), key.type)


def _equal(keys: Sequence[tuple[OrderKey, Any]], after: Sequence[bool]) -> list[Expression]:
    return [
        boolean("(", value, " IS NULL)") if after[index] else boolean("(", value, " = ", _bound(index, key), ")")
        for index, (key, value) in enumerate(keys)
    ]
