"""The newest runs of a function, with bounded work for any filter and history: an index has the runs of each function,
trigger and status in order, so a filter by status alone reads at most `limit` runs under each trigger."""

from collections.abc import Collection, Sequence
from typing import Final

from django.db.models import OuterRef, QuerySet, Subquery

from functions.models import Function, Run

_ORDER: Final = ("-created_at", "-id")


def newest_of(runs: QuerySet[Run], filtered_by: Collection[str], limit: int) -> QuerySet[Run]:
    """Each part of the union has its own limit, else the planner reads and sorts all of them."""
    match sorted(filtered_by):
        case ["status"]:
            parts = [runs.filter(trigger=trigger) for trigger in Run.Trigger.values]
        case ["trigger"]:
            parts = [runs.filter(status=status) for status in Run.Status.values]
        case _:
            parts = [runs]
    first, *others = (part.order_by(*_ORDER)[:limit] for part in parts)
    return first.union(*others, all=True).order_by(*_ORDER)[:limit] if others else first


def last_of(cluster: str, environment_id: str, names: Sequence[str]) -> dict[str, Run]:
    """The newest run of each of these functions, by the function's name."""
    newest = Run.objects.filter(function=OuterRef("pk")).order_by(*_ORDER).values("pk")[:1]
    functions = Function.objects.using(cluster).filter(environment_id=environment_id, name__in=names)
    ids = dict(functions.values_list("name", Subquery(newest)))
    shown = Run.objects.using(cluster).defer("input", "output", "logs")
    runs = shown.in_bulk([run_id for run_id in ids.values() if run_id is not None])
    return {name: runs[run_id] for name, run_id in ids.items() if run_id in runs}
