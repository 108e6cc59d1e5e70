"""The writable directories of function processes, below one per platform process, which keeps a file in it locked. The
kernel releases the lock when the process dies, so `remove_leftovers` finds abandoned directories."""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Final, NamedTuple

PREFIX: Final = "platform-functions-"
_LOCK: Final = "in-use"

_guard = threading.Lock()


class _OwnDirectory(NamedTuple):
    pid: int
    """A fork has to make its own."""
    path: Path
    lock: int
    """The descriptor that holds it."""


_own_directory: _OwnDirectory | None = None


def make() -> Path:
    """A directory for one process. The caller removes it."""
    while True:
        try:
            return Path(tempfile.mkdtemp(prefix="fn-", dir=_directory()))
        except FileNotFoundError:  # the temporary directory was cleaned up
            _discard_missing()


def remove_leftovers() -> int:
    """Returns how many were removed; not those of other users."""
    removed = 0
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.lstat().st_uid != os.geteuid() or directory.is_symlink():
                continue
            descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
                removed += 1
            finally:
                os.close(descriptor)
    return removed


def _directory() -> Path:
    global _own_directory
    with _guard:
        if _own_directory is None or _own_directory.pid != os.getpid():
            directory = Path(tempfile.mkdtemp(prefix=PREFIX))
            # Locked before it gets the name that the cleanup opens.
            descriptor = os.open(directory / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.rename(directory / "new", directory / _LOCK)
            directory.chmod(0o711)  # a process with its own uid can enter its directory, but cannot list the others
            _own_directory = _OwnDirectory(os.getpid(), directory, descriptor)
            atexit.register(_remove_own_directory)
        return _own_directory.path


def _discard_missing() -> None:
    global _own_directory
    with _guard:
        if _own_directory is not None and not _own_directory.path.exists():
            os.close(_own_directory.lock)
            _own_directory = None


def _remove_own_directory() -> None:
    """At a regular end of the process (a fork inherits the handler, not the directory)."""
    global _own_directory
    with _guard:
        if _own_directory is not None and _own_directory.pid == os.getpid():
            shutil.rmtree(_own_directory.path, ignore_errors=True)
            os.close(_own_directory.lock)
            _own_directory = None
