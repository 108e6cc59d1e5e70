from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Action, Console, environment_of, go_to, operation, page
from platform_site.developer_console.sessions import program_of
from platform_site.identity import ids
from platform_site.templatetags.developer_console import isolated

_TABS: Final = {"auth": "Users", "user-invitations": "Invitations", "sign-up": "Sign-up", "providers": "Providers"}
_PERSON: Final = (
    Field("email", "Email", "email", required=True),
    Field("name", "Name"),
    Field("role", "Role", placeholder="editor", help="For the rules of your tables. Empty: user."),
    Field("claims", "Claims (JSON)", "code", placeholder='{"team": "sales"}', help="For the rules of your tables."),
)
_VERIFIED: Final = Field("email_verified", "The email is verified", "checkbox")
_NEW: Final = (
    *_PERSON,
    Field("password", "Password", "password", help="Optional: a password reset or a provider also lets the user in."),
    _VERIFIED,
)
_EDIT: Final = (*_PERSON, _VERIFIED)
_PASSWORD: Final = (Field("password", "New password", "password", required=True, help="Ends all sessions."),)


def render(console: Console, template: str, tab: str, context: dict[str, Any]) -> HttpResponse:
    ref = console.ref
    # The environment that the users of a preview branch belong to.
    source = environment_of(console.project, ref.pool_id) if ref.is_branch else None
    shown = {"tabs": console.tabs(_TABS), "tab": tab, "source": source, "may_change": console.may_write and not source}
    return console.render(template, shown | context)


def _person_of(submitted: Any) -> dict[str, Any]:
    body = forms.read(_PERSON, submitted)
    return body | {"role": body["role"] or None, "claims": body["claims"] or {}}


def _values_of(user: dict[str, Any]) -> dict[str, Any]:
    return user | {"claims": user["claims"] or None, "email_verified": user["email_verified_at"] is not None}


def _edit(console: Console, user_id: str) -> dict[str, Any]:
    body = _person_of(console.request.POST)
    is_verified = "email_verified" in console.request.POST
    current = _values_of(console.api("GET", path_to("users", user_id)))
    forms.refuse_stale(console, _EDIT, current)
    if is_verified != current["email_verified"]:
        body["email_verified"] = is_verified
    console.api("PATCH", path_to("users", user_id), body)
    return {"notice": "The user is saved."}


def _send_reset(console: Console, user_id: str) -> dict[str, Any]:
    email = console.api("GET", path_to("users", user_id))["email"]
    console.api("POST", "/v1/auth/password-reset", {"email": email})
    return {"notice": "A link to set a new password is sent by email."}


def _delete(console: Console, user_id: str) -> HttpResponse:
    email = console.api("GET", path_to("users", user_id))["email"]
    if console.request.POST.get("confirm", "").strip() != email:
        raise forms.invalid("confirm", "This is not the user's email. Nothing was deleted.")
    console.api("DELETE", path_to("users", user_id))
    return go_to(console.request, console.url("auth"))


_ACTIONS: Final[dict[str, Action]] = {
    "edit": _edit,
    "password": operation(
        "PATCH",
        "users/:user_id",
        "The password is set. All sessions of the user have ended.",
        {"password": ":password"},
    ),
    "send-reset": _send_reset,
    "disable": operation(
        "PATCH", "users/:user_id", "The user is disabled. All sessions of the user have ended.", {"disabled": True}
    ),
    "enable": operation("PATCH", "users/:user_id", "The user is enabled and can sign in again.", {"disabled": False}),
    "end-session": operation("DELETE", "users/:user_id/sessions/:session", "The session has ended."),
    "end-sessions": operation("DELETE", "users/:user_id/sessions", "The sessions have ended."),
    "delete": _delete,
}


@page("auth", _ACTIONS)
def user(console: Console, user_id: str) -> HttpResponse:
    current = console.api("GET", path_to("users", user_id))
    values = _values_of(current)
    sessions = console.api("GET", path_to("users", user_id, "sessions"), query={"limit": "100"})
    context = {
        "user": current,
        "sessions": [each | {"program": program_of(each["user_agent"])} for each in sessions["data"]],
        "are_more": sessions["next_cursor"] is not None,
        "edit": forms.edit_form_of(console, "edit", _EDIT, values),
        "password": forms.form_of(console, "password", _PASSWORD, {}),
    }
    return render(console, "console/user.html", "", context)


def _add(console: Console) -> HttpResponse:
    submitted = console.request.POST
    body = _person_of(submitted) | {"email_verified": "email_verified" in submitted}
    if submitted.get("password"):
        body["password"] = submitted["password"]
    made = console.api("POST", "/v1/users", body)
    return go_to(console.request, console.url("user", made["id"]))


@page("auth", {"new": _add})
def users(console: Console) -> HttpResponse:
    search = console.request.GET.get("find", "").strip()[:200]
    if ids.matches("usr", search):
        return go_to(console.request, console.url("user", search))
    found = console.page_of("/v1/users", {"limit": "50"} | ({"search": search} if search else {}))
    form = forms.form_of(console, "new", _NEW, {})
    return render(console, "console/users.html", "Users", {"users": found["data"], "search": search, "form": form})


def _invite(console: Console) -> dict[str, Any]:
    made = console.api("POST", "/v1/invitations", _person_of(console.request.POST))
    return {"notice": f"{isolated(made['email'])} is invited by email. The link works for seven days."}


_WITHDRAW: Final = operation(
    "DELETE", "invitations/:invitation", "The invitation is withdrawn. Its link no longer works."
)


@page("auth", {"invite": _invite, "withdraw": _WITHDRAW})
def invitations(console: Console) -> HttpResponse:
    found = console.page_of("/v1/invitations", {"limit": "50"})
    form = Form("invite", _PERSON, {}, console.refusal, console.request.POST if console.refusal else None)
    context = {"invitations": found["data"], "form": form}
    return render(console, "console/user_invitations.html", "Invitations", context)
