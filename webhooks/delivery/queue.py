"""The queue of due deliveries, kept in PostgreSQL: claim, then send with no transaction open, then record.

A claim is a lease: `claimed_until` in the database's own time, and `attempts` as the fencing token. Whoever records an
outcome names the attempt that it claimed; if another worker has claimed since, the delivery is left alone, unless the
receiver had taken the event: then it is not sent a third time. So a worker that stalls beyond its lease costs a
duplicate at most (same `webhook-id`, same body), never a lost attempt.

A claim and a switch of its webhook have an order, by a lock on the webhook: what is claimed was claimed before the
switch. And an attempt begins within START_WITHIN of its claim or not at all, so whoever has switched a webhook off only
waits a little longer than that (`wait_for_claims`), and can promise that nothing starts any more.
"""

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


# A claim, step by step. Each is a named query of one statement, so that all of it sees the same moment.
_MAY_BE_SENT_TO = """
       w.enabled AND w.deleted_at IS NULL AND w.drop_before IS NULL
       AND w.environment_id <> ALL (%(suspended)s::text[])"""
_OF_EACH_WEBHOOK = first_of_each("of_each_webhook", "pending", "next_attempt_at")
_OPEN_WEBHOOKS = f"""
    -- Webhooks with due deliveries that may be sent, and the free concurrency of their receivers.
    SELECT w.id, w.host, w.ordering, of_each_webhook.first, coalesce(known.room, %(initial_concurrency)s) AS room
      FROM of_each_webhook JOIN platform.webhooks_webhook w ON w.id = of_each_webhook.webhook_id
      LEFT JOIN unnest(%(hosts)s::text[], %(rooms)s::int[]) AS known (host, room) ON known.host = w.host
     WHERE of_each_webhook.first <= now() AND {_MAY_BE_SENT_TO}
       AND CASE WHEN %(only)s::text IS NULL THEN w.listens_until IS NULL ELSE w.id = %(only)s::text END
       AND coalesce(known.room, %(initial_concurrency)s) > 0"""  # noqa: S608 - constants
_NEXT_IN_ANY_ORDER = f"""
    -- The longest due deliveries of webhooks without ordering. The scan starts at the first pending one: before it are
    -- index entries of settled deliveries that vacuum has not removed yet.
    SELECT next.*, open_webhooks.id AS webhook_id, open_webhooks.host, open_webhooks.room
      FROM open_webhooks, LATERAL (
           SELECT d.id, d.next_attempt_at, d.sequence, octet_length(d.body) AS size FROM platform.webhooks_delivery d
            WHERE d.webhook_id = open_webhooks.id AND open_webhooks.ordering = 'none'
              AND d.status = 'pending' AND d.next_attempt_at BETWEEN open_webhooks.first AND now() AND {UNCLAIMED}
            ORDER BY d.next_attempt_at LIMIT open_webhooks.room) AS next"""  # noqa: S608 - constants
_FIRST_UNRELAYED = """
                  (SELECT sequence FROM platform.rows_outboxevent WHERE relayed_at IS NULL ORDER BY sequence LIMIT 1)"""
