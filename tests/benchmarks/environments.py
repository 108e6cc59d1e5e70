"""Very many environments on one machine: `python -m tests.benchmarks.environments [--count 10000] [--every-table]`. By hand.

Makes 10,000 environments of ten tables each in one region (real tables: 100,000, with as many keys), starts the service
with one web process as `manage.py up` does, and asks for rows of each environment once, in random order, over HTTP and
with the environment's own key. Prints what the web process, PostgreSQL's backends of the region and the worker hold at
first, when the cache of 200 is full, and on the way to the last one; the web process' CPU for a request; and how long
the first request to each environment took. `--every-table` asks for all ten tables of each; only the first request to
it is timed. Some 5 minutes and 5 GB to make them all, and 5 more to ask. Results: docs/explanation/performance.md.
"""

import argparse
import contextlib
import http.client
import json
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from platform_site.embedded.data_dir import region_database
from tests.benchmarks.rows import OWN
from tests.support.service import Up, start_up

REGION = "us-east-1"
TABLES, COLUMNS = 10, 12
_PER_PROJECT = 2
_PER_CONNECTION = 250
"""How many environments one connection makes: what it remembers of their tables goes with it."""
_AT_ONCE = 2
STEPS = (200, 1_000, 3_000, 10_000)

DOCUMENT: dict[str, Any] = {
    "tables": {
        f"table_{number}": {
            "columns": {
                **{f"text_{n}": {"type": "text", "null": True} for n in range(COLUMNS - 1)},
                "owner": {"type": "user"},
            },
            "rules": {"user": {"read": {"where": OWN}}},
        }
        for number in range(TABLES)
    }
}


# ── Making them ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Known:
    """An environment, and the secret of a key of it."""

    id: str
    key: str


