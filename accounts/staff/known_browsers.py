"""Browsers in which somebody has signed in before: a stranger's guesses do not lock these out.

Tries to sign in are limited per e-mail. Whoever knows a member of staff's address could use the limit up each minute
and keep them out. So a browser that has signed in once carries a signed cookie that names the account, and its tries
are counted by themselves. It proves nothing else: the password and the second factor are asked for all the same. OWASP,
"Slow down online guessing attacks with device cookies".
"""

import secrets
from typing import Final

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

from accounts.models import User
from accounts.users.emails import normalised

COOKIE: Final = "console_browser"
LASTS: Final = 180 * 24 * 3600
_SALT: Final = "accounts.staff.known_browsers"


def known_as(request: HttpRequest, email: str) -> str | None:
    """What to count this browser's tries for `email` by; None if nobody has signed in with that address here."""
    try:
        user_email, nonce = signing.loads(request.COOKIES.get(COOKIE, ""), salt=_SALT, max_age=LASTS)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    return str(nonce) if str(user_email) == _name(email) else None


def remember(request: HttpRequest, response: HttpResponse, user: User) -> None:
    """After a full sign-in."""
    nonce = known_as(request, user.email) or secrets.token_urlsafe(16)
    response.set_cookie(
        COOKIE,
        signing.dumps([_name(user.email), nonce], salt=_SALT),
        max_age=LASTS,
        path=settings.SESSION_COOKIE_PATH,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )


def _name(email: str) -> str:
    return normalised(email)
