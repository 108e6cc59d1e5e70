"""The environments of a project: listed, branched, reset, merged, deleted."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Console, go_to, page
from platform_site.http.fields import timestamp
from projects.models import Environment

_DATA: Final = (("none", "No rows"), ("full", "All rows"))
_EXPIRY: Final = (("", "Never"), ("1", "In 1 day"), ("7", "In 7 days"), ("30", "In 30 days"), ("90", "In 90 days"))
_FIXED: Final = ("development", "production")


@page("branches")
def branches(console: Console) -> HttpResponse:
    asked = console.request.POST
    what = asked.get("what", "")
    context: dict[str, Any] = {}
    status = 200
    if console.request.method == "POST":
        try:
            if what == "delete":
                console.client.call("DELETE", path_of(console, _confirmed(console)))
                if asked.get("branch") == console.environment["id"]:
                    return go_to(console.request, _elsewhere(console))
                context = {"notice": "The branch is deleted."}
            elif what == "reset":
                context = {"notice": _reset(console)}
            elif what == "expire":
                context = {"notice": _expire(console)}
            else:
                context = {"notice": _create(console)}
        except Refused as refusal:
            if refusal.status in (403, 404):
                raise
            context, status = {"refusal": refusal, "failed": what}, refusal.status
    return console.render("console/branches.html", _shown(console, context) | context, status)


def path_of(console: Console, *environment_id: str) -> str:
    return "/".join([f"/v1/projects/{console.project['id']}/environments", *environment_id])


def _shown(console: Console, context: dict[str, Any]) -> dict[str, Any]:
    console.project = console.client.call("GET", f"/v1/projects/{console.project['id']}").data
    names = {each["id"]: each["name"] for each in console.project["environments"]}
    found = [
        detail
        | {
            "created_at": timestamp(detail["created_at"]),
            "parent": detail["parent_id"] and names.get(detail["parent_id"], "deleted"),
            "is_branch": detail["name"] not in _FIXED,
        }
        for detail in Environment.objects.live()
        .filter(project_id=console.project["id"])
        .order_by("name", "id")
        .values("id", "name", "status", "status_reason", "parent_id", "created_at")
    ]
    failed = context.get("failed") == "create"
    fields = (
        Field("name", "Name", required=True, placeholder="fix/login"),
        Field("from", "Copy of", "select", choices=[(pk, name) for pk, name in names.items()]),
        Field("data", "Rows", "select", choices=_DATA, help="A copy of many rows continues in the background."),
        Field("expires", "Expires", "select", choices=_EXPIRY),
    )
    form = Form(
        "new",
        fields,
        {"from": console.environment["id"]},
        context.get("refusal") if failed else None,
        console.request.POST if failed else None,
    )
    return {
        "environments": found,
        "form": form,
        "expiry": _EXPIRY,
        "branch_asked": console.request.POST.get("branch", ""),
    }


def _create(console: Console) -> str:
    asked = console.request.POST
    body: dict[str, Any] = {name: asked.get(name, "") for name in ("name", "from", "data")}
    if asked.get("expires"):
        body["expires_at"] = _expiry(asked["expires"])
    made = console.client.call("POST", path_of(console), body).data
    return f"The branch {made['name']} is created."


def _expire(console: Console) -> str:
    asked = console.request.POST
    expires_at = _expiry(asked["expires"]) if asked.get("expires") else None
    console.client.call("PATCH", path_of(console, _branch(console)["id"]), {"expires_at": expires_at})
    return "The branch expires at another time." if expires_at else "The branch does not expire."


def _expiry(days: str) -> str:
    if days not in dict(_EXPIRY):
        raise forms.invalid("expires", "Choose one of the times.")
    return (datetime.now(UTC) + timedelta(days=int(days))).isoformat()


def _reset(console: Console) -> str:
    branch_id = _confirmed(console)
    made = console.client.call(
        "POST", path_of(console, branch_id, "reset"), {"data": console.request.POST.get("data", "")}
    )
    return f"The branch {made.data['name']} is reset."


def _confirmed(console: Console) -> str:
    found = _branch(console)
    if console.may_write and console.request.POST.get("confirm") != found["name"]:
        raise forms.invalid("confirm", "This is not the branch's name.")
    return str(found["id"])


def _branch(console: Console) -> dict[str, Any]:
    branch_id = console.request.POST.get("branch", "")
    found = next((each for each in console.project["environments"] if each["id"] == branch_id), None)
    if found is None:
        raise Refused(404, {"code": "not_found", "message": "The project has no such environment."})
    return dict(found)


def _elsewhere(console: Console) -> str:
    remaining = console.client.call("GET", f"/v1/projects/{console.project['id']}").data["environments"]
    console.environment = next((each for each in remaining if each["name"] == "development"), remaining[0])
    return console.url("branches")
