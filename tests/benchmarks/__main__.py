"""The whole service under measurement: `python -m tests.benchmarks [--seconds 3] [--workers 2] [--only WORD] [--json FILE]`.

Starts it as `manage.py up` does, fills it (1,000 users, 1,000 lists, 100,000 tasks), runs each workload with 16 clients,
and prints one table: requests a second, the share of the bare view's on the same server in the same run, p50, p99, CPU of
each part for one request, and lower bounds for comparison. By hand, on a quiet machine: `others` says how
much of it other processes used. docs/explanation/performance.md has the results and their background.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import httpx

from tests.benchmarks import rows
from tests.benchmarks.load_generator import Load, hammer
from tests.benchmarks.measured_service import CLIENTS, HEAD, Figures, Stage, line, stage
from tests.benchmarks.rows import request
from tests.support.service import wait_for

PASSWORD = "correct horse battery staple"
FUNCTION = "export default async (input) => ({ sum: input.a + input.b });"
ARRIVALS = 100
FASTEST_REFRESH = 4_000
"""An upper bound in 1/s: each request needs a token of its own."""


def sign_in(on: Stage, seconds: float) -> Iterator[Figures]:
    """Floor: the hash alone, on every processor, in processes that do nothing else."""
    from django.contrib.auth.hashers import make_password

    from accounts.models import User

    hashed = make_password(PASSWORD)
    users = User.objects.filter(pk__in=on.setting.owners)
    users.update(password=hashed)
    environment = on.setting.environment.environment_id
    asked = [
        request(on.port, "POST", "/v1/auth/token", None,
                {"grant_type": "password", "email": email, "password": PASSWORD}, {"X-Environment": environment})
        for email in users.values_list("email", flat=True)
    ]  # fmt: skip
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        verified = sum(pool.starmap(_verify, [(hashed, seconds)] * (os.cpu_count() or 1)))
    # Two hashes at once in each process, the others wait their turn: 16 clients of 2 workers are four deep.
    yield on.measure("sign in", asked, max(seconds, 3), floor=verified / seconds)


def refresh(on: Stage, seconds: float) -> Iterator[Figures]:
    """Each token is sent once: a repetition is more work."""
    from django.db.models.functions import Now

    from accounts.models import Session
    from accounts.tokens import refresh_tokens
    from accounts.users.sessions import LIFETIME

    tokens = [refresh_tokens.first() for _ in range(int(FASTEST_REFRESH * (seconds + 1)))]
    owners = on.setting.owners
    made = (
        Session(
            user_id=owners[number % len(owners)],
            environment_id=on.setting.environment.environment_id,
            family_hash=token.family_hash,
            refresh_hash=token.hash,
            expires_at=Now() + LIFETIME,
        )
        for number, token in enumerate(tokens)
    )
    Session.objects.bulk_create(made, batch_size=1_000)
    asked = [
        request(on.port, "POST", "/v1/auth/token", None, {"grant_type": "refresh_token", "refresh_token": token.text})
        for token in tokens
    ]
    hammer(on.port, asked[:FASTEST_REFRESH], seconds=1, connections=CLIENTS)
    yield on.measure("refresh a token", asked[FASTEST_REFRESH:], seconds, warm=0)


def _verify(hashed: str, seconds: float) -> int:
    from django.contrib.auth.hashers import check_password

    check_password(PASSWORD, hashed)
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        assert check_password(PASSWORD, hashed)
        count += 1
    return count


def invoke(on: Stage, seconds: float) -> Iterator[Figures]:
    """A function that adds two numbers, warm, by a key; then queued, until the last run has ended."""
    from django.db import connections

    from functions.models import Run
    from tests.projects.conftest import key_for

    environment = on.setting.environment
    key = key_for(environment.environment_id, "functions:deploy", "functions:invoke", "functions:read")
    headers = {"Authorization": f"Bearer {key}"}
    deployed = httpx.put(f"{on.up.base_url}/v1/functions/add", json={"source": FUNCTION}, headers=headers, timeout=60)
    assert deployed.status_code in (200, 201), deployed.text
    call = {"input": {"a": 2, "b": 3}}
    path = "/v1/functions/add/invoke"
    yield on.measure("invoke, warm", [request(on.port, "POST", path, key, call)], seconds)

    runs = Run.objects.using(environment.cluster).filter(environment_id=environment.environment_id)
    ended = runs.filter(status="succeeded")
    wait_for("no run is under way", lambda: not runs.filter(status="running").exists(), 60, every=0.2)
    before, counted, began = on.cost(), ended.count(), time.perf_counter()
    queued = on.measure(
        "invoke, queued", [request(on.port, "POST", path, key, {**call, "async": True})], seconds, warm=0.2
    )
    yield queued
    wait_for("all runs have ended", lambda: not runs.filter(status="running").exists(), 180, every=0.2)
    took = time.perf_counter() - began
    done = ended.count() - counted
    failed = runs.filter(status="failed").count()
    load = Load(done, took, 0, 0, {}, 0)
    yield on.add("… and executed", load, on.cost().since(before), note=f"{failed} failed" if failed else "")
    connections.close_all()


def webhook(on: Stage, seconds: float) -> Iterator[Figures]:
    """From a row's insert to the receiver, signed: as many as 16 clients write, until the last has arrived; and one at a
    time, from the answer of the insert to the arrival."""
    from tests.benchmarks.webhooks import Sink
    from tests.projects.conftest import key_for

    environment = on.setting.environment
    key = key_for(environment.environment_id, "webhooks:write", "webhooks:read", "rows:read", "rows:write")
    owner = on.setting.owners[0]
    with (
        closing(Sink()) as sink,
        httpx.Client(base_url=on.up.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as client,
    ):
        body = {"name": "New", "owner_id": owner}
        asked = [request(on.port, "POST", "/v1/rows/lists", key, body)]
        yield on.measure("the same insert, without a webhook", asked, seconds)
        listed = _listed(on)
        made = client.post("/v1/webhooks", json={"url": sink.url, "events": ["lists.insert"]})
        assert made.status_code == 201, made.text
        before, began = on.cost(), time.monotonic()
        inserts = on.measure("insert, with a webhook", asked, seconds, warm=0.2)
        yield inserts
        sent = _listed(on) - listed
        wait_for("all events have arrived", lambda: len(sink.look()) >= sent, 180, every=0.1)
        spent, took = on.cost().since(before), max(sink.came.values()) - began
        delays = []
        for _ in range(ARRIVALS):
            answer = client.post("/v1/rows/lists", json=body)
            answered, row = time.monotonic(), answer.json()["id"]
            wait_for("it arrives", lambda: row in sink.look(), 30, every=0.002)  # noqa: B023
            delays.append((sink.came[row] - answered) * 1000)
            time.sleep(0.05)
        delays.sort()
        load = Load(sent, took, statistics.median(delays), delays[int(ARRIVALS * 0.99)], {}, 0)
        yield on.add("… and delivered", load, spent, note="p50, p99: one at a time, from the answer to the arrival")
        assert client.delete(f"/v1/webhooks/{made.json()['id']}").status_code == 204


def _listed(on: Stage) -> int:
    from django.db import connections

    from platform_site.postgres.row_access import row_access

    with row_access(), connections[on.setting.environment.cluster].cursor() as cursor:
        cursor.execute(f'SELECT count(*) FROM "{on.setting.environment.environment_id}".lists')
        return int(cursor.fetchone()[0])


PARTS: dict[str, Callable[[Stage, float], Iterator[Figures]]] = {
    "rows": rows.workloads,
    "sign-in": sign_in,
    "refresh": refresh,
    "invoke": invoke,
    "webhook": webhook,
}


REPLICAS = "replicas"
"""Another service in another process, since replicas are named at the start."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each workload (default %(default)g)")
    parser.add_argument("--workers", type=int, default=2, help="web processes (default %(default)s)")
    parts = [*PARTS, REPLICAS]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART",
                        help=f"of {', '.join(parts)}; rows come first, for the bare view's rate is theirs")  # fmt: skip
    parser.add_argument("--json", type=Path, help="also write the results there")
    options = parser.parse_args()
    if options.only != [REPLICAS]:
        _run(options)
    if REPLICAS in options.only:
        print("\nWith a read replica on the same machine; pg µs is the primary's", flush=True)
        command = [sys.executable, "-m", "tests.benchmarks.replicas", str(options.seconds), str(options.workers)]
        subprocess.run(command, check=True)


def _run(options: argparse.Namespace) -> None:
    with stage(options.workers) as on:
        print(f"{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()}")
        print(f"{options.workers} web processes, {CLIENTS} clients, {options.seconds:g} s each")
        print(
            f"first answer {on.up.ready_after:.1f} s after the start; idle, the whole stack holds {on.idle_mb:.0f} MB\n"
        )
        print(HEAD)
        for name in PARTS:
            if name in options.only:
                for made in PARTS[name](on, options.seconds):
                    print(line(made, on.figures[0].per_second), flush=True)
        if options.json:
            facts = {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "machine": platform.platform(),
                "processors": os.cpu_count(),
                "python": platform.python_version(),
                "workers": options.workers,
                "clients": CLIENTS,
                "seconds": options.seconds,
                "first_answer_s": round(on.up.ready_after, 2),
                "idle_mb": round(on.idle_mb),
                "figures": [asdict(one) for one in on.figures],
            }
            options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
