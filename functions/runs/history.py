"""The newest runs of a function or of a whole environment, however many there are and however few of them are wanted.

One index has each function's runs in order, another those of each trigger and status. So a status alone is looked for
under each trigger, and the newest of those are the page: at most `limit` entries for each. A third has those of each
app user, who sees no others. An environment has no index that every run would have to pay for: each of its functions
gives its newest. Called by the API's list and the console.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from functions.models import Run
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.planner_hints import by_index

_NEWEST: Final = """
SELECT r.id
  FROM platform.functions_function f {ways}
 CROSS JOIN LATERAL (
       SELECT id, created_at FROM platform.functions_run
        WHERE function_id = f.id {conditions}
        ORDER BY created_at DESC, id DESC LIMIT %(limit)s) r
 WHERE f.environment_id = %(environment_id)s {functions}
 ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s
"""
_ORDER: Final = ("-created_at", "-id")
_WAYS: Final = "CROSS JOIN unnest(%(triggers)s::text[], %(statuses)s::text[]) AS way (trigger, status)"
_OF_A_WAY: Final = "AND trigger = way.trigger AND status = way.status"
_AFTER: Final = "AND (created_at, id) < (%(at)s::timestamptz, %(id)s::text)"
_NAMED: Final = "AND f.name = %(name)s"


def selected_kinds(wanted: Mapping[str, str]) -> list[tuple[str, str]]:
    """The pairs of trigger and status that are wanted, where `wanted` may name a `trigger`, a `status` or both."""
    triggers = [wanted["trigger"]] if "trigger" in wanted else Run.Trigger.values
    statuses = [wanted["status"]] if "status" in wanted else Run.Status.values
    return [(trigger, status) for trigger in triggers for status in statuses]


def newest_of(runs: Any, wanted: Mapping[str, str], limit: int) -> Any:
    """A queryset of the newest runs wanted among some of one function. Each way is cut before they are put together:
    else the planner reads all of each and sorts them."""
    pieces = (
        [runs.filter(trigger=trigger, status=status) for trigger, status in selected_kinds(wanted)]
        if wanted
        else [runs]
    )
    first, *others = (piece.order_by(*_ORDER)[:limit] for piece in pieces)
    return first.union(*others, all=True).order_by(*_ORDER)[:limit] if others else first


def newest(
    place: EnvironmentRef, wanted: Mapping[str, str], *, name: str = "", after: tuple[datetime, str] | None, limit: int
) -> list[Run]:
    """Runs of the environment, or of its function of that name, with their function, the newest first; `wanted` may
    name a status and a trigger; `after` is where the page before ended. Two queries, without input, output and log, and
    what keeps the first to the indexes."""
    parameters: dict[str, Any] = {"environment_id": place.environment_id, "limit": limit, "name": name}
    conditions = []
    if wanted:
        triggers, statuses = zip(*selected_kinds(wanted), strict=True)
        conditions.append(_OF_A_WAY)
        parameters |= {"triggers": [*triggers], "statuses": [*statuses]}
    if after is not None:
        conditions.append(_AFTER)
        parameters |= {"at": after[0], "id": after[1]}
    statement = _NEWEST.format(
        ways=_WAYS if wanted else "", conditions=" ".join(conditions), functions=_NAMED if name else ""
    )
    with by_index(place.cluster) as cursor:
        cursor.execute(statement, parameters)
        ids = [run_id for (run_id,) in cursor.fetchall()]
    found = Run.objects.using(place.cluster).filter(pk__in=ids).select_related("function")
    return list(found.defer("input", "output", "logs").order_by(*_ORDER))
