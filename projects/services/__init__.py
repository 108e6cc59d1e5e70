"""The verbs of `projects`. Each changes the world once, in one control transaction, with its audit entry.

Called by the API, the console and the commands alike; whether the actor may is asked before
(`projects.directory.access`). What is cached of a place is overwritten after the commit
(`projects.directory.environment_cache`).
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models.functions import Coalesce, Now

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox, one_time_links, pool_settings, sign_up
from accounts.users import passwords
from accounts.users.service import UNSET, Unset
from platform_site.background import dispatch
from platform_site.background.periodic import log_failures
from platform_site.http.errors import Forbidden, ValidationFailed
from platform_site.identity import ids, signals
from platform_site.identity.callers import Caller, EnvironmentRef, ProjectRole
from platform_site.identity.plans import plan_limits
from projects.directory import applying, environment_cache, invitations, origins
from projects.directory import locks as environment_locks
from projects.errors import (
    AlreadyMember,
    BranchesQuotaReached,
    LastOwner,
    MembersQuotaReached,
    NameTaken,
    NoSuchAccount,
    NoSuchEnvironment,
    NoSuchInvitation,
    NoSuchMember,
    NoSuchProject,
    NoSuchSource,
    NotABranch,
    ProjectsQuotaReached,
    SourceNotReady,
)
from projects.models import SUSPENSION_REASON_LENGTH, Environment, Member, Project
from projects.provisioning import branching, failpoints, schemas, suspension
from projects.provisioning import deletion as project_deletion
from projects.provisioning.branching import place_of

DEVELOPMENT: Final = "development"
FIRST_ENVIRONMENTS: Final = (DEVELOPMENT, "production")


def create_project(
    *, account_id: str, name: str, region: str, plan: str, actor: Caller | Actor, cluster: str | None = None
) -> Project:
    """Create a project with its `development` and `production` environments and their schemas, owned by the account.

    Development admits pages of the developer's own machine and open sign-up; production neither until configured.
    Everything exists when this returns and its transaction commits, and nothing if anything fails. `name` is 1-64
    characters, not blank. `cluster` is the database alias that stores it, by default the region's own. Raises
    ProjectsQuotaReached, NoSuchAccount, and DatabaseError if the region is unavailable. Contract section 4.1.
    """
    with transaction.atomic():
        # The account's row is the lock under which its projects are counted: parallel creations queue here.
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
                pool_settings.open_sign_up(environment.pk)
        schemas.hold(environment.pk for environment in environments)
        Environment.objects.bulk_create(environments)
        audit.record(
            "project.created", actor=actor, target_id=project.pk, project_id=project.pk, name=name, region=region
        )
        environment_cache.evict_account(owner.pk)
        made = [place_of(project, environment) for environment in environments]
        for place in made:
            signals.environment_ready.send(sender=Environment, place=place, since=None)
        schemas.make_schemas(made)
    failpoints.reach("create.after_commit")
    return project


def _check_quota(account_id: str, plan: str) -> None:
    """Raise ProjectsQuotaReached if the account has as many live projects on this plan as it may have."""
    limit = plan_limits(plan).projects_per_account
    if Project.objects.live().filter(created_by_id=account_id, plan=plan).count() >= limit:
        raise ProjectsQuotaReached(limit)


def change_project(
    project_id: str, *, actor: Caller | Actor, name: str | None = None, plan: str | None = None
) -> Project:
    """Rename a live project or change its plan; None leaves it. Nothing is written if nothing differs.

    Raises NoSuchProject if it was deleted meanwhile, ProjectsQuotaReached if its creator has too many on that plan.
    """
    with transaction.atomic():
        if plan is not None:
            _lock_creator(project_id)
        project = _locked(project_id)
        changes = {
            field: value
            for field, value in (("name", name), ("plan", plan))
            if value is not None and value != getattr(project, field)
        }
        if "plan" in changes and project.created_by_id is not None:
            _check_quota(project.created_by_id, changes["plan"])
        if changes:
            for field, value in changes.items():
                setattr(project, field, value)
            project.save(update_fields=list(changes))
            audit.record("project.changed", actor=actor, target_id=project_id, project_id=project_id, **changes)
            if "plan" in changes:
                environment_cache.evict_project(project_id)
    return project


def _lock_creator(project_id: str) -> None:
    """Take the lock under which the creator's projects are counted; before the project's own, as a creation does."""
    User.objects.select_for_update(no_key=True, of=("self",)).filter(created_projects=project_id).first()


def delete_project(project_id: str, *, actor: Caller | Actor) -> None:
    """Delete a project with its environments, schemas, users and keys.

    It is unreachable when this returns. A small one is removed at once, a large one by a worker; after a crash a
    periodic job continues (`projects.tasks`). Raises NoSuchProject, also for the second of two parallel deletions.
    Contract section 4.3.
    """
    with transaction.atomic():
        project = _locked(project_id)
        environments = list(project.environments.order_by("pk"))
        for environment in environments:
            environment_locks.lock_exclusive(environment.pk, DEFAULT_DB_ALIAS)
        environment_cache.evict_project(project_id)
        Project.objects.filter(pk=project_id).update(deleted_at=Now())
        project.environments.update(status=Environment.Status.DELETING)
        invitations.pending(project_id).delete()
        for environment in environments:
            signals.environment_deleting.send(
                sender=Environment, environment_id=environment.pk, cluster=project.cluster
            )
        audit.record("project.deleted", actor=actor, target_id=project_id, project_id=project_id, name=project.name)
        transaction.on_commit(lambda: project_deletion.finish_soon(project_id))


def suspend_project(project_id: str, *, reason: str, actor: Caller | Actor) -> Project:
    """Keep everything of a live project from happening until it is resumed; nothing of it is lost. For operators.

    Calls are refused from the next request on (`Place.is_suspended`); deliveries, queued runs and e-mails wait
    (`projects.provisioning.suspension`); what is under way ends by itself. `reason` is shown to the project's members:
    1-500 printable characters, and e-mailed to its owners. Of a project that is suspended the reason changes, if it
    differs, and nothing else. Raises NoSuchProject, ValidationFailed on the field `reason`.
    """
    reason = reason.strip()
    if not reason or len(reason) > SUSPENSION_REASON_LENGTH or not reason.isprintable():
        raise ValidationFailed.of(
            "reason", "invalid", f"The reason takes 1 to {SUSPENSION_REASON_LENGTH} printable characters, on one line."
        )
    with transaction.atomic():
        project = _locked(project_id)
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
        audit.record("project.suspended", actor=actor, target_id=project_id, project_id=project_id, reason=reason)
    return project


def resume_project(project_id: str, *, actor: Caller | Actor) -> bool:
    """Lift a suspension: calls are answered from the next request on, what waited goes on, its owners get an e-mail.
    False, with nothing written, if there is none. For operators. Raises NoSuchProject."""
    with transaction.atomic():
        project = _locked(project_id)
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
            "project.resumed",
            actor=actor,
            target_id=project_id,
            project_id=project_id,
            since=since.isoformat(),
            reason=reason,
        )
        transaction.on_commit(lambda: suspension.evict(project.cluster))
    return True


_OF_SUSPENSIONS: Final = (AccountEmail.Kind.PROJECT_SUSPENDED, AccountEmail.Kind.PROJECT_RESUMED)


def _notify_owners(project: Project, kind: AccountEmail.Kind, **details: str) -> None:
    """Email the owners with verified emails, in the current transaction. Unsent emails of an earlier suspension are
    withdrawn."""
    for owner in User.objects.filter(
        memberships__project=project, memberships__role=Member.Role.OWNER, disabled_at__isnull=True
    ).order_by("pk"):
        subject = f"{project.pk} {owner.pk}"
        email_outbox.withdraw(None, subject, _OF_SUSPENSIONS)
        email_outbox.notify(owner, kind, recipient=owner.email, subject=subject, project=project.pk, **details)


def _locked(project_id: str) -> Project:
    """The live project, locked until the end of the transaction. Raises NoSuchProject."""
    project: Project | None = Project.objects.live().select_for_update(no_key=True).filter(pk=project_id).first()
    if project is None:
        raise NoSuchProject
    return project


def find_source(project: Project, named: str) -> Environment:
    """The live environment of the project with this name or id. One query. Raises NoSuchSource."""
    meant = {"pk": named} if ids.matches("env", named) else {"name": named}
    found: Environment | None = project.environments.live().filter(**meant).first()
    if found is None:
        raise NoSuchSource
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
    """Create a preview branch of the environment `source_id` of this project: its schema, webhooks (disabled) and
    functions, and with `data="full"` its rows. It is deleted at `expires_at`.

    Ready when this returns and its transaction commits, unless there are many rows: then it is `creating`, and a worker
    copies them. Raises NoSuchProject, NoSuchSource, SourceNotReady, NameTaken, BranchesQuotaReached, and DatabaseError
    (with nothing created) if the region is unavailable.
    """
    with transaction.atomic():
        # The project's row is the lock under which its branches are counted and named.
        project = _locked(project_id)
        source: Environment | None = project.environments.live().filter(pk=source_id).first()
        if source is None:
            raise NoSuchSource
        if source.status not in (Environment.Status.READY, Environment.Status.MIGRATING):
            raise SourceNotReady
        applying.require_settled(source_id)
        from_place = place_of(project, source)
        at_once = data == "none" or branching.is_small(from_place)
        filled_from = Environment.Filling.SOURCE if data == "full" else None
        branch = begin_branch(project, source, name, filled_from, at_once=at_once, expires_at=expires_at)
        audit.record(
            "environment.branched",
            actor=actor,
            target_id=branch.pk,
            project_id=project_id,
            environment_id=branch.pk,
            name=name,
            source=source_id,
            data=data,
        )
        if at_once:
            place = place_of(project, branch)
            branching.block_user_deletion(place.pool_id)
            signals.environment_ready.send(sender=Environment, place=place, since=None)
            branching.copy(from_place, place, data)
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
    """The record of a new branch, in the transaction at hand, which holds the project's lock.

    Raises NameTaken, BranchesQuotaReached.
    """
    if project.environments.live().filter(name=name).exists():
        raise NameTaken
    limit = plan_limits(project.plan).preview_branches_per_project
    if project.environments.live().branches().count() >= limit:
        raise BranchesQuotaReached(limit)
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
    """A new preview branch of production with an empty schema, to be filled in the block, which is one transaction of
    its region. For restoring backups. It becomes reachable when the block has succeeded (at the latest after the next
    periodic run); otherwise there is none.

    `detail` is added to the audit entry. Raises NoSuchProject, NameTaken, BranchesQuotaReached, DatabaseError.
    """
    project = Project.objects.live().filter(pk=project_id).first()
    if project is None:
        raise NoSuchProject
    branch_id = ids.new("env")
    with branching.region_of_new(branch_id, project.cluster):
        with transaction.atomic():
            project = _locked(project_id)
            source = find_source(project, environment_cache.DEFAULT_ENVIRONMENT)
            branch = begin_branch(project, source, name, Environment.Filling.ARCHIVE, at_once=False, pk=branch_id)
            audit.record(
                "environment.restored",
                actor=actor,
                target_id=branch_id,
                project_id=project_id,
                environment_id=branch_id,
                name=name,
                **detail,
            )
        try:
            place = place_of(project, branch)
            yield place
            branching.require(place)
            failpoints.reach("restore.before_region_commit")
        except BaseException:
            Environment.objects.filter(pk=branch_id, status=Environment.Status.CREATING).delete()
            raise
    failpoints.reach("restore.after_region_commit")
    with log_failures(f"the restored branch {branch_id}"):
        branching.settle(branch_id)


def is_ready(environment_id: str) -> bool:
    """Whether the environment is there and no longer `creating`. One query."""
    return Environment.objects.live().filter(pk=environment_id).exclude(status=Environment.Status.CREATING).exists()


def delete_environment(project_id: str, environment_id: str, *, actor: Caller | Actor) -> None:
    """Delete a preview branch for good, with its schema, keys and sessions.

    When this returns it is gone for every caller; the rest is as with a project. Raises NoSuchProject,
    NoSuchEnvironment (also for the second of two parallel deletions), NotABranch.
    """
    with transaction.atomic():
        project = _locked(project_id)
        environment: Environment | None = (
            project.environments.live().select_for_update(no_key=True, of=("self",)).filter(pk=environment_id).first()
        )
        if environment is None:
            raise NoSuchEnvironment
        if not environment.is_branch:
            raise NotABranch
        environment_locks.lock_exclusive(environment_id, DEFAULT_DB_ALIAS)
        environment_cache.evict_environment(environment)
        Environment.objects.filter(pk=environment_id).update(status=Environment.Status.DELETING)
        signals.environment_deleting.send(sender=Environment, environment_id=environment_id, cluster=project.cluster)
        audit.record(
            "environment.deleted",
            actor=actor,
            target_id=environment_id,
            project_id=project_id,
            environment_id=environment_id,
            name=environment.name,
        )
        transaction.on_commit(lambda: project_deletion.finish_environment_soon(environment_id, project.cluster))


def change_environment(
    environment_id: str,
    *,
    allowed_origins: Sequence[str] | Unset = UNSET,
    expires_at: datetime | None | Unset = UNSET,
    actor: Caller | Actor,
) -> Environment:
    """Change which web origins may read the environment's answers (`projects.directory.origins`), and when a preview
    branch is deleted (by a periodic job; None: never).

    Raises NoSuchEnvironment, NotAnOrigin, NotABranch for `expires_at` of another environment.
    """
    with transaction.atomic():
        environment: Environment | None = (
            Environment.objects.live()
            .select_for_update(no_key=True, of=("self",))
            .select_related("project")
            .filter(pk=environment_id)
            .first()
        )
        if environment is None:
            raise NoSuchEnvironment
        applying.require_settled(environment_id)
        changed: dict[str, Any] = {}
        if not isinstance(allowed_origins, Unset):
            wanted = origins.normalised(allowed_origins)
            if wanted != environment.allowed_origins:
                environment_cache.evict_environment(environment)
                environment.allowed_origins = changed["allowed_origins"] = wanted
        if not isinstance(expires_at, Unset):
            if not environment.is_branch:
                raise NotABranch
            if expires_at != environment.expires_at:
                environment.expires_at = expires_at
                changed["expires_at"] = expires_at and expires_at.isoformat()
        if changed:
            environment.save(update_fields=[*changed])
            audit.record(
                "environment.changed",
                actor=actor,
                target_id=environment_id,
                project_id=environment.project_id,
                environment_id=environment_id,
                **changed,
            )
    return environment


def add_member(project_id: str, *, email: str, role: ProjectRole, actor: Caller | Actor) -> Member:
    """Give the platform account with this email a role in the project. An open invitation of this email ends.

    Raises NoSuchProject, NoSuchAccount, AlreadyMember, MembersQuotaReached.
    """
    with transaction.atomic():
        project = _locked(project_id)
        user = User.objects.with_email(None, email).filter(disabled_at=None).first()
        if user is None:
            raise NoSuchAccount
        if project.memberships.filter(user=user).exists():
            raise AlreadyMember
        invitations.of_address(project_id, email).delete()
        member = _add(project, user, role)
        audit.record("member.added", actor=actor, target_id=user.pk, project_id=project_id, role=role)
    return member


def _add(project: Project, user: User, role: ProjectRole) -> Member:
    """A new membership, under the project's lock. Raises MembersQuotaReached."""
    _check_member_quota(project)
    environment_cache.evict_members(project.pk, [user.pk])
    return Member.objects.create(project=project, user=user, role=role)


