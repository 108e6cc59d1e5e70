"""The main process of the web server."""

import multiprocessing
import os
import signal
import socket
import time
from typing import Any

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
