from collections.abc import Mapping
from typing import Any, Final

from django.db.models.sql import DeleteQuery, Query, UpdateQuery

from rows.outbox.models import ANY
from rows.query.sql.conditions import AliasedRow, RowSource
from rows.query.sql.expressions import Parameter, Sql, boolean, listed
from rows.query.sql.row_json import whole_row
from rows.query.sql.statement import ENVIRONMENT, VERSION
from rows.query.tables.managers import RowQuerySet
from rows.schema.model import Table
from rows.write.statements.shapes import DEPTH, EVENT_ID, REQUEST, EventIds

_OLD_PREFIX: Final = "_o_"


def has_subscribers(table: str, action: str, *, for_relay: bool = False) -> Sql:
    """`for_relay`: subscribers other than live changes."""
    return boolean(
        '(EXISTS (SELECT FROM "platform"."rows_eventinterest" WHERE environment_id = ', Parameter(ENVIRONMENT, "text"),
        " AND table_name IN (", _constant(table), ", ", _constant(ANY), ") AND action IN (",
        _constant(action), ", ", _constant(ANY), ")", " AND is_for_relay" if for_relay else "", "))",
    )  # fmt: skip


def _constant(text: str) -> Parameter:
    return Parameter(text, "text", text.encode())


def update_of(rows: RowQuerySet, cells: Mapping[str, Any]) -> Query:
    query: Any = rows.query.chain(UpdateQuery)
    query.add_update_values(cells)
    return query  # type: ignore[no-any-return]


def delete_of(rows: RowQuerySet) -> Query:
    return rows.query.chain(DeleteQuery)


def with_event(
    table: Table, change: Any, action: str, events: bool, changed: tuple[str, ...], *, part: int | None = None
) -> Sql:
    """`_w0 AS (the change), _e0 AS (its event)`, or with the number `part`, if it may be of many rows. `_w0` has the
    columns of the changed row (of a deleted one, as it was) and, for an update with an event, the previous values with
    a prefix. If there were subscribers, `_e0` has a row with `is_due`: whether the relay must process the event."""
    number = part or 0
    version = "_o" if action == "delete" else "_n"
    columns = [f'{version}."{name}" AS "{name}"' for name in table.all_columns]
    if events and action == "update":
        columns += [f'_o."{name}" AS "{_OLD_PREFIX}{name}"' for name in table.all_columns]
    work = Sql(f"_w{number} AS (", change, " RETURNING WITH (OLD AS _o, NEW AS _n) ", ", ".join(columns), ")")
    if not events:
        return work
    return Sql(work, f", _e{number} AS (", _event(table, action, changed, part), ")")


def _event(table: Table, action: str, changed: tuple[str, ...], part: int | None) -> Sql:
    here, before = AliasedRow("_r"), AliasedRow("_r", _OLD_PREFIX if action == "update" else "")
    none = ("NULL::json", Sql())

    def record(source: RowSource, alias: str) -> tuple[str, Sql]:
        return f"row_to_json({alias})", Sql(" CROSS JOIN LATERAL (SELECT ", whole_row(table, source), f") {alias}")

    new, new_join = none if action == "delete" else record(here, "_new")
    old, old_join = none if action == "insert" else record(before, "_old")
    names = "'{}'::text[]"
    if action == "update":
        differing = [
            f"""CASE WHEN _r."{name}" IS DISTINCT FROM _r."{_OLD_PREFIX}{name}" THEN '{name}' END""" for name in changed
        ]
        names = f"array_remove(ARRAY[{', '.join(differing)}]::text[], NULL)"
    event_id: Any = Parameter(EVENT_ID, "text")
    if part is not None:
        event_id = Sql("(", Parameter(EventIds(part), "text[]"), ")[row_number() OVER ()]")
    about = [
        event_id,
        Parameter(ENVIRONMENT, "text"),
        _constant(f"{table.name}.{action}"),
        Sql(_constant(f"{table.name}/"), ' || _r."id"'),
        Parameter(VERSION, "integer"),
        Parameter(REQUEST, "text"),
        Parameter(DEPTH, "smallint"),
    ]
    return Sql(
        'INSERT INTO "platform"."rows_outboxevent" '
        "(event_id, environment_id, type, subject, schema_version, request_id, depth, relayed_at, data) SELECT ",
        listed(about),
        ", CASE WHEN NOT ",
        has_subscribers(table.name, action, for_relay=True),
        " THEN statement_timestamp() END",
        ", (SELECT row_to_json(_d)::text FROM (SELECT ",
        _constant(table.name),
        ' AS "table", _r."id" AS "id", ',
        new,
        ' AS "record", ',
        old,
        ' AS "old_record", ',
        names,
        f' AS "changed") _d) FROM _w{part or 0} _r',
        new_join,
        old_join,
        " WHERE ",
        has_subscribers(table.name, action),
        " RETURNING relayed_at IS NULL AS is_due",
    )
