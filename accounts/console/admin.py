"""Console pages of users, sessions, API keys, signing keys and the audit log. No page shows hashes or sealed values."""

from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import Group
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html_join
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.audit import Actor
from accounts.console.base import ConditionFilter, ReadOnlyAdmin, link, link_column, list_link
from accounts.models import ServerKey, Session, User
from accounts.staff import roles, second_factor
from accounts.staff import sessions as console_sessions
from accounts.staff.backends import ConsoleSignInForm
from accounts.staff.views import SignIn, change_password
from accounts.users import exchange_codes, sessions
from accounts.users import service as user_service
from platform_site.http.errors import Conflict

admin.site.login_form = ConsoleSignInForm
admin.site.login = SignIn.as_view()  # type: ignore[method-assign, assignment]  # with its second step
admin.site.password_change = change_password  # type: ignore[method-assign, assignment]  # limits attempts
admin.site.unregister(Group)  # `accounts.staff.roles` creates the groups of the staff roles


def _confirm(title: str, description: str, submit: str) -> dict[str, Any]:
    """A dialog that asks before an action: a GET shows it, only its POST (with the CSRF token) acts."""
    return {"title": title, "description": description, "form_class": BaseDialogForm, "form_submit_text": submit}


class PoolFilter(ConditionFilter):
    title = parameter_name = "pool"
    conditions: ClassVar = {
        "platform": ("Platform accounts", Q(environment_id=None)),
        "applications": ("Users of applications", Q(environment_id__isnull=False)),
    }


_LIVE = Q(revoked_at__isnull=True) & (Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))


class StateFilter(ConditionFilter):
    title = parameter_name = "state"
    conditions: ClassVar = {"live": ("Live", _LIVE), "ended": ("Ended", ~_LIVE)}


STATES = {"live": "success", "revoked": "danger", "expired": "warning", "enabled": "success", "disabled": "danger"}


@display(description="State", label=STATES)
def _state(page: ReadOnlyAdmin, thing: Session | ServerKey) -> str:
    if thing.revoked_at is not None:
        return "revoked"
    return "expired" if thing.expires_at is not None and thing.expires_at <= timezone.now() else "live"


_disable = partial(user_service.change_user, is_disabled=True)
_enable = partial(user_service.change_user, is_disabled=False)


def _sign_out(user: User, *, actor: Actor, except_key: str | None) -> None:
    console_sessions.end_all(user.pk, actor=actor, except_key=except_key)
    exchange_codes.end_sessions(user.pk, actor=actor, reason="revoked_by_staff")


def _reset_second_factor(user: User, *, actor: Actor) -> None:
    if actor.id == user.pk:  # a person at an unattended browser does not know the password
        raise Conflict("Turn your own off under “Account security”: it asks for your password.")
    if second_factor.disable(user, actor=actor):
        console_sessions.end_all(user.pk, actor=actor, except_key=None)


def _end_session(session: Session, *, actor: Actor) -> None:
    sessions.revoke(Q(pk=session.pk), actor=actor, user_id=session.user_id, reason="revoked_by_staff")


