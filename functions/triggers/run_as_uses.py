from collections import defaultdict
from collections.abc import Collection

from django.db.models import Q

from functions.models import Function, InboundEndpoint
from platform_site.identity.callers import EnvironmentRef


def of(environment: EnvironmentRef, caller_ids: Collection[str]) -> dict[str | None, list[str]]:
    """What runs as each of the keys or accounts, in words: it stops with them."""
    uses: dict[str | None, list[str]] = defaultdict(list)
    functions = Function.objects.of(environment)
    triggered = functions.filter(Q(scheduled_id__in=caller_ids) | Q(events_id__in=caller_ids)).order_by("name")
    for name, scheduled_id, events_id in triggered.values_list("name", "scheduled_id", "events_id"):
        uses[scheduled_id].append(f"the schedule of {name}")
        uses[events_id].append(f"the event triggers of {name}")
    endpoints = InboundEndpoint.objects.using(environment.cluster).filter(
        function__environment_id=environment.environment_id, runs_as_id__in=caller_ids
    )
    for runs_as_id, name in endpoints.order_by("function__name").values_list("runs_as_id", "function__name").distinct():
        uses[runs_as_id].append(f"inbound endpoints of {name}")
    return uses
