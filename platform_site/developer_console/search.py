"""Search (Ctrl K): pages, projects, environments, tables, functions, webhooks, users, and ids."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from functions.models import Run
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.frame import SECTIONS, Console, page
from platform_site.developer_console.tables.pages import schema_tables
from platform_site.http.errors import ApiError
from platform_site.identity import ids
from webhooks.models import Delivery

MAX_RESULTS: Final = 30
_SUBPAGES: Final = {
    "user-invitations": "Auth: invitations",
    "sign-up": "Auth: sign-up and redirect URIs",
    "providers": "Auth: providers",
    "audit": "Logs: audit log",
}
_OBJECTS: Final = {
    "usr": ("users", "user"),
    "wh": ("webhooks", "webhook"),
    "idp": ("identity-providers", "provider"),
}
"""Those that an operation of the API reads by the id: its collection, and their page."""


@dataclass(frozen=True, slots=True)
class Found:
    kind: str
    title: str
    url: str


@require_safe
@page("")
def search(console: Console) -> HttpResponse:
    text = console.request.GET.get("q", "").strip()[:200]
    found = [*_by_id(console, text), *_by_name(console, text)] if text else []
    return console.render(
        "console/search.html", {"text": text, "found": found[:MAX_RESULTS], "is_cut": len(found) > MAX_RESULTS}
    )


def _by_name(console: Console, text: str) -> Iterator[Found]:
    wanted = text.casefold()
    for each in _named(console):
        if wanted in each.title.casefold():
            yield each
    for user in _listed(console, "/v1/users", {"search": text, "limit": str(MAX_RESULTS)}):
        title = f"{user['email']} ({user['name']})" if user["name"] else user["email"]
        yield Found("User", title, console.url("user", user["id"]))


def _named(console: Console) -> Iterator[Found]:
    for name, title in (SECTIONS | _SUBPAGES).items():
        yield Found("Page", title, console.url(name))
    with suppress(ApiError):
        for table in schema_tables(console):
            yield Found("Table", table, console.url("table", table))
    for function in _listed(console, "/v1/functions", {"limit": "100"}):
        yield Found("Function", function["name"], console.url("function", function["name"]))
    for webhook in _listed(console, "/v1/webhooks", {}):
        title = f"{webhook['name']}: {webhook['url']}" if webhook["name"] else webhook["url"]
        yield Found("Webhook", title, console.url("webhook", webhook["id"]))
    for environment in console.project["environments"]:
        url = reverse("developer_console:home", args=[console.project["id"], environment["id"]])
        yield Found("Environment", environment["name"], url)
    for project in console.projects:
        yield Found("Project", project["name"], reverse("developer_console:project", args=[project["id"]]))


def _listed(console: Console, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    with suppress(ApiError):
        return console.listed(path, query)
    return []


def _by_id(console: Console, text: str) -> list[Found]:
    prefix = text.partition("_")[0]
    if not (ids.matches(prefix, text) or prefix == "req"):
        return []
    with suppress(ApiError):
        if url := _page_of(console, prefix, text):
            return [Found("Id", text, url)]
    return []


def _page_of(console: Console, prefix: str, object_id: str) -> str | None:
    """Raises ApiError if there is no such object."""
    if prefix in _OBJECTS:
        resource, page_name = _OBJECTS[prefix]
        console.api("GET", path_to(resource, object_id))
        return console.url(page_name, object_id)
    if prefix == "prj":
        console.client.call("GET", f"/v1/projects/{object_id}")
        return reverse("developer_console:project", args=[object_id])
    if prefix == "env" and any(each["id"] == object_id for each in console.project["environments"]):
        return reverse("developer_console:home", args=[console.project["id"], object_id])
    if prefix == "key" and any(each["id"] == object_id for each in _listed(console, "/v1/keys", {"limit": "100"})):
        return f"{console.url('settings')}#keys"
    if prefix == "req" and "logs:read" in console.me["scopes"]:
        return f"{console.url('logs')}?{urlencode({'request_id': object_id})}"
    if prefix == "run" and (run := _in_region(console, "functions:read", Run, "function__name", pk=object_id)):
        return console.url("function-run", run[0], object_id)
    if prefix in ("dlv", "evt"):
        column = "event_id" if prefix == "evt" else "pk"
        if found := _in_region(console, "webhooks:read", Delivery, "webhook_id", "event_id", **{column: object_id}):
            return f"{console.url('deliveries', found[0])}?{urlencode({'event_id': found[1]})}"
    return None


def _in_region(console: Console, scope: str, model: Any, *fields: str, **wanted: str) -> tuple[str, ...] | None:
    if scope not in console.me["scopes"]:
        return None
    ref = console.ref
    found: tuple[str, ...] | None = (
        model.objects.using(ref.cluster)
        .filter(environment_id=ref.environment_id, **wanted)
        .values_list(*fields)
        .first()
    )
    return found
