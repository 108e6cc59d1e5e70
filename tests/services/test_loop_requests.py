"""Requests on the event loop: each has connections of its own, gives the loop to others while it waits, and goes to a
thread where it would wait otherwise."""

import gc
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any

import greenlet
import psycopg
import pytest
from django.db import connections, transaction
from django.http import HttpRequest

from accounts import audit
from accounts.directory import user_lookup
from accounts.users import service as user_service
from accounts.users import sessions
from accounts.users.sessions import Device
from functions.execution import request_concurrency
from functions.execution.request_concurrency import Admission, ConcurrencyLimiter
from functions.runs import start
from platform_site.concurrency import loop_requests, server_hints
from platform_site.http.errors import Unavailable
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import loop_connections, prepared
from platform_site.redis import client as redis_client
from platform_site.redis.loop_connection import LoopConnection
from rows.query import schema_cache
from rows.schema.model import EMPTY
from tests.support.event_loop import Loop
from tests.support.timing import within

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

REGION = "us-east-1"


def ask(sql: bytes, *values: bytes) -> Callable[[], Any]:
    return lambda: prepared.retry_if_lost(connections[REGION], sql, values)


def shared_connection(loop: Loop, store: redis_client.Store) -> LoopConnection:
    """The connection to Redis of all requests on the loop, once it is made."""
    deadline = time.monotonic() + 10
    while store._loop_connection is None or store._loop_connection.is_closed:
        assert time.monotonic() < deadline
        assert loop.run(lambda: store.put({"loop-test:made": b"1"}, 60)) == [True]
    return store._loop_connection


def backend() -> int:
    return int(prepared.run(REGION, b"SELECT pg_backend_pid()", ())[0][0] or 0)


def test_requests_wait_side_by_side(loop: Loop) -> None:
    began = time.monotonic()
    outcomes = loop.run(*[ask(b"SELECT pg_sleep(0.5)::text, $1::text", b"%d" % number) for number in range(6)])
    assert [rows[0][1] for rows in outcomes] == [b"%d" % number for number in range(6)]
    assert time.monotonic() - began < 2.5


def test_each_has_a_connection_of_its_own_and_it_is_used_again(loop: Loop) -> None:
    def two_in_turn() -> tuple[int, int]:
        first = backend()
        prepared.run(REGION, b"SELECT pg_sleep(0.05)::text", ())
        return first, backend()

    pairs = loop.run(two_in_turn, two_in_turn, two_in_turn)
    assert all(first == second for first, second in pairs)
    assert len({first for first, _ in pairs}) == 3
    assert loop.run(backend)[0] in {first for first, _ in pairs}


def test_a_transaction_goes_to_a_thread_and_nothing_of_it_was_sent(loop: Loop) -> None:
    """So no statement of another request can become part of one."""

    def begin() -> None:
        prepared.run(REGION, b"SELECT 1", ())
        with transaction.atomic(using=REGION):
            prepared.run(REGION, b"SELECT 1", ())

    def state() -> Any:
        return connections[REGION].connection.pgconn.transaction_status

    [outcome, other] = loop.run(begin, ask(b"SELECT 1"))
    assert isinstance(outcome, server_hints.NeedsThread)
    assert other == [(b"1",)]
    [idle] = loop.run(lambda: (prepared.run(REGION, b"SELECT 1", ()), state())[1])
    assert idle == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize(
    "wait",
    [
        lambda: connections[REGION].cursor(),
        lambda: connections["default"].cursor(),
        loop_requests.require_thread,
    ],
)
def test_what_would_stop_the_loop_goes_to_a_thread(loop: Loop, wait: Callable[[], Any]) -> None:
    assert isinstance(loop.run(wait)[0], server_hints.NeedsThread)


def test_a_request_that_has_written_is_not_repeated(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def write_and_wait() -> str:
        loop_requests.will_write()
        with connections[REGION].cursor() as cursor:
            cursor.execute("SELECT 'done'")
            return str(cursor.fetchone()[0])

    assert loop.run(write_and_wait) == ["done"]
    assert "waits after it wrote" in caplog.text


def test_a_lost_connection_is_replaced_and_its_descriptor_closed(loop: Loop) -> None:
    [pid] = loop.run(backend)

    def end_it() -> None:
        with psycopg.connect(**_parameters()) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])

    threading.Thread(target=end_it).start()
    for _ in range(5):
        [rows] = loop.run(ask(b"SELECT 'again'"))
        assert rows == [(b"again",)]
        time.sleep(0.1)
    assert loop.run(backend)[0] != pid

    def cut_in_the_middle() -> Any:
        mine = backend()
        killer = threading.Thread(target=_terminate, args=(mine,))
        killer.start()
        return prepared.run(REGION, b"SELECT pg_sleep(5)::text", ())

    [error] = loop.run(cut_in_the_middle)
    assert isinstance(error, Exception)
    assert loop.run(ask(b"SELECT 1")) == [[(b"1",)]]


