"""Settings: members, invitations, keys, origins, usage, project name and deletion."""

from collections.abc import Callable
from typing import Any, Final

from django.http import HttpResponse
from django.template.defaultfilters import filesizeformat
from django.urls import reverse

from accounts.audit import Actor
from platform_site.developer_console import forms, keys
from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import WRITERS, Console, go_to, page
from platform_site.http.errors import NotFound
from platform_site.templatetags.developer_console import isolated
from projects import staff_access
from projects.models import StaffGrant

_TITLES: Final = {
    "queued_bytes": "Input of queued runs",
    "visitor_queued_runs": "Queued runs of anonymous callers",
    "visitor_queued_bytes": "Input of queued runs of anonymous callers",
}
ROLES: Final = ("owner", "developer", "viewer")


@page("settings")
def settings(console: Console) -> HttpResponse:
    context: dict[str, Any] = {}
    status = 200
    what = console.request.POST.get("what", "")
    if console.request.method == "POST":
        try:
            context = _CHANGES.get(what, forms.unknown)(console)
        except Refused as refusal:
            context, status = (
                {"refusal": refusal, "failed": what if what in _CHANGES else "", "asked": console.request.POST},
                refusal.status,
            )
            if what in ("create-key", "revoke-key"):
                context["key_refusal"] = refusal
        if "left" in context:
            return go_to(console.request, reverse("developer_console:start"))
    members = console.api("GET", f"{_project(console)}/members", query={"limit": "100"}).data["data"]
    shown = {
        "members": members,
        "invitations": _invitations(console),
        "roles": ROLES,
        "staff_grants": _staff_grants(console),
        "environment_detail": console.api("GET", _environment(console)).data,
        "limits": _limits(console),
        "can_revoke": console.me["role"] in WRITERS,
        **keys.panel(console),
    }
    return console.render("console/settings.html", shown | context, status)


def _project(console: Console) -> str:
    return f"/v1/projects/{console.project['id']}"


def _environment(console: Console) -> str:
    return f"{_project(console)}/environments/{console.environment['id']}"


def _invitations(console: Console) -> list[dict[str, Any]]:
    if not console.is_owner:
        return []
    found: list[dict[str, Any]] = console.api("GET", f"{_project(console)}/invitations").data["data"]
    return found


def _staff_grants(console: Console) -> list[StaffGrant]:
    if not console.is_owner:
        return []
    grants = staff_access.active().filter(environment__project_id=console.project["id"])
    return list(grants.select_related("environment").order_by("-created_at", "-id"))


def _revoke_staff(console: Console) -> dict[str, Any]:
    if not console.is_owner:
        raise Refused(403, {"code": "forbidden", "message": "Only owners end the access of staff."})
    actor = Actor("account", console.me["id"])
    try:
        staff_access.revoke(console.request.POST.get("grant", ""), actor=actor, project_id=console.project["id"])
    except NotFound as error:
        raise Refused(404, {"code": error.code, "message": error.text}) from None
    return {"notice": "The access of staff has ended."}


def _limits(console: Console) -> dict[str, Any]:
    limits = console.api("GET", "/v1/limits").data["limits"]
    return {
        _TITLES.get(name, name.replace("_", " ").capitalize()): limit | {"text": _usage(name, limit)}
        for name, limit in limits.items()
        if "used" in limit
    }


def _usage(name: str, limit: dict[str, int]) -> str:
    shown = filesizeformat if name.endswith("_bytes") else "{:,}".format
    return f"{shown(limit['used'])} of {shown(limit['limit'])}"


def _add_member(console: Console) -> dict[str, Any]:
    asked = console.request.POST
    body = {"email": asked.get("email", "").strip(), "role": asked.get("role", "")}
    answer = console.api("POST", f"{_project(console)}/members", body)
    if answer.status == 202:
        return {"notice": f"{isolated(body['email'])} is invited by email."}
    return {"notice": f"{isolated(body['email'])} is a member now."}


def _change_role(console: Console) -> dict[str, Any]:
    asked = console.request.POST
    console.api("PATCH", f"{_project(console)}/members/{asked.get('member', '')}", {"role": asked.get("role", "")})
    return {"notice": "The role is changed."}


def _remove_member(console: Console) -> dict[str, Any]:
    user_id = console.request.POST.get("member", "")
    console.api("DELETE", f"{_project(console)}/members/{user_id}")
    return {"left": True} if user_id == console.me["id"] else {"notice": "The member is removed."}


def _withdraw(console: Console) -> dict[str, Any]:
    console.api("DELETE", f"{_project(console)}/invitations/{console.request.POST.get('invitation', '')}")
    return {"notice": "The invitation is withdrawn."}


def _change_origins(console: Console) -> dict[str, Any]:
    origins = console.request.POST.get("origins", "").split()
    console.api("PATCH", _environment(console), {"allowed_origins": origins})
    return {"notice": "The allowed origins are saved."}


def _rename(console: Console) -> dict[str, Any]:
    project = console.api("PATCH", _project(console), {"name": console.request.POST.get("name", "")}).data
    console.project = project
    return {"notice": "The project is renamed."}


def _delete(console: Console) -> dict[str, Any]:
    if console.request.POST.get("confirm") != console.project["name"]:
        fields = [{"field": "confirm", "code": "wrong", "message": "This is not the project's name."}]
        message = "Nothing was deleted."
        raise Refused(422, {"code": "validation_failed", "message": message, "fields": fields})
    console.api("DELETE", _project(console))
    return {"left": True}


_CHANGES: Final[dict[str, Callable[[Console], dict[str, Any]]]] = {
    "add-member": _add_member,
    "change-role": _change_role,
    "remove-member": _remove_member,
    "withdraw": _withdraw,
    "create-key": keys.change,
    "revoke-key": keys.change,
    "revoke-staff": _revoke_staff,
    "origins": _change_origins,
    "rename": _rename,
    "delete": _delete,
}
