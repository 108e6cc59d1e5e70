"""The outbox of the control database: events of environments and their users, in the transaction of the change.
Subscriptions live in the regions. `webhooks.delivery.control_events` carries each event over into the outbox of its
environment's region, under the id that it has here. Rows have an outbox of their own there (`rows.outbox.models`)."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.requests import current_request_id
from platform_site.identity import call_depth, ids


class ControlEvent(models.Model):
    """One fact that was committed. Written once; only `relayed_at` changes."""

    sequence = models.BigAutoField(primary_key=True)
    event_id = models.CharField(max_length=30)
    """`evt_…`, the `webhook-id` of every delivery."""
    environment_id = models.CharField(max_length=30)
    """The environment whose webhooks receive it."""
    cluster = models.CharField(max_length=40, null=True, editable=False)
    """The database of its region; null if the environment does not exist. A trigger sets it."""
    type = models.CharField(max_length=120)
    data = models.TextField()
    """The payload's `data` as JSON text."""
    request_id = models.CharField(max_length=64, null=True)
    depth = models.SmallIntegerField(db_default=0)
    """How many webhooks and functions in a row led to it."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    relayed_at = models.DateTimeField(null=True)
    """When it was moved to the region's outbox, or had no subscribers there; null is due."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["event_id"], name="control_event_once")]
        indexes: ClassVar = [
            # By region: events for an unavailable one do not delay others.
            models.Index(
                fields=["cluster", "sequence"],
                condition=models.Q(relayed_at__isnull=True),
                name="control_event_waiting",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


def record(event_type: str, data: Mapping[str, Any], *, environment_id: str) -> str:
    """Write an event, in the transaction at hand of the control database. Returns its `evt_…`."""
    event_id = ids.new("evt")
    ControlEvent.objects.create(
        event_id=event_id,
        environment_id=environment_id,
        type=event_type,
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
        request_id=current_request_id(),
        depth=call_depth.depth_here(environment_id),
    )
    return event_id
