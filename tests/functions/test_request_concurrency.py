"""The wait queue of synchronous calls: 64 clients on one function, fair shares, and the end of a wait."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from django.http import HttpRequest

from functions.errors import NoSuchFunction, TooManyRuns
from functions.execution import request_concurrency
from functions.execution.request_concurrency import Admission, ConcurrencyLimiter, State
from functions.quotas.client_networks import AnonymousCall
from functions.runs.start import NewRun
from platform_site.identity.callers import Caller, EnvironmentRef
from tests.support.service import Up
from tests.support.threads import refuse_new_threads

CLIENTS = 64
SLOW = "export default async ({ ms }) => { await new Promise(r => setTimeout(r, ms)); return ms }"


@pytest.fixture
def slow(served: Up) -> Any:
    """Deploy a function that sleeps, and remove it afterwards: `slow(timeout_ms)` returns its URL."""
    made = []
    with httpx.Client(base_url=f"{served.base_url}/v1", headers=headers(served), timeout=30) as client:

        def deploy(timeout_ms: int) -> str:
            name = f"slow-{len(made)}-{time.time_ns()}"
            answer = client.put(f"/functions/{name}", json={"source": SLOW, "timeout_ms": timeout_ms})
            assert answer.status_code == 201, answer.text
            made.append(name)
            return f"/v1/functions/{name}/invoke"

        yield deploy
        for name in made:
            client.delete(f"/functions/{name}")


def headers(served: Up) -> dict[str, str]:
    return {"Authorization": f"Bearer {served.facts['server_key']}"}


def at_once(served: Up, path: str, input: Any, *, calls: int = 1, clients: int = CLIENTS) -> list[httpx.Response]:
    """The responses to `calls` calls one after another by each of so many clients."""

    def client() -> list[httpx.Response]:
        with httpx.Client(base_url=served.base_url, headers=headers(served), timeout=60) as http:
            return [http.post(path, json={"input": input}) for _ in range(calls)]

    with ThreadPoolExecutor(clients) as threads:
        found = [threads.submit(client) for _ in range(clients)]
        return [answer for each in found for answer in each.result()]


def test_64_clients_of_one_function_are_all_served(served: Up) -> None:
    answers = at_once(served, "/v1/functions/sum/invoke", {"a": 1, "b": 2}, calls=5)
    assert Counter(answer.status_code for answer in answers) == {200: CLIENTS * 5}
    assert all(answer.json()["output"] == {"sum": 3} for answer in answers)


def test_calls_that_fit_into_the_timeout_are_all_served(served: Up, slow: Callable[[int], str]) -> None:
    """64 calls of 50 ms in the four slots of the plan."""
    answers = at_once(served, slow(10_000), {"ms": 50})
    assert Counter(answer.status_code for answer in answers) == {200: CLIENTS}


def test_a_call_that_waits_beyond_its_timeout_is_429(served: Up, slow: Callable[[int], str]) -> None:
    began = time.monotonic()
    answers = at_once(served, slow(1000), {"ms": 700})
    assert time.monotonic() - began < 15
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}, statuses
    assert statuses[200] >= 4
    for refused in (answer for answer in answers if answer.status_code == 429):
        assert refused.headers["Retry-After"] == "1"
        error = refused.json()["error"]
        assert error["code"] == "rate_limited"
        assert error["message"] == (
            "No concurrency slot was free within the function's timeout of 1 s. "
            "Try again later, or queue the run with async: true."
        )


def test_rows_and_sign_in_are_served_while_calls_wait(served: Up, slow: Callable[[int], str]) -> None:
    path, account = slow(4000), served.facts["account"]
    flood = threading.Thread(target=at_once, args=(served, path, {"ms": 1000}))
    flood.start()
    sign_in = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    with httpx.Client(base_url=f"{served.base_url}/v1", headers=headers(served), timeout=30) as client:
        time.sleep(0.5)
        took = []
        while flood.is_alive() and len(took) < 10:
            began = time.monotonic()
            assert client.get("/rows/tasks").status_code == 200
            assert client.post("/auth/token", json=sign_in).status_code == 200
            took.append(time.monotonic() - began)
    flood.join(60)
    assert sorted(took)[len(took) // 2] < 1.5, took


def test_a_waiting_call_is_counted_once_against_the_rate_limit(served: Up, slow: Callable[[int], str]) -> None:
    path = slow(10_000)

    def counted() -> int:
        answers = at_once(served, path, {"ms": 20}, clients=16)
        left = [int(answer.headers["RateLimit"].partition("r=")[2].partition(";")[0]) for answer in answers]
        return max(left) - min(left) + 1

    assert min(counted(), counted()) <= 16, "one of them may meet the end of a minute"


# ── The order of the queue ──


def wait_for_slots(room: ConcurrencyLimiter, turns: list[Admission]) -> None:
    for turn in turns:
        room.take(turn)
        if turn.state is State.NEW:
            turn.until = turn.since + 30
            room.enqueue(turn)


def served_in_order(room: ConcurrencyLimiter, turns: list[Admission]) -> list[Admission]:
    """End the oldest executing call again and again; the order in which the calls got their slots."""
    order: list[Admission] = []
    while True:
        order += [turn for turn in turns if turn.state is State.HELD and turn not in order]
        held = [turn for turn in order if turn.state is State.HELD]
        if not held:
            return order
        room.release(held[0])


def test_two_environments_share_the_slots() -> None:
    room = ConcurrencyLimiter(slots=4, shared=4)
    many = [Admission("env_a", "key a", 4) for _ in range(40)]
    few = [Admission("env_b", "key b", 4) for _ in range(4)]
    wait_for_slots(room, [*many, *few])
    order = served_in_order(room, [*many, *few])
    assert [turn.environment_id for turn in order[:4]] == ["env_a"] * 4
    assert [turn.environment_id for turn in order[4:8]].count("env_b") >= 2
    assert max(order.index(turn) for turn in few) < 12, "they do not wait behind 40 others"
    assert len(order) == 44


def test_two_callers_of_an_environment_share_its_slots() -> None:
    room = ConcurrencyLimiter(slots=8, shared=8)
    many = [Admission("env_a", "user ada", 4) for _ in range(40)]
    few = [Admission("env_a", "user bob", 4) for _ in range(4)]
    wait_for_slots(room, [*many, *few])
    order = served_in_order(room, [*many, *few])
    assert max(order.index(turn) for turn in few) < 12, "bob does not wait behind 40 calls of ada"
    assert [turn for turn in order if turn.caller == "user ada"] == many, "in the order of their arrival"


def test_an_environment_never_has_more_than_its_slots() -> None:
    room = ConcurrencyLimiter(slots=8, shared=6)
    turns = [Admission("env_a", "key a", 4) for _ in range(10)]
    visits = [Admission("env_a", f"network {number}", 2, AnonymousCall(number)) for number in range(5)]
    wait_for_slots(room, [*visits, *turns])
    assert sum(turn.state is State.HELD for turn in visits) == 2
    assert sum(turn.state is State.HELD for turn in [*visits, *turns]) == 4
    other = Admission("env_b", "key b", 4)
    room.take(other)
    assert other.state is State.HELD
    for turn in [*turns, *visits, other]:
        room.release(turn)
    assert (room._held, room._taken, room._queues, room._weight) == ({}, 0, {}, 0)


def test_the_last_quarter_is_for_environments_that_execute_nothing() -> None:
    room = ConcurrencyLimiter(slots=8)
    turns = {each: [Admission(each, "key", 16) for _ in range(10)] for each in ("env_a", "env_b", "env_c", "env_d")}

    def held(environment_id: str) -> int:
        return sum(turn.state is State.HELD for turn in turns[environment_id])

    for environment_id, most in (("env_a", 6), ("env_b", 1), ("env_c", 1), ("env_d", 0)):
        wait_for_slots(room, turns[environment_id])
        assert held(environment_id) == most, environment_id
    room.release(turns["env_a"][0])
    assert [held(each) for each in turns] == [5, 1, 1, 1]
    room.close()


def test_requests_that_only_wait_hold_a_quarter_of_the_slots() -> None:
    room = ConcurrencyLimiter(slots=8, shared=8)
    with room.slot("env_a"), pytest.raises(request_concurrency.Full), room.slot("env_a"):
        pass
    with room.slot("env_a"), room.slot("env_b"):
        with pytest.raises(request_concurrency.Full), room.slot("env_c"):
            pass
        turns = [Admission("env_c", "key c", 6) for _ in range(6)]
        wait_for_slots(room, turns)
        assert all(turn.state is State.HELD for turn in turns), "the calls have the others"
        for turn in turns:
            room.release(turn)
    with room.slot("env_c"):
        pass


def test_a_full_queue_ends_the_newest_call_of_the_largest_environment() -> None:
    room = ConcurrencyLimiter(slots=1, shared=1)
    most = request_concurrency.MAX_WEIGHT // request_concurrency.WEIGHT_PER_CALL
    flood = [Admission("env_a", "key a", 4) for _ in range(most + 10)]
    wait_for_slots(room, flood)
    other = [Admission("env_b", "key b", 4) for _ in range(3)]
    wait_for_slots(room, other)
    assert all(turn.state is State.WAITING for turn in other)
    ended = [turn for turn in flood if turn.state is State.OVER]
    assert ended == flood[most - 2 :], "the newest ones"
    assert all(turn.is_refused for turn in ended)
    large = Admission("env_c", "key c", 4, weight=request_concurrency.MAX_WEIGHT // 2)
    wait_for_slots(room, [large])
    assert (large.state, room._weight <= request_concurrency.MAX_WEIGHT) == (State.OVER, True), (
        "one body does not end 128 calls"
    )
    room.close()
    assert not room._queues


def test_a_wait_ends_at_its_time_and_calls_back_once() -> None:
    room = ConcurrencyLimiter(slots=1, shared=1)
    first, second = Admission("env_a", "key a", 4), Admission("env_a", "key a", 4)
    room.take(first)
    second.until = second.since + 0.1
    room.enqueue(second)
    called: list[float] = []
    decided = threading.Event()
    room.when_decided(second, lambda: (called.append(time.monotonic()), decided.set())[1])
    assert decided.wait(5)
    room.release(first)
    time.sleep(0.1)
    assert (second.state, len(called)) == (State.OVER, 1)
    assert called[0] - second.since >= 0.1


def test_a_call_without_a_slot_of_the_plan_waits_at_the_front() -> None:
    room = ConcurrencyLimiter(slots=4, shared=4)
    first, second = Admission("env_a", "key a", 4), Admission("env_a", "key a", 4)
    room.take(first)
    first.until = first.since + 30
    room.requeue(first)
    assert first.state is State.WAITING
    wait_for_slots(room, [second])
    assert second.state is State.WAITING, "it does not overtake"
    deadline = time.monotonic() + 5
    while second.state is not State.HELD:
        assert first.state is State.HELD or second.state is State.WAITING
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for turn in (first, second):
        room.release(turn)


def test_a_call_whose_timeout_cannot_be_read_returns_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a function that is deleted while the slots of the plan are taken, or without a free connection."""
    room = ConcurrencyLimiter(slots=1, shared=1)
    monkeypatch.setattr(request_concurrency, "limiter", room)
    environment = EnvironmentRef("env_a", "production", "prj_a", "default", "us-east-1", "free", "env_a")
    new = NewRun(environment, Caller("key", "key_a", frozenset()), "Not a name", "{}")

    def without_slot_of_plan() -> None:
        raise TooManyRuns(4)

    with pytest.raises(NoSuchFunction):
        request_concurrency.with_slot(HttpRequest(), new, without_slot_of_plan)
    following = Admission("env_a", "key a", 4)
    room.take(following)
    assert following.state is State.HELD


def test_a_wait_ends_at_its_time_though_an_earlier_watcher_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    room = ConcurrencyLimiter(slots=1, shared=1)
    first, second, third = (Admission("env_a", "key a", 4) for _ in range(3))
    room.take(first)
    second.until = third.until = second.since + 0.5
    with monkeypatch.context() as full:
        refuse_new_threads(full, "function-queue")
        with pytest.raises(RuntimeError):
            room.enqueue(second)
    room.enqueue(third)
    decided = threading.Event()
    room.when_decided(third, decided.set)
    assert decided.wait(5)
    assert third.state is State.OVER
