"""The main process of the web server."""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from platform_site.concurrency import server_hints
from platform_site.embedded.sockets import listen
from platform_site.server import application as web_application
from platform_site.server import serve, worker
from tests.support.service import wait_for


def busy_worker(listener: socket.socket, others: list[socket.socket], ready: Any, parent: int) -> None:
    """Stands for a worker that is asked to stop while it has a long request."""
    for other in others:
        other.close()
    ready.send(time.monotonic())
    signal.sigwait({signal.SIGTERM})
    listener.close()
    time.sleep(serve.STOP_SECONDS)
    os._exit(0)


def stuck_worker(listener: socket.socket, others: list[socket.socket], ready: Any, parent: int) -> None:
    """Stands for a worker whose event loop is blocked: it does not stop."""
    ready.send(time.monotonic())
    time.sleep(60)


class BusyServer:
    """Has a request that does not end."""

    is_stopping = False

    async def start(self, listener: object) -> None:
        pass

    def stop_listening(self) -> None:
        self.is_stopping = True

    async def finish(self) -> None:
        await asyncio.Event().wait()


def test_a_stopping_worker_whose_requests_do_not_end_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without its main process, which would kill it."""
    monkeypatch.setattr(worker, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(worker, "FINISH_SECONDS", 0.05)
    monkeypatch.setattr(server_hints, "on_shutdown", [])
    loop, calls = asyncio.new_event_loop(), list[str]()
    handlers: list[Any] = []
    loop.add_signal_handler = lambda number, stop: handlers.append(stop)  # type: ignore[method-assign]
    ready = SimpleNamespace(send=lambda at: handlers[0]())
    application: Any = SimpleNamespace(start=lambda loop: None, stop=lambda: calls.append("stopped"))
    with caplog.at_level(logging.ERROR):
        loop.run_until_complete(worker._serve(loop, application, BusyServer(), socket.socket(), ready))  # type: ignore[arg-type]
    loop.close()
    assert calls == ["stopped"]
    assert [record.message for record in caplog.records] == [
        "a stopping worker ends without having finished its requests"
    ]


class Reporter(threading.Thread):
    """Stands for one that writes its last report when it is stopped, once its database answers."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self._seconds, self._stopped, self.has_written = seconds, threading.Event(), False

    def run(self) -> None:
        self._stopped.wait()
        time.sleep(self._seconds)
        self.has_written = True

    def stop(self) -> None:
        self._stopped.set()


def test_a_silent_database_takes_no_time_from_the_last_reports_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_application, "REPORT_SECONDS", 1.0)
    stopping: Any = web_application.Application()
    stopping._watchdog = stopping._pool = SimpleNamespace(stop=lambda: None)
    stopping._reporters = silent, quick = Reporter(30), Reporter(0.05)
    for reporter in (silent, quick):
        reporter.start()
    stopping.stop()
    assert (silent.has_written, quick.has_written) == (False, True)


def main_process_of_stuck_workers(listeners: list[socket.socket]) -> None:
    serve.worker.work = stuck_worker
    serve.STOP_SECONDS, serve.REPLACED_SECONDS = 0.2, 1  # type: ignore[misc]
    serve._MainProcess(listeners, start_method="fork").run()


def main_process(listeners: list[socket.socket]) -> None:
    serve.worker.work = busy_worker
    serve._MainProcess(listeners, start_method="fork").run()


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.exhaustive
def test_a_stopping_server_refuses_new_connections_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "STOP_SECONDS", 4)
    listeners = listen("127.0.0.1", 0, 2)
    port = listeners[0].getsockname()[1]
    process = multiprocessing.get_context("fork").Process(target=main_process, args=(listeners,))
    process.start()
    for listener in listeners:
        listener.close()
    time.sleep(1)  # both workers wait for the signal
    assert not is_refused(port)
    process.terminate()
    wait_for("connections are refused", lambda: is_refused(port), serve.STOP_SECONDS / 2)
    assert process.is_alive()
    process.join(2 * serve.STOP_SECONDS)
    assert process.exitcode == 0


@pytest.mark.exhaustive
def test_a_replaced_worker_that_does_not_stop_is_killed() -> None:
    listeners = listen("127.0.0.1", 0, 2)
    process = multiprocessing.get_context("fork").Process(target=main_process_of_stuck_workers, args=(listeners,))
    process.start()
    for listener in listeners:
        listener.close()
    children = psutil.Process(process.pid).children
    wait_for("two workers run", lambda: len(children()) == 2, 5)
    [first, second] = children()
    os.kill(process.pid or 0, signal.SIGHUP)
    wait_for("both are replaced", lambda: not first.is_running() and not second.is_running(), 20)
    assert len(children()) == 2
    process.terminate()
    process.join(10)
    assert process.exitcode == 0
