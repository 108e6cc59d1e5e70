from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from platform_site.background import dispatch
from platform_site.background.periodic import log_failures
from platform_site.http.errors import Conflict, ValidationFailed, first_or
from platform_site.identity import ids, signals
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import transaction_settings
from projects.directory import applying, environment_cache, locks, origins
from projects.errors import BranchesQuotaReached, NameTaken, NoSuchProject, NotABranch
from projects.models import Environment, Project
from projects.provisioning import branching, failpoints, schemas
from projects.provisioning import deletion as project_deletion
from projects.provisioning.branching import ref_of


def find_source(project: Project, named: str) -> Environment:
    """The live environment of the project with this name or id. Raises ValidationFailed."""
    lookup = {"pk": named} if ids.matches("env", named) else {"name": named}
    found: Environment | None = project.environments.live().filter(**lookup).first()
    if found is None:
        raise ValidationFailed.of("from", "unknown", "The project has no such environment.")
    return found


def create_branch(
    project_id: str,
    *,
    name: str,
    source_id: str,
    data: branching.Data,
    expires_at: datetime | None = None,
    actor: Caller | Actor,
) -> Environment:
    """Create a preview branch of `source_id`: schema, webhooks (disabled), functions, and with `data="full"` rows. With
    many rows, it is `creating` until a worker has copied them. Raises NoSuchProject, ValidationFailed (the source),
    NameTaken, BranchesQuotaReached, Conflict (it is not ready), and DatabaseError."""
    with transaction.atomic():
        # Branches are counted, and names checked, under the lock of the project's row.
        project = locks.lock_project(project_id)
        source = find_source(project, source_id)
        if source.status not in (Environment.Status.READY, Environment.Status.MIGRATING):
            raise Conflict("The environment to branch from is not ready.")
        applying.require_settled(source_id)
        source_ref = ref_of(project, source)
        at_once = data == "none" or branching.is_small(source_ref)
        filled_from = Environment.Filling.SOURCE if data == "full" else None
        branch = begin_branch(project, source, name, filled_from, at_once=at_once, expires_at=expires_at)
        audit.record(
            "environment.branched",
            branch,
            actor=actor,
            environment_id=branch.pk,
            name=name,
            source=source_id,
            data=data,
        )
        if at_once:
            ref = ref_of(project, branch)
            branching.block_user_deletion(ref.pool_id)
            signals.environment_ready.send(sender=Environment, environment=ref, since=None)
            branching.copy(source_ref, ref, data)
        else:
            dispatch.send("projects.tasks.fill_branch", branch.pk)
    failpoints.reach("branch.after_commit")
    return branch


def begin_branch(
    project: Project,
    source: Environment,
    name: str,
    filled_from: Environment.Filling | None,
    *,
    at_once: bool,
    pk: str | None = None,
    expires_at: datetime | None = None,
) -> Environment:
    """Call with the project locked. Raises NameTaken, BranchesQuotaReached."""
    if project.environments.live().filter(name=name).exists():
        raise NameTaken
    limit = plan_limits(project.plan).preview_branches_per_project
    BranchesQuotaReached.check(project.environments.live().branches().count(), limit, "preview branches per project")
    branch = Environment(
        pk=pk or ids.new("env"),
        project=project,
        name=name,
        parent=source,
        pool_id=source.pool_id,
        filled_from=filled_from,
        allowed_origins=source.allowed_origins,
        expires_at=expires_at,
        status=Environment.Status.READY if at_once else Environment.Status.CREATING,
    )
    schemas.hold([branch.pk])
    branch.save(force_insert=True)
    return branch


@contextmanager
def filled_branch(project_id: str, *, name: str, actor: Caller | Actor, **detail: Any) -> Generator[EnvironmentRef]:
    """A new preview branch of production, to be filled in the block, which is one transaction of its region without
    time limits (for restores). `detail` goes to the audit entry. Raises NoSuchProject, NameTaken, BranchesQuotaReached,
    DatabaseError."""
    project = first_or(Project.objects.live().filter(pk=project_id), NoSuchProject)
    branch_id = ids.new("env")
    with transaction.atomic(using=project.cluster):
        transaction_settings.lift_limits(project.cluster)
        schemas.claim_schema(branch_id, project.cluster)
        schemas.create_schema(branch_id, project.cluster)
        with transaction.atomic():
            project = locks.lock_project(project_id)
            source = find_source(project, environment_cache.DEFAULT_ENVIRONMENT)
            branch = begin_branch(project, source, name, Environment.Filling.ARCHIVE, at_once=False, pk=branch_id)
            audit.record("environment.restored", branch, actor=actor, environment_id=branch_id, name=name, **detail)
        try:
            ref = ref_of(project, branch)
            yield ref
            if not locks.is_live(branch_id):
                raise branching.BranchDeleted
            failpoints.reach("restore.before_region_commit")
        except BaseException:
            Environment.objects.filter(pk=branch_id, status=Environment.Status.CREATING).delete()
            raise
    failpoints.reach("restore.after_region_commit")
    with log_failures(f"the restored branch {branch_id}"):
        branching.settle(branch_id)


