"""Open invitations into projects, by owners, for emails without an account. An invitation is its email
(`accounts.models.registration.AccountEmail`, id `inv_…`). It is only valid while its sender is an owner.
docs/reference/projects.md, "Members and invitations"."""

import hashlib
from typing import Final

from django.db.models import QuerySet
from django.db.models.functions import Now

from accounts.audit import Actor
from accounts.models import User
from accounts.models.registration import AccountEmail, SignUpMode
from accounts.registration import email_outbox, one_time_links, pool_settings
from accounts.users import emails
from platform_site.identity import ids
from platform_site.identity.callers import Caller, ProjectRole
from projects.directory.environments import may_invite
from projects.models import Project

KIND: Final = AccountEmail.Kind.MEMBER_INVITATION


def pending(project_id: str) -> "QuerySet[AccountEmail]":
    return AccountEmail.objects.filter(project_id=project_id, kind=KIND, expires_at__gt=Now())


def of_address(project_id: str, email: str) -> "QuerySet[AccountEmail]":
    return pending(project_id).filter(subject=_subject(project_id, email))


def of_inviter(account_id: str) -> "QuerySet[AccountEmail]":
    return AccountEmail.objects.filter(project_id__isnull=False, kind=KIND, details__invited_by=account_id)


def are_taken() -> bool:
    """Whether invited persons may create accounts, by the operator's settings."""
    return pool_settings.settings_of(None).sign_up != SignUpMode.OFF


def write(project_id: str, *, email: str, role: ProjectRole, actor: Caller | Actor) -> AccountEmail:
    """Write the email, replacing an earlier one. Raises ValidationFailed on the field `email`."""
    recipient = emails.check(email)
    made = email_outbox.write(
        KIND,
        pool_id=None,
        project_id=project_id,
        recipient=recipient,
        subject=_subject(project_id, recipient),
        email_id=ids.new("inv"),
        member_role=role,
        invited_by=actor.id if isinstance(actor, Caller) else None,
    )
    made.refresh_from_db()
    return made


def find(token: str) -> AccountEmail:
    """Raises InvalidGrant if the link, its sender or project is not valid, and ProjectSuspended."""
    invitation = one_time_links.find_in_pool(token, KIND, None)
    project: Project | None = Project.objects.live().filter(pk=invitation.project_id).first()
    if project is None or not may_invite(project.pk, invitation.details["invited_by"]):
        raise one_time_links.invalid_link()
    project.require_active()
    return invitation


def account_of(invitation: AccountEmail) -> User | None:
    user = User.objects.with_email(None, invitation.recipient).first()
    if user is not None and user.disabled_at is not None:
        raise one_time_links.invalid_link()
    return user


def _subject(project_id: str, email: str) -> str:
    """A digest, because an email may be as long as the column."""
    return f"{project_id} {hashlib.sha256(emails.normalize(email).encode()).hexdigest()}"
