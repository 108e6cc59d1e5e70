"""The watched tables: their writes record events while a stream subscribes to them, and for some time after."""

import uuid
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import plan_limits
from rows.models import EventInterest, WatchedTable
from rows.outbox import subscriptions

_MARGIN: Final = timedelta(seconds=5)


def patterns_of(environment_id: str, using: str) -> Iterable[Sequence[str]]:
    watched = WatchedTable.objects.using(using).filter(environment_id=environment_id)
    return [[f"{table}.*"] for table in watched.values_list("table_name", flat=True)]


def watch(environment: EnvironmentRef, tables: Collection[str]) -> None:
    """For the plan's `change_retention_seconds` from now, or a little longer."""
    environment_id, using = environment.environment_id, environment.cluster
    keep = timedelta(seconds=plan_limits(environment.plan).change_retention_seconds)
    watched = WatchedTable.objects.using(using).filter(environment_id=environment_id)
    with transaction.atomic(using=using):
        # Extended only when too little time is left, and by a margin: otherwise each of a thousand streams that open
        # one after the other would wait for a commit of the same row.
        watched.filter(table_name__in=tables, expires_at__lt=Now() + keep).update(expires_at=Now() + keep + _MARGIN)
        if watched.filter(table_name__in=tables).count() < len(tables):
            subscriptions.lock(environment_id, using)
            WatchedTable.objects.using(using).bulk_create(
                [
                    WatchedTable(
                        environment_id=environment_id,
                        table_name=table,
                        generation=uuid.uuid4().hex,
                        expires_at=Now() + keep + _MARGIN,
                    )
                    for table in tables
                ],
                ignore_conflicts=True,
            )
            subscriptions.refresh(environment_id, using)


def invalidate_positions(environment_id: str, using: str) -> None:
    """Each stream sends a reset. Called in a transaction that writes rows without recording events."""
    WatchedTable.objects.using(using).filter(environment_id=environment_id).update(generation=uuid.uuid4().hex)


def expire(using: str) -> None:
    over = WatchedTable.objects.using(using).filter(expires_at__lt=Now())
    watched = WatchedTable.objects.using(using).filter(environment_id=OuterRef("environment_id"))
    lost = EventInterest.objects.using(using).filter(~Exists(watched), is_for_relay=False)  # by a crash
    for environment_id in over.values_list("environment_id", flat=True).union(
        lost.values_list("environment_id", flat=True)
    ):
        with transaction.atomic(using=using):
            subscriptions.lock(environment_id, using)
            over.filter(environment_id=environment_id).delete()
            subscriptions.refresh(environment_id, using)
