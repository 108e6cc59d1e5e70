"""Finds or creates the user of a person at a provider: by (provider, subject) if linked; else by email, if the provider
confirms it, the user has verified it (against pre-hijacking) and is not console staff; else a new user, if the pool
admits or invited them. A signed-in user can link any identity (`link`)."""

from collections.abc import Sequence
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.models.oauth import Identity, IdentityProvider
from accounts.models.registration import AccountEmail, SignUpMode
from accounts.oauth import proofs
from accounts.oauth.client.claims import Profile
from accounts.oauth.errors import AccessDenied, Denial, ProviderAnswerInvalid
from accounts.oauth.proofs import Proof
from accounts.registration import email_outbox, invitations, pool_settings
from accounts.users import emails, exchange_codes
from accounts.users import service as user_service
from platform_site.http.errors import Conflict, NotFound, QuotaExceeded, ValidationFailed, first_or
from platform_site.identity.callers import Caller

Kind = AccountEmail.Kind
MAX_IDENTITIES: Final = 20


def find_or_create_user(provider: IdentityProvider, profile: Profile) -> User:
    """The user of `profile` in the provider's pool: known, linked or created. Raises AccessDenied."""
    try:
        return _find_or_create_user(provider, profile)
    except (IntegrityError, ValidationFailed):
        return _find_or_create_user(provider, profile)  # the same person in two tabs: the other one was first


@transaction.atomic
def _find_or_create_user(provider: IdentityProvider, profile: Profile) -> User:
    known = _find_identity(provider, profile)
    # It may have been unlinked since.
    if known is not None and Identity.objects.filter(pk=known.pk).update(last_used_at=Now(), email=profile.email):
        return known.user
    if profile.email is None:
        raise AccessDenied(Denial.EMAIL_MISSING)
    if not (profile.is_email_verified or provider.trusts_email):
        raise AccessDenied(Denial.EMAIL_UNVERIFIED)
    # Locked: neither the email nor its verification may change before the link exists.
    user = User.objects.with_email(provider.environment_id, profile.email).select_for_update().first()
    if user is None:
        user = _create_user(provider, profile, profile.email)
        _add_identity(user, provider, profile, actor=Actor.of(user), is_user_new=True)
    elif user.disabled_at is not None:
        raise AccessDenied(Denial.USER_DISABLED)
    elif user.email_verified_at is None:
        raise AccessDenied(Denial.EMAIL_TAKEN)
    elif user.is_staff:  # an identity provider must not be a way to become staff
        raise AccessDenied(Denial.LINK_REQUIRED)
    else:
        _add_identity(user, provider, profile, actor=Actor.of(user))
    return user


def linked_user(provider: IdentityProvider, profile: Profile) -> User:
    """The user to whom `profile` is linked; changes nothing. Raises AccessDenied: USER_DISABLED, LINK_REQUIRED if the
    email is a user's, else SIGN_UP_CLOSED."""
    known = _find_identity(provider, profile)
    # Locked until the code is issued, so that unlinking withdraws it; it may have been unlinked since.
    if known is not None and Identity.objects.select_for_update(no_key=True).filter(pk=known.pk).first():
        return known.user
    if profile.email and (profile.is_email_verified or provider.trusts_email):
        if User.objects.with_email(provider.environment_id, profile.email).exists():
            raise AccessDenied(Denial.LINK_REQUIRED)
    raise AccessDenied(Denial.SIGN_UP_CLOSED)


def _find_identity(provider: IdentityProvider, profile: Profile) -> Identity | None:
    """Raises AccessDenied for a disabled user."""
    known = Identity.objects.select_related("user").filter(provider=provider, subject=profile.subject).first()
    if known is not None and known.user.disabled_at is not None:
        raise AccessDenied(Denial.USER_DISABLED)
    return known


def _add_identity(
    user: User, provider: IdentityProvider, person: Profile | Proof, *, actor: Caller | Actor, is_user_new: bool = False
) -> Identity:
    """Link the person. Notifies a user who is not new."""
    identity = Identity.objects.create(user=user, provider=provider, subject=person.subject, email=person.email)
    if not IdentityProvider.objects.filter(pk=provider.pk, issuer=provider.issuer).exists():
        # Under another issuer the subject may be another person's. From here on, `providers.change` waits or refuses.
        raise ProviderAnswerInvalid("the issuer was changed during the sign-in")
    audit.record("identity.linked", user, actor=actor, identity_id=identity.pk, provider=provider.name)
    if not is_user_new:
        email_outbox.notify(user, Kind.IDENTITY_LINKED, subject=identity.pk, provider=provider.display_name)
    return identity


