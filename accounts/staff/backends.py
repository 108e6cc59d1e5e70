"""Authentication backend of the admin: platform staff only, with the limits and the hashing of every sign-in."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.forms import AuthenticationForm

from accounts.models import User
from accounts.staff import known_browsers
from accounts.users import sessions
from platform_site.http.errors import InvalidGrant, RateLimited
from platform_site.redis import rate_limits


class PlatformAccountBackend(ModelBackend):
    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **rest: Any
    ) -> User | None:
        """The account with this email and password, if it may sign in. Raises RateLimited."""
        email = username or rest.get("email")
        if not isinstance(email, str) or password is None:
            return None
        try:
            return sessions.authenticate(pool_id=None, environment_id=None, email=email, password=password)
        except InvalidGrant:
            return None

    def get_user(self, user_id: Any) -> User | None:
        """Runs on every console request, so disabling an account takes effect at once."""
        return User.objects.in_pool(None).filter(pk=user_id, disabled_at__isnull=True).first()


class ConsoleSignInForm(AuthenticationForm):  # type: ignore[misc]  # unfold has no annotations
    """Attempts count as at the token endpoint, except in a known browser: others cannot lock out staff."""

    def clean(self) -> dict[str, Any]:
        email = str(self.cleaned_data.get("username") or "")
        try:
            if email:
                browser = known_browsers.nonce_for(self.request, email)
                if browser is not None:
                    rate_limits.count_known_browser(self.request, browser)
                else:
                    rate_limits.count_token_request(self.request, email=email)
            cleaned: dict[str, Any] = super().clean()
        except RateLimited as refusal:
            raise ValidationError(refusal.page_text, code="rate_limited") from None
        return cleaned
