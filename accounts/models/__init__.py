"""Tables of `accounts`, in the control database. A null `environment_id` is the platform's pool (owners and staff)."""

import unicodedata
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import OpClass
from django.db import models, transaction
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Lower, Now
from django.db.models.lookups import Exact

from platform_site.http.models import JSONField, public_id
from platform_site.identity.callers import PUBLISHABLE_KEY_PREFIX
from platform_site.identity.email_addresses import normalize


class UserManager(BaseUserManager["User"]):
    def in_pool(self, pool_id: str | None) -> "models.QuerySet[User]":
        return self.filter(environment_id=pool_id)

    def with_email(self, pool_id: str | None, email: str) -> "models.QuerySet[User]":
        """The user of one pool with this email. Of users whose stored emails differ only in spelling (`manage.py
        email_conflicts`), the one with exactly the spelling `email` comes first."""
        exact = email.strip()
        if exact.isascii():
            return self.in_pool(pool_id).filter(Exact(Lower("email"), normalize(exact)))
        # A look-alike of an ASCII email, such as one with the Kelvin sign, matches no user.
        spellings = {each for each in (normalize(exact), exact.lower(), exact) if not each.isascii()}
        found = self.in_pool(pool_id).annotate(lower_email=Lower("email")).filter(lower_email__in=spellings)
        return found.order_by(models.Case(models.When(email=exact, then=0), default=1), "pk")

    def beginning_with(self, pool_id: str | None, text: str) -> "models.QuerySet[User]":
        # Each character by itself, as PostgreSQL does: by its place in a word Python makes another sigma of one.
        wanted = "".join(each.lower()[0] for each in unicodedata.normalize("NFC", text.strip()))
        found = self.in_pool(pool_id).alias(lower_email=Lower("email"), lower_name=Lower("name"))
        # A plus sign of an email in a URL arrives as a space.
        by_email = models.Q(lower_email__startswith=wanted.replace(" ", "+"))
        return found.filter(by_email | models.Q(lower_name__startswith=wanted))

    def get_by_natural_key(self, username: str | None) -> "User":
        found = self.with_email(None, username or "").first()
        if found is None:
            raise User.DoesNotExist
        return found

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=normalize(email), is_staff=True, is_superuser=True, **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user


class User(AbstractBaseUser, PermissionsMixin):
    id = public_id("usr")
    environment_id = models.CharField(max_length=30, null=True, blank=True)
    email = models.CharField(max_length=254)
    email_verified_at = models.DateTimeField(null=True, blank=True)
    name = models.CharField(max_length=200, blank=True, default="")
    role = models.CharField(max_length=48, null=True, blank=True)
    claims = JSONField(default=dict, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    is_staff = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = UserManager()

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["environment_id", "-id"], name="user_of_pool_newest_first"),
            models.Index("environment_id", OpClass(Lower("email"), "text_pattern_ops"), name="user_of_pool_by_email"),
            models.Index("environment_id", OpClass(Lower("name"), "text_pattern_ops"), name="user_of_pool_by_name"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                "environment_id", Lower("email"), name="user_email_unique_in_pool", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(environment_id__isnull=True) | models.Q(is_staff=False, is_superuser=False),
                name="user_staff_is_platform_account",
            ),
        ]

    def __str__(self) -> str:
        return self.email

    @transaction.atomic
    def save(self, *args: Any, **kwargs: Any) -> None:
        """With what Django calls after it for a new password (`accounts.staff.password_validators`)."""
        super().save(*args, **kwargs)

    @property
    def is_active(self) -> bool:  # type: ignore[override]
        return self.disabled_at is None


class PoolSize(models.Model):
    environment_id = models.CharField(primary_key=True, max_length=30)
    users = models.BigIntegerField(db_default=0)
    """Until `is_counted`, the difference since the triggers exist."""
    is_counted = models.BooleanField(db_default=False)

    def __str__(self) -> str:
        return self.environment_id


