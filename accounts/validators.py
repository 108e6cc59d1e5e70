"""A password that is changed by one of Django's own doors ends all sessions, as one that is changed by ours does.

Django tells its password validators about each new password as it is saved (the console's form, `changepassword`);
this one judges none and listens. Named in AUTH_PASSWORD_VALIDATORS. Our own services set hashes, not passwords, and
never come here.
"""

from django.db.models import Q

from accounts import audit, sessions
from accounts.audit import Actor
from accounts.models import User
from platform_site.api.requests import current_request_id


class ChangeEndsSessions:
    """Not a rule but a consequence."""

    def validate(self, password: str, user: User | None = None) -> None:
        """Every password is fine here."""

    def get_help_text(self) -> str:
        return "A new password ends all of your sessions."

    def password_changed(self, password: str, user: User) -> None:
        """Called by `User.save`, in its transaction."""
        sessions.end_where(Q(user_id=user.pk), "password_changed")
        by_themselves = current_request_id() is not None  # else a command, in which nobody is signed in
        audit.record(
            "user.changed",
            actor=Actor.staff(user) if by_themselves else audit.SYSTEM,
            target_id=user.pk,
            environment_id=user.environment_id,
            fields=["password"],
        )
