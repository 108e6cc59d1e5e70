"""The page of orphaned schemas, where operators can drop one by typing its id."""

from itertools import islice
from typing import Any, Final

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts.console.base import staff
from accounts.staff.roles import OPERATE
from platform_site.postgres import sqlstates
from projects.provisioning import schemas
from projects.provisioning.orphaned_schemas import NotOrphaned, describe, drop
from projects.provisioning.schemas import SchemaBusy

SHOWN: Final = 50


@require_http_methods(["GET", "HEAD", "POST"])
def orphaned_schemas(request: HttpRequest) -> HttpResponse:
    return _submitted(request) if request.method == "POST" else _listed(request)


def _listed(request: HttpRequest) -> HttpResponse:
    regions, unavailable = [], []
    for cluster in settings.REGION_DATABASES:
        try:
            found = list(islice(schemas.orphaned(cluster), SHOWN + 1))
            regions.append((cluster, [describe(each, cluster) for each in found[:SHOWN]], len(found) > SHOWN))
        except Error:
            unavailable.append(cluster)
    context = _frame(request, "Orphaned schemas") | {
        "regions": [each for each in regions if each[1]],
        "unavailable": unavailable,
        "may_operate": request.user.has_perm(OPERATE),
    }
    return TemplateResponse(request, "admin/orphaned_schemas/list.html", context)


def _submitted(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(OPERATE):
        raise PermissionDenied
    cluster, environment_id = request.POST.get("region", ""), request.POST.get("environment", "")
    if cluster not in settings.REGION_DATABASES:
        raise Http404("There is no such region.")
    try:
        if not schemas.is_orphaned(environment_id, cluster):
            raise NotOrphaned
        if request.POST.get("typed", "").strip() != environment_id:
            context = {"environment_id": environment_id, "region": cluster, "is_wrong": "typed" in request.POST}
            context |= _frame(request, "Drop the schema?")
            return TemplateResponse(request, "admin/orphaned_schemas/drop.html", context)
        drop(environment_id, cluster, actor=staff(request))
    except NotOrphaned:
        messages.warning(request, "This is no longer possible. See the current state below.")
    except SchemaBusy:
        messages.error(request, "Another process is changing this schema. Try again.")
    except Error as error:
        if not sqlstates.is_unavailable(error):
            raise
        messages.error(request, "A database is unavailable or busy. What was dropped stays dropped; try again.")
    else:
        messages.success(request, f"The schema of {environment_id} is dropped.")
    return HttpResponseRedirect(reverse("console:orphaned_schemas"))


def _frame(request: HttpRequest, title: str) -> dict[str, Any]:
    return {**admin.site.each_context(request), "title": title, "content_title": title}
