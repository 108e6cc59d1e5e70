from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from platform_site.background import dispatch
from platform_site.identity.callers import Caller
from projects.directory import applying, environment_cache
from projects.errors import NoSuchEnvironment, NotABranch, NotResettable
from projects.models import Environment
from projects.provisioning import branching


def reset_branch(environment_id: str, *, data: branching.Data, actor: Caller | Actor) -> Environment:
    """Replace the tables, functions and webhooks of a preview branch by copies of its parent's, and with `data="full"`
    its rows. With many rows, a worker copies them and the branch is `creating`. Raises NoSuchEnvironment, NotABranch,
    NotResettable, ApplyInProgress, TablesInUse, and DatabaseError."""
    with transaction.atomic():
        branch, parent = _both(environment_id)
        target, source = branching.place_of(branch.project, branch), branching.place_of(branch.project, parent)
        at_once = data == "none" or branching.is_small(source)
        if not at_once:
            _leave_to_worker(branch, parent, actor, data)
    if at_once:
        branching.reset(source, target, data, actor=actor)
    else:
        dispatch.send("projects.tasks.fill_branch", branch.pk)
    return branch


def _both(environment_id: str) -> tuple[Environment, Environment]:
    live: Any = Environment.objects.live().select_related("project", "parent")
    branch: Environment | None = live.select_for_update(no_key=True, of=("self",)).filter(pk=environment_id).first()
    if branch is None:
        raise NoSuchEnvironment
    if not branch.is_branch:
        raise NotABranch
    status, parent = Environment.Status, branch.parent
    ready = (status.READY, status.MIGRATING)
    if branch.status not in ready or parent is None or parent.status not in ready:
        raise NotResettable
    for each in (branch, parent):
        applying.require_settled(each.pk)
    return branch, parent


def _leave_to_worker(branch: Environment, parent: Environment, actor: Caller | Actor, data: branching.Data) -> None:
    environment_cache.evict_environment(branch)
    branch.status, branch.status_reason = Environment.Status.CREATING, None
    branch.filled_from = Environment.Filling.RESET
    branch.save(update_fields=["status", "status_reason", "filled_from"])
    Environment.objects.filter(pk=branch.pk).update(applying_since=Now())
    audit.record(
        "environment.reset",
        actor=actor,
        target_id=branch.pk,
        project_id=branch.project_id,
        environment_id=branch.pk,
        source=parent.pk,
        data=data,
    )
