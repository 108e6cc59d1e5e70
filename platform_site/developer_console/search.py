"""Search (Ctrl K): pages, projects, environments, tables, functions, webhooks, users by email, and ids."""

from collections.abc import Callable, Iterator
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


@dataclass(frozen=True, slots=True)
class Found:
    kind: str
    title: str
    url: str


@require_safe
@page("")
def search(console: Console) -> HttpResponse:
    asked = console.request.GET.get("q", "").strip()[:200]
    found = [*_by_id(console, asked), *_by_name(console, asked)] if asked else []
    return console.render(
        "console/search.html", {"asked": asked, "found": found[:MAX_RESULTS], "is_cut": len(found) > MAX_RESULTS}
    )


def _by_name(console: Console, asked: str) -> Iterator[Found]:
    wanted = asked.casefold()
    for each in _named(console):
        if wanted in each.title.casefold():
            yield each
    if "@" in asked:
        for user in _listed(console, "/v1/users", {"email": asked}):
            yield Found("User", user["email"], console.url("user", user["id"]))


def _named(console: Console) -> Iterator[Found]:
    for name, title in (SECTIONS | _SUBPAGES).items():
        yield Found("Page", title, console.url(name))
    with suppress(ApiError):
        for table in schema_tables(console):
            yield Found("Table", table, console.url("table", table))
    for function in _listed(console, "/v1/functions", {"limit": "100"}):
        yield Found("Function", function["name"], console.url("function", function["name"]))
    for webhook in _listed(console, "/v1/webhooks", {}):
        yield Found("Webhook", webhook["url"], console.url("webhook", webhook["id"]))
    for environment in console.project["environments"]:
        url = reverse("developer_console:home", args=[console.project["id"], environment["id"]])
        yield Found("Environment", environment["name"], url)
    for project in console.projects:
        yield Found("Project", project["name"], reverse("developer_console:project", args=[project["id"]]))


def _listed(console: Console, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    with suppress(ApiError):
        return console.listed(path, query)
    return []


def _by_id(console: Console, asked: str) -> list[Found]:
    prefix = asked.partition("_")[0]
    look_up = _OF_IDS.get(prefix)
    if look_up is None or not (ids.matches(prefix, asked) or prefix == "req"):
        return []
    try:
        url = look_up(console, asked)
    except ApiError:
        return []
    return [Found("Id", asked, url)] if url else []


def _project(console: Console, asked: str) -> str:
    console.client.call("GET", f"/v1/projects/{asked}")
    return reverse("developer_console:project", args=[asked])


def _environment(console: Console, asked: str) -> str | None:
    known = any(each["id"] == asked for each in console.project["environments"])
    return reverse("developer_console:home", args=[console.project["id"], asked]) if known else None


def _page_of(resource: str, page_name: str) -> Callable[[Console, str], str]:
    def look_up(console: Console, asked: str) -> str:
        console.api("GET", path_to(resource, asked))
        return console.url(page_name, asked)

    return look_up


def _key(console: Console, asked: str) -> str | None:
    known = any(each["id"] == asked for each in _listed(console, "/v1/keys", {"limit": "100"}))
    return f"{console.url('settings')}#keys" if known else None


def _request(console: Console, asked: str) -> str | None:
    if "logs:read" not in console.me["scopes"]:
        return None
    return f"{console.url('logs')}?{urlencode({'request_id': asked})}"


def _run(console: Console, asked: str) -> str | None:
    found = _in_region(console, "functions:read", Run, "function__name", pk=asked)
    return console.url("function-run", found[0], asked) if found else None


def _delivery(console: Console, asked: str) -> str | None:
    column = "event_id" if asked.startswith("evt_") else "pk"
    found = _in_region(console, "webhooks:read", Delivery, "webhook_id", "event_id", **{column: asked})
    return f"{console.url('deliveries', found[0])}?{urlencode({'event_id': found[1]})}" if found else None


def _in_region(console: Console, scope: str, model: Any, *fields: str, **wanted: str) -> tuple[str, ...] | None:
    ref = console.ref if scope in console.me["scopes"] else None
    if ref is None:
        return None
    found: tuple[str, ...] | None = (
        model.objects.using(ref.cluster)
        .filter(environment_id=ref.environment_id, **wanted)
        .values_list(*fields)
        .first()
    )
    return found


_OF_IDS: Final[dict[str, Callable[[Console, str], str | None]]] = {
    "prj": _project,
    "env": _environment,
    "usr": _page_of("users", "user"),
    "wh": _page_of("webhooks", "webhook"),
    "idp": _page_of("identity-providers", "provider"),
    "key": _key,
    "req": _request,
    "run": _run,
    "dlv": _delivery,
    "evt": _delivery,
}
