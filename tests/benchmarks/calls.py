"""What a request makes Python do, counted instead of timed: `python -m tests.benchmarks.calls [--top 20]`.

A noisy machine moves times by half within an hour and leaves counts alone, so this says whether a change made a request
dearer. Each workload of `tests.benchmarks.rows` is answered by Django in this process, one after the other, on the
databases of a service that runs as `manage.py up` does: calls of Python and of C for each request, and what it adds to
PostgreSQL's log (roughly: a checkpoint makes that more). `--top` prints the functions that are called most. The bridge
is in it, what Granian and the lane's threads do around it is not. Results: docs/explanation/performance.md.
"""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from tests.benchmarks.measured_service import stage

WARM, COUNTED, LOGGED = 300, 50, 1_000
"""Requests: to fill caches and prepare statements, to count calls, to see what the log grows by."""
Answer = Callable[[bytes], None]


class Headers:
    """RSGI's, of one request."""

    def __init__(self, lines: list[str]) -> None:
        self._items = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]

    def items(self) -> list[tuple[str, str]]:
        return list(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass
class Scope:
    """RSGI's, as far as the bridge reads it."""

    method: str
    path: str
    query_string: str
    headers: Headers
    http_version: str = "1.1"
    scheme: str = "http"
    client: str = "127.0.0.1:50000"
    server: str = "127.0.0.1:8000"
    authority: str | None = None


class Protocol:
    """Takes the response, and passes the body to the reader."""

    status, answered = 0, b""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def __call__(self) -> bytes:
        return self.body

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.answered = status, body


def scope_of(request: bytes) -> tuple[Scope, Protocol]:
    """A request as it goes over the wire, as Granian would hand it to the bridge."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    return Scope(method, path, query, Headers(lines)), Protocol(body)


class AtOnce:
    """In the place of the lane and of what awaits bodies: both in the thread that asks."""

    def __init__(self, bridge: Any) -> None:
        self.submit = bridge._work

    def expect(self, body: bytes, then: Callable[[bytes], None]) -> None:
        then(body)


def answers() -> Answer:
    """What answers a request in this process as a web process would. Raises RuntimeError if the answer is an error."""
    from platform_site.server.rsgi_app import RsgiApplication

    bridge: Any = RsgiApplication()
    bridge.load()
    bridge._lane = bridge._arrivals = AtOnce(bridge)
    logging.getLogger("platform.access").handlers[0].setStream(open("/dev/null", "w"))

    def answer(request: bytes) -> None:
        scope, protocol = scope_of(request)
        bridge.begin(scope, protocol, lambda: None)
        if not 200 <= protocol.status < 400:
            raise RuntimeError(protocol.answered.decode())

    return answer


def count(answer: Answer, requests: Sequence[bytes]) -> Counter[tuple[str, str, str]]:
    """Calls by ("py" or "c", file or module, name) that the requests make."""
    calls: Counter[tuple[str, str, str]] = Counter()

    def note(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            calls["py", "/".join(frame.f_code.co_filename.split("/")[-2:]), frame.f_code.co_name] += 1
        elif event == "c_call":
            calls["c", called.__module__ or "", called.__qualname__] += 1

    sys.setprofile(note)
    try:
        for request in requests:
            answer(request)
    finally:
        sys.setprofile(None)
    return calls


def main(top: int) -> None:
    with stage(workers=1) as on:
        from django.db import connections

        from tests.benchmarks import rows

        answer, connection = answers(), connections[on.setting.place.cluster]

        def log_position() -> int:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
                return int(cursor.fetchone()[0])

        print(f"{'':28}{'Python':>8}{'C':>8}{'log, B':>8}")
        for what, (requests, _) in rows.questions(on.setting, on.port).items():
            for request in islice(cycle(requests), WARM):
                answer(request)
            calls = count(answer, list(islice(cycle(requests), COUNTED)))
            before = log_position()
            for request in islice(cycle(requests), LOGGED):
                answer(request)
            grown = (log_position() - before) / LOGGED
            python, c = (sum(n for key, n in calls.items() if key[0] == kind) / COUNTED for kind in ("py", "c"))
            print(f"{what:28}{python:8,.0f}{c:8,.0f}{grown:8,.0f}", flush=True)
            for (_, where, name), times in calls.most_common(top):
                print(f"    {times / COUNTED:6.1f}  {where} {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=0, metavar="N", help="print the N functions that are called most")
    main(parser.parse_args().top)
