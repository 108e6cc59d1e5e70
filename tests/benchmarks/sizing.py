"""How many cores, connections and bytes a load needs: `python -m tests.benchmarks.sizing [BENCHMARK.json] [--mix …]`.

Reads the CPU of each part for one request from what `python -m tests.benchmarks --json FILE` wrote (without a file: from
`quiet.json` beside this module, which a quiet machine made), multiplies it with a mix of requests, and prints the tables
of docs/explanation/sizing.md. Pure arithmetic: what it leaves out (caches that grow cold, locks, the network) is said there.
"""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

QUIET: Final = Path(__file__).with_name("quiet.json")

MIX: Final[Mapping[str, float]] = {
    "retrieve": 35,
    "list 20 of one's own": 27,
    "list 20 with their list": 10,
    "update": 12,
    "insert": 5,
    "… and delivered": 4,
    "invoke, warm": 4,
    "… and executed": 2,
    "sign in": 1,
}
"""Requests of 100, by the benchmark's own names. `… and delivered` is an insert whose event one webhook gets, `… and
executed` a queued call with its run."""
RATES: Final = (1_000, 100_000, 10_000_000)
"""Requests a minute, on average."""
PEAK: Final = 3.0
"""The busiest minutes against the average."""
BUSY: Final = 0.5
"""The share of a core that may be used at the peak: beyond, waiting times grow faster than the load."""

REDIS_COMMANDS: Final = 4
"""Of one request, in one round trip: two records, and one counter with its end (`projects.api.authentication`)."""
REDIS_NUDGES: Final = 0.1
"""Commands a request for notifications and Celery: at most one notification in 20 ms and process, whatever is
written."""
THREADS_AT_WORK: Final = 3
"""Connections that a web process holds for each database in ordinary load."""
POSTGRES_CORES: Final = 32
"""Cores of one database server before another cluster is the simpler step."""
ROW_BYTES, EVENT_BYTES, DELIVERY_BYTES, RUN_BYTES = 300, 1_500, 3_300, 700
"""Of one row of some columns with three indexes, one event, one delivery with its attempt, one run; with their indexes
and what updates leave until a vacuum: all but the row measured, see docs/explanation/sizing.md."""
DELIVERIES_KEPT_DAYS, EVENTS_KEPT_DAYS, RUNS_KEPT_DAYS = 30, 30, 7


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of one request in µs, by part."""

    web: float
    worker: float
    postgres: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a load needs. Cores are those to have, at the peak and half busy; rates are at the peak, a second."""

    per_minute: int
    web: float
    worker: float
    postgres: float
    requests: float
    """A second, at the peak."""
    redis_commands: float
    connections: int
    """To PostgreSQL, over all databases, without a pooler."""
    clusters: int
    """Database servers for the regions' rows, of POSTGRES_CORES each."""
    rows_gb_a_month: float
    queues_gb: float
    """What deliveries, events and runs hold when as many are forgotten as are made."""


def costs(benchmark: Mapping[str, object]) -> dict[str, Cost]:
    """By the name of the workload. Raises KeyError for a file of another kind."""
    figures = benchmark["figures"]
    assert isinstance(figures, list)
    return {one["what"]: Cost(one["web"], one["worker"], one["postgres"]) for one in figures}


def average(of: Mapping[str, Cost], mix: Mapping[str, float]) -> Cost:
    """Of one request of the mix. Raises KeyError where the benchmark lacks a workload."""
    whole = sum(mix.values())
    return Cost(
        *(sum(getattr(of[what], part) * share for what, share in mix.items()) / whole for part in Cost.__slots__)
    )


def need(per_minute: int, cost: Cost, mix: Mapping[str, float]) -> Need:
    """What `per_minute` requests of the mix need."""
    per_second = per_minute / 60
    peak = per_second * PEAK
    whole = sum(mix.values())

    def cores(microseconds: float) -> float:
        return peak * microseconds / 1e6 / BUSY

    def a_day(what: str) -> float:
        return per_minute * 60 * 24 * mix.get(what, 0) / whole

    processes = math.ceil(cores(cost.web)) * 2
    deliveries, runs = a_day("… and delivered"), a_day("… and executed") + a_day("invoke, warm")
    inserts = a_day("insert") + deliveries
    return Need(
        per_minute=per_minute,
        web=cores(cost.web),
        worker=cores(cost.worker),
        postgres=cores(cost.postgres),
        requests=peak,
        redis_commands=peak * (REDIS_COMMANDS + REDIS_NUDGES),
        connections=processes * THREADS_AT_WORK * 2 + math.ceil(cores(cost.worker)) * 16,
        clusters=math.ceil(cores(cost.postgres) / POSTGRES_CORES),
        rows_gb_a_month=inserts * 30 * ROW_BYTES / 1e9,
        queues_gb=(
            deliveries * (DELIVERIES_KEPT_DAYS * DELIVERY_BYTES + EVENTS_KEPT_DAYS * EVENT_BYTES)
            + runs * RUNS_KEPT_DAYS * RUN_BYTES
        )
        / 1e9,
    )


def number(value: float) -> str:
    """With as many digits as mean something."""
    if isinstance(value, int) or value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def tables(benchmark: Mapping[str, object], mix: Mapping[str, float] = MIX) -> str:
    """The tables of docs/explanation/sizing.md, in Markdown."""
    of = costs(benchmark)
    cost = average(of, mix)
    lines = ["| of 100 requests | | web µs | worker µs | PostgreSQL µs |", "|---|--:|--:|--:|--:|"]
    for what, share in mix.items():
        lines.append(
            f"| {what} | {share:g} | {of[what].web:,.0f} | {of[what].worker:,.0f} | {of[what].postgres:,.0f} |"
        )
    lines.append(f"| **one of the mix** | | {cost.web:,.0f} | {cost.worker:,.0f} | {cost.postgres:,.0f} |")
    needs = [need(rate, cost, mix) for rate in RATES]
    lines += ["", f"| a minute, on average | {' | '.join(f'{rate:,}' for rate in RATES)} |", "|---|--:|--:|--:|"]
    for title, value in (
        ("requests a second at the peak", "requests"),
        ("cores of web", "web"),
        ("cores of workers", "worker"),
        ("cores of PostgreSQL", "postgres"),
        (f"database servers of {POSTGRES_CORES} cores", "clusters"),
        ("connections to PostgreSQL without a pooler", "connections"),
        ("commands of Redis a second", "redis_commands"),
        ("rows grow by, GB a month", "rows_gb_a_month"),
        ("deliveries, events and runs hold, GB", "queues_gb"),
    ):
        lines.append(f"| {title} | {' | '.join(number(getattr(one, value)) for one in needs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sizing", description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", type=Path, nargs="?", default=QUIET, help="made by tests.benchmarks --json")
    parser.add_argument(
        "--mix", type=Path, help="a JSON object: workload to requests of 100 (default: docs/explanation/sizing.md)"
    )
    options = parser.parse_args()
    mix = json.loads(options.mix.read_text()) if options.mix else MIX
    print(tables(json.loads(options.benchmark.read_text()), mix))


if __name__ == "__main__":
    main()