def _create_user(provider: IdentityProvider, profile: Profile, email: str) -> User:
    invited = (
        invitations.pending(provider.environment_id).select_for_update().filter(subject=emails.normalize(email)).first()
    )
    details: dict[str, Any] = {}
    if invited is not None and invitations.sender_may_invite(invited):
        details = invited.details
        invited.delete()
    elif not admits_new_users(provider):
        raise AccessDenied(Denial.SIGN_UP_CLOSED)
    try:
        return user_service.create_user(
            pool_id=provider.environment_id,
            email=email,
            name=profile.name or details.get("name", ""),
            role=details.get("role"),
            claims=details.get("claims"),
            is_email_verified=True,
            via=f"oauth:{provider.name}",
            actor=None,
            most=pool_settings.most_users(provider.environment_id),
        )
    except QuotaExceeded:
        raise AccessDenied(Denial.QUOTA_EXCEEDED) from None


def link(user: User, proof: Proof, *, actor: Caller) -> Identity:
    """Link the person of `proof` to `user` (as read before reauthentication). Idempotent. Raises InvalidGrant (provider
    gone or disabled), Conflict (linked elsewhere, or `user` changed), QuotaExceeded and NotFound."""
    try:
        return _link_once(user, proof, actor)
    except IntegrityError:
        return _link_once(user, proof, actor)  # two tabs: the other one was first


@transaction.atomic
def _link_once(user: User, proof: Proof, actor: Caller) -> Identity:
    locked = user_service.lock_user(user.pk)
    if locked.disabled_at is not None or locked.password != user.password:
        # The owner may just have set a new password to recover the account: an attacker must not link an identity.
        raise Conflict("The account was changed at the same time. Try again.")
    provider = (
        IdentityProvider.objects.select_for_update(no_key=True)
        .filter(pk=proof.provider_id, environment_id=locked.environment_id, enabled=True)
        .first()
    )
    if provider is None or provider.issuer != proof.issuer:
        raise proofs.refused()
    known = Identity.objects.filter(provider=provider, subject=proof.subject).first()
    if known is None:
        if of_user(locked.pk).count() >= MAX_IDENTITIES:
            raise QuotaExceeded(f"An account can be linked to at most {MAX_IDENTITIES} identities.")
        known = _add_identity(locked, provider, proof, actor=actor)
    elif known.user_id != locked.pk:
        raise Conflict("This identity belongs to another user here.")
    return of_user(locked.pk).get(pk=known.pk)


def admits_new_users(provider: IdentityProvider) -> bool:
    return provider.sign_up and pool_settings.settings_of(provider.environment_id).sign_up == SignUpMode.OPEN


def of_user(user_id: str) -> "QuerySet[Identity]":
    return Identity.objects.select_related("provider").filter(user_id=user_id)


@transaction.atomic
def unlink(user_id: str, identity_id: str, *, actor: Caller) -> None:
    """Unlink an identity, and end the user's other sessions: a session does not know which identity opened it. Raises
    NotFound, and Conflict if it is the only way to sign in."""
    user = user_service.lock_user(user_id)
    identity = first_or(of_user(user_id).filter(pk=identity_id), NotFound)
    others = of_user(user_id).filter(~Q(pk=identity.pk), provider__enabled=True)
    if not user.has_usable_password() and not others.exists():
        raise Conflict("This is your only way to sign in. Set a password or link another provider first.")
    _delete([identity], user, actor, actor.session_id)


@transaction.atomic
def unlink_all(user: User, *, actor: Actor) -> None:
    _delete(list(of_user(user.pk)), user, actor)


def _delete(
    identities: Sequence[Identity], user: User, actor: Caller | Actor, kept_session_id: str | None = None
) -> None:
    for identity in identities:
        identity_id = identity.pk
        identity.delete()
        audit.record("identity.unlinked", user, actor=actor, identity_id=identity_id, provider=identity.provider.name)
    if identities:
        exchange_codes.end_sessions(
            user.pk,
            kept_session_id=kept_session_id,
            actor=actor,
            reason="identity_unlinked",
            scope="others" if kept_session_id else "all",
        )
