"""The main process of the web server, with a worker process for each listening socket. Sockets stay open here, so that
clients wait for the next worker instead of being reset. A worker that ends is started again, unless five in a row end
before they serve. SIGHUP replaces one after the other: each finishes its requests when its successor serves."""

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Final

from platform_site.server import worker
from platform_site.server.application import application

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 8
REPLACED_SECONDS: Final = worker.FINISH_SECONDS + 15
"""Then a replaced worker is killed: one whose event loop is blocked does not end by itself."""
START_SECONDS: Final = 60
_FALSE_START_SECONDS: Final = 0.3
_MAX_FALSE_STARTS: Final = 5
_STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


@dataclass(eq=False)
class _Worker:
    process: Any
    ready: Any
    """A pipe that is readable once it serves, or has ended."""
    _served_at: float | None = None

    @property
    def served_at(self) -> float | None:
        if self._served_at is None and self.ready.poll():
            with contextlib.suppress(EOFError):
                self._served_at = self.ready.recv()
        return self._served_at


class _MainProcess:
    def __init__(self, listeners: list[socket.socket], *, start_method: str) -> None:
        self._listeners = listeners
        self._context: Any = multiprocessing.get_context(start_method)
        self._workers: list[_Worker] = []
        self._replaced: dict[Any, float] = {}
        """When to kill each (`time.monotonic`)."""
        self._false_starts = 0
        self._received: set[int] = set()
        self._signals, self._signals_writer = socket.socketpair()
        self._signals_writer.setblocking(False)

    def run(self) -> None:
        for number in worker.SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._signals_writer.fileno())
        self._workers = [self._start(listener) for listener in self._listeners]
        try:
            while not self._must_stop:
                if signal.SIGHUP in self._received:  # perhaps since the last replacement began
                    self._received.discard(signal.SIGHUP)
                    self._replace_all()
                else:
                    # Wake up every second while replaced workers run, to kill those that are late.
                    self._wait([each.process.sentinel for each in self._workers], 1.0 if self._replaced else None)
                self._restart_ended()
                self._kill_late()
        finally:
            self._stop()

    @property
    def _must_stop(self) -> bool:
        return bool(self._received & _STOP_SIGNALS)

    def _start(self, listener: socket.socket) -> _Worker:
        ready, writer = self._context.Pipe(duplex=False)
        is_forked = self._context.get_start_method() == "fork"
        others = [each for each in self._listeners if each is not listener] if is_forked else []
        process = self._context.Process(target=worker.work, args=(listener, others, writer, os.getpid()))
        signal.pthread_sigmask(signal.SIG_BLOCK, worker.SIGNALS)  # Python loses signals while it forks
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, worker.SIGNALS)
        writer.close()
        return _Worker(process, ready)

    def _wait(self, others: list[Any], seconds: float | None = None) -> bool:
        """Whether one of `others` is ready. Ends with a signal, too."""
        ready = wait([self._signals, *others], seconds)
        if self._signals in ready:
            ready.remove(self._signals)
            self._received.update(self._signals.recv(64))
        return bool(ready)

    def _wait_for(self, other: Any, seconds: float) -> bool:
        """Whether `other` is ready in time. False also if this process must stop."""
        deadline = time.monotonic() + seconds
        while not self._must_stop and (left := deadline - time.monotonic()) > 0:
            if self._wait([other], left):
                return True
        return False

    def _restart_ended(self) -> None:
        ended = [index for index, each in enumerate(self._workers) if not each.process.is_alive()]
        if not ended or self._must_stop:
            return
        served = [self._workers[index].served_at for index in ended]
        now = time.monotonic()
        is_false_start = all(at is None or now - at < _FALSE_START_SECONDS for at in served)
        self._false_starts = self._false_starts + 1 if is_false_start else 0
        if self._false_starts >= _MAX_FALSE_STARTS:
            logger.error("workers end before they serve; giving up")
            raise SystemExit(1)
        if self._false_starts:
            self._wait([], 0.25 * 2**self._false_starts)
        for index in ended:
            process = self._workers[index].process
            logger.error("a worker ended and is started again", extra={"pid": process.pid, "code": process.exitcode})
            self._workers[index] = self._start(self._listeners[index])

    def _replace_all(self) -> None:
        for index, listener in enumerate(self._listeners):
            old, new = self._workers[index].process, self._start(listener)
            if not self._wait_for(new.ready, START_SECONDS) or new.served_at is None:
                if not self._must_stop:
                    logger.error("a new worker did not start serving; the old workers keep running, with the old code")
                new.process.kill()
                return
            self._workers[index] = new
            old.terminate()
            if not self._wait_for(old.sentinel, STOP_SECONDS):
                logger.info("a replaced worker is finishing its requests", extra={"pid": old.pid})
                self._replaced[old] = time.monotonic() + REPLACED_SECONDS

    def _kill_late(self) -> None:
        self._replaced = {process: at for process, at in self._replaced.items() if process.is_alive()}
        for process, at in self._replaced.items():
            if time.monotonic() >= at:
                logger.error("a replaced worker was killed: it did not end by itself", extra={"pid": process.pid})
                process.kill()

    def _stop(self) -> None:
        processes = multiprocessing.active_children()
        for process in processes:
            process.terminate()
        # Until then, the kernel accepts connections.
        for listener in self._listeners:
            listener.close()
        until = time.monotonic() + STOP_SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                logger.error("a worker was killed: it did not stop in time", extra={"pid": process.pid})
                process.kill()
                process.join()


def serve(listeners: list[socket.socket], *, preload: bool) -> None:
    """Serve until SIGTERM or SIGINT. Raises SystemExit(1). `preload`: import the application here, for fast starts and
    shared memory; SIGHUP then keeps the code."""
    if preload:
        application.load()
        gc.collect()
        gc.freeze()  # so that no collection visits these objects and copies shared pages
    # A fork would keep the code that this process has imported.
    _MainProcess(listeners, start_method="fork" if preload else "spawn").run()
