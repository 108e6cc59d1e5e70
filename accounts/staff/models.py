import math
from datetime import timedelta
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone
from django_otp.models import Device, ThrottlingMixin
from django_otp.oath import TOTP

from platform_site.security import keyring

KEY_PURPOSE = "staff.totp"
STEP_SECONDS = 30
TOLERANCE = 1
"""Steps that a device's clock may be off, either way."""
MAX_WAIT = timedelta(minutes=5)


class ConsoleRight(models.Model):
    """No table: permissions of the console as a whole, for the groups of `roles`."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions: ClassVar = [
            ("operate", "May change things by the console's buttons"),
            ("manage_staff", "May give and take staff roles, and reset second factors"),
        ]

    def __str__(self) -> str:
        return "rights of the console"


class TotpDevice(ThrottlingMixin, Device):  # type: ignore[misc]  # django-otp has no annotations
    """A TOTP authenticator (RFC 6238, SHA-1, six digits, 30 s), one per account, its key encrypted (django-otp's TOTP
    device stores it in clear). Wrong codes cost 1, 2, 4, … seconds, at most MAX_WAIT: without that bound, an
    attacker with the password could lock the owner out."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    sealed_key = models.BinaryField()
    last_step = models.BigIntegerField(default=-1)
    """The step of the last accepted code: each counts once."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    @property
    def key(self) -> bytes:
        return keyring.unseal(bytes(self.sealed_key), purpose=KEY_PURPOSE)

    @property
    def is_readable(self) -> bool:
        try:
            return bool(self.key)
        except keyring.KeyringError:
            return False

    @property
    def wait(self) -> int:
        if not self.throttling_failure_count or self.throttling_failure_timestamp is None:
            return 0
        pause = min(MAX_WAIT, timedelta(seconds=2 ** min(self.throttling_failure_count - 1, 20)))
        left: timedelta = self.throttling_failure_timestamp + pause - timezone.now()
        return max(0, math.ceil(left.total_seconds()))

    def verify_is_allowed(self) -> tuple[bool, dict[str, Any] | None]:
        return (True, None) if not self.wait else (False, {"wait": self.wait})

    def verify_token(self, token: str) -> bool:
        if self.wait:
            return False
        totp = TOTP(self.key, step=STEP_SECONDS)
        right = len(token) == 6 and token.isascii() and token.isdigit()
        if right and totp.verify(int(token), tolerance=TOLERANCE, min_t=self.last_step + 1):
            self.last_step = totp.t()
            self.throttle_reset(commit=False)
            self.save()
            return True
        self.throttle_increment()
        return False


class RecoveryCode(models.Model):
    """A one-time replacement for the authenticator: 80 random bits, stored as SHA-256."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    code_hash = models.BinaryField(max_length=32)
    used_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "code_hash"], name="recovery_code_once")]

    def __str__(self) -> str:
        return f"recovery code of {self.user_id}"
