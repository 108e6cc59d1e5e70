"""The service as `manage.py up` runs it, with the data set, and what everything in it costs while it is asked.

`with stage(workers=2) as on:` starts it with the URLs of the benchmark, fills a project, and makes this process a
part of it (Django is set up on its databases). `on.measure(…)` is one run of load.
"""

import argparse
import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.benchmarks.load_generator import Load, hammer
from tests.support.service import Up, description, start_up

CLIENTS = 16
GROUPS = {"web": "platform-web", "worker": "platform-worker", "postgres": "postgres", "valkey": "valkey-server"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of CPU by part of the service since the start of a process tree; `others`: all other processes."""

    web: float
    worker: float
    postgres: float
    valkey: float
    rest: float
    busy: float
    """Of the whole machine."""
    at: float

    def since(self, before: "Cost") -> "Cost":
        return Cost(*(now - then for now, then in zip(asdict(self).values(), asdict(before).values(), strict=True)))

    @property
    def ours(self) -> float:
        return self.web + self.worker + self.postgres + self.valkey + self.rest


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the table. Rates in 1/s, times in ms, CPU in µs for each request; lower bounds in 1/s where known."""

    what: str
    per_second: float
    p50: float
    p99: float
    web: float
    worker: float
    postgres: float
    statement: float | None = None
    """`pgbench` with the same statement."""
    floor: float | None = None
    """What else it cannot pass: see the workload."""
    others: float = 0.0
    """The share of the machine that was spent on what is neither the service nor the load."""
    note: str = ""


@dataclass
class Stage:
    up: Up
    port: int
    setting: Any
    workers: int
    idle_mb: float
    figures: list[Figures] = field(default_factory=list)

    def cost(self) -> Cost:
        spent = dict.fromkeys((*GROUPS, "rest"), 0.0)
        for group, process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent[group] += times.user + times.system
                # Of those that ended meanwhile, such as PostgreSQL's backends and the processes of functions.
                spent[group] += times.children_user + times.children_system
        busy = psutil.cpu_times()
        return Cost(**spent, busy=busy.user + busy.system + busy.nice, at=time.monotonic())

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        main = psutil.Process(self.up.process.pid)
        yield "rest", main
        for part in main.children():
            words = description(part)
            group = next((name for name, word in GROUPS.items() if word in words), "rest")
            for process in (part, *part.children(recursive=True)):
                yield group, process

    def measure(
        self,
        what: str,
        requests: Sequence[bytes],
        seconds: float,
        *,
        warm: float = 1.5,
        clients: int = CLIENTS,
        expected: frozenset[int] = frozenset({200, 201, 202}),
        **more: Any,
    ) -> Figures:
        """One run after a short one that warms up. Responses with another status are counted in the note."""
        hammer(self.port, requests, seconds=warm, connections=clients)
        before = self.cost()
        load = hammer(self.port, requests, seconds=seconds, connections=clients)
        return self.add(what, load, self.cost().since(before), expected, **more)

    def add(
        self, what: str, load: Load, spent: Cost, expected: frozenset[int] = frozenset({200, 201, 202}), **more: Any
    ) -> Figures:
        strange = {status: count for status, count in load.statuses.items() if status not in expected}
        others = max(0.0, (spent.busy - spent.ours - load.cpu) / (spent.at * (os.cpu_count() or 1)))
        each = 1e6 / max(1, load.count)
        note = "; ".join(filter(None, (more.pop("note", ""), f"statuses {strange}" if strange else "")))
        made = Figures(
            what, load.per_second, load.p50, load.p99, spent.web * each, spent.worker * each, spent.postgres * each,
            others=others, note=note, **more,
        )  # fmt: skip
        self.figures.append(made)
        return made


def memory(up: Up) -> float:
    """Megabytes of the whole stack, pages that processes share counted once."""
    total = 0
    for process in (psutil.Process(up.process.pid), *up.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


@contextlib.contextmanager
def stage(workers: int = 2, more: Callable[[Path], dict[str, str]] = lambda directory: {}) -> Iterator[Stage]:
    """The service with its data set, and Django of this process on its databases. Once in a process.

    `more` gives further variables for the service; its data dir will be `data` in the directory that it is given.
    """
    directory = Path(tempfile.mkdtemp(prefix="bp-bench-"))
    environment = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings", "RATE_LIMIT_FACTOR": "1000000"}
    environment |= more(directory)
    try:
        up = start_up(directory / "data", "--workers", str(workers), environment=environment, seconds=300)
        try:
            time.sleep(3)
            idle = memory(up)
            os.environ |= environment | {"DATA_DIR": str(up.data_dir), "BASE_URL": up.base_url}
            import django

            django.setup()
            logging.getLogger("httpx").setLevel(logging.WARNING)
            from tests.benchmarks import rows

            yield Stage(up, urlsplit(up.base_url).port or 0, rows.build(), workers, idle)
        finally:
            up.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def seconds_and_workers(description: str | None) -> tuple[float, int]:
    """Of the command line: `[SECONDS] [WORKERS]`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=3.0, help="of each workload (default 3)")
    parser.add_argument("workers", nargs="?", type=int, default=2, help="web processes (default 2)")
    options = parser.parse_args()
    return options.seconds, options.workers


# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────────────


HEAD = f"{'':28}{'1/s':>8}{'share':>7}{'p50 ms':>8}{'p99 ms':>8}{'web µs':>8}{'worker':>8}{'pg µs':>7}{'pgbench':>9}{'floor':>8}{'others':>8}"


def line(one: Figures, bare: float) -> str:
    def number(value: float | None, width: int, form: str = ",.0f") -> str:
        return f"{'' if value is None else format(value, form):>{width}}"

    return (
        f"{one.what:28}{one.per_second:8,.0f}{one.per_second / bare:7.2f}{one.p50:8.1f}{one.p99:8.1f}{one.web:8,.0f}"
        f"{one.worker:8,.0f}{one.postgres:7,.0f}{number(one.statement, 9)}{number(one.floor, 8)}{one.others:8.0%}"
        f"{'   ' + one.note if one.note else ''}"
    )
