"""The main process of the web server."""

import multiprocessing
import os
import signal
import socket
import time
from typing import Any

import psutil
import pytest

from platform_site.embedded.sockets import listen
from platform_site.server import serve
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
def test_a_stopping_server_refuses_new_connections_at_once() -> None:
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
