"""A storm: many row writes through the API, told to a receiver by a webhook, while things are killed; and the count.

Each row brings an id of its own, so that a write that got no answer can be looked up afterwards: what is in the table
was committed, and only that may arrive.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from standardwebhooks import Webhook as Verifier

from platform_site.embedded.data_dir import region_database
from tests.faults.conftest import superuser
from tests.support.load import Outcome
from tests.support.receiver import Receiver, headers
from tests.support.service import ROOT, Up, wait_for

SETTINGS = {
    # Time compressed. The lease is longer than any attempt here.
    "WEBHOOK_RETRY_SCHEDULE": "0,1,1,2,2,4,4,8,8",
    "WEBHOOK_LEASE_SECONDS": "4",
    "WEBHOOK_TIMEOUT_SECONDS": "2",
    "WEBHOOK_JOB_SECONDS": "1",
}
CLIENTS = 4
WORK = (str(ROOT / "manage.py"), "work")
BEAT = ("-m", "celery", "--app", "platform_site.celery", "beat", "--scheduler", "celery.beat:Scheduler")


class Worker:
    """`manage.py work`, or another command of Python, beside the worker of `up`, to be killed any number of times: it is
    not monitored."""

    def __init__(
        self, up: Up, environment: dict[str, str], log: str = os.devnull, command: Sequence[str] = WORK
    ) -> None:
        self._log, self._command = log, command
        self._environment = {
            **os.environ,
            "LOG_FORMAT": "text",
            "OUTBOUND_ALLOWED_NETWORKS": "127.0.0.0/8",
            "BASE_URL": up.base_url,
            **environment,
            "DATA_DIR": str(up.data_dir),
        }
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._command],
                env=self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def said(self) -> str:
        """Its log."""
        return Path(self._log).read_text(errors="replace")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM: it records what is under way and gives back what it has not begun."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@dataclass
class Storm:
    """`with Storm(up, writes=2000, seconds=12, receiver=…) as storm: …break things…`; then `storm.settle()`."""

    up: Up
    receiver: Receiver
    writes: int
    seconds: float
    name: str
    answers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often each status, or the error of a connection, was the answer."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Every request, with its time."""
    secret: str = ""
    webhook_id: str = ""
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name += f"-{secrets.token_hex(3)}"  # a test that is tried again writes rows of its own

    def __enter__(self) -> "Storm":
        self.headers = {"Authorization": f"Bearer {self.up.facts['server_key']}"}
        body = {"url": self.receiver.url(), "events": ["lists.insert"], "filter": {"name": self.name}}
        made = httpx.post(f"{self.up.base_url}/v1/webhooks", json=body, headers=self.headers)
        assert made.status_code == 201, made.text
        self.secret, self.webhook_id = made.json()["secret"], made.json()["id"]
        self.begun, self.begun_at = time.monotonic(), time.time()
        for number in range(CLIENTS):
            thread = threading.Thread(target=self._client, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(self.seconds + 120)
            assert not thread.is_alive(), "a client hangs"

    def _client(self, number: int) -> None:
        owner = self.up.facts["app_users"][0]["id"]
        with httpx.Client(base_url=self.up.base_url, headers=self.headers, timeout=20) as client:
            for turn in range(number, self.writes, CLIENTS):
                time.sleep(max(0.0, self.begun + self.seconds * turn / self.writes - time.monotonic()))
                row = {"id": f"{self.name}-{turn:05}", "name": self.name, "owner_id": owner}
                while not self._write(client, row):
                    time.sleep(0.2)

    def _write(self, client: httpx.Client, row: dict[str, str]) -> bool:
        """Whether the row is written for certain: 201, or 409 where an earlier try that got no answer had done it."""
        at = time.monotonic()
        try:
            answer = client.post("/v1/rows/lists", json=row)
        except httpx.HTTPError as error:
            self.answers[type(error).__name__] += 1
            self.outcomes.append(Outcome("write", at, time.monotonic() - at, None, type(error).__name__))
            return False
        status, took = answer.status_code, time.monotonic() - at
        self.answers[str(status)] += 1
        code = answer.json()["error"]["code"] if status >= 400 else None
        self.outcomes.append(Outcome("write", at, took, status, None, code, answer.headers.get("Retry-After")))
        return status in (201, 409)

    # ── the count ──

    def committed(self) -> set[str]:
        environment = self.up.facts["environments"]["production"]
        with superuser(self.up, region_database("us-east-1")) as connection:
            query = f'SELECT id FROM "{environment}".lists WHERE name = %s'
            return {str(row[0]) for row in connection.execute(query, [self.name])}  # type: ignore[call-overload]

    def arrived(self) -> dict[str, list[bytes]]:
        """The requests by the id of the row that they tell of."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for request in list(self.receiver.requests):
            found[json.loads(request.partition(b"\r\n\r\n")[2])["data"]["id"]].append(request)
        return found

    def drain(self, seconds: float) -> None:
        """Wait until everything that was committed has arrived."""
        wanted = self.committed()
        try:
            wait_for("every event arrives", lambda: wanted <= self.arrived().keys(), seconds, every=0.2)
        except AssertionError as error:
            missing = sorted(wanted - self.arrived().keys())
            error.add_note(
                f"missing {len(missing)}: {missing[:3]}\n{self.fates(missing[:3])}\n{self.up.output[-3000:]}"
            )
            raise

    def fates(self, row_ids: list[str]) -> list[Any]:
        query = """
            SELECT e.subject, e.relayed_at, d.status, d.attempts, d.outcome, d.claimed_until, d.next_attempt_at, now()
              FROM platform.rows_outboxevent e LEFT JOIN platform.webhooks_delivery d USING (event_id)
             WHERE e.subject = ANY (%s)
        """
        with superuser(self.up, region_database("us-east-1")) as connection:
            return connection.execute(query, [[f"lists/{each}" for each in row_ids]]).fetchall()

    def settle(self, seconds: float = 45.0) -> "Tally":
        """Drain, give duplicates under way the time of a lease, and count. Removes the webhook."""
        self.drain(seconds)

        def is_recorded() -> bool:
            with superuser(self.up, region_database("us-east-1")) as connection:
                query = "SELECT count(*) FROM platform.webhooks_delivery WHERE webhook_id = %s AND status = 'pending'"
                [row] = connection.execute(query, [self.webhook_id])
                return row[0] == 0

        wait_for("every outcome is recorded", is_recorded, 30, every=0.2)
        arrived, committed = self.arrived(), self.committed()
        verifier = Verifier(self.secret)
        duplicates = 0
        for row_id, requests in arrived.items():
            bodies = {request.partition(b"\r\n\r\n")[2] for request in requests}
            message_ids = {headers(request)["webhook-id"] for request in requests}
            assert len(bodies) == len(message_ids) == 1, f"{row_id}: a repetition differs"
            duplicates += len(requests) - 1
            self._check_signature(verifier, requests[-1])
        gone = httpx.delete(f"{self.up.base_url}/v1/webhooks/{self.webhook_id}", headers=self.headers)
        assert gone.status_code == 204, gone.text
        lost, phantom = committed - arrived.keys(), arrived.keys() - committed
        return Tally(len(committed), len(lost), len(phantom), duplicates, dict(self.answers))

    def _check_signature(self, verifier: Verifier, request: bytes) -> None:
        """As of its arrival: a long storm ends when the first deliveries are older than a receiver tolerates."""
        found, body = headers(request), request.partition(b"\r\n\r\n")[2].decode()
        signed_at = int(found["webhook-timestamp"])
        assert self.begun_at - 60 < signed_at < time.time() + 60, f"signed for {signed_at}"
        expected = verifier.sign(found["webhook-id"], datetime.fromtimestamp(signed_at, UTC), body)
        assert expected in found["webhook-signature"].split(" "), found


@dataclass(frozen=True, slots=True)
class Tally:
    committed: int
    lost: int
    phantom: int
    duplicates: int
    answers: dict[str, int]


def assert_nothing_is_lost(storm: Storm, seconds: float = 45) -> None:
    tally = storm.settle(seconds)
    assert (tally.committed, tally.lost, tally.phantom) == (storm.writes, 0, 0), tally