_NEXT_OF_ROWS = f"""
    -- Of a webhook in the order of rows the first event of each row that has something due for longest. Often that is
    -- not what is due itself: one that is tried again is due later than those that wait behind it, or is not due yet.
    SELECT next.*, open_webhooks.id AS webhook_id, open_webhooks.host, open_webhooks.room
      FROM open_webhooks, LATERAL (
           SELECT d.id, d.next_attempt_at, d.sequence, octet_length(d.body) AS size
             FROM (SELECT subject, CASE WHEN subject IS NULL THEN id END AS alone, min(next_attempt_at) AS since
                     FROM (SELECT d.subject, d.id, d.next_attempt_at FROM platform.webhooks_delivery d
                            WHERE d.webhook_id = open_webhooks.id AND open_webhooks.ordering = 'row'
                              AND d.status = 'pending' AND d.next_attempt_at BETWEEN open_webhooks.first AND now()
                            ORDER BY d.next_attempt_at LIMIT %(window)s) AS due
                    GROUP BY 1, 2 ORDER BY since) AS due_rows,
                  LATERAL (
                  (SELECT first.* FROM platform.webhooks_delivery first
                    WHERE first.webhook_id = open_webhooks.id AND first.subject = due_rows.subject
                      AND first.status IN ('pending', 'held') ORDER BY first.sequence LIMIT 1)
                   UNION ALL
                  SELECT one.* FROM platform.webhooks_delivery one WHERE one.id = due_rows.alone) AS d
            WHERE d.status = 'pending' AND d.next_attempt_at <= now() AND {UNCLAIMED}
              -- Relays go by the sequence, so it is rare that one before it is not relayed, of whatever row; only then
              -- are the events of its own row read, which may be a hundred thousand.
              AND (d.sequence < coalesce({_FIRST_UNRELAYED}, d.sequence + 1) OR NOT EXISTS (
                  SELECT 1 FROM platform.rows_outboxevent unrelayed
                   WHERE unrelayed.relayed_at IS NULL AND unrelayed.sequence < d.sequence
                     AND unrelayed.environment_id = d.environment_id AND unrelayed.subject = d.subject))
            ORDER BY due_rows.since LIMIT open_webhooks.room) AS next"""  # noqa: S608 - constants
_CHOSEN = """
    -- As many as were asked for and fit into memory: first one of each receiver, then a second of each, and so on.
    SELECT id, webhook_id FROM (
           SELECT id, webhook_id, place, next_attempt_at, size,
                  sum(size) OVER (ORDER BY place, next_attempt_at, id ROWS UNBOUNDED PRECEDING) AS size_so_far
             FROM (SELECT *, row_number() OVER (PARTITION BY host ORDER BY next_attempt_at, sequence) AS place
                     FROM next_of_webhooks) AS of_receivers
            WHERE place <= room) AS in_turn
     WHERE size_so_far - size < %(bytes)s ORDER BY place, next_attempt_at LIMIT %(limit)s"""
_STATE = f"""
    -- Their webhooks, as they are by now. Whoever switches one at this moment is not waited for, and whoever will waits
    -- until this claim is made.
    SELECT w.id, w.host, w.url, w.sealed_secret,
           w.sealed_previous_secret, w.previous_secret_until
      FROM platform.webhooks_webhook w
     WHERE w.id = ANY (ARRAY (SELECT webhook_id FROM chosen)) AND {_MAY_BE_SENT_TO}
       FOR KEY SHARE OF w SKIP LOCKED"""  # noqa: S608 - constants
_LOCKED = f"""
    -- Those of them that no other worker was quicker to take. Spelled so that no partial index of what is pending
    -- offers itself: without statistics the planner would take one, and read the whole backlog to find these few.
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT chosen.id FROM chosen JOIN standing ON standing.id = chosen.webhook_id))
       AND coalesce(d.status, '') = 'pending' AND {UNCLAIMED}
       FOR UPDATE OF d SKIP LOCKED"""  # noqa: S608 - constants
