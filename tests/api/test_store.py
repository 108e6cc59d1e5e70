"""Redis as a request meets it: one round trip, exact counts, and a bounded wait when it is frozen, dead or slow."""

import logging
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.conf import LazySettings

from platform_site.observability.metrics import BREAKER_OPEN, BREAKER_TRIPS
from platform_site.redis import client as redis_client
from platform_site.redis import round_trip
from platform_site.redis.circuit_breaker import SECONDS as BREAKER_SECONDS
from platform_site.redis.client import Store
from platform_site.redis.connection import _MAX_CONNECTIONS, ConnectionPool
from tests.support.threads import refuse_new_threads
from tests.support.valkey import Refusal
from tests.support.valkey_server import BUDGET, SLACK, RedisServer, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    yield made
    made.kill()


def run(of: Store, key: str = "k") -> tuple[bool, float]:
    """Whether a trip succeeded, and the seconds it took."""
    trip = of.trip()
    trip.get(key)
    trip.count("c", 60)
    at = time.monotonic()
    return trip.run(), time.monotonic() - at


def value(of: Store, key: str) -> bytes | None:
    trip = of.trip()
    fetched = trip.get(key)
    assert trip.run()
    return fetched.value


def test_one_trip_answers_every_question(server: RedisServer) -> None:
    server.client.set("there", b"\x00\xffraw")
    for expected in (1, 2):
        trip = server.store.trip()
        there, nowhere = trip.get("there"), trip.get("nowhere")
        count = trip.count("count", ttl=50)
        trip.fill("filled", b"new")
        assert trip.run()
        assert (there.value, nowhere.value, count.value) == (b"\x00\xffraw", None, expected)
    assert 40 < server.client.ttl("count") <= 50
    assert server.client.get("filled") == b"new"
    assert server.store.trip().run(), "a trip without questions is over at once"


def test_a_trip_is_one_round_trip(server: RedisServer, tmp_path: Path) -> None:
    sent: list[bytes] = []
    path = tmp_path / "between.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def forward() -> None:
            inside, _ = listener.accept()
            with inside, socket.socket(socket.AF_UNIX) as outside:
                outside.connect(str(server.layout.valkey_socket))
                while heard := inside.recv(65536):
                    sent.append(heard)
                    outside.sendall(heard)
                    inside.sendall(outside.recv(65536))

        threading.Thread(target=forward, daemon=True).start()
        between = Store(server.url.replace(str(server.layout.valkey_socket), str(path)), 2)
        assert run(between)[0]
        sent.clear()
        assert run(between)[0]
        assert len(sent) == 1


def test_parallel_counts_are_exact(server: RedisServer) -> None:
    patient = redis_client.Store(server.url, 10.0)  # forty threads at once on a busy machine

    def count(_: int) -> int:
        trip = patient.trip()
        counted = trip.count("shared", 60)
        assert trip.run()
        assert counted.value is not None
        return counted.value

    with ThreadPoolExecutor(40) as pool:
        values = list(pool.map(count, range(1000)))
    assert sorted(values) == list(range(1, 1001)), "each count was given out once"


def test_a_fill_never_replaces_and_a_mark_always_does(server: RedisServer) -> None:
    server.store.fill("who:1", b"old")
    server.store.fill("who:1", b"older")
    assert value(server.store, "who:1") == b"old"
    assert server.store.mark({"who:1": b"!", "who:2": b"!"})
    server.store.fill("who:1", b"a reader of the old state comes late")
    server.store.fill("who:2", b"a reader of the old state comes late")
    assert value(server.store, "who:1") == value(server.store, "who:2") == b"!"
    assert round_trip.RECORD_TTL < server.client.ttl("who:1") <= redis_client.MARKER_TTL
    assert server.store.put({"who:1": b"put"}, 5)
    assert value(server.store, "who:1") == b"put"
    assert server.store.mark({}), "nothing to mark is no question"


def test_what_redis_refuses_costs_only_its_own_answer(server: RedisServer) -> None:
    server.client.rpush("list", "x")
    trip = server.store.trip()
    wrong, count, right = trip.get("list"), trip.count("list", 60), trip.get("nothing")
    assert trip.run()
    assert (wrong.value, count.value, right.value) == (None, None, None)
    assert run(server.store)[0], "the line is still in step"


