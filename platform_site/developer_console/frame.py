"""What every page of the console has: account, project, environment, sidebar, errors."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.middleware.gzip import GZipMiddleware
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from platform_site.developer_console import session
from platform_site.developer_console.api_calls import Answer, ApiClient, Refused
from platform_site.developer_console.staff import grants as staff
from platform_site.http.requests import current_request_id
from platform_site.identity import ids

_GZIP: Final = GZipMiddleware(lambda request: HttpResponse())
"""For pages alone: random padding and a different CSRF token per page prevent BREACH."""
WRITERS: Final = frozenset({"owner", "developer"})


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    title: str

    @property
    def url_name(self) -> str:
        return f"developer_console:{self.name}"


SECTIONS: Final = (
    Section("home", "Home"),
    Section("tables", "Tables"),
    Section("schema", "Schema"),
    Section("auth", "Auth"),
    Section("functions", "Functions"),
    Section("webhooks", "Webhooks"),
    Section("logs", "Logs"),
    Section("branches", "Branches"),
    Section("settings", "Settings"),
)


@dataclass
class Console:
    request: HttpRequest
    client: ApiClient
    section: str
    project: Mapping[str, Any]
    environment: Mapping[str, Any]
    me: Mapping[str, Any]

    def api(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Call an API operation about this environment. Raises Refused. Options: ApiClient.call."""
        return self.client.call(method, path, body, environment=self.environment["id"], **options)

    def render(self, template: str, context: Mapping[str, Any], status: int = 200) -> HttpResponse:
        return render(self.request, template, {"console": self, "sections": SECTIONS, **context}, status=status)

    def url(self, name: str, *arguments: str) -> str:
        return reverse(f"developer_console:{name}", args=[self.project["id"], self.environment["id"], *arguments])

    @cached_property
    def projects(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.call("GET", "/v1/projects", query={"limit": "100"}).data["data"]
        return found

    @property
    def may_write(self) -> bool:
        return self.me["role"] in WRITERS and self.project["suspended_at"] is None

    @property
    def is_owner(self) -> bool:
        return bool(self.me["role"] == "owner")


Page = Callable[..., HttpResponse]


def signed_in_page(view: Callable[..., HttpResponse]) -> Page:
    """A page for signed-in accounts: `view(request, client, …)`. Uncaught API errors become pages."""

    @never_cache
    @csrf_protect
    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        signed_in = session.read(request)
        if signed_in is None:
            return _to_sign_in(request, ended=session.COOKIE in request.COOKIES)
        try:
            response = view(request, ApiClient(request, signed_in), *args, **kwargs)
        except Refused as refusal:
            return _refused(request, refusal)
        session.keep_alive(response, signed_in)
        is_html = not response.streaming and response.headers.get("Content-Type", "").startswith("text/html")
        if is_html:
            _GZIP.process_response(request, response)
        return response

    return wrapped


def page(section: str) -> Callable[[Callable[..., HttpResponse]], Page]:
    """A page of a section: `view(console, …)`, at a path with project and environment."""

    def decorate(view: Callable[..., HttpResponse]) -> Page:
        @signed_in_page
        @wraps(view)
        def wrapped(
            request: HttpRequest, client: ApiClient, project_id: str, environment_id: str, **kwargs: Any
        ) -> HttpResponse:
            try:
                console = _open(request, client, section, project_id, environment_id)
            except Refused as refusal:
                if refusal.status != 404 or staff.may_ask(client.signed_in) is None:
                    raise
                return go_to(
                    request, f"{reverse('developer_console:staff')}?{urlencode({'environment': environment_id})}"
                )
            try:
                return view(console, **kwargs)
            except Refused as refusal:
                if refusal.status != 403:
                    raise
                return console.render("console/not_allowed.html", {"refusal": refusal}, 403)

        return wrapped

    return decorate


def _open(request: HttpRequest, client: ApiClient, section: str, project_id: str, environment_id: str) -> Console:
    try:
        project = client.call("GET", f"/v1/projects/{project_id}").data
    except Refused as refusal:
        client.staff_grant = staff.grant_for(client.signed_in, environment_id) if refusal.status == 404 else None
        if client.staff_grant is None:
            raise
        project = client.call("GET", f"/v1/projects/{project_id}").data
    environment = next((each for each in project["environments"] if each["id"] == environment_id), None)
    if environment is None:
        raise Refused(404, {"code": "not_found", "message": "The project has no such environment."})
    me = client.call("GET", "/v1/auth/me", environment=environment_id).data
    return Console(request, client, section, project, environment, me)


def _to_sign_in(request: HttpRequest, *, ended: bool) -> HttpResponse:
    is_by_htmx = _is_by_htmx(request)
    here = request.htmx.current_url_abs_path if is_by_htmx else request.get_full_path()  # type: ignore[attr-defined]
    parameters = {"ended": "1"} if ended else {}
    if here and (is_by_htmx or request.method == "GET"):
        parameters["next"] = here
    return go_to(request, f"{reverse('developer_console:sign-in')}?{urlencode(parameters)}")


def _is_by_htmx(request: HttpRequest) -> bool:
    return bool(request.htmx)  # type: ignore[attr-defined]  # django-htmx's


def go_to(request: HttpRequest, url: str) -> HttpResponse:
    """Redirect the browser, also for htmx."""
    return HttpResponse(headers={"HX-Redirect": url}) if _is_by_htmx(request) else redirect(url)


def _refused(request: HttpRequest, refusal: Refused) -> HttpResponse:
    if refusal.status == 401:
        response = _to_sign_in(request, ended=True)
        session.end(response)
        return response
    if _is_by_htmx(request) and (refusal.status == 429 or refusal.status >= 500):
        # The page stays with what was typed. Its script says so where the request was made.
        text = f"{refusal.message} What you typed is still here. Try again later."
        shown = json.dumps({"console:refused": text})  # ASCII, as headers are
        return HttpResponse(status=refusal.status, headers={"HX-Reswap": "none", "HX-Trigger": shown})
    return render(
        request, "console/refused.html", {"refusal": refusal, "request_id": current_request_id()}, status=refusal.status
    )


@signed_in_page
def start(request: HttpRequest, client: ApiClient) -> HttpResponse:
    """`/console/`: the newest project, or the form to create one."""
    context: dict[str, Any] = {}
    status = 200
    if request.method == "POST":
        try:
            body = {"name": request.POST.get("name", ""), "region": request.POST.get("region", "")}
            made = client.call("POST", "/v1/projects", body).data
            return redirect(_home_of(client, made))
        except Refused as refusal:
            context, status = {"refusal": refusal, "asked": request.POST}, refusal.status
    elif "new" not in request.GET:
        newest = client.call("GET", "/v1/projects", query={"limit": "1"}).data["data"]
        if newest:
            return redirect(_home_of(client, client.call("GET", f"/v1/projects/{newest[0]['id']}").data))
    return render(request, "console/new_project.html", context, status=status)


@signed_in_page
def open_project(request: HttpRequest, client: ApiClient, project_id: str) -> HttpResponse:
    """`/console/{project_id}`: one of its environments."""
    if not ids.matches("prj", project_id):
        raise Refused(404, {"code": "not_found", "message": "There is no such project."})
    return redirect(_home_of(client, client.call("GET", f"/v1/projects/{project_id}").data))


def _home_of(client: ApiClient, project: Mapping[str, Any]) -> str:
    """The first environment with a schema, development first; else development."""
    try:
        environments = client.call("GET", f"/v1/projects/{project['id']}/environments").data["data"]
    except Refused:  # the region is unavailable
        environments = project["environments"]
    chosen = min(environments, key=lambda each: (not each.get("schema_version"), each["name"] != "development"))
    return reverse("developer_console:home", args=[project["id"], chosen["id"]])
