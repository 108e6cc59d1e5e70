"""What the console costs over a long history: `python -m tests.benchmarks.dashboard [DELIVERIES] [RUNS]`. By hand.

The service as `manage.py up` runs it, two web workers; a region filled by `generate_series` with 1,000,000 events,
deliveries and attempts of 200 webhooks over 29 days and 1,000,000 runs of 50 functions over 7. Then a look of the worker
(`platform_site.console.rollups`), first over a whole day, then over what is new; and each page 40 times over HTTP by one
member of staff. Beside the times: how many statements a page sends, the slowest of them, and which large table its plan
reads from end to end (none should). Results: docs/explanation/performance.md, "Console".
"""

import contextlib
import logging
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout, region_database
from tests.support.service import Up, start_up

REGION = "us-east-1"
WEBHOOKS, FUNCTIONS = 200, 50
ASKED = 40
ASKED_MS = 300
"""The most that the dashboard may take."""
LARGE = {"webhooks_delivery", "webhooks_attempt", "functions_run", "rows_outboxevent"}

_WEBHOOKS = """
INSERT INTO platform.webhooks_webhook (id, environment_id, url, host, events, ordering, description, enabled, sealed_secret)
SELECT 'wh_' || lpad(n::text, 26, '0'), %(environment)s, 'https://example.com/' || n, 'example.com:443', '{bench.insert}',
       'none', '', n %% 10 > 0, 'x'
  FROM generate_series(1, %(webhooks)s::bigint) n
"""
_EVENTS = """
INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, subject, data, request_id, depth, created_at, relayed_at)
SELECT 'evt_' || lpad(n::text, 26, '0'), %(environment)s, 'tasks.insert', 'tasks/tsk_' || lpad((n %% 100000)::text, 26, '0'),
       '{}', 'req_' || lpad(n::text, 26, '0'), 0, now() - n * %(step)s, now() - n * %(step)s
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_DELIVERIES = """
INSERT INTO platform.webhooks_delivery (id, environment_id, webhook_id, event_id, event_type, subject, sequence, depth, body,
       status, outcome, attempts, schedule_from, next_attempt_at, last_attempt_at, has_succeeded, created_at)