def _check_member_quota(project: Project) -> None:
    """Raise MembersQuotaReached if members and those invited are as many as the plan allows."""
    limit = plan_limits(project.plan).members_per_project
    if project.memberships.count() + invitations.pending(project.pk).count() >= limit:
        raise MembersQuotaReached(limit)


def invite_member(
    project_id: str,
    *,
    email: str,
    role: ProjectRole,
    actor: Caller | Actor,
    admit: Callable[[], None] = lambda: None,
) -> AccountEmail:
    """Invite an email without an account into the project; a second invitation replaces the first.

    `admit` is called when everything else is valid, and may raise (a rate limit that refused calls must not use up).
    Raises NoSuchProject, NoSuchAccount if the operator does not allow invitations, ValidationFailed (no email),
    MembersQuotaReached.
    """
    with transaction.atomic():
        project = _locked(project_id)
        if not invitations.are_taken():
            raise NoSuchAccount
        invitations.of_address(project_id, email).delete()
        _check_member_quota(project)
        made = invitations.write(project_id, email=email, role=role, actor=actor)
        admit()
        audit.record(
            "member.invited", actor=actor, target_id=made.pk, project_id=project_id, email=made.recipient, role=role
        )
    return made


def withdraw_invitation(project_id: str, invitation_id: str, *, actor: Caller | Actor) -> None:
    """End an invitation into the project; its link works no longer. Raises NoSuchProject, NoSuchInvitation."""
    with transaction.atomic():
        _locked(project_id)
        found = invitations.pending(project_id).select_for_update().filter(pk=invitation_id).first()
        if found is None:
            raise NoSuchInvitation
        found.delete()
        audit.record(
            "member.invitation_withdrawn",
            actor=actor,
            target_id=invitation_id,
            project_id=project_id,
            email=found.recipient,
        )


