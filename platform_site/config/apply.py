"""Applies a stored plan atomically to two databases. (1) Slow checks: sources, unique indexes, hosts. (2) The control
database records the plan as being applied, which locks its settings. (3) One transaction in the region applies the
region's part; its commit decides the outcome. (4) The control database applies its part. After an interruption
`settle_interrupted` continues with 4, or undoes 2 if 3 was not committed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from django.db import DEFAULT_DB_ALIAS, DatabaseError, transaction
from django.db.models import F

from accounts import audit
from functions.deploy import service as deploy_service
from platform_site.background.periodic import log_failures
from platform_site.config import current, stored_plans, versions
from platform_site.config.merge import merge_bases, merge_plans
from platform_site.config.models import StoredPlan
from platform_site.config.parts import checks, control_part, region_part
from platform_site.config.parts.changes import OUTDATED, PlanChanges
from platform_site.http.errors import FieldError, PreconditionFailed, Unavailable, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import sql_functions
from projects.directory import applying
from projects.directory import locks as environment_locks
from projects.directory.environments import environment_ref
from projects.models import Environment
from projects.provisioning import failpoints
from rows.migrate import apply as schema_apply
from rows.migrate import service as schema_service
from rows.outbox import audit as audit_outbox

ABANDONED: Final = timedelta(minutes=1)
"""How long after its start an apply that has not changed the region may be ended by another process."""
MAX_AUDITED_CHANGES: Final = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: str
    status: Literal["applied", "completing"]
    version: str | None
    """Of the plan's parts; None while completing."""


def apply(changes: PlanChanges, *, confirm: Collection[str], resolve: Mapping[str, Any], caller: Caller) -> Outcome:
    """Apply the caller's plan; idempotent. `resolve` decides conflicts of a merge (`three_way.Merger`). Raises
    PreconditionFailed (expired, or the environment changed), ValidationFailed (unconfirmed), ApplyInProgress, and the
    services' errors."""
    environment, plan = changes.environment, changes.plan
    if plan.is_applied:
        return _complete(changes)
    try:
        return _apply(changes, confirm, resolve, caller)
    except (PreconditionFailed, ValidationFailed) as error:
        other = StoredPlan.objects.using(environment.cluster).filter(pk=plan.pk).first()
        if other is not None and other.is_applied:
            return _complete(PlanChanges(environment, other))
        if isinstance(error, ValidationFailed):
            changes.require_current(in_region=True)  # a schema that changed meanwhile may be why it is refused
        raise


def _apply(changes: PlanChanges, confirm: Collection[str], resolve: Mapping[str, Any], caller: Caller) -> Outcome:
    environment, plan, source = changes.environment, changes.plan, changes.source
    if plan.expires_at <= sql_functions.now(environment.cluster):
        raise PreconditionFailed("The plan is older than an hour. Plan again.")
    for in_region in (True, False):
        changes.require_current(in_region=in_region)
    if resolve and source is None:
        raise ValidationFailed.of(
            "resolve", "unknown", "This plan is not a merge, so there are no conflicts to resolve."
        )
    if source is not None and (resolve or plan.merge["conflicts"]):
        merge_plans.resolve_conflicts(environment, source, plan, resolve, caller)
    if missing := [name for name in plan.confirm if name not in confirm]:
        raise ValidationFailed(
            "The plan has changes that must be confirmed. Repeat the request with their names in `confirm`.",
            fields=[FieldError("confirm", "unconfirmed", name) for name in missing],
        )
    region_part.require_whole_urls(changes)
    checks.check(changes)  # again: an earlier release may have stored the plan
    region_part.load_sources(changes)
    control_part.discover_issuers(changes)
    with region_part.prepared(changes, caller) as change:
        _begin(changes)
        failpoints.reach("config.journalled")
        try:
            schema_service.with_retries(lambda: _change_region(changes, change, caller))
        except BaseException:
            with log_failures(f"the apply of {plan.pk}", using=environment.cluster):
                # Where the connection broke at the commit, the region knows whether it is done.
                if (outcome := _settle(changes)) is not None:
                    return outcome
            raise
    failpoints.reach("config.after_region_commit")
    return _complete(changes)


def _begin(changes: PlanChanges) -> None:
    environment, plan_id = changes.environment, changes.plan.pk
    try:
        control_part.begin(changes)
    except DatabaseError:
        # It may have begun all the same; or another request may have begun to apply the plan, and fails then.
        with log_failures(f"the apply of {plan_id}", using=environment.cluster):
            _settle_abandoned(environment, plan_id, is_old=True)
        raise


