"""The payload of a delivery as a member may see it. The stored one is what role `server` was allowed to read."""

from typing import Any, Final

from platform_site.developer_console.frame import Console
from platform_site.http import exact_json
from platform_site.http.errors import NotFound
from rows.migrate import versions
from rows.outbox import event_types
from rows.query import schema_cache
from rows.rules.conditions import TRUE
from rows.rules.rules import InvalidRule, Ruleset
from rows.schema import parser
from rows.schema.model import InvalidDocument
from webhooks.models import Delivery

_LARGEST: Final = 256 * 1024
"""Bytes."""


def payload_of(console: Console, delivery: Delivery) -> tuple[str, str]:
    """As JSON, perhaps empty, and why parts of it are not shown. For row events: the columns that the member may read
    in every row, by the rules of that time and the current ones, since a rule's condition cannot be evaluated for an
    earlier state of a row."""
    if not delivery.body:
        return "", "No payload was made for this delivery."
    is_of_row = delivery.event_type not in event_types.SYSTEM_EVENTS
    needed = "rows:read" if is_of_row else "functions:read" if delivery.event_type in event_types.OF_RUNS else None
    if needed and needed not in console.me["scopes"]:
        return "", f"This needs the scope {needed}."
    if len(delivery.body.encode()) > _LARGEST:
        return "", "Payloads above 256 KB are not shown."
    payload = exact_json.loads(delivery.body)
    missing = _leave_out(console, payload) if is_of_row else ""
    return exact_json.dumps(payload, indent=True) if payload["data"] else "", missing


def _leave_out(console: Console, payload: dict[str, Any]) -> str:
    """Remove what the member may not read, and say so. Without any readable column, `data` is empty."""
    data = payload["data"]
    if data["table"] not in schema_cache.current(console.ref).rules.schema.tables:
        payload["data"] = {}
        return "The table has been renamed or deleted since."
    columns = _readable(console, data["table"], payload["schema_version"])
    if not columns:
        payload["data"] = {}
        return "Your role cannot read every row of this table, or could not when the event was recorded."
    shown: dict[str, Any] = {
        key: event_types.select_columns(data[key], list(columns)) for key in ("record", "old_record")
    }
    shown["changed"] = [name for name in data["changed"] if name in columns]
    if all(data[key] == value for key, value in shown.items()):
        return ""
    data |= shown
    return "Columns that are gone or that your role cannot read are left out."


def _readable(console: Console, table: str, version: int) -> frozenset[str]:
    ref, current = console.ref, schema_cache.current(console.ref)
    found = _always_readable(console, current.rules, table)
    if version == current.version or not found:
        return found
    try:
        then = Ruleset(parser.parse(versions.version(ref, version).document))
        return found & _always_readable(console, then, table)
    except (NotFound, InvalidDocument, InvalidRule):  # after a restore, or stored by an earlier release
        return frozenset()


def _always_readable(console: Console, rules: Ruleset, table: str) -> frozenset[str]:
    if table not in rules.schema.tables:
        return frozenset()
    read = rules.access(table, rules.role_key(console.principal)).read
    return frozenset().union(*(grant.columns for grant in read.grants if grant.where == TRUE)) if read else frozenset()
