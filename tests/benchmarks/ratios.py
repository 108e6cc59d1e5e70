"""What one request costs compared with another: `python -m tests.benchmarks.ratios [ROUNDS]`.

The two requests of each pair are answered in turn by Django in this process, as in `tests.benchmarks.calls`, so that a
busy machine slows both alike. For each request: CPU of this process and of its PostgreSQL backends in µs (from the
scheduler, which counts nanoseconds), wall time, and how often the thread waited: the least of all rounds, since
whatever else runs on the machine only adds (cold caches, most of all).
Targets: `with=owner` at most 1.15 times the list without it, and a batch of 10 inserts at most 2.5 times one insert.
"""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import cycle, islice
from pathlib import Path

from tests.benchmarks.calls import Answer, answers
from tests.benchmarks.measured_service import stage

WARM, EACH = 300, 100
PAIRS = {
    "with=owner": ("list 20 of one's own", "list 20 with their owner"),
    "with=list": ("list 20 of one's own", "list 20 with their list"),
    "batch of 10 inserts": ("insert", "batch of 10 inserts"),
}


@dataclass(frozen=True)
class Spent:
    """Of one request: µs, and switches of the thread."""

    python: float
    postgres: float
    wall: float
    switches: float

    @property
    def cpu(self) -> float:
        return self.python + self.postgres


def backend_cpu(backends: Sequence[int]) -> float:
    """Seconds of CPU so far."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in backends) / 1e9


def backends_of_this_process() -> list[int]:
    from django.db import connections

    return [each.connection.info.backend_pid for each in connections.all(initialized_only=True) if each.connection]


def spent(answer: Answer, requests: Sequence[bytes], backends: Sequence[int]) -> Spent:
    def now() -> tuple[float, float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return time.thread_time(), backend_cpu(backends), time.perf_counter(), usage.ru_nvcsw

    before = now()
    for request in requests:
        answer(request)
    python, postgres, wall, switches = (then - first for then, first in zip(now(), before, strict=True))
    count = len(requests)
    return Spent(python * 1e6 / count, postgres * 1e6 / count, wall * 1e6 / count, switches / count)


def main(rounds: int = 30) -> None:
    with stage(workers=1) as on:
        from tests.benchmarks import rows

        answer, asked = answers(), rows.questions(on.setting, on.port)
        print(f"{'':26}{'python':>9}{'postgres':>9}{'wall µs':>9}{'waits':>7}")
        for what, names in PAIRS.items():
            both = [cycle(asked[name][0]) for name in names]
            for requests in both:
                for request in islice(requests, WARM):
                    answer(request)
            backends = backends_of_this_process()
            pairs = [[spent(answer, list(islice(one, EACH)), backends) for one in both] for _ in range(rounds)]
            least = []
            for number, name in enumerate(names):
                fields = zip(*(astuple(pair[number]) for pair in pairs), strict=True)
                least.append(one := Spent(*map(min, fields)))
                print(f"{name:26}{one.python:9.0f}{one.postgres:9.0f}{one.wall:9.0f}{one.switches:7.1f}")
            cheap, dear = least
            print(f"{what}: {dear.cpu / cheap.cpu:.2f} of CPU, {dear.wall / cheap.wall:.2f} of wall time", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
