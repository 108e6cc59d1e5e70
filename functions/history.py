"""The newest runs of a whole environment, without an index that every run would have to pay for.

There is one on each function's runs; so each function gives its newest, and the newest of those are the page: at most
`limit` entries of one index for each function, however many runs there are. Called by the console.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import connections

from functions.models import Run
from platform_site.api.callers import Place

_NEWEST: Final = """
SELECT r.id
  FROM platform.functions_function f
 CROSS JOIN LATERAL (
       SELECT id, created_at FROM platform.functions_run
        WHERE function_id = f.id {conditions}
        ORDER BY created_at DESC, id DESC LIMIT %(limit)s) r
 WHERE f.environment_id = %(environment_id)s
 ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s
"""
_CONDITIONS: Final = {
    "status": "AND status = %(status)s",
    "trigger": "AND trigger = %(trigger)s",
}
_AFTER: Final = "AND (created_at, id) < (%(at)s::timestamptz, %(id)s::text)"


def newest(place: Place, wanted: Mapping[str, str], *, after: tuple[datetime, str] | None, limit: int) -> list[Run]:
    """Runs of the environment with their function, the newest first; `wanted` may name a status and a trigger; `after`
    is where the page before ended. Two queries, without input, output and log."""
    parameters: dict[str, Any] = {"environment_id": place.environment_id, "limit": limit, **wanted}
    conditions = [_CONDITIONS[name] for name in wanted]
    if after is not None:
        conditions.append(_AFTER)
        parameters |= {"at": after[0], "id": after[1]}
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(_NEWEST.format(conditions=" ".join(conditions)), parameters)
        ids = [run_id for (run_id,) in cursor.fetchall()]
    found = Run.objects.using(place.cluster).filter(pk__in=ids).select_related("function")
    return list(found.defer("input", "output", "logs").order_by("-created_at", "-id"))
