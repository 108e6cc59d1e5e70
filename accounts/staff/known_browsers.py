"""A browser in which a person has signed in before has its own limit of attempts, so that an attacker who knows the
email cannot lock them out. Its signed cookie names the account and grants nothing else. OWASP, "Slow down online
guessing attacks with device cookies"."""

import secrets
from typing import Final

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

from accounts.models import User
from accounts.users.emails import normalize

COOKIE: Final = "console_browser"
MAX_AGE_SECONDS: Final = 180 * 24 * 3600
_SALT: Final = "accounts.staff.known_browsers"


def nonce_for(request: HttpRequest, email: str) -> str | None:
    """The key that counts this browser's attempts for `email`; None for an unknown browser."""
    try:
        user_email, nonce = signing.loads(request.COOKIES.get(COOKIE, ""), salt=_SALT, max_age=MAX_AGE_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return str(nonce) if str(user_email) == normalize(email) else None


def remember(request: HttpRequest, response: HttpResponse, user: User) -> None:
    nonce = nonce_for(request, user.email) or secrets.token_urlsafe(16)
    response.set_cookie(
        COOKIE,
        signing.dumps([normalize(user.email), nonce], salt=_SALT),
        max_age=MAX_AGE_SECONDS,
        path=settings.SESSION_COOKIE_PATH,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )
