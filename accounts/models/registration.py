"""Tables of sign-up and e-mail flows, in the control database. `accounts.models` imports them for Django."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from platform_site.http.models import public_id


class SignUpMode(models.TextChoices):
    """Who may make an account in a pool by themselves."""

    OFF = "off"
    OPEN = "open"
    INVITED = "invited"


class PoolSettings(models.Model):
    """How people come into one pool, and what its e-mails say. A pool without a row has the defaults. A new development
    environment has a row: its sign-up is open."""

    environment_id = models.CharField(max_length=30, null=True, blank=True)
    """The environment whose pool it is; null for platform accounts."""
    sign_up = models.CharField(max_length=8, choices=SignUpMode.choices, default=SignUpMode.OFF)
    app_name = models.CharField(max_length=64, blank=True, default="")
    """What e-mails and pages call the application; empty: words that fit any."""
    app_url = models.CharField(max_length=500, blank=True, default="")
    """Where the last page of a flow leads back to; empty: nowhere."""
    link_urls = models.JSONField(default=dict, blank=True)
    """For each kind of link the application's own page, with `{token}` in it; the others lead to the platform's."""
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
    """One e-mail about an account: written down first, sent by a worker, and what the link in it opens. At most one for
    each (pool, kind, subject), but for sign-ups and password resets: a newer one replaces the one before. The token
    exists in the e-mail alone; here is its SHA-256, made anew each time the e-mail is sent again."""

    class Kind(models.TextChoices):
        SIGN_UP = "sign_up"
        INVITATION = "invitation"
        MEMBER_INVITATION = "member_invitation"
        VERIFY_EMAIL = "verify_email"
        RESET_PASSWORD = "reset_password"  # noqa: S105 - a kind of e-mail
        CHANGE_EMAIL = "change_email"
        EMAIL_CHANGED = "email_changed"
        PASSWORD_CHANGED = "password_changed"  # noqa: S105
        IDENTITY_LINKED = "identity_linked"
        PROJECT_SUSPENDED = "project_suspended"
        PROJECT_RESUMED = "project_resumed"

    id = public_id("eml")
    """`inv_…` for an invitation of either kind, whose id the API shows."""
    environment_id = models.CharField(max_length=30, null=True, blank=True)
    """The pool; null for platform accounts."""
    project_id = models.CharField(max_length=30, null=True, blank=True)
    """The project that it invites into; null for all else."""
    kind = models.CharField(max_length=20, choices=Kind.choices)
    subject = models.CharField(max_length=254)
    """What it is about: an email in lower case, a user's id, or a project and the person concerned."""
    recipient = models.CharField(max_length=254)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="emails")
    """Whom the link acts on; null while that is not known, and for those who have no account yet."""
    details = models.JSONField(default=dict, blank=True)
    """What the link will do: a name, a role, claims, the hash of the password that was chosen. On no page."""
    token_hash = models.BinaryField(max_length=32, null=True, unique=True)
    bound_to = models.BinaryField(max_length=32, null=True)
    """SHA-256 of what must not have changed when the link is used (`accounts.registration.one_time_links`)."""
    expires_at = models.DateTimeField()
    """From then on it is neither sent nor does its link open anything."""
    attempts = models.IntegerField(default=0)
    """How often a worker took it up; also the fencing token of that worker."""
    next_attempt_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    """Refused for good by the mail server."""
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
        """What became of it: `waiting`, `sent` or, for good, `refused`."""
        if self.failed_at is not None:
            return "refused"
        return "waiting" if self.sent_at is None else "sent"
