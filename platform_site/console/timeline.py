"""The timeline: for any id, what happened around it, from data that is stored anyway: request → audit entries, row
events, runs; events → deliveries and attempts, runs. Each query uses an index, and each kind stops at MAX_SHOWN. It
shows ids, kinds, times and outcomes; never cell values, payloads, inputs, or more of a URL than its host."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error
from django.db.models import Model, Q, QuerySet

from accounts.models import AuditEntry
from functions.models import Function, InboundEndpoint, Run
from functions.runs import history
from platform_site.console import timeline_entries
from platform_site.console.timeline_entries import Entry
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import statements
from platform_site.request_log import reader as request_log
from projects.directory.environments import environment_ref
from rows.migrate import versions as schema_versions
from rows.outbox.models import OutboxEvent
from webhooks.models import Attempt, Delivery, Webhook

MAX_SHOWN: Final = 50
MAX_QUERY_LENGTH: Final = 120
REQUESTS: Final = 5

KINDS: Final = frozenset({"audit", "request", "event", "delivery", "run"})
"""An attempt belongs to its delivery, an inbound endpoint to its runs."""
CONTROL_KINDS: Final = {
    "prj": ("project_id", "target_id"),
    "env": ("environment_id", "target_id"),
    "usr": ("actor_id", "target_id"),
    "key": ("actor_id", "target_id"),
    **dict.fromkeys(("ses", "mem", "idp", "wh", "fn", "dlv", "run"), ("target_id",)),
    "aud": ("id",),
}
"""Indexed columns of the audit log that may have an id of this kind."""

_NEWEST_RUNS: Final = """
SELECT r.id
  FROM platform.functions_function f,
       LATERAL (SELECT id, created_at FROM platform.functions_run
                 WHERE function_id = f.id ORDER BY created_at DESC, id DESC LIMIT 5) AS r
 WHERE f.environment_id = %s
 ORDER BY r.created_at DESC, r.id DESC LIMIT %s