class RoleForm(BaseDialogForm):  # type: ignore[misc]
    role = forms.ChoiceField(
        choices=[("none", "none: no entry"), *[(role.value, role.value) for role in roles.StaffRole]],
        widget=UnfoldAdminSelectWidget,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        user = User.objects.filter(pk=unquote(str(self.object_id))).first()
        # The dialog starts with the current role, so that saving it unchanged removes nothing.
        self.fields["role"].initial = (roles.role_of(user) if user else None) or "none"


class _PersonAdmin(ReadOnlyAdmin):
    """Operators may not act on other staff, their sessions and keys: one of them could lock all superusers out."""

    person_field: ClassVar = ""
    """Empty: the record is the person."""

    def allowed(self, request: HttpRequest, chosen: list[Any]) -> list[Any]:
        if self.has_manage_staff_permission(request):
            return chosen
        permitted = []
        for record in chosen:
            person: User | None = getattr(record, self.person_field) if self.person_field else record
            if person is not None and person.is_staff and person.pk != request.user.pk:
                self.message_user(request, f"{record}: only a superuser may do this to staff.", messages.ERROR)
            else:
                permitted.append(record)
        return permitted


@admin.register(User)
class UserAdmin(_PersonAdmin):
    search_fields = ("=id", "=environment_id", "email", "name")
    search_help_text = "Id, environment, email or name"
    list_display = ("email", "id", "name", "pool", "state", "last_login")
    list_filter = (PoolFilter, ("disabled_at", admin.EmptyFieldListFilter), "is_staff")
    ordering = ("-id",)
    fields = (
        "id", "email", "email_verified_at", "name", "pool", "state", "disabled_at", "role", "claims", "staff_role",
        "second_factor", "last_login", "created_at", "elsewhere",
    )  # fmt: skip
    actions: ClassVar = ["disable_users", "enable_users", "sign_users_out"]
    actions_detail = ("disable_user", "enable_user", "sign_user_out", "change_staff_role", "reset_second_factor")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Staff are platform accounts; role and claims are for an application's rules."""
        left_out = ("staff_role", "second_factor") if obj and obj.environment_id else ("role", "claims")
        return [each for each in self.fields if each not in left_out]

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        user = self.get_object(request, unquote(str(object_id)))
        pointless = {"enable_user" if user is None or user.disabled_at is None else "disable_user"}
        if user is None or user.environment_id is not None or user.pk == request.user.pk:
            pointless.add("change_staff_role")
        if user is None or user.pk == request.user.pk or second_factor.device_of(user) is None:
            pointless.add("reset_second_factor")
        return [one for one in super().get_actions_detail(request, object_id) if one.path not in pointless]

    @display(description="Staff role")
    def staff_role(self, user: User) -> str:
        return roles.role_of(user) or "none"

    @display(description="Second factor")
    def second_factor(self, user: User) -> str:
        device = second_factor.device_of(user)
        return f"on since {device.created_at:%Y-%m-%d}" if device else "off"

    @display(description="State", label=STATES)
    def state(self, user: User) -> str:
        return "enabled" if user.disabled_at is None else "disabled"

    @display(description="See also")
    def elsewhere(self, user: User) -> str:
        found = [("accounts_session", "sessions"), ("accounts_auditentry", "audit log")]
        if user.environment_id is None:  # these stay when the account is disabled
            found += [("accounts_serverkey", "account keys"), ("projects_project", "projects")]
        return format_html_join(" · ", "{}", ((list_link(model, text, q=user.pk),) for model, text in found))

    @action(description="Disable (ends all sessions)", permissions=["operate"])
    def disable_users(self, request: HttpRequest, queryset: "QuerySet[User]") -> HttpResponse | None:
        warning = "All sessions and account keys of these users end with the next request."
        return self.act_on_many(request, queryset, _disable, "disabled", warning=warning)

    @action(description="Enable", permissions=["operate"])
    def enable_users(self, request: HttpRequest, queryset: "QuerySet[User]") -> HttpResponse | None:
        return self.act_on_many(request, queryset, _enable, "enabled")

    @action(description="Sign out everywhere", permissions=["operate"])
    def sign_users_out(self, request: HttpRequest, queryset: "QuerySet[User]") -> HttpResponse | None:
        warning = "All sessions of these users end with the next request."
        sign_out = partial(_sign_out, except_key=request.session.session_key)
        return self.act_on_many(request, queryset, sign_out, "signed out", warning=warning)

    @action(
        description="Disable",
        permissions=["operate"],
        icon="block",
        variant=ActionVariant.DANGER,
        dialog=_confirm("Disable this user?", "All sessions and account keys end with the next request.", "Disable"),
    )
    def disable_user(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        return self.act_on_one(request, object_id, _disable, "disabled")

    @action(
        description="Enable",
        permissions=["operate"],
        icon="check",
        dialog=_confirm("Enable this user?", "Sessions that ended stay ended; signing in works again.", "Enable"),
    )
    def enable_user(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        return self.act_on_one(request, object_id, _enable, "enabled")

    @action(
        description="Sign out everywhere",
        permissions=["operate"],
        icon="logout",
        dialog=_confirm("Sign this user out?", "All sessions end with the next request.", "Sign out"),
    )
    def sign_user_out(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        sign_out = partial(_sign_out, except_key=request.session.session_key)
        return self.act_on_one(request, object_id, sign_out, "signed out")

    @action(
        description="Staff role",
        permissions=["manage_staff"],
        icon="badge",
        dialog={
            "title": "Change the staff role",
            "description": "Support can read, operators can also make changes, superusers can also assign these roles.",
            "form_class": RoleForm,
            "form_submit_text": "Change",
        },
    )
    def change_staff_role(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        chosen = form.cleaned_data["role"]
        role = None if chosen == "none" else roles.StaffRole(chosen)
        return self.act_on_one(request, object_id, partial(roles.set_role, role=role), f"given the staff role {chosen}")

    @action(
        description="Reset second factor",
        permissions=["manage_staff"],
        icon="phonelink_erase",
        variant=ActionVariant.DANGER,
        dialog=_confirm(
            "Remove the second factor?", "The account then only needs its password for the console.", "Remove"
        ),
    )
    def reset_second_factor(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        return self.act_on_one(request, object_id, _reset_second_factor, "had the second factor removed")


@admin.register(Session)
class SessionAdmin(_PersonAdmin):
    person_field = "user"
    search_fields = ("=id", "=user__id", "=environment_id", "user__email")
    search_help_text = "Id of the session, the user or the environment, or an email"
    empty_words = "Signing in starts a session: POST /v1/auth/token."
    list_display = ("id", "person", "pool", "state", "user_agent", "address", "created_at")
    list_filter = (StateFilter, "revoked_reason")
    list_select_related = ("user",)
    ordering = ("-id",)
    fields = (
        "id", "person", "pool", "state", "revoked_at", "revoked_reason", "user_agent", "address",
        "created_at", "rotated_at", "expires_at",
    )  # fmt: skip
    state = _state
    actions: ClassVar = ["end_sessions"]
    actions_detail = ("end_session",)

    person = link_column("User", "accounts_user", "user_id", "user.email")

    @display(description="IP address", ordering="ip_address")
    def address(self, session: Session) -> str:
        return session.ip_address or "–"

    @action(description="Revoke", permissions=["operate"])
    def end_sessions(self, request: HttpRequest, queryset: "QuerySet[Session]") -> HttpResponse | None:
        warning = "The tokens of these sessions are refused from the next request on."
        return self.act_on_many(request, queryset, _end_session, "revoked", warning=warning)

    @action(
        description="Revoke",
        permissions=["operate"],
        icon="logout",
        variant=ActionVariant.DANGER,
        dialog=_confirm("Revoke this session?", "Its tokens are refused from the next request on.", "Revoke"),
    )
    def end_session(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        return self.act_on_one(request, object_id, _end_session, "revoked")


@admin.register(ServerKey)
class ServerKeyAdmin(_PersonAdmin):
    person_field = "account"
    search_fields = ("=id", "=environment_id", "=account__id", "=prefix", "name")
    search_help_text = "Id of the key, the environment or the account, the shown beginning of the secret, or the name"
    empty_words = "Members create them under Keys in their console, or with POST /v1/keys."
    list_display = ("name", "id", "prefix", "kind", "owner", "state", "last_used_at", "expires_at")
    list_filter = (StateFilter,)
    list_select_related = ("account",)
    ordering = ("-id",)
    fields = (
        "id", "name", "prefix", "kind", "owner", "state", "scopes", "maker", "last_used_at", "expires_at", "revoked_at",
        "created_at",
    )  # fmt: skip
    state = _state
    actions: ClassVar = ["revoke_keys"]
    actions_detail = ("revoke_one_key",)

    @display(description="Kind")
    def kind(self, key: ServerKey) -> str:
        return "Publishable key" if key.is_publishable else "Server key"

    @display(description="Belongs to")
    def owner(self, key: ServerKey) -> str:
        if key.account is None:
            return link("projects_environment", key.environment_id)
        return link("accounts_user", key.account_id, key.account.email)

    maker = link_column("Created by", "accounts_user", "created_by_id")

    @action(description="Revoke", permissions=["operate"])
    def revoke_keys(self, request: HttpRequest, queryset: "QuerySet[ServerKey]") -> HttpResponse | None:
        warning = "These keys are refused from the next request on, for good. Whatever uses them stops working."
        return self.act_on_many(request, queryset, user_service.revoke_key, "revoked", warning=warning)

    @action(
        description="Revoke",
        permissions=["operate"],
        icon="key_off",
        variant=ActionVariant.DANGER,
        dialog=_confirm("Revoke this key?", "It is refused from the next request on, for good.", "Revoke"),
    )
    def revoke_one_key(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        return self.act_on_one(request, object_id, user_service.revoke_key, "revoked")


# Django looks for an app's pages here.
from accounts.console import audit_log as _audit_log  # noqa: E402, F401
from accounts.console import oauth as _oauth  # noqa: E402, F401
from accounts.console import registration as _registration  # noqa: E402, F401
