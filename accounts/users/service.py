"""Services of users and API keys, for the API, console and commands: one change per transaction, with its audit entry.
Callers check permissions before (`accounts.keys.permissions`, the view's scope)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict, Unpack

from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction
from django.db.models import Q
from django.db.models.deletion import Collector
from django.db.models.functions import Now

from accounts import audit, changes
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.directory import locks as account_locks
from accounts.directory import user_cache
from accounts.keys import server_keys
from accounts.keys.permissions import KeyAuthority
from accounts.models import ServerKey, User
from accounts.tokens import revocation
from accounts.tokens.credentials import key_cache_name, session_cache_name
from accounts.users import emails, exchange_codes, passwords, sessions, user_counts
from accounts.users.identity_lookup import TOUCH_EVERY
from platform_site.http.errors import Conflict, FieldError, NotFound, QuotaExceeded, ValidationFailed, first_or
from platform_site.identity import signals
from platform_site.identity.callers import ACCOUNT_SCOPES, ENVIRONMENT_SCOPES, PUBLISHABLE_SCOPES, Caller

RESERVED_ROLES: Final = frozenset({"user", "member", "server", "anonymous"})
"""Role names with a fixed meaning in rules."""

KEY_RETENTION: Final = timedelta(days=90)


def create_user(
    *,
    pool_id: str | None,
    email: str,
    password: str | None = None,
    actor: Caller | Actor | None,
    name: str = "",
    role: str | None = None,
    claims: dict[str, Any] | None = None,
    is_staff: bool = False,
    most: int | None = None,
    password_hash: str | None = None,
    is_email_verified: bool = False,
    via: str | None = None,
) -> User:
    """Create a user of the pool `pool_id`, or a platform account (None). `actor` None is the new user; `is_staff` gives
    a platform account all console rights; `most` limits the pool; `password_hash` replaces `password`; `via` goes to
    the audit log. Raises ValidationFailed, QuotaExceeded, RateLimited."""
    user = User(
        environment_id=pool_id,
        email=emails.check(email),
        name=name,
        role=role,
        claims=claims or {},
        is_staff=is_staff,
        is_superuser=is_staff,
    )
    if password_hash is not None:
        user.password = password_hash
    elif password is None:
        user.set_unusable_password()
    else:
        passwords.check_chosen(password, user)
        user.password = passwords.hashed(password, pool_id)
    with transaction.atomic():
        environment_directory.lock_shared(pool_id)
        if most is not None:
            account_locks.hold(f"users of {pool_id}")
            check_room(pool_id, most)
        if is_email_verified:
            user.email_verified_at = Now()  # the database's clock
        _save_with_free_email(user)
        if is_email_verified:
            user.refresh_from_db(fields=["email_verified_at"])
        detail = {"via": via} if via else {}
        audit.record("user.created", user, actor=actor or Actor.of(user), **detail)
        signals.user_created.send(sender=User, user_id=user.pk, pool_id=pool_id)
    return user


def check_room(pool_id: str | None, most: int) -> None:
    """Raise QuotaExceeded if the pool has `most` users. Final only under the lock that `create_user` takes."""
    if pool_id is not None:
        QuotaExceeded.check(user_counts.users_of(pool_id), most, "users in an environment")


def _save_with_free_email(user: User, update_fields: Iterable[str] | None = None) -> None:
    try:
        with transaction.atomic():
            user.save(force_insert=update_fields is None, update_fields=update_fields)
    except IntegrityError as error:
        if "user_email_unique_in_pool" not in str(error):
            raise
        raise ValidationFailed.of("email", "taken", "Another user has this email.") from None


class UserChanges(TypedDict, total=False):
    email: str
    name: str
    role: str | None
    claims: dict[str, Any]
    password: str
    password_hash: str
    is_disabled: bool
    is_email_verified: bool


def change_user(
    user: User,
    *,
    actor: Caller | Actor,
    known_password_hash: str | None = None,
    kept_session_id: str | None = None,
    via: str | None = None,
    **values: Unpack[UserChanges],
) -> User:
    """Change the given values and return the user. Disabling or a new password ends all sessions but `kept_session_id`.
    A new email is unverified unless `is_email_verified`. `known_password_hash`, which the caller proved, must be
    current. Raises as `create_user`, NotFound, and Conflict for the last superuser."""
    password_hash = values.get("password_hash")
    if "password" in values:
        passwords.check_chosen(values["password"], user)
        password_hash = passwords.hashed(values["password"], user.environment_id)
    with transaction.atomic():
        if values.get("is_disabled") and user.is_superuser:
            keep_one_superuser(user.pk)
        locked = lock_user(user.pk, known_password_hash)
        email_before = locked.email
        if "email" in values:
            values["email"] = emails.check(values["email"])
        columns = ("email", "name", "role", "claims")
        changed = changes.apply(locked, {field: value for field, value in values.items() if field in columns})
        changed += _set_verified(locked, values.get("is_email_verified"), email_before)
        if password_hash is not None:
            locked.password = password_hash
            changed.append("password")
        is_disabled = values.get("is_disabled")
        if is_disabled is not None and is_disabled != (locked.disabled_at is not None):
            locked.disabled_at = Now() if is_disabled else None  # the database's clock
            changed.append("disabled_at")
        if not changed:
            return locked
        _save_with_free_email(locked, changed)
        if moments := {"disabled_at", "email_verified_at"} & set(changed):
            locked.refresh_from_db(fields=moments)
        _update_sessions(locked, changed, kept_session_id)
        action = "user.changed"
        if "disabled_at" in changed:
            action = "user.enabled" if locked.disabled_at is None else "user.disabled"
        audit.record(action, locked, actor=actor, fields=changed, **({"via": via} if via else {}))
    return locked


def keep_one_superuser(user_id: str) -> None:
    """Lock all active superusers by id, before the account itself. Raises Conflict for the last one."""
    found = User.objects.select_for_update().filter(is_superuser=True, disabled_at__isnull=True).order_by("pk")
    if [each.pk for each in found] == [user_id]:
        raise Conflict("This is the last superuser. Create another one first.")


def lock_user(user_id: str, known_password_hash: str | None = None) -> User:
    locked = first_or(User.objects.select_for_update().filter(pk=user_id), NotFound)
    if known_password_hash is not None and locked.password != known_password_hash:
        raise wrong_current_password()
    return locked


def _set_verified(user: User, is_verified: bool | None, email_before: str) -> list[str]:
    """Set the value if it differs. Returns the names of the changed columns."""
    if is_verified is None:
        if emails.normalize(user.email) == emails.normalize(email_before):
            return []
        is_verified = False  # the verification was of the old email
    was_verified = user.email_verified_at is not None
    is_again = is_verified and user.email != email_before  # the new email, even if the old one was verified
    if is_verified == was_verified and not is_again:
        return []
    user.email_verified_at = Now() if is_verified else None  # the database's clock
    return ["email_verified_at"]


def _update_sessions(user: User, changed: list[str], kept_session_id: str | None) -> None:
    if {"password", "disabled_at"} & set(changed):
        exchange_codes.withdraw(user.pk)  # each could still start a session
    if "disabled_at" in changed and user.disabled_at is not None:
        sessions.end_where(Q(user_id=user.pk), "user_disabled")
        revocation.revoke(_account_key_names(user))
    elif "disabled_at" in changed:
        revocation.mark_uncached(_account_key_names(user))
    if "password" in changed:
        sessions.end_where(Q(user_id=user.pk) & ~Q(pk=kept_session_id or ""), "password_changed")
    names = [session_cache_name(pk) for pk in sessions.of_user(user.pk).values_list("pk", flat=True)]
    if user.environment_id is not None and user_cache.MUTABLE & set(changed):
        names.append(user_cache.version_name(user.environment_id))
    revocation.mark_uncached(names)


def _account_key_names(user: User) -> list[str]:
    hashes = ServerKey.objects.filter(account_id=user.pk, revoked_at__isnull=True).values_list("secret_hash", flat=True)
    return [key_cache_name(bytes(secret_hash)) for secret_hash in hashes]


def wrong_current_password() -> ValidationFailed:
    return ValidationFailed.of("current_password", "wrong", "This is not the current password.")


def delete_user(user: User, *, actor: Caller | Actor) -> None:
    """Delete a user with sessions and account keys. Sends `user_deleting`, which may refuse, and `user_deleted` in the
    same transaction. Raises NotFound, and Conflict for the last superuser."""
    with transaction.atomic():
        if user.is_superuser:
            keep_one_superuser(user.pk)
        locked = lock_user(user.pk)
        sessions.end_where(Q(user_id=user.pk), "user_deleted")
        revocation.revoke(_account_key_names(locked))
        signals.user_deleting.send(sender=User, user_id=user.pk, pool_id=locked.environment_id)
        related = Collector(using=DEFAULT_DB_ALIAS, origin=locked)
        related.collect([locked])
        del related.data[User]
        related.delete()
        # As late as possible: the user's rows are deleted with the commit of their region, and after an error here a
        # periodic job completes the deletion (`rows.write.references`). But before the user's own row, with which
        # the pool's size is locked: other sign-ups would wait for thousands of rows. And before the audit entry, by
        # whose time an import or a restore knows which users were deleted while it ran.
        signals.user_deleted.send(sender=User, user_id=user.pk, pool_id=locked.environment_id, actor=actor)
        if locked.environment_id is not None:
            revocation.mark_uncached([user_cache.version_name(locked.environment_id)])
        User.objects.filter(pk=user.pk)._raw_delete(DEFAULT_DB_ALIAS)
        audit.record("user.deleted", user, actor=actor)


def issue_key(
    *,
    name: str,
    scopes: Iterable[str],
    authority: KeyAuthority,
    actor: Caller | Actor,
    created_by_id: str | None = None,
    expires_at: datetime | None = None,
    is_publishable: bool = False,
) -> tuple[ServerKey, str]:
    """A new key and its secret, which is not stored. `authority` says whose key it is and what its maker may grant.
    Raises ValidationFailed naming `scopes`, `publishable` or `expires_at`, and QuotaExceeded."""
    wanted = sorted(set(scopes))
    check_scopes(wanted, authority, is_publishable=is_publishable)
    expires_at = expires_at or authority.until
    if authority.until is not None and expires_at is not None and expires_at > authority.until:
        message = (
            f"A key cannot create a key that outlives it. Choose at the latest {authority.until:%Y-%m-%dT%H:%M:%SZ}."
        )
        raise ValidationFailed.of("expires_at", "too_late", message)
    secret = server_keys.make(server_keys.PUBLISHABLE if is_publishable else server_keys.PREFIX)
    with transaction.atomic():
        environment_directory.lock_shared(authority.environment_id)
        account_locks.hold(f"keys of {authority.owner}")
        if authority.unrevoked().count() >= authority.most:
            raise QuotaExceeded(f"The plan allows {authority.most} keys here. Revoke one that is no longer used.")
        key = ServerKey.objects.create(
            name=name,
            environment_id=authority.environment_id,
            account_id=authority.account_id,
            created_by_id=created_by_id,
            prefix=server_keys.shown(secret),
            secret_hash=server_keys.digest(secret),
            scopes=wanted,
            expires_at=expires_at,
        )
        if expires_at is not None and expires_at <= key.created_at:
            raise ValidationFailed.of("expires_at", "past", "Must be in the future.")
        detail: dict[str, Any] = {"name": name, "scopes": wanted} | ({"publishable": True} if is_publishable else {})
        audit.record("key.issued", key, actor=actor, project_id=authority.project_id, **detail)
    return key, secret


def check_scopes(wanted: list[str], authority: KeyAuthority, *, is_publishable: bool) -> None:
    if is_publishable and authority.environment_id is None:
        message = "A publishable key belongs to an environment: name it."
        raise ValidationFailed.of("publishable", "not_for_this_key", message)
    fitting, called = ENVIRONMENT_SCOPES, "key of an environment"
    if authority.environment_id is None:
        fitting, called = ACCOUNT_SCOPES, "key of an account"
    elif is_publishable:
        fitting, called = PUBLISHABLE_SCOPES, "publishable key"
    wrong = [] if wanted else [FieldError("scopes", "required", "A key needs at least one scope.")]
    for scope in wanted:
        if scope not in fitting:
            wrong.append(FieldError("scopes", "not_for_this_key", f"A {called} cannot hold {scope}."))
        elif scope not in authority.grantable:
            wrong.append(FieldError("scopes", "not_held", f"You do not hold {scope}, so you cannot give it to a key."))
    if wrong:
        raise ValidationFailed(fields=wrong)


def revoke_key(key: ServerKey, *, actor: Caller | Actor, project_id: str | None = None) -> None:
    """Revoke a key, from the next request on. Raises NotFound if it has ended."""
    with transaction.atomic():
        claimed = ServerKey.objects.filter(pk=key.pk, revoked_at__isnull=True).update(revoked_at=Now())
        if claimed != 1:
            raise NotFound
        revocation.revoke([key_cache_name(bytes(key.secret_hash))])
        audit.record("key.revoked", key, actor=actor, project_id=project_id, name=key.name)


def touch_key(key_id: str) -> None:
    ServerKey.objects.filter(Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - TOUCH_EVERY), pk=key_id).update(
        last_used_at=Now()
    )


def purge_keys() -> int:
    moment = Now() - KEY_RETENTION
    return ServerKey.objects.filter(Q(revoked_at__lt=moment) | Q(expires_at__lt=moment)).delete()[0]
