"""The pages of `/console` over a long history: `python -m tests.benchmarks.console_pages [DELIVERIES] [RUNS]`. By hand.

The demo project with the history of `tests.benchmarks.dashboard`: 1,000,000 deliveries of 200 webhooks over 29 days and
1,000,000 runs of 50 functions over 7; the table has a whole page of rows. Each page 30 times by its owner over HTTP: the
time, the CPU time of the web workers and of PostgreSQL, which does not depend on what else the machine does, and the
compressed bytes of a page without its static files, which a browser keeps.
"""

import contextlib
import os
import re
import sys
import time

import httpx

from tests.benchmarks.dashboard import Page, console, fill
from tests.support.console_pages import pages_of
from tests.support.service import Up

ASKED = 30
ASKED_MS, ASKED_BYTES = 150, 100_000


def signed_in(up: Up) -> httpx.Client:
    client = httpx.Client(base_url=up.base_url, timeout=60, follow_redirects=True, headers={"Accept-Encoding": "gzip"})
    form = client.get("/console/sign-in").text
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert token is not None
    account = up.facts["account"]
    values = {"email": account["email"], "password": account["password"], "csrfmiddlewaretoken": token[1]}
    answer = client.post("/console/sign-in", data=values, headers={"Origin": up.base_url})
    assert answer.url.path.count("/") > 2, answer.text[:2000]
    return client


def add_rows(up: Up) -> None:
    """More tasks than a page shows, each with its list and owner."""
    with httpx.Client(headers={"Authorization": f"Bearer {up.facts['server_key']}"}, base_url=up.base_url) as client:
        task = client.get(f"/v1/rows/tasks/{up.facts['task_id']}").json()
        links = {key: task[key] for key in ("list_id", "owner_id")}
        rows = [links | {"title": f"Task {number} of those that fill a page"} for number in range(100)]
        answer = client.post("/v1/rows/tasks", json=rows)
        assert answer.status_code == 201, answer.text


def cpu_ms(up: Up) -> float:
    """What the web workers and PostgreSQL have used."""
    times = [each.cpu_times() for each in (*up.web_workers(), *up.named("postgres"))]
    return 1000 * sum(each.user + each.system for each in times)


def measured(up: Up, client: httpx.Client, base: str, name: str, path: str) -> tuple[Page, float, int]:
    """The page with its times, its CPU time, and the bytes of its last response."""
    page, transferred, used = Page(name, base + path), 0, 0.0
    for number in range(ASKED + 3):
        if number == 3:
            used = cpu_ms(up)
        begun = time.perf_counter()
        with client.stream("GET", page.path) as answer:
            answer.read()
            transferred = answer.num_bytes_downloaded
        assert answer.status_code < 500, (path, answer.status_code)
        if number >= 3:
            page.took.append((time.perf_counter() - begun) * 1000)
    return page, (cpu_ms(up) - used) / ASKED, transferred


def main(deliveries: int = 1_000_000, runs: int = 1_000_000) -> None:
    with console() as up:
        fill(up, deliveries, runs)
        add_rows(up)
        base = f"/console/{up.facts['project_id']}/{up.facts['environments']['production']}/"
        paths = pages_of(up) | {
            "runs of many": "functions/bench-7/runs",
            "deliveries of many": f"webhooks/wh_{7:026d}/deliveries",
        }
        print("| page | p50 ms | p95 ms | CPU ms | bytes |\n|---|--:|--:|--:|--:|")
        with contextlib.closing(signed_in(up)) as client:
            for name, path in paths.items():
                page, cpu, transferred = measured(up, client, base, name, path)
                missed = page.at(0.95) >= ASKED_MS or transferred >= ASKED_BYTES
                mark = " **missed**" if missed else ""
                times = f"{page.at(0.5):.0f} | {page.at(0.95):.0f} | {cpu:.0f}"
                print(f"| {name}{mark} | {times} | {transferred:,} |", flush=True)
        print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:]))
