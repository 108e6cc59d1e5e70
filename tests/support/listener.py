"""The listener of `webhooks listen`."""

from collections.abc import Iterator
from contextlib import contextmanager

from projects.directory.environments import environment_ref
from tests.rows.conftest import Tracker
from tests.support.receiver import Receiver
from webhooks.cli_listener import Listener


@contextmanager
def listening(tracker: Tracker, receiver: Receiver, *events: str) -> Iterator[Listener]:
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    with Listener(environment, receiver.url(), events or ["lists.insert"]) as listener:
        yield listener
