from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import EmptyPage
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from accounts.console.base import console_url
from accounts.models import AuditEntry
from functions.triggers.pending_events import REACHED
from platform_site.console import timeline as timelines
from platform_site.postgres import sql_files, statements
from projects.directory.environments import environment_ref
from projects.provisioning.suspension import suspended_in

SHOWN: Final = 50

_SECTIONS: Final = {"wh": "webhooks", "dlv": "webhooks", "fn": "functions", "run": "functions"}

_LISTS: Final = sql_files.load(__file__, reached=REACHED)


def _require_staff(request: HttpRequest) -> None:
    page = admin.site._registry[AuditEntry]
    if not page.has_view_permission(request):
        raise PermissionDenied


@require_safe
def timeline(request: HttpRequest) -> HttpResponse:
    _require_staff(request)
    text, environment_id = request.GET.get("q", ""), request.GET.get("environment", "")
    found = timelines.of(text.replace("\0", ""), environment_id.replace("\0", ""))
    context = admin.site.each_context(request) | {
        "title": "Timeline",
        "timeline": found,
        "console_page": _console_page(found),
    }
    return TemplateResponse(request, "admin/timeline.html", context)


def _console_page(found: timelines.Timeline) -> str:
    section = _SECTIONS.get(found.text.partition("_")[0])
    facts = [value for entry in found.entries for name, value in entry.facts if name == "environment"]
    environment = environment_ref(facts[0]) if section and facts else None
    return console_url(environment.project_id, environment.environment_id, section) if section and environment else ""


@require_safe
def waiting(request: HttpRequest, region: str) -> HttpResponse:
    _require_staff(request)
    if region not in settings.REGION_DATABASES:
        raise Http404("There is no such region.")
    context: dict[str, Any] = admin.site.each_context(request) | {
        "title": f"Waiting in {region}",
        "region": region,
        "most": SHOWN,
    }
    suspended = suspended_in(region)
    try:
        for name, statement in _LISTS.items():
            context[name] = statements.rows(region, statement, {"most": SHOWN, "suspended": suspended})
    except Error:
        context["is_away"] = True
    return TemplateResponse(request, "admin/waiting.html", context)


@require_safe
def palette(request: HttpRequest) -> HttpResponse:
    """Unfold's search of pages fails for an invalid `?page=`."""
    page = request.GET.get("page", "1")
    if not (page.isascii() and page.isdigit() and len(page) <= 9):
        raise Http404("Pages have numbers.")
    try:
        found: HttpResponse = admin.site.search(request)  # type: ignore[attr-defined]  # unfold's site
    except EmptyPage:
        raise Http404("The search has no such page.") from None
    return found
