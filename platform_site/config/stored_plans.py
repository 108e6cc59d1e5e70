from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import transaction

from platform_site.config import current
from platform_site.config.comparison import Plan
from platform_site.config.models import ConfigVersion, MergeBase, StoredPlan
from platform_site.http import exact_json
from platform_site.http.errors import NotFound
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import sql_functions
from projects.directory import locks as environment_locks
from projects.models import Environment

LIFETIME: Final = timedelta(hours=1)
RETENTION: Final = timedelta(days=1)
"""How long a plan is kept after it expires, so that its apply can be repeated."""
MAX_OPEN: Final = 20
"""Plans of one author in an environment; a new one replaces the oldest."""
BATCH: Final = 500


def versions_of(parts: current.Parts) -> tuple[str, str]:
    """Of those in the region and in the control database."""
    in_region = {name: part for name, part in parts.items() if name in current.IN_REGION}
    in_control = {name: part for name, part in parts.items() if name not in current.IN_REGION}
    return current.version_of(in_region), current.version_of(in_control)


def new(
    environment: EnvironmentRef,
    author: Caller,
    document: Mapping[str, Any],
    now: current.Parts,
    plan: Plan,
    merge: Mapping[str, Any] | None = None,
    restores: str | None = None,
) -> StoredPlan:
    in_region, in_control = versions_of(now)
    return StoredPlan(
        environment_id=environment.environment_id,
        author_kind=author.kind,
        author_id=author.id,
        parts=[*now],
        document_text=exact_json.dumps(dict(document)),
        changes=changes_as_json(plan),
        merge=merge,
        restores=restores,
        confirm=plan.confirm,
        version_in_region=in_region,
        version_in_control=in_control,
    )


def store(plan: StoredPlan, using: str) -> None:
    """In place of the author's oldest one, if there are MAX_OPEN."""
    with transaction.atomic(using=using):
        environment_locks.lock_shared_in_region(plan.environment_id, using)
        own = StoredPlan.objects.using(using).filter(
            environment_id=plan.environment_id, author_id=plan.author_id, state=StoredPlan.State.OPEN
        )
        surplus = own.order_by("-created_at", "-id").values_list("pk", flat=True)[MAX_OPEN - 1 :]
        own.filter(pk__in=list(surplus)).delete()
        plan.expires_at = sql_functions.now(using) + LIFETIME
        plan.save(using=using, force_insert=True)


def changes_as_json(plan: Plan) -> list[dict[str, Any]]:
    return [{"path": it.path, "kind": it.kind, "operation": it.operation} for it in plan.changes]


def find(environment: EnvironmentRef, plan_id: str) -> StoredPlan:
    plans = StoredPlan.objects.using(environment.cluster).filter(environment_id=environment.environment_id)
    found = plans.filter(pk=plan_id).first() if ids.matches("pln", plan_id) else None
    if found is None:
        raise NotFound("There is no such plan in this environment. Plans are deleted a day after they expire.")
    return found


def delete_old(using: str) -> None:
    """Delete plans RETENTION after they expire, except those that are being applied."""
    old = StoredPlan.objects.using(using).filter(expires_at__lt=sql_functions.now(using) - RETENTION)
    while True:
        batch = dict(old.order_by("expires_at").values_list("pk", "state")[:BATCH])
        applied = [plan_id for plan_id, state in batch.items() if state == StoredPlan.State.APPLIED]
        being_applied = Environment.objects.filter(applying_plan__in=applied)
        unfinished = set(being_applied.values_list("applying_plan", flat=True))
        old.filter(pk__in=batch.keys() - unfinished).delete()
        if len(batch) < BATCH or len(unfinished) == BATCH:
            return


def forget_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    for model in (StoredPlan, ConfigVersion, MergeBase):
        model._default_manager.using(cluster).filter(environment_id=environment_id).delete()
    MergeBase.objects.using(cluster).filter(other_id=environment_id).delete()


def mark_done(using: str, plan_id: str) -> None:
    applied = StoredPlan.objects.using(using).filter(pk=plan_id, state=StoredPlan.State.APPLIED)
    applied.update(state=StoredPlan.State.DONE)