def test_a_thread_replaces_a_connection_lost_while_it_waits() -> None:
    """Such as that of a cold call, which waits for its function."""

    def before_and_after() -> tuple[int, int]:
        mine = backend()
        loop_connections.release()
        _terminate(mine, wait_ms=5_000)
        return mine, backend()

    with ThreadPoolExecutor(1) as thread:
        before, after = thread.submit(before_and_after).result()
        thread.submit(connections.close_all).result()
    assert before != after


@pytest.mark.parametrize("count", [1, 3])
def test_a_server_that_ends_before_it_reads_a_statement_is_noticed(loop: Loop, count: int) -> None:
    """It sends a last message, and then the kernel a reset. `count` reads: one statement, or a pipeline."""
    [pid] = loop.run(backend)
    os.kill(pid, signal.SIGSTOP)

    def end_it() -> None:
        _terminate(pid)
        os.kill(pid, signal.SIGCONT)

    def read(number: int) -> Any:
        return prepared.read_pipelined(connections[REGION], b"SELECT $1::text", [b"%d" % number])

    threading.Thread(target=end_it).start()
    outcomes = loop.run(*[partial(read, number) for number in range(count)])
    assert outcomes == [[(b"%d" % number,)] for number in range(count)]
    assert loop.run(backend)[0] != pid


def _terminate(pid: int, wait_ms: int = 0) -> None:
    time.sleep(0.2)
    with psycopg.connect(**_parameters()) as other:
        other.execute("SELECT pg_terminate_backend(%s, %s)", [pid, wait_ms])


def _parameters() -> dict[str, Any]:
    made = connections[REGION].get_connection_params()
    return {name: value for name, value in made.items() if name in {"dbname", "user", "password", "host", "port"}}


