"""Console sign-in and sign-out. Attempts count together with those at `POST /v1/auth/token`."""

import logging
from contextlib import suppress
from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST

from accounts.api.views import device_of
from accounts.models import User
from accounts.registration import password_reset
from accounts.staff import second_factor
from accounts.users import emails, passwords, sessions
from platform_site.concurrency import server_hints
from platform_site.developer_console import session
from platform_site.developer_console.api_calls import ApiClient
from platform_site.http.errors import ApiError, InvalidGrant, RateLimited, Unauthorized
from platform_site.http.requests import site_of
from platform_site.redis import rate_limits

WRONG: Final = "The email or the password is wrong."

log = logging.getLogger(__name__)


class EmailForm(forms.Form):
    email = forms.CharField(
        max_length=emails.MAX_LENGTH, widget=forms.EmailInput(attrs={"autocomplete": "username", "autofocus": True})
    )


class SignInForm(EmailForm):
    password = forms.CharField(
        strip=False,
        max_length=passwords.MAX_INPUT_LENGTH,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


class CodeForm(forms.Form):
    code = forms.CharField(
        max_length=64,
        widget=forms.TextInput(attrs={"autocomplete": "one-time-code", "spellcheck": "false", "autofocus": True}),
    )


@never_cache
@csrf_protect
def sign_in(request: HttpRequest) -> HttpResponse:
    target = _target(request, request.POST.get("next") or request.GET.get("next") or "")
    if request.method == "GET" and session.read(request) is not None and "ended" not in request.GET:
        return redirect(target)
    form = SignInForm(request.POST if request.method == "POST" else None)
    status = 200
    if form.is_bound and form.is_valid():
        try:
            server_hints.enter_share(request, site_of(request))
            rate_limits.count_token_request(request, email=form.cleaned_data["email"])
            user = sessions.authenticate(pool_id=None, environment_id=None, **form.cleaned_data)
            if second_factor.device_of(user) is None:
                return _begin(request, user, target)
        except ApiError as error:
            form.add_error(None, _text(error, WRONG))
            status = error.status
        else:
            response = redirect("developer_console:code")
            pending = {"user_id": user.pk, "hash": user.get_session_auth_hash(), "next": target}
            session.start_pending(response, pending)
            return response
    context = {"form": form, "next": target, "ended": "ended" in request.GET}
    return render(request, "console/sign_in.html", context, status=status)


@never_cache
@csrf_protect
def code(request: HttpRequest) -> HttpResponse:
    pending = session.read_pending(request)
    user = User.objects.in_pool(None).filter(pk=pending["user_id"], disabled_at=None).first() if pending else None
    if pending is None or user is None or user.get_session_auth_hash() != pending["hash"]:
        return redirect("developer_console:sign-in")
    form = CodeForm(request.POST if request.method == "POST" else None)
    status = 200
    if form.is_bound and form.is_valid():
        try:
            device = second_factor.verify(user, form.cleaned_data["code"])
            response = _begin(request, user, _target(request, pending["next"]), device.pk)
        except ApiError as error:
            log.warning("second factor refused", extra={"user_id": user.pk, "why": error.code})
            form.add_error("code", _text(error))
            status = error.status
        else:
            session.end(response, session.PENDING_COOKIE)
            return response
    return render(request, "console/code.html", {"form": form, "email": user.email}, status=status)


@never_cache
@csrf_protect
def forgotten(request: HttpRequest) -> HttpResponse:
    form = EmailForm(request.POST if request.method == "POST" else None)
    context: dict[str, Any] = {"form": form, "next": _target(request, request.GET.get("next") or "")}
    status = 200
    if form.is_bound and form.is_valid():
        try:
            context |= password_reset.request_reset_on_page(request, form.cleaned_data["email"])
        except ApiError as error:
            form.add_error("email", _text(error))
            status = error.status
    return render(request, "console/forgotten.html", context, status=status)


@never_cache
@csrf_protect
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    response = redirect("developer_console:sign-in")
    signed_in = session.read(request)
    if signed_in is not None:
        request.__dict__.pop(server_hints.SHARE, None)  # a session can be ended beside any other requests
        with suppress(Unauthorized):  # it has ended already
            ApiClient(request, signed_in).call("POST", "/v1/auth/revoke", {"scope": "current"})
    session.end(response)
    return response


def _begin(request: HttpRequest, user: User, target: str, verified_by: int | None = None) -> HttpResponse:
    """Raises InvalidGrant if the account was disabled or got another password."""
    method = "console" if verified_by is None else "console, second factor"
    grant = sessions.start(
        user, environment_id=None, device=device_of(request), method=method, password_hash=user.password
    )
    response = redirect(target)
    session.start(response, user_id=user.pk, session_id=grant.session_id, second_factor=verified_by)
    return response


def _target(request: HttpRequest, wanted: str) -> str:
    start = reverse("developer_console:start")
    is_ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, request.is_secure())
    return wanted if is_ours and wanted.startswith(start) else start


def _text(error: ApiError, otherwise: str | None = None) -> str:
    if isinstance(error, RateLimited):
        return error.page_text
    if otherwise is not None and isinstance(error, InvalidGrant):
        return otherwise
    return " ".join(field.message for field in error.fields) or error.text
