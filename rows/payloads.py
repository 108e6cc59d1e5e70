"""What a subscriber is shown of an event: at most what role `server` may read, of that the columns its owner asked for,
and nothing at all where its filter says no. Design section 7; threats T1, T6.

Rules are those of now, not of the moment of the write: who took a column away does not want to see it arrive.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol
from uuid import UUID

from django.db import transaction

from platform_site.api.callers import Place
from rows import grammar, registry
from rows.conditions import Condition, Hop
from rows.evaluate import Effort, Facts, holds
from rows.events import trimmed
from rows.outbox import OutboxEvent
from rows.rules import SERVER, ReadRule

RELATED_ROWS: Final = 1000
"""How many far rows a rule's relation is followed to; a rule that leads to more is not met."""
MOST_EFFORT: Final = 3_000_000
"""Steps that all rules and filters of one event may take: about a second. Others stand in line behind it."""


class Subscriber(Protocol):
    """A webhook, or a function that runs on events."""

    @property
    def id(self) -> str: ...

    @property
    def filter(self) -> Mapping[str, Any] | None: ...

    @property
    def columns(self) -> Mapping[str, Any] | None: ...


class Hidden(Exception):
    """Role `server` may read neither the row nor what it was before: that it was written is nobody's to know."""


class _TooManyRelated(Exception):
    """A rule leads to more rows than are looked at."""


def region_place(environment_id: str, using: str) -> Place:
    """What a worker in a region knows of an environment's place: where its rows are. The rest lives in control."""
    return Place(environment_id, "", "", region=using, cluster=using, plan="free", pool_id=environment_id)


class Payloads:
    """The payloads of one relay batch in the region `using`; what it reads of an environment it reads once."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._environments: dict[str, registry.Environment] = {}
        self._filters: dict[tuple[str, str], Condition | None] = {}
        self._efforts: tuple[int | None, Effort] = None, Effort(0)

    def carried(self, event: OutboxEvent, data: Mapping[str, Any], subscriber: Subscriber) -> dict[str, Any] | None:
        """The `data` of a delivery, or None where the subscriber's filter refuses it. Raises Hidden, TooCostly."""
        table = data.get("table")
        if event.subject is None or not isinstance(table, str):
            return dict(data)
        environment = self._environment(event.environment_id)
        if table not in environment.schema.tables:
            raise Hidden
        rule = environment.rules.access(table, SERVER).read
        if rule is None:
            raise Hidden
        old, new = data.get("old_record"), data.get("record")
        effort = self._effort(event)
        readable_old = self._readable(environment, rule, old, effort)
        readable_new = self._readable(environment, rule, new, effort)
        # After a delete the filter speaks of the row as it was.
        subject = readable_new if readable_new is not None else readable_old
        if subject is None:
            raise Hidden
        if not self._is_wanted(environment, subscriber, table, subject, Facts(old=readable_old, effort=effort)):
            return None
        columns = None if subscriber.columns is None else list(subscriber.columns.get(table, []))
        shown_new, shown_old = trimmed(readable_new, columns), trimmed(readable_old, columns)
        shown = {*(shown_new or {}), *(shown_old or {})}
        changed = [name for name in data.get("changed") or [] if name in shown]
        return {
            "table": table,
            "id": data["id"],
            "record": shown_new,
            "old_record": shown_old,
            "changed": changed,
        }

    def _environment(self, environment_id: str) -> registry.Environment:
        found = self._environments.get(environment_id)
        if found is None:
            place = region_place(environment_id, self._using)
            found = registry.environment(place)
            if not registry.is_current(found):
                found = registry.reload(place)
            self._environments[environment_id] = found
        return found

    def _effort(self, event: OutboxEvent) -> Effort:
        """What is left of the event's."""
        if self._efforts[0] != event.pk:
            self._efforts = event.pk, Effort(MOST_EFFORT)
        return self._efforts[1]

    def _readable(
        self, environment: registry.Environment, rule: ReadRule, record: Mapping[str, Any] | None, effort: Effort
    ) -> dict[str, Any] | None:
        """The cells of `record` that role `server` may read; None where it may not read the row."""
        if record is None:
            return None
        facts = Facts(related=lambda hop, row: self._related(environment, hop, row), effort=effort)
        granted: set[str] = set()
        matched = False
        for grant in rule.grants:
            # Among some of the far rows a rule that wants none of a kind could hold by chance.
            with suppress(_TooManyRelated):
                if holds(grant.where, record, facts):
                    matched = True
                    granted |= grant.columns
        return {name: value for name, value in record.items() if name in granted} if matched else None

    def _related(
        self, environment: registry.Environment, hop: Hop, row: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """The rows that a relation in a rule leads to, whole: paths inside a rule are its author's. Raises
        _TooManyRelated."""
        key = row.get("id") if hop.many else row.get(hop.column)
        if key is None:
            return []
        rows = environment.models[hop.table].unruled.using(environment.alias)
        # In a savepoint: if this one read fails, it is this event that gets no payload, not all of the batch.
        with transaction.atomic(using=self._using):
            found = list(rows.filter((hop.column if hop.many else "id", key)).values()[: RELATED_ROWS + 1])
        if len(found) > RELATED_ROWS:
            raise _TooManyRelated
        return [{name: str(cell) if isinstance(cell, UUID) else cell for name, cell in far.items()} for far in found]

    def _is_wanted(
        self,
        environment: registry.Environment,
        subscriber: Subscriber,
        table: str,
        record: Mapping[str, Any],
        facts: Facts,
    ) -> bool:
        if subscriber.filter is None:
            return True
        key = (subscriber.id, table)
        if key not in self._filters:
            try:
                self._filters[key] = grammar.read_record(subscriber.filter, table, environment.rules.sight(SERVER))
            except grammar.InvalidCondition:
                self._filters[key] = None  # a column it names is gone, or not of this table: it matches nothing
        condition = self._filters[key]
        return condition is not None and holds(condition, record, facts)