def _change_region(changes: PlanChanges, change: Callable[[], None], caller: Caller) -> None:
    environment, plan, source = changes.environment, changes.plan, changes.source
    using = environment.cluster
    with schema_apply.raise_lock_errors(), transaction.atomic(using=using):
        environment_locks.lock_shared_in_region(environment.environment_id, using)
        stored = StoredPlan.objects.using(using).select_for_update().filter(pk=plan.pk).first()
        if stored is None or stored.state != StoredPlan.State.OPEN:
            raise PreconditionFailed(OUTDATED)
        if stored.interruptions != plan.interruptions:
            raise Unavailable("The apply took too long and was interrupted. Nothing was changed. Try again.")
        deploy_service.lock_functions(environment)
        changes.require_current(in_region=True)
        restored = versions.bases_of(environment, plan.restores)
        replaced = merge_bases.snapshot(environment, restored if source is None else [source.environment_id])
        versions.store(environment, current.read(environment, plan.parts), replaced)
        try:
            with audit.part_of_one_change():
                change()
        except schema_service.VersionConflict as error:
            raise PreconditionFailed(OUTDATED) from error
        if source is not None:
            merge_bases.move(environment, source, plan.merge["base"], plan.merge["names"])
        merge_bases.restore(environment, restored)
        names = [each["operation"] or each["path"] for each in plan.changes]
        audit_outbox.record(
            environment,
            "config.applied",
            actor=caller,
            target_id=environment.environment_id,
            plan=plan.pk,
            source=None if source is None else source.environment_id,
            changes=names[:MAX_AUDITED_CHANGES],
            count=len(names),
        )
        StoredPlan.objects.using(using).filter(pk=plan.pk).update(
            state=StoredPlan.State.APPLIED, document_text=plan.document_text
        )
        failpoints.reach("config.before_region_commit")


def _complete(changes: PlanChanges) -> Outcome:
    """Apply the control database's part. The plan counts as applied even if this fails: the region has committed."""
    environment, plan = changes.environment, changes.plan
    outcome = Outcome(plan.pk, "completing", None)
    with log_failures(f"the apply of {plan.pk}"):
        control_part.finish(changes)
        failpoints.reach("config.after_control_commit")
        stored_plans.mark_done(environment.cluster, plan.pk)
        outcome = Outcome(plan.pk, "applied", current.version_of(current.read(environment, plan.parts)))
    return outcome


def _settle(changes: PlanChanges) -> Outcome | None:
    """After an error of the caller's apply; None if the plan is not applied."""
    environment, plan_id = changes.environment, changes.plan.pk
    with transaction.atomic(using=environment.cluster):
        # A commit whose connection broke may still be in progress: it keeps the lock until it succeeds or fails.
        stored = StoredPlan.objects.using(environment.cluster).select_for_update().filter(pk=plan_id).first()
    if stored is not None and stored.is_applied:
        return _complete(changes)
    applying.end(environment.environment_id, plan_id)
    return None


def settle_interrupted() -> None:
    """Complete applies that were interrupted after changing their region; end others."""
    unsettled = Environment.objects.live().filter(status=Environment.Status.MIGRATING, applying_plan__isnull=False)
    for environment_id, plan_id, since in list(unsettled.values_list("pk", "applying_plan", "applying_since")):
        with log_failures(f"the apply of {plan_id}"):
            environment = environment_ref(environment_id)
            if environment is not None and plan_id is not None and since is not None:
                _settle_abandoned(environment, plan_id, is_old=since < sql_functions.now(DEFAULT_DB_ALIAS) - ABANDONED)


def _settle_abandoned(environment: EnvironmentRef, plan_id: str, *, is_old: bool) -> None:
    plan = StoredPlan.objects.using(environment.cluster).filter(pk=plan_id).first()
    if plan is not None and plan.is_applied:
        control_part.finish(PlanChanges(environment, plan))
        stored_plans.mark_done(environment.cluster, plan_id)
    elif is_old and _is_fenced_off(environment, plan_id):
        applying.end(environment.environment_id, plan_id)


def _is_fenced_off(environment: EnvironmentRef, plan_id: str) -> bool:
    """Whether no process can change the region for this apply any more; prevents it from now on."""
    using = environment.cluster
    with transaction.atomic(using=using):
        plans_here = StoredPlan.objects.using(using).filter(pk=plan_id)
        if not plans_here.exists():
            return True
        found = plans_here.select_for_update(skip_locked=True).first()
        if found is None or found.is_applied:  # a process is changing the region, or just has
            return False
        plans_here.update(interruptions=F("interruptions") + 1)
    return True
