"""Live changes of subscriptions that cost much: they delay others by about a second, and get a reset instead."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from rows.changes import differences, tasks
from rows.changes.advance import advance
from rows.changes.batches import Message
from rows.changes.event_reader import FetchedEvents
from rows.changes.positions import Position, Seal
from rows.changes.streams import Stream
from rows.changes.subscriptions import Subscription
from rows.changes.tasks import PassEffort, Task, TaskQueue
from rows.rules.evaluator import TooCostly
from tests.support.live_changes import READY, TASKS, App
from tests.support.service import Up
from tests.support.timing import within

STREAMS = 6


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="pro")  # more streams of a caller
    yield app
    app.close()


def expensive(stream: int) -> dict[str, Any]:
    """About 0.3 seconds of Python each."""
    return {
        f"s{number}": {"table": "tasks", "where": {"$not": {"title": {"$ilike": f"%x{'_' * (stream + 1)}y{number}q%"}}}}
        for number in range(20)
    }


def test_expensive_filters_delay_other_streams_by_a_second(app: App) -> None:
    """Streams of each kind in each process."""
    row = app.put("tasks", title="".join(f"y{number}q" for number in range(20)) + "x" * 900_000)
    with ExitStack() as stack:
        for number in range(16):
            assert stack.enter_context(app.live("server", expensive(number))).next() == READY
        plain = [stack.enter_context(app.live("server", TASKS | {"other": {"table": "teams"}})) for _ in range(STREAMS)]
        for stream in plain:
            assert stream.next() == READY
        began = time.monotonic()
        app.change("tasks", row["id"], rank=1)
        assert {stream.next(60)[0] for stream in plain} <= {"row", "reset"}
        assert time.monotonic() - began < within(3)


def test_many_large_rows_are_a_reset(app: App) -> None:
    """More at once than a list may have. The stream goes on."""
    team = app.put("teams", name="Large", note="x" * 200_000)["id"]
    app.put("members", team_id=team, member_id=app.users["ada"])
    rows = [{"body": "x", "team_id": team} for _ in range(100)]
    with app.live("ada", {"notes": {"table": "notes", "with": "team"}}) as stream:
        assert stream.next() == READY
        assert app.clients["server"].post("/rows/notes", json=rows).status_code == 201
        assert stream.next() == ("reset", {"subscription": "notes"})
        one = app.put("notes", body="small", team_id=team)
        kind, data = stream.next()
        assert (kind, data["id"]) == ("row", one["id"])


class Found:
    """What a pass has found: one event of table `t` for each subscription."""

    def __init__(self) -> None:
        self.events = dict.fromkeys(("env_a", "env_c"), {"t": [{}]})
        self.messages: dict[Any, Any] = {}

    def events_for(self, environment_id: str, subscription: Any) -> Any:
        return self.events[environment_id]["t"]


def test_no_subscription_is_reset_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the time of a pass suffices for one."""

    def use_all_time(*arguments: Any) -> list[Any]:
        arguments[-1]._until -= tasks.PASS_SECONDS
        return []

    monkeypatch.setattr(differences, "_differences", use_all_time)
    served: Counter[str] = Counter()
    for _ in range(200):
        subscriptions = [Subscription(name, "t", None, None) for name in "abcd"]
        environment, seal = SimpleNamespace(environment_id="env_a"), SimpleNamespace(rights="")
        stream = SimpleNamespace(environment=environment, seal=seal, subscriptions=subscriptions)
        differences.changes("us-east-1", stream, Found(), PassEffort())  # type: ignore[arg-type]
        [one] = [each.name for each in subscriptions if not each.needs_reset]
        served[one] += 1
    assert set(served) == set("abcd")