def accept_invitation(token: str, *, password: str | None = None, name: str = "") -> Member:
    """Make the invited person a member, with the role of the invitation.

    `password` and `name` are for an email without an account, which is created as verified. Existing members keep their
    role. Raises InvalidGrant (`invitations.find`), ProjectSuspended, ValidationFailed (a password that is not needed,
    or a missing or weak one), Forbidden (the operator does not allow invitations any more), RateLimited,
    MembersQuotaReached; each leaves the link valid.
    """
    found = invitations.find(token)
    password_hash = None
    if _is_without_account(found, password):
        if password is None:
            raise ValidationFailed.of("password", "required", "Choose a password: your account is made with it.")
        if not invitations.are_taken():
            raise Forbidden("New accounts are not admitted at the moment.")
        passwords.check_chosen(password, User(email=found.recipient, name=name))
        password_hash = passwords.hashed(password)
    with transaction.atomic():
        # The project's row is the lock under which its members are counted, and its owners are what they are.
        project = Project.objects.live().select_for_update(no_key=True).filter(pk=found.project_id).first()
        if project is None:
            raise one_time_links.invalid_link()
        found = invitations.find(token)
        user = None if _is_without_account(found, password) else invitations.account_of(found)
        if user is not None:
            one_time_links.use_up(found)
        elif password_hash is not None:
            user = sign_up.make_user(found, password_hash=password_hash, name=name, via="member_invitation")
        else:
            raise one_time_links.invalid_link()  # the account went at this moment
        member = project.memberships.filter(user=user).first()
        if member is None:
            member = _add(project, user, found.details["member_role"])
            audit.record(
                "member.added",
                actor=Actor.of(user),
                target_id=user.pk,
                project_id=project.pk,
                role=member.role,
                invitation_id=found.pk,
                invited_by=found.details["invited_by"],
            )
        member.user = user
    return member