SELECT 'dlv_' || lpad(n::text, 26, '0'), %(environment)s, 'wh_' || lpad((1 + n %% %(webhooks)s)::text, 26, '0'),
       'evt_' || lpad(n::text, 26, '0'), 'tasks.insert', 'tasks/tsk_' || lpad((n %% 100000)::text, 26, '0'), n, 0,
       repeat('x', 400),
       CASE WHEN n %% %(webhooks)s %% 10 = 9 THEN 'held' WHEN n %% 1000 = 1 THEN 'pending' WHEN n %% 33 = 2 THEN 'exhausted'
            ELSE 'delivered' END,
       '200', 1, 0, CASE WHEN n %% 1000 = 1 THEN now() + interval '1 day' END, now() - n * %(step)s, n %% 33 <> 2,
       now() - n * %(step)s
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_ATTEMPTS = """
INSERT INTO platform.webhooks_attempt (delivery_id, number, at, duration_ms, response_status, response_headers, response_body)
SELECT 'dlv_' || lpad(n::text, 26, '0'), 1, now() - n * %(step)s, n %% 500, CASE WHEN n %% 33 = 2 THEN 500 ELSE 200 END, '{}',
       repeat('y', 100)
  FROM generate_series(%(last)s::bigint, %(first)s::bigint, -1) n
"""
_FUNCTIONS = """
INSERT INTO platform.functions_function (id, environment_id, name, active_version, last_version, timeout_ms, memory_mb,
       allowed_hosts, attempts)
SELECT 'fn_' || lpad(n::text, 26, '0'), environment_id, 'bench-' || n, active_version, last_version, timeout_ms, memory_mb,
       allowed_hosts, attempts
  FROM generate_series(1, %(functions)s::bigint) n,
       (SELECT * FROM platform.functions_function WHERE environment_id = %(environment)s LIMIT 1) AS one
"""
_VERSIONS = """
INSERT INTO platform.functions_version (function_id, number, source, source_hash, author_kind, created_at)
SELECT 'fn_' || lpad(n::text, 26, '0'), 1, 'export default () => 1', '', 'system', now()
  FROM generate_series(1, %(functions)s::bigint) n
"""
_RUNS = """
INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async, input, output, error,
       logs, sandbox_layers, caller_kind, caller_id, request_id, depth, attempts, created_at, started_at, ended_at, duration_ms)
SELECT 'run_' || lpad(n::text, 26, '0'), %(environment)s, 'fn_' || lpad((1 + n %% %(functions)s)::text, 26, '0'), 1,
       CASE WHEN n %% 50 = 3 THEN 'failed' ELSE 'succeeded' END, 'ended', false, '{}', '{}',
       CASE WHEN n %% 50 = 3 THEN '{"name": "Error", "message": "no", "reason": "user_error"}'::jsonb END, '[]', '{}', 'key',
       'key_bench', 'req_' || lpad(n::text, 26, '0'), 0, 1, now() - n * %(step)s, now() - n * %(step)s,
       now() - n * %(step)s, n %% 900
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""


@dataclass
class Page:
    """One line of the table. Times in ms, as the client saw them."""

    name: str
    path: str
    took: list[float] = field(default_factory=list)
    statements: int = 0
    slowest: float = 0.0
    """ms of the slowest statement by EXPLAIN ANALYZE, and what it reads."""
    plan: str = ""
    scanned: set[str] = field(default_factory=set)

    def at(self, share: float) -> float:
        return sorted(self.took)[min(len(self.took) - 1, int(share * len(self.took)))]


@contextlib.contextmanager
def console() -> Iterator[Up]:
    """The service, and Django of this process on its databases. Once in a process."""
    directory = Path(tempfile.mkdtemp(prefix="bp-bench-"))
    environment = {"RATE_LIMIT_FACTOR": "1000000"}
    up = start_up(directory / "data", "--workers", "2", environment=environment, seconds=300)
    try:
        os.environ |= environment | {"DATA_DIR": str(up.data_dir), "BASE_URL": up.base_url,
                                     "DJANGO_SETTINGS_MODULE": "platform_site.settings"}  # fmt: skip
        import django

        django.setup()
        logging.getLogger("httpx").setLevel(logging.WARNING)
        yield up
    finally:
        up.stop()
        shutil.rmtree(directory, ignore_errors=True)


def fill(up: Up, deliveries: int, runs: int) -> None:
    begun = time.monotonic()
    facts = {"environment": up.facts["environments"]["production"], "webhooks": WEBHOOKS, "functions": FUNCTIONS}
    layout = Layout(up.data_dir)
    with embedded_postgres.connect(layout, region_database(REGION)) as connection:
        connection.autocommit = True  # each checkpoint makes the next write of every page a whole one
        connection.execute("ALTER SYSTEM SET max_wal_size = '16GB'")
        connection.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
        connection.execute("SELECT pg_reload_conf()")
        for statement in (_WEBHOOKS, _FUNCTIONS, _VERSIONS):
            connection.execute(statement, facts)

    def insert(statements: tuple[str, ...], count: int, days: float) -> None:
        step = f"{days * 86_400 / count} seconds"
        with embedded_postgres.connect(layout, region_database(REGION)) as connection:
            connection.execute("SET session_replication_role = replica")  # foreign keys are right by construction
            for first in reversed(range(1, count + 1, 100_000)):  # the oldest first, as a platform is filled
                span = {"first": first, "last": min(count, first + 99_999), "step": step}
                for statement in statements:
                    connection.execute(statement.replace("%(step)s", "%(step)s::interval"), facts | span)

    with ThreadPoolExecutor() as pool:
        history = ((_EVENTS, _ATTEMPTS), deliveries, 29.0), ((_DELIVERIES,), deliveries, 29.0), ((_RUNS,), runs, 6.9)
        for done in [pool.submit(insert, *each) for each in history]:
            done.result()
    with embedded_postgres.connect(layout, region_database(REGION)) as connection:
        connection.autocommit = True
        for table in (*LARGE, "webhooks_webhook", "functions_function"):
            connection.execute(f"VACUUM ANALYZE platform.{table}")
    print(f"filled in {time.monotonic() - begun:.0f} s", flush=True)
    from platform_site.models import FunctionMetric, RegionMetric

    # The worker has summed up the empty day already, and looks back no further than its last look.
    for figures in (RegionMetric, FunctionMetric):
        figures.objects.all().delete()


def timed(what: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    what()
    return (time.perf_counter() - begun) * 1000


def look() -> None:
    """What the worker does every 15 seconds, and once a minute."""
    from platform_site.console import rollups

    print(f"a look over a whole day: {timed(lambda: rollups.measure_region(REGION)):,.0f} ms")
    again = [timed(lambda: rollups.measure_region(REGION)) for _ in range(10)]
    print(f"the next: p50 {statistics.median(again):.0f} ms, at most {max(again):.0f} ms")
    print(f"projects, environments, accounts, keys: {timed(rollups.measure_control):.0f} ms")


def signed_in(up: Up) -> httpx.Client:
    client = httpx.Client(base_url=up.base_url, timeout=60, follow_redirects=True)
    form = client.get("/admin/login/").text
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token is not None
    credentials = {"username": up.facts["admin"]["email"], "password": up.facts["admin"]["password"]}
    answer = client.post("/admin/login/", data=credentials | {"csrfmiddlewaretoken": token[1], "next": "/admin/"},
                         headers={"Origin": up.base_url, "Referer": f"{up.base_url}/admin/login/"})  # fmt: skip
    assert answer.url.path == "/admin/", answer.text[:2000]
    return client


def pages(up: Up) -> list[Page]:
    environment = up.facts["environments"]["production"]
    one = lambda prefix, number: f"{prefix}_{number:026d}"  # noqa: E731
    quoted = lambda text: text.replace("_", "_5F")  # noqa: E731
    return [
        Page("dashboard", "/admin/"),
        Page("timeline of an event", f"/admin/timeline/?q={one('evt', 77_777)}"),
        Page("timeline of a request", f"/admin/timeline/?q={one('req', 77_777)}"),
        Page("timeline of a webhook", f"/admin/timeline/?q={one('wh', 7)}"),
        Page("timeline of a function", f"/admin/timeline/?q={one('fn', 7)}"),
        Page("timeline of an environment", f"/admin/timeline/?q={environment}"),
        Page("what waits", f"/admin/waiting/{REGION}/"),
        Page("one project", f"/admin/projects/project/{quoted(up.facts['project_id'])}/change/"),
    ]


def time_pages(client: httpx.Client, found: list[Page]) -> None:
    for page in found:
        for _ in range(3):
            answer = client.get(page.path)
            assert answer.status_code == 200, (page.path, answer.status_code)
        page.took = [timed(lambda: client.get(page.path)) for _ in range(ASKED)]  # noqa: B023 - at once


def explain_pages(up: Up, found: list[Page]) -> None:
    """The statements of each page, in this process; and the plan of the slowest."""
    from django.db import connections
    from django.test import Client

    from accounts.models import User

    browser = Client(headers={"Host": "127.0.0.1"})
    browser.force_login(User.objects.in_pool(None).get(email=up.facts["admin"]["email"]))
    for page in found:
        browser.get(page.path)
        said: list[tuple[float, str, str, Any]] = []
        with contextlib.ExitStack() as stack:
            for alias in connections:

                def listen(execute: Any, sql: Any, params: Any, many: bool, context: Any, alias: str = alias) -> Any:
                    begun = time.perf_counter()
                    try:
                        return execute(sql, params, many, context)
                    finally:
                        said.append((time.perf_counter() - begun, alias, sql, params))  # noqa: B023 - at once

                stack.enter_context(connections[alias].execute_wrapper(listen))
            assert browser.get(page.path).status_code == 200, page.path
        page.statements = len(said)
        readable = [each for each in said if str(each[2]).lstrip().upper().startswith(("SELECT", "WITH"))]
        for _, alias, sql, params in sorted(readable, key=lambda each: -each[0])[:3]:
            with connections[alias].cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
                plan = cursor.fetchone()[0][0]
            if alias == REGION:  # the others are empty, and an empty table is read whole
                page.scanned |= {each["Relation Name"] for each in nodes(plan["Plan"])
                             if each["Node Type"] == "Seq Scan" and each["Relation Name"] in LARGE}  # fmt: skip
            if plan["Execution Time"] > page.slowest:
                page.slowest, page.plan = plan["Execution Time"], told(plan["Plan"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def told(plan: dict[str, Any]) -> str:
    """The costliest leaf: `Index Scan delivery_of_webhook`."""
    leaves = [each for each in nodes(plan) if "Plans" not in each]
    worst = max(leaves, key=lambda each: each["Actual Total Time"] * each["Actual Loops"])
    return f"{worst['Node Type']} {worst.get('Index Name') or worst.get('Relation Name') or ''}".strip()


def table(found: list[Page]) -> str:
    lines = ["| page | p50 ms | p95 ms | statements | slowest ms | its costliest part |", "|---|--:|--:|--:|--:|---|"]
    for page in found:
        scanned = f" **reads all of {', '.join(sorted(page.scanned))}**" if page.scanned else ""
        lines.append(f"| {page.name} | {page.at(0.5):.0f} | {page.at(0.95):.0f} | {page.statements} | {page.slowest:.1f} | "
                     f"{page.plan}{scanned} |")  # fmt: skip
    return "\n".join(lines)


def main(deliveries: int = 1_000_000, runs: int = 1_000_000) -> None:
    with console() as up:
        fill(up, deliveries, runs)
        look()
        found = pages(up)
        with contextlib.closing(signed_in(up)) as client:
            time_pages(client, found)
        explain_pages(up, found)
        print(f"load of the machine: {os.getloadavg()[0]:.1f}")
        print(table(found))
        dashboard = found[0]
        print(f"the dashboard's p95 is {dashboard.at(0.95):.0f} ms; asked: under {ASKED_MS}")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
