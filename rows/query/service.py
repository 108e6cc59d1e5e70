"""Reads rows as JSON that PostgreSQL renders; it is not parsed here."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import orjson

from platform_site.concurrency.memo import Memo
from platform_site.http import cursors
from platform_site.http.errors import NotFound, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.libpq import Row
from platform_site.postgres.replicas import Freshness
from rows.query import embedded_users, params
from rows.query import where as query_where
from rows.query.context import QueryContext, StaleVersion, run
from rows.query.sql import row_json, select
from rows.query.sql.row_json import MAX_ANSWER_BYTES
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import LIMIT, ROW_ID, After
from rows.rules.conditions import Condition, Filter, Path, hops_of
from rows.rules.principal import Principal
from rows.schema.column_values import ROW_ID as ROW_ID_PATTERN
from rows.schema.model import Table

COUNT_CEILING: Final = 10_000
"""Up to which `count=estimated` is exact."""
_KIND: Final = "rows"
_RELATION_KIND: Final = "rows of a relation"
Count = Literal["exact", "estimated"]
COUNTS: Final[tuple[Count, ...]] = get_args(Count)
QUERY_FIELDS: Final = frozenset({"where", "order", "limit", "cursor", "with", "columns", "count"})


@dataclass(frozen=True, slots=True)
class ListQuery:
    where: Any = None
    order: Any = None
    limit: int = 20
    cursor: str | None = None
    withs: Any = None
    columns: Any = None
    count: Count | None = None
    limit_ms: int | None = None
    """Of the statement that reads the rows."""


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row as its reader sees it. `etag` is None if the row is unreadable after a write, or not shown whole."""

    id: str
    body: bytes
    etag: str | None


def list_rows(
    environment: EnvironmentRef,
    principal: Principal,
    table: str,
    query: ListQuery,
    freshness: Freshness | None = None,
    users_version: bytes | None = None,
) -> Page:
    """One statement, and one for a count. With `freshness` a replica may answer; `users_version` is for
    `accounts.directory.user_cache`. Raises NotFound and ValidationFailed naming the parameter, or `limit` if the
    response is too large. Contract section 4.6."""
    return run(environment, principal, lambda context: _list(context, table, query), freshness, users_version)


def retrieve_row(
    environment: EnvironmentRef,
    principal: Principal,
    table: str,
    row_id: str,
    withs: Any = None,
    columns: Any = None,
    freshness: Freshness | None = None,
    users_version: bytes | None = None,
) -> RowResult:
    """One statement. Raises NotFound and ValidationFailed naming `with` or `columns`. Contract section 4.7."""
    operation = lambda context: _retrieve(context, table, row_id, withs, columns)  # noqa: E731
    return run(environment, principal, operation, freshness, users_version)


def etag_of(row: bytes) -> str:
    return f'"{hashlib.sha256(row).hexdigest()}"'


def _retrieve(context: QueryContext, name: str, row_id: str, withs: Any, columns: Any) -> RowResult:
    context.readable(name)
    embedded = params.parse_with(withs, name, context.resolver)
    chosen, embedded = params.parse_columns(columns, name, context.resolver, embedded)
    shape = ReadShape(name, withs=embedded, columns=chosen)
    rows = []
    if ROW_ID_PATTERN.fullmatch(row_id):
        rows = context.read(context.statement(select.read, shape), {ROW_ID: row_id.encode()}, is_short=True)
    if not rows:
        context.verify()
        raise NotFound
    body = rows[0][0] or b""
    etag = etag_of(body) if chosen is None else None
    if embedded:
        if not shape.has_only_users:
            _check_response_size(rows, "with", json_cells=2)
        [body] = _with_relations(context, rows, shape)
    return RowResult(row_id, body, etag)


def _list(context: QueryContext, name: str, query: ListQuery) -> Page:
    table = context.readable(name)
    relation = _open_relation_cursor(context, name, query)
    if relation is None:
        where = query_where.parse_where(query.where, name, context.resolver)
    else:
        where = query_where.parse_where({relation.column: relation.id}, name, context.resolver, "cursor")
    order = params.parse_order(query.order, name, context.resolver)
    withs = params.parse_with(query.withs, name, context.resolver)
    columns, withs = params.parse_columns(query.columns, name, context.resolver, withs)
    named: dict[Any, bytes | None] = {LIMIT: b"%d" % (query.limit + 1)}
    after: tuple[bool, ...] | None = None
    if query.cursor is not None:
        facts = cursor_facts(context, table, where, order)
        ended = [relation.last] if relation else cursors.decode(_KIND, facts, query.cursor)
        after = tuple(value is None for value in ended)
        named |= {After(index): None if value is None else str(value).encode() for index, value in enumerate(ended)}
    shape = ReadShape(name, where.shape, order, withs, after, columns)
    rows = context.read(context.statement(select.read, shape), named, where.wire, query.limit_ms)
    if not rows:
        context.verify()
    next_cursor = None
    if len(rows) > query.limit:
        del rows[query.limit :]
        keys = rows[-1][-len(order) :]
        if relation is None:
            message = "Values of these columns are too long to page by. Order by others."
            next_cursor = cursor_behind(_KIND, cursor_facts(context, table, where, order), keys, "order", message)
        else:
            next_cursor = _relation_cursor(context, name, relation.column, relation.id, (keys[0] or b"").decode())
    if withs or len(rows) > 1:
        json_cells = 2 if withs and not shape.has_only_users else 1
        _check_response_size(rows, "with" if len(rows) == 1 else "limit", json_cells=json_cells)
    bodies = _with_relations(context, rows, shape) if withs else [row[0] or b"" for row in rows]
    count = b"" if query.count is None else _count(context, table, where, query.count)
    return page_of(bodies, next_cursor, count)


