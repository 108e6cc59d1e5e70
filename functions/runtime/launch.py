import errno
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from functions.runtime import imports, sandbox, scratch
from functions.runtime.errors import StartFailed

RUNNER: Final = Path(__file__).with_name("runner.ts")

FLAGS: Final = (
    "run",
    "--quiet",
    "--no-prompt",
    "--no-remote",
    "--no-npm",
    "--no-config",
    "--no-lock",
    "--cached-only",
    "--node-modules-dir=none",
    "--deny-import",
    "--deny-read",
    "--deny-env",
    "--deny-run",
    "--deny-ffi",
    "--deny-sys",
    "--deny-write",
    "--deny-net",
)
_UIDS: Final = range(1_900_000_000, 2_000_000_000)
"""Far above the uids of accounts and the uid ranges of containers."""


class Uid:
    """If this process is root, an unprivileged uid that no account has, exclusive until `close`; else `number` is None.
    It is reserved by a name of an abstract Unix socket, which the kernel removes when the process dies. Platforms in
    other network namespaces do not see it: between those a collision has a chance of one in 10^8."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._name: socket.socket | None = None
        self.number: int | None = None
        while os.geteuid() == 0:
            self.number = random.choice(_UIDS)  # noqa: S311 - no secret
            if sys.platform != "linux" or self._reserve():
                return

    def _reserve(self) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0platform-functions-uid-{self.number}")
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._name = name
        return True

    def close(self) -> None:
        if self._name is not None:
            self._name.close()


def deno() -> str:
    """The `deno` binary beside this interpreter. Raises StartFailed where the wheel is not installed."""
    beside = Path(sys.executable).parent / "deno"
    found = str(beside) if beside.exists() else shutil.which("deno")
    if not found:
        raise StartFailed("The package deno is not installed.")
    return found


def spawn(
    directory: Path, uid: int | None, memory_mb: int, preloaded: Sequence[str]
) -> tuple["subprocess.Popen[bytes]", BinaryIO]:
    """Start the runner, with `directory` as its only writable place. Returns the process, which leads its own process
    group, and a file that will have one line of JSON with its sandbox layers. Raises StartFailed, OSError."""
    runner = directory / "runner.ts"
    runner.write_bytes(RUNNER.read_bytes())
    if uid is not None:
        os.chown(directory, uid, uid)
        runner.chmod(0o444)
    limits = {
        "RLIMIT_DATA": max(700, memory_mb * 4) * 1024 * 1024,
        "RLIMIT_CPU": 3600,
        "RLIMIT_FSIZE": 16 * 1024 * 1024,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
    }
    report_in, report_out = os.pipe()
    report = os.fdopen(report_in, "rb")
    try:
        command = [
            *_sandboxed(directory, uid, report_out, limits),
            deno(),
            *FLAGS,
            f"--import-map={imports.import_map(preloaded)}",
            f"--v8-flags=--max-old-space-size={memory_mb}",
            str(runner),
        ]
        popen = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[report_out],
            start_new_session=True,
            cwd="/",
            env={},
        )
    except BaseException:
        report.close()
        raise
    finally:
        os.close(report_out)
    return popen, report


def _sandboxed(directory: Path, uid: int | None, report: int, limits: dict[str, int]) -> list[str]:
    """A prefix that applies the sandbox layers and writes their names to the descriptor `report`."""
    spec = {"report": report, "uid": uid, "scratch": str(directory), "parent": os.getpid(), "limits": limits}
    return [sys.executable, "-I", "-S", sandbox.__file__, json.dumps(spec), "--"]


def sandbox_layers_of_this_host() -> list[str]:
    """By a process that does nothing. Raises OSError, subprocess.SubprocessError."""
    directory, uid = scratch.make(), Uid()
    report_in, report_out = os.pipe()
    try:
        with os.fdopen(report_in, "rb") as report:
            try:
                if uid.number is not None:
                    os.chown(directory, uid.number, uid.number)
                subprocess.run(  # noqa: S603 - our own program
                    _sandboxed(directory, uid.number, report_out, limits={}),
                    pass_fds=[report_out], env={}, check=True, timeout=10, capture_output=True,
                )  # fmt: skip
            finally:
                os.close(report_out)
            return list(json.loads(report.readline() or b"[]"))
    finally:
        uid.close()
        shutil.rmtree(directory, ignore_errors=True)
