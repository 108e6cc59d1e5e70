"""Console sign-in, its second step, and the page of one's own second factor."""

import logging
import time
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth import login as begin_session
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse, reverse_lazy
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django_otp import login as show_device
from unfold.forms import AdminOwnPasswordChangeForm
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.registration import password_reset
from accounts.staff import known_browsers, second_factor
from accounts.staff.backends import ConsoleSignInForm
from accounts.staff.sessions import PENDING
from accounts.users import emails, passwords
from platform_site.http.errors import ApiError, NotFound, RateLimited, ValidationFailed
from platform_site.redis import rate_limits

PENDING_SECONDS: Final = 300
BACKEND: Final = "accounts.staff.backends.PlatformAccountBackend"

log = logging.getLogger(__name__)


@method_decorator([never_cache, csrf_protect], name="dispatch")
class SignIn(LoginView):
    authentication_form = ConsoleSignInForm
    template_name = "accounts/staff/login.html"
    next_page = "admin:index"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if admin.site.has_permission(request):
            return redirect("admin:index")
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        frame = admin.site.each_context(self.request)
        return frame | context | {"title": "Sign in", "app_path": self.request.get_full_path()}

    def form_valid(self, form: Any) -> HttpResponse:
        user: User = form.get_user()
        if second_factor.device_of(user) is None:
            _begin(self.request, user, by="password")
            response = HttpResponseRedirect(self.get_success_url())
            known_browsers.remember(self.request, response, user)
            return response
        self.request.session.flush()  # prevents session fixation
        self.request.session[PENDING] = {
            "user": user.pk,
            "hash": user.get_session_auth_hash(),
            "at": time.time(),
            "next": self.get_success_url(),
        }
        return redirect("staff:code")


def _begin(request: HttpRequest, user: User, *, by: str) -> None:
    begin_session(request, user, backend=BACKEND)
    audit.record("console.signed_in", user, actor=Actor.staff(user), by=by)


class ForgottenForm(forms.Form):
    email = forms.CharField(
        max_length=emails.MAX_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "username", "type": "email", "autofocus": True}),
        label="Email",
    )


@never_cache
@csrf_protect
def forgotten_password(request: HttpRequest) -> HttpResponse:
    form = ForgottenForm(request.POST if request.method == "POST" else None)
    shown: dict[str, Any] = {"title": "A new password", "form": form}
    status = 200
    if form.is_bound and form.is_valid():
        try:
            shown |= password_reset.request_reset_on_page(request, form.cleaned_data["email"])
        except ValidationFailed as error:
            form.add_error("email", _error_text(error))
            status = error.status
        except RateLimited as error:
            form.add_error(None, error.page_text)
            status = error.status
    return TemplateResponse(
        request, "accounts/staff/forgotten.html", admin.site.each_context(request) | shown, status=status
    )


class CodeForm(forms.Form):
    code = forms.CharField(
        max_length=64,
        widget=UnfoldAdminTextInputWidget(
            attrs={"autocomplete": "one-time-code", "inputmode": "text", "autofocus": True, "spellcheck": "false"}
        ),
        label="Code",
    )


@never_cache
@csrf_protect
def code(request: HttpRequest) -> HttpResponse:
    pending = request.session.get(PENDING)
    user = _pending_user(pending)
    if pending is None or user is None:
        request.session.pop(PENDING, None)
        messages.info(request, "Sign in with your password first.")
        return redirect("admin:login")
    form = CodeForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            device = second_factor.verify(user, form.cleaned_data["code"])
        except ApiError as error:
            # The password was correct before: a sign of a leaked password.
            log.warning("second factor refused", extra={"user_id": user.pk, "why": error.code})
            form.add_error("code", _error_text(error))
        else:
            _begin(request, user, by="second factor")
            request.session.pop(PENDING, None)
            show_device(request, device)
            response = HttpResponseRedirect(str(pending["next"]))  # checked by LoginView
            known_browsers.remember(request, response, user)
            return response
    context = admin.site.each_context(request) | {"title": "One more step", "form": form, "email": user.email}
    return TemplateResponse(request, "accounts/staff/code.html", context)


