"""Functions that run on events: set with a deployment, stopped when nobody stands behind them.

`Function.events` are patterns as webhooks have them (`rows.outbox.event_types`), and what the environment's writes
leave events for is kept equal to both (`rows.outbox.subscriptions`). `functions.triggers.events` makes a run of each
event; docs/reference/functions.md says what it means to those who deploy.

A run executes as whoever deployed last, looked up again when it starts, as one by a schedule does (`functions.
schedules`): code that somebody deploys or activates never runs with the rights of who named the events before. What it
is told is what a webhook would be told, so that one needs the scopes of who makes one.

Of no use would be the end of a run, since a function that runs on it runs on its own. A chain of rows that lead to
functions that write rows is cut as one of webhooks is (`platform_site.identity.call_depth`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.db import transaction

from accounts.audit import SYSTEM
from functions.errors import SubscriptionsQuotaReached
from functions.models import Function
from functions.runs.start import Started
from functions.triggers.run_as_check import Way
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller, Place
from platform_site.identity.plans import plan_limits
from projects.directory.environments import place_of
from rows.outbox import audit as audit_outbox
from rows.outbox import event_types, subscriptions

FIELDS: Final = ("events_kind", "events_id")
"""What `activated` may change of a function."""
SCOPES: Final = ("functions:invoke", "rows:read")
"""What whoever such a function runs as must have: events carry rows."""
NEVER_HEARD: Final = frozenset({*event_types.OF_RUNS, "webhook.test"})
"""Events that no function runs on, `*` or not."""
_EVERYTHING: Final = (*event_types.OF_ROWS, *sorted(event_types.SYSTEM_EVENTS - NEVER_HEARD))
"""What `*` stands for here. A webhook's has the end of runs, too, for which each run would leave an event."""
MOST_PATTERNS: Final = 20
_NAMES_A_URL: Final = "webhook.disabled"


def covers(patterns: Iterable[str], event_type: str) -> bool:
    """Whether a function with these patterns runs on an event of this type."""
    return event_type not in NEVER_HEARD and event_types.matches(patterns, event_type)


def deployed(function: Function, place: Place, values: Mapping[str, Any], *, by: Caller | None) -> None:
    """What a deployment means to the events; the function is saved by who holds its lock, and calls `refresh` then.

    `values` may hold `on`: patterns, or null or an empty list for none. Without it they stay as they are, stopped or
    not; the same ones again start what is stopped. Its runs execute as `by` from now on. Raises ValidationFailed,
    SubscriptionsQuotaReached.
    """
    if "on" in values:
        patterns = values["on"] or None
        if function.events_stopped is not None or patterns != function.events:
            _set(function, place, patterns, by)
    activated(function, by=by)


def _set(function: Function, place: Place, patterns: list[str] | None, by: Caller | None) -> None:
    had_place = is_listening(function)
    function.events, function.events_stopped = patterns, None
    function.events_kind = function.events_id = None
    if patterns is None:
        return
    if by is None:
        raise ValidationFailed.of("on", "nobody", "Say as whom the function is to run on events.")
    if not had_place:
        _check_room(place)


def activated(function: Function, *, by: Caller | None) -> None:
    """Another version answers: runs on events execute as `by` from now on, who chose it and may (`way`). Raises
    ValidationFailed."""
    if not is_listening(function):
        return
    if function.invoke == "user":
        message = 'Events invoke as a key or a member, and the function is for app users only: its "invoke".'
        raise ValidationFailed.of("on", "for_users_only", message)
    if by is not None:
        function.events_kind, function.events_id = by.kind, by.id


def way(function: Function) -> Way | None:
    """What it takes to stand behind its events, and to be told of them; None where it runs on none."""
    if not is_listening(function):
        return None
    scopes = (*SCOPES, "webhooks:read") if covers(function.events or (), _NAMES_A_URL) else SCOPES
    return Way("on events", 'deploy it with "on": null', scopes)


def is_listening(function: Function) -> bool:
    return function.events is not None and function.events_stopped is None


def copied(patterns: list[str] | None) -> dict[str, Any]:
    """The fields of a function that is a copy of one with these events: stopped, until somebody names them again."""
    return {} if patterns is None else {"events": patterns, "events_stopped": Function.Stopped.COPIED}


def refresh(environment_id: str, using: str) -> None:
    """After a change: from the commit of the transaction at hand on, writes leave events for what is subscribed to."""
    subscriptions.lock(environment_id, using)
    subscriptions.refresh(environment_id, using)


def patterns_of(environment_id: str, using: str) -> Iterable[Sequence[str]]:
    """The patterns of each function of the environment that runs on events; stopped ones hear of none."""
    listening = Function.objects.using(using).filter(environment_id=environment_id, events_stopped=None)
    found = listening.filter(events__isnull=False).values_list("events", flat=True)
    return [_EVERYTHING if "*" in patterns else patterns for patterns in found if patterns is not None]


def count_subscriptions(place: Place) -> int:
    """How many of the environment's functions run on events; stopped ones do not count. One query."""
    listening = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, events_stopped=None)
    return listening.filter(events__isnull=False).count()


def _check_room(place: Place) -> None:
    limit = plan_limits(place.plan).event_functions_per_environment
    if count_subscriptions(place) >= limit:
        raise SubscriptionsQuotaReached(limit)


def may_run(caller: Caller) -> bool:
    """Whether runs on events may execute as they are now."""
    return all(caller.may(scope) for scope in SCOPES)


def stop(started: Started) -> None:
    """Whoever this run was to execute as may not any more: none comes of further events until somebody names them
    again. Nothing happens where somebody else stands behind them by now, or where the environment is gone."""
    using, place = started.cluster, place_of(started.environment_id)
    if place is None:
        return
    with transaction.atomic(using=using):
        stopped = (
            Function.objects.using(using)
            .filter(
                pk=started.function_id,
                environment_id=started.environment_id,
                events_kind=started.caller_kind,
                events_id=started.caller_id,
                events__isnull=False,
                events_stopped=None,
            )
            .update(events_stopped=Function.Stopped.CALLER_GONE)
        )
        if stopped:
            refresh(started.environment_id, using)
            audit_outbox.record(
                place, "function.events_stopped", actor=SYSTEM, target_id=started.function_id,
                name=started.function_name, reason=Function.Stopped.CALLER_GONE.value, runs_as=started.caller_id,
            )  # fmt: skip
