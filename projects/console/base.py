"""Base classes of the console's pages for regional data: choosing the environment, and finding an object by its id.

Django's own lists use one database, so they do not fit. A `RegionAdmin` chooses the environment first and queries its
cluster. Its pages are keyset lists and detail pages with buttons that call the services of the API. Destructive buttons
ask for confirmation. Viewing a tenant's own data is recorded in the audit log. Used by `admin.py` of `webhooks`
and `functions`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.db.models import Model, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from accounts import audit
from accounts.console.base import ReadOnlyAdmin, refuse_nul, staff, url_of
from platform_site.http import pagination
from platform_site.http.errors import ApiError, ValidationFailed
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates
from projects.directory.environments import place_of
from projects.models import Environment, Project

Thing = TypeVar("Thing", bound=Model)

PAGE: Final = 50
CHOICES: Final = 20
"""Environments that are offered to choose from; more are found by their id or their project's name."""
RECENT: Final = 5
_RECENT_KEY: Final = "recent_environments"

TABS: Final = (
    ("Webhooks", "webhooks.Webhook"),
    ("Deliveries", "webhooks.Delivery"),
    ("Functions", "functions.Function"),
    ("Runs", "functions.Run"),
)
"""The regional pages of an environment."""


@dataclass(frozen=True, slots=True)
class AdminAction:
    """One button. `question` is asked before it acts; with `typed` the answer is the thing's name, typed in full."""

    label: str
    question: str = ""
    danger: bool = False
    typed: bool = False
    has_form: bool = False
    """It needs more than a click: the page has a form of its own for it."""


class RegionUnavailable(Exception):
    """A region's database did not answer, so that what was looked for may be there."""

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = list(regions)
        super().__init__(", ".join(regions))


