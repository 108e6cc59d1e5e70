"""One fault after the other under load, and one table: `python -m tests.faults [--only FAULT …] [--changes FAULT …]
[--writes 800] [--changes-writes 10000] [--streams 50] [--json FILE]`.

Four clients write rows that are delivered to a receiver (each with its own id, so that what got no response can be
looked up), two more create, change, list and delete projects. A second after they began, the fault; a few seconds after
its cause is over, the end, and then everything that was committed must arrive. docs/explanation/reliability.md keeps the table.

*Errors* are answers that are not 2xx, and connections without an answer. *For*: from the beginning of the first to the
end of the last. *Recovery*: from the end of the cause to the end of the last error. Lost, duplicate, phantom: as in
docs/explanation/reliability.md.
A second table is of live changes (`change_mirrors`).
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults import inject
from tests.faults.change_mirrors import HARMS, Result, follow
from tests.faults.conftest import OwnValkey, environments_without_schema
from tests.faults.write_load import SETTINGS, Storm, Worker
from tests.support.load import Load, Outcome, sign_in
from tests.support.receiver import Receiver
from tests.support.service import Up, start_up, wait_for

FINE = {200, 201, 202, 204}
AFTER = 5.0
"""Seconds of load after the cause is over: the time in which everything has to be well again."""


@dataclass
class Ground:
    """What is hurt: the service, its Valkey, two workers beside its own, and a directory for whatever is made."""

    up: Up
    valkey: OwnValkey
    workers: list[Worker]
    environment: dict[str, str]
    directory: Path


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; times in seconds."""

    fault: str
    what: str
    requests: int
    events: int
    errors: dict[str, int]
    lasted: float
    recovery: float
    lost: int
    duplicates: int
    phantom: int
    half_made: int
    """Environments of live projects without their schema."""


Fault = Callable[[Ground], None]
FAULTS: dict[str, tuple[str, Fault]] = {
    "F1": ("a web worker killed, three times", lambda on: inject.kill_web_workers(on.up)),
    "F3 F4": ("three workers killed in turn", lambda on: inject.kill_workers(on.up, on.workers)),
    "F5": ("Valkey emptied, three times", lambda on: inject.empty_valkey(on.valkey)),
    "F6": ("Valkey killed, 3 s down, back empty", lambda on: inject.restart_valkey(on.valkey)),
    "F7": ("Valkey frozen for 3 s", lambda on: inject.freeze_valkey(on.valkey)),
    "F8": ("PostgreSQL crashed and restarted", lambda on: inject.restart_postgres(on.up)),
    "F9": ("all connections terminated, three times", lambda on: inject.terminate_connections(on.up)),
    "frozen": ("PostgreSQL frozen for 2 s", lambda on: inject.freeze_postgres(on.up)),
    "F20": ("the web replaced by a rolling restart", lambda on: inject.reload_web(on.up)),
    "F21": ("the next release migrates", lambda on: _migrate(on)),
    "F22": ("one worker 10 min fast, one 10 min slow, no other", lambda on: _without_the_right_workers(on)),
    "F23": ("web and worker beside it with a full disk for the log", lambda on: _full_log(on)),
    "F24": ("the worker with beat stopped for 6 s", lambda on: _without_beat(on)),
}


def _migrate(on: Ground) -> None:
    inject.migrate(on.up, inject.next_release(on.directory), on.environment)


@contextlib.contextmanager
def _shifted_workers(on: Ground) -> Iterator[None]:
    """Two workers with wrong clocks, who have begun to work."""
    made = []
    try:
        for seconds in (600, -600):
            log = str(on.directory / f"shifted{seconds}.log")
            made.append(Worker(on.up, on.environment | inject.shifted(seconds), log=log))
        for each in made:
            wait_for("it works", lambda: "ready." in each.said(), 60, every=0.1)  # noqa: B023
        yield
        for each in made:
            each.stop()
    finally:
        for each in made:
            each.kill()


def _without_the_right_workers(on: Ground) -> None:
    """No process is killed or stalled between sending and recording: duplicates would be caused by the clocks."""
    for worker in on.workers:
        worker.stop()
    with inject.without_the_worker_of(on.up):
        time.sleep(6)
    for worker in on.workers:
        worker.start()


def _without_beat(on: Ground) -> None:
    with inject.without_the_worker_of(on.up):
        time.sleep(6)


def _full_log(on: Ground) -> None:
    """The load goes to the service as ever; what is beside it answers and works without a log."""
    token = sign_in(on.up)
    full = Worker(on.up, on.environment, log="/dev/full")
    try:
        with inject.another_web(on.up, on.environment, log="/dev/full") as other, Load(other, token, clients=2) as load:
            time.sleep(4)
        assert not [one for one in load.outcomes if one.status not in FINE], load.counts()
        assert full.process.poll() is None
    finally:
        full.kill()


