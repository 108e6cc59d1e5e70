"""The lifetime of an admin session, checked with every request: CONSOLE_IDLE_SECONDS after the last click and
CONSOLE_SESSION_SECONDS after sign-in; at once without a second factor that the account has. With CONSOLE_REQUIRE_TOTP,
staff without one can only set it up."""

import time
from collections.abc import Callable
from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import SESSION_KEY, logout
from django.contrib.auth.views import redirect_to_login
from django.contrib.sessions.models import Session as ConsoleSession
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.staff import second_factor
from platform_site.postgres.statements import delete_in_batches

BEGAN: Final = "console_began"
SEEN: Final = "console_seen"
PENDING: Final = "console_pending"
"""The password was right, the second factor is missing."""
_STORED_PER_IDLE_TIME: Final = 60
"""How often per CONSOLE_IDLE_SECONDS the time of the last click is stored, which is a write."""


def begin(*, request: HttpRequest, **_: Any) -> None:
    request.session[BEGAN] = request.session[SEEN] = time.time()


def end(*, request: HttpRequest, user: Any, **_: Any) -> None:
    if isinstance(user, User):
        by = "themselves" if request.path_info == reverse("admin:logout") else "the end of the session"
        audit.record("console.signed_out", user, actor=Actor.staff(user), by=by)


def end_all(user_id: str, *, actor: Actor, except_key: str | None) -> None:
    """End a user's console sessions and unfinished sign-ins, except that with the key `except_key`. Reads every live
    session."""
    live = ConsoleSession.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=except_key)
    ended = [each.session_key for each in live.iterator() if user_id in _user_ids_of(each.get_decoded())]
    if ended:
        ConsoleSession.objects.filter(session_key__in=ended).delete()
        audit.record("console.signed_out", user_id, actor=actor, by="staff", sessions=len(ended))


def purge() -> int:
    return delete_in_batches(ConsoleSession.objects.filter(expire_date__lt=Now()))


def _user_ids_of(session: dict[str, Any]) -> tuple[Any, ...]:
    pending = session.get(PENDING)
    return session.get(SESSION_KEY), pending.get("user") if isinstance(pending, dict) else None


class ConsoleSessions:
    """Middleware, behind AuthenticationMiddleware, OTPMiddleware and MessageMiddleware. One query a page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith("/admin/") and isinstance(request.user, User):
            refusal = _refusal(request, request.user)
            if refusal is not None:
                return refusal
        return self.get_response(request)


def _refusal(request: HttpRequest, user: User) -> HttpResponse | None:
    now, session = time.time(), request.session
    began, seen = session.setdefault(BEGAN, now), session.setdefault(SEEN, now)
    if now - began > settings.CONSOLE_SESSION_SECONDS:
        return _redirect_to_sign_in(request, "Your session has ended: sign in again.")
    if now - seen > settings.CONSOLE_IDLE_SECONDS:
        return _redirect_to_sign_in(request, "You were signed out because you were inactive.")
    verified = getattr(user, "otp_device", None) is not None
    if not verified and second_factor.device_of(user) is not None:
        return _redirect_to_sign_in(request, "Sign in again with your authenticator.")
    if now - seen > settings.CONSOLE_IDLE_SECONDS / _STORED_PER_IDLE_TIME:
        session[SEEN] = now
    security = reverse("staff:security")
    open_to_all = (security, reverse("admin:logout"))
    if settings.CONSOLE_REQUIRE_TOTP and not verified and request.path_info not in open_to_all:
        messages.warning(request, "This console requires a second factor. Set one up to continue.")
        return redirect(security)
    return None


def _redirect_to_sign_in(request: HttpRequest, why: str) -> HttpResponse:
    logout(request)
    messages.info(request, why)
    target = request.get_full_path() if request.method in ("GET", "HEAD") else reverse("admin:index")
    if request.headers.get("HX-Request"):  # htmx would put the sign-in page into the dialog
        return HttpResponse(headers={"HX-Redirect": reverse("admin:login")})
    return redirect_to_login(target, reverse("admin:login"))
