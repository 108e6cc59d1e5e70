"""What every page of the console has: account, project, environment, sidebar, errors."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.middleware.gzip import GZipMiddleware
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from platform_site.concurrency import server_hints
from platform_site.developer_console import session
from platform_site.developer_console.api_calls import ApiClient, path_to
from platform_site.developer_console.staff import grants as staff
from platform_site.http.errors import ApiError, Forbidden, InvalidRequest, NotFound, ProjectSuspended, ValidationFailed
from platform_site.http.requests import current_request_id
from platform_site.identity.callers import EnvironmentRef
from projects import staff_access
from projects.directory.environments import environment_ref
from projects.models import Member
from rows.rules.principal import Principal

_GZIP: Final = GZipMiddleware(lambda request: HttpResponse())
"""For HTML pages only: random padding and a new CSRF token per page prevent BREACH."""

SECTIONS: Final = {
    "home": "Home",
    "tables": "Tables",
    "schema": "Schema",
    "auth": "Auth",
    "functions": "Functions",
    "webhooks": "Webhooks",
    "logs": "Logs",
    "branches": "Branches",
    "settings": "Settings",
}
Action = Callable[..., dict[str, Any] | HttpResponse]
"""Called with the page's arguments. Returns more context of the template, or a response instead of the page."""


