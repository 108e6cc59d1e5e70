"""A worker process: an event loop that serves HTTP in place of Granian's (whose minor version is pinned)."""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from granian.server.mp import WorkerProcess

from platform_site.concurrency import server_hints
from platform_site.server.application import Application
from platform_site.server.http_protocol import HttpServer

if TYPE_CHECKING:
    from platform_site.observability.traffic import Reporter
    from platform_site.request_log.writer import Writers

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 0.5
"""How long a stopping worker still answers, closing connections."""


@WorkerProcess.wrap_target  # type: ignore[untyped-decorator]
def work(
    worker_id: int,
    application: Application,
    sock: Any,
    ipc: Any,
    loop: asyncio.AbstractEventLoop,
    runtime_mode: Any,
    runtime_threads: int,
    runtime_blocking_threads: int,
    blocking_threads: int,
    blocking_threads_idle_timeout: int,
    backpressure: int,
    task_impl: Any,
    http_mode: Any,
    http1_settings: Any,
    http2_settings: Any,
    websockets: bool,
    static_path: Any,
    log_access_format: Any,
    ssl: tuple[Any, ...],
    scope_options: dict[str, Any],
    metrics: Any,
) -> None:
    """Serve until SIGTERM. Parameters are Granian's."""
    listener = socket.socket(fileno=os.dup(sock[1].get_fd()))
    listener.setblocking(False)
    server = HttpServer(loop, application.check, application.begin, backpressure)
    loop.run_until_complete(_serve(loop, application, server, listener))
    if multiprocessing.get_start_method() != "fork":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _serve(
    loop: asyncio.AbstractEventLoop, application: Application, server: HttpServer, listener: socket.socket
) -> None:
    ended = asyncio.Event()

    def leave() -> None:
        """Refuse new connections, and close busy ones with their response: closing an idle one could lose a request."""
        if not server.leaving:
            for end in server_hints.on_shutdown:
                end()
            server.leave()
            loop.call_later(LEAVE_SECONDS, ended.set)

    # Here, in the running loop: uvloop loses a signal that comes before. Until now it ends the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    application.start(loop)
    reporters = _start_reporters()
    await server.start(listener)
    from platform_site.server.watchdog import Watchdog  # here, as in `_start_reporters`

    watchdog = Watchdog(loop)
    watchdog.start()
    await ended.wait()
    await server.finish()
    watchdog.stop()  # what follows waits for threads, with no request in hand
    application.stop()
    for reporter in reporters:
        reporter.stop()


def _start_reporters() -> "tuple[Reporter, Writers]":
    # Here, not above: without `--preload` a worker imports the application as it is at its own start.
    from platform_site.observability.metrics import open_metrics_file
    from platform_site.observability.traffic import Reporter
    from platform_site.request_log.writer import Writers

    open_metrics_file()
    reporters = Reporter(), Writers()
    for reporter in reporters:
        reporter.start()
    return reporters