class RegionAdmin(ReadOnlyAdmin):
    """The pages of one regional model. A subclass defines their content.

    `list_context` and `thing_context` give the pages, `verbs_of` the buttons of an object, `act` what they do (a
    response, or the message that is shown afterwards).
    """

    list_template: ClassVar[str]
    thing_template: ClassVar[str]
    title: ClassVar[str]
    many: ClassVar[str | None] = None
    """What several of them are called, where the title says it otherwise."""
    id_prefix: ClassVar[str | None] = None
    shows_tenants_data: ClassVar[str | None] = None
    """The audit action of viewing a detail page, such as `run.viewed`."""

    def list_context(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        raise NotImplementedError

    def thing_context(self, request: HttpRequest, place: EnvironmentRef, thing: Any) -> dict[str, Any]:
        raise NotImplementedError

    def verbs_of(self, thing: Any) -> Mapping[str, AdminAction]:
        return {}

    def act(self, request: HttpRequest, place: EnvironmentRef, thing: Any, verb: str) -> "HttpResponse | str":
        raise NotImplementedError

    def is_there(self, thing: Any) -> bool:
        """False for what is marked as deleted."""
        return True

    def name_of(self, thing: Any) -> str:
        """The name that is shown in titles and typed to confirm."""
        return str(thing)

    # ── The list ────────────────────────────────────────────────────────────────────────────────────────────────────

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The page of `?environment=`; without it the way to one. `?q=` with an id leads to the thing itself."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        refuse_nul(request)
        sought = request.GET.get("q", "").strip()
        if self.id_prefix and ids.matches(self.id_prefix, sought):
            return HttpResponseRedirect(url_of(f"{self.opts.app_label}_{self.opts.model_name}", sought))
        environment_id = request.GET.get("environment", "").strip()
        if not environment_id:
            return self._choose(request, sought)
        place = place_of(environment_id)
        if place is None:
            raise Http404("There is no such environment, or it cannot be reached.")
        _remember(request, place)
        return self.shown(request, place, self.list_template, lambda: self.list_response(request, place))

    def list_response(self, request: HttpRequest, place: EnvironmentRef) -> "HttpResponse | dict[str, Any]":
        """A response of its own, or what the list's template is rendered with."""
        return self.list_context(request, place)

    def shown(
        self,
        request: HttpRequest,
        place: EnvironmentRef,
        template: str,
        make: "Callable[[], HttpResponse | dict[str, Any]]",
        title: str | None = None,
    ) -> HttpResponse:
        """The page with the content of `make`; if the region is unavailable or too slow, the page says so."""
        context, status = self.frame(request, place, title or self.title), 200
        try:
            made = make()
            if isinstance(made, HttpResponse):
                return made
            context |= made
        except Error as error:
            context["problems"], status = [_explained(error)], 503
            context["is_broken"] = True
        return TemplateResponse(request, template, context, status=status)

    def frame(self, request: HttpRequest, place: EnvironmentRef | None, title: str) -> dict[str, Any]:
        """What each page has: the console's own context, the environment, and the ways to its other pages."""
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": title,
            "content_title": title,
            "place": place,
            "list_address": self.list_address(),
            "may_operate": self.has_operate_permission(request),
            "is_fullwidth": "1",
        }
        if place is not None:
            named = Project.objects.filter(pk=place.project_id).values_list("name", flat=True)
            context["project_name"] = named.first()
            context["console_address"] = console_url(place.project_id, place.environment_id)
            context["tabs"] = [
                {
                    "title": tab,
                    "href": list_url(model, environment=place.environment_id),
                    "is_here": model == self.opts.label,
                }
                for tab, model in TABS
            ]
        return context

    def list_address(self, **query: str) -> str:
        return list_url(self.opts.label, **query)

    def _choose(self, request: HttpRequest, sought: str) -> HttpResponse:
        known = Environment.objects.reachable().select_related("project")
        if sought:
            known = known.filter(Q(pk=sought) | Q(project_id=sought) | Q(project__name__icontains=sought))
        recent_ids = [] if sought else list(request.session.get(_RECENT_KEY, []))
        recent = {each.pk: each for each in known.filter(pk__in=recent_ids)}
        context = self.frame(request, None, self.title) | {
            "q": sought,
            "recent": [recent[pk] for pk in recent_ids if pk in recent],
            "environments": known.order_by("-created_at", "-pk")[:CHOICES],
            "many": self.many or self.title,
            "id_prefix": self.id_prefix,
        }
        return TemplateResponse(request, "admin/region/choose.html", context)

    # ── One thing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one thing, whichever region it is in; a POST names the button that was pressed."""
        if object_id is None or not self.has_view_permission(request):
            raise PermissionDenied
        refuse_nul(request)
        try:
            thing = found_anywhere(self.model, unquote(object_id), self.id_prefix)
        except RegionUnavailable as error:
            return self.away(request, error)
        place = None if thing is None or not self.is_there(thing) else place_of(thing.environment_id)
        if thing is None or place is None:
            raise Http404("There is no such thing, or its environment is gone.")
        if request.method == "POST":
            return self._pressed(request, place, thing)
        _remember(request, place)

        def make() -> dict[str, Any]:
            made = self.thing_context(request, place, thing) | {
                "thing": thing,
                "verbs": self.verbs_of(thing) if self.has_operate_permission(request) else {},
            }
            if self.shows_tenants_data:
                self.leave_trail(request, place, self.shows_tenants_data, thing.pk)
            return made

        return self.shown(request, place, self.thing_template, make, f"{self.title}: {self.name_of(thing)}")

    def away(self, request: HttpRequest, error: RegionUnavailable) -> HttpResponse:
        """The page for a search by id while a region is unavailable that may have the object."""
        context = self.frame(request, None, self.title)
        context["problems"] = [
            f"Not found in the available regions; unavailable: {', '.join(error.regions)}. Try again later."
        ]
        return TemplateResponse(request, "admin/region/base.html", context, status=503)

    def _pressed(self, request: HttpRequest, place: EnvironmentRef, thing: Any) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        name = request.POST.get("verb", "")
        verb = self.verbs_of(thing).get(name)
        if verb is None:  # pressed on an old page: by now there is nothing to do, or something else
            self.message_user(request, "This is no longer possible. The current state is below.", messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        if verb.question and not is_confirmed(request, verb, self.name_of(thing)):
            return self.confirm(request, place, thing, name, verb)
        try:
            done = self.act(request, place, thing, name)
        except ApiError as error:
            self.message_user(request, error.text, messages.ERROR)
        except Error as error:
            self.message_user(request, _explained(error), messages.ERROR)
        else:
            if isinstance(done, HttpResponse):
                return done
            self.message_user(request, done, messages.SUCCESS)
        return HttpResponseRedirect(request.get_full_path())

    def confirm(
        self, request: HttpRequest, place: EnvironmentRef, thing: Any, name: str, verb: AdminAction
    ) -> HttpResponse:
        """The page that asks once more; what was posted is posted again with the answer."""
        is_again = "confirmed" in request.POST
        context = self.frame(request, place, f"{verb.label}?") | {
            "name": self.name_of(thing),
            "verb": verb,
            "verb_name": name,
            "back": request.get_full_path(),
            "kept": [
                (key, value)
                for key, value in request.POST.items()
                if key not in ("verb", "confirmed", "typed", "csrfmiddlewaretoken")
            ],
            "problems": [f"That is not “{self.name_of(thing)}”. Nothing was changed."] if is_again else [],
        }
        return TemplateResponse(request, "admin/region/confirm.html", context)

    def leave_trail(
        self, request: HttpRequest, place: EnvironmentRef, action: str, target_id: str, **detail: Any
    ) -> None:
        """Record in the audit log that staff viewed a tenant's data: actor, time and target, without content."""
        audit.record(
            action,
            actor=staff(request),
            target_id=target_id,
            project_id=place.project_id,
            environment_id=place.environment_id,
            **detail,
        )


def is_confirmed(request: HttpRequest, verb: AdminAction, name: str) -> bool:
    return "confirmed" in request.POST and (not verb.typed or request.POST.get("typed", "").strip() == name)


def list_url(model: str, **query: str) -> str:
    """The list of a model such as `webhooks.Webhook`, filtered."""
    path = reverse(f"admin:{model.lower().replace('.', '_')}_changelist")
    return f"{path}?{urlencode(query)}" if query else path


def console_url(project_id: str, environment_id: str, page: str = "home", *arguments: str) -> str:
    """A page of `/console` about an environment. Staff are asked for a grant there (`projects.staff_access`)."""
    return reverse(f"developer_console:{page}", args=[project_id, environment_id, *arguments])


def found_anywhere(model: type[Thing], pk: str, prefix: str | None, *, field: str = "pk") -> Thing | None:
    """The thing of that id in whichever region it is: a look-up by a unique `field` in each, until it is found.

    Raises RegionAwayError where it was not found and a region did not answer.
    """
    if prefix is not None and not ids.matches(prefix, pk):
        return None
    away = []
    for cluster in settings.REGION_DATABASES:
        try:
            found = model._default_manager.using(cluster).filter(**{field: pk}).first()
        except Error:
            away.append(cluster)
            continue
        if found is not None:
            return found
    if away:
        raise RegionUnavailable(away)
    return None


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a list. `next_query` is the query string of the next page, None on the last."""

    items: list[Any]
    next_query: str | None
    is_first: bool
    problem: str | None = None


def listed(
    request: HttpRequest,
    found: "QuerySet[Any]",
    order: Sequence[str],
    kind: str,
    facts: Sequence[Any],
    size: int = PAGE,
) -> Listed:
    """The page of `found` that `?cursor=` names: one query, whose cost does not grow with depth.

    A cursor that does not belong to this list is said to be so, over the first page.
    """
    cursor = request.GET.get("cursor") or None
    problem = None
    try:
        page = pagination.paginate(found, order, size, cursor, f"console.{kind}", facts)
    except ValidationFailed:
        problem, cursor = "That page belongs to another list; here is the first one.", None
        page = pagination.paginate(found, order, size, None, f"console.{kind}", facts)
    next_query = None if page.next_cursor is None else query_with(request, cursor=page.next_cursor)
    return Listed(page.items, next_query, cursor is None, problem)


def query_with(request: HttpRequest, **changes: str | None) -> str:
    """The current query string with some parameters set, or without those that are None; the cursor only if it is
    named."""
    query = request.GET.copy()
    query.pop("cursor", None)
    for name, value in changes.items():
        if value is None:
            query.pop(name, None)
        else:
            query[name] = value
    return query.urlencode()


def _explained(error: Error) -> str:
    """The message for an error. Raises it again if it is a bug."""
    if sqlstates.sqlstate(error) == sqlstates.CANCELLED:
        return "PostgreSQL gave up: this took longer than a statement may take. Narrow it down, and try again."
    if not sqlstates.is_unavailable(error):
        raise error
    return "The region's database is unavailable. Nothing was changed; try again later."


def _remember(request: HttpRequest, place: EnvironmentRef) -> None:
    """The environments that this member of staff opened last come first when one is to be chosen."""
    recent = list(request.session.get(_RECENT_KEY, []))
    now = [place.environment_id, *(each for each in recent if each != place.environment_id)][:RECENT]
    if now != recent:
        request.session[_RECENT_KEY] = now
