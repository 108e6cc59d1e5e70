"""Reads, in one snapshot of a region, the events after the positions of streams, and whether these are still valid."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from platform_site.http import exact_json
from platform_site.postgres import statements
from rows.changes.batches import Batch, Message
from rows.changes.positions import Position, digest
from rows.changes.streams import Stream
from rows.changes.subscriptions import Subscription

MAX_EVENTS: Final = 5_000
MAX_BYTES: Final = 32 * 2**20
"""A stream with more events to read than these gets a reset."""

# One statement, hence one snapshot, which it also returns. `unseen` is not sorted: a stream with more events than the
# limit is sent none of them, so sorting them would be wasted. A position beyond the current snapshot is of another
# server, whose dump was restored here.
_READ: Final = """
WITH unseen AS (
    SELECT environment_id, sequence, data
      FROM platform.rows_outboxevent
     WHERE environment_id = ANY (%(environments)s) AND subject IS NOT NULL
       AND transaction >= pg_snapshot_xmin(%(since)s::pg_snapshot)
       AND NOT pg_visible_in_snapshot(transaction, %(since)s::pg_snapshot)
       AND pg_visible_in_snapshot(transaction, coalesce(%(until)s::pg_snapshot, pg_current_snapshot()))
     LIMIT %(limit)s
), sized AS (
    SELECT environment_id, sequence,
           CASE WHEN sum(octet_length(data)) OVER (ORDER BY sequence) <= %(bytes)s THEN data END AS data
      FROM unseen
)
SELECT coalesce(%(until)s::pg_snapshot, pg_current_snapshot())::text, (SELECT timeline_id FROM pg_control_checkpoint()),
       pg_snapshot_xmax(coalesce(%(until)s::pg_snapshot, %(since)s::pg_snapshot))
       <= pg_snapshot_xmax(pg_current_snapshot()),
       (SELECT json_agg(json_build_array(environment_id, table_name, generation))
          FROM platform.rows_watchedtable WHERE environment_id = ANY (%(environments)s)),
       (SELECT json_object_agg(environment_id, version)
          FROM platform.rows_currentversion WHERE environment_id = ANY (%(environments)s)),
       (SELECT array_agg(environment_id ORDER BY sequence) FROM sized),
       (SELECT array_agg(sequence ORDER BY sequence) FROM sized),
       (SELECT array_agg(data ORDER BY sequence) FROM sized)
"""
# A statement that began before the table was watched records no event, so a stream is ready when all of those are over.
_UNSETTLED: Final = """
SELECT w.environment_id, w.table_name
  FROM platform.rows_watchedtable w
 WHERE w.environment_id = ANY (%s)
   AND EXISTS (SELECT FROM pg_stat_activity a
                WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
                  AND a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND coalesce(a.backend_type, 'client backend') = 'client backend'
                  AND age(a.backend_xmin) >= age(w.transaction::xid))