CLAIM = f"""
WITH RECURSIVE {_OF_EACH_WEBHOOK},
open_webhooks AS ({_OPEN_WEBHOOKS}),
next_of_webhooks AS ({_NEXT_IN_ANY_ORDER} UNION ALL {_NEXT_OF_ROWS}),
chosen AS ({_CHOSEN}),
standing AS ({_STATE}),
locked AS ({_LOCKED})
UPDATE platform.webhooks_delivery d
   SET claimed_until = now() + %(lease)s, attempts = d.attempts + 1
  FROM standing w
 -- Spelled so that only the identifiers lead to the deliveries, never the index of a webhook's whole history.
 WHERE d.id = ANY (ARRAY (SELECT id FROM locked)) AND w.id = coalesce(d.webhook_id, '')
RETURNING d.id, d.attempts, d.attempts - d.schedule_from, d.webhook_id, d.environment_id, w.host, w.url, d.event_id,
          d.event_type, d.depth, d.body, w.sealed_secret, w.sealed_previous_secret, w.previous_secret_until,
          clock_timestamp()
"""  # noqa: S608 - constants
# Since when the oldest event waits for a relay, and of each webhook the first delivery for a worker.
LONGEST_WAIT = f"""
WITH RECURSIVE {_OF_EACH_WEBHOOK}
SELECT max(now() - waiting.since)
  FROM ((SELECT created_at FROM platform.rows_outboxevent WHERE relayed_at IS NULL ORDER BY sequence LIMIT 1)
        UNION ALL
        SELECT (SELECT greatest(d.next_attempt_at, d.claimed_until) FROM platform.webhooks_delivery d
                 WHERE d.webhook_id = w.id AND d.status = 'pending' AND {UNCLAIMED}
                   AND d.next_attempt_at BETWEEN of_each_webhook.first AND now()
                 ORDER BY d.next_attempt_at LIMIT 1)
          FROM of_each_webhook JOIN platform.webhooks_webhook w ON w.id = of_each_webhook.webhook_id
         WHERE of_each_webhook.first <= now() AND {_MAY_BE_SENT_TO} AND w.listens_until IS NULL) AS waiting (since)
"""  # noqa: S608 - constants


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
    rooms: Sequence[int] = (),
    initial_concurrency: int,
    lease: timedelta = LEASE,
    only: str | None = None,
) -> list[ClaimedDelivery]:
    """Up to `limit` due attempts: at most `rooms` for each of `hosts`, `initial_concurrency` for any other receiver.
    With `only`, those of this webhook; otherwise all but those of `webhooks listen`.

    One statement. With `ordering: "row"`, the deliveries of a row are claimed one after the other. Deliveries of
    suspended projects stay pending.
    """
    parameters: dict[str, Any] = {
        "window": ORDERED_CANDIDATE_LIMIT,
        "hosts": list(hosts),
        "rooms": list(rooms),
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


_CLAIMS_OF_THE_FIRST = """
SELECT coalesce(bool_or(claimed_until > now()), false), count(*) < %(most)s
  FROM (SELECT claimed_until FROM platform.webhooks_delivery
         WHERE webhook_id = %(webhook)s AND status = 'pending' AND next_attempt_at <= now()
         ORDER BY next_attempt_at LIMIT %(most)s) AS first
"""


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


_RESULTS = """
    SELECT * FROM jsonb_to_recordset(%(results)s::jsonb) AS r (
           delivery_id text, attempt int, webhook_id text, at timestamptz, duration_ms int, status text, outcome text,
           wait double precision, response_status int, response_headers jsonb, response_body text, error text,
           gone boolean)"""
_ATTEMPTED = """
    -- Locked in one order, so that two workers that book side by side never wait for each other in a circle; and those
    -- of a lost claim, too, so that nobody deletes a delivery while its attempt is written.
    SELECT d.id, d.status, d.attempts FROM platform.webhooks_delivery d
     WHERE d.id = ANY (%(ids)s) ORDER BY d.id FOR NO KEY UPDATE OF d"""
_RECORDED = """
    UPDATE platform.webhooks_delivery d
       SET status = CASE
               WHEN r.status <> 'pending' THEN r.status
               WHEN w.deleted_at IS NOT NULL THEN 'exhausted'
               WHEN NOT w.enabled OR r.gone THEN 'held'
               ELSE 'pending' END,
           outcome = r.outcome,
           last_attempt_at = r.at,
           has_succeeded = r.status = 'delivered',
           claimed_until = NULL,
           next_attempt_at = CASE WHEN r.wait IS NOT NULL THEN now() + r.wait * interval '1 second' END
      FROM attempted, results r, platform.webhooks_webhook w
     WHERE d.id = ANY (%(ids)s) AND d.id = attempted.id AND attempted.id = r.delivery_id
       AND attempted.status = 'pending' AND w.id = d.webhook_id
       AND (attempted.attempts = r.attempt
            -- Late, but the receiver has it: what the attempt of another worker comes to is of no matter any more. Not
            -- where that was asked for (a redelivery), nor where the row's next event would overtake that attempt.
            OR r.status = 'delivered' AND r.attempt > d.schedule_from
               AND (w.ordering = 'none' OR d.subject IS NULL OR coalesce(d.claimed_until < now(), true)))
 RETURNING d.id"""
_HISTORY = """
    INSERT INTO platform.webhooks_attempt
           (delivery_id, number, at, duration_ms, response_status, response_headers, response_body, error)
    SELECT r.delivery_id, r.attempt, r.at, r.duration_ms, r.response_status, r.response_headers, r.response_body,
           r.error
      FROM results r JOIN attempted ON attempted.id = r.delivery_id
        ON CONFLICT (delivery_id, number) DO NOTHING"""
RECORD = f"""
WITH results AS ({_RESULTS}),
attempted AS ({_ATTEMPTED}),
booked AS ({_RECORDED}),
history AS ({_HISTORY})
SELECT count(*) FROM booked
"""  # noqa: S608 - constants
# When a webhook's row of failures begins and ends; and which of them are to be disabled.
HEALTH = """
WITH health AS (
    SELECT * FROM unnest(%(webhooks)s::text[], %(succeeded)s::bool[], %(gone)s::bool[])
           AS h (webhook_id, succeeded, gone)
), turned AS (
    SELECT w.id FROM platform.webhooks_webhook w JOIN health h ON h.webhook_id = w.id
     WHERE (w.failing_since IS NULL) <> h.succeeded
     ORDER BY w.id FOR NO KEY UPDATE OF w
), changed AS (
    UPDATE platform.webhooks_webhook w
       SET failing_since = CASE WHEN h.succeeded THEN NULL ELSE coalesce(w.failing_since, now()) END
      FROM health h, turned
     WHERE w.id = h.webhook_id AND w.id = turned.id
)
SELECT w.id, CASE WHEN h.gone THEN 'gone' ELSE 'failing' END
  FROM health h JOIN platform.webhooks_webhook w ON w.id = h.webhook_id
 WHERE w.enabled AND w.deleted_at IS NULL AND NOT h.succeeded
   AND (h.gone OR w.failing_since < now() - %(patience)s)
"""


@dataclass(frozen=True, slots=True)
class Failing:
    """A webhook to be disabled: its receiver answered 410, or has done nothing but fail for long."""

    webhook_id: str
    reason: str
    depth: int
    """The call depth: the shortest one among the deliveries that failed now, so that the owner is notified in any
    case."""


def record(using: str, results: Sequence[AttemptOutcome], *, patience: timedelta) -> list[Failing]:
    """Book the outcomes of attempts, all in one statement. Returns the webhooks to be disabled, those that have done
    nothing but fail for `patience` among them.

    An outcome whose claim was lost to another worker leaves its attempt in the history and the delivery alone, except
    that a delivery which has arrived is delivered.
    """
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
        "patience": patience,
    }
    with connections[using].cursor() as cursor:
        cursor.execute(HEALTH, parameters)
        return [Failing(webhook_id, reason, _depth_of(webhook_id, results)) for webhook_id, reason in cursor.fetchall()]


def _depth_of(webhook_id: str, results: Sequence[AttemptOutcome]) -> int:
    """Of what comes of these attempts at the webhook's deliveries."""
    return 1 + min(result.claimed.depth for result in results if result.claimed.webhook_id == webhook_id)


RELEASE = """
UPDATE platform.webhooks_delivery d
   SET claimed_until = NULL, attempts = d.attempts - 1
  FROM unnest(%(ids)s::text[], %(attempts)s::int[]) AS mine (id, attempt)
 WHERE d.id = mine.id AND d.attempts = mine.attempt AND d.status = 'pending'
"""


def release(using: str, claims: Sequence[ClaimedDelivery]) -> None:
    """Return claims whose attempt never started, so that another worker takes them at once."""
    if claims:
        with connections[using].cursor() as cursor:
            ids, attempts = [c.delivery_id for c in claims], [c.attempt for c in claims]
            cursor.execute(RELEASE, {"ids": ids, "attempts": attempts})
