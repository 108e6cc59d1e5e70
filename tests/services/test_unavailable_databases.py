"""A database that does not answer is waited for once, and by its own requests only
(`platform_site.postgres.availability`)."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from django.db import OperationalError, connections

from platform_site.postgres import availability, prepared, sqlstates
from platform_site.postgres.availability import AvailabilityWatch
from platform_site.postgres.base import DatabaseWrapper, run_under_watch
from tests.support.service import wait_for
from tests.support.timing import within

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A host that takes connections and never says a word, as far as a client can tell."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def parameters(listener: socket.socket) -> dict[str, Any]:
    host, port = listener.getsockname()
    return {"host": host, "port": port, "dbname": "nothing", "user": "nobody", "connect_timeout": 2}


@pytest.fixture
def four_threads() -> Iterator[None]:
    availability.limit_waiting_threads(4)
    yield
    availability._max_waiting_threads = float("inf")


def test_first_request_waits_and_others_are_refused_until_recovery(mute: socket.socket) -> None:
    asked = parameters(mute)
    wrapper = DatabaseWrapper({"OPTIONS": {}, "TIME_ZONE": None, "NAME": "nothing"}, alias="mute")
    watched = availability.watch("mute")
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        wrapper.get_new_connection(asked)
    assert watched.is_unavailable
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(psycopg.errors.ConnectionTimeout, match="does not answer"):
            wrapper.get_new_connection(asked)
    assert time.monotonic() - began < within(0.1)
    mute.close()  # to be refused is an answer, too
    wait_for("it is detected", lambda: not watched.is_unavailable, 15)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        wrapper.get_new_connection(asked)
    assert not watched.is_unavailable


@pytest.mark.parametrize("error", [OSError("Too many open files"), RuntimeError("of our own making")])
def test_who_asks_whether_it_is_back_asks_again_whatever_went_wrong(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Otherwise it would be refused for as long as the process lives."""
    asked: list[None] = []

    def connect(**_: Any) -> Any:
        asked.append(None)
        if len(asked) == 1:
            raise error
        raise psycopg.errors.CannotConnectNow  # an answer

    monkeypatch.setattr(availability, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(psycopg, "connect", connect)
    watched = AvailabilityWatch("silent")
    assert watched.enter()
    monkeypatch.setattr(availability, "SILENT_SECONDS", 0.0)
    watched.lost({})
    wait_for("it is detected", lambda: not watched.is_unavailable, 15)
    assert len(asked) == 2


def test_the_reason_of_a_failed_connection_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    wrapper = DatabaseWrapper({"OPTIONS": {}, "TIME_ZONE": None, "NAME": "nothing"}, alias="nowhere")
    asked = {"host": "127.0.0.1", "port": 1, "dbname": "nothing", "user": "nobody", "password": "very-secret"}
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError):
            wrapper.get_new_connection(asked)
    [logged] = [record.message for record in caplog.records if record.name == "platform.databases"]
    assert logged.startswith("cannot connect to database nowhere: ")
    assert "port 1 failed: Connection refused" in logged
    assert "very-secret" not in logged


def test_an_unknown_parameter_of_a_url_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    wrapper = DatabaseWrapper({"OPTIONS": {}, "TIME_ZONE": None, "NAME": "nothing"}, alias="misspelled")
    with pytest.raises(psycopg.ProgrammingError):
        wrapper.get_new_connection({"host": "127.0.0.1", "dbname": "nothing", "sslmod": "require"})
    [logged] = [record.message for record in caplog.records if record.name == "platform.databases"]
    assert logged == 'cannot connect to database misspelled: invalid connection option "sslmod"'


def test_a_database_that_nobody_can_ask_again_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(availability, "SILENT_SECONDS", 0.0)
    watched = AvailabilityWatch("silent")
    assert watched.enter()
    watched.lost({})
    assert not watched.is_unavailable


def test_database_is_probed_again_after_a_probe_that_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[None] = []

    def connect(**_: Any) -> Any:
        probes.append(None)
        raise psycopg.errors.CannotConnectNow  # a response

    watched = AvailabilityWatch("quick")
    monkeypatch.setattr(availability, "_guard_runs", True)
    monkeypatch.setattr(psycopg, "connect", connect)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    assert watched.enter(cast(Any, SimpleNamespace(get_connection_params=dict)))
    watched.check(0)
    watched.check(0)
    watched.leave()
    assert len(probes) == 2


def wait_in(watched: AvailabilityWatch, release: threading.Event) -> threading.Thread:
    """A thread that waits for the database until it is released."""
    entered = threading.Event()

    def wait() -> None:
        assert watched.enter()
        entered.set()
        release.wait(10)
        watched.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    assert entered.wait(10)
    return thread


