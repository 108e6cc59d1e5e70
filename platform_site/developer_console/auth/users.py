from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from django.http import HttpResponse
from django.utils.http import urlencode

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.auth.common import PERSON, person_of, render
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Console, go_to, page
from platform_site.identity import ids
from platform_site.templatetags.developer_console import isolated

_VERIFIED: Final = Field("email_verified", "The email is verified", "checkbox")
_NEW: Final = (
    *PERSON,
    Field("password", "Password", "password", help="Optional: a password reset or a provider also lets the user in."),
    _VERIFIED,
)
_EDIT: Final = (*PERSON, _VERIFIED)
_PASSWORD: Final = (Field("password", "New password", "password", required=True, help="Ends all sessions."),)


@page("auth")
def users(console: Console) -> HttpResponse:
    request = console.request
    refusal, status, context = None, 200, dict[str, Any]()
    if request.method == "POST":
        try:
            made = console.api("POST", "/v1/users", _new_user(request.POST)).data
            return go_to(request, console.url("user", made["id"]))
        except Refused as error:
            refusal, status = error, error.status
    asked = request.GET.get("find", "").strip()
    if ids.matches("usr", asked):
        return go_to(request, console.url("user", asked))
    query = {"limit": "50"} | ({"email": asked} if asked else {})
    if request.GET.get("cursor"):
        query["cursor"] = request.GET["cursor"]
    found = console.api("GET", "/v1/users", query=query).data
    following = ({"find": asked} if asked else {}) | {"cursor": found["next_cursor"]}
    context = {
        "users": found["data"],
        "asked": asked,
        "first": "?" if "cursor" in query else None,
        "next": f"?{urlencode(following)}" if found["next_cursor"] else None,
        "form": Form("new", _NEW, {}, refusal, request.POST if refusal else None),
    }
    return render(console, "console/users.html", "Users", context, status)


def _new_user(asked: Any) -> dict[str, Any]:
    body = person_of(asked) | {"email_verified": "email_verified" in asked}
    return body | ({"password": asked["password"]} if asked.get("password") else {})


def _path(user_id: str) -> str:
    return f"/v1/users/{quote(user_id, safe='')}"


@page("auth")
def user(console: Console, user_id: str) -> HttpResponse:
    current = console.api("GET", _path(user_id)).data
    sent = forms.submit(console, _CHANGES, current)
    if "deleted" in sent.context:
        return go_to(console.request, console.url("auth"))
    if sent.context:
        current = console.api("GET", _path(user_id)).data
    values = _shown(current)
    return render(
        console,
        "console/user.html",
        "",
        {
            "user": current,
            "seen": forms.fingerprint(values),
            "edit": sent.form("edit", _EDIT, values),
            "password": sent.form("password", _PASSWORD, {}),
            "refusal": sent.refusal,
            "failed": sent.failed,
            **sent.context,
        },
        sent.status,
    )


def _shown(user: dict[str, Any]) -> dict[str, Any]:
    return {
        "email": user["email"],
        "name": user["name"],
        "role": user["role"] or "",
        "claims": forms.json_text(user["claims"] or None),
        "email_verified": user["email_verified_at"] is not None,
    }


def _edit(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    asked = console.request.POST
    body = person_of(asked)
    is_verified = "email_verified" in asked
    shown = _shown(current)
    forms.refuse_stale(console, asked.get("seen"), forms.fingerprint(shown))
    if is_verified != shown["email_verified"]:
        body["email_verified"] = is_verified
    console.api("PATCH", _path(current["id"]), body)
    return {"notice": "The user is saved."}


def _set_password(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    console.api("PATCH", _path(current["id"]), {"password": console.request.POST.get("password", "")})
    return {"notice": "The password is set. All sessions of the user have ended."}


def _send_reset(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    console.api("POST", "/v1/auth/password-reset", {"email": current["email"]})
    return {"notice": "A link to set a new password is sent by email."}


def _disable(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    console.api("PATCH", _path(current["id"]), {"disabled": True})
    return {"notice": "The user is disabled. All sessions of the user have ended."}


def _enable(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    console.api("PATCH", _path(current["id"]), {"disabled": False})
    return {"notice": "The user is enabled and can sign in again."}


def _delete(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    if console.request.POST.get("confirm", "").strip() != current["email"]:
        raise forms.invalid("confirm", "This is not the user's email. Nothing was deleted.")
    console.api("DELETE", _path(current["id"]))
    return {"deleted": True}


_CHANGES: Final[dict[str, Callable[[Console, dict[str, Any]], dict[str, Any]]]] = {
    "edit": _edit,
    "password": _set_password,
    "send-reset": _send_reset,
    "disable": _disable,
    "enable": _enable,
    "delete": _delete,
}


@page("auth")
def invitations(console: Console) -> HttpResponse:
    asked = console.request.POST
    context: dict[str, Any] = {}
    refusal, status = None, 200
    if console.request.method == "POST":
        try:
            if asked.get("what") == "withdraw":
                console.api("DELETE", f"/v1/invitations/{quote(asked.get('invitation', ''), safe='')}")
                context["notice"] = "The invitation is withdrawn. Its link no longer works."
            else:
                made = console.api("POST", "/v1/invitations", person_of(asked)).data
                context["notice"] = f"{isolated(made['email'])} is invited by email. The link works for seven days."
        except Refused as error:
            refusal, status = error, error.status
    query = {"limit": "50"}
    if console.request.GET.get("cursor"):
        query["cursor"] = console.request.GET["cursor"]
    found = console.api("GET", "/v1/invitations", query=query).data
    context |= {
        "invitations": found["data"],
        "next": f"?{urlencode({'cursor': found['next_cursor']})}" if found["next_cursor"] else None,
        "form": Form("invite", PERSON, {}, refusal, asked if refusal else None),
    }
    return render(console, "console/user_invitations.html", "Invitations", context, status)
