"""Authentication backend of the admin: platform staff only, with the limits and the hashing of every sign-in."""

import logging
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.forms import AuthenticationForm

from accounts.models import User
from accounts.staff import known_browsers
from accounts.users import passwords
from platform_site.http.errors import RateLimited
from platform_site.redis import rate_limits

log = logging.getLogger(__name__)


class PlatformAccountBackend(ModelBackend):
    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **rest: Any
    ) -> User | None:
        """The account with this email and password, if it may sign in. Raises RateLimited."""
        email = username or rest.get("email")
        if not isinstance(email, str) or password is None:
            return None
        user = User.objects.with_email(None, email).first()
        enabled = user is not None and user.disabled_at is None
        is_right = passwords.is_right(password, user.password if user is not None and enabled else None)
        if not is_right:
            known = user.pk if user is not None else None
            log.info("sign-in refused", extra={"door": "console", "user_id": known})
            return None
        return user

    def get_user(self, user_id: Any) -> User | None:
        """Runs on every console request, so disabling an account takes effect at once."""
        return User.objects.in_pool(None).filter(pk=user_id, disabled_at__isnull=True).first()


class ConsoleSignInForm(AuthenticationForm):  # type: ignore[misc]  # unfold has no annotations
    """Attempts count as at the token endpoint, except in a known browser: others cannot lock out staff."""

    def clean(self) -> dict[str, Any]:
        email = str(self.cleaned_data.get("username") or "")
        try:
            if email:
                browser = known_browsers.known_as(self.request, email)
                if browser is not None:
                    rate_limits.count_known_browser(self.request, browser)
                else:
                    rate_limits.count_token_request(self.request, email=email)
            cleaned: dict[str, Any] = super().clean()
        except RateLimited as refusal:
            wait = refusal.headers["Retry-After"]
            raise ValidationError(f"Too many tries. Try again in {wait} seconds.", code="rate_limited") from None
        return cleaned
