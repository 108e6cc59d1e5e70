"""Granian with three changes. Sockets, one per worker (SO_REUSEPORT; with one, a single worker takes all), are held by
the main process or `up`, so that clients wait for the next worker instead of being reset. Workers are restarted, unless
five in a row die before they serve. A reload cuts nothing off: a worker is replaced once another serves, and ends its
calls. Workers die with the main process."""

import gc
import logging
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from typing import Any, Final

from granian._granian import SocketHolder
from granian.constants import Interfaces, Loops
from granian.log import LogLevels
from granian.server.mp import MPServer, WorkerProcess

from platform_site.embedded.launch import die_with_parent
from platform_site.embedded.sockets import BACKLOG
from platform_site.server.worker import work

# "more workers than cores": on purpose, and said at every start.
logging.getLogger("_granian").addFilter(lambda record: "higher than the amount of CPU cores" not in record.getMessage())

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 8
REPLACED_SECONDS: Final = 330
"""When replaced, which delays nothing: a function may take 300 s."""
START_SECONDS: Final = 60
MAX_CONNECTIONS: Final = 16_384
"""Of one worker; 16 KB each."""
_OTHER_FILES: Final = 512
_FALSE_START_SECONDS: Final = 0.3
_FALSE_STARTS: Final = 5
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)


class Server(MPServer):
    def __init__(self, listeners: list[socket.socket], load: "_Load", **options: Any) -> None:
        address, port = listeners[0].getsockname()[:2]
        super().__init__(
            "platform_site.server.application:application",
            address=address,
            port=port,
            workers=len(listeners),
            **options,
        )
        self._listeners = listeners
        self._load = load
        self._served_at, self._false_starts = 0.0, 0
        self._replaced: list[Any] = []
        self.respawned_wrks = _NoEventLoop()

    def _init_shared_socket(self) -> None:
        self._sso = None
        for listener in self._listeners:
            listener.set_inheritable(True)
            # Accepted connections inherit it; an answer in two pieces must not wait for an acknowledgement.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _spawn_worker(self, idx: int, target: Any, callback_loader: Any) -> WorkerProcess:  # type: ignore[override]
        # Granian's own attribute.
        if multiprocessing.get_start_method() == "fork":
            self._shd: Any = _held(self._listeners[idx].fileno())
        else:
            self._shd = _Lockable(self._listeners[idx])
        return super()._spawn_worker(idx, target, callback_loader)

    def _respawn_workers(self, workers: list[int], spawn_target: Any, target_loader: Any, delay: float = 0) -> None:
        if any(not self.wrks[index].inner.is_alive() for index in workers):
            served_at = self._load.served_at.value
            false_start = served_at == self._served_at or time.monotonic() - served_at < _FALSE_START_SECONDS
            self._false_starts = self._false_starts + 1 if false_start else 0
            self._served_at = served_at
            if self._false_starts >= _FALSE_STARTS:
                logger.error("workers end before they serve; giving up")
                self.interrupt_children = workers  # makes the exit code 1
                self.interrupt_signal = True
                self.main_loop_interrupt.set()
                return
            if self._false_starts:
                time.sleep(0.25 * 2**self._false_starts)
        if delay:
            self._replace_workers(workers, spawn_target, target_loader)
        else:
            super()._respawn_workers(workers, spawn_target, target_loader, delay)

    def _replace_workers(self, workers: list[int], spawn_target: Any, target_loader: Any) -> None:
        for index in workers:
            new: Any = self._spawn_worker(index, spawn_target, target_loader)
            if not self._begins_to_serve(new):
                if not self.interrupt_signal:
                    logger.error("a new worker ended before it served; those that serve stay, with the code they have")
                new.kill()
                return
            old: Any = self.wrks[index]
            self.wrks[index] = new
            old.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            while old.is_alive() and time.monotonic() < deadline and not self.interrupt_signal:
                old.join(0.1)
            if old.is_alive():
                logger.info("a worker that was replaced ends what it has in hand", extra={"pid": old.inner.pid})
                self._replaced = [*(worker for worker in self._replaced if worker.is_alive()), old]
                last_word = threading.Timer(REPLACED_SECONDS, old.kill)
                last_word.daemon = True
                last_word.start()

    def _begins_to_serve(self, new: Any) -> bool:
        served_at = self._load.served_at.value
        new.interrupt_by_parent = True  # that it ended is no news to Granian before it took another's place
        new.start()
        deadline = time.monotonic() + START_SECONDS
        while self._load.served_at.value == served_at:
            if self.interrupt_signal or time.monotonic() > deadline or not new.is_alive():
                return False
            new.join(0.02)
        new.interrupt_by_parent = False
        return bool(new.is_alive())

    def _stop_workers(self) -> None:
        self.wrks.extend(worker for worker in self._replaced if worker.is_alive())
        # Granian looks twice, a millisecond apart, whether one has ended. One that has may look alive for longer than
        # that, while another thread is about to note how it ended, and "refused to gracefully stop" would be untrue.
        workers: list[Any] = self.wrks
        until = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.terminate()
        for worker in workers:
            while worker.is_alive() and time.monotonic() < until:
                time.sleep(0.01)
        self.workers_kill_timeout = 1  # those that are left have had their time
        super()._stop_workers()  # type: ignore[no-untyped-call]


