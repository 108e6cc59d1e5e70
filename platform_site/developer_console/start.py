"""The pages without a project: `/console/`, the form of a new project, and the way to a project's environment."""

from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import ApiClient
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import signed_in_page
from platform_site.http.errors import ApiError, NotFound
from platform_site.identity import ids
from projects.api.serializers import NAME_LENGTH

_NEW: Final = (
    Field("name", "Name", required=True, max_length=NAME_LENGTH),
    Field(
        "region",
        "Region",
        "select",
        choices=(
            ("us-east-1", "US East"),
            ("eu-west-1", "Europe West"),
            ("ap-southeast-1", "Asia Pacific Southeast"),
        ),
    ),
)


@signed_in_page
def start(request: HttpRequest, client: ApiClient) -> HttpResponse:
    """The newest project, or the form to create one."""
    form, status = Form("new", _NEW), 200
    newest = client.call("GET", "/v1/projects", query={"limit": "1"})["data"]
    if request.method == "POST":
        try:
            return redirect(_home_of(client, client.call("POST", "/v1/projects", forms.read(_NEW, request.POST))))
        except ApiError as refusal:
            form, status = Form("new", _NEW, {}, refusal, request.POST), refusal.status
    elif newest and "new" not in request.GET:
        return redirect(_home_of(client, client.call("GET", f"/v1/projects/{newest[0]['id']}")))
    return render(request, "console/new_project.html", {"form": form, "has_projects": bool(newest)}, status=status)


@signed_in_page
def open_project(request: HttpRequest, client: ApiClient, project_id: str) -> HttpResponse:
    if not ids.matches("prj", project_id):
        raise NotFound("There is no such project.")
    return redirect(_home_of(client, client.call("GET", f"/v1/projects/{project_id}")))


def _home_of(client: ApiClient, project: Mapping[str, Any]) -> str:
    """The first environment with a schema, development first; else development."""
    try:
        environments = client.call("GET", f"/v1/projects/{project['id']}/environments")["data"]
    except ApiError:  # the region is unavailable
        environments = project["environments"]
    chosen = min(environments, key=lambda each: (not each.get("schema_version"), each["name"] != "development"))
    return reverse("developer_console:home", args=[project["id"], chosen["id"]])
