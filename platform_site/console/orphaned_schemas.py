"""The console's page of schemas that no sweep drops: their environments the control database has forgotten.

Every member of staff sees them; an operator may let go of one, whose id has to be typed. The verb is
`projects.provisioning.orphaned_schemas.drop`, as for `manage.py sweep --drop`.
"""

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
from projects.console.base import Verb, is_confirmed
from projects.provisioning import schemas
from projects.provisioning.orphaned_schemas import NotForgotten, described, drop
from projects.provisioning.schemas import SchemaBusy

SHOWN: Final = 50
"""Of a region; more after a restore to long ago, which is to be mended by another restore."""
_DROP: Final = Verb(
    "Drop the schema",
    "Its tables and rows go for good, with what the region keeps of the environment: webhooks, functions, events and "
    "runs. Restore the control database to a later moment instead, and the environment is there again.",
    danger=True,
    typed=True,
)


@require_http_methods(["GET", "HEAD", "POST"])
def forgotten(request: HttpRequest) -> HttpResponse:
    """The page, and what its buttons do."""
    return _pressed(request) if request.method == "POST" else _listed(request)


def _listed(request: HttpRequest) -> HttpResponse:
    regions, away = [], []
    for cluster in settings.REGION_DATABASES:
        try:
            found = list(islice(schemas.forgotten(cluster), SHOWN + 1))
            regions.append((cluster, [described(each, cluster) for each in found[:SHOWN]], len(found) > SHOWN))
        except Error:
            away.append(cluster)
    context = _frame(request, "Forgotten schemas") | {
        "regions": [each for each in regions if each[1]],
        "away": away,
        "may_operate": request.user.has_perm(OPERATE),
    }
    return TemplateResponse(request, "admin/forgotten.html", context)


def _pressed(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(OPERATE):
        raise PermissionDenied
    cluster, environment_id = request.POST.get("region", ""), request.POST.get("environment", "")
    if cluster not in settings.REGION_DATABASES:
        raise Http404("There is no such region.")
    try:
        if not schemas.is_forgotten(environment_id, cluster):
            raise NotForgotten
        if not is_confirmed(request, _DROP, environment_id):
            return _asked(request, environment_id, cluster)
        drop(environment_id, cluster, actor=staff(request))
    except NotForgotten:
        messages.warning(request, "This is not possible any more. Here is how it stands now.")
    except SchemaBusy:
        messages.error(request, "Another process is at this schema right now. Try again.")
    except Error as error:
        if not sqlstates.is_away(error):
            raise
        messages.error(request, "A database is away or busy. What was dropped by then stays dropped; try again.")
    else:
        messages.success(request, f"The schema of {environment_id} is dropped.")
    return HttpResponseRedirect(reverse("console:forgotten"))


def _asked(request: HttpRequest, environment_id: str, cluster: str) -> HttpResponse:
    """The page that asks once more."""
    is_again = "confirmed" in request.POST
    context = _frame(request, f"{_DROP.label}?") | {
        "name": environment_id,
        "verb": _DROP,
        "verb_name": "drop",
        "back": reverse("console:forgotten"),
        "kept": [("environment", environment_id), ("region", cluster)],
        "problems": [f"That is not “{environment_id}”. Nothing was changed."] if is_again else [],
    }
    return TemplateResponse(request, "admin/region/confirm.html", context)


def _frame(request: HttpRequest, title: str) -> dict[str, Any]:
    return {**admin.site.each_context(request), "title": title, "content_title": title}
