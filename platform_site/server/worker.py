"""One worker process: Granian's runtime on one side, the bridge on the other.

Granian would make an asyncio task of every request; for one without a body that is two trips through the event loop and
60 µs of CPU for nothing. So this takes the place of Granian's own worker function (a parameter of its `serve`): its
scheduler asks the bridge first, in the thread where the request arrived, and only a body of unknown length goes to
the loop. The names from `granian` with an underscore are its internals, which is why pyproject.toml pins its minor
release; tests/services/test_raw_http.py would notice any change.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from granian._granian import CallbackScheduler, RSGIWorker, WorkerSignal
from granian.server.common import WORKERS_METHODS
from granian.server.mp import WorkerProcess

from platform_site.concurrency import server_hints
from platform_site.server.rsgi_app import RsgiApplication

if TYPE_CHECKING:
    from platform_site.observability.traffic import Reporter
    from platform_site.request_log.writer import Writers

logger = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 0.5
"""How long a worker that was asked to end goes on answering, with a farewell in each answer."""


class _Scheduler(CallbackScheduler):
    """Told by Granian of every request, on the thread of its runtime."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bridge: RsgiApplication, *_: None) -> None:
        super().__init__()
        reading: set[asyncio.Task[None]] = set()  # the loop itself holds its tasks weakly

        def read(rest: Coroutine[Any, Any, None]) -> None:
            task = loop.create_task(rest)
            reading.add(task)
            task.add_done_callback(reading.discard)

        def schedule(watcher: Any) -> None:
            try:
                rest = bridge.begin(watcher.scope, watcher.proto, watcher.done)
                if rest is not None:
                    loop.call_soon_threadsafe(read, rest)
            except BaseException:
                logger.exception("a request could not be begun")
                watcher.done()  # makes Granian answer 500

        self._schedule_fn = schedule


@WorkerProcess.wrap_target  # type: ignore[untyped-decorator]
def work(
    worker_id: int,
    bridge: RsgiApplication,
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
    """Serve until SIGTERM, take leave, and end what is in hand. The parameters are those of Granian's own functions."""
    stop = WorkerSignal()
    _leave_at_signals(bridge, sock, loop, stop)
    ended = asyncio.Event()
    stop.add_cb(lambda: loop.call_soon_threadsafe(ended.set))
    bridge.start(loop)
    reporters = _start_reporters()
    make: Any = RSGIWorker  # its stub is of an older release
    worker = make(
        worker_id,
        sock,
        ipc,
        runtime_threads,
        runtime_blocking_threads,
        blocking_threads,
        blocking_threads_idle_timeout,
        backpressure,
        http_mode,
        http1_settings,
        http2_settings,
        websockets,
        static_path,
        *ssl,
        metrics,
    )
    # The three are asyncio's task and its hooks, for the scheduler that would run coroutines by itself.
    getattr(worker, WORKERS_METHODS[runtime_mode][False])(_Scheduler(loop, bridge, None, None, None), loop, stop)
    loop.run_until_complete(ended.wait())
    bridge.stop()
    for reporter in reporters:
        reporter.stop()
    if multiprocessing.get_start_method() != "fork":
        # As a fork ends: with its interpreter Granian's threads would be ended half-way, and panic.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _leave_at_signals(bridge: RsgiApplication, sock: Any, loop: asyncio.AbstractEventLoop, stop: WorkerSignal) -> None:
    """Let SIGTERM and SIGINT end the worker.

    Told to stop, Granian closes every connection that is idle at that moment, and a client whose request is on its way
    gets no response. So new connections are refused first, and busy ones are closed by their own response.
    """

    def leave() -> None:
        if not bridge.leaving:
            bridge.leaving = True
            for end in server_hints.when_leaving:
                end()
            if sys.platform == "linux":
                _stop_accepting(sock[1].get_fd())
            loop.call_later(LEAVE_SECONDS, stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)


def _start_reporters() -> "tuple[Reporter, Writers]":
    """Start what reports this process's requests: to the metrics and to the request log."""
    # Here, not above: without `--preload` a worker imports the application as it is at its own start.
    from platform_site.observability.metrics import open_metrics_file
    from platform_site.observability.traffic import Reporter
    from platform_site.request_log.writer import Writers

    open_metrics_file()
    reporters = Reporter(), Writers()
    for reporter in reporters:
        reporter.start()
    return reporters


def _stop_accepting(descriptor: int) -> None:
    """Let this process accept no more connections, while they go on queueing for the next worker of the socket.

    Closing would not do, since Granian goes on using the file descriptor; so it is replaced by another socket, to which
    no client connects.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silence:
        silence.bind("")  # Linux finds a name that is no file
        silence.listen(1)
        silence.setblocking(False)
        os.dup2(silence.fileno(), descriptor)
