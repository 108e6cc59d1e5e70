from django.db import transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from platform_site.http.errors import Conflict, NotFound, QuotaExceeded, first_or
from platform_site.identity.callers import Caller, ProjectRole
from platform_site.identity.plans import plan_limits
from projects.directory import environment_cache, invitations
from projects.directory.limits import count_members
from projects.directory.locks import lock_project
from projects.errors import LastOwner, NoSuchAccount
from projects.models import Member, Project


def add_member(project_id: str, *, email: str, role: ProjectRole, actor: Caller | Actor) -> Member:
    """Also ends an open invitation. Raises NoSuchProject, NoSuchAccount, Conflict (is a member), QuotaExceeded."""
    with transaction.atomic():
        project = lock_project(project_id)
        user = first_or(User.objects.with_email(None, email).filter(disabled_at=None), NoSuchAccount)
        if project.memberships.filter(user=user).exists():
            raise Conflict("The account is already a member of this project.")
        invitations.of_address(project_id, email).delete()
        member = create_membership(project, user, role)
        audit.record("member.added", user, actor=actor, project_id=project_id, role=role)
    return member


def create_membership(project: Project, user: User, role: ProjectRole) -> Member:
    check_quota(project)
    environment_cache.evict_members(project.pk, [user.pk])
    return Member.objects.create(project=project, user=user, role=role)


def check_quota(project: Project) -> None:
    limit = plan_limits(project.plan).members_per_project
    QuotaExceeded.check(count_members(project.pk), limit, "members per project, including open invitations")


def change_member(project_id: str, user_id: str, *, role: ProjectRole | None, actor: Caller | Actor) -> Member:
    """Raises NotFound, LastOwner."""
    with transaction.atomic():
        member = _member(project_id, user_id)
        if role is not None and role != member.role:
            _end_role(member)
            member.role = role
            member.save(update_fields=["role"])
            audit.record("member.changed", user_id, actor=actor, project_id=project_id, role=role)
    return member


def remove_member(project_id: str, user_id: str, *, actor: Caller | Actor) -> None:
    """Keys that the member made stay. Raises NotFound, LastOwner."""
    with transaction.atomic():
        member = _member(project_id, user_id)
        _end_role(member)
        member.delete()
        audit.record("member.removed", user_id, actor=actor, project_id=project_id)


def _member(project_id: str, user_id: str) -> Member:
    """The membership, with the project locked: two owners cannot remove each other."""
    lock_project(project_id)
    return first_or(Member.objects.select_related("user").filter(project_id=project_id, user_id=user_id), NotFound)


def _end_role(member: Member) -> None:
    """Evicts the member, and ends the open invitations of an owner. Raises LastOwner."""
    if member.role == Member.Role.OWNER:
        others = Member.objects.filter(project_id=member.project_id, role=Member.Role.OWNER).exclude(pk=member.pk)
        if not others.exists():
            raise LastOwner
        invitations.of_inviter(member.user_id).filter(project_id=member.project_id).delete()
    environment_cache.evict_members(member.project_id, [member.user_id])
