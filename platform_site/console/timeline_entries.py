from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS
from django.utils.text import Truncator

from accounts.models import AuditEntry
from functions.models import Function, InboundEndpoint, Run
from rows.outbox.models import OutboxEvent
from webhooks.models import Attempt, Delivery, Webhook

_MAX_DETAIL: Final = 200


@dataclass(frozen=True, slots=True)
class Entry:
    at: datetime
    kind: str
    """`audit`, `event`, `delivery`, `attempt`, `run`, `endpoint` or `request`."""
    id: str
    title: str
    """Empty for a request of which only the id is known."""
    facts: tuple[tuple[str, str], ...] = ()
    """(name, value). An id links to its timeline."""
    tone: str = ""
    """`good`, `bad` or empty."""
    depth: int = 0
    region: str = ""


def _facts(*facts: tuple[str, str | None]) -> tuple[tuple[str, str], ...]:
    """Without those that are None or empty."""
    return tuple((name, value) for name, value in facts if value)


def request_entry(entry: dict[str, Any], using: str) -> Entry:
    facts = _facts(
        ("request", entry["request_id"]),
        ("environment", entry["environment_id"]),
        ("by", entry["caller_id"]),
        ("table", entry["table_name"]),
        ("function", entry["function_name"]),
        ("error", entry["code"]),
        ("fields", ", ".join(entry["field_codes"])),
        ("took", f"{entry['duration_ms']:,.1f} ms"),
    )
    return Entry(
        entry["at"],
        "request",
        f"{using} {entry['id']}",
        f"{entry['method']} {entry['route']}: {entry['status']}",
        facts,
        tone="bad" if entry["status"] >= 400 else "good",
        region="" if using == DEFAULT_DB_ALIAS else using,
    )


def audit_entry(entry: AuditEntry, *, for_members: bool) -> Entry:
    actor_id = entry.actor_id_for_members if for_members else entry.actor_id
    details = [(name, Truncator(_detail_text(value)).chars(_MAX_DETAIL)) for name, value in entry.shown_detail.items()]
    facts = (
        *_facts(("by", f"{entry.actor_kind} {actor_id or ''}".strip()), ("on", entry.target_id)),
        *details,
        *_facts(("request", entry.request_id)),
    )
    return Entry(entry.at, "audit", entry.pk, entry.action, facts, depth=1 if entry.request_id else 0)


def _detail_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def event_entry(event: OutboxEvent, region: str) -> Entry:
    facts = _facts(
        ("environment", event.environment_id),
        ("row", event.subject),
        ("schema version", str(event.schema_version or "")),
        ("request", event.request_id),
        ("relayed", "not yet" if event.relayed_at is None else None),
    )
    depth = 1 if event.request_id else 0
    return Entry(event.created_at, "event", event.event_id, event.type, facts, depth=depth, region=region)


_DELIVERY_TONES: Final = {"delivered": "good", "exhausted": "bad", "dropped": "bad"}


def delivery_entry(delivery: Delivery, webhook: Webhook | None, region: str) -> Entry:
    host = webhook.host if webhook else "a deleted webhook"
    due = delivery.next_attempt_at if delivery.status == Delivery.Status.PENDING else None
    facts = _facts(
        ("webhook", delivery.webhook_id),
        ("event", delivery.event_id),
        ("environment", delivery.environment_id),
        ("attempts", str(delivery.attempts)),
        ("outcome", delivery.outcome),
        ("next attempt", f"{due:%Y-%m-%d %H:%M:%S}" if due else None),
    )
    return Entry(
        delivery.created_at,
        "delivery",
        delivery.pk,
        f"{delivery.event_type} to {host}: {delivery.status}",
        facts,
        tone=_DELIVERY_TONES.get(delivery.status, ""),
        depth=2,
        region=region,
    )


def attempt_entry(attempt: Attempt, region: str) -> Entry:
    good = attempt.error is None and attempt.response_status is not None and 200 <= attempt.response_status < 300
    outcome = attempt.error or f"answered {attempt.response_status}"
    return Entry(
        attempt.at,
        "attempt",
        f"{region} {attempt.pk}",
        f"attempt {attempt.number}: {outcome} in {attempt.duration_ms:,} ms",
        (("delivery", attempt.delivery_id),),
        tone="good" if good else "bad",
        depth=3,
        region=region,
    )


def run_entry(run: Run, function: Function | None, region: str) -> Entry:
    facts = _facts(
        ("function", run.function_id),
        ("environment", run.environment_id),
        ("version", str(run.version)),
        ("by", f"{run.caller_kind} {run.caller_id}"),
        ("took", None if run.duration_ms is None else f"{run.duration_ms:,} ms"),
        ("reason", str((run.error or {}).get("reason") or "")),
        ("event", run.event_id),
        ("request", run.request_id),
    )
    status = run.phase if run.phase != Run.Phase.ENDED else run.status
    return Entry(
        run.created_at,
        "run",
        run.pk,
        f"{function.name if function else 'a deleted function'}: {status}",
        facts,
        tone={"succeeded": "good", "failed": "bad"}.get(run.status, ""),
        depth=2 if run.event_id else 1 if run.request_id else 0,
        region=region,
    )


def endpoint_entry(endpoint: InboundEndpoint, region: str) -> Entry:
    facts = _facts(
        ("function", endpoint.function_id),
        ("environment", endpoint.function.environment_id),
        ("runs as", f"{endpoint.runs_as_kind} {endpoint.runs_as_id}"),
        ("uses", f"{endpoint.uses:,}"),
        ("last used", f"{endpoint.last_used_at:%Y-%m-%d %H:%M:%S}" if endpoint.last_used_at else None),
    )
    title = f"{endpoint.function.name}: inbound endpoint"
    return Entry(endpoint.created_at, "endpoint", endpoint.pk, title, facts, region=region)
