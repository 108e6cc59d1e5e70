"""The queue of due deliveries, kept in PostgreSQL: claim, then send with no transaction open, then record. A claim is a
lease: `claimed_until` in the database's own time, and `attempts` as the fencing token. Whoever records an outcome names
the attempt that it claimed; if another worker has claimed since, the delivery is left alone, unless the receiver had
taken the event: then it is not sent a third time. So a worker that stalls beyond its lease costs a duplicate at most
(same `webhook-id`, same body), never a lost attempt. A claim and a switch of its webhook have an order, by a lock on
the webhook: what is claimed was claimed before the switch. And an attempt begins within START_WITHIN of its claim or
not at all, so whoever has switched a webhook off only waits a little longer than that (`wait_for_claims`), and can
promise that nothing starts any more."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
import psycopg
from django.db import Error, connections

from platform_site.background.skip_scan import UNCLAIMED, first_of_each
from platform_site.concurrency import server_hints
from platform_site.postgres import sql_files
from projects.provisioning.suspension import suspended_in

LEASE: Final = timedelta(seconds=30)
"""Twice the longest attempt."""
START_WITHIN: Final = timedelta(seconds=1)
"""A claim whose attempt has not begun so long after it came is given back."""
CLAIM_LATENCY_ALLOWANCE: Final = timedelta(seconds=0.25)
"""What it may have taken from the commit of a claim until it came, and an attempt from its beginning to the socket."""
POLL_INTERVAL: Final = 0.05
CANDIDATE_LIMIT: Final = 500
"""Deliveries that are due for longest, when claims are looked for."""
ORDERED_CANDIDATE_LIMIT: Final = 2000
"""How many due deliveries of a webhook with `ordering: "row"` a claim looks at, to find the rows that have something
due: those of one row may lie before all others'."""

