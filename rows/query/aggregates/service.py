import hashlib
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError

from platform_site.http import cursors
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates
from platform_site.postgres.libpq import Row
from platform_site.postgres.replicas import Freshness
from rows.query.aggregates import request as aggregate_request
from rows.query.aggregates.request import MAX_GROUPS, AggregateRequest
from rows.query.aggregates.statement import TIME_ZONE, AggregateShape, HavingValue, aggregated
from rows.query.context import QueryContext, run
from rows.query.service import Page, cursor_behind, page_of
from rows.query.sql.row_json import MAX_ANSWER_BYTES
from rows.query.sql.statement import LIMIT, After
from rows.rules.principal import Principal

_KIND: Final = "aggregate"
_OVERFLOW: Final = "22003"
_BAD_ZONE: Final = "22023"


def aggregate_rows(
    environment: EnvironmentRef,
    principal: Principal,
    table: str,
    body: Mapping[str, Any],
    freshness: Freshness | None = None,
) -> Page:
    """One statement, at most AGGREGATE_STATEMENT_TIMEOUT_MS. With `freshness` a replica may answer. An unreadable cell
    counts as null. Raises NotFound and ValidationFailed naming a field of the body."""
    return run(environment, principal, lambda context: _aggregate(context, table, body), freshness)


def _aggregate(context: QueryContext, name: str, body: Mapping[str, Any]) -> Page:
    context.readable(name)
    request = aggregate_request.parse(body, name, context.resolver)
    limit = MAX_GROUPS if request.limit is None else request.limit
    named: dict[Any, bytes | None] = {LIMIT: b"%d" % (limit + 1), TIME_ZONE: request.time_zone.encode()}
    named |= {HavingValue(index): wire for index, wire in enumerate(request.having.wire)}
    shape = AggregateShape(name, request.outputs, request.where.shape, request.having.shape, request.order)
    facts = _facts(context, shape, request) if request.cursor is not None or request.limit is not None else []
    if request.cursor is not None:
        ended = cursors.decode(_KIND, facts, request.cursor)
        after = tuple(value is None for value in ended)
        named |= {After(index): None if value is None else str(value).encode() for index, value in enumerate(ended)}
        shape = AggregateShape(name, shape.outputs, shape.where, shape.having, shape.order, after)
    rows = _run(context, shape, named, request)
    if not rows:
        context.verify()
    next_cursor = None
    if len(rows) > limit:
        if request.limit is None:
            message = f"There are more than {MAX_GROUPS} groups. Set a limit and follow next_cursor, or narrow where."
            raise ValidationFailed.of("group", "too_many", message)
        del rows[limit:]
        message = "Values of these columns are too long for a cursor. Group by other columns."
        next_cursor = cursor_behind(_KIND, facts, rows[-1][1:], "group", message)
    groups = [row[0] for row in rows if row[0] is not None]
    if len(groups) < len(rows) or sum(map(len, groups)) > MAX_ANSWER_BYTES:
        message = f"The response would have more than {MAX_ANSWER_BYTES >> 20} MB. Set a smaller limit."
        raise ValidationFailed.of("limit", "too_large", message)
    return page_of(groups, next_cursor)


def _run(
    context: QueryContext, shape: AggregateShape, named: Mapping[Any, bytes | None], request: AggregateRequest
) -> list[Row]:  # fmt: skip
    statement = context.statement(aggregated, shape)
    limit_ms = settings.AGGREGATE_STATEMENT_TIMEOUT_MS
    try:
        return context.read(statement, named, request.where.wire, limit_ms=limit_ms)
    except DatabaseError as error:
        state = sqlstates.sqlstate(error)
        if state == _OVERFLOW:
            message = "The result is larger than a float can be. Narrow where, or store the numbers as decimals."
            columns = context.compiled.schema.tables[shape.table].columns
            floats = {name for name, column in columns.items() if column.type == "float"}
            kinds = dict.fromkeys(
                output.kind for output in shape.outputs if output.kind in ("sum", "avg") and output.source in floats
            )
            raise ValidationFailed(fields=[FieldError(kind, "out_of_range", message) for kind in kinds]) from error
        if state == _BAD_ZONE:
            message = "The database does not know this time zone. Use another name for it, or UTC."
            raise ValidationFailed.of("time_zone", "unknown", message) from error
        raise


def _facts(context: QueryContext, shape: AggregateShape, request: AggregateRequest) -> list[cursors.Fact]:
    values = [request.time_zone.encode(), *request.where.wire, b"", *request.having.wire]
    digest = hashlib.sha256(repr(shape).encode())
    for value in values:
        digest.update(b"%d:" % len(value) + value)
    return [context.compiled.environment_id, shape.table, digest.hexdigest()]
