"""The environments of a project: listed, branched, reset, merged, deleted."""

from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console.forms import Field, expiry_of, form_of, invalid
from platform_site.developer_console.frame import Console, environment_of, go_to, page
from platform_site.http.fields import timestamp
from projects.models import Environment

_DATA: Final = (("none", "No rows"), ("full", "All rows"))
_EXPIRY: Final = (("", "Never"), ("1", "In 1 day"), ("7", "In 7 days"), ("30", "In 30 days"), ("90", "In 90 days"))
_FIXED: Final = ("development", "production")


def _create(console: Console) -> dict[str, Any]:
    submitted = console.request.POST
    body: dict[str, Any] = {name: submitted.get(name, "") for name in ("name", "from", "data")}
    if submitted.get("expires"):
        body["expires_at"] = expiry_of(submitted["expires"], _EXPIRY)
    made = console.client.call("POST", console.project_path("environments"), body)
    return {"notice": f"The branch {made['name']} is created."}


def _expire(console: Console) -> dict[str, Any]:
    submitted = console.request.POST
    expires_at = expiry_of(submitted["expires"], _EXPIRY) if submitted.get("expires") else None
    path = console.project_path("environments", _branch(console)["id"])
    console.client.call("PATCH", path, {"expires_at": expires_at})
    return {"notice": "The expiry is changed." if expires_at else "The branch does not expire."}


def _reset(console: Console) -> dict[str, Any]:
    path = console.project_path("environments", _confirmed(console), "reset")
    made = console.client.call("POST", path, {"data": console.request.POST.get("data", "")})
    return {"notice": f"The branch {made['name']} is reset."}


def _delete(console: Console) -> dict[str, Any] | HttpResponse:
    branch_id = _confirmed(console)
    console.client.call("DELETE", console.project_path("environments", branch_id))
    if branch_id != console.environment["id"]:
        return {"notice": "The branch is deleted."}
    console.project = console.client.call("GET", console.project_path())
    remaining = console.project["environments"]
    console.environment = next((each for each in remaining if each["name"] == "development"), remaining[0])
    return go_to(console.request, console.url("branches"))


def _confirmed(console: Console) -> str:
    found = _branch(console)
    if console.may_write and console.request.POST.get("confirm") != found["name"]:
        raise invalid("confirm", "This is not the branch's name.")
    return str(found["id"])


def _branch(console: Console) -> Mapping[str, Any]:
    return environment_of(console.project, console.request.POST.get("branch", ""))


@page("branches", {"create": _create, "expire": _expire, "reset": _reset, "delete": _delete})
def branches(console: Console) -> HttpResponse:
    console.project = console.client.call("GET", console.project_path())
    names = {each["id"]: each["name"] for each in console.project["environments"]}
    listed = list(
        Environment.objects.live()
        .filter(project_id=console.project["id"])
        .order_by("name", "id")
        .values("id", "name", "status", "status_reason", "parent_id", "created_at", "expires_at")
    )
    found = [
        detail
        | {
            "created_at": timestamp(detail["created_at"]),
            "expires_at": detail["expires_at"] and timestamp(detail["expires_at"]),
            "parent": detail["parent_id"] and names.get(detail["parent_id"], "deleted"),
            "is_branch": detail["name"] not in _FIXED,
            "branches": [each["name"] for each in listed if each["parent_id"] == detail["id"]],
            "refused": console.refused_action if console.request.POST.get("branch") == detail["id"] else "",
        }
        for detail in listed
    ]
    fields = (
        Field("name", "Name", required=True, placeholder="fix/login"),
        Field("from", "Copy of", "select", choices=list(names.items())),
        Field("data", "Rows", "select", choices=_DATA, help="A copy of many rows continues in the background."),
        Field("expires", "Expires", "select", choices=_EXPIRY),
    )
    context = {
        "environments": found,
        "form": form_of(console, "create", fields, {"from": console.environment["id"]}),
        "expiry": _EXPIRY,
    }
    return console.render("console/branches.html", context)