"""
"""The newest five per function, by index."""

Kinds = frozenset[str]
Row = TypeVar("Row", bound=Model)
logger = logging.getLogger("platform.console")


@dataclass(slots=True)
class Timeline:
    """`within` and `kinds` limit the entries for callers other than operators."""

    text: str
    environment_id: str
    within: EnvironmentRef | None
    kinds: Kinds
    entries: list[Entry] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    hint: str = ""
    is_cut: bool = False
    requests: set[str] = field(default_factory=set)
    _found: dict[str, Entry] = field(default_factory=dict)
    """By id."""

    @property
    def regions(self) -> list[str]:
        return [self.within.cluster] if self.within else list(settings.REGION_DATABASES)

    def query(self, using: str | None, read: Callable[[str], None]) -> None:
        """Call `read(using)`; an unavailable database is named in the timeline."""
        if using is None:
            return
        try:
            read(using)
        except Error as error:
            logger.warning(
                "a database was unavailable to the timeline", extra={"database": using, "why": type(error).__name__}
            )
            if using not in self.unavailable:
                self.unavailable.append(using)

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._found.setdefault(entry.id, entry)

    def visible(self, kind: str, rows: QuerySet[Row]) -> QuerySet[Row]:
        if kind not in self.kinds:
            return rows.none()
        return rows.filter(environment_id=self.within.environment_id) if self.within else rows

    def limited(self, found: Sequence[Any]) -> Sequence[Any]:
        if len(found) > MAX_SHOWN:
            self.is_cut = True
        return found[:MAX_SHOWN]

    def sorted_entries(self) -> list[Entry]:
        entries = list(self._found.values())
        logged = {entry.facts[0][1] for entry in entries if entry.kind == "request"}
        named = sorted(self.requests - logged) if entries and "request" in self.kinds else []
        begun = [Entry(ids.created_at(each), "request", each, "") for each in named if ids.matches("req", each)]
        return sorted([*begun, *entries], key=lambda entry: (entry.at, entry.depth))

    def add_audit_entries(self, **conditions: str | list[str]) -> None:
        rows = AuditEntry.objects.filter(**conditions)
        if self.within is not None and "actor_id" in conditions:
            rows = rows.exclude(actor_kind="staff")
        newest = self.visible("audit", rows).order_by("-at", "-id")[: MAX_SHOWN + 1]
        entries = self.limited(list(newest))
        self.requests |= {entry.request_id for entry in entries if entry.request_id}
        self.add(timeline_entries.audit_entry(entry, for_members=self.within is not None) for entry in entries)

    def add_requests(self, using: str, requests: list[str]) -> None:
        if "request" in self.kinds:
            within = self.within.environment_id if self.within else None
            newest = self.limited(request_log.of_requests(using, requests, MAX_SHOWN + 1, within))
            self.add(timeline_entries.request_entry(entry, using) for entry in newest)

    def add_events(self, using: str, condition: Q) -> None:
        known = self.visible("event", OutboxEvent.objects.using(using).filter(condition))
        events = list(self.limited(list(known.order_by("-sequence")[: MAX_SHOWN + 1])))
        self.requests |= {event.request_id for event in events if event.request_id}
        self.add(timeline_entries.event_entry(event, using) for event in events)
        pairs = Q()
        for environment_id in {event.environment_id for event in events}:
            named = [event.event_id for event in events if event.environment_id == environment_id]
            pairs |= Q(environment_id=environment_id, event_id__in=named)
        if events:
            self.add_deliveries(using, Delivery.objects.using(using).filter(pairs))
            named = [event.event_id for event in events]
            self.add_runs(using, _runs(using).filter(event_id__in=named))

    def add_deliveries(self, using: str, found: "QuerySet[Delivery]") -> None:
        deliveries = self.limited(list(self.visible("delivery", found)[: MAX_SHOWN + 1]))
        webhooks = Webhook.objects.using(using).in_bulk({each.webhook_id for each in deliveries})
        self.add(timeline_entries.delivery_entry(each, webhooks.get(each.webhook_id), using) for each in deliveries)
        attempts = Attempt.objects.using(using).filter(delivery_id__in=[each.pk for each in deliveries])
        shown = attempts.defer("response_headers", "response_body").order_by("-id")[: MAX_SHOWN + 1]
        self.add(timeline_entries.attempt_entry(each, using) for each in self.limited(list(shown)))

    def add_runs(self, using: str, found: "QuerySet[Run]") -> None:
        runs = self.limited(list(self.visible("run", found)[: MAX_SHOWN + 1]))
        functions = Function.objects.using(using).in_bulk({each.function_id for each in runs})
        self.requests |= {run.request_id for run in runs if run.request_id}
        self.add(timeline_entries.run_entry(run, functions.get(run.function_id), using) for run in runs)


def of(text: str, environment_id: str = "", *, within: EnvironmentRef | None = None, kinds: Kinds = KINDS) -> Timeline:
    """The timeline around any id, request, or row (`tsk_…` or `tasks/tsk_…` with its environment)."""
    text, environment_id = text.strip()[:MAX_QUERY_LENGTH], environment_id.strip()
    found = Timeline(text, environment_id, within, kinds)
    if not text:
        return found
    prefix = ids.prefix_of(text)
    kind = prefix if prefix in ids.PREFIXES else None
    if kind in CONTROL_KINDS:
        for column in CONTROL_KINDS[kind]:
            found.add_audit_entries(**{column: text})
    if kind == "inb":  # audit entries of an endpoint have its function as their target
        found.add_audit_entries(detail__has_key="address", detail__address=text)
    if kind == "env":
        found.query(_cluster_of(text), lambda using: _add_environment(found, using, text))
    elif environment_id and kind not in CONTROL_KINDS and kind not in ("evt", "req", "inb"):
        cluster = _cluster_of(environment_id)
        if cluster is None:
            found.hint = f"There is no environment {environment_id}, or it cannot be reached."
        found.query(cluster, lambda using: _add_row(found, using, text, environment_id))
    elif kind in ("wh", "evt", "dlv", "fn", "run", "inb"):
        for region in found.regions:
            found.query(region, lambda using: _add_resource(found, using, str(kind), text))
    elif kind in (None, "req"):
        found.requests.add(text)
    _follow_requests(found)
    found.entries = found.sorted_entries()
    if not found.entries and not found.hint:
        found.hint = _hint(kind, environment_id)
    return found


def _cluster_of(environment_id: str) -> str | None:
    environment = environment_ref(environment_id)
    return environment.cluster if environment else None


def _add_resource(timeline: Timeline, using: str, kind: str, text: str) -> None:
    if kind == "evt":
        timeline.add_events(using, Q(event_id=text))
    elif kind == "dlv":
        found = timeline.visible("delivery", Delivery.objects.using(using).filter(pk=text))
        timeline.add_events(using, Q(event_id__in=[each.event_id for each in found]))
        timeline.add_deliveries(using, found)
    elif kind == "wh":
        newest = Delivery.objects.using(using).filter(webhook_id=text).order_by("-created_at", "-id")
        timeline.add_deliveries(using, newest)
    elif kind == "run":
        runs = timeline.visible("run", _runs(using).filter(pk=text))
        timeline.add_runs(using, runs)
        timeline.add_events(using, Q(event_id__in=[run.event_id for run in runs if run.event_id]))
    elif kind == "inb":
        _add_endpoint(timeline, using, text)
    else:
        newest_runs = _runs(using).filter(function_id=text).order_by("-created_at", "-id")
        timeline.add_runs(using, newest_runs)


def _add_endpoint(timeline: Timeline, using: str, endpoint_id: str) -> None:
    """An inbound endpoint and its runs, found by its id in their inputs: headers there have escaped quotes."""
    functions = timeline.visible("run", Function.objects.using(using).all())
    known = InboundEndpoint.objects.using(using).select_related("function").filter(pk=endpoint_id)
    endpoint = known.filter(function__in=functions).first()
    if endpoint is None:
        return
    timeline.add([timeline_entries.endpoint_entry(endpoint, using)])
    runs = Run.objects.using(using).filter(function_id=endpoint.function_id, trigger=Run.Trigger.INBOUND)
    newest = [*history.newest_of(runs, {"trigger"}, MAX_SHOWN).values_list("pk", flat=True)]
    by_it = _runs(using).filter(pk__in=newest, input__contains=f'"address_id":"{endpoint_id}"')
    timeline.add_runs(using, by_it.order_by("-created_at", "-id"))


def _add_environment(timeline: Timeline, using: str, environment_id: str) -> None:
    timeline.add_events(using, Q(environment_id=environment_id))
    newest = statements.column(using, _NEWEST_RUNS, [environment_id, MAX_SHOWN + 1])
    timeline.add_runs(using, _runs(using).filter(pk__in=newest).order_by("-created_at", "-id"))


def _add_row(timeline: Timeline, using: str, text: str, environment_id: str) -> None:
    if "/" in text:
        subjects = [text]
    else:
        environment = environment_ref(environment_id)
        tables = schema_versions.current(environment).schema.tables if environment else {}
        subjects = [f"{name}/{text}" for name in tables]
    timeline.add_events(using, Q(environment_id=environment_id, subject__in=subjects))


def _follow_requests(timeline: Timeline) -> None:
    requests = sorted(timeline.requests)[:REQUESTS]
    if not requests:
        return
    timeline.add_audit_entries(request_id__in=requests)
    timeline.query(DEFAULT_DB_ALIAS, lambda using: timeline.add_requests(using, requests))
    for region in timeline.regions:
        timeline.query(region, lambda using: _add_of_requests(timeline, using, requests))


def _add_of_requests(timeline: Timeline, using: str, requests: list[str]) -> None:
    timeline.add_requests(using, requests)
    timeline.add_events(using, Q(request_id__in=requests))
    timeline.add_runs(using, _runs(using).filter(request_id__in=requests))


def _runs(using: str) -> "QuerySet[Run]":
    return Run.objects.using(using).defer("input", "output", "logs")


def _hint(kind: str | None, environment_id: str) -> str:
    if kind is None and not environment_id:
        return (
            "No request with this id is recorded: it is too old, or was one of many reads. If it is the "
            "id of a row, name its environment, too: rows are found by both."
        )
    if kind is None:
        return (
            "No event of this row is stored. Events of rows are recorded only while a webhook or function subscribes "
            "to them, and are kept for 30 days."
        )
    return "No data is stored for it. Runs are kept for 7 days, deliveries and events for 30, the audit log forever."
