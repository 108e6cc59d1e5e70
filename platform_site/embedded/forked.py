"""A child process that shares what this process has imported, in the form of `subprocess.Popen`."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Final

from platform_site.embedded.launch import die_with_parent, name_process

_BLOCKED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ForkedProcess:
    """Runs `run()` in a session of its own, and dies with this process. `before` is called first in the child, and must
    release what only the parent may hold."""

    def __init__(self, name: str, run: Callable[[], object], output: IO[bytes], before: Callable[[], object]) -> None:
        def main() -> None:
            os.setsid()
            name_process(name)
            before()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
            die_with_parent(parent, signal.SIGTERM)
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
                stream.reconfigure(write_through=True)  # type: ignore[union-attr]
            run()

        parent = os.getpid()
        sys.stdout.flush()
        self._process = multiprocessing.get_context("fork").Process(target=main)
        # Blocked until the child has its own handlers: Python drops signals while forking.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        self.pid: int = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
