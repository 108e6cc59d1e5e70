"""The messages of a pass for one stream, each with an id after which a disconnected client continues."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from operator import attrgetter
from typing import Final, NamedTuple

from platform_site.http import event_streams
from rows.changes.positions import Position, Seal

PART_BYTES: Final = 2 * 2**20
"""Of one batch, so that a client that reads fast enough is not disconnected for the size of its queue."""


class Message(NamedTuple):
    event: str
    json: str
    sequence: int
    """Of the row's last event."""


class Batch(NamedTuple):
    encoded: bytes
    message_count: int
    position: Position
    """After this batch: the end of the pass, or an earlier position if the rest is too long."""


def encode(messages: Sequence[Message], seen: Position, end: Position, seal: Seal | None) -> Batch:
    """In the order of the events. Without `seal` no message has an id, since a client must not continue after it."""
    due = sorted((each for each in messages if each.sequence > seen.sequence), key=attrgetter("sequence"))
    encoded: list[bytes] = []
    size = 0
    for each, following in zip_longest(due, due[1:]):
        if following is None:
            position = end
        elif following.sequence == each.sequence:  # the same row, for another subscription
            position = None
        else:
            position = replace(seen, until=end.snapshot, sequence=each.sequence)
        last_id = None if seal is None or position is None else seal.write(position)
        encoded.append(event_streams.message(each.event, each.json, last_id))
        size += len(encoded[-1])
        if size >= PART_BYTES and position is not None:
            return Batch(b"".join(encoded), len(encoded), position)
    return Batch(b"".join(encoded), len(encoded), end)
