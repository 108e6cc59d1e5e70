"""Moves events of the control database to the outbox of their region. The region commits first; after a crash the event
is moved again, and the region ignores the duplicate id. Events for an unavailable region wait."""

from datetime import timedelta
from typing import Final

import orjson
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Q
from django.db.models.functions import Now

from platform_site.postgres import statements
from projects.control_events import ControlEvent
from projects.models import Environment

BATCH: Final = 200
PURGE_BATCH: Final = 1000
RETENTION: Final = timedelta(days=7)

_MOVE = """
INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth, created_at)
SELECT event.event_id, event.environment_id, event.type, event.data, event.request_id, event.depth, event.created_at
  FROM json_to_recordset(%s::json) AS event (
       event_id text, environment_id text, type text, data text, request_id text, depth smallint,
       created_at timestamptz)
 WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                WHERE i.environment_id = event.environment_id AND i.action = '*'
                  AND i.table_name IN ('*', regexp_replace(event.type, '[.][^.]*$', '')))
    ON CONFLICT (event_id) DO NOTHING
"""


def move_to_region(using: str) -> int:
    """Returns how many events were moved, at most BATCH. Raises DatabaseError."""
    with transaction.atomic(using=DEFAULT_DB_ALIAS):
        # A range of one cluster in the order of (cluster, sequence), and no sorting: only one index can serve that, so
        # the planner never reads the events of other regions, whatever its statistics say.
        statements.execute(DEFAULT_DB_ALIAS, "SELECT set_config('enable_sort', 'off', true)")
        due = list(
            ControlEvent.objects.select_for_update(skip_locked=True)
            .filter(relayed_at__isnull=True, cluster__range=(using, using))
            .order_by("cluster", "sequence")
            .values("pk", "event_id", "environment_id", "type", "data", "request_id", "depth", "created_at")[:BATCH]
        )
        if not due:
            return 0
        with transaction.atomic(using=using):
            statements.execute(using, _MOVE, [orjson.dumps(due).decode()])
        ControlEvent.objects.filter(pk__in=[event["pk"] for event in due]).update(relayed_at=Now())
    return len(due)


def purge_old() -> int:
    waiting = Q(relayed_at__isnull=True, environment_id__in=Environment.objects.values("pk"))
    old = ControlEvent.objects.filter(created_at__lt=Now() - RETENTION).exclude(waiting)
    return statements.delete_in_batches(old, PURGE_BATCH)