def try_out(on: Ground, fault: str, writes: int) -> Line:
    what, hurt = FAULTS[fault]
    seconds = 8.0
    with Receiver() as receiver, _shifted_workers(on) if fault == "F22" else contextlib.nullcontext():
        token = sign_in(on.up)
        name = f"{fault.split()[0]}-{time.monotonic_ns() % 10**6}"
        with Load(on.up, token, clients=2) as load, Storm(on.up, receiver, writes, seconds, name) as storm:
            time.sleep(1.0)
            hurt(on)
            over = time.monotonic()
            time.sleep(AFTER)
        if fault == "F21":
            inject.forget_next_release(on.up)
        tally = storm.settle(60)
    outcomes = [*load.outcomes, *storm.outcomes]
    errors = [one for one in outcomes if not is_fine(one)]
    return Line(
        fault=fault,
        what=what,
        requests=len(outcomes),
        events=tally.committed,
        errors=dict(Counter(f"{one.status} {one.code}" if one.status else str(one.error) for one in errors)),
        lasted=max(one.at + one.seconds for one in errors) - min(one.at for one in errors) if errors else 0.0,
        recovery=max(0.0, max((one.at + one.seconds for one in errors), default=over) - over),
        lost=tally.lost,
        duplicates=tally.duplicates,
        phantom=tally.phantom,
        half_made=len(environments_without_schema(on.up)),
    )


def is_fine(one: Outcome) -> bool:
    """2xx; a 404 where an earlier try of the same deletion, and a 409 where that of the same insert, had done it."""
    return one.status in FINE or (one.what, one.status) in {("delete again", 404), ("write", 409)}


HEAD = (
    "| fault | | requests | events | errors | for, s | recovery, s | lost | duplicate | phantom |\n"
    "|---|---|--:|--:|---|--:|--:|--:|--:|--:|"
)


def shown(line: Line) -> str:
    errors = ", ".join(f"{count} × {kind}" for kind, count in sorted(line.errors.items())) or "none"
    lost = f"{line.lost}" + (f" ({line.half_made} half made)" if line.half_made else "")
    return (
        f"| {line.fault} | {line.what} | {line.requests:,} | {line.events:,} | {errors} | {line.lasted:.1f}"
        f" | {line.recovery:.1f} | {lost} | {line.duplicates} | {line.phantom} |"
    )


CHANGES_HEAD = (
    "| live changes during | writes | streams opened | events | lost | duplicate | with another id | unauthorised | out of order |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def shown_changes(what: str, found: Result) -> str:
    return (
        f"| {what} | {found.writes:,} | {found.opened:,} | {found.events:,} | {found.lost} | {found.duplicates:,}"
        f" | {found.renamed} | {found.unauthorized} | {found.out_of_order} |"
    )


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        valkey = OwnValkey(directory / "valkey")
        environment = {
            **SETTINGS,
            "REDIS_URL": valkey.layout.redis_url(),
            "RATE_LIMIT_FACTOR": "1000",
            "JOB_SECONDS": "1",
        }
        up = start_up(directory / "data", environment=environment)
        workers: list[Worker] = []
        try:
            workers += [Worker(up, environment) for _ in range(2)]
            yield Ground(up, valkey, workers, environment, directory)
        finally:
            for worker in workers:
                worker.kill()
            up.stop()
            valkey.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument(
        "--changes", nargs="*", choices=list(HARMS), default=list(HARMS), metavar="FAULT", help="under live changes"
    )
    parser.add_argument(
        "--changes-writes", type=int, default=10_000, help="rows written under live changes (default %(default)s)"
    )
    parser.add_argument("--streams", type=int, default=50, help="of live changes (default %(default)s)")
    parser.add_argument("--writes", type=int, default=800, help="rows written under each fault (default %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the lines there")
    options = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    lines = []
    with ground() as on:
        print(f"{platform.platform()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.0f} at the start\n")
        print(HEAD)
        for fault in options.only:
            if fault == "F22" and not inject.FAKETIME.exists():
                print(f"| {fault} | not tried: there is no libfaketime on this machine | | | | | | | | |")
                continue
            lines.append(try_out(on, fault, options.writes))
            print(shown(lines[-1]), flush=True)
        print(f"\n{CHANGES_HEAD}")
        changes = {}
        for what in options.changes:
            changes[what] = follow(on.up, on.valkey, what, writes=options.changes_writes, streams=options.streams)
            print(shown_changes(what, changes[what]), flush=True)
    if options.json:
        found = {
            "faults": [asdict(line) for line in lines],
            "changes": {k: asdict(each) for k, each in changes.items()},
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