@dataclass
class Console:
    request: HttpRequest
    client: ApiClient
    section: str
    project: Mapping[str, Any]
    environment: Mapping[str, Any]
    me: Mapping[str, Any]
    refusal: ApiError | None = None
    """Shown by the page."""
    refused_action: str = ""
    next_cursor: str | None = None
    done: dict[str, Any] = field(default_factory=dict)
    """Context of the template from a form's action."""

    def api(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """Call an API operation about this environment. Raises ApiError. Options: those of `ApiClient.respond`."""
        return self.client.call(method, path, body, environment=self.environment["id"], **options)

    def respond(self, method: str, path: str, body: bytes, **options: Any) -> HttpResponse:
        return self.client.respond(method, path, body, environment=self.environment["id"], **options)

    def listed(self, path: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        return list(self.api("GET", path, query=query)["data"])

    def page_of(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of a list, by the cursor in the URL. `console/pages.html` has the links to others."""
        cursor = self.request.GET.get("cursor")
        found = self.api("GET", path, query={**query, "cursor": cursor} if cursor else query)
        self.next_cursor = found.get("next_cursor")
        return found

    def filtered_page(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """As `page_of`; empty if a filter is refused, which the page shows."""
        try:
            return self.page_of(path, query)
        except (InvalidRequest, ValidationFailed) as refusal:
            self.refusal = refusal
            return {"data": []}

    def filters(self, *names: str) -> dict[str, str]:
        """The parameters of the URL with these names that are not empty."""
        given = self.request.GET
        return {name: text for name in names if (text := given.get(name, "").strip())}

    def submit(self, actions: Mapping[str, Action], arguments: Mapping[str, Any]) -> HttpResponse | None:
        """Run the action that the form names. The page shows why one was refused."""
        action = self.request.POST.get("action", "")
        try:
            if action not in actions:
                raise InvalidRequest("The page has no such form.")
            done = actions[action](self, **arguments)
        except ApiError as refusal:
            self.refusal, self.refused_action = refusal, action if action in actions else ""
            return None
        if isinstance(done, HttpResponse):
            return done
        self.done = done
        return None

    def render(self, template: str, context: Mapping[str, Any], status: int | None = None) -> HttpResponse:
        shown = {
            "console": self,
            "sections": SECTIONS,
            "refusal": self.refusal,
            "refused_action": self.refused_action,
            "next_cursor": self.next_cursor,
        }
        if status is None:
            status = 200 if self.refusal is None else self.refusal.status
        return render(self.request, template, {**shown, **context, **self.done}, status=status)

    def url(self, name: str, *arguments: str) -> str:
        return reverse(f"developer_console:{name}", args=[self.project["id"], self.environment["id"], *arguments])

    def project_path(self, *segments: str) -> str:
        """The path of an API operation about the project."""
        return path_to("projects", self.project["id"], *segments)

    def tabs(self, titles: Mapping[str, str], *arguments: str) -> list[tuple[str, str]]:
        return [(self.url(name, *arguments), title) for name, title in titles.items()]

    def emails_of(self, user_ids: Iterable[str | None]) -> dict[str, str]:
        """Of members of the project; not for staff, whom the API refuses the list of members."""
        if self.client.staff_grant is not None:
            return {}
        found = Member.objects.filter(project_id=self.project["id"], user_id__in=set(user_ids) - {None})
        return dict(found.values_list("user_id", "user__email"))

    @property
    def environments(self) -> list[tuple[Mapping[str, Any], str]]:
        """With the URL of this page in each, or of its section if the page is about one thing of this environment."""
        match = self.request.resolver_match
        arguments = {} if match is None else match.kwargs.copy()
        for of_every_page in ("project_id", "environment_id"):
            arguments.pop(of_every_page, None)
        page_name = match.url_name if match and not arguments else self.section
        query = f"?{urlencode({'table': arguments['table']})}" if "table" in arguments else ""
        return [
            (each, reverse(f"developer_console:{page_name or 'home'}", args=[self.project["id"], each["id"]]) + query)
            for each in self.project["environments"]
        ]

    @cached_property
    def projects(self) -> list[dict[str, Any]]:
        return self.listed("/v1/projects", {"limit": "100"})

    @cached_property
    def ref(self) -> EnvironmentRef:
        """Raises NotFound if the environment was deleted, or its reset began, after the page was opened."""
        found = environment_ref(self.environment["id"])
        if found is None:
            raise NotFound("The environment cannot be reached.")
        return found

    @property
    def has_writing_role(self) -> bool:
        return self.me["role"] in ("owner", "developer")

    @property
    def may_write(self) -> bool:
        return self.has_writing_role and self.project["suspended_at"] is None

    @property
    def principal(self) -> Principal:
        """The member, for the rules of tables."""
        return Principal("account", reads_only=not self.has_writing_role)

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
            server_hints.enter_share(request, signed_in.user_id)
            response = view(request, ApiClient(request, signed_in), *args, **kwargs)
        except ApiError as refusal:
            return _refused(request, refusal)
        session.keep_alive(response, signed_in)
        is_html = not response.streaming and response.headers.get("Content-Type", "").startswith("text/html")
        if is_html:
            _GZIP.process_response(request, response)
        return response

    return wrapped


def page(section: str, actions: Mapping[str, Action] | None = None) -> Callable[[Callable[..., HttpResponse]], Page]:
    """A page of a section: `view(console, …)`, at a path with project and environment. Its forms run `actions` before
    it is shown (`Console.submit`)."""

    def decorate(view: Callable[..., HttpResponse]) -> Page:
        @signed_in_page
        @wraps(view)
        def wrapped(
            request: HttpRequest, client: ApiClient, project_id: str, environment_id: str, **kwargs: Any
        ) -> HttpResponse:
            try:
                console = _open(request, client, section, project_id, environment_id)
            except NotFound:
                if staff.may_ask(client.signed_in) is None:
                    raise
                return go_to(
                    request, f"{reverse('developer_console:staff')}?{urlencode({'environment': environment_id})}"
                )
            try:
                response = None
                if actions is not None and request.method == "POST":
                    response = console.submit(actions, kwargs)
                return response or view(console, **kwargs)
            except (Forbidden, NotFound, ProjectSuspended, ValidationFailed) as refusal:
                return console.render("console/not_shown.html", {"refusal": refusal}, refusal.status)

        return wrapped

    return decorate


def operation(
    method: str, path: str, notice: str = "", body: Mapping[str, Any] | None = None, *, next_page: str = ""
) -> Action:
    """An action by one call of the API. Then `next_page` is opened, or this page shows the notice. `:name` in path and
    body is an argument of the page, or a field of the form."""

    def action(console: Console, **arguments: str) -> dict[str, Any] | HttpResponse:
        given = {**console.request.POST.dict(), "project": console.project["id"], **arguments}

        def filled(each: Any) -> Any:
            return given.get(each[1:], "") if isinstance(each, str) and each.startswith(":") else each

        sent = None if body is None else {name: filled(value) for name, value in body.items()}
        console.api(method, path_to(*map(filled, path.split("/"))), sent)
        return go_to(console.request, console.url(next_page)) if next_page else {"notice": notice}

    return action


def environment_of(project: Mapping[str, Any], environment_id: str) -> Mapping[str, Any]:
    for each in project["environments"]:
        if each["id"] == environment_id:
            return dict(each)
    raise NotFound("The project has no such environment.")


def _open(request: HttpRequest, client: ApiClient, section: str, project_id: str, environment_id: str) -> Console:
    try:
        project = client.call("GET", f"/v1/projects/{project_id}")
    except NotFound:
        if staff.may_ask(client.signed_in) is not None:
            client.staff_grant = staff_access.active_for(client.signed_in.user_id, environment_id)
        if client.staff_grant is None:
            raise
        project = client.call("GET", f"/v1/projects/{project_id}")
    environment = environment_of(project, environment_id)
    me = client.call("GET", "/v1/auth/me", environment=environment_id)
    return Console(request, client, section, project, environment, me)


def _to_sign_in(request: HttpRequest, *, ended: bool) -> HttpResponse:
    is_by_htmx = _is_by_htmx(request)
    here = request.htmx.current_url_abs_path if is_by_htmx else request.get_full_path()  # type: ignore[attr-defined]
    parameters = {"ended": "1"} if ended else {}
    if here and (is_by_htmx or request.method == "GET"):
        parameters["next"] = here
    url = f"{reverse('developer_console:sign-in')}?{urlencode(parameters)}"
    if is_by_htmx and request.method == "POST":
        return _on_the_same_page("console:ended", url, 401)
    return go_to(request, url)


def _is_by_htmx(request: HttpRequest) -> bool:
    return bool(request.htmx)  # type: ignore[attr-defined]  # django-htmx's


def go_to(request: HttpRequest, url: str) -> HttpResponse:
    """Redirect the browser, also for htmx."""
    return HttpResponse(headers={"HX-Redirect": url}) if _is_by_htmx(request) else redirect(url)


def _on_the_same_page(event: str, text: str, status: int) -> HttpResponse:
    """The page keeps the typed values, and its script shows the error at the form."""
    shown = json.dumps({event: text})  # ASCII, as headers are
    return HttpResponse(status=status, headers={"HX-Reswap": "none", "HX-Trigger": shown})


def _refused(request: HttpRequest, refusal: ApiError) -> HttpResponse:
    if refusal.status == 401:
        response = _to_sign_in(request, ended=True)
        session.end(response)
        return response
    if _is_by_htmx(request) and (refusal.status == 429 or refusal.status >= 500):
        text = f"{refusal.text} What you typed is still here. Try again later."
        return _on_the_same_page("console:refused", text, refusal.status)
    context = {
        "refusal": refusal,
        "request_id": current_request_id(),
        "retry_after": refusal.headers.get("Retry-After"),
    }
    return render(request, "console/refused.html", context, status=refusal.status)
