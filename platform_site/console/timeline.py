"""One timeline: paste any id, and see what happened around it.

    request ─▶ audit entries, rows changed (their events) ─▶ deliveries ─▶ attempts
            └▶ runs, and what they changed                └▶ runs on these events

Made of facts that are stored anyway: the audit trail in the control database; outbox events, deliveries, attempts and
runs in the regions. Each question goes to an index, and each kind ends at MOST. A region that is away is named, and the
others are shown. A row change is known where its table had a subscriber: without one no event is written.

Shown are ids, kinds, times and outcomes; never a row's values, a payload, an input, or more of a URL than its host,
which may be secrets of the tenant's.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import Error, connections
from django.db.models import Q

from accounts.models import AuditEntry
from functions.models import Function, InboundAddress, Run
from functions.runs import history
from platform_site.identity import ids
from projects.directory.environments import place_of
from rows.migrate import service as schema_service
from rows.outbox.models import OutboxEvent
from webhooks.models import Attempt, Delivery, Webhook

MOST: Final = 50
LONGEST: Final = 120
"""Characters of what may be pasted: `table/row id`, or a request id that a client chose."""
REQUESTS: Final = 5
"""Requests whose surroundings are looked up."""

CONTROL_KINDS: Final = {
    "prj": ("project_id", "target_id"),
    "env": ("environment_id", "target_id"),
    "usr": ("actor_id", "target_id"),
    "key": ("actor_id", "target_id"),
    "ses": ("target_id",),
    "mem": ("target_id",),
    "idp": ("target_id",),
    "wh": ("target_id",),
    "fn": ("target_id",),
    "dlv": ("target_id",),
    "run": ("target_id",),
    "aud": ("id",),
}
"""The columns of the audit trail that may hold an id of this kind. Each has an index."""

_NEWEST_RUNS: Final = """
SELECT r.id
  FROM platform.functions_function f,
       LATERAL (SELECT id, created_at FROM platform.functions_run
                 WHERE function_id = f.id ORDER BY created_at DESC, id DESC LIMIT 5) AS r
 WHERE f.environment_id = %s
 ORDER BY r.created_at DESC, r.id DESC LIMIT %s
"""
"""The newest five of each function of an environment: a leap in the index for each."""

logger = logging.getLogger("platform.console")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened."""

    at: datetime
    kind: str
    """`audit`, `event`, `delivery`, `attempt`, `run`, `address` or `request`."""
    id: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    """What more is known, in words: (name, value). A value that is an id leads to its own timeline."""
    tone: str = ""
    """`good`, `bad` or nothing."""
    depth: int = 0
    """How far from its cause: 0 the request itself."""
    region: str = ""


@dataclass(slots=True)
class Timeline:
    """What was found. `away`: regions that could not be asked. `hint`: what to do where nothing was found."""

    text: str
    environment_id: str = ""
    entries: list[Entry] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    hint: str = ""
    is_cut: bool = False
    """Whether some kind had more than MOST."""


def of(text: str, environment_id: str = "") -> Timeline:
    """The timeline around an id: of anything, of a request, or of a row (`tsk_…` or `tasks/tsk_…` with its
    environment)."""
    text, environment_id = text.strip()[:LONGEST], environment_id.strip()
    found = Timeline(text, environment_id)
    if not text:
        return found
    prefix = text.partition("_")[0]
    kind = prefix if prefix in ids.PREFIXES and ids.matches(prefix, text) else None
    gathered = _Gathered(found)
    if kind in CONTROL_KINDS:
        for column in CONTROL_KINDS[kind]:
            gathered.audit(**{column: text})
    if kind == "inb":  # entries about it are about its function
        gathered.audit(detail__has_key="address", detail__address=text)
    if kind == "env":
        _in(found, _cluster_of(text), lambda using: _environment(gathered, using, text))
    elif environment_id and kind not in CONTROL_KINDS and kind not in ("evt", "req", "inb"):
        cluster = _cluster_of(environment_id)
        if cluster is None:
            found.hint = f"There is no environment {environment_id}, or it cannot be reached."
        _in(found, cluster, lambda using: _row(gathered, using, text, environment_id))
    elif kind in ("wh", "evt", "dlv", "fn", "run", "inb"):
        for region in settings.REGION_DATABASES:
            _in(found, region, lambda using: _thing(gathered, using, str(kind), text))
    elif kind in (None, "req"):
        gathered.requests.add(text)
    _follow_requests(gathered)
    found.entries = gathered.sorted()
    if not found.entries and not found.hint:
        found.hint = _hint(kind, environment_id)
    return found