def test_one_that_takes_the_time_of_a_pass_leaves_it_to_others_then(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def differences_of(_: Any, stream: Any, subscription: Subscription, events: Any, effort: PassEffort) -> list[Any]:
        computed.append(subscription.name)
        if subscription.name == "slow":
            effort._began -= tasks.PASS_SECONDS
            raise TooCostly
        return []

    monkeypatch.setattr(differences, "_differences", differences_of)
    monkeypatch.setattr(differences, "from_random_start", list)
    subscriptions = [Subscription(name, "t", {"title": name}, None) for name in ("slow", "quick")]
    environment, seal = SimpleNamespace(environment_id="env_c"), SimpleNamespace(rights="")
    stream: Any = SimpleNamespace(environment=environment, seal=seal, subscriptions=subscriptions)
    resets = []
    for _ in range(3):
        differences.changes("us-east-1", stream, Found(), PassEffort())  # type: ignore[arg-type]
        resets.append([each.name for each in subscriptions if each.needs_reset])
        subscriptions[0].needs_reset = False  # it was sent
    assert (resets, computed) == ([["slow"]] * 3, ["slow", "quick", "quick", "quick"])
    others = [Subscription("same", "t", {"title": "slow"}, None)]
    stream = SimpleNamespace(environment=environment, seal=SimpleNamespace(rights="b"), subscriptions=others)
    differences.changes("us-east-1", stream, Found(), PassEffort())  # type: ignore[arg-type]
    assert others[0].needs_reset, "those of other streams too, each of which would take the time of a pass"
    stream.subscriptions = subscriptions
    differences._costly.clear()  # half a minute later
    differences.changes("us-east-1", stream, Found(), PassEffort())  # type: ignore[arg-type]
    assert computed[-2:] == ["slow", "quick"]


def test_the_time_of_a_pass_is_for_all_its_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PASS_SECONDS", 0.2)
    effort = PassEffort()
    effort.spend(50_000)
    time.sleep(0.2)
    effort.start_subscription()
    with pytest.raises(TooCostly):
        effort.spend(50_000)
    with pytest.raises(TooCostly):
        effort.check()


def test_slow_environments_rest_between_steps() -> None:
    effort = PassEffort()
    for is_slow in (False, True):
        effort.start(is_slow=is_slow)
        began = time.thread_time(), time.monotonic()
        effort.spend(100_000)
        assert (time.monotonic() - began[1] > 0.05) == is_slow
    assert effort.seconds_worked < 0.05, "rests are no work"


def test_slow_environments_have_half_of_the_workers() -> None:
    queue = TaskQueue()
    slow = [f"env_slow{number}" for number in range(5)]
    for each in slow:
        queue.put(Task(each, None))
        task = queue.get()
        assert task is not None
        task.effort._began -= 0.6  # so long it took
        queue.finish(task)
    for each in [*slow, "env_fast1", "env_fast2"]:
        queue.put(Task(each, None))
    got = [queue.get() for _ in range(tasks.WORKERS)]
    names = [task.environment_id for task in got if task is not None]
    assert names == [*slow[:2], "env_fast1", "env_fast2"]

    later: list[Any] = []
    worker = threading.Thread(target=lambda: later.append(queue.get()))
    worker.start()
    worker.join(0.2)
    assert worker.is_alive(), "no slow one begins while two others have workers"
    assert got[0] is not None
    queue.finish(got[0])
    worker.join(5)
    assert [task.environment_id for task in later] == [slow[2]]


class Subscribed:
    """A stream of the subscriptions `large` and `small`, of which a pass has no time for `small` while `is_slow`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.is_slow, self.sent = True, list[bytes]()
        large = [{"id": f"row_{n}", "sequence": 2 + n, "size": size, "record": {}, "old_record": {}} for n in range(4)]
        small = [{"id": "row_small", "sequence": 1, "size": 1, "record": {}, "old_record": {}}]
        self._events: Any = {"env_x": {"large": large, "small": small}}
        monkeypatch.setattr(differences, "_differences", self._differences)
        monkeypatch.setattr(differences, "from_random_start", list)
        monkeypatch.setattr(FetchedEvents, "position_of", lambda found, *_: Position(found.snapshot, 1, "g"))
        self.start(Position("10:10:", 1, "g"))

    def start(self, position: Position) -> None:
        subscriptions = [Subscription(name, name, None, None) for name in ("large", "small")]
        where: Any = SimpleNamespace(environment_id="env_x", plan="free")
        anyone: Any = SimpleNamespace(version=1)
        seal = Seal((("env_x", "user", "u", "w"),), "r" * 16)
        self.stream = Stream(where, anyone, anyone, subscriptions, anyone, anyone, seal, position)
        self.stream.principal = "p"  # type: ignore[assignment]
        self.stream.queue = SimpleNamespace(is_closed=False, put=self.sent.append)  # type: ignore[assignment]

    def run_pass(self) -> list[str]:
        """What it sends: events, each with its row or subscription, and whether it has an id."""
        self.sent.clear()
        found = FetchedEvents("20:20:", 1, {}, set(), {"env_x": 1}, self._events)
        advance("x", self.stream, found, PassEffort())
        return re.findall(r"event: (\w+)\n", b"".join(self.sent).decode())

    def _differences(self, _: Any, stream: Stream, subscription: Subscription, events: Any, effort: PassEffort) -> Any:
        if self.is_slow and subscription.name == "small":
            raise TooCostly
        return [Message("row", json.dumps({"x": "y" * each["size"]}), each["sequence"]) for each in events]


def test_a_subscription_without_time_is_reset_although_the_pass_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the 2 MB that a stream gets at once: the next pass, which has time, begins after the event."""
    subscribed = Subscribed(monkeypatch, size=900_000)
    assert subscribed.run_pass() == ["row", "row", "row", "reset"]
    subscribed.is_slow = False
    assert subscribed.run_pass() == ["row"]


def test_no_client_continues_between_a_row_and_the_reset_of_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribed = Subscribed(monkeypatch, size=10)
    assert subscribed.run_pass() == ["row", "row", "row", "row", "reset"]
    [message] = [each for each in b"".join(subscribed.sent).split(b"\n\n") if b"\nid: " in each]
    assert message.startswith(b"event: reset\n")
