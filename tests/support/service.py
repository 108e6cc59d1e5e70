"""The service as users run it: `manage.py up` in a process of its own, with its own data dir and port."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.timing import STRICT, within

ROOT = Path(__file__).resolve().parents[2]
_TEST_RUN_VARIABLES = (
    "DATA_DIR",
    "DATABASE_URL",
    "REDIS_URL",
    "REGION_US_EAST_1_URL",
    "REGION_EU_WEST_1_URL",
    "REGION_AP_SOUTHEAST_1_URL",
    "BASE_URL",
    "PROMETHEUS_MULTIPROC_DIR",
    "IDLE_IN_TRANSACTION_TIMEOUT_MS",
)

STARTS_THREAD = "in start\\n    self._started.wait()"
"""A blocked event loop that is tolerated: on a busy machine a new thread starts late."""
_BLOCKED_MS = re.compile(r"the event loop went on after \d+ ms, (\d+) of them computing")
_MAX_COMPUTING_MS = 50 if STRICT else 250
"""A busy machine needs more CPU for the same work, and more requests wait for one turn of the loop."""


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 45.0, every: float = 0.02) -> Any:
    """The first truthy value of `condition()`; fails naming `what` when the time is over. A busy machine gets more time,
    but at most 90 s: pytest ends a test after 120 s without naming anything."""
    limit = max(seconds, min(within(seconds), 90))
    deadline = time.monotonic() + limit
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"not within {limit:g} s: {what}"
        time.sleep(every)


@contextlib.contextmanager
def server_process(name: str, command: Sequence[str], health: str, **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Runs `command` during the block, which begins when the URL `health` answers 200. `options` are those of Popen.
    Fails if the process ends before."""
    process = subprocess.Popen(command, **options)

    def answers() -> bool:
        assert process.poll() is None, f"{name} ended with {process.returncode}"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(health).status_code == 200
        return False

    try:
        wait_for(f"{name} answers", answers, 60, every=0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def description(process: psutil.Process) -> str:
    """Its name and command line. Web and worker of `up` have its command line, and a name of their own."""
    return " ".join([process.name(), *process.cmdline()])


@dataclass
class Up:
    """One `manage.py up`. `lines` collects what it prints."""

    process: "subprocess.Popen[str]"
    data_dir: Path
    environment: dict[str, str] = field(default_factory=dict)
    """What was set for it beside what the tests themselves were started with."""
    lines: list[str] = field(default_factory=list)
    base_url: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """demo.json; empty with `--no-demo`."""
    ready_after: float = 0.0
    """Seconds from the start of the process to the first answer."""

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def children(self) -> list[psutil.Process]:
        """Everything it started, and what those started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def named(self, *words: str, parent: int | None = None) -> list[psutil.Process]:
        """Children whose name or command line contains all the words; only those of `parent`, if given."""
        found = []
        for child in self.children():
            # One that ends while we look is not there.
            with contextlib.suppress(psutil.NoSuchProcess):
                if all(word in description(child) for word in words) and parent in (None, child.ppid()):
                    found.append(child)
        return found

    def part(self, *words: str) -> psutil.Process:
        """The one direct child of `up` whose name or command line contains the words."""
        [found] = self.named(*words, parent=self.process.pid)
        return found

    def web_workers(self) -> list[psutil.Process]:
        """The processes that answer requests."""
        return [worker for main in self.named("platform-web", parent=self.process.pid) for worker in self._of(main)]

    def _of(self, main: psutil.Process) -> list[psutil.Process]:
        return self.named("platform-web", parent=main.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 25.0) -> int:
        """Ask it to stop; its exit code. Fails if an event loop slept or computed for long meanwhile or before."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        stops = [line for line in self.lines if "the event loop is blocked" in line and STARTS_THREAD not in line]
        slept = [line for line in stops if "is blocked: it sleeps" in line]
        computed = [int(found[1]) for line in self.lines if (found := _BLOCKED_MS.search(line))]
        assert not slept, "\n".join(slept)
        assert max(computed, default=0) <= _MAX_COMPUTING_MS, "\n".join([*stops, f"in ms: {computed}"])
        return code


def start_up(
    data_dir: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    wait: bool = True,
    seconds: float = 110.0,
    **popen: Any,
) -> Up:
    """Run `manage.py up --data-dir …` (on a free port unless `--port` is given) and wait until it answers."""
    inherited = {name: value for name, value in os.environ.items() if name not in _TEST_RUN_VARIABLES}
    if "--port" not in arguments:
        arguments = (*arguments, "--port", "0")
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "up", "--data-dir", str(data_dir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**inherited, "RATE_LIMIT_FACTOR": "100", **(environment or {})},
        **popen,
    )
    up = Up(process, data_dir, environment or {})

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            up.lines.append(line.rstrip("\n"))

    threading.Thread(target=collect, daemon=True).start()
    if wait:
        try:
            wait_for_ready(up, begun, seconds)
        except BaseException:
            up.stop()
            raise
    return up


def manage(up: Up, *arguments: str) -> str:
    """One of the operators' commands: a process of its own, beside those that answer. Returns what it prints."""
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    environment = {"DATA_DIR": str(up.data_dir), "PATH": "/usr/bin:/bin", **up.environment}
    return subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout


def wait_for_ready(up: Up, begun: float, seconds: float = 110.0) -> None:
    def url() -> str | None:
        assert up.process.poll() is None, f"`up` ended with {up.process.returncode}"
        found = re.search(r"^  API +(http://\S+)/v1", up.output, re.MULTILINE)
        return found[1] if found else None

    try:
        up.base_url = wait_for("`up` is ready", url, seconds)
    except AssertionError as error:
        error.add_note(up.output)
        raise
    assert httpx.get(f"{up.base_url}/healthz").status_code == 200
    up.ready_after = time.monotonic() - begun
    if (up.data_dir / "demo.json").exists():
        up.facts = json.loads((up.data_dir / "demo.json").read_text())