def build(up: Up, count: int) -> list[Known]:
    """Records, versions and real tables of `count` environments. Nothing of it is flushed to the disk on the way."""
    with _unflushed(up):
        known = _records(count)
        began = time.monotonic()
        statements = _statements()
        parts = [known[at : at + _PER_CONNECTION] for at in range(0, count, _PER_CONNECTION)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for number, _ in enumerate(pool.map(lambda part: _make(part, statements), parts), 1):
                if number % 4 == 0:
                    print(f"  {number * _PER_CONNECTION:,} made, {time.monotonic() - began:.0f} s", flush=True)
    return known


@contextlib.contextmanager
def _unflushed(up: Up) -> Iterator[None]:
    """A separate server without fsync: 100,000 tables are as many files, and none of them is kept."""
    from platform_site.embedded import postgres as embedded_postgres
    from platform_site.embedded.data_dir import Layout

    with embedded_postgres.connect(Layout(up.data_dir)) as connection:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(f"ALTER SYSTEM SET {name} = off")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            for name in ("fsync", "full_page_writes", "synchronous_commit"):
                connection.execute(f"ALTER SYSTEM RESET {name}")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CHECKPOINT")


def _records(count: int) -> list[Known]:
    """What the control database and the region know of them: projects of two environments, a key and a version each."""
    from accounts import audit
    from accounts.keys import server_keys
    from accounts.models import ServerKey
    from accounts.users import service as user_service
    from platform_site.identity import ids
    from projects.models import Environment, Member, Project
    from rows.models import CurrentVersion, SchemaVersion

    owner = user_service.create_user(
        pool_id=None, email="bench@example.com", password=None, name="B", actor=audit.SYSTEM
    )
    projects = [
        Project(name=f"Project {n}", region=REGION, cluster=REGION, plan="team", created_by=owner)
        for n in range(-(-count // _PER_PROJECT))
    ]
    Project.objects.bulk_create(projects, 1_000)
    Member.objects.bulk_create([Member(project=one, user=owner, role=Member.Role.OWNER) for one in projects], 1_000)
    environments = []
    for number in range(count):
        made = ids.new("env")
        project = projects[number // _PER_PROJECT]
        name = ("production", "development")[number % _PER_PROJECT]
        environments.append(Environment(id=made, pool_id=made, project=project, name=name, status="ready"))
    Environment.objects.bulk_create(environments, 1_000)
    known = [Known(environment.pk, server_keys.make()) for environment in environments]
    ServerKey.objects.bulk_create(
        [
            ServerKey(
                name="bench",
                environment_id=one.id,
                created_by=owner,
                prefix=server_keys.shown(one.key),
                secret_hash=server_keys.digest(one.key),
                scopes=["rows:read"],
            )
            for one in known
        ],
        1_000,
    )
    text = json.dumps(DOCUMENT)
    SchemaVersion.objects.using(REGION).bulk_create(
        [
            SchemaVersion(environment_id=one.id, version=1, document_text=text, source_digest="", author_kind="system")
            for one in known
        ],
        1_000,
    )
    CurrentVersion.objects.using(REGION).bulk_create(
        [CurrentVersion(environment_id=one.id, version=1) for one in known], 1_000
    )
    return known


def _statements() -> str:
    """The SQL that makes the tables, as the service itself would run it; found out on a schema that is rolled back."""
    from django.db import connections, transaction

    from rows.migrate import apply
    from rows.schema.parser import parse

    with transaction.atomic(using=REGION), connections[REGION].cursor() as cursor:
        cursor.execute("CREATE SCHEMA twin_of_all")
        with apply.use_schema(REGION, "twin_of_all"):
            made = apply.build(REGION, parse(DOCUMENT))
        transaction.set_rollback(True, using=REGION)
    return ";".join(text for operation in made.operations for text in operation.sql)


def _make(part: Sequence[Known], statements: str) -> None:
    import psycopg
    from django.db import connections

    with psycopg.connect(**_plain(connections[REGION].get_connection_params()), autocommit=True) as connection:
        for one in part:
            connection.execute(
                f'BEGIN; CREATE SCHEMA "{one.id}"; SET LOCAL search_path = "{one.id}"; {statements}; COMMIT'
            )


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name in ("dbname", "user", "password", "host", "port")}


# ── What they cost ──────────────────────────────────────────────────────────────────────────────────────────────────


def anonymous_mb(processes: Sequence[psutil.Process]) -> float:
    """Megabytes that the processes hold for themselves: what they read of PostgreSQL's shared buffers is not theirs."""
    total = 0
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    total += int(line.split()[1])
    return total / 1024


def resident_mb(process: psutil.Process) -> float:
    """VmRSS."""
    return float(process.memory_info().rss) / 2**20


def backends(up: Up) -> list[psutil.Process]:
    """PostgreSQL's processes that serve a connection to the region."""
    return up.named(f"postgres: platform {region_database(REGION)}")


def cpu_ms(process: psutil.Process) -> float:
    """Of a processor so far: what a busy machine cannot stretch."""
    spent = process.cpu_times()
    return float(spent.user + spent.system) * 1000


def say(up: Up, asked: int, times: Sequence[float], cpu: float = 0.0) -> None:
    [web] = up.web_workers()
    serving = backends(up)
    largest = max((anonymous_mb([one]) for one in serving), default=0.0)
    worker = anonymous_mb(up.named("platform-worker", parent=up.process.pid))
    late = sorted(times)
    figures = ""
    if late:
        figures = f"{cpu:8.1f}{statistics.median(late):9.1f}{late[int(len(late) * 0.99)]:8.1f}{late[-1]:8.1f}"
    print(
        f"{asked:8,}{resident_mb(web):10.0f}{anonymous_mb([web]):10.0f}{len(serving):10}{largest:10.0f}"
        f"{anonymous_mb(serving):10.0f}{worker:9.0f}{figures}",
        flush=True,
    )


HEAD = (
    f"{'asked':>8}{'web MB':>10}{'own MB':>10}{'backends':>10}{'largest':>10}{'all MB':>10}{'worker':>9}"
    f"{'CPU ms':>8}{'p50 ms':>9}{'p99 ms':>8}{'worst':>8}"
)


def ask(up: Up, known: Sequence[Known], *, every_table: bool) -> None:
    """Each environment in turn, in random order, one request at a time. The times are of the first to each."""
    client = http.client.HTTPConnection("127.0.0.1", urlsplit(up.base_url).port or 0, timeout=30)

    def listed(one: Known, table: int) -> float:
        began = time.perf_counter()
        client.request("GET", f"/v1/rows/table_{table}", headers={"Authorization": f"Bearer {one.key}"})
        answer = client.getresponse()
        body = answer.read()
        took = (time.perf_counter() - began) * 1000
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {body[:500]!r}")
        return took

    order = random.sample(known, len(known))
    times: list[float] = []
    since, sent, [web] = 0, 0, up.web_workers()
    before = cpu_ms(web)
    print(HEAD)
    say(up, 0, times)
    for number, one in enumerate(order, 1):
        times.append(listed(one, random.randrange(TABLES)))
        sent += 1
        if every_table:
            for table in range(TABLES):
                listed(one, table)
            sent += TABLES
        if number in STEPS or number == len(order):
            spent = cpu_ms(web)
            say(up, number, times[since:], (spent - before) / sent)
            since, sent, before = number, 0, spent
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.environments", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=10_000, help="environments (default %(default)s)")
    parser.add_argument("--every-table", action="store_true", help="ask for all tables of each, not for one")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bp-bench-"))
    environment = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings", "RATE_LIMIT_FACTOR": "1000000"}
    try:
        up = start_up(directory / "data", "--no-demo", "--workers", "1", environment=environment, seconds=300)
        try:
            os.environ |= environment | {"DATA_DIR": str(up.data_dir), "BASE_URL": up.base_url}
            import django

            django.setup()
            logging.getLogger("httpx").setLevel(logging.WARNING)
            from django.db import connections

            began = time.monotonic()
            known = build(up, options.count)
            connections.close_all()
            print(f"{options.count:,} environments of {TABLES} tables made in {time.monotonic() - began:.0f} s\n")
            ask(up, known, every_table=options.every_table)
        finally:
            up.stop(seconds=60)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
