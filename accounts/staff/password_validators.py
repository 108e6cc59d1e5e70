"""The rules of AUTH_PASSWORD_VALIDATORS for new passwords, in their normal form (`accounts.users.passwords.read`).
`ChangeEndsSessions` is no rule: Django calls it after its own forms and commands have saved a password."""

from django.contrib.auth import password_validation
from django.core.exceptions import ValidationError
from django.db.models import Q

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.users import exchange_codes, passwords, sessions
from platform_site.http.requests import current_request_id


class NotBlank:
    def validate(self, password: str, user: User | None = None) -> None:
        if passwords.is_blank(password):
            raise ValidationError("The password is blank. Choose one with visible characters.", code="blank")

    def get_help_text(self) -> str:
        return "Your password must contain visible characters."


class NotTooLong:
    def validate(self, password: str, user: User | None = None) -> None:
        if len(passwords.read(password)) > passwords.MAX_LENGTH:
            raise ValidationError(passwords.TOO_LONG, code="too_long")

    def get_help_text(self) -> str:
        return f"Your password can have at most {passwords.MAX_LENGTH} characters."


class _Normalized:
    def validate(self, password: str, user: User | None = None) -> None:
        super().validate(passwords.read(password), user)  # type: ignore[misc]  # of the other base class


class NotLikeTheUser(_Normalized, password_validation.UserAttributeSimilarityValidator):
    pass


class LongEnough(_Normalized, password_validation.MinimumLengthValidator):
    pass


class NotCommon(_Normalized, password_validation.CommonPasswordValidator):
    pass


class ChangeEndsSessions:
    def validate(self, password: str, user: User | None = None) -> None:
        pass

    def get_help_text(self) -> str:
        return "A new password ends all of your sessions."

    def password_changed(self, password: str, user: User) -> None:
        exchange_codes.withdraw(user.pk)  # each could still start a session
        sessions.end_where(Q(user_id=user.pk), "password_changed")
        by_themselves = current_request_id() is not None  # else a command, without a signed-in user
        audit.record(
            "user.changed", user, actor=Actor.staff(user) if by_themselves else audit.SYSTEM, fields=["password"]
        )