@pytest.mark.parametrize("why", ["full", "replica"])
def test_a_redis_that_takes_no_writes_is_believed_nothing(server: RedisServer, why: Refusal) -> None:
    """A record that cannot be marked may be outdated. A replica that was the primary a moment ago may have an
    old connection, so a new one is used."""
    server.store.fill("who:1", b"of a session that ends")
    server.refuse_writes(why)
    trip = server.store.trip()
    record, count = trip.get("who:1"), trip.count("c", 60)
    assert not trip.run()
    assert (record.value, count.value) == (None, None)
    assert server.store.breaker.is_open
    assert not server.store.mark({"who:1": b"-"})
    server.take_writes()
    until(lambda: run(server.store)[0])
    until(lambda: value(server.store, "who:1") == b"-")
    assert not server.store.breaker.is_open


@pytest.mark.exhaustive
def test_a_frozen_redis_costs_the_budget_once_and_then_nothing(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(server.store)[0]
    trips = BREAKER_TRIPS._value.get()
    with caplog.at_level(logging.WARNING, "platform_site.redis"):
        server.freeze()
        done, seconds = run(server.store)
        assert not done
        assert BUDGET * 0.9 < seconds < BUDGET + SLACK
        opened, waits = time.monotonic(), []
        while time.monotonic() < opened + BREAKER_SECONDS * 0.8:
            done, seconds = run(server.store)
            assert not done
            waits.append(seconds)
        assert statistics.median(waits) < BUDGET / 4
        assert server.store.breaker.is_open
        assert BREAKER_OPEN._value.get() == 1
        # After the pause one trip looks again, and the rest of its second is quiet.
        long_waits = sum(run(server.store)[1] > BUDGET / 2 for _ in range(2000) if not time.sleep(0.0005))
        assert 1 <= long_waits <= 20
        server.thaw()
        until(lambda: run(server.store)[0], BREAKER_SECONDS * 2 + 1)
    assert not server.store.breaker.is_open
    assert BREAKER_OPEN._value.get() == 0
    assert BREAKER_TRIPS._value.get() == trips + 1, "one opening, however often it was tried"
    messages = [record.getMessage().split(":")[0] for record in caplog.records]
    assert messages == ["Redis is unavailable", "Redis is available again"]


def test_a_trip_that_was_cut_off_leaves_no_answers_behind_for_the_next(server: RedisServer) -> None:
    server.client.set("one", b"1")
    server.client.set("two", b"2")
    assert value(server.store, "one") == b"1"
    server.freeze()
    trip = server.store.trip()
    late = trip.get("one")
    assert not trip.run()
    assert late.value is None
    server.thaw()
    until(lambda: run(server.store)[0], 5)
    assert value(server.store, "two") == b"2"


def test_threads_together_wait_no_longer_than_one(server: RedisServer) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert all(done for done, _ in pool.map(lambda _: run(server.store), range(64)))
        server.freeze()
        waits = [seconds for _, seconds in pool.map(lambda _: run(server.store), range(64))]
        server.thaw()
    assert max(waits) < BUDGET + 2 * SLACK
    assert sum(waits) < 16 * (BUDGET + 2 * SLACK)


def test_a_dead_redis_is_missed_at_once_and_met_again_when_it_is_back(server: RedisServer) -> None:
    assert run(server.store)[0]
    server.kill()
    done, seconds = run(server.store)
    assert not done
    assert seconds < SLACK
    server.start()
    at = time.monotonic()
    until(lambda: run(server.store)[0], 5)
    assert time.monotonic() - at < BREAKER_SECONDS + SLACK
    assert value(server.store, "c") is not None


def test_a_restart_between_two_trips_is_not_noticed(server: RedisServer) -> None:
    with ThreadPoolExecutor(8) as pool:  # several idle lines, all of them cut
        assert all(done for done, _ in pool.map(lambda _: run(server.store), range(64)))
        server.kill()
        server.start()
        assert all(done for done, _ in pool.map(lambda _: run(server.store), range(64)))
    assert not server.store.breaker.is_open


def test_a_fill_of_before_a_restart_is_not_written_after_it(server: RedisServer) -> None:
    """The mark that would have kept it out is gone. What else the trip asks for is answered."""
    assert run(server.store)[0]
    trip = server.store.trip()
    trip.fill("who:1", b"read before it was revoked")
    count = trip.count("c", 60)
    assert server.store.mark({"who:1": b"!"})
    server.kill()
    server.start()
    before = server.store.lost_at
    assert trip.run()
    assert count.value == 1
    assert server.client.get("who:1") is None
    assert server.store.lost_at > before
    server.kill()
    server.start()
    server.store.fill("who:2", b"read before it was revoked")
    assert server.client.get("who:2") is None, "neither alone"
    trip = server.store.trip()
    trip.fill("who:1", b"read after it")
    assert trip.run(), "a fill alone is sent, too"
    assert server.client.get("who:1") == b"read after it"


def test_what_redis_forgets_begins_anew(server: RedisServer) -> None:
    run(server.store)
    server.store.mark({"who:1": b"!"})
    server.client.delete("c", "who:1")  # FLUSHALL is not ours to call: the ACL forbids it
    assert run(server.store)[0]
    assert value(server.store, "who:1") is None


def test_a_mark_that_could_not_be_written_is_written_when_redis_is_back(server: RedisServer) -> None:
    assert server.store.put({"who:1": b"a record from before"}, 60)
    server.freeze()
    assert not server.store.mark({"who:1": b"?", "who:2": b"?"})
    assert not server.store.mark({"who:1": b"-"})
    server.thaw()
    until(lambda: server.client.get("who:1") == b"-" and server.client.get("who:2") == b"?", 5)
    until(lambda: not any(thread.name == "store-marks" for thread in threading.enumerate()), 5)
    # And again: the thread that ended is no obstacle to the next.
    server.kill()
    assert not server.store.mark({"who:3": b"?"})
    server.start()
    until(lambda: server.client.get("who:3") == b"?", 5)


def test_marker_is_written_at_once_while_redis_is_bypassed(server: RedisServer) -> None:
    """One late trip opens the breaker of one process. The others believe their records meanwhile: what that process
    removes must be gone for them when it responds."""
    assert server.store.put({"who:1": b"a record that others believe"}, 60)
    server.freeze()
    assert not run(server.store)[0]
    server.thaw()
    assert server.store.breaker.is_open
    assert server.store.mark({"who:1": b"-"})
    assert server.client.get("who:1") == b"-"


def test_a_mark_after_a_refused_one_is_written_at_once_when_redis_is_back(server: RedisServer) -> None:
    """Others read the record: it must not wait for the circuit breaker of this process."""
    server.kill()
    assert not server.store.mark({"who:1": b"-"})
    assert not run(server.store)[0]
    server.start()
    assert server.store.mark({"who:2": b"-"})


def test_a_fork_shares_no_line_with_its_parent(server: RedisServer, settings: LazySettings) -> None:
    settings.REDIS_URL, settings.REDIS_TIMEOUT = server.url, BUDGET
    server.client.set("parent", b"parent")
    server.client.set("child", b"child")
    assert value(redis_client.current(), "parent") == b"parent"
    child = os.fork()
    if child == 0:
        right = all(value(redis_client.current(), "child") == b"child" for _ in range(300))
        os._exit(0 if right else 1)
    assert all(value(redis_client.current(), "parent") == b"parent" for _ in range(300))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def url_of(listener: socket.socket) -> str:
    return f"redis://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_that_swallows_connections_costs_the_budget(listener: socket.socket) -> None:
    listener.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for one in waiting:  # the queue is full: the next SYN is dropped without a word
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
    done, seconds = run(Store(url_of(listener), BUDGET))
    assert not done
    assert seconds < BUDGET + SLACK
    for one in waiting:
        one.close()


def test_a_redis_that_dribbles_gets_no_more_than_the_budget(listener: socket.socket) -> None:
    """Each byte comes in time for a timeout of its own; the sum must not."""

    def dribble() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                try:
                    line.recv(65536)
                    for byte in b"$5\r\nhello\r\n" * 10:
                        line.sendall(bytes([byte]))
                        time.sleep(0.05)
                except OSError:
                    pass

    threading.Thread(target=dribble, daemon=True).start()
    done, seconds = run(Store(url_of(listener), BUDGET))
    assert not done
    assert BUDGET * 0.9 < seconds < BUDGET + SLACK


def test_what_is_no_redis_is_no_redis(listener: socket.socket) -> None:
    def speak() -> None:
        line, _ = listener.accept()
        with line:
            line.recv(65536)
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=speak, daemon=True).start()
    assert not run(Store(url_of(listener), BUDGET))[0]


def test_wrong_redis_password_counts_as_unavailable(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    password = server.layout.read_secrets()["redis_password"]
    wrong = Store(server.url.replace(password, "guess"), BUDGET)
    assert not run(wrong)[0]
    assert password not in caplog.text


def test_a_database_number_in_the_url_is_used(server: RedisServer) -> None:
    second = Store(server.url + "?db=1", BUDGET)
    assert second.put({"k": b"second"}, 60)
    assert value(server.store, "k") is None
    assert value(second, "k") == b"second"


def test_connections_that_no_thread_could_open_are_not_counted(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ConnectionPool(server.url)
    with monkeypatch.context() as full:
        refuse_new_threads(full, "store-connect")
        for _ in range(_MAX_CONNECTIONS):
            with pytest.raises(ConnectionError):
                pool.take(time.monotonic() + 5)
    pool.close(pool.take(time.monotonic() + 5))
