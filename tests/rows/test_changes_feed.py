"""The feed of live changes by itself: its tasks, and the notifications that wake it."""

import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from rows.changes import feed as feeds
from rows.changes import notifications
from rows.changes.feed import Feed
from rows.changes.tasks import WORKERS, Task, TaskQueue
from tests.support.service import wait_for
from tests.support.threads import refuse_new_threads


def test_a_skipped_environment_is_due_though_others_are_served_first() -> None:
    queue = TaskQueue()
    queue.put(Task("env_busy", None))
    task = queue.get()
    assert task is not None
    assert queue.skip_unfinished({"env_busy", "env_other"}) == {"env_busy"}
    assert queue.skip_unfinished({"env_other"}) == set()
    assert queue.finish(task)
    assert queue.skip_unfinished({"env_busy"}) == set()


def test_the_lag_is_of_running_tasks_and_of_those_that_finished_since() -> None:
    queue = TaskQueue()
    queue.put(Task("env_busy", None, began=time.monotonic() - 3))
    task = queue.get()
    assert task is not None
    assert 3 <= queue.take_lag() < 4
    assert not queue.finish(task)
    assert 3 <= queue.take_lag() < 4
    assert queue.take_lag() == 0


def test_a_feed_that_starts_again_ends_its_earlier_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners: list[Callable[[], bool]] = []

    def listener(using: str, wake: Any, is_needed: Callable[[], bool]) -> Any:
        return SimpleNamespace(start=lambda: listeners.append(is_needed))

    monkeypatch.setattr(feeds, "Listener", listener)
    monkeypatch.setattr(Feed, "_run", lambda feed: None)
    feed = Feed("us-east-1")
    for _ in range(2):
        feed.add(SimpleNamespace())  # type: ignore[arg-type]
        still_needed = [is_needed() for is_needed in listeners]
        feed._thread = None  # as if its streams had ended, before a listener looks
    assert still_needed == [False, True]


@pytest.mark.parametrize("thread", ["changes-us-east-1", "changes-us-east-1-1"])
def test_threads_of_a_feed_that_did_not_start_start_for_the_next_stream(
    monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    monkeypatch.setattr(feeds, "Listener", lambda *_: SimpleNamespace(start=lambda: None))
    feed = Feed("us-east-1")
    stream = SimpleNamespace(end=lambda reason: None)
    with monkeypatch.context() as full:
        refuse_new_threads(full, thread)
        with suppress(RuntimeError):
            feed.add(stream)  # type: ignore[arg-type]
        wait_for("the feed has ended", lambda: feed._thread is None and not feed._tasks._waiting)
    workers: list[str] = []
    monkeypatch.setattr(Feed, "_work", lambda feed: workers.append("started"))
    monkeypatch.setattr(Feed, "_run_passes", lambda feed: None)
    feed.add(stream)  # type: ignore[arg-type]
    wait_for("all workers have started", lambda: len(workers) == WORKERS)


def test_a_region_without_streams_does_not_silence_another(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[str] = []

    def publish(channel: str, _: bytes) -> int:
        published.append(channel)
        return int(channel == "changes:eu-west-1")

    monkeypatch.setattr(notifications, "connect", lambda: SimpleNamespace(publish=publish))
    monkeypatch.setattr(notifications, "_silent_until", {})
    for region in ("us-east-1", "eu-west-1", "us-east-1", "eu-west-1"):
        notifications._publish(region)
    assert published == ["changes:us-east-1", "changes:eu-west-1", "changes:eu-west-1"]
