"""What a request makes Python do, counted instead of timed: `python -m tests.benchmarks.calls [--top 20]`.

A noisy machine moves times by half within an hour and leaves counts alone, so this says whether a change made a request
dearer. Each workload of `tests.benchmarks.rows` is answered by Django in this process, one after the other, on the
databases of a service that runs as `manage.py up` does: calls of Python and of C for each request, and what it adds to
PostgreSQL's log (roughly: a checkpoint makes that more). `--top` prints the functions that are called most. Parsing the
request is in it, what the event loop does around it is not. Results: docs/explanation/performance.md.
"""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

from tests.benchmarks.measured_service import stage

WARM, COUNTED, LOGGED = 300, 50, 1_000
"""Requests: to fill caches and prepare statements, to count calls, to see what the log grows by."""
Answer = Callable[[bytes], None]


class Transport:
    """Takes the response."""

    answered = b""

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 8000)}[name]

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.answered = data

    def resume_reading(self) -> None:
        pass


def answers() -> Answer:
    """What answers a request in this process as a web process would. Raises RuntimeError if the answer is an error."""
    import asyncio

    from platform_site.server.application import Application
    from platform_site.server.http_message import Message
    from platform_site.server.http_protocol import HttpConnection, HttpServer
    from platform_site.server.incoming import Incoming
    from platform_site.server.request_head import Forwarding

    application = Application()
    application.load()
    logging.getLogger("platform.access").handlers[0].setStream(open("/dev/null", "w"))

    def begin(message: Message) -> None:
        application._work(Incoming.from_message(message))

    transport = Transport()
    connection = HttpConnection(HttpServer(asyncio.new_event_loop(), Forwarding(()), begin, max_connections=1))
    connection.connection_made(transport)

    def answer(request: bytes) -> None:
        connection.data_received(request)
        if not transport.answered.startswith((b"HTTP/1.1 2", b"HTTP/1.1 3")):
            raise RuntimeError(transport.answered.decode())

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

        answer, connection = answers(), connections[on.setting.environment.cluster]

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
