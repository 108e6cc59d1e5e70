"""One `manage.py up` for each data dir, and what a killed one left behind. The lock is the kernel's (`flock`), so it
ends with its holder however that ends. The file also names the holder and its children: the next `up` reads there what
may still be running, and ends it, before it starts its own."""

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

_MAX_WAIT_SECONDS: Final = 10.0


class AlreadyRunning(RuntimeError):
    """Another process holds the lock. The message is a sentence for its user."""


class DataDirLock:
    """Held while `up` runs: `with DataDirLock(path) as lock: …`. Raises AlreadyRunning."""

    port: int | None = None
    """Where the holder listens, once it does; for the sentence that the next one reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def __enter__(self) -> "DataDirLock":
        # Not opened for truncation: until we hold the lock, the content is the other's.
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read()
            os.close(self._file)
            port = f", port {holder['port']}" if holder.get("port") else ""
            raise AlreadyRunning(
                f"`manage.py up` is already running on {self._path.parent} (process {holder.get('pid', '?')}{port}). "
                "Stop it first, or give this one another --data-dir and --port."
            ) from None
        _end_leftovers(self._read().get("children", []))
        self.record([])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)

    def record(self, pids: list[int]) -> None:
        """Remember the children that run now."""
        children = [[pid, started] for pid in pids if (started := _started_at(pid)) is not None]
        text = json.dumps({"pid": os.getpid(), "port": self.port, "children": children}).encode()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text, 0)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(ValueError):
            known = json.loads(os.pread(self._file, 65536, 0) or b"{}")
            if isinstance(known, dict):
                return known
        return {}


def _started_at(pid: int) -> float | None:
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _end_leftovers(children: list[tuple[int, float]]) -> None:
    """End the children of an `up` that was killed. On Linux they end by themselves; this waits for them. A process id
    may have been reused; together with the start time it is certain. PostgreSQL gets the time for a clean shutdown. The
    others lose nothing, and may still be starting, when they ignore SIGTERM."""
    import psutil

    alive = [pid for pid, started in children if _started_at(pid) == started]
    for pid in alive:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if "postgres" in psutil.Process(pid).name():
                os.kill(pid, signal.SIGINT)
            else:
                os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    for pid, started in children:
        while pid in alive and _started_at(pid) == started:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                break
            time.sleep(0.02)
