"""Invitations of users into a pool, with a role and claims. An invitation is its email (`AccountEmail`, id `inv_…`),
works in every sign-up mode, and is only valid while its sender may manage users."""

from collections.abc import Callable
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models import ServerKey, User
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox, one_time_links, pool_settings, sign_up
from accounts.registration.sign_up import Created
from accounts.users import emails, passwords
from accounts.users import service as user_service
from platform_site.http.errors import NotFound, ValidationFailed, first_or
from platform_site.identity import ids
from platform_site.identity.callers import Caller

Kind = AccountEmail.Kind
MANAGE: Final = "users:manage"


def invite(
    *,
    pool_id: str | None,
    email: str,
    actor: Caller | Actor,
    name: str = "",
    role: str | None = None,
    claims: dict[str, Any] | None = None,
) -> AccountEmail:
    """Invite an email, replacing an earlier invitation. Raises ValidationFailed, QuotaExceeded."""
    recipient = emails.check(email)
    with transaction.atomic():
        if User.objects.with_email(pool_id, recipient).exists():
            raise ValidationFailed.of("email", "taken", "A user has this email already.")
        if (most := pool_settings.most_users(pool_id)) is not None:
            user_service.check_room(pool_id, most)
        made = email_outbox.write(
            Kind.INVITATION,
            pool_id=pool_id,
            recipient=recipient,
            email_id=ids.new("inv"),
            name=name,
            role=role,
            claims=claims or {},
            invited_by=[actor.kind, actor.id] if isinstance(actor, Caller) else None,
        )
        audit.record("invitation.sent", made, actor=actor, email=recipient)
    made.refresh_from_db()
    return made


def pending(pool_id: str | None) -> "QuerySet[AccountEmail]":
    return AccountEmail.objects.filter(environment_id=pool_id, kind=Kind.INVITATION, expires_at__gt=Now())


def sender_may_invite(invitation: AccountEmail) -> bool:
    """Whether the sender may still invite; always for the console and commands. At most three queries."""
    match invitation.details.get("invited_by"):
        case ["key", key_id]:
            return ServerKey.objects.live().filter(pk=key_id).exists()  # its scopes never change
        case ["account", account_id]:
            inviter = User.objects.in_pool(None).filter(pk=account_id, disabled_at=None).first()
            if inviter is None or invitation.environment_id is None:
                return False
            asking = Caller("account", inviter.pk, frozenset(), account_id=inviter.pk, email=inviter.email)
            found = environment_directory.directory().environment_ref_for(asking, invitation.environment_id)
            if found is None:
                return False
            _, scopes = found
            return MANAGE in scopes
    return True


def withdraw(pool_id: str | None, invitation_id: str, *, actor: Caller | Actor) -> None:
    with transaction.atomic():
        invitation = first_or(pending(pool_id).select_for_update().filter(pk=invitation_id), NotFound)
        invitation.delete()
        audit.record(
            "invitation.withdrawn", invitation_id, actor=actor, environment_id=pool_id, email=invitation.recipient
        )


def accept(
    invitation: AccountEmail, password: str, on_created: Callable[[User], Created], *, name: str | None = None
) -> Created:
    """Create the invited user with a verified email; `name` overrides the invitation's. `on_created`: as in
    `sign_up.confirm`. Raises InvalidGrant, ValidationFailed, QuotaExceeded, RateLimited."""
    if not sender_may_invite(invitation):
        raise one_time_links.invalid_link()
    chosen = invitation.details["name"] if name is None else name
    passwords.check_chosen(password, User(email=invitation.recipient, name=chosen))
    password_hash = passwords.hashed(password, invitation.environment_id)
    with transaction.atomic():
        return on_created(sign_up.make_user(invitation, password_hash=password_hash, name=chosen, via="invitation"))
