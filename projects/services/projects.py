from typing import Final

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models.functions import Coalesce, Now

from accounts import audit, changes
from accounts.audit import Actor
from accounts.models import User
from accounts.models.registration import AccountEmail, PoolSettings, SignUpMode
from accounts.registration import email_outbox
from platform_site.http.errors import QuotaExceeded
from platform_site.identity import signals
from platform_site.identity.callers import Caller
from platform_site.identity.plans import plan_limits
from projects.directory import environment_cache, invitations, locks, origins
from projects.errors import NoSuchAccount
from projects.models import Environment, Member, Project
from projects.provisioning import deletion as project_deletion
from projects.provisioning import failpoints, schemas, suspension
from projects.provisioning.branching import ref_of
from projects.staff_access import checked_reason

DEVELOPMENT: Final = "development"
FIRST_ENVIRONMENTS: Final = (DEVELOPMENT, "production")


def create_project(
    *, account_id: str, name: str, region: str, plan: str, actor: Caller | Actor, cluster: str | None = None
) -> Project:
    """Create a project with `development` (open to localhost and sign-up) and `production`, their schemas, and the
    account as owner. `cluster` defaults to the region's database. Raises QuotaExceeded, NoSuchAccount,
    DatabaseError. Contract section 4.1."""
    with transaction.atomic():
        # Projects are counted under the lock of the account's row: parallel creations wait here.
        owner = (
            User.objects.in_pool(None).select_for_update(no_key=True).filter(pk=account_id, disabled_at=None).first()
        )
        if owner is None:
            raise NoSuchAccount
        _check_quota(owner.pk, plan)
        project = Project.objects.create(
            name=name, region=region, cluster=cluster or region, plan=plan, created_by=owner
        )
        Member.objects.create(project=project, user=owner, role=Member.Role.OWNER)
        environments = [
            Environment(project=project, name=name, status=Environment.Status.READY) for name in FIRST_ENVIRONMENTS
        ]
        for environment in environments:
            environment.pool_id = environment.pk
            if environment.name == DEVELOPMENT:
                environment.allowed_origins = list(origins.OF_DEVELOPMENT)
                PoolSettings.objects.create(environment_id=environment.pk, sign_up=SignUpMode.OPEN)
        schemas.hold(environment.pk for environment in environments)
        Environment.objects.bulk_create(environments)
        audit.record("project.created", project, actor=actor, project_id=project.pk, name=name, region=region)
        environment_cache.evict_account(owner.pk)
        refs = [ref_of(project, environment) for environment in environments]
        for ref in refs:
            signals.environment_ready.send(sender=Environment, environment=ref, since=None)
        schemas.make_schemas(refs)
    failpoints.reach("create.after_commit")
    return project


def _check_quota(account_id: str, plan: str) -> None:
    owned = Project.objects.live().filter(created_by_id=account_id, plan=plan).count()
    QuotaExceeded.check(owned, plan_limits(plan).projects_per_account, "projects per account")


def change_project(
    project_id: str, *, actor: Caller | Actor, name: str | None = None, plan: str | None = None
) -> Project:
    """None leaves the name or plan. Raises NoSuchProject, QuotaExceeded."""
    with transaction.atomic():
        if plan is not None:
            # The count of the creator's projects is locked before the project, as in a creation.
            User.objects.select_for_update(no_key=True, of=("self",)).filter(created_projects=project_id).first()
        project = locks.lock_project(project_id)
        given = {field: value for field, value in (("name", name), ("plan", plan)) if value is not None}
        changed = changes.apply(project, given)
        if "plan" in changed and project.created_by_id is not None:
            _check_quota(project.created_by_id, project.plan)
        if changed:
            project.save(update_fields=changed)
            detail = {field: given[field] for field in changed}
            audit.record("project.changed", project_id, actor=actor, project_id=project_id, **detail)
            if "plan" in changed:
                environment_cache.evict_project(project_id)
    return project


def delete_project(project_id: str, *, actor: Caller | Actor) -> None:
    """The project is unreachable when this returns. Raises NoSuchProject. Contract section 4.3."""
    with transaction.atomic():
        project = locks.lock_project(project_id)
        environments = list(project.environments.order_by("pk"))
        for environment in environments:
            locks.lock_exclusive(environment.pk, DEFAULT_DB_ALIAS)
        environment_cache.evict_project(project_id)
        Project.objects.filter(pk=project_id).update(deleted_at=Now())
        project.environments.update(status=Environment.Status.DELETING)
        invitations.pending(project_id).delete()
        for environment in environments:
            signals.environment_deleting.send(
                sender=Environment, environment_id=environment.pk, cluster=project.cluster
            )
        audit.record("project.deleted", project_id, actor=actor, project_id=project_id, name=project.name)
        transaction.on_commit(lambda: project_deletion.finish_soon(project_id))


def suspend_project(project_id: str, *, reason: str, actor: Caller | Actor) -> Project:
    """Suspend a live project until it is resumed, or change the reason; for operators. Calls are refused from the next
    request on; deliveries, queued runs and emails wait (`projects.provisioning.suspension`). Owners get an email with
    `reason` (1-500 printable characters). Raises NoSuchProject, ValidationFailed on the field `reason`."""
    reason = checked_reason(reason)
    with transaction.atomic():
        project = locks.lock_project(project_id)
        if project.suspension_reason == reason:
            return project
        if project.suspended_at is None:
            environment_cache.evict_project(project_id)
            transaction.on_commit(lambda: suspension.evict(project.cluster))
            _notify_owners(project, AccountEmail.Kind.PROJECT_SUSPENDED, reason=reason)
        Project.objects.filter(pk=project_id).update(
            suspended_at=Coalesce("suspended_at", Now()), suspension_reason=reason
        )
        project.refresh_from_db(fields=["suspended_at", "suspension_reason"])
        audit.record("project.suspended", project_id, actor=actor, project_id=project_id, reason=reason)
    return project


def resume_project(project_id: str, *, actor: Caller | Actor) -> bool:
    """Resume a project, and email its owners; for operators. False if it is not suspended. Raises NoSuchProject."""
    with transaction.atomic():
        project = locks.lock_project(project_id)
        since, reason = project.suspended_at, project.suspension_reason
        if since is None:
            return False
        environment_cache.evict_project(project_id)
        Project.objects.filter(pk=project_id).update(suspended_at=None, suspension_reason=None, resumed_at=Now())
        _notify_owners(project, AccountEmail.Kind.PROJECT_RESUMED)
        project.refresh_from_db(fields=["resumed_at"])
        if project.resumed_at is not None:
            pool_ids = project.environments.values_list("pk", flat=True)
            email_outbox.postpone(project_id, pool_ids, since, project.resumed_at)
        audit.record(
            "project.resumed", project_id, actor=actor, project_id=project_id, since=since.isoformat(), reason=reason
        )
        transaction.on_commit(lambda: suspension.evict(project.cluster))
    return True


_OF_SUSPENSIONS: Final = (AccountEmail.Kind.PROJECT_SUSPENDED, AccountEmail.Kind.PROJECT_RESUMED)


def _notify_owners(project: Project, kind: AccountEmail.Kind, **details: str) -> None:
    for owner in User.objects.filter(
        memberships__project=project, memberships__role=Member.Role.OWNER, disabled_at__isnull=True
    ).order_by("pk"):
        subject = f"{project.pk} {owner.pk}"
        email_outbox.withdraw(None, subject, _OF_SUSPENSIONS)
        email_outbox.notify(owner, kind, subject=subject, project=project.pk, **details)
