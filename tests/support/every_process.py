"""One request, sent to every web process of the served service many times: what changed must have changed in each."""

import http.client
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tests.support.service import Up

REQUESTS = 200
"""So many requests over all workers, and none is answered as before."""
_AT_ONCE = 8
_ROUNDS = 10
"""On a busy machine one process may take all connections of a moment: then as many again are opened, so many times."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer. `body` is the JSON, None where there is none."""

    status: int
    body: Any


def ask_everywhere(
    up: Up,
    method: str,
    path: str,
    *,
    token: str,
    environment: str | None = None,
    body: Any = None,
    requests: int = REQUESTS,
) -> list[Seen]:
    """The answers to at least as many equal requests, each over a connection of its own. Fails unless every web process
    answered some: connections stay open until all are answered, and the kernel says whose the other end is."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if environment is not None:
        headers["X-Environment"] = environment
    sent = None if body is None else json.dumps(body)
    address = urlsplit(up.base_url)
    target = quote(f"/v1{path}", safe="/?=&")
    with ExitStack() as until_counted:

        def ask(_: int) -> tuple[int, Seen]:
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
            until_counted.enter_context(closing(connection))
            connection.request(method, target, sent, headers)
            port: int = connection.sock.getsockname()[1]
            answer = connection.getresponse()
            content = answer.read()
            return port, Seen(answer.status, json.loads(content) if content else None)

        answered: list[tuple[int, Seen]] = []
        for _ in range(_ROUNDS):
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                answered += pool.map(ask, range(requests))
            if not (idle := _idle(up, {port for port, _ in answered})):
                break
        assert not idle, f"never met: {idle}"
    return [seen for _, seen in answered]


def _idle(up: Up, ports: set[int]) -> set[int]:
    """The web processes that hold the other end of none of these connections. No connection's other end is unknown."""
    workers = up.web_workers()
    assert len(workers) >= 2, "one process cannot disagree with itself"
    held = Counter(
        worker.pid
        for worker in workers
        for connection in worker.net_connections("tcp")
        if connection.raddr and connection.raddr.port in ports
    )
    assert sum(held.values()) == len(ports), (held, len(ports))
    return {worker.pid for worker in workers} - set(held)
