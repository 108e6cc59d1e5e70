"""The listener of `webhooks listen`."""

from collections.abc import Iterator
from contextlib import contextmanager

from projects.directory.environments import place_of
from tests.rows.conftest import Tracker
from tests.support.receiver import Receiver
from webhooks.cli_listener import Listener


@contextmanager
def listening(tracker: Tracker, receiver: Receiver, *events: str) -> Iterator[Listener]:
    place = place_of(tracker.environment_id)
    assert place is not None
    with Listener(place, receiver.url(), events or ["lists.insert"]) as listener:
        yield listener