def _held(descriptor: int) -> SocketHolder:
    return SocketHolder(descriptor, False, BACKLOG)  # type: ignore[call-arg]  # its stub does not know this constructor


class _Lockable:
    """A socket for a spawned process, in Granian's form."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def __reduce__(self) -> tuple[Any, ...]:
        return _replaced, (self._listener,)


def _replaced(listener: socket.socket) -> SocketHolder:
    return _held(listener.detach())


class _NoEventLoop(dict[int, float]):
    """In place of Granian's respawn times: _respawn_workers detects crash loops."""

    def __setitem__(self, index: int, at: float) -> None:
        pass


class _Load:
    def __init__(self) -> None:
        self._main = os.getpid()
        self._collect_after = gc.get_threshold()
        # Shared by all, and without a lock: a worker that was killed would hold it for ever.
        self.served_at = multiprocessing.RawValue("d", 0.0)

    def __call__(self, *_: Any) -> Any:
        die_with_parent(self._main, signal.SIGTERM)
        gc.set_threshold(*self._collect_after)
        from platform_site.server.application import application

        application.load()
        gc.collect()
        gc.freeze()  # what was made while loading lives for ever: spare the collector, and the pages shared by fork
        self.served_at.value = time.monotonic()
        return application


def _let_workers_end_from_the_first() -> None:
    """A worker signalled before it serves must end: the main process's signal handler would only note it, and Python
    drops signals while forking."""

    def begin() -> None:
        for number in _ENDS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS),
        after_in_child=begin,
    )


def _allow_connections() -> int:
    """A worker's maximum connections (streams count), and as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(BACKLOG, soft - _OTHER_FILES)
    return MAX_CONNECTIONS


def serve(listeners: list[socket.socket], *, preload: bool, log: dict[str, Any] | None = None) -> None:
    """Serve by one worker per socket until SIGTERM or SIGINT; SIGHUP replaces workers one by one. Raises SystemExit(1).
    `preload`: import the application here, for fast starts and shared memory; a reload then keeps the code. `log` is a
    logging dictConfig."""
    load = _Load()
    # Spawned without preloading: a fork has every module that this process has, and so the code it was started with.
    multiprocessing.set_start_method("fork" if preload else "spawn", force=True)
    if preload:
        _let_workers_end_from_the_first()
        from platform_site.server.application import application

        application.load()
        gc.collect()
        gc.freeze()
    server = Server(
        listeners,
        load,
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        backlog=BACKLOG,
        backpressure=_allow_connections(),
        respawn_failed_workers=True,
        respawn_interval=1,  # only tells a reload from the death of a worker; see _respawn_workers
        workers_kill_timeout=STOP_SECONDS,
        log_level=LogLevels.warning,
        log_dictconfig=log,
    )
    server.serve(spawn_target=work, target_loader=load, wrap_loader=False)
