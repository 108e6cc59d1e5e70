"""The request log: `python -m tests.benchmarks.request_log [--entries 10000000]`.

First, how long a search by request id takes among so many entries of 30 days (3 GB of disk for 10,000,000). The target
is under 50 ms. Then, what the log costs of a retrieve.

CPU time of this process, in microseconds, the smallest of several rounds: for a retrieve without the log, for recording
an entry, for writing one in a batch, and for a read that is only counted. The target is at most 3 % of a retrieve.
"""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from statistics import median
from typing import Any

from tests.benchmarks.calls import answers
from tests.benchmarks.measured_service import stage

ROUNDS, REQUESTS, WARM = 9, 500, 500
DAYS, SEARCHES = 30, 200
_FILL = """
INSERT INTO request_log_entry (at, keep_days, environment_id, request_id, method, route, table_name, status, field_codes,
       duration_ms, caller_kind, caller_id)
SELECT %(day)s::timestamptz + n * interval '86400 seconds' / %(count)s, %(keep)s,
       CASE WHEN n %% 4 = 0 THEN %(environment)s ELSE 'env_' || n %% 100 END, %(prefix)s || to_char(n, 'FM0000000000'),
       'GET', '/v1/rows/{table}', 'tasks', CASE WHEN n %% 50 = 0 THEN 404 ELSE 200 END, '{}', 1.5, 'key', 'key_1'
  FROM generate_series(0, %(count)s - 1) n
"""


def microseconds(work: Callable[[], object], times: int) -> float:
    """CPU time of one of the `times` that `work` does something."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / times * 1e6


def fill(environment: Any, entries: int) -> list[str]:
    """Entries of each of the last days; a request id of each day."""
    from django.db import connections, transaction

    from platform_site.request_log import partitions

    found, today = [], datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for back in range(DAYS - 1, -1, -1):
        day = today - timedelta(days=back)
        facts = {
            "day": day, "keep": DAYS, "environment": environment.environment_id, "count": entries // DAYS,
            "prefix": f"req_{day:%Y%m%d}",
        }  # fmt: skip
        with transaction.atomic(using=environment.cluster), connections[environment.cluster].cursor() as cursor:
            if partitions._name(DAYS, day.date()) not in partitions._existing(environment.cluster):
                partitions._create(environment.cluster, DAYS, day.date())
            cursor.execute("SET LOCAL statement_timeout = 0")
            cursor.execute(_FILL, facts)
        found.append(f"{facts['prefix']}{random.randrange(entries // DAYS // 4) * 4:010}")
    return found


def search(environment: Any, entries: int) -> None:
    from platform_site.request_log import reader

    began = time.monotonic()
    known = fill(environment, entries)
    print(f"{entries:,} entries filled in {time.monotonic() - began:.0f} s", flush=True)
    environment = replace(environment, plan="team")
    for what, wanted, count in (("one that there is", known, 1), ("one that there is not", ["req_none"], 0)):
        took = []
        for request_id in islice(cycle(wanted), SEARCHES):
            began = time.perf_counter()
            page = reader.page(environment, {"request_id": request_id}, 20, None)
            took.append((time.perf_counter() - began) * 1000)
            assert len(page["data"]) == count, request_id
        took_sorted = sorted(took)
        print(
            f"search by request id, {what:24}first {took[0]:6.1f} ms, p50 {median(took):6.1f} ms,"
            f" p99 {took_sorted[int(SEARCHES * 0.99)]:6.1f} ms, worst {took_sorted[-1]:6.1f} ms",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000)
    entries = parser.parse_args().entries
    with stage(workers=1) as on:
        from django.test import RequestFactory

        from platform_site.fastpath import routes
        from platform_site.http.requests import open_request
        from platform_site.identity.callers import Caller
        from platform_site.request_log import recording
        from platform_site.request_log.writer import Writer
        from tests.benchmarks import rows

        search(on.setting.environment, entries)
        answer, using = answers(), on.setting.environment.cluster
        asked = list(islice(cycle(rows.questions(on.setting, on.port)["retrieve"][0]), REQUESTS))

        def retrieve() -> None:
            for request in asked:
                answer(request)

        for request in islice(cycle(asked), WARM):
            answer(request)
        retrieves = min(microseconds(retrieve, REQUESTS) for _ in range(ROUNDS))

        queue = recording.queues[using] = recording.Queue()
        writer = Writer(using, queue)
        request = RequestFactory().get("/v1/rows/tasks/tas_1")
        request.resolver_match = routes.resolve(request.path)
        request.__dict__["caller"] = Caller("key", "key_1", frozenset(), environment=on.setting.environment)
        open_request()

        def record(environment_id: str, first: int) -> None:
            for _ in range(REQUESTS):
                queue.tallies[environment_id] = recording.Tally(reads=first)
                recording.record(request, "GET", 200, 0.001, None)

        environment_id = on.setting.environment.environment_id
        recorded, written, counted = [], [], []
        for _ in range(ROUNDS):
            counted.append(microseconds(lambda: record(environment_id, recording.READS_PER_SECOND), REQUESTS))
            recorded.append(microseconds(lambda: record(environment_id, 0), REQUESTS))
            written.append(microseconds(writer.write, REQUESTS))
        for what, cost in (
            ("retrieve", retrieves),
            ("an entry recorded", min(recorded)),
            ("an entry written", min(written)),
            ("a read that is only counted", min(counted)),
        ):
            print(f"{what:30}{cost:8.1f} µs{100 * cost / retrieves:8.2f} %", flush=True)


if __name__ == "__main__":
    main()
