"""F28, ten minutes of load and no fault: `python -m tests.faults.soak [--seconds 600] [--json FILE]`.

Four clients write rows that are delivered to a receiver; a fifth does everything else, repeatedly: reads and changes
rows, invokes functions (and queues some), signs in, makes and deletes a project. Meanwhile every process of the service
is looked at each second, the connections of its databases each second.

*Slope*: least squares over the memory of one process after the warm-up, a fifth of the time. Of a process of PostgreSQL
that is what it does not share, since every page of the buffer that it meets counts for it from then on. Processes that lived for
less than half of the time are not judged: Deno's are replaced now and then. Of several of a kind the steepest counts.
*Outbox age*: from the write to the relay that saw it, of every event after the warm-up.
"""

import argparse
import contextlib
import itertools
import json
import logging
import os
import platform
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import psutil

from platform_site.embedded.data_dir import region_database
from tests.faults.conftest import superuser
from tests.faults.write_load import Storm, Tally
from tests.support.load import sign_in
from tests.support.receiver import Receiver
from tests.support.service import Up, description, start_up

WRITES_A_SECOND = 10
TURN = 0.25
"""Seconds between two beginnings of what the fifth client does."""
KINDS = {
    "platform-web": "web",
    "platform-worker": "worker",
    "manage.py up": "up",
    "postgres": "PostgreSQL",
    "valkey": "Valkey",
    "redis": "Valkey",
    "deno": "Deno",
}
_CONNECTIONS = """
SELECT count(*) FILTER (WHERE usename = 'platform'), count(*) FILTER (WHERE state LIKE 'idle in transaction%'
       AND state_change < now() - interval '5 seconds')
  FROM pg_stat_activity WHERE backend_type = 'client backend'
"""
_AGES = """
SELECT count(*), extract(epoch FROM percentile_cont(0.5) WITHIN GROUP (ORDER BY relayed_at - created_at)),
       extract(epoch FROM percentile_cont(0.99) WITHIN GROUP (ORDER BY relayed_at - created_at))
  FROM platform.rows_outboxevent
 WHERE environment_id = %s AND relayed_at IS NOT NULL AND created_at > now() - %s * interval '1 second'
"""


@dataclass
class Process:
    """What was seen of one process: seconds, and bytes, descriptors and threads then."""

    kind: str
    seen: list[tuple[float, int, int, int]] = field(default_factory=list)

    def slope(self, since: float) -> float:
        """MB of memory a minute."""
        after = [(at, memory) for at, memory, _, _ in self.seen if at >= since]
        line = statistics.linear_regression([at for at, _ in after], [memory for _, memory in after])
        return line.slope * 60 / 1e6

    def growth(self, since: float, what: int) -> int:
        """By how much the most of the second half is above the most of the first; `what`: 2 descriptors, 3 threads."""
        after = [each[what] for each in self.seen if each[0] >= since]
        half = len(after) // 2
        return max(after[half:]) - max(after[:half])


@dataclass(frozen=True, slots=True)
class Line:
    """Of one kind of process; memory in MB, slope in MB a minute."""

    kind: str
    judged: int
    memory: float
    """Of the largest, at the end."""
    slope: float
    descriptors: int
    """By how many the second half's most is above the first's."""
    threads: int


@dataclass(frozen=True, slots=True)
class Soaked:
    """What came of it. Ages in seconds."""

    seconds: float
    lines: list[Line]
    connections: tuple[int, int]
    """The most in the first half after the warm-up, and in the second."""
    stuck: int
    """The most transactions that were idle for over five seconds."""
    zombies: int
    """Processes that had ended and were not asked for how, for two looks in a row."""
    age_p50: float
    age_p99: float
    answers: dict[str, int]
    tally: Tally


