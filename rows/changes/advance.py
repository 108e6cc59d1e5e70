"""Brings one stream to the snapshot of a pass: sends the differences, resets, `ready` and pings."""

import time
from typing import Final

from platform_site.observability import metrics
from rows.changes import watched_tables
from rows.changes.batches import encode
from rows.changes.differences import changes
from rows.changes.event_reader import FetchedEvents
from rows.changes.positions import Position
from rows.changes.streams import Stream
from rows.changes.tasks import PassEffort

PING_SECONDS: Final = 15
SETTLE_SECONDS: Final = 10


def advance(using: str, stream: Stream, found: FetchedEvents, effort: PassEffort) -> bool:
    """Returns whether only a part of its messages was sent, so that another pass is due. Raises ApiError if the stream
    must end."""
    environment_id = stream.environment.environment_id
    must_compile = is_new(stream, found)
    if must_compile:
        stream.compile()
        stream.reset_all()
    now = found.position_of(environment_id, stream.tables)
    if now is None:
        watched_tables.watch(stream.environment, stream.tables)
        stream.clear_position()
        return False
    seen = stream.position
    if seen is None:
        _make_ready(stream, found, now)
        return False
    if found.events is None or (seen.timeline, seen.generations) != (now.timeline, now.generations):
        # Too many events, another server or schema, or a time without recorded events.
        stream.clear_position()
        return False
    key = stream.seal, stream.principal, seen
    batch = None if stream.is_reset_due else found.encoded.get(key)
    if batch is None:
        messages = [] if must_compile else changes(using, stream, found, effort)
        # Messages before a reset must not have an id, or a client that continues after them would miss the reset.
        batch = encode(messages, seen, now, None if stream.is_reset_due else stream.seal)
        if not stream.is_reset_due:
            found.encoded[key] = batch
    stream.position = batch.position
    resets, count = stream.encode_resets()
    if batch.message_count or count:
        stream.put(batch.encoded + resets)
        metrics.CHANGE_MESSAGES.labels(using).inc(batch.message_count + count)
    elif time.monotonic() - stream.sent_at >= PING_SECONDS:
        stream.send("ping", has_id=not stream.is_reset_due)
    return batch.position != now


def _make_ready(stream: Stream, found: FetchedEvents, now: Position) -> None:
    """Start at the snapshot of the pass, once all writes that began before the tables were watched are over."""
    is_settled = all((stream.environment.environment_id, table) not in found.unsettled for table in stream.tables)
    if not is_settled and time.monotonic() - stream.opened_at < SETTLE_SECONDS:
        return
    stream.position = now
    if stream.must_relist or not is_settled:
        stream.reset_all()
        stream.put(stream.encode_resets()[0])
    else:
        stream.reset_all(is_needed=False)
        stream.send("ready", has_id=True)


def is_new(stream: Stream, found: FetchedEvents) -> bool:
    """Whether its subscriptions have to be compiled."""
    version = found.versions.get(stream.environment.environment_id, 0)
    return stream.compiled is None or stream.compiled.version != version


def skip_unaffected(environment_id: str, stream: Stream, found: FetchedEvents, now: float) -> bool:
    """`advance` for a stream without events and messages. False for others, which it leaves unchanged."""
    seen, compiled = stream.position, stream.compiled
    if seen is None or compiled is None or found.events is None or stream.is_reset_due:
        return False
    if compiled.version != found.versions.get(environment_id, 0) or now - stream.sent_at >= PING_SECONDS:
        return False
    if not stream.credential.is_current(stream.caller) or found.concerns(environment_id, stream.subscriptions):
        return False
    position = found.position_of(environment_id, stream.tables)
    if position is None or (seen.timeline, seen.generations) != (position.timeline, position.generations):
        return False
    stream.position, stream.failing_since = position, 0.0
    return True
