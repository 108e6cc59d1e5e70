"""The event types, their patterns, and the content of a delivery. Contract section 6."""

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from platform_site.http import exact_json

if TYPE_CHECKING:
    from rows.outbox.models import OutboxEvent

SYSTEM_EVENTS: Final = frozenset(
    {
        "auth.user.created",
        "environment.ready",
        "function.run.failed",
        "function.run.succeeded",
        "schema.migrated",
        "webhook.disabled",
        "webhook.test",
    }
)
OF_RUNS: Final = ("function.run.failed", "function.run.succeeded")
OF_ROWS: Final = ("*.insert", "*.update", "*.delete")
_ROW_PATTERN: Final = re.compile(r"(?P<table>[a-z][a-z0-9_]{0,47}|\*)\.(?P<action>insert|update|delete|\*)", re.ASCII)
MAX_PATTERNS: Final = 50


def problem_with(pattern: str) -> str | None:
    """None for `<table>.<action>`, `*.<action>`, `<table>.*`, `*`, and system events. The table need not exist yet."""
    if pattern == "*" or pattern in SYSTEM_EVENTS or _ROW_PATTERN.fullmatch(pattern):
        return None
    return (
        "is not an event: use <table>.insert, <table>.update, <table>.delete, *.<action>, <table>.*, * "
        f"or one of {', '.join(sorted(SYSTEM_EVENTS))}"
    )


def table_of(pattern: str) -> str | None:
    found = _ROW_PATTERN.fullmatch(pattern)
    return found["table"] if found and found["table"] != "*" else None


def unknown_tables(patterns: Iterable[str], tables: Container[str]) -> list[str]:
    """Misspelled, or not created yet."""
    named = dict.fromkeys(table for pattern in patterns if (table := table_of(pattern)) is not None)
    return [table for table in named if table not in tables]


def matches(patterns: Iterable[str], event_type: str) -> bool:
    """`*` covers all but `webhook.test`; other wildcards only cover events of rows."""
    table, _, action = event_type.rpartition(".")
    is_row = event_type not in SYSTEM_EVENTS
    for pattern in patterns:
        if pattern == event_type:
            return True
        if pattern == "*":
            return event_type != "webhook.test"
        if is_row and pattern in (f"*.{action}", f"{table}.*", "*.*"):
            return True
    return False


def scopes_of(patterns: Collection[str]) -> dict[str, Sequence[str]]:
    """The scopes that a subscriber needs besides `rows:read`, with the events that need them. These contain thrown
    errors, and URLs of webhooks, which may hold secrets."""
    events_by_scope = {"functions:read": OF_RUNS, "webhooks:read": ("webhook.disabled",)}
    return {
        scope: events for scope, events in events_by_scope.items() if any(matches(patterns, each) for each in events)
    }


def interests(patterns: Iterable[str]) -> set[tuple[str, str]]:
    """The (table, action) pairs, `*` for any, whose writes must record an event. System events use their names, such as
    `("function.run", "*")`. `("*", "*")` is everything, `("*", "insert")` is rows only."""
    found = set()
    for pattern in patterns:
        if pattern == "*":
            found.add(("*", "*"))
        elif pattern == "*.*":
            found |= interests(OF_ROWS)
        elif pattern in SYSTEM_EVENTS:
            found.add((pattern.rpartition(".")[0], "*"))
        else:
            table, _, action = pattern.partition(".")
            found.add((table, action))
    return found


def select_columns(record: Mapping[str, Any] | None, columns: Sequence[str] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    if columns is None:
        return dict(record)
    wanted = {"id", *columns}
    return {name: value for name, value in record.items() if name in wanted}


def body(event: "OutboxEvent", data: Mapping[str, Any]) -> str:
    """The JSON text of a delivery, the same at every attempt."""
    payload = {
        "id": event.event_id,
        "type": event.type,
        "timestamp": event.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "environment_id": event.environment_id,
        "schema_version": event.schema_version,
        "request_id": event.request_id,
        "data": data,
    }
    return exact_json.dumps(payload)
