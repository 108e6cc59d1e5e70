"""The outbox of the control database: events of environments and users, in the transaction of the change.
`webhooks.delivery.control_events` moves each event, with its id, to the outbox of the environment's region
(`rows.outbox.models`)."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.requests import current_request_id
from platform_site.identity import call_depth, ids


class ControlEvent(models.Model):
    sequence = models.BigAutoField(primary_key=True)
    event_id = models.CharField(max_length=30)
    environment_id = models.CharField(max_length=30)
    cluster = models.CharField(max_length=40, null=True, editable=False)
    """The database of its region; null if the environment does not exist. Set by a trigger."""
    type = models.CharField(max_length=120)
    data = models.TextField()
    request_id = models.CharField(max_length=64, null=True)
    depth = models.SmallIntegerField(db_default=0)
    """Call depth: webhooks and functions in a row."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    relayed_at = models.DateTimeField(null=True)
    """When it was moved to the region, or had no subscribers there; null is due."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["event_id"], name="control_event_once")]
        indexes: ClassVar = [
            # By region: events for an unavailable one do not delay others.
            models.Index(
                fields=["cluster", "sequence"],
                condition=models.Q(relayed_at__isnull=True),
                name="control_event_waiting",
            )
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


def record(event_type: str, data: Mapping[str, Any], *, environment_id: str) -> str:
    """Write an event, in the current control transaction. Returns its `evt_…`."""
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