class Watch(threading.Thread):
    """Looks at every process below `up`, and at its connections, each `every` seconds."""

    def __init__(self, up: Up, every: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.processes: dict[int, Process] = {}
        self.connections: list[tuple[float, int]] = []
        self.stuck = self.zombies = 0
        self._up, self._every = up, every
        self._over = threading.Event()
        self._ended: set[int] = set()

    def run(self) -> None:
        with superuser(self._up) as connection:
            connection.autocommit = True
            while not self._over.wait(self._every):
                now = time.monotonic()
                self._look_at_processes(now)
                [(count, stuck)] = connection.execute(_CONNECTIONS).fetchall()
                self.connections.append((now, int(str(count))))
                self.stuck = max(self.stuck, int(str(stuck)))

    def stop(self) -> None:
        self._over.set()
        self.join(20)

    def _look_at_processes(self, now: float) -> None:
        ended = set()
        for process in [psutil.Process(self._up.process.pid), *self._up.children()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_ZOMBIE:
                    ended.add(process.pid)
                    continue
                kind = self._kind(process)
                memory = process.memory_info()
                held = memory.rss - memory.shared if kind == "PostgreSQL" else memory.rss
                known = self.processes.setdefault(process.pid, Process(kind))
                known.seen.append((now, held, process.num_fds(), process.num_threads()))
        self.zombies = max(self.zombies, len(ended & self._ended))
        self._ended = ended

    def _kind(self, process: psutil.Process) -> str:
        if (known := self.processes.get(process.pid)) is not None:
            return known.kind
        line = description(process)
        return next((kind for words, kind in KINDS.items() if words in line), process.name())


class Others(threading.Thread):
    """One client that does everything but what the storm does, one thing after the other; `answers` by what and
    status."""

    def __init__(self, up: Up) -> None:
        super().__init__(daemon=True)
        self.answers: Counter[str] = Counter()
        self._up = up
        self._over = threading.Event()

    def run(self) -> None:
        key = {"Authorization": f"Bearer {self._up.facts['server_key']}"}
        with httpx.Client(base_url=f"{self._up.base_url}/v1", headers=key, timeout=20) as client:
            for turn in itertools.count():
                if self._over.wait(TURN):
                    return
                self._turn(client, turn)

    def stop(self) -> None:
        self._over.set()
        self.join(60)

    def _turn(self, client: httpx.Client, turn: int) -> None:
        task = f"/rows/tasks/{self._up.facts['task_id']}"
        self._ask(client, "list", "GET", "/rows/tasks?limit=20&order=created_at.desc")
        self._ask(client, "retrieve", "GET", task)
        self._ask(client, "update", "PATCH", task, {"title": f"Turn {turn}"})
        body = {"input": {"a": turn, "b": 1}}
        self._ask(client, "invoke", "POST", "/functions/sum/invoke", body)
        if turn % 4 == 0:
            self._ask(client, "queue", "POST", "/functions/sum/invoke", {**body, "async": True})
        if turn % 20 == 0:
            self._sign_in_and_make_a_project(client)

    def _sign_in_and_make_a_project(self, client: httpx.Client) -> None:
        owner = {"Authorization": f"Bearer {sign_in(self._up)}"}
        made = self._ask(client, "create", "POST", "/projects", {"name": "Soak"}, **owner)
        if made is not None and made.status_code == 201:
            self._ask(client, "delete", "DELETE", f"/projects/{made.json()['id']}", **owner)

    def _ask(
        self, client: httpx.Client, what: str, method: str, path: str, body: object = None, **headers: str
    ) -> httpx.Response | None:
        try:
            answer = client.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            self.answers[f"{what} {type(error).__name__}"] += 1
            return None
        self.answers[f"{what} {answer.status_code}"] += 1
        return answer


def soak(up: Up, seconds: float) -> Soaked:
    """Load for so many seconds, and what was seen meanwhile."""
    watch, others = Watch(up), Others(up)
    begun = time.monotonic()
    with Receiver() as receiver:
        with Storm(up, receiver, int(seconds * WRITES_A_SECOND), seconds, "soak") as storm:
            watch.start()
            others.start()
        others.stop()
        watch.stop()
        tally = storm.settle(60)
    since = begun + seconds / 5
    with superuser(up, region_database("us-east-1")) as connection:
        environment, ago = up.facts["environments"]["production"], time.monotonic() - since
        [(_, p50, p99)] = connection.execute(_AGES, [environment, ago]).fetchall()
    return Soaked(
        seconds=seconds,
        lines=list(_lines(watch, since, seconds)),
        connections=_halves([each for each in watch.connections if each[0] >= since]),
        stuck=watch.stuck,
        zombies=watch.zombies,
        age_p50=float(str(p50)),
        age_p99=float(str(p99)),
        answers=dict(others.answers) | {f"write {status}": count for status, count in storm.answers.items()},
        tally=tally,
    )


def _lines(watch: Watch, since: float, seconds: float) -> Iterator[Line]:
    kinds = defaultdict(list)
    for process in watch.processes.values():
        after = [at for at, *_ in process.seen if at >= since]
        if after and after[-1] - after[0] >= seconds / 2:
            kinds[process.kind].append(process)
    for kind, found in sorted(kinds.items()):
        yield Line(
            kind=kind,
            judged=len(found),
            memory=max(process.seen[-1][1] for process in found) / 1e6,
            slope=max(process.slope(since) for process in found),
            descriptors=max(process.growth(since, 2) for process in found),
            threads=max(process.growth(since, 3) for process in found),
        )


def _halves(seen: list[tuple[float, int]]) -> tuple[int, int]:
    counts = [count for _, count in seen]
    half = len(counts) // 2
    return max(counts[:half]), max(counts[half:])


@contextlib.contextmanager
def service() -> Iterator[Up]:
    """The service as `manage.py up` runs it, with the limits of rate out of the way."""
    with tempfile.TemporaryDirectory() as made:
        up = start_up(Path(made) / "data", environment={"RATE_LIMIT_FACTOR": "1000"})
        try:
            yield up
        finally:
            up.stop()


def shown(soaked: Soaked) -> str:
    rows = [
        "| process | judged | memory at the end, MB | slope, MB/min | more descriptors | more threads |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    rows += [
        f"| {line.kind} | {line.judged} | {line.memory:.0f} | {line.slope:+.2f} | {line.descriptors:+d} | {line.threads:+d} |"
        for line in soaked.lines
    ]
    tally, (first, second) = soaked.tally, soaked.connections
    answers = ", ".join(f"{count:,} × {what}" for what, count in sorted(soaked.answers.items()))
    return "\n".join(
        [
            *rows,
            "",
            f"{soaked.seconds:.0f} s. Connections {first}, then {second}; transactions left open {soaked.stuck}; "
            f"zombies {soaked.zombies}. Outbox age p50 {soaked.age_p50:.3f} s, p99 {soaked.age_p99:.3f} s. "
            f"Events {tally.committed:,}, lost {tally.lost}, duplicate {tally.duplicates}, phantom {tally.phantom}.",
            f"Answers: {answers}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of load (default %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the results there")
    options = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with service() as up:
        print(f"{platform.platform()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f} at the start\n")
        soaked = soak(up, options.seconds)
    print(shown(soaked))
    if options.json:
        options.json.write_text(json.dumps(asdict(soaked), indent=2) + "\n")


if __name__ == "__main__":
    main()
