"""The console's pages that are no model's: the timeline, and what waits in a region."""

from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import EmptyPage
from django.db import Error, connections
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from accounts.models import AuditEntry
from functions.triggers.events import REACHED
from platform_site.console import timeline as timelines
from projects.provisioning.suspension import suspended_in

SHOWN: Final = 50

_DUE = """
SELECT first.id, first.event_type, w.host, first.attempts, first.next_attempt_at, w.environment_id, now()
  FROM platform.webhooks_webhook w,
       LATERAL (SELECT d.id, d.event_type, d.attempts, d.next_attempt_at FROM platform.webhooks_delivery d
                 WHERE d.webhook_id = w.id AND d.status = 'pending'
                 ORDER BY d.next_attempt_at LIMIT 5) AS first
 WHERE w.enabled AND w.deleted_at IS NULL AND w.drop_before IS NULL AND first.next_attempt_at <= now()
   AND w.environment_id <> ALL (%(suspended)s::text[])
 ORDER BY first.next_attempt_at LIMIT %(most)s
"""
_UNRELAYED = """
SELECT event_id, type, environment_id, created_at, now() FROM platform.rows_outboxevent
 WHERE relayed_at IS NULL ORDER BY sequence LIMIT %(most)s
"""
_RUNS = """
SELECT r.id, f.name, r.phase, r.environment_id, r.created_at, now()
  FROM (SELECT * FROM platform.functions_run WHERE phase = 'queued' AND environment_id <> ALL (%(suspended)s::text[])
         UNION ALL SELECT * FROM platform.functions_run WHERE phase = 'executing') AS r  -- an index for each of the two
  JOIN platform.functions_function f ON f.id = r.function_id
 ORDER BY r.created_at LIMIT %(most)s
"""
_HEARD = f"""
WITH {REACHED}
SELECT reached.environment_id, few.count, first.event_id
  FROM reached
 CROSS JOIN LATERAL (
       SELECT count(*) FROM (SELECT FROM platform.functions_pendingevent h
                              WHERE h.environment_id = reached.environment_id LIMIT 1001) each) few
 CROSS JOIN LATERAL (
       SELECT h.event_id FROM platform.functions_pendingevent h
        WHERE h.environment_id = reached.environment_id ORDER BY h.sequence LIMIT 1) first
 WHERE reached.environment_id <> ALL (%(suspended)s::text[])
 ORDER BY few.count DESC, reached.environment_id LIMIT %(most)s
"""  # noqa: S608 - a constant
_HELD = """
SELECT w.id, w.host, w.disabled_reason, w.environment_id,
       (SELECT count(*)
          FROM ((SELECT 1 FROM platform.webhooks_delivery d
                  WHERE d.webhook_id = w.id AND d.status = 'held' LIMIT 1001)
                 UNION ALL  -- and what is about to say so
                (SELECT 1 FROM platform.webhooks_delivery d
                  WHERE d.webhook_id = w.id AND d.status = 'pending' ORDER BY d.next_attempt_at LIMIT 1001)
                 LIMIT 1001) AS few)
  FROM platform.webhooks_webhook w
 WHERE NOT w.enabled AND w.deleted_at IS NULL
   AND (EXISTS (SELECT 1 FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id AND d.status = 'held')
        OR EXISTS (SELECT 1 FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id AND d.status = 'pending'))
 ORDER BY w.id DESC LIMIT %(most)s
"""
_LISTS: Final = {"due": _DUE, "unrelayed": _UNRELAYED, "heard": _HEARD, "runs": _RUNS, "held": _HELD}


def _for_staff(request: HttpRequest) -> None:
    """Whether the person may read the audit log: support and above."""
    page = admin.site._registry[AuditEntry]
    if not page.has_view_permission(request):
        raise PermissionDenied


@require_safe
def timeline(request: HttpRequest) -> HttpResponse:
    """`?q=` any id, `&environment=` for a row's."""
    _for_staff(request)
    text, environment_id = request.GET.get("q", ""), request.GET.get("environment", "")
    context = admin.site.each_context(request) | {
        "title": "Timeline",
        "timeline": timelines.of(text.replace("\0", ""), environment_id.replace("\0", "")),
        "entries": None,
    }
    return TemplateResponse(request, "admin/timeline.html", context)


@require_safe
def waiting(request: HttpRequest, region: str) -> HttpResponse:
    """What waits in one region at this moment: the list behind the dashboard's queues. Not what waits for the end of a
    suspension."""
    _for_staff(request)
    if region not in settings.REGION_DATABASES:
        raise Http404("There is no such region.")
    context: dict[str, Any] = admin.site.each_context(request) | {"title": f"Waiting in {region}", "region": region}
    suspended = suspended_in(region)
    try:
        with connections[region].cursor() as cursor:
            for name, statement in _LISTS.items():
                cursor.execute(statement, {"most": SHOWN, "suspended": suspended})
                context[name] = cursor.fetchall()
    except Error:
        context["is_away"] = True
    return TemplateResponse(request, "admin/waiting.html", context)


@require_safe
def palette(request: HttpRequest) -> HttpResponse:
    """The toolkit's own search of pages, which takes `?page=` as it comes: what is no page of it is not there."""
    page = request.GET.get("page", "1")
    if not (page.isascii() and page.isdigit() and len(page) <= 9):
        raise Http404("Pages have numbers.")
    try:
        found: HttpResponse = admin.site.search(request)  # type: ignore[attr-defined]  # unfold's site
    except EmptyPage:
        raise Http404("The search has no such page.") from None
    return found