"""

Event = Mapping[str, Any]
"""The data of an outbox event, with its `sequence`."""
Events = Mapping[str, list[Event]]
"""The events of one environment by table, in the order of writing."""


class Interval(NamedTuple):
    """The snapshots after and up to which events are read. `since` None: of new streams, which get none yet."""

    since: str | None
    until: str | None


@dataclass(slots=True)
class FetchedEvents:
    """The events between two snapshots, by environment and table, and what equal streams of a caller share."""

    snapshot: str
    timeline: int
    generations: dict[str, dict[str, str]]
    """Of watched tables, by environment and table."""
    unsettled: set[tuple[str, str]]
    """Tables with a running statement that began before they were watched, if a stream is not ready."""
    versions: dict[str, int]
    events: dict[str, Events] | None
    """None if there are too many, or the position is not of this database."""
    messages: dict[Hashable, list[Message] | None] = field(default_factory=dict)
    """None if they take too long."""
    encoded: dict[Hashable, Batch] = field(default_factory=dict)
    _by_cell: dict[tuple[str, str, str], dict[str, list[Event]]] = field(default_factory=dict)
    _positions: dict[tuple[str, frozenset[str]], Position | None] = field(default_factory=dict)

    def concerns(self, environment_id: str, subscriptions: Sequence[Subscription]) -> bool:
        events = (self.events or {})[environment_id]
        for each in subscriptions:
            if not events.keys().isdisjoint(each.related) or self.events_for(environment_id, each):
                return True
        return False

    def events_for(self, environment_id: str, subscription: Subscription) -> Sequence[Event]:
        """Those of its table, except of rows that its caller could read neither before nor after."""
        events = (self.events or {})[environment_id].get(subscription.table, [])
        if not events or subscription.required_cell is None:
            return events
        column, value = subscription.required_cell
        key = environment_id, subscription.table, column
        if key not in self._by_cell:
            by_value: dict[str, list[Event]] = defaultdict(list)
            for event in events:
                records = [record for record in (event["old_record"], event["record"]) if record is not None]
                for cell in {record[column] for record in records if isinstance(record.get(column), str)}:
                    by_value[cell].append(event)
            self._by_cell[key] = dict(by_value)
        return self._by_cell[key].get(value, ())

    def position_of(self, environment_id: str, tables: frozenset[str]) -> Position | None:
        """The position after these events; None if one of the tables is not watched."""
        key = environment_id, tables
        if key not in self._positions:
            watched = self.generations.get(environment_id, {})
            self._positions[key] = None
            if watched.keys() >= tables:
                of_tables = tuple((table, watched[table]) for table in sorted(tables))
                generations = digest(self.versions.get(environment_id, 0), of_tables)
                self._positions[key] = Position(self.snapshot, self.timeline, generations)
        return self._positions[key]


def by_position(streams: Iterable[Stream]) -> list[list[Stream]]:
    """Groups of streams at the same position, new streams first, then the most recent positions: one that is far behind
    takes long. Streams within a batch first get the rest of it."""
    groups: dict[Interval, list[Stream]] = defaultdict(list)
    for each in streams:
        groups[_interval(each)].append(each)
    return [groups[each] for each in sorted(groups, key=_next_transaction, reverse=True)]


def _next_transaction(interval: Interval) -> float:
    """The first id that no transaction had at the time of a position: `xmax` of xmin:xmax:xip_list."""
    return math.inf if interval.since is None else int(interval.since.split(":")[1])


def current_snapshot(using: str) -> str:
    return str(statements.value(using, "SELECT pg_current_snapshot()::text"))


def _interval(stream: Stream) -> Interval:
    return Interval(stream.position.snapshot, stream.position.until) if stream.position else Interval(None, None)


def by_environment(streams: Iterable[Stream]) -> dict[str, list[Stream]]:
    groups: dict[str, list[Stream]] = defaultdict(list)
    for each in streams:
        groups[each.environment.environment_id].append(each)
    return groups


def fetch(using: str, streams: Sequence[Stream], until: str | None) -> Iterator[tuple[list[Stream], FetchedEvents]]:
    """The events for streams at one position, up to the snapshot `until` or to now. Usually one round trip."""
    open_ones = [each for each in streams if not each.queue.is_closed]
    if not open_ones:
        return
    groups, interval = by_environment(open_ones), _interval(open_ones[0])
    if interval.since is not None and interval.until is None:  # else they are within a batch, and first get the rest
        interval = interval._replace(until=until)
    found = _fetch(using, interval, sorted(groups))
    if interval.since is not None and found.events is None and len(groups) > 1:
        for of_one in groups.values():  # one environment has too much for a pass: read each by itself
            yield from fetch(using, of_one, until)
    else:
        yield open_ones, found


def _fetch(using: str, interval: Interval, environments: list[str]) -> FetchedEvents:
    parameters: dict[str, Any] = {
        **interval._asdict(), "environments": environments, "limit": MAX_EVENTS + 1, "bytes": MAX_BYTES
    }  # fmt: skip
    snapshot, timeline, is_past, tables, versions, ids, sequences, data = statements.row(using, _READ, parameters)
    generations: dict[str, dict[str, str]] = defaultdict(dict)
    for environment_id, table, generation in tables or ():
        generations[environment_id][table] = generation
    found = FetchedEvents(snapshot, timeline, generations, unsettled=set(), versions=versions or {}, events=None)
    if interval.since is None:
        found.unsettled = set(statements.rows(using, _UNSETTLED, [environments]))
    elif is_past and len(ids or ()) <= MAX_EVENTS and None not in (data or ()):
        events: dict[str, dict[str, list[Event]]] = {each: defaultdict(list) for each in environments}
        for environment_id, sequence, text in zip(ids or (), sequences or (), data or (), strict=True):
            event = exact_json.loads(text) | {"sequence": sequence}
            events[environment_id][event["table"]].append(event)
        found.events = dict(events)
    return found