def reset_branch(environment_id: str, *, data: branching.Data, actor: Caller | Actor) -> Environment:
    """Replace the tables, functions and webhooks of a preview branch by copies of its parent's, and with `data="full"`
    its rows. With many rows, a worker copies them and the branch is `creating`. Raises NoSuchEnvironment, NotABranch,
    Conflict (not ready), ApplyInProgress, TablesInUse, and DatabaseError."""
    status = Environment.Status
    with transaction.atomic():
        branch = locks.lock_environment(environment_id)
        if not branch.is_branch:
            raise NotABranch
        parent, ready = branch.parent, (status.READY, status.MIGRATING)
        if branch.status not in ready or parent is None or parent.status not in ready:
            raise Conflict("The branch or its parent is deleted or not ready.")
        for each in (branch, parent):
            applying.require_settled(each.pk)
        target, source = ref_of(branch.project, branch), ref_of(branch.project, parent)
        at_once = data == "none" or branching.is_small(source)
        if not at_once:
            environment_cache.evict_environment(branch)
            branch.status, branch.status_reason = status.CREATING, None
            branch.filled_from = Environment.Filling.RESET
            branch.save(update_fields=["status", "status_reason", "filled_from"])
            Environment.objects.filter(pk=branch.pk).update(applying_since=Now())
            detail = {"environment_id": branch.pk, "source": parent.pk, "data": data}
            audit.record("environment.reset", branch, actor=actor, **detail)
    if at_once:
        branching.reset(source, target, data, actor=actor)
    else:
        dispatch.send("projects.tasks.fill_branch", branch.pk)
    return branch


def is_ready(environment_id: str) -> bool:
    """Whether the environment exists and is not `creating`. One query."""
    return Environment.objects.live().filter(pk=environment_id).exclude(status=Environment.Status.CREATING).exists()


def delete_environment(project_id: str, environment_id: str, *, actor: Caller | Actor) -> None:
    """Raises NoSuchProject, NoSuchEnvironment, NotABranch."""
    with transaction.atomic():
        project = locks.lock_project(project_id)
        environment = locks.lock_environment(environment_id, project=project)
        if not environment.is_branch:
            raise NotABranch
        locks.lock_exclusive(environment_id, DEFAULT_DB_ALIAS)
        environment_cache.evict_environment(environment)
        Environment.objects.filter(pk=environment_id).update(status=Environment.Status.DELETING)
        signals.environment_deleting.send(sender=Environment, environment_id=environment_id, cluster=project.cluster)
        audit.record(
            "environment.deleted", environment, actor=actor, environment_id=environment_id, name=environment.name
        )
        transaction.on_commit(lambda: project_deletion.finish_environment_soon(environment_id, project.cluster))


class EnvironmentChanges(TypedDict, total=False):
    allowed_origins: Sequence[str]
    expires_at: datetime | None


def change_environment(
    environment_id: str, *, actor: Caller | Actor, **values: Unpack[EnvironmentChanges]
) -> Environment:
    """Raises NoSuchEnvironment, NotAnOrigin, NotABranch for `expires_at` (None: never) of another environment."""
    with transaction.atomic():
        environment = locks.lock_environment(environment_id)
        applying.require_settled(environment_id)
        changed: dict[str, Any] = {}
        if "allowed_origins" in values:
            wanted = origins.normalised(values["allowed_origins"])
            if wanted != environment.allowed_origins:
                environment_cache.evict_environment(environment)
                environment.allowed_origins = changed["allowed_origins"] = wanted
        if "expires_at" in values:
            expires_at = values["expires_at"]
            if not environment.is_branch:
                raise NotABranch
            if expires_at != environment.expires_at:
                environment.expires_at = expires_at
                changed["expires_at"] = expires_at and expires_at.isoformat()
        if changed:
            environment.save(update_fields=[*changed])
            audit.record("environment.changed", environment, actor=actor, environment_id=environment_id, **changed)
    return environment
