"""Schedules of functions. `Function.next_run_at` has the next due time, in database time. A periodic job of the region
claims due functions, inserts a queued run for each and sets the next due time, in one transaction: so a due time makes
one run. A run executes as the last deployer, checked when it starts (`functions.execution.run_as`): code never runs
with the permissions of someone who did not deploy it. What staff and commands activate keeps its run-as identity."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from accounts.audit import Actor
from functions.models import Function, Run
from functions.triggers import cron
from functions.triggers.run_as_check import TriggerKind
from platform_site.http.errors import QuotaExceeded, ValidationFailed
from platform_site.http.fields import timestamp
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import sql_files, sql_functions, statements
from projects.provisioning.suspension import plans_of_active, suspended_in
from rows.outbox import audit as audit_outbox

logger = logging.getLogger("platform.functions")

BATCH: Final = 500
_SQL: Final = sql_files.load(__file__)
_MIN_CLOCK_STEP: Final = timedelta(hours=2)
"""After a shorter one, nothing is repaired, so that a due time that has already run is not run again."""


def configure(function: Function, environment: EnvironmentRef, text: str | None, *, by: Caller | None) -> None:
    """The same text (of `cron.normal`) starts a stopped schedule again. The caller holds the function's lock, calls
    `set_run_as` and saves it. Raises ValidationFailed, QuotaExceeded."""
    was_running = function.next_run_at is not None
    if was_running and text == function.schedule:
        return
    function.schedule, function.next_run_at, function.schedule_stopped = text, None, None
    function.scheduled_kind = function.scheduled_id = function.last_skipped_at = None
    if text is None:
        return
    if by is None:
        raise ValidationFailed.of("schedule", "nobody", "Set `run_as` for a function with a schedule.")
    if not was_running:
        limit = plan_limits(environment.plan).schedules_per_environment
        QuotaExceeded.check(count_schedules(environment), limit, "functions with a schedule in an environment")
    function.next_run_at = cron.read(text).next_after(sql_functions.now(environment.cluster))


def set_run_as(function: Function, *, by: Caller | None) -> TriggerKind | None:
    """Scheduled runs execute as `by` from now on; unchanged if None. Returns the permissions that it needs. Raises
    ValidationFailed."""
    if function.next_run_at is None:
        return None
    if function.invoke == "user":
        message = 'This function can only be invoked by users ("invoke": "user"), so it cannot have a schedule.'
        raise ValidationFailed.of("schedule", "for_users_only", message)
    if by is not None:
        function.scheduled_kind, function.scheduled_id = by.kind, by.id
    return TriggerKind("by a schedule", 'deploy it with "schedule": null', ("functions:invoke",))


def copied(text: str | None) -> dict[str, Any]:
    """The fields of a copied function."""
    return {} if text is None else {"schedule": text, "schedule_stopped": Function.Stopped.COPIED}


def count_schedules(environment: EnvironmentRef) -> int:
    return Function.objects.of(environment).filter(next_run_at__isnull=False).count()


# ── When they are due ───────────────────────────────────────────────────────────────────────────────────────────────


def queue_due(using: str) -> int:
    """Returns how many runs were queued. Raises OperationalError while the control database, which knows the plans, is
    unavailable; the functions then stay due."""
    due = Function.objects.using(using).filter(next_run_at__lte=Now())
    waiting = due.exclude(environment_id__in=suspended_in(using)).values_list("environment_id", flat=True).distinct()
    plans = plans_of_active([found for found in waiting if found is not None])
    queued, is_last = 0, not plans
    while not is_last:
        made, is_last = _queue_batch(using, plans)
        queued += made
    return queued


@dataclass(frozen=True, slots=True)
class _Decided:
    """In the order of `queue_runs`. Without `run_id` no run is queued."""

    function_id: str
    next_run_at: datetime | None = None
    stopped: str | None = None
    skipped_at: datetime | None = None
    run_id: str | None = None
    input: str | None = None
    concurrency: int | None = None


def _queue_batch(using: str, plans: Mapping[str, str]) -> tuple[int, bool]:
    """Returns how many runs were queued, and whether nothing more is due. No key column changes, so calls of these
    functions, whose runs reference them, are not blocked."""
    last_run = Run.objects.filter(pk=OuterRef("scheduled_run_id")).exclude(phase=Run.Phase.ENDED)
    with transaction.atomic(using=using):
        now = sql_functions.now(using)
        due = (
            Function.objects.using(using)
            .filter(next_run_at__lte=now, environment_id__in=plans)
            .select_for_update(skip_locked=True, no_key=True, of=("self",))
            .annotate(is_busy=Exists(last_run))
            .order_by("next_run_at")
        )
        found = list(due[:BATCH])
        decided = [_decide(function, now, plans, is_busy=function.is_busy) for function in found]  # type: ignore[attr-defined]
        for function, each in zip(found, decided, strict=True):
            if each.stopped is not None:
                audit_outbox.record_system(
                    using, "function.schedule_stopped", target_id=function.pk,
                    environment_id=function.environment_id or "", name=function.name, reason=each.stopped,
                    scheduled_as=function.scheduled_id,
                )  # fmt: skip
        columns = [[getattr(each, field.name) for each in decided] for field in fields(_Decided)]
        made = statements.execute(using, _SQL["queue_runs"], columns)
    return made, len(decided) < BATCH


def _decide(function: Function, now: datetime, plans: Mapping[str, str], *, is_busy: bool) -> _Decided:
    try:
        next_run_at = cron.read(function.schedule or "").next_after(now)
    except cron.BadSchedule:
        logger.error("the schedule of %s cannot be read", function.pk)
        return _Decided(function.pk, stopped=Function.Stopped.UNREADABLE)
    if is_busy:
        return _Decided(function.pk, next_run_at, skipped_at=function.next_run_at)
    return _Decided(
        function.pk,
        next_run_at,
        run_id=ids.new("run"),
        input=orjson.dumps({"scheduled_at": timestamp(function.next_run_at or now)}).decode(),
        concurrency=plan_limits(plans[function.environment_id or ""]).function_concurrency,
    )


def stop(function: Function, environment: EnvironmentRef, reason: Function.Stopped, *, actor: Actor) -> None:
    """Until it is set again. The caller holds the function's lock."""
    if function.next_run_at is None:
        return
    function.next_run_at, function.schedule_stopped = None, reason
    function.save(using=environment.cluster, update_fields=["next_run_at", "schedule_stopped"])
    audit_outbox.record(
        environment, "function.schedule_stopped", actor=actor, target_id=function.pk, name=function.name,
        reason=reason.value, scheduled_as=function.scheduled_id,
    )  # fmt: skip


def repair_future_times(using: str) -> int:
    now = sql_functions.now(using)
    repaired = 0
    waiting = Function.objects.using(using).filter(next_run_at__gt=now + _MIN_CLOCK_STEP).order_by("pk")
    for function_id, text, next_run_at in waiting.values_list("pk", "schedule", "next_run_at").iterator(BATCH):
        try:
            schedule = cron.read(text or "")
        except cron.BadSchedule:
            continue
        if next_run_at is not None and schedule.next_after(now + _MIN_CLOCK_STEP) < next_run_at:
            same = Function.objects.using(using).filter(pk=function_id, next_run_at=next_run_at)
            repaired += same.update(next_run_at=schedule.next_after(now))
    return repaired