def _is_without_account(found: AccountEmail, password: str | None) -> bool:
    """Whether the invited email has no account. Raises ValidationFailed if it has one and a password was sent, which
    would not become its password. InvalidGrant if the account is disabled."""
    if invitations.account_of(found) is None:
        return True
    if password is not None:
        message = "This email already has an account with its own password: accept without one."
        raise ValidationFailed.of("password", "not_needed", message)
    return False


def change_member(project_id: str, user_id: str, *, role: ProjectRole | None, actor: Caller | Actor) -> Member:
    """Give a member another role; None leaves it. Raises NoSuchProject, NoSuchMember, LastOwner."""
    with transaction.atomic():
        member = _member(project_id, user_id)
        if role is not None and role != member.role:
            _keep_an_owner(member)
            environment_cache.evict_members(project_id, [user_id])
            _end_invitations(member)
            member.role = role
            member.save(update_fields=["role"])
            audit.record("member.changed", actor=actor, target_id=user_id, project_id=project_id, role=role)
    return member


def remove_member(project_id: str, user_id: str, *, actor: Caller | Actor) -> None:
    """End a membership. Keys that the member made stay: they are the project's. Raises NoSuchProject, NoSuchMember,
    LastOwner."""
    with transaction.atomic():
        member = _member(project_id, user_id)
        _keep_an_owner(member)
        environment_cache.evict_members(project_id, [user_id])
        _end_invitations(member)
        member.delete()
        audit.record("member.removed", actor=actor, target_id=user_id, project_id=project_id)


def _member(project_id: str, user_id: str) -> Member:
    """The membership, under the project's lock, so that two owners cannot remove each other at once."""
    _locked(project_id)
    member = Member.objects.select_related("user").filter(project_id=project_id, user_id=user_id).first()
    if member is None:
        raise NoSuchMember
    return member


def _end_invitations(member: Member) -> None:
    """End the invitations of a member that is no longer an owner."""
    if member.role == Member.Role.OWNER:
        invitations.of_inviter(member.user_id).filter(project_id=member.project_id).delete()


def _keep_an_owner(member: Member) -> None:
    others = Member.objects.filter(project_id=member.project_id, role=Member.Role.OWNER).exclude(pk=member.pk)
    if member.role == Member.Role.OWNER and not others.exists():
        raise LastOwner