MAX_CLAIM_BYTES: Final = 8 * 2**20
"""Of the bodies that one claim brings; the last one may reach beyond. They are in memory until they have arrived."""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """One attempt to make now."""

    delivery_id: str
    attempt: int
    attempts_of_schedule: int
    """Attempts since the schedule began, this one included: `retry.delay_after` counts these."""
    webhook_id: str
    environment_id: str
    host: str
    url: str
    event_id: str
    event_type: str
    depth: int
    body: str
    sealed_secret: bytes
    sealed_previous_secret: bytes | None
    previous_secret_until: datetime | None
    """Until when the newest of them signs (`webhooks.delivery.attempts.previous_secrets`)."""
    claimed_at: datetime
    """In the database's own time, as all else that is compared: a worker's clock may be wrong."""
    stopwatch: float
    """`time.monotonic()` at that moment."""

    def age(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self.stopwatch)

    def now(self) -> datetime:
        """The time of the database, as far as this process can tell."""
        return self.claimed_at + self.age()


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How one attempt ended. `status` is what the delivery becomes; `wait` only where it stays pending."""

    claimed: ClaimedDelivery
    at: datetime
    duration: timedelta
    status: str
    outcome: str
    wait: timedelta | None = None
    response_status: int | None = None
    response_headers: dict[str, str] = field(default_factory=dict)
    response_body: str = ""
    error: str | None = None
    is_gone: bool = False
    """The receiver answered 410: disable the webhook."""


_SQL: Final = sql_files.load(
    __file__, unclaimed=UNCLAIMED, of_each_webhook=first_of_each("of_each_webhook", "pending", "next_attempt_at")
)
CLAIM: Final = _SQL["claim"]
LONGEST_WAIT: Final = _SQL["longest_wait"]


def longest_wait(using: str) -> timedelta | None:
    """For how long something has been waiting for a worker; None if nothing is."""
    suspended = suspended_in(using)
    with connections[using].cursor() as cursor:
        cursor.execute(LONGEST_WAIT, {"suspended": suspended})
        found: timedelta | None = cursor.fetchone()[0]
        return found


def claim(
    using: str,
    limit: int,
    *,
    hosts: Sequence[str] = (),
    host_limits: Sequence[int] = (),
    initial_concurrency: int,
    lease: timedelta = LEASE,
    only: str | None = None,
) -> list[ClaimedDelivery]:
    """Up to `limit` due attempts: at most `host_limits` of each of `hosts`, `initial_concurrency` of any other one.
    With `only`, those of this webhook; otherwise all but those of `webhooks listen`. One statement. With `ordering:
    "row"`, the deliveries of a row are claimed one after the other. Deliveries of suspended projects stay pending."""
    parameters: dict[str, Any] = {
        "window": ORDERED_CANDIDATE_LIMIT,
        "hosts": list(hosts),
        "host_limits": list(host_limits),
        "initial_concurrency": initial_concurrency,
        "limit": limit,
        "bytes": MAX_CLAIM_BYTES,
        "lease": lease,
        "only": only,
        "suspended": suspended_in(using),
    }
    with connections[using].cursor() as cursor:
        cursor.execute(CLAIM, parameters)
        stopwatch = time.monotonic()
        return [_claimed(row, stopwatch) for row in cursor.fetchall()]


_CLAIMS_OF_THE_FIRST: Final = _SQL["claims_of_the_first"]


def wait_for_claims(using: str, *webhook_ids: str) -> None:
    """Return when no attempt of these webhooks starts any more that was claimed before now: as soon as nothing is
    claimed, where so little is due that all of it can be looked at, and after START_WITHIN and UNDER_WAY in any case.
    Call it after the commit that has switched them off. Raises what the database does, when as long has passed."""
    server_hints.will_block()
    end = time.monotonic() + (START_WITHIN + CLAIM_LATENCY_ALLOWANCE).total_seconds()
    try:
        for webhook_id in webhook_ids:
            while (left := end - time.monotonic()) > 0:
                with connections[using].cursor() as cursor:
                    cursor.execute(_CLAIMS_OF_THE_FIRST, {"webhook": webhook_id, "most": CANDIDATE_LIMIT})
                    has_claims, is_all = cursor.fetchone()
                if is_all and not has_claims:
                    break
                time.sleep(min(left, POLL_INTERVAL) if is_all else left)
    except (Error, psycopg.Error):  # a dispatcher that has not lost its connection may still begin what it claimed
        time.sleep(max(0.0, end - time.monotonic()))
        raise


def _claimed(row: tuple[Any, ...], stopwatch: float) -> ClaimedDelivery:
    *facts, secret, previous, until, at = row
    values: list[Any] = [*facts, bytes(secret), None if previous is None else bytes(previous), until, at, stopwatch]
    return ClaimedDelivery(*values)


RECORD: Final = _SQL["record"]
HEALTH: Final = _SQL["health"]


@dataclass(frozen=True, slots=True)
class Failing:
    """A webhook to be disabled: its receiver answered 410, or has done nothing but fail for long."""

    webhook_id: str
    reason: str
    depth: int
    """The call depth: the shortest one among the deliveries that failed now, so that the owner is notified in any
    case."""


def record(using: str, results: Sequence[AttemptOutcome], *, disable_after: timedelta) -> list[Failing]:
    """Record the outcomes of attempts, all in one statement. Returns the webhooks to be disabled, those that have done
    nothing but fail for `disable_after` among them. An outcome whose claim was lost to another worker leaves its
    attempt in the history and the delivery alone, except that a delivery which has arrived is delivered."""
    rows: list[dict[str, Any]] = [
        {
            "delivery_id": result.claimed.delivery_id,
            "attempt": result.claimed.attempt,
            "webhook_id": result.claimed.webhook_id,
            "at": result.at.isoformat(),
            "duration_ms": round(result.duration.total_seconds() * 1000),
            "status": result.status,
            "outcome": result.outcome,
            "wait": None if result.wait is None else result.wait.total_seconds(),
            "response_status": result.response_status,
            "response_headers": result.response_headers,
            "response_body": result.response_body,
            "error": result.error,
            "gone": result.is_gone,
        }
        for result in results
    ]
    with connections[using].cursor() as cursor:
        ids = [result.claimed.delivery_id for result in results]
        cursor.execute(RECORD, {"results": orjson.dumps(rows).decode(), "ids": ids})
    # A separate transaction: a change of a webhook locks the webhook before its deliveries, and the reverse order could
    # deadlock. After a crash in between, one attempt is missing from the webhook's health.
    webhooks = sorted({result.claimed.webhook_id for result in results})
    delivered = {result.claimed.webhook_id for result in results if result.status == "delivered"}
    gone = {result.claimed.webhook_id for result in results if result.is_gone}
    parameters: dict[str, Any] = {
        "webhooks": webhooks,
        "succeeded": [each in delivered for each in webhooks],
        "gone": [each in gone for each in webhooks],
        "disable_after": disable_after,
    }
    with connections[using].cursor() as cursor:
        cursor.execute(HEALTH, parameters)
        return [Failing(webhook_id, reason, _depth_of(webhook_id, results)) for webhook_id, reason in cursor.fetchall()]


def _depth_of(webhook_id: str, results: Sequence[AttemptOutcome]) -> int:
    """Of what comes of these attempts at the webhook's deliveries."""
    return 1 + min(result.claimed.depth for result in results if result.claimed.webhook_id == webhook_id)


RELEASE: Final = _SQL["release"]


def release(using: str, claims: Sequence[ClaimedDelivery]) -> None:
    """Return claims whose attempt never started, so that another worker takes them at once."""
    if claims:
        with connections[using].cursor() as cursor:
            ids, attempts = [c.delivery_id for c in claims], [c.attempt for c in claims]
            cursor.execute(RELEASE, {"ids": ids, "attempts": attempts})
