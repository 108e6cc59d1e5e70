"""Whose account a person at a provider is.

By (provider, subject) if the two have met before, whatever the e-mail says now. Else by e-mail, and only if both sides
have shown that it is theirs: the provider vouches for it, and our user has verified it. An address that only one side
claims links nothing, for then whoever typed it first would own the other's account (pre-hijacking; threat T16). Else
a new user is made, whose e-mail counts as verified, if the pool admits new ones or has invited this one.
"""

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from accounts import audit, services
from accounts.audit import Actor
from accounts.lifecycle import invitations
from accounts.lifecycle.models import PoolSettings, SignUpMode
from accounts.models import User
from accounts.oauth import errors
from accounts.oauth.claims import Profile
from accounts.oauth.models import Identity, IdentityProvider
from platform_site.api import ids
from platform_site.api.callers import Caller
from platform_site.api.errors import Conflict, NotFound, QuotaExceeded, ValidationFailed


def recognise(provider: IdentityProvider, profile: Profile, *, most: int | None) -> User:
    """The user that `profile` is in the provider's pool, known, linked or made now.

    `most` is how many users the pool may have. Raises the errors of `accounts.oauth.errors` that concern people.
    """
    try:
        return _recognise(provider, profile, most)
    except (IntegrityError, ValidationFailed):
        return _recognise(provider, profile, most)  # the same person in two tabs: the other one was first


@transaction.atomic
def _recognise(provider: IdentityProvider, profile: Profile, most: int | None) -> User:
    met = Identity.objects.select_related("user").filter(provider=provider, subject=profile.subject).first()
    if met is not None:
        if met.user.disabled_at is not None:
            raise errors.UserDisabled
        Identity.objects.filter(pk=met.pk).update(last_used_at=Now(), email=profile.email)
        return met.user
    if profile.email is None:
        raise errors.EmailMissing
    if not (profile.is_email_verified or provider.trusts_email):
        raise errors.EmailUnverified
    # Locked: neither the address nor its having been verified may change before the link is there.
    user = User.objects.with_email(provider.environment_id, profile.email).select_for_update().first()
    if user is None:
        user = _made(provider, profile, profile.email, most)
    elif user.disabled_at is not None:
        raise errors.UserDisabled
    elif user.email_verified_at is None:
        raise errors.EmailTaken
    identity = Identity.objects.create(user=user, provider=provider, subject=profile.subject, email=profile.email)
    audit.record(
        "identity.linked",
        actor=Actor.of(user),
        target_id=user.pk,
        environment_id=provider.environment_id,
        identity_id=identity.pk,
        provider=provider.name,
    )
    return user


def _made(provider: IdentityProvider, profile: Profile, email: str, most: int | None) -> User:
    invited = invitations.pending(provider.environment_id).select_for_update().filter(subject=email.lower()).first()
    if invited is None and not admits_new_users(provider):
        raise errors.SignUpClosed
    details = {} if invited is None else invited.details
    if invited is not None:
        invited.delete()
    try:
        return services.create_user(
            pool_id=provider.environment_id,
            email=email,
            password=None,
            name=profile.name or details.get("name", ""),
            role=details.get("role"),
            claims=details.get("claims"),
            is_email_verified=True,
            via=f"oauth:{provider.name}",
            actor=services.THEMSELVES,
            most=most,
        )
    except QuotaExceeded:
        raise errors.UsersQuotaReached from None


def admits_new_users(provider: IdentityProvider) -> bool:
    """Whether a person whom nobody knows yet becomes a user: the pool is open, and the provider not an exception."""
    pool = Q(environment_id=provider.environment_id) if provider.environment_id else Q(environment_id__isnull=True)
    return provider.sign_up and PoolSettings.objects.filter(pool, sign_up=SignUpMode.OPEN).exists()


def of_user(user_id: str) -> "QuerySet[Identity]":
    """By which providers a user signs in."""
    return Identity.objects.select_related("provider").filter(user_id=user_id)


@transaction.atomic
def unlink(user_id: str, identity_id: str, *, actor: Caller) -> None:
    """Forget that a person at a provider is this user. Sessions go on.

    Raises NotFound, and Conflict if the user could not sign in any more: no password, and no other identity.
    """
    user = User.objects.select_for_update().filter(pk=user_id).first()
    identity = of_user(user_id).filter(pk=identity_id).first() if ids.matches("idn", identity_id) else None
    if user is None or identity is None:
        raise NotFound
    others = of_user(user_id).filter(~Q(pk=identity.pk), provider__enabled=True)
    if not user.has_usable_password() and not others.exists():
        raise Conflict("This is your only way to sign in. Set a password or link another provider first.")
    identity.delete()
    audit.record(
        "identity.unlinked",
        actor=actor,
        target_id=user_id,
        environment_id=user.environment_id,
        identity_id=identity_id,
        provider=identity.provider.name,
    )