def _pending_user(pending: Any) -> User | None:
    if not isinstance(pending, dict) or time.time() - pending["at"] > PENDING_SECONDS:
        return None
    user = User.objects.in_pool(None).filter(pk=pending["user"], disabled_at__isnull=True, is_staff=True).first()
    return user if user is not None and user.get_session_auth_hash() == pending["hash"] else None


class ChangePasswordForm(AdminOwnPasswordChangeForm):  # type: ignore[misc]  # unfold has no annotations
    """A new password for the old one. Attempts are limited together with those of the page `security`."""

    request: HttpRequest

    def clean_old_password(self) -> str:
        try:
            _count_password_try(self.request, self.user)
        except RateLimited as refusal:
            raise forms.ValidationError(refusal.page_text, code="rate_limited") from None
        return str(super().clean_old_password())


@method_decorator([never_cache, csrf_protect], name="dispatch")
class ChangePassword(PasswordChangeView):
    form_class = ChangePasswordForm
    template_name = "registration/password_change_form.html"
    success_url = reverse_lazy("admin:password_change_done")

    def get_form(self, form_class: Any = None) -> Any:
        form: Any = super().get_form(form_class)
        form.request = self.request
        return form

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return admin.site.each_context(self.request) | super().get_context_data(**kwargs)


def change_password(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
    return ChangePassword.as_view(extra_context=extra_context)(request)


def _count_password_try(request: HttpRequest, user: User) -> None:
    rate_limits.count_known_browser(request, f"security {user.pk}")


class PasswordForm(forms.Form):
    password = forms.CharField(
        strip=False,
        max_length=passwords.MAX_INPUT_LENGTH,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "current-password"}),
        label="Your password",
    )


@never_cache
@csrf_protect
def security(request: HttpRequest) -> HttpResponse:
    """`/admin/security/`: one's own second factor. Changes need the password, so that an open browser is not enough."""
    user = request.user
    if not isinstance(user, User) or not admin.site.has_permission(request):
        return redirect(f"{reverse('admin:login')}?{REDIRECT_FIELD_NAME}={request.path}")
    shown: dict[str, Any] = {"password_form": PasswordForm(), "code_form": CodeForm()}
    if request.method == "POST":
        shown |= _change(request, user)
    device = second_factor.device_of(user)
    enrolment = None if device else second_factor.enrolment_of(user)
    context = admin.site.each_context(request) | {
        "title": "Account security",
        "device": device,
        "codes_left": second_factor.recovery_codes_left(user) if device else 0,
        "enrolment": enrolment,
        "picture": second_factor.qr_code(enrolment) if enrolment else "",
        "secret_text": second_factor.secret_text(enrolment) if enrolment else "",
        **shown,
    }
    return TemplateResponse(request, "accounts/staff/security.html", context)


def _change(request: HttpRequest, user: User) -> dict[str, Any]:
    action = request.POST.get("action")
    form: forms.Form
    if action == "confirm":
        form = CodeForm(request.POST)
        if form.is_valid():
            try:
                device, codes = second_factor.confirm_enrolment(user, form.cleaned_data["code"])
            except NotFound as error:  # the page has no field for the code any more
                messages.error(request, error.text)
                return {}
            except ApiError as error:
                form.add_error("code", _error_text(error))
            else:
                show_device(request, device)
                messages.success(request, "Your second factor is on. Other browsers have to sign in again.")
                return {"codes": codes}
        return {"code_form": form}
    form = PasswordForm(request.POST)
    if form.is_valid():
        try:
            _count_password_try(request, user)
            if not passwords.is_correct(form.cleaned_data["password"], user.password):
                form.add_error("password", "This is not your password.")
            elif action == "begin":
                second_factor.begin_enrolment(user)
            elif action == "codes":
                return {"codes": second_factor.renew_recovery_codes(user)}
            elif action == "disable" and second_factor.disable(user, actor=Actor.staff(user)):
                messages.success(request, "Your second factor is off.")
        except ApiError as error:
            form.add_error("password", _error_text(error))
    return {"password_form": form} if form.errors else {}


def _error_text(error: ApiError) -> str:
    return " ".join(field.message for field in error.fields) or error.text
