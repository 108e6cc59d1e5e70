"""The queue of due deliveries: claim, send without a transaction, record. A claim is a lease (`claimed_until`, database
time) with `attempts` as the fencing token: a stalled worker costs at most a duplicate. Claims lock the webhook and
start within START_WITHIN or not at all, for `wait_for_claims`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import orjson
import psycopg
from django.conf import settings
from django.db import Error, transaction
from django.db.models.functions import Now

from platform_site.background.skip_scan import skip_scan
from platform_site.concurrency import server_hints
from platform_site.postgres import sql_files, statements
from projects.provisioning.suspension import suspended_in
from rows.outbox import audit as audit_outbox
from rows.outbox.models import record as record_event
from webhooks.models import Webhook

START_WITHIN: Final = timedelta(seconds=1)
"""A claim that has not started by then is released."""
CLAIM_LATENCY_ALLOWANCE: Final = timedelta(seconds=0.25)
"""For the time from a claim's commit to its arrival, and from an attempt's start to the socket."""
POLL_INTERVAL: Final = 0.05
CLAIM_CHECK_LIMIT: Final = 500
ORDERED_CANDIDATE_LIMIT: Final = 2000
"""Due deliveries of a webhook with `ordering: "row"` that a claim examines, to find other rows behind those of one."""

MAX_CLAIM_BYTES: Final = 8 * 2**20
"""Bytes of bodies of one claim, which are in memory until delivered; the last one may exceed it."""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    delivery_id: str
    attempt: int
    attempts_of_schedule: int
    """Attempts of the current schedule, this one included, for `retry.delay_after`."""
    webhook_id: str
    environment_id: str
    receiver: str
    """The environment, and the host and port of its webhook."""
    url: str
    event_id: str
    event_type: str
    depth: int
    body: str
    sealed_secret: bytes
    sealed_previous_secret: bytes | None
    previous_secret_until: datetime | None
    claimed_at: datetime
    """In the database's time."""
    stopwatch: float
    """`time.monotonic()` when the claim arrived here."""

    def age(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self.stopwatch)

    def now(self) -> datetime:
        return self.claimed_at + self.age()


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    claimed: ClaimedDelivery
    at: datetime
    duration: timedelta
    status: str
    wait: timedelta | None = None
    response_status: int | None = None
    response_headers: dict[str, str] = field(default_factory=dict)
    response_body: str = ""
    error: str | None = None

    @property
    def is_gone(self) -> bool:
        return self.response_status == 410


UNCLAIMED: Final = "(d.claimed_until IS NULL OR d.claimed_until < now())"
"""No live worker holds the delivery `d`."""
WAITING: Final = skip_scan(
    "waiting", "platform.webhooks_delivery", "webhook_id", "next_attempt_at", where="status = 'pending'"
)
"""A recursive common table expression: each webhook with pending deliveries, and when the first one is due."""
HOLDING: Final = skip_scan("holding", "platform.webhooks_delivery", "webhook_id", "sequence", where="status = 'held'")
"""The same for held deliveries."""
SQL: Final = sql_files.load(__file__, unclaimed=UNCLAIMED, waiting=WAITING)


def longest_wait(using: str) -> timedelta | None:
    found: timedelta | None = statements.value(using, SQL["longest_wait"], {"suspended": suspended_in(using)})
    return found


def claim(
    using: str,
    limit: int,
    *,
    free_slots: Mapping[str, int] = MappingProxyType({}),
    default_slots: int,
    lease: timedelta | None = None,
    only: str | None = None,
) -> list[ClaimedDelivery]:
    """At most `limit` due deliveries, of each receiver `free_slots` or `default_slots`; with `only` those of this
    webhook, else all but those of `webhooks listen`. With `ordering: "row"`, one delivery of a row at a time. `lease`:
    by default that of the settings."""
    parameters: dict[str, Any] = {
        "window": ORDERED_CANDIDATE_LIMIT,
        "receivers": list(free_slots),
        "free_slots": list(free_slots.values()),
        "default_slots": default_slots,
        "limit": limit,
        "bytes": MAX_CLAIM_BYTES,
        "lease": settings.WEBHOOK_LEASE if lease is None else lease,
        "only": only,
        "suspended": suspended_in(using),
    }
    found = statements.dicts(using, SQL["claim"], parameters)
    stopwatch = time.monotonic()
    return [ClaimedDelivery(**row, stopwatch=stopwatch) for row in found]


