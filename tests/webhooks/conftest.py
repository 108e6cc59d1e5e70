"""A project with the task tracker's schema, a receiver on loopback, and a dispatcher that is run by hand."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.receiver import Receiver
from tests.support.tracker import DOCUMENT
from webhooks.delivery.dispatcher import Dispatcher

Post = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _loopback_is_open() -> Iterator[None]:
    with override_settings(OUTBOUND_ALLOWED_NETWORKS=["127.0.0.0/8", "::1/128"]):
        yield


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:  # noqa: F811
    made: Tracker = make_tracker(DOCUMENT)
    return made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def subscribe(tracker: Tracker, receiver: Receiver) -> Post:
    """Make a webhook to the receiver: `subscribe(events=[…], filter=…)`; returns the answer with its secret."""

    def make(**values: Any) -> dict[str, Any]:
        body = {"url": receiver.url(), "events": ["*"], **values}
        answer = tracker.post("owner", "/webhooks", body)
        assert answer.status == 201, answer.json
        made: dict[str, Any] = answer.json
        return made

    return make


@pytest.fixture
def _nobody_gathers_statistics(tracker: Tracker) -> Iterator[None]:
    """PostgreSQL would do so by itself, whenever it comes by, in a test of those that are old or missing."""
    tables = ("webhooks_delivery", "rows_outboxevent")
    with connections[tracker.project.cluster].cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE platform.{table} SET (autovacuum_enabled = off)")
        yield
        for table in tables:
            cursor.execute(f"ALTER TABLE platform.{table} RESET (autovacuum_enabled)")


@pytest.fixture
def dispatch(tracker: Tracker) -> Callable[[], int]:
    """Empty the queue of the project's region in this thread."""
    dispatcher = Dispatcher(tracker.project.cluster)
    return lambda: dispatcher.run(linger=0)


def bodies(receiver: Receiver) -> list[dict[str, Any]]:
    """The JSON bodies that arrived, in the order of their arrival."""
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in receiver.requests]