class _Gathered:
    """What has been found so far, each thing once."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._entries: dict[str, Entry] = {}
        self.requests: set[str] = set()

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.setdefault(entry.id, entry)

    def cut(self, found: Sequence[Any]) -> Sequence[Any]:
        """At most MOST of what was asked for; one more was asked for, to know whether there is more."""
        if len(found) > MOST:
            self._timeline.is_cut = True
        return found[:MOST]

    def sorted(self) -> list[Entry]:
        entries = list(self._entries.values())
        begun = [
            Entry(ids.made_at(each), "request", each, "request", depth=0)
            for each in sorted(self.requests)
            if ids.matches("req", each) and entries
        ]
        return sorted([*begun, *entries], key=lambda entry: (entry.at, entry.depth))

    def audit(self, **which: str | list[str]) -> None:
        newest = AuditEntry.objects.filter(**which).order_by("-at", "-id")[: MOST + 1]
        for entry in self.cut(list(newest)):
            if entry.request_id:
                self.requests.add(entry.request_id)
            self.add([_audit_entry(entry)])

    def events(self, using: str, which: Q) -> None:
        """Events with their deliveries, the attempts of these, and the runs of functions on them."""
        events = list(self.cut(list(OutboxEvent.objects.using(using).filter(which).order_by("-sequence")[: MOST + 1])))
        for event in events:
            if event.request_id:
                self.requests.add(event.request_id)
        self.add(_event_entry(event, using) for event in events)
        pairs = Q()
        for environment_id in {event.environment_id for event in events}:
            named = [event.event_id for event in events if event.environment_id == environment_id]
            pairs |= Q(environment_id=environment_id, event_id__in=named)
        if events:
            self.deliveries(using, list(Delivery.objects.using(using).filter(pairs)[: MOST + 1]))
            named = [event.event_id for event in events]
            self.runs(using, list(_runs(using).filter(event_id__in=named)[: MOST + 1]))

    def deliveries(self, using: str, found: Sequence[Delivery]) -> None:
        deliveries = self.cut(found)
        webhooks = Webhook.objects.using(using).in_bulk({each.webhook_id for each in deliveries})
        self.add(_delivery_entry(each, webhooks.get(each.webhook_id), using) for each in deliveries)
        attempts = Attempt.objects.using(using).filter(delivery_id__in=[each.pk for each in deliveries])
        shown = attempts.defer("response_headers", "response_body").order_by("-id")[: MOST + 1]
        self.add(_attempt_entry(each, using) for each in self.cut(list(shown)))

    def runs(self, using: str, found: Sequence[Run]) -> None:
        runs = self.cut(found)
        functions = Function.objects.using(using).in_bulk({each.function_id for each in runs})
        for run in runs:
            if run.request_id:
                self.requests.add(run.request_id)
        self.add(_run_entry(run, functions.get(run.function_id), using) for run in runs)


def _in(found: Timeline, region: str | None, look: Callable[[str], None]) -> None:
    """Look in one region; if it is away the timeline says so."""
    if region is None:
        return
    try:
        look(region)
    except Error as error:
        logger.warning("a region was away from the timeline", extra={"region": region, "why": type(error).__name__})
        if region not in found.away:
            found.away.append(region)


def _cluster_of(environment_id: str) -> str | None:
    place = place_of(environment_id)
    return place.cluster if place else None


def _thing(gathered: _Gathered, using: str, kind: str, text: str) -> None:
    if kind == "evt":
        gathered.events(using, Q(event_id=text))
    elif kind == "dlv":
        found = Delivery.objects.using(using).filter(pk=text).first()
        if found is not None:
            gathered.events(using, Q(event_id=found.event_id))
            gathered.deliveries(using, [found])
    elif kind == "wh":
        newest = Delivery.objects.using(using).filter(webhook_id=text).order_by("-created_at", "-id")
        gathered.deliveries(using, list(newest[: MOST + 1]))
    elif kind == "run":
        runs = list(_runs(using).filter(pk=text))
        gathered.runs(using, runs)
        gathered.events(using, Q(event_id__in=[run.event_id for run in runs if run.event_id]))
    elif kind == "inb":
        _address(gathered, using, text)
    else:
        newest_runs = _runs(using).filter(function_id=text).order_by("-created_at", "-id")
        gathered.runs(using, list(newest_runs[: MOST + 1]))


def _address(gathered: _Gathered, using: str, address_id: str) -> None:
    """An inbound address, and which of the newest runs by those of its function came by this one: that stands in their
    inputs alone, where no header or body can spell it (its quotes would be escaped)."""
    address = InboundAddress.objects.using(using).select_related("function").filter(pk=address_id).first()
    if address is None:
        return
    gathered.add([_address_entry(address, using)])
    runs = Run.objects.using(using).filter(function_id=address.function_id)
    newest = [*history.newest_of(runs, {"trigger": Run.Trigger.INBOUND}, MOST).values_list("pk", flat=True)]
    by_it = _runs(using).filter(pk__in=newest, input__contains=f'"address_id":"{address_id}"')
    gathered.runs(using, list(by_it.order_by("-created_at", "-id")))


def _environment(gathered: _Gathered, using: str, environment_id: str) -> None:
    """The newest events of an environment, and the newest runs of its functions."""
    gathered.events(using, Q(environment_id=environment_id))
    with connections[using].cursor() as cursor:
        cursor.execute(_NEWEST_RUNS, [environment_id, MOST + 1])
        newest = [run_id for (run_id,) in cursor.fetchall()]
    gathered.runs(using, list(_runs(using).filter(pk__in=newest).order_by("-created_at", "-id")))


def _row(gathered: _Gathered, using: str, text: str, environment_id: str) -> None:
    """The events of one row. Without its table, all tables of the environment are tried."""
    if "/" in text:
        subjects = [text]
    else:
        place = place_of(environment_id)
        tables = schema_service.current(place).schema.tables if place else {}
        subjects = [f"{name}/{text}" for name in tables]
    gathered.events(using, Q(environment_id=environment_id, subject__in=subjects))


def _follow_requests(gathered: _Gathered) -> None:
    """What else the requests did that the things found belong to."""
    requests = sorted(gathered.requests)[:REQUESTS]
    if not requests:
        return
    gathered.audit(request_id__in=requests)
    for region in settings.REGION_DATABASES:
        _in(gathered._timeline, region, lambda using: _of_requests(gathered, using, requests))


def _of_requests(gathered: _Gathered, using: str, requests: list[str]) -> None:
    gathered.events(using, Q(request_id__in=requests))
    gathered.runs(using, list(_runs(using).filter(request_id__in=requests)[: MOST + 1]))


def _runs(using: str) -> Any:
    return Run.objects.using(using).defer("input", "output", "logs")


def _audit_entry(entry: AuditEntry) -> Entry:
    facts = [("by", f"{entry.actor_kind} {entry.actor_id or ''}".strip())]
    facts += [("on", entry.target_id)] if entry.target_id else []
    facts += [
        (name, (", ".join(map(str, value)) if isinstance(value, list) else str(value))[:200])
        for name, value in entry.detail.items()
    ]
    facts += [("request", entry.request_id)] if entry.request_id else []
    return Entry(entry.at, "audit", entry.pk, entry.action, tuple(facts), depth=1 if entry.request_id else 0)


def _event_entry(event: OutboxEvent, region: str) -> Entry:
    facts = [("environment", event.environment_id)]
    facts += [("row", event.subject)] if event.subject else []
    facts += [("schema version", str(event.schema_version))] if event.schema_version else []
    facts += [("request", event.request_id)] if event.request_id else []
    if event.relayed_at is None:
        facts.append(("relayed", "not yet"))
    depth = 1 if event.request_id else 0
    return Entry(event.created_at, "event", event.event_id, event.type, tuple(facts), depth=depth, region=region)


_DELIVERY_TONES: Final = {"delivered": "good", "exhausted": "bad", "dropped": "bad"}


def _delivery_entry(delivery: Delivery, webhook: Webhook | None, region: str) -> Entry:
    host = webhook.host if webhook else "a deleted webhook"
    facts = [
        ("webhook", delivery.webhook_id),
        ("event", delivery.event_id),
        ("environment", delivery.environment_id),
        ("attempts", str(delivery.attempts)),
    ]
    facts += [("outcome", delivery.outcome)] if delivery.outcome else []
    due = delivery.next_attempt_at if delivery.status == Delivery.Status.PENDING else None
    facts += [("next attempt", f"{due:%Y-%m-%d %H:%M:%S}")] if due else []
    return Entry(
        delivery.created_at,
        "delivery",
        delivery.pk,
        f"{delivery.event_type} to {host}: {delivery.status}",
        tuple(facts),
        tone=_DELIVERY_TONES.get(delivery.status, ""),
        depth=2,
        region=region,
    )


def _attempt_entry(attempt: Attempt, region: str) -> Entry:
    good = attempt.error is None and attempt.response_status is not None and 200 <= attempt.response_status < 300
    came = attempt.error or f"answered {attempt.response_status}"
    return Entry(
        attempt.at,
        "attempt",
        f"{region} {attempt.pk}",
        f"attempt {attempt.number}: {came} in {attempt.duration_ms:,} ms",
        (("delivery", attempt.delivery_id),),
        tone="good" if good else "bad",
        depth=3,
        region=region,
    )


def _run_entry(run: Run, function: Function | None, region: str) -> Entry:
    facts = [
        ("function", run.function_id),
        ("environment", run.environment_id),
        ("version", str(run.version)),
        ("by", f"{run.caller_kind} {run.caller_id}"),
    ]
    facts += [("took", f"{run.duration_ms:,} ms")] if run.duration_ms is not None else []
    reason = (run.error or {}).get("reason")
    facts += [("reason", str(reason))] if reason else []
    facts += [("event", run.event_id)] if run.event_id else []
    facts += [("request", run.request_id)] if run.request_id else []
    status = run.phase if run.phase != Run.Phase.ENDED else run.status
    return Entry(
        run.created_at,
        "run",
        run.pk,
        f"{function.name if function else 'a deleted function'}: {status}",
        tuple(facts),
        tone={"succeeded": "good", "failed": "bad"}.get(run.status, ""),
        depth=2 if run.event_id else 1 if run.request_id else 0,
        region=region,
    )


def _address_entry(address: InboundAddress, region: str) -> Entry:
    facts = [
        ("function", address.function_id),
        ("environment", address.function.environment_id or ""),
        ("runs as", f"{address.runs_as_kind} {address.runs_as_id}"),
        ("uses", f"{address.uses:,}"),
    ]
    facts += [("last used", f"{address.last_used_at:%Y-%m-%d %H:%M:%S}")] if address.last_used_at else []
    title = f"{address.function.name}: an inbound address"
    return Entry(address.created_at, "address", address.pk, title, tuple(facts), region=region)


def _hint(kind: str | None, environment_id: str) -> str:
    if kind is None and not environment_id:
        return (
            "Nothing is known of a request with this id. If it is the id of a row, name its environment, too: rows are "
            "found by both."
        )
    if kind is None:
        return (
            "No event of this row is kept. A row leaves events only while a webhook or function of its environment "
            "wants them, and they are kept for 30 days."
        )
    return "Nothing is kept of it. Runs are kept for 7 days, deliveries and events for 30, the audit trail for good."