class Session(models.Model):
    id = public_id("ses")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sessions")
    environment_id = models.CharField(max_length=30, null=True, db_index=True)
    """The environment signed in to; for a branch not the user's pool."""
    family_hash = models.BinaryField(max_length=32, unique=True)
    """SHA-256 of the part shared by this session's refresh tokens, to recognise reused ones."""
    refresh_hash = models.BinaryField(max_length=32)
    previous_hash = models.BinaryField(max_length=32, null=True)
    rotated_at = models.DateTimeField(null=True)
    sealed_successor = models.BinaryField(null=True)
    """The current refresh token under a key of the previous one, for a lost response in the grace period."""
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    revoked_reason = models.CharField(max_length=40, null=True)
    user_agent = models.CharField(max_length=300, blank=True, default="")
    ip_address = models.GenericIPAddressField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["user", "-id"], name="session_of_user_newest_first"),
            models.Index(fields=["expires_at"], name="session_expiry"),
        ]

    def __str__(self) -> str:
        return self.id


class ServerKeyManager(models.Manager["ServerKey"]):
    def live(self) -> "models.QuerySet[ServerKey]":
        return self.filter(models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=Now()), revoked_at__isnull=True)


class ServerKey(models.Model):
    id = public_id("key")
    name = models.CharField(max_length=100)
    environment_id = models.CharField(max_length=30, null=True, db_index=True)
    account = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="account_keys")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    prefix = models.CharField(max_length=12)
    """The beginning of the secret, which also tells the kind of key."""
    secret_hash = models.BinaryField(max_length=32, unique=True)
    scopes = ArrayField(models.CharField(max_length=40))
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = ServerKeyManager()

    opens: Any = None
    """What a publishable key allows everyone (`accounts.keys.publishable_key_exposure`), where it was looked up."""

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(environment_id__isnull=True, account__isnull=False)
                | models.Q(environment_id__isnull=False, account__isnull=True),
                name="key_bound_to_environment_or_account",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def is_publishable(self) -> bool:
        return self.prefix.startswith(PUBLISHABLE_KEY_PREFIX)


class SigningKey(models.Model):
    kid = models.CharField(primary_key=True, max_length=43)
    sealed_private = models.BinaryField()
    public_jwk = models.JSONField()
    signs_from = models.DateTimeField()
    """The newest key whose time has come signs."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    retires_at = models.DateTimeField(null=True)
    """Tokens signed with it are refused from then on; null while it is the newest."""

    def __str__(self) -> str:
        return self.kid


class AuditEntry(models.Model):
    id = public_id("aud")
    at = models.DateTimeField(db_default=Now(), db_index=True, editable=False)
    actor_kind = models.CharField(max_length=10)
    """`account`, `user`, `key`, `staff` (the console) or `system` (a command or a periodic job)."""
    actor_id = models.CharField(max_length=30, null=True, db_index=True)
    action = models.CharField(max_length=60)
    """Such as `key.issued` (`accounts.audit`)."""
    target_id = models.CharField(max_length=64, null=True, db_index=True)
    project_id = models.CharField(max_length=30, null=True)
    environment_id = models.CharField(max_length=30, null=True)
    detail = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, null=True, db_index=True)

    class Meta:
        ordering: ClassVar = ["-at", "-id"]
        verbose_name_plural = "audit entries"
        indexes: ClassVar = [
            models.Index(fields=["project_id", "-at", "-id"], name="audit_of_project"),
            models.Index(fields=["environment_id", "-at", "-id"], name="audit_of_environment"),
            # Entries about an inbound endpoint, by its id.
            models.Index(
                KeyTransform("address", "detail"),
                condition=models.Q(detail__has_key="address"),
                name="audit_of_address",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target_id or ''}"

    @property
    def actor_id_for_members(self) -> str | None:
        """Members of the project do not learn who of the staff it was."""
        return None if self.actor_kind == "staff" else self.actor_id

    @property
    def shown_detail(self) -> dict[str, Any]:
        """Receivers' URLs as scheme and host: older entries have the rest, which is often a credential."""
        detail: dict[str, Any] = self.detail
        url = detail.get("url")
        if not isinstance(url, str):
            return detail
        try:
            parts = urlsplit(url)
            return detail | {"url": f"{parts.scheme}://{parts.hostname or ''}"}
        except ValueError:
            return detail | {"url": ""}


# Django looks for an app's tables here. At the end: they refer to the ones above.
from accounts.models.oauth import AuthorizationCode, Identity, IdentityProvider, RedirectUri  # noqa: E402, F401
from accounts.models.registration import AccountEmail, PoolSettings  # noqa: E402, F401
