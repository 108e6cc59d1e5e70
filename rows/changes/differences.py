"""What the events of a pass mean to one stream: the rows that its caller sees now and did not, or does not any more."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from platform_site.http import exact_json
from rows.changes.batches import Message
from rows.changes.event_reader import Event, Pass
from rows.changes.streams import Stream, Subscription
from rows.events.payloads import Payloads
from rows.query.service import ListQuery, list_rows
from rows.rules.evaluator import Effort, Facts, TooCostly, holds

Difference = tuple[str, Mapping[str, Any] | None, int]
"""The id of a row, the row as the caller sees it, if it does, and the sequence of its last event."""
_CHUNK: Final = 100
_EFFORT: Final = 1_000_000


def changes(using: str, stream: Stream, found: Pass) -> list[Message]:
    """The messages that the events of a pass mean to a stream. Marks the subscriptions that need a reset."""
    environment_id = stream.place.environment_id
    events = (found.events or {})[environment_id]
    if not events:
        return []
    messages: list[Message] = []
    for each in stream.subscriptions:
        if any(_matters(event, names) for table, names in each.related.items() for event in events.get(table, ())):
            each.needs_reset = True
        if each.needs_reset or not (of_table := found.events_for(environment_id, each)):
            continue
        key = (environment_id, stream.principal, each.key, each.name)
        if key not in found.messages:
            try:
                found.messages[key] = [_message(each.name, *one) for one in _differences(using, stream, each, of_table)]
            except TooCostly:
                found.messages[key] = None
        of_subscription = found.messages[key]
        each.needs_reset = of_subscription is None
        messages += of_subscription or ()
    return messages


def _message(subscription: str, row_id: str, row: Mapping[str, Any] | None, sequence: int) -> Message:
    if row is None:
        return Message("gone", exact_json.dumps({"subscription": subscription, "id": row_id}), sequence)
    return Message("row", exact_json.dumps({"subscription": subscription, "id": row_id, "row": row}), sequence)


def _differences(using: str, stream: Stream, subscription: Subscription, events: Sequence[Event]) -> list[Difference]:
    """The rows that look different to the caller now."""
    of_row: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        of_row[event["id"]].append(event)
    viewer = _Viewer(using, stream, subscription)
    current: Mapping[str, Mapping[str, Any] | None]
    if subscription.is_decided_by_record:
        current = {row_id: viewer.cells(changes[-1]["record"]) for row_id, changes in of_row.items()}
    else:
        current = viewer.list([row_id for row_id, changes in of_row.items() if changes[-1]["record"] is not None])
    differing: list[Difference] = []
    for row_id, changes in of_row.items():
        now = current.get(row_id)
        # Also what was visible only in between: a client that listed its rows since the last pass may have seen that.
        records = [changes[0]["old_record"], *(change["record"] for change in changes[:-1])]
        cells = now and {name: cell for name, cell in now.items() if name not in subscription.embedded}
        if any(viewer.cells(record) != cells for record in records):
            differing.append((row_id, now, changes[-1]["sequence"]))
    return differing


class _Viewer:
    """What the caller of a stream sees of a subscription's rows."""

    def __init__(self, using: str, stream: Stream, subscription: Subscription) -> None:
        self._stream, self._subscription = stream, subscription
        self._payloads = Payloads(using, stream.principal)
        self._effort = Effort(_EFFORT)

    def cells(self, record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Those of a record of an event, by the rule and the filter of now. Raises TooCostly."""
        environment, asked = self._stream.environment, self._subscription
        if record is None or environment is None:
            return None
        cells = self._payloads.visible_cells(environment, asked.table, record)
        if cells is None:
            return None
        if asked.condition is not None and not holds(asked.condition, cells, Facts(effort=self._effort)):
            return None
        return {name: cell for name, cell in cells.items() if asked.chosen is None or name in asked.chosen}

    def list(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Those of the rows of these ids that match, as the table is now."""
        asked, found = self._subscription, {}
        where = exact_json.loads(asked.where) if isinstance(asked.where, str) else asked.where
        for start in range(0, len(ids), _CHUNK):
            among = {"id": {"$in": list(ids[start : start + _CHUNK])}}
            both = among if where is None else {"$and": [where, among]}
            query = ListQuery(both, limit=_CHUNK, columns=asked.columns, withs=asked.withs)
            page = list_rows(self._stream.place, self._stream.principal, asked.table, query)
            for row in exact_json.loads(page.body)["data"]:
                found[row["id"]] = row
        return found


def _matters(event: Event, columns: set[str]) -> bool:
    """Whether a change of a related row may change what is visible."""
    return event["record"] is None or event["old_record"] is None or not columns.isdisjoint(event["changed"] or columns)