def wait_for_claims(using: str, *webhook_ids: str) -> None:
    """Return when no delivery of these webhooks that is claimed now can still start: as soon as none is claimed, or
    after START_WITHIN and CLAIM_LATENCY_ALLOWANCE. Call it after committing the change that stops them. If PostgreSQL
    fails, it waits for the whole time and then raises DatabaseError."""
    server_hints.will_block()
    end = time.monotonic() + (START_WITHIN + CLAIM_LATENCY_ALLOWANCE).total_seconds()
    try:
        for webhook_id in webhook_ids:
            while (left := end - time.monotonic()) > 0:
                parameters = {"webhook": webhook_id, "most": CLAIM_CHECK_LIMIT}
                has_claims, is_all = statements.row(using, SQL["oldest_claims"], parameters)
                if is_all and not has_claims:
                    break
                time.sleep(min(left, POLL_INTERVAL) if is_all else left)
    except (Error, psycopg.Error):  # a dispatcher with a working connection may still start what it claimed
        time.sleep(max(0.0, end - time.monotonic()))
        raise


@dataclass(frozen=True, slots=True)
class Failing:
    """A webhook to be disabled: its receiver answered 410, or has only failed for long."""

    webhook_id: str
    reason: str
    depth: int


def record(using: str, results: Sequence[AttemptOutcome]) -> list[Failing]:
    """Record outcomes in one statement. Returns the webhooks to be disabled, those that have only failed for
    `WEBHOOK_DISABLE_AFTER` included. An outcome of a lost claim only adds its attempt, except that a delivered one
    counts."""
    rows: list[dict[str, Any]] = [
        {
            "delivery_id": result.claimed.delivery_id,
            "attempt": result.claimed.attempt,
            "webhook_id": result.claimed.webhook_id,
            "at": result.at.isoformat(),
            "duration_ms": round(result.duration.total_seconds() * 1000),
            "status": result.status,
            "outcome": result.error if result.response_status is None else str(result.response_status),
            "wait": None if result.wait is None else result.wait.total_seconds(),
            "response_status": result.response_status,
            "response_headers": result.response_headers,
            "response_body": result.response_body,
            "error": result.error,
            "gone": result.is_gone,
        }
        for result in results
    ]
    ids = [result.claimed.delivery_id for result in results]
    statements.execute(using, SQL["record"], {"results": orjson.dumps(rows).decode(), "ids": ids})
    # A separate transaction: a change of a webhook locks the webhook before its deliveries, and the reverse order could
    # deadlock. After a crash in between, one attempt is missing from the webhook's health.
    webhooks = sorted({result.claimed.webhook_id for result in results})
    delivered = {result.claimed.webhook_id for result in results if result.status == "delivered"}
    gone = {result.claimed.webhook_id for result in results if result.is_gone}
    parameters: dict[str, Any] = {
        "webhooks": webhooks,
        "succeeded": [each in delivered for each in webhooks],
        "gone": [each in gone for each in webhooks],
        "disable_after": settings.WEBHOOK_DISABLE_AFTER,
    }
    failing = []
    for webhook_id, reason in statements.rows(using, SQL["health"], parameters):
        depth = 1 + min(each.claimed.depth for each in results if each.claimed.webhook_id == webhook_id)
        failing.append(Failing(webhook_id, reason, depth))
    return failing


def disable(using: str, failing: Failing) -> None:
    """A periodic job updates its deliveries, because the caller serves a whole region."""
    with transaction.atomic(using=using):
        webhook = Webhook.objects.using(using).select_for_update().filter(pk=failing.webhook_id).first()
        if webhook is None or not webhook.enabled or webhook.deleted_at is not None:
            return
        webhook.enabled, webhook.disabled_reason, webhook.updated_at = False, failing.reason, Now()
        webhook.save(using=using, update_fields=["enabled", "disabled_reason", "updated_at"])
        record_event(
            "webhook.disabled", {"webhook_id": webhook.pk, "url": webhook.url, "reason": failing.reason}, using=using,
            environment_id=webhook.environment_id, depth=failing.depth,
        )  # fmt: skip
        audit_outbox.record_system(
            using, "webhook.disabled", target_id=webhook.pk, environment_id=webhook.environment_id,
            reason=failing.reason,
        )  # fmt: skip


def release(using: str, claims: Sequence[ClaimedDelivery]) -> None:
    if claims:
        ids, attempts = [c.delivery_id for c in claims], [c.attempt for c in claims]
        statements.execute(using, SQL["release"], {"ids": ids, "attempts": attempts})
