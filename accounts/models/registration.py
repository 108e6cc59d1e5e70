"""Tables of sign-up and email flows, in the control database. `accounts.models` imports them for Django."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from platform_site.http.models import JSONField, public_id


class SignUpMode(models.TextChoices):
    OFF = "off"
    OPEN = "open"
    INVITED = "invited"


class PoolSettings(models.Model):
    environment_id = models.CharField(max_length=30, null=True, blank=True)
    sign_up = models.CharField(max_length=8, choices=SignUpMode.choices, default=SignUpMode.OFF)
    app_name = models.CharField(max_length=64, blank=True, default="")
    app_url = models.CharField(max_length=500, blank=True, default="")
    link_urls = models.JSONField(default=dict, blank=True)
    """By kind of link, the application's page with `{token}`; the default is the platform's page."""
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "pool settings"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id"], name="settings_once_per_pool", nulls_distinct=False),
            models.CheckConstraint(condition=models.Q(sign_up__in=SignUpMode.values), name="settings_sign_up_is_known"),
        ]

    def __str__(self) -> str:
        return self.environment_id or "platform"


class AccountEmail(models.Model):
    """An email about an account, sent by a worker, and what its link opens. Except for sign-ups and password resets, a
    newer one replaces the last of its (pool, kind, subject). The token is only in the email; its SHA-256 changes with
    each attempt."""

    class Kind(models.TextChoices):
        SIGN_UP = "sign_up"
        INVITATION = "invitation"
        MEMBER_INVITATION = "member_invitation"
        VERIFY_EMAIL = "verify_email"
        RESET_PASSWORD = "reset_password"  # noqa: S105 - a kind of email
        CHANGE_EMAIL = "change_email"
        EMAIL_CHANGED = "email_changed"
        PASSWORD_CHANGED = "password_changed"  # noqa: S105
        IDENTITY_LINKED = "identity_linked"
        PROJECT_SUSPENDED = "project_suspended"
        PROJECT_RESUMED = "project_resumed"

    id = public_id("eml")
    environment_id = models.CharField(max_length=30, null=True, blank=True)
    project_id = models.CharField(max_length=30, null=True, blank=True)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    subject = models.CharField(max_length=254)
    recipient = models.CharField(max_length=254)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="emails")
    details = JSONField(default=dict, blank=True)
    token_hash = models.BinaryField(max_length=32, null=True, unique=True)
    bound_to = models.BinaryField(max_length=32, null=True)
    """SHA-256 of what must not change until the link is used."""
    expires_at = models.DateTimeField()
    attempts = models.IntegerField(default=0)
    """Number of attempts; also the fencing token of the worker."""
    next_attempt_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["environment_id", "kind", "subject"],
                name="email_newest_of_kind",
                condition=~models.Q(kind__in=["sign_up", "reset_password"]),
                nulls_distinct=False,
            )
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["next_attempt_at"],
                name="email_due",
                condition=models.Q(sent_at__isnull=True, failed_at__isnull=True),
            ),
            models.Index(fields=["environment_id", "kind", "subject"], name="email_by_subject"),
            models.Index(fields=["expires_at"], name="email_expiry"),
            models.Index(fields=["project_id"], name="email_by_project", condition=models.Q(project_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} to {self.recipient}"

    @property
    def status(self) -> str:
        """`waiting`, `sent` or, permanently, `refused`."""
        if self.failed_at is not None:
            return "refused"
        return "waiting" if self.sent_at is None else "sent"
