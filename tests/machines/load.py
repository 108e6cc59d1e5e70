"""Load on every region through every web host, with each answer remembered; and the events and runs it asked for.

A stream writes rows with ids of its own (so that a write without an answer can be looked up) and reads them; every
tenth turn it asks for a queued run. One of the region CONTROL asks for what only the control database knows. One
client, one connection at a time, as a tenant behind the balancer would.
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.machines.hosts import Site

CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: of which region, by which web host, when it began (monotonic), and what came of it."""

    region: str
    host: str
    what: str
    at: float
    seconds: float
    status: int | None
    error: str | None = None
    retry_after: str | None = None


@dataclass
class Traffic:
    """`with Traffic(site, tenants, streams=…) as traffic:`; `streams` counts clients for (region, web host)."""

    site: Site
    tenants: dict[str, dict[str, str]]
    """For each region the headers that its requests carry."""
    streams: dict[tuple[str, str], int]
    name: str
    pause: float = 0.03
    outcomes: list[Asked] = field(default_factory=list)
    acknowledged: dict[str, set[str]] = field(default_factory=dict)
    """Ids of rows answered 201, by region."""
    runs: dict[str, set[str]] = field(default_factory=dict)
    """Ids of queued runs answered 202, by region."""
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Traffic":
        for (region, host), count in self.streams.items():
            if region != CONTROL:
                self.acknowledged.setdefault(region, set())
                self.runs.setdefault(region, set())
            for number in range(count):
                stream = self._projects if region == CONTROL else self._stream
                thread = threading.Thread(target=stream, args=(region, host, number), daemon=True)
                thread.start()
                self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive(), "a client hangs"

    def _stream(self, region: str, host: str, number: int) -> None:
        turn = 0
        with self.site.client(host, **self.tenants[region]) as client:
            while not self._over.is_set():
                turn += 1
                row_id = f"{self.name}-{host}-{number}-{turn:05}"
                made = self._ask(client, region, host, "write", "POST", "/v1/rows/notes", {"id": row_id, "body": "x"})
                if made is not None and made.status_code == 201:
                    self.acknowledged[region].add(row_id)
                    self._ask(client, region, host, "read", "GET", f"/v1/rows/notes/{row_id}")
                if turn % 10 == 1:
                    body = {"input": {"a": turn, "b": 1}, "async": True}
                    queued = self._ask(client, region, host, "queue", "POST", "/v1/functions/sum/invoke", body)
                    if queued is not None and queued.status_code == 202:
                        self.runs[region].add(queued.json()["run_id"])
                time.sleep(self.pause)

    def _projects(self, region: str, host: str, number: int) -> None:
        with self.site.client(host, **self.tenants[region]) as client:
            while not self._over.is_set():
                self._ask(client, region, host, "projects", "GET", "/v1/projects")
                time.sleep(self.pause)

    def _ask(
        self, client: httpx.Client, region: str, host: str, what: str, method: str, path: str, body: object = None
    ) -> httpx.Response | None:
        at = time.monotonic()
        try:
            answer = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            self.outcomes.append(Asked(region, host, what, at, time.monotonic() - at, None, type(error).__name__))
            return None
        took, status = time.monotonic() - at, answer.status_code
        self.outcomes.append(Asked(region, host, what, at, took, status, None, answer.headers.get("Retry-After")))
        return answer

    def between(self, begin: float, end: float, *, regions: set[str], hosts: set[str] | None = None) -> list[Asked]:
        return [
            one
            for one in self.outcomes
            if begin <= one.at <= end and one.region in regions and (hosts is None or one.host in hosts)
        ]


def counts(outcomes: list[Asked]) -> Counter[str]:
    return Counter(str(one.status or one.error) for one in outcomes)
