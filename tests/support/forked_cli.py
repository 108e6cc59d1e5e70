"""Commands of `platform`, each in a process that is forked from one that has imported the command: its imports take most
of the CPU time of a command. Standard streams, environment, exit code and signals are those of a process of its own."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from select import select

from tests.support.service import ROOT

_LARGEST = 1 << 20


@cache
def _server() -> socket.socket:
    """Ends when this process has ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
    subprocess.Popen(
        [sys.executable, "-c", "from tests.support.forked_cli import fork_commands; fork_commands()"],
        cwd=ROOT, stdin=theirs, start_new_session=True,
    )  # fmt: skip
    theirs.close()
    return ours


class Command:
    """A running command, with what the tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        pipes = [os.pipe() for _ in range(4)]
        (stdin, self_in), (self_out, stdout), (self_err, stderr), (status, theirs) = pipes
        message = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
        socket.send_fds(_server(), [message], [stdin, stdout, stderr, theirs])
        for descriptor in (stdin, stdout, stderr, theirs):
            os.close(descriptor)
        self.stdin, self.stdout, self.stderr = open(self_in, "w"), open(self_out), open(self_err)
        self._status = open(status)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select([self._status], (), (), timeout)[0]:
                raise TimeoutError
            self.returncode = int(self._status.read())
        return self.returncode

    def poll(self) -> int | None:
        with suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        with ThreadPoolExecutor(2) as readers:
            said = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            with suppress(BrokenPipeError):
                self.stdin.write(text)
            with suppress(BrokenPipeError):
                self.stdin.close()
            try:
                self.wait(timeout)
            except TimeoutError:
                self.kill()
                raise
            out, err = (each.result(timeout) for each in said)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_commands() -> None:
    """Fork the commands that arrive at standard input. Returns in each of them when it has run."""
    import httpx  # noqa: F401 - each command that calls the service imports it

    from platform_site.developer_cli.__main__ import main
    from platform_site.developer_cli.main import app  # noqa: F401

    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 4)
        if not message:
            return
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    if (command := os.fork()) != 0:
        for stream in streams:
            os.close(stream)
        os.write(status, f"{command}\n".encode())
        _, ended = os.waitpid(command, 0)
        os.write(status, str(os.waitstatus_to_exitcode(ended)).encode())
        os._exit(0)
    os.close(status)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    arguments, folder, environment = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["platform", *arguments]
    main()