def test_who_finds_no_connection_in_time_is_refused(loop: Loop, settings: Any) -> None:
    settings.WEB_THREADS, settings.WEB_QUEUE_TIMEOUT = 2, 0.2
    slow = ask(b"SELECT pg_sleep(0.8)::text")
    outcomes = loop.run(slow, slow, slow)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Unavailable", "list", "list"]
    assert any(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert loop.run(ask(b"SELECT 1"), ask(b"SELECT 1")) == [[(b"1",)], [(b"1",)]]


def test_who_waits_for_a_connection_gets_it(loop: Loop, settings: Any) -> None:
    settings.WEB_THREADS = 2
    began = time.monotonic()
    outcomes = loop.run(*[ask(b"SELECT pg_sleep(0.1)::text, $1::text", b"%d" % number) for number in range(8)])
    assert [rows[0][1] for rows in outcomes] == [b"%d" % number for number in range(8)]
    assert time.monotonic() - began > 0.3


def ask_for(owner: str, sql: bytes) -> Callable[[], Any]:
    """As `ask`, for an operation in an environment of an owner."""

    def asked() -> Any:
        return prepared.run_on(loop_connections.connection(REGION, owner), sql, [])

    return asked


def test_slow_statements_of_one_owner_leave_connections_to_others(loop: Loop, settings: Any) -> None:
    settings.WEB_THREADS, settings.WEB_QUEUE_TIMEOUT = 4, 0.3
    slow = [ask_for("usr_a", b"SELECT pg_sleep(0.8)::text") for _ in range(6)]
    *of_a, of_b = loop.run(*slow, ask_for("usr_b", b"SELECT 1::text"))
    assert of_b == [(b"1",)]
    assert sorted(type(outcome).__name__ for outcome in of_a) == ["Unavailable"] * 3 + ["list"] * 3
    assert loop.run(*[ask_for("usr_a", b"SELECT 1::text")] * 8) == [[(b"1",)]] * 8, "what was held is given back"


def test_a_free_connection_goes_to_the_owner_with_the_fewest(loop: Loop, settings: Any) -> None:
    settings.WEB_THREADS = 4
    got_one: list[str] = []

    def noted(owner: str, seconds: str) -> Callable[[], Any]:
        def work() -> None:
            connection = loop_connections.connection(REGION, owner)
            got_one.append(owner)
            prepared.run_on(connection, f"SELECT pg_sleep({seconds})::text".encode(), [])

        return work

    # Three of a and one of c hold all of them; b comes after three more of a.
    works = [*[noted("usr_a", "0.3")] * 3, noted("usr_c", "0.3"), *[noted("usr_a", "0.01")] * 3, noted("usr_b", "0.01")]
    loop.run(*works)
    assert got_one[:5] == ["usr_a", "usr_a", "usr_a", "usr_c", "usr_b"]


def test_a_call_that_waits_for_a_slot_holds_no_connection(
    loop: Loop, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEB_THREADS, settings.WEB_QUEUE_TIMEOUT = 1, 0.5
    limiter = ConcurrencyLimiter(1, 1)
    monkeypatch.setattr(request_concurrency, "limiter", limiter)
    monkeypatch.setattr(start, "timeout_of", lambda new: 10.0)
    environment = EnvironmentRef("env_a", "production", "prj_a", REGION, REGION, "free", "env_a")
    new = start.NewRun(environment, Caller("key", "key_a", frozenset()), "sum", "{}")
    other = Admission("env_a")
    limiter.take(other)

    def call() -> str:
        backend()
        return request_concurrency.with_slot(HttpRequest(), new, lambda: "called")

    def free_the_slot() -> bool:
        loop_requests.sleep(0.05)
        found = backend() > 0
        limiter.release(other)
        return found

    assert loop.run(call, free_the_slot) == ["called", True]


def test_prepared_statements_errors_and_large_values_are_as_in_a_thread(loop: Loop) -> None:
    def work() -> list[Any]:
        found: list[Any] = [prepared.run(REGION, b"SELECT $1::int + 1", (b"1",)) for _ in range(3)]
        try:
            prepared.run(REGION, b"SELECT 1 / $1::int", (b"0",))
        except Exception as error:
            found.append(type(error.__cause__).__name__)
        large = b"x" * 3_000_000
        found.append(
            prepared.run(REGION, b"SELECT length($1::text)::text, $1::text", (large,)) == [(b"3000000", large)]
        )
        return found

    assert loop.run(work) == [[[(b"2",)], [(b"2",)], [(b"2",)], "DivisionByZero", True]]


def test_one_write_to_redis_serves_all_of_one_turn(loop: Loop) -> None:
    store = redis_client.current()

    def count(number: int) -> Callable[[], Any]:
        def work() -> Any:
            trip = store.trip()
            counted, kept = trip.count(f"loop-test:{number}", 60), trip.get(f"loop-test:{number}")
            trip.run()
            return counted.value, kept.value

        return work

    connection = shared_connection(loop, store)
    written: list[bytes] = []
    transport = connection._transport

    class Spy:
        def write(self, data: bytes) -> None:
            written.append(data)
            transport.write(data)

        def abort(self) -> None:
            transport.abort()

    connection._transport = Spy()
    outcomes = loop.run(*[count(number) for number in range(10)])
    assert outcomes == [(1, b"1")] * 10
    assert len(written) == 1


def test_redis_that_closes_the_connection_is_asked_again(loop: Loop) -> None:
    store = redis_client.current()
    shared_connection(loop, store)._transport.abort()
    assert loop.run(lambda: store.put({"loop-test:a": b"2"}, 60)) == [True]
    assert not store.breaker.is_open


def test_a_fill_does_not_follow_a_lost_connection_to_a_new_one(loop: Loop) -> None:
    """Redis may have been restarted, and have forgotten what was revoked."""
    store, key = redis_client.current(), f"loop-test:{time.monotonic()}"
    shared_connection(loop, store)._transport.abort()

    def fill_and_read() -> Any:
        trip = store.trip()
        trip.fill(key, b"filled")
        kept = trip.get(key)
        return trip.run(), kept.value

    assert loop.run(fill_and_read) == [(True, None)]
    shared_connection(loop, store)
    assert loop.run(fill_and_read) == [(True, b"filled")]


def test_redis_that_is_silent_opens_the_breaker_within_its_budget(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    store = redis_client.current()
    connection = shared_connection(loop, store)
    monkeypatch.setattr(connection, "_send", lambda: None)
    began = time.monotonic()
    trips = [store.trip() for _ in range(3)]
    for trip in trips:
        trip.get("loop-test:a")
    assert loop.run(*[trip.run for trip in trips]) == [False, False, False]
    assert time.monotonic() - began < within(1.5)
    assert store.breaker.is_open
    time.sleep(1.1)
    assert loop.run(lambda: store.put({"loop-test:a": b"2"}, 60)) == [True]
    assert not store.breaker.is_open


def test_connecting_to_redis_counts_towards_the_budget(loop: Loop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = redis_client.Store(f"redis://:secret@127.0.0.1:{silent.getsockname()[1]}/0", 0.2)
        trip = store.trip()
        trip.get("loop-test:a")
        began = time.monotonic()
        assert loop.run(trip.run) == [False]
        assert time.monotonic() - began < within(1.5)
        assert store.breaker.is_open


def test_those_who_wait_for_a_silent_database_leave_threads_for_others(loop: Loop, settings: Any) -> None:
    settings.WEB_THREADS = 4
    release = threading.Event()

    def stuck() -> Any:
        here = loop_requests.current()
        assert here is not None
        return here.in_thread(lambda: release.wait(20))

    def quick() -> Any:
        here = loop_requests.current()
        assert here is not None
        answer = here.in_thread(lambda: "quick")
        release.set()
        return answer

    began = time.monotonic()
    assert loop.run(stuck, stuck, stuck, stuck, quick)[-1] == "quick"
    assert time.monotonic() - began < 15


def test_what_most_requests_for_rows_ask_stays_on_the_loop(loop: Loop) -> None:
    """Else each would be begun twice: one that names a user, and one that finds nothing."""
    assert loop.run(lambda: user_lookup.find_users("env_x", [b"usr_x", b"usr_y"], ("id",))) == [{}]
    unknown = schema_cache.CompiledSchema("env_x", REGION, 0, EMPTY, set())
    assert loop.run(lambda: schema_cache.is_current(unknown)) == [True]


def test_a_token_is_refreshed_on_the_loop_and_repeated_in_a_thread(loop: Loop) -> None:
    user = user_service.create_user(pool_id=None, email="loop@example.com", password=None, actor=audit.SYSTEM)
    first = sessions.start(user, environment_id=None, device=Device(), method="password").refresh_token
    [grant] = loop.run(lambda: sessions.refresh(first, device=Device()))
    assert isinstance(grant, sessions.Grant)
    assert (grant.user, grant.user.email, grant.user.name) == (user, user.email, user.name)
    repeated = loop.run(lambda: sessions.refresh(first, device=Device()))
    assert isinstance(repeated[0], server_hints.NeedsThread)
    assert sessions.refresh(first, device=Device()).refresh_token == grant.refresh_token


def test_a_late_wake_up_reaches_no_later_request(loop: Loop) -> None:
    """Greenlets are used again: what was meant for one request must not end the wait of the next."""
    greenlets = []

    def short() -> None:
        greenlets.append(greenlet.getcurrent())

    first = loop.start("first", short)
    loop.run(short)

    def waits() -> Any:
        greenlets.append(greenlet.getcurrent())
        here = loop_requests.current()
        assert here is not None
        assert here is not first
        loop.loop.call_soon(first.switch, "of the first")
        loop.loop.call_later(0.05, here.switch, "of the second")
        return here.wait()

    assert loop.run(waits) == ["of the second"]
    assert greenlets[-1] is greenlets[-2]


def test_context_variables_end_with_their_request(loop: Loop) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    def sets() -> str:
        before = variable.get()
        variable.set("set")
        return before

    assert [loop.run(sets), loop.run(sets)] == [["unset"], ["unset"]]


@pytest.mark.exhaustive
def test_an_idle_greenlet_keeps_no_request(loop: Loop) -> None:
    class Large:
        pass

    def work(large: Large) -> None:
        pass

    large = Large()
    found = weakref.ref(large)
    loop.run(partial(work, large))
    del large
    gc.collect()
    assert found() is None


def test_few_greenlets_stay_after_many_at_once(loop: Loop) -> None:
    loop.run(*[partial(loop_requests.sleep, 0.2)] * 200)
    assert 0 < len(loop_requests._idle.workers) <= loop_requests._MAX_IDLE
