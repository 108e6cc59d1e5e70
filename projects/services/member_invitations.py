from collections.abc import Callable

from django.db import transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.registration import one_time_links, sign_up
from accounts.users import passwords
from platform_site.http.errors import Forbidden, NotFound, ValidationFailed, first_or
from platform_site.identity.callers import Caller, ProjectRole
from projects.directory import invitations
from projects.directory.locks import lock_project
from projects.errors import NoSuchAccount
from projects.models import Member, Project
from projects.services.members import check_quota, create_membership


def invite_member(
    project_id: str, *, email: str, role: ProjectRole, actor: Caller | Actor, check_limit: Callable[[], None]
) -> AccountEmail:
    """Invite an email without an account, replacing an earlier invitation. `check_limit` is called when all else is
    valid. Raises NoSuchProject, NoSuchAccount, ValidationFailed, QuotaExceeded, RateLimited."""
    with transaction.atomic():
        project = lock_project(project_id)
        if not invitations.are_taken():
            raise NoSuchAccount
        invitations.of_address(project_id, email).delete()
        check_quota(project)
        made = invitations.write(project_id, email=email, role=role, actor=actor)
        check_limit()
        audit.record("member.invited", made, actor=actor, project_id=project_id, email=made.recipient, role=role)
    return made


def withdraw_invitation(project_id: str, invitation_id: str, *, actor: Caller | Actor) -> None:
    """Raises NotFound."""
    with transaction.atomic():
        lock_project(project_id)
        invitation = first_or(invitations.pending(project_id).select_for_update().filter(pk=invitation_id), NotFound)
        invitation.delete()
        audit.record(
            "member.invitation_withdrawn", invitation_id, actor=actor, project_id=project_id, email=invitation.recipient
        )


def accept_invitation(token: str, *, password: str | None = None, name: str = "") -> Member:
    """Make the invited person a member; `password` and `name` create an account if the email has none. Members keep
    their role. Raises InvalidGrant, ProjectSuspended, ValidationFailed, Forbidden, RateLimited, QuotaExceeded;
    each leaves the link valid."""
    invitation = invitations.find(token)
    password_hash = None
    if _is_without_account(invitation, password):
        if password is None:
            raise ValidationFailed.of("password", "required", "Choose a password to create your account.")
        if not invitations.are_taken():
            raise Forbidden("New accounts are not allowed at the moment.")
        passwords.check_chosen(password, User(email=invitation.recipient, name=name))
        password_hash = passwords.hashed(password)
    with transaction.atomic():
        # Members are counted under the lock of the project's row, and owners cannot change meanwhile.
        project = Project.objects.live().select_for_update(no_key=True).filter(pk=invitation.project_id).first()
        if project is None:
            raise one_time_links.invalid_link()
        invitation = invitations.find(token)
        user = None if _is_without_account(invitation, password) else invitations.account_of(invitation)
        if user is not None:
            one_time_links.use_up(invitation)
        elif password_hash is not None:
            user = sign_up.make_user(invitation, password_hash=password_hash, name=name, via="member_invitation")
        else:
            raise one_time_links.invalid_link()  # the account was deleted meanwhile
        member = project.memberships.filter(user=user).first()
        if member is None:
            member = create_membership(project, user, invitation.details["member_role"])
            audit.record(
                "member.added",
                user,
                actor=Actor.of(user),
                project_id=project.pk,
                role=member.role,
                invitation_id=invitation.pk,
                invited_by=invitation.details["invited_by"],
            )
        member.user = user
    return member


def _is_without_account(invitation: AccountEmail, password: str | None) -> bool:
    if invitations.account_of(invitation) is None:
        return True
    if password is not None:
        message = "This email already has an account with its own password: accept without one."
        raise ValidationFailed.of("password", "not_needed", message)
    return False
