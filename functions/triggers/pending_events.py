"""The rows that `functions.triggers.events` describes."""

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from functions import notify as function_notify
from functions.models import Function, PendingEvent
from functions.triggers.event_subscriptions import covers
from platform_site.background.skip_scan import skip_scan
from platform_site.postgres import statements
from platform_site.postgres.statements import delete_in_batches
from rows.outbox.models import OutboxEvent

_INSERT: Final = """
INSERT INTO platform.functions_pendingevent (environment_id, function_id, event_id, sequence)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) ON CONFLICT DO NOTHING
"""
REACHED: Final = skip_scan("reached", "platform.functions_pendingevent", "environment_id")
"""A recursive common table expression: the environments with pending events."""


class PendingEventWriter:
    """A `rows.outbox.subscriptions.EventConsumer` of the relay."""

    def __init__(self, environment_ids: Collection[str], using: str) -> None:
        self.count = 0
        self._using = using
        self._pending: list[tuple[str, str, str, int]] = []
        self._subscriptions: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
        subscribed = Function.objects.using(using).filter(events__isnull=False, events_stopped=None)
        found = subscribed.filter(environment_id__in=environment_ids).order_by("pk")
        for environment_id, function_id, patterns in found.values_list("environment_id", "pk", "events"):
            self._subscriptions[environment_id or ""].append((function_id, patterns or []))

    def add(self, event: OutboxEvent) -> None:
        for function_id, patterns in self._subscriptions.get(event.environment_id, ()):
            if covers(patterns, event.type):
                self._pending.append((event.environment_id, function_id, event.event_id, event.sequence))
                self.count += 1

    def write(self) -> None:
        if not self._pending:
            return
        columns = [list(column) for column in zip(*self._pending, strict=True)]
        statements.execute(self._using, _INSERT, columns)
        function_notify.after_commit(self._using)


def delete_all(environment_id: str, using: str) -> None:
    delete_in_batches(PendingEvent.objects.using(using).filter(environment_id=environment_id).order_by("pk"))
