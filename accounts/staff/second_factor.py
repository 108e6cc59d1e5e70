"""The optional second factor of a console sign-in: an authenticator's code, or one of ten recovery codes."""

import base64
import hashlib
import secrets
from datetime import timedelta
from typing import Final, cast
from urllib.parse import quote, urlencode

import segno
from django.db import transaction
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.staff.models import KEY_PURPOSE, STEP_SECONDS, RecoveryCode, TotpDevice
from platform_site.http.errors import Conflict, NotFound, RateLimited, Unavailable, ValidationFailed
from platform_site.security import keyring

KEY_BYTES: Final = 20
CODES: Final = 10
ISSUER: Final = "Backend platform"
ENROLMENT_ENDS_AFTER: Final = timedelta(minutes=15)


def device_of(user: User) -> TotpDevice | None:
    found: TotpDevice | None = TotpDevice.objects.filter(user=user, confirmed=True).first()
    return found


def begin_enrolment(user: User) -> TotpDevice:
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        if device_of(user) is not None:
            raise Conflict("There is an authenticator already. Turn it off first.")
        TotpDevice.objects.filter(user=user).delete()
        key = keyring.seal(secrets.token_bytes(KEY_BYTES), purpose=KEY_PURPOSE)
        device: TotpDevice = TotpDevice.objects.create(user=user, name="authenticator", confirmed=False, sealed_key=key)
        return device


def enrolment_of(user: User) -> TotpDevice | None:
    """None if there is none, it has expired, or its encryption key is missing: then a new one can begin."""
    begun = TotpDevice.objects.filter(user=user, confirmed=False, created_at__gt=Now() - ENROLMENT_ENDS_AFTER)
    found: TotpDevice | None = begun.first()
    return found if found is not None and found.is_readable else None


def confirm_enrolment(user: User, code: str) -> tuple[TotpDevice, list[str]]:
    """Enable the second factor; returns device and recovery codes. Raises NotFound, ValidationFailed, RateLimited."""
    with transaction.atomic():
        begun = enrolment_of(user)
        device = TotpDevice.objects.select_for_update().filter(pk=begun.pk, confirmed=False).first() if begun else None
        if device is None:
            raise NotFound("There is no authenticator to confirm. Begin again.")
        _refuse_while_waiting(device)
        if device.verify_token(_plain(code)):
            device.confirmed = True
            device.save(update_fields=["confirmed"])
            codes = _new_recovery_codes(user)
            audit.record("totp.enabled", user, actor=Actor.staff(user))
            return device, codes
    raise ValidationFailed.of("code", "wrong", "The code is wrong. Enter the current code of your authenticator.")


def verify(user: User, code: str) -> TotpDevice:
    """Check a code, or a recovery code. Raises ValidationFailed, RateLimited, NotFound (no second factor), and
    Unavailable if its encryption key is missing."""
    plain = _plain(code)
    with transaction.atomic():
        device = TotpDevice.objects.select_for_update().filter(user=user, confirmed=True).first()
        if device is None:
            raise NotFound("The second factor was turned off meanwhile. Sign in again.")
        _refuse_while_waiting(device)
        if len(plain) == 6 and plain.isdigit():
            try:
                if device.verify_token(plain):
                    return cast("TotpDevice", device)
            except keyring.KeyringError:
                raise Unavailable(
                    "The server lacks the key of this authenticator (ENCRYPTION_KEYS). Use a recovery code."
                ) from None
        elif RecoveryCode.objects.filter(user=user, code_hash=_hash(plain), used_at__isnull=True).update(used_at=Now()):
            device.throttle_reset()
            left = recovery_codes_left(user)
            audit.record("totp.recovery_code_used", user, actor=Actor.staff(user), left=left)
            return cast("TotpDevice", device)
        else:
            device.throttle_increment()
    raise ValidationFailed.of("code", "wrong", "The code is wrong or was used before.")


def renew_recovery_codes(user: User) -> list[str]:
    with transaction.atomic():
        if TotpDevice.objects.select_for_update().filter(user=user, confirmed=True).first() is None:
            raise NotFound("There is no second factor.")
        codes = _new_recovery_codes(user)
        audit.record("totp.recovery_codes_renewed", user, actor=Actor.staff(user))
    return codes


def recovery_codes_left(user: User) -> int:
    return RecoveryCode.objects.filter(user=user, used_at__isnull=True).count()


def disable(user: User, *, actor: Actor) -> bool:
    with transaction.atomic():
        _, per_model = TotpDevice.objects.filter(user=user).delete()
        RecoveryCode.objects.filter(user=user).delete()
        if not per_model:
            return False
        audit.record("totp.disabled", user, actor=actor)
        return True


def secret_text(device: TotpDevice) -> str:
    return base64.b32encode(device.key).decode()


def qr_code(device: TotpDevice) -> str:
    name = quote(f"{ISSUER}:{device.user.email}")
    query = {"secret": secret_text(device), "issuer": ISSUER, "algorithm": "SHA1", "digits": 6, "period": STEP_SECONDS}
    url = f"otpauth://totp/{name}?{urlencode(query, quote_via=quote)}"
    drawn: str = segno.make(url, error="m").svg_inline(scale=5, border=2, title="QR code")
    return drawn


def _new_recovery_codes(user: User) -> list[str]:
    RecoveryCode.objects.filter(user=user).delete()
    codes = [base64.b32encode(secrets.token_bytes(10)).decode().lower() for _ in range(CODES)]
    RecoveryCode.objects.bulk_create(RecoveryCode(user=user, code_hash=_hash(code)) for code in codes)
    return ["-".join(code[at : at + 4] for at in range(0, 16, 4)) for code in codes]


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def _plain(code: str) -> str:
    return code[:64].replace(" ", "").replace("-", "").lower()


def _refuse_while_waiting(device: TotpDevice) -> None:
    if wait := device.wait:
        raise RateLimited(wait, f"Too many wrong codes. Try again in {wait} s.")