def page_of(bodies: Iterable[bytes], next_cursor: str | None, count: bytes = b"") -> Page:
    ending = b"null" if next_cursor is None else b'"%s"' % next_cursor.encode()
    return Page(b'{"data":[' + b",".join(bodies) + b"]" + count + b',"next_cursor":' + ending + b"}", next_cursor)


def _check_response_size(rows: Sequence[Row], parameter: str, *, json_cells: int) -> None:
    cells = [cell for row in rows for cell in row[:json_cells]]
    if None in cells or sum(map(len, cells)) > MAX_ANSWER_BYTES:  # type: ignore[arg-type]
        message = (
            f"The response would be larger than {MAX_ANSWER_BYTES >> 20} MB. Ask for fewer rows, relations or columns."
        )
        raise ValidationFailed.of(parameter, "too_large", message)


def _with_relations(context: QueryContext, rows: Sequence[Row], shape: ReadShape) -> list[bytes]:
    """The rows as JSON, or their JSON joined by commas."""
    if shape.has_only_users:
        return embedded_users.append(context, rows, [one.name for one in shape.withs])
    bodies = [_joined(context, row) for row in rows]
    body = b",".join(bodies)
    return [embedded_users.embed(context, body)] if embedded_users.SIGN in body else bodies


def _joined(context: QueryContext, row: Row) -> bytes:
    """Joins two JSON objects. A truncated relation is followed by its cursor."""
    relations = row[1] or b""
    if b"\t" in relations:
        relations = row_json.CONTINUATION.sub(lambda found: _continued(context, found[1]), relations)
    return (row[0] or b"")[:-1] + b"," + relations[1:]


def _continued(context: QueryContext, values: bytes) -> bytes:
    relation, table, column, row_id, last = orjson.loads(values)
    cursor = _relation_cursor(context, table, column, row_id, last)
    return b'],"%s_next":"%s"' % (relation.encode(), cursor.encode())


def cursor_behind(kind: str, facts: list[cursors.Fact], keys: Row, field: str, message: str) -> str:
    try:
        return cursors.encode(kind, facts, [None if key is None else key.decode() for key in keys])
    except cursors.CursorTooLong:
        raise ValidationFailed.of(field, "too_long", message) from None


@dataclass(frozen=True, slots=True)
class _RelationPosition:
    column: str
    id: str
    last: str


def _relation_cursor(context: QueryContext, table: str, *position: str) -> str:
    return cursors.encode(_RELATION_KIND, [context.compiled.environment_id, table], position)


def _open_relation_cursor(context: QueryContext, table: str, query: ListQuery) -> _RelationPosition | None:
    """Of a `<relation>_next` cursor; None for others."""
    if query.cursor is None or query.where is not None or query.order is not None:
        return None
    position = cursors.decode_if_of(_RELATION_KIND, [context.compiled.environment_id, table], query.cursor)
    return None if position is None else _RelationPosition(*map(str, position))


def cursor_facts(
    context: QueryContext, table: Table, where: Filter, order: tuple[params.OrderKey, ...]
) -> list[cursors.Fact]:  # fmt: skip
    """What a cursor depends on: the list, not the caller."""
    keys: list[cursors.Fact] = [
        [canonical_text(key.path), key.type, key.descending, key.nulls_first] for key in order
    ]  # fmt: skip
    return [context.compiled.environment_id, table.name, keys, _digest(where)]


def canonical_text(path: Path) -> str:
    return ".".join([*(hop.relation for hop in path.hops), path.column])


_digests: Final[Memo[Condition, bytes]] = Memo(2_048)


def _digest(where: Filter) -> str:
    shape = _digests.get(where.shape)
    if shape is None:
        shape = hashlib.sha256(repr(where.shape).encode()).digest()
        _digests.put(where.shape, shape)
    return hashlib.sha256(b"\0".join([shape, *where.wire])).hexdigest()


def _count(context: QueryContext, table: Table, where: Filter, how: Count) -> bytes:
    """An estimate is exact up to COUNT_CEILING; beyond, the planner's, only for callers that see all rows (statistics
    include hidden ones), else "at_least"."""
    shape = ReadShape(table.name, where.shape)
    most = None if how == "exact" else COUNT_CEILING + 1
    found = context.read(context.statement(select.counted, shape, most), {}, where.wire)
    if not found:
        raise StaleVersion
    number, kind = int(found[0][0] or 0), "exact"
    if number == most:
        number, kind = COUNT_CEILING, "at_least"
        role_view = context.compiled.role_view(context.role_key)
        if role_view.sees_everything(table.name) and not any(hops_of(where.shape)):
            plan = context.read(context.statement(select.planned, shape), {}, where.wire)
            planned = orjson.loads(plan[0][0] or b"")[0]["Plan"]["Plan Rows"]
            number, kind = max(number, int(planned)), "estimated"
    return b',"count":%d,"count_is":"%s"' % (number, kind.encode())
