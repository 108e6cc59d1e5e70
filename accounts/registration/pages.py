"""The platform's pages for links in emails, without scripts. Opening one changes nothing, since mail scanners open
links; its form acts, and only depends on its token, so it is exempt from the CSRF check. The URL has the token: pages
are not cached and send no referrer."""

from typing import Any, ClassVar, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import FormView

from accounts.api.serializers import MAX_USER_NAME_LENGTH
from accounts.directory import environments as environment_directory
from accounts.models.registration import AccountEmail, PoolSettings
from accounts.registration import invitations, one_time_links, own_account, password_reset, pool_settings, sign_up
from accounts.users import passwords
from platform_site.http.errors import ApiError, InvalidGrant
from platform_site.http.fields import CONTROL_CHARACTERS
from platform_site.http.requests import current_request_id
from platform_site.redis import rate_limits

Kind = AccountEmail.Kind
_HINT: Final = "At least 8 characters, and not a common password."


def _password(label: str, *, autocomplete: str, help_text: str = "") -> forms.CharField:
    return forms.CharField(
        label=label,
        strip=False,
        max_length=passwords.MAX_INPUT_LENGTH,
        help_text=help_text,
        widget=forms.PasswordInput(attrs={"autocomplete": autocomplete}),
    )


class PasswordForm(forms.Form):
    password = _password("Password", autocomplete="current-password")


class NewPasswordForm(forms.Form):
    password = _password("New password", autocomplete="new-password", help_text=_HINT)
    again = _password("Repeat the password", autocomplete="new-password")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if (
            "password" in cleaned
            and "again" in cleaned
            and passwords.read(cleaned["password"]) != passwords.read(cleaned["again"])
        ):
            self.add_error("again", "The two passwords differ.")
        return cleaned


class AcceptForm(NewPasswordForm):
    name = forms.CharField(
        label="Name",
        required=False,
        max_length=MAX_USER_NAME_LENGTH,
        widget=forms.TextInput(attrs={"autocomplete": "name"}),
    )
    field_order = ["name", "password", "again"]

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if CONTROL_CHARACTERS.search(name) and name != self.initial.get("name"):  # the invitation's may be older
            raise forms.ValidationError("Must not have control characters.")
        return name


@method_decorator(csrf_exempt, name="dispatch")
class LinkPage(FormView):  # type: ignore[type-arg]
    http_method_names = ["get", "head", "post", "options"]
    kind: ClassVar[Kind]
    form_class: type[forms.Form] = forms.Form
    title: ClassVar[str]
    lead: ClassVar[str]
    button: ClassVar[str]
    done_title: ClassVar[str]
    done: ClassVar[str]
    token: str
    link: AccountEmail

    def act(self, values: dict[str, Any]) -> object:
        raise NotImplementedError

    def lead_for(self, link: AccountEmail) -> str:
        return self.lead

    def placeholders(self, link: AccountEmail) -> dict[str, str]:
        return {}

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return super().dispatch(request, *args, **kwargs)
        except InvalidGrant:
            return self._page(
                400,
                "The link no longer works",
                lead="It has expired, was used or was replaced by a newer one. Ask for another one where you asked"
                " for this one.",
            )
        except ApiError as error:
            page = self._page(error.status, "That did not work", lead=error.text)
            for name, value in error.headers.items():
                page.headers[name] = value
            return page

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self._find(request.GET.get("token", ""))
        return super().get(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self._find(request.POST.get("token", ""))
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: forms.Form) -> HttpResponse:
        try:
            self.act(form.cleaned_data)
        except ApiError as error:
            # Errors of this form's fields are shown beside them.
            own_errors = [field for field in error.fields if field.field in form.fields]
            if not own_errors:
                raise
            for field in own_errors:
                form.add_error(field.field, field.message)
            self._find(self.token)
            return self.form_invalid(form)
        return self._page(200, self.done_title, link=self.link, lead=self.done, is_done=True)

    def render_to_response(self, context: dict[str, Any], **options: Any) -> HttpResponse:
        form, lead = context["form"], self.lead_for(self.link)
        context = {"form": form, "token": self.token, "button": self.button}
        return self._page(422 if form.is_bound else 200, self.title, link=self.link, lead=lead, **context)

    def _find(self, token: str) -> None:
        rate_limits.count_token_request(self.request)
        self.token, self.link = token, self.find(token)

    def find(self, token: str) -> AccountEmail:
        link = one_time_links.find(token, self.kind)
        environment_directory.require_active(link.environment_id)
        return link

    def _page(
        self, status: int, title: str, *, lead: str, link: AccountEmail | None = None, **more: Any
    ) -> HttpResponse:
        pool = pool_settings.settings_of(link.environment_id) if link else None
        app = pool_settings.app_name(pool) if pool else ""
        email = link.recipient if link else ""
        if link:  # otherwise the texts may be those of an error, which have no placeholders
            texts = self.placeholders(link) | {"app": app, "email": email}
            title, lead = title.format(**texts), lead.format(**texts)
        context = {
            "title": title,
            "lead": lead,
            "app": app,
            "app_url": _app_url(pool, link) if pool and link else "",
            "email": email,
            "request_id": current_request_id() if status >= 400 and "form" not in more else None,
            **more,
        }
        return HttpResponse(
            render_to_string("accounts/link.html", context),
            status=status,
            headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"},
        )


