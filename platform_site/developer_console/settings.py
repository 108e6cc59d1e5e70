"""Settings: members, invitations, keys, origins, usage, project name and deletion."""

from typing import Any, Final

from django.http import HttpResponse
from django.urls import reverse

from accounts.audit import Actor
from accounts.models.registration import SignUpMode
from accounts.registration import pool_settings
from platform_site.developer_console import forms, keys
from platform_site.developer_console.forms import Field, form_of
from platform_site.developer_console.frame import Action, Console, go_to, operation, page
from platform_site.http.errors import Forbidden, ValidationFailed
from platform_site.templatetags.developer_console import isolated
from projects import staff_access
from projects.api.serializers import NAME_LENGTH

_TITLES: Final = {
    "queued_bytes": "Queued input",
    "visitor_queued_runs": "Queued runs, anonymous callers",
    "visitor_queued_bytes": "Queued input, anonymous callers",
}
_ROLES: Final = ("developer", "viewer", "owner")
_NEW_MEMBER: Final = (
    Field("email", "Email", "email", required=True),
    Field("role", "Role", "select", choices=[(role, role) for role in _ROLES]),
)
_ORIGINS: Final = (
    Field(
        "allowed_origins",
        "Web pages of these origins may read responses, one per line",
        "textarea",
        rows=4,
        placeholder="https://app.example.com",
    ),
)
_NAME: Final = (Field("name", "Name of the project", required=True, max_length=NAME_LENGTH),)


def _revoke_staff(console: Console) -> dict[str, Any]:
    if not console.is_owner:
        raise Forbidden("Only owners can end the access of staff.")
    actor = Actor("account", console.me["id"])
    staff_access.revoke(console.request.POST.get("grant", ""), actor=actor, project_id=console.project["id"])
    return {"notice": "The access of staff has ended."}


def _add_member(console: Console) -> dict[str, Any]:
    body = forms.read(_NEW_MEMBER, console.request.POST)
    try:
        made = console.api("POST", console.project_path("members"), body)
    except ValidationFailed as refusal:
        is_unknown = any(each.field == "email" and each.code == "unknown" for each in refusal.fields)
        if is_unknown and pool_settings.settings_of(None).sign_up == SignUpMode.OFF:
            message = "No account has this email. The operator can invite them: manage.py invite_user --platform EMAIL"
            raise forms.invalid("email", message) from None
        raise
    outcome = "is a member now" if "user_id" in made else "is invited by email"
    return {"notice": f"{isolated(body['email'])} {outcome}."}


def _remove_member(console: Console) -> dict[str, Any] | HttpResponse:
    user_id = console.request.POST.get("member", "")
    console.api("DELETE", console.project_path("members", user_id))
    if user_id == console.me["id"]:
        return go_to(console.request, reverse("developer_console:start"))
    return {"notice": "The member is removed."}


def _change_origins(console: Console) -> dict[str, Any]:
    path = console.project_path("environments", console.environment["id"])
    console.api("PATCH", path, forms.read(_ORIGINS, console.request.POST))
    return {"notice": "The allowed origins are saved."}


def _rename(console: Console) -> dict[str, Any]:
    console.project = console.api("PATCH", console.project_path(), forms.read(_NAME, console.request.POST))
    return {"notice": "The project is renamed."}


def _delete(console: Console) -> HttpResponse:
    if console.request.POST.get("confirm") != console.project["name"]:
        raise forms.invalid("confirm", "This is not the project's name.", summary="Nothing was deleted.")
    console.api("DELETE", console.project_path())
    return go_to(console.request, reverse("developer_console:start"))


_ACTIONS: Final[dict[str, Action]] = {
    "add-member": _add_member,
    "change-role": operation("PATCH", "projects/:project/members/:member", "The role is changed.", {"role": ":role"}),
    "remove-member": _remove_member,
    "withdraw": operation("DELETE", "projects/:project/invitations/:invitation", "The invitation is withdrawn."),
    "revoke-staff": _revoke_staff,
    "origins": _change_origins,
    "rename": _rename,
    "delete": _delete,
    **keys.ACTIONS,
}


@page("settings", _ACTIONS)
def settings(console: Console) -> HttpResponse:
    environment = console.api("GET", console.project_path("environments", console.environment["id"]))
    grants = staff_access.active().filter(environment__project_id=console.project["id"])
    grants = grants.select_related("environment").order_by("-created_at", "-id")
    context = {
        "members": console.listed(console.project_path("members"), {"limit": "100"}),
        "invitations": console.listed(console.project_path("invitations")) if console.is_owner else [],
        "new_member": form_of(console, "add-member", _NEW_MEMBER, {}),
        "roles": _ROLES,
        "staff_grants": list(grants) if console.is_owner else [],
        "origins": form_of(console, "origins", _ORIGINS, environment),
        "name_form": form_of(console, "rename", _NAME, console.project),
        "limits": {
            _TITLES.get(name, name.replace("_", " ").capitalize()): limit | {"name": name}
            for name, limit in console.api("GET", "/v1/limits")["limits"].items()
            if "used" in limit
        },
        "can_revoke": console.has_writing_role,
        **keys.panel(console),
    }
    return console.render("console/settings.html", context)
