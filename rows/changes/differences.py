"""Turns the events of a pass into messages for one stream: rows that became visible, changed or became invisible."""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachetools import TTLCache
from django.db import OperationalError

from platform_site.http import exact_json
from platform_site.http.errors import ValidationFailed
from platform_site.postgres.sqlstates import CANCELLED, sqlstate
from rows.changes.batches import Message
from rows.changes.event_reader import Event, Events, FetchedEvents
from rows.changes.streams import Stream
from rows.changes.subscriptions import Subscription
from rows.changes.tasks import PASS_SECONDS, PassEffort, from_random_start
from rows.events.payloads import Payloads
from rows.query.service import ListQuery, list_rows
from rows.rules.evaluator import Facts, TooCostly, holds

_CHUNK: Final = 100
_costly: Final[TTLCache[tuple[str, str], bool]] = TTLCache(10_000, 30.0)
"""By environment and key, subscriptions of which few events took most of a pass. Their changes are resets for a while:
each write would use up the time of others, once for each of their streams."""
_costly_lock: Final = threading.Lock()
_MIN_TIMEOUT_MS: Final = 100


def changes(using: str, stream: Stream, found: FetchedEvents, effort: PassEffort) -> list[Message]:
    """Marks the subscriptions that need a reset, also those for which no time is left."""
    environment_id = stream.environment.environment_id
    events = (found.events or {})[environment_id]
    if not events:
        return []
    messages: list[Message] = []
    for each in from_random_start(stream.subscriptions):
        if _related_rows_changed(events, each, effort):
            each.needs_reset = True
        if each.needs_reset:
            continue
        of_table = found.events_for(environment_id, each)
        if not of_table:
            continue
        key = (environment_id, stream.seal.rights, each.key, each.name)
        if key not in found.messages:
            found.messages[key] = _messages(using, stream, each, of_table, effort)
        of_subscription = found.messages[key]
        if of_subscription is None:
            each.needs_reset = True
        else:
            messages += of_subscription
    return messages


def _related_rows_changed(events: Events, subscription: Subscription, effort: PassEffort) -> bool:
    """Whether changes of other rows may change what is visible. Without time left, any change of their tables may."""
    if effort.is_over:
        return not events.keys().isdisjoint(subscription.related)
    for table, columns in subscription.related.items():
        for event in events.get(table, ()):
            is_update = event["record"] is not None and event["old_record"] is not None
            if not is_update or not columns.isdisjoint(event["changed"] or columns):
                return True
    return False


def _messages(
    using: str, stream: Stream, subscription: Subscription, events: Sequence[Event], effort: PassEffort
) -> list[Message] | None:
    """Of the rows that look different now; None if the time does not suffice, or recently did not."""
    key = (stream.environment.environment_id, subscription.key)
    with _costly_lock:
        if key in _costly:
            return None
    before = effort.seconds_worked
    try:
        effort.check()
        effort.start_subscription()
        return _differences(using, stream, subscription, events, effort)
    except TooCostly:
        if len(events) <= _CHUNK and effort.seconds_worked - before > PASS_SECONDS / 2:
            with _costly_lock:
                _costly[key] = True
        return None


def _differences(
    using: str, stream: Stream, subscription: Subscription, events: Sequence[Event], effort: PassEffort
) -> list[Message]:
    by_row: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_row[event["id"]].append(event)
    viewer = _Viewer(using, stream, subscription, effort)
    current: Mapping[str, Mapping[str, Any] | None]
    if subscription.is_decided_by_record:
        current = {row_id: viewer.cells(row_events[-1]["record"]) for row_id, row_events in by_row.items()}
    else:
        current = viewer.list([row_id for row_id, row_events in by_row.items() if row_events[-1]["record"] is not None])
    messages: list[Message] = []
    for row_id, row_events in by_row.items():
        now = current.get(row_id)
        # Also what was visible only in between: a client that listed its rows since the last pass may have seen that.
        records = [row_events[0]["old_record"], *(event["record"] for event in row_events[:-1])]
        cells = None if now is None else {name: now[name] for name in now if name not in subscription.embedded}
        indirect_changed = now is not None and any(
            not subscription.indirect_columns.isdisjoint(event["changed"] or ()) for event in row_events
        )
        if indirect_changed or any(viewer.cells(record) != cells for record in records):
            row = {} if now is None else {"row": now}
            text = exact_json.dumps({"subscription": subscription.name, "id": row_id, **row})
            messages.append(Message("gone" if now is None else "row", text, row_events[-1]["sequence"]))
    return messages


class _Viewer:
    """The rows of a subscription as the caller of a stream sees them. Its methods raise TooCostly."""

    def __init__(self, using: str, stream: Stream, subscription: Subscription, effort: PassEffort) -> None:
        self._stream, self._subscription, self._effort = stream, subscription, effort
        self._payloads = Payloads(using, stream.principal, effort)

    def cells(self, record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The cells that are visible by the current rule and filter."""
        compiled, subscription = self._stream.compiled, self._subscription
        if record is None or compiled is None:
            return None
        cells = self._payloads.visible_cells(compiled, subscription.table, record)
        if cells is None:
            return None
        facts = Facts(values=subscription.filter.values, effort=self._effort)
        if not holds(subscription.filter.shape, cells, facts):
            return None
        chosen = subscription.chosen
        return cells if chosen is None else {name: cell for name, cell in cells.items() if name in chosen}

    def list(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        subscription, found = self._subscription, {}
        where = exact_json.loads(subscription.where) if isinstance(subscription.where, str) else subscription.where
        for start in range(0, len(ids), _CHUNK):
            self._effort.check()
            among = {"id": {"$in": list(ids[start : start + _CHUNK])}}
            both = among if where is None else {"$and": [where, among]}
            for row in self._read(both):
                found[row["id"]] = row
        return found

    def _read(self, where: Any) -> Sequence[Mapping[str, Any]]:
        subscription = self._subscription
        limit_ms = max(_MIN_TIMEOUT_MS, int(1000 * self._effort.seconds_left))
        query = ListQuery(
            where, limit=_CHUNK, columns=subscription.columns, withs=subscription.withs, limit_ms=limit_ms
        )
        try:
            page = list_rows(self._stream.environment, self._stream.principal, subscription.table, query)
        except OperationalError as error:
            if sqlstate(error) == CANCELLED:
                raise TooCostly from None
            raise
        except ValidationFailed as error:  # rows that the client's own lists, of fewer at once, may well show
            if any(field.code == "too_large" for field in error.fields):
                raise TooCostly from None
            raise
        rows: Sequence[Mapping[str, Any]] = exact_json.loads(page.body)["data"]
        return rows
