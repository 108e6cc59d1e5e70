"""One `manage.py up` per data directory, by `flock`; ends the children that a killed one left."""

import contextlib
import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import psutil

from platform_site.embedded.data_dir import CannotStart

_MAX_WAIT_SECONDS: Final = 10.0


class DataDirLock:
    """A context manager. Raises CannotStart."""

    port: int | None = None

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
            raise CannotStart(
                f"`manage.py up` is already running on {self._path.parent} (process {holder.get('pid', '?')}{port}). "
                "Stop it first, or give this one another --data-dir and --port."
            ) from None
        _end_leftovers(self._read().get("children", []))
        self.record([])
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)

    def leave(self) -> None:
        """In a forked child: it must not hold the lock longer than its parent."""
        os.close(self._file)

    def record(self, pids: list[int]) -> None:
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
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _end_leftovers(children: list[tuple[int, float]]) -> None:
    """PostgreSQL gets time for a clean shutdown."""
    alive = []
    for pid, started in children:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if _started_at(pid) == started:
                alive.append(process := psutil.Process(pid))
                if "postgres" in process.name():
                    process.send_signal(signal.SIGINT)
                else:
                    os.killpg(pid, signal.SIGKILL)
    for process in psutil.wait_procs(alive, timeout=_MAX_WAIT_SECONDS)[1]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
