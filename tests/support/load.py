"""Load over HTTP: clients that create, change, list and delete projects, and record every response.

Each client has one connection and its own projects. A request that got no answer is an outcome, too.
"""

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.service import Up


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: what, when it began (monotonic), how long it took, and its status or the error of the connection."""

    what: str
    at: float
    seconds: float
    status: int | None
    error: str | None = None
    code: str | None = None
    retry_after: str | None = None


@dataclass
class Load:
    """`with Load(up, token) as load: …`; afterwards `load.outcomes`. `only` limits what the clients do."""

    up: Up
    token: str
    clients: int = 8
    only: frozenset[str] = frozenset({"create", "patch", "list", "delete"})
    timeout: float = 20.0
    pause: float = 0.2
    """Seconds of each client after its turn: without them the clients take the CPU time that a restart needs."""
    outcomes: list[Outcome] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Load":
        for number in range(self.clients):
            thread = threading.Thread(target=self._client, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(self.timeout + 10)
            assert not thread.is_alive(), "a client hangs"

    def _client(self, number: int) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.up.base_url, headers=headers, timeout=self.timeout) as client:
            known = self.up.facts["project_id"]
            for turn in itertools.count():
                made = None
                if "create" in self.only:
                    answer = self._ask(client, "create", "POST", "/v1/projects", {"name": f"Load {number}-{turn}"})
                    made = answer.json()["id"] if answer is not None and answer.status_code == 201 else None
                if "patch" in self.only:
                    self._ask(client, "patch", "PATCH", f"/v1/projects/{made or known}", {"name": f"Name {turn}"})
                if "list" in self.only:
                    self._ask(client, "list", "GET", f"/v1/projects/{made or known}/environments")
                if made and "delete" in self.only:
                    self._delete(client, made)
                if self._over.wait(self.pause):
                    return

    def _delete(self, client: httpx.Client, project_id: str) -> None:
        """Until it is gone: a deletion that got no answer, or a 503, may have been done all the same."""
        what = "delete"
        while not self._over.is_set() or what == "delete":
            answer = self._ask(client, what, "DELETE", f"/v1/projects/{project_id}")
            if answer is not None and answer.status_code < 500:
                return
            what = "delete again"
            time.sleep(0.05)

    def _ask(self, client: httpx.Client, what: str, method: str, path: str, body: Any = None) -> httpx.Response | None:
        at = time.monotonic()
        try:
            answer = client.request(method, path, json=body)
        except httpx.HTTPError as error:
            self.outcomes.append(Outcome(what, at, time.monotonic() - at, None, type(error).__name__))
            return None
        code = answer.json()["error"]["code"] if answer.status_code >= 400 else None
        self.outcomes.append(
            Outcome(what, at, time.monotonic() - at, answer.status_code, None, code, answer.headers.get("Retry-After"))
        )
        return answer

    def counts(self) -> Counter[str]:
        """Outcomes by status and code, or by the error of the connection; without a 404 where that is as good."""
        return Counter(
            f"{one.status} {one.code or ''}".strip() if one.status else str(one.error)
            for one in self.outcomes
            if (one.what, one.status) != ("delete again", 404)
        )

    def of(self, *whats: str) -> list[Outcome]:
        return [one for one in self.outcomes if one.what in whats]


def p99(outcomes: Iterable[Outcome]) -> float:
    """Seconds within which 99 of 100 were answered."""
    took = sorted(one.seconds for one in outcomes)
    assert len(took) >= 20, f"only {len(took)} outcomes"
    return statistics.quantiles(took, n=100)[98]


def sign_in(up: Up) -> str:
    """An access token of the demo's account."""
    account = up.facts["account"]
    body = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    answer = httpx.post(f"{up.base_url}/v1/auth/token", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])
