"""Event triggers of functions. Their input is what a webhook would receive, so the deployer needs the scopes to create
a webhook. `function.run.*` events cannot trigger functions: a function would trigger itself."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from accounts.audit import Actor
from functions.models import Function
from functions.triggers.run_as_check import TriggerKind
from platform_site.http.errors import QuotaExceeded, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from rows.outbox import audit as audit_outbox
from rows.outbox import event_types, subscriptions

SCOPES: Final = ("functions:invoke", "rows:read")
NOT_SUBSCRIBABLE: Final = frozenset({*event_types.OF_RUNS, "webhook.test"})
_EVERYTHING: Final = (*event_types.OF_ROWS, *sorted(event_types.SYSTEM_EVENTS - NOT_SUBSCRIBABLE))
"""The events of `*` here. For webhooks it also covers `function.run.*`, for which each run would record an event."""
MAX_PATTERNS: Final = 20
_NAMES_A_URL: Final = "webhook.disabled"


def covers(patterns: Iterable[str], event_type: str) -> bool:
    return event_type not in NOT_SUBSCRIBABLE and event_types.matches(patterns, event_type)


def configure(
    function: Function, environment: EnvironmentRef, patterns: list[str] | None, *, by: Caller | None
) -> None:
    """The same patterns start stopped triggers again. The caller holds the function's lock, calls `set_run_as`, saves
    it and then calls `refresh`. Raises ValidationFailed, QuotaExceeded."""
    if function.events_stopped is None and patterns == function.events:
        return
    had_triggers = has_triggers(function)
    function.events, function.events_stopped = patterns, None
    function.events_kind = function.events_id = None
    if patterns is None:
        return
    if by is None:
        raise ValidationFailed.of("on", "nobody", "Set `run_as` for a function with event triggers.")
    if not had_triggers:
        limit = plan_limits(environment.plan).event_functions_per_environment
        QuotaExceeded.check(count_subscriptions(environment), limit, "functions that run on events in an environment")


def set_run_as(function: Function, *, by: Caller | None) -> TriggerKind | None:
    """As `schedules.set_run_as`. The permissions include those to receive the events."""
    if not has_triggers(function):
        return None
    if function.invoke == "user":
        message = 'This function can only be invoked by users ("invoke": "user"), so it cannot have event triggers.'
        raise ValidationFailed.of("on", "for_users_only", message)
    if by is not None:
        function.events_kind, function.events_id = by.kind, by.id
    scopes = (*SCOPES, "webhooks:read") if covers(function.events or (), _NAMES_A_URL) else SCOPES
    return TriggerKind("on events", 'deploy it with "on": null', scopes)


def has_triggers(function: Function) -> bool:
    return function.events is not None and function.events_stopped is None


def copied(patterns: list[str] | None) -> dict[str, Any]:
    """The fields of a copied function."""
    return {} if patterns is None else {"events": patterns, "events_stopped": Function.Stopped.COPIED}


def refresh(environment_id: str, using: str) -> None:
    """Make writes record the events subscribed to, from the commit of the current transaction on."""
    subscriptions.lock(environment_id, using)
    subscriptions.refresh(environment_id, using)


def patterns_of(environment_id: str, using: str) -> Iterable[Sequence[str]]:
    subscribed = Function.objects.using(using).filter(environment_id=environment_id, events_stopped=None)
    found = subscribed.filter(events__isnull=False).values_list("events", flat=True)
    return [_EVERYTHING if "*" in patterns else patterns for patterns in found if patterns is not None]


def count_subscriptions(environment: EnvironmentRef) -> int:
    return Function.objects.of(environment).filter(events__isnull=False, events_stopped=None).count()


def stop(function: Function, environment: EnvironmentRef, reason: Function.Stopped, *, actor: Actor) -> None:
    """Until they are set again. The caller holds the function's lock."""
    if not has_triggers(function):
        return
    function.events_stopped = reason
    function.save(using=environment.cluster, update_fields=["events_stopped"])
    refresh(environment.environment_id, environment.cluster)
    audit_outbox.record(
        environment, "function.events_stopped", actor=actor, target_id=function.pk, name=function.name,
        reason=reason.value, runs_as=function.events_id,
    )  # fmt: skip