@pytest.mark.usefixtures("four_threads")
def test_three_of_four_threads_may_wait_for_a_stalled_database() -> None:
    watched, release = AvailabilityWatch("slow"), threading.Event()
    threads = [wait_in(watched, release) for _ in range(3)]
    time.sleep(availability.MIN_WAIT_SECONDS * 1.5)
    with pytest.raises(psycopg.errors.ConnectionTimeout, match="too many threads wait"):
        watched.enter()
    release.set()
    for thread in threads:
        thread.join()
    assert watched.enter()
    watched.leave()


@pytest.mark.usefixtures("four_threads")
def test_a_database_that_answers_one_after_the_other_may_have_everybody() -> None:
    watched, release = AvailabilityWatch("busy"), threading.Event()
    threads = [wait_in(watched, release) for _ in range(3)]
    time.sleep(availability.MIN_WAIT_SECONDS * 1.5)
    answered = threading.Event()
    answered.set()
    availability._max_waiting_threads, most = float("inf"), availability._max_waiting_threads
    wait_in(watched, answered).join()  # a fourth, which is answered at once: progress
    availability._max_waiting_threads = most
    assert watched.enter()
    watched.leave()
    release.set()
    for thread in threads:
        thread.join()


def test_a_thread_that_is_in_already_goes_on() -> None:
    watched = AvailabilityWatch("nested")
    assert watched.enter()
    assert not watched.enter()
    watched.leave()
    assert watched.enter()
    watched.leave()


def test_a_quick_failure_is_an_answer() -> None:
    watched = AvailabilityWatch("quick")
    watched.enter()
    watched.lost({})
    assert not watched.is_unavailable


class Relay:
    """A way to PostgreSQL on which everything can stand still, as before a server whose disk does not answer: the
    kernel takes what is sent, and no response comes."""

    def __init__(self, path: str) -> None:
        self._path, self._moves, self._over = path, threading.Event(), threading.Event()
        self._moves.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stand_still(self) -> None:
        self._moves.clear()

    def go_on(self) -> None:
        self._moves.set()

    def close(self) -> None:
        self._over.set()
        self._moves.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._moves.wait()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._path)
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and not self._over.is_set():
                self._moves.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(django_db_setup: None, django_db_blocker: Any) -> Iterator[Relay]:
    parameters = connections["default"].get_connection_params()
    made = Relay(f"{parameters['host']}/.s.PGSQL.{parameters.get('port') or 5432}")
    with django_db_blocker.unblock():  # a test of django_db's may ask the databases of settings only
        yield made
    made.close()


@pytest.fixture
def relayed(relay: Relay) -> Iterator[str]:
    """The control database by the relay, under a name of its own: what is known of the others is not touched."""
    alias = f"relayed-{relay.port}"
    connections.settings[alias] = {**connections["default"].settings_dict, "HOST": "127.0.0.1", "PORT": relay.port}
    yield alias
    connections[alias].close()
    del connections[alias], connections.settings[alias]


def select(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1")


def by_libpq(alias: str) -> None:
    prepared.run(alias, b"SELECT 1", [])


def commit(alias: str) -> None:
    connections[alias].commit()


@pytest.mark.parametrize("wait", [select, by_libpq, commit])
def test_open_connections_to_a_stalled_database_are_not_waited_for(
    settings: Any, relay: Relay, relayed: str, wait: Callable[[str], None]
) -> None:
    settings.DATABASE_SILENCE_SECONDS = 1
    watched, errors = availability.watch(relayed), list[Exception]()
    is_open, stands_still = threading.Event(), threading.Event()

    def ask() -> None:
        connections[relayed].set_autocommit(wait is not commit)
        select(relayed)
        is_open.set()
        stands_still.wait(10)
        try:
            wait(relayed)
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=ask)
    thread.start()
    assert is_open.wait(10)
    relay.stand_still()
    stands_still.set()
    thread.join(within(1 + 2 * availability.PROBE_SECONDS + availability.ANSWER_SECONDS))
    assert not thread.is_alive(), "it waits for ever"
    assert isinstance(errors[0], OperationalError), errors
    assert sqlstates.error_for(errors[0]).status == 503
    assert watched.is_unavailable
    with pytest.raises(OperationalError, match="does not answer"):
        select(relayed)
    relay.go_on()
    wait_for("it is detected", lambda: not watched.is_unavailable)
    select(relayed)


def test_slow_statement_continues_while_the_database_responds(settings: Any, relayed: str) -> None:
    settings.DATABASE_SILENCE_SECONDS = 1
    with connections[relayed].cursor() as cursor:
        cursor.execute("SELECT pg_sleep(4)")
    assert not availability.watch(relayed).is_unavailable


def test_every_database_is_watched() -> None:
    for alias in connections:
        assert run_under_watch in connections[alias].execute_wrappers
