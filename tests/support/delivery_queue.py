"""Queued deliveries of webhooks, and what a claim reads."""

import json
from collections import Counter
from datetime import timedelta
from typing import Any

from django.db import connections, transaction

from tests.rows.conftest import Tracker
from webhooks.delivery.queue import MAX_CLAIM_BYTES, SQL
from webhooks.models import Delivery

PILE = """
INSERT INTO platform.webhooks_delivery (id, environment_id, webhook_id, event_id, event_type, subject, sequence, depth,
       body, status, attempts, schedule_from, next_attempt_at, created_at)
SELECT 'dlv_' || n || right(%(webhook)s::text, 10), %(env)s, %(webhook)s::text, 'evt_' || n, 'lists.insert', 'lists/' || n, n, 0,
       '{"n": ' || n || '}', %(status)s::text, 0, 0,
       CASE WHEN %(status)s::text IN ('pending', 'held') THEN now() - interval '1 hour' + n * interval '1 millisecond' END,
       now() - interval '1 hour' + n * interval '1 millisecond'
  FROM generate_series(1, %(count)s::int) n
"""


def pile_up(tracker: Tracker, webhook: dict[str, Any], count: int, status: str) -> None:
    facts = {"env": tracker.environment_id, "webhook": webhook["id"], "count": count, "status": status}
    with transaction.atomic(using=tracker.project.cluster), connections[tracker.project.cluster].cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(PILE, facts)


def counted(tracker: Tracker, webhook: dict[str, Any]) -> Counter[str]:
    found = Delivery.objects.using(tracker.project.cluster).filter(webhook_id=webhook["id"])
    return Counter(found.values_list("status", flat=True))


def gather_statistics(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0; ANALYZE platform.webhooks_delivery; RESET statement_timeout")


def forget_statistics(using: str, table: str = "webhooks_delivery") -> None:
    """As of a table that PostgreSQL has not looked through yet. Other tests leave theirs, and which ran before is
    chance."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_clear_relation_stats('platform', %s)", [table])
        cursor.execute(
            "SELECT pg_clear_attribute_stats('platform', relname::text, attname, false)"
            " FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
            " WHERE attrelid = ('platform.' || %s)::regclass AND attnum > 0 AND NOT attisdropped",
            [table],
        )


def blocks_of_a_claim(using: str, **more: Any) -> int:
    """How many pages one claim looks at. It is undone."""
    parameters = {
        "bytes": MAX_CLAIM_BYTES, "window": 2000, "receivers": [], "free_slots": [], "default_slots": 2, "limit": 20, "lease": timedelta(seconds=30),
        "only": None, "suspended": [], **more,
    }  # fmt: skip
    return blocks_of(using, SQL["claim"], parameters)


def blocks_of(using: str, statement: str, parameters: dict[str, Any]) -> int:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, parameters)
        found = cursor.fetchone()[0]
        transaction.set_rollback(True, using=using)
    [plan] = json.loads(found) if isinstance(found, str) else found
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])
