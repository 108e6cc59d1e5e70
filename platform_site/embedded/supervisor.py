"""Supervisor of child processes in sessions of their own: output, restarts, and ordered shutdown."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, Final, Union

import psutil

from platform_site.embedded.forked import ForkedProcess
from platform_site.embedded.launch import adopt_orphans

_COLOURS: Final = {"postgres": 34, "valkey": 35, "web": 32, "worker": 36}
_LONG_LINE: Final = 64 * 1024
_STEADY_SECONDS: Final = 30.0
_TRIES: Final = 6

Process = Union["subprocess.Popen[bytes]", ForkedProcess]
Spawn = Callable[[IO[bytes]], Process]
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class ProcessFailed(RuntimeError):
    def __init__(self, part: "SupervisedProcess", lines: Iterable[str]) -> None:
        self.part, self.lines = part, list(lines)
        super().__init__(f"{part.name} ended ({part.how_it_ended()})")


@dataclass(slots=True)
class SupervisedProcess:
    name: str
    spawn: Spawn
    stop_signal: signal.Signals
    stop_seconds: float
    hidden: tuple[str, ...] = ()
    """Lines with one of these texts are not shown."""
    process: Process | None = None
    started_at: float = 0.0
    tries: int = 0
    retry_at: float | None = None
    has_worked: bool = False
    """Whether it ran when a dependent was ready: later failures, such as a full disk, will pass."""
    lines: "deque[str]" = field(default_factory=lambda: deque(maxlen=25))
    _partial: bytes = b""

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def how_it_ended(self) -> str:
        code = self.process.returncode if self.process else None
        if code is None:
            return "not started"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Supervisor:
    """Runs parts until stopped. For the main thread: children die with it."""

    def __init__(self, write: Callable[[str], object], *, colour: bool, changed: Callable[[list[int]], None]) -> None:
        self._write, self._colour, self._changed = write, colour, changed
        self._parts: list[SupervisedProcess] = []
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._stops = 0
        for number in _HANDLED:
            signal.signal(number, self._signalled)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.reload: Callable[[], None] = lambda: None
        adopt_orphans()  # to reap them, also as the first process of a container

    @property
    def stopping(self) -> bool:
        return self._stops > 0

    def say(self, text: str) -> None:
        self._write(f"{self._prefix('up')}{text}\n")

    def start(self, part: SupervisedProcess) -> None:
        if part not in self._parts:
            self._parts.append(part)
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._selector.register(read, selectors.EVENT_READ, part)
        try:
            with os.fdopen(write, "wb") as output:
                part.process = part.spawn(output)
        except BaseException:
            self._selector.unregister(read)
            os.close(read)
            raise
        part.started_at, part.retry_at = time.monotonic(), None
        self._changed([p.process.pid for p in self._parts if p.process is not None and p.runs])

    def run_until(self, done: Callable[[], bool], *, seconds: float, every: float = 0.02) -> bool:
        """False if stopped or out of time. Raises ProcessFailed instead of restarting."""
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            if done():
                for part in self._parts:
                    part.has_worked = True
                return True
            self._pump(every)
            for part in self._parts:
                if not part.runs:
                    self._drain(part)
                    raise ProcessFailed(part, part.lines)
        return False

    def run(self) -> None:
        """Raises ProcessFailed for a part that never worked."""
        while not self.stopping:
            self._pump(0.5)
            now = time.monotonic()
            for part in self._parts:
                if part.runs:
                    if now - part.started_at > _STEADY_SECONDS:
                        part.tries, part.has_worked = 0, True
                elif part.retry_at is None:
                    self._ended(part, now)
                elif now >= part.retry_at:
                    self._restart(part, now)

    def stop(self, order: Iterable[Iterable[SupervisedProcess]]) -> None:
        """Group after group: ask, wait, kill. A second signal skips the wait."""
        for group in order:
            waiting = [part for part in group if part.process is not None]
            for part in waiting:
                self.signal(part, part.stop_signal)
            begun, stops = time.monotonic(), self._stops
            while any(part.runs for part in waiting):
                self._pump(0.05)
                for part in waiting:
                    if part.runs and (time.monotonic() - begun > part.stop_seconds or self._stops > max(1, stops)):
                        self.say(f"{part.name} does not end; killing it")
                        self._kill(part)
            for part in waiting:
                self._kill(part)  # whatever it left in its session
                self._drain(part)
        for left in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()  # it has a session of its own
                left.wait(1)
        self._changed([])

    def leave(self) -> None:
        """Called in a forked child."""
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        for key in self._selector.get_map().values():
            os.close(key.fd)
        os.close(self._wake_write)
        self._selector.close()

    def _signalled(self, number: int, frame: object) -> None:
        if number in (signal.SIGINT, signal.SIGTERM):
            self._stops += 1
        elif number == signal.SIGHUP:
            self.reload()

    def _pump(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 512)
                self._reap_children()
            else:
                self._read(key.fd, key.data)

    def _reap_children(self) -> None:
        if not hasattr(os, "waitid"):
            return  # orphans are not adopted on that system
        # Not those already reaped: an orphan may have got the same pid since.
        processes = [part.process for part in self._parts if part.process is not None]
        known = {process.pid: process for process in processes if process.returncode is None}
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT does not reap: the exit code of a part is for its Popen.
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if (process := known.get(dead.si_pid)) is not None:
                    process.poll()
                else:
                    os.waitpid(dead.si_pid, 0)

    def _read(self, descriptor: int, part: SupervisedProcess) -> bool:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        *lines, part._partial = (part._partial + data).split(b"\n")
        if not data or len(part._partial) > _LONG_LINE:
            lines.append(part._partial)
            part._partial = b""
        self._lines(part, lines)
        return bool(data)

    def _lines(self, part: SupervisedProcess, lines: Iterable[bytes]) -> None:
        """In one write: a busy web process logs hundreds at once."""
        shown = []
        prefix = self._prefix(part.name)
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if not text.strip():
                continue
            part.lines.append(text)
            if not any(word in text for word in part.hidden):
                shown.append(f"{prefix}{text}\n")
        if shown:
            self._write("".join(shown))

    def _drain(self, part: SupervisedProcess) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is part:
                deadline = time.monotonic() + 0.2  # a grandchild may hold the pipe open
                while time.monotonic() < deadline and self._read(key.fd, part):
                    time.sleep(0.005)

    def _prefix(self, name: str) -> str:
        label = f"{name:<8} │ "
        return f"\x1b[{_COLOURS.get(name, 33)}m{label}\x1b[0m" if self._colour else label

    def _ended(self, part: SupervisedProcess, now: float) -> None:
        self._drain(part)  # its children get a signal from the kernel, and may finish their work
        if now - part.started_at > _STEADY_SECONDS:
            part.tries = 0
        part.tries += 1
        if part.tries > _TRIES:
            if not part.has_worked:
                raise ProcessFailed(part, part.lines)
            part.tries = _TRIES
        wait = min(8.0, 0.1 * 3 ** (part.tries - 1))
        part.retry_at = now + wait
        self.say(f"{part.name} ended ({part.how_it_ended()}); starting it again in {wait:.1f} s")

    def _restart(self, part: SupervisedProcess, now: float) -> None:
        try:
            self.start(part)
        except (OSError, RuntimeError) as error:
            self.say(f"{part.name}: {error}")
            if not part.runs:
                part.retry_at = None

    def signal(self, part: SupervisedProcess, number: signal.Signals) -> None:
        if part.process is not None and part.runs:
            with contextlib.suppress(ProcessLookupError):
                part.process.send_signal(number)

    def _kill(self, part: SupervisedProcess) -> None:
        if part.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(part.process.pid, signal.SIGKILL)
            if part.process.returncode is None:
                part.process.wait()
