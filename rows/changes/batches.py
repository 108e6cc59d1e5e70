"""What a pass sends to one stream: its messages, each with an id from which a client that is cut off goes on."""

from collections.abc import Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Final, NamedTuple

from platform_site.http import event_streams
from rows.changes.positions import Position, Seal

PART_BYTES: Final = 2 * 2**20
"""Of one batch: a client that takes messages as fast as they come must not be cut off for their size."""


class Message(NamedTuple):
    """`data` is JSON; `sequence` that of the last event of the row."""

    event: str
    data: str
    sequence: int


class Batch(NamedTuple):
    encoded: bytes
    number: int
    position: Position
    """Of a stream that was sent it: the end of the pass, or one before if the rest is too long."""


def encode(messages: Sequence[Message], seen: Position, end: Position, seal: Seal | None, *, is_all: bool) -> Batch:
    """Those that a stream at the position `seen` has not been sent, in the order of the events. Without `seal` no
    message has an id, since a client must not go on behind it. Not `is_all`: more is sent after the last message, which
    therefore does not lead to the end."""
    due = sorted((each for each in messages if each.sequence > seen.sequence), key=attrgetter("sequence"))
    encoded: list[bytes] = []
    size = 0
    for each, following in zip_longest(due, due[1:]):
        if following is None and is_all:
            position = end
        elif following is not None and following.sequence == each.sequence:  # the row, to another subscription
            position = None
        else:
            position = seen.within(end, each.sequence)
        last_id = None if seal is None or position is None else seal.write(position)
        encoded.append(event_streams.message(each.event, each.data, last_id))
        size += len(encoded[-1])
        if size >= PART_BYTES and position is not None and seal is not None:
            return Batch(b"".join(encoded), len(encoded), position)
    return Batch(b"".join(encoded), len(encoded), end)