def _app_url(pool: PoolSettings, link: AccountEmail) -> str:
    if pool.app_url or link.environment_id is not None or link.user is None:
        return pool.app_url
    return reverse("admin:index" if link.user.is_staff else "developer_console:start")


class ConfirmSignUp(LinkPage):
    kind = Kind.SIGN_UP
    form_class = PasswordForm
    title = "Confirm your account"
    lead = "Type the password that you chose when you signed up to {app}."
    button = "Confirm my account"
    done_title = "Your account is ready"
    done = "You can now sign in to {app} with {email}."

    def act(self, values: dict[str, Any]) -> object:
        return sign_up.confirm(self.link, values["password"], lambda user: user)


class AcceptInvitation(LinkPage):
    kind = Kind.INVITATION
    form_class = AcceptForm
    title = "Join {app}"
    lead = "You were invited. Choose a password to create your account."
    button = "Create my account"
    done_title = "Your account is ready"
    done = "You can now sign in to {app} with {email}."

    def get_initial(self) -> dict[str, Any]:
        return {"name": self.link.details["name"]}

    def act(self, values: dict[str, Any]) -> object:
        return invitations.accept(self.link, values["password"], lambda user: user, name=values["name"])


class VerifyEmail(LinkPage):
    kind = Kind.VERIFY_EMAIL
    title = "Confirm your email"
    lead = "Is {email} your email, and do you use it at {app}?"
    button = "Yes, this is my email"
    done_title = "Your email is confirmed"
    done = "Thank you. {app} now knows that {email} is yours."

    def act(self, values: dict[str, Any]) -> object:
        return own_account.verify(self.link)


class ResetPassword(LinkPage):
    kind = Kind.RESET_PASSWORD
    form_class = NewPasswordForm
    title = "Choose a new password"
    lead = "For your account at {app}. You will be signed out everywhere."
    button = "Set the new password"
    done_title = "Your password is changed"
    done = "You were signed out everywhere. Sign in to {app} with the new password."

    def act(self, values: dict[str, Any]) -> object:
        return password_reset.reset(self.link, values["password"])


class ConfirmEmailChange(LinkPage):
    kind = Kind.CHANGE_EMAIL
    form_class = PasswordForm
    title = "Confirm your new email"
    lead = "Type your password for {app}; from then on you sign in with {email}."
    button = "Use this email"
    done_title = "Your email is changed"
    done = "From now on you sign in to {app} with {email}."

    def act(self, values: dict[str, Any]) -> object:
        return own_account.change_email(self.link, values["password"])
