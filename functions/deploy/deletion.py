"""Deletes a function with perhaps millions of runs: the request deletes all but the runs, and one page of these, and
detaches the function from its environment, so that nothing of it starts. A worker deletes the rest page by page."""

from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from functions.models import Function
from functions.triggers import inbound_endpoints
from platform_site.background import dispatch
from platform_site.postgres import statements

BATCH: Final = 1000

_DELETE_RELATED: Final = (
    "DELETE FROM platform.functions_secret WHERE function_id = %s",
    "DELETE FROM platform.functions_version WHERE function_id = %s",
)
_DETACH: Final = "UPDATE platform.functions_function SET environment_id = NULL WHERE id = %s"
_DELETE: Final = "DELETE FROM platform.functions_function WHERE id = %s"
_PAGE: Final = """
SELECT created_at, id FROM platform.functions_run
 WHERE function_id = %(function_id)s {after} ORDER BY created_at DESC, id DESC LIMIT %(batch)s
"""
_AFTER: Final = "AND (created_at, id) < (%(at)s::timestamptz, %(id)s::text)"
"""Each page begins where the last one ended: otherwise it would scan deleted rows that are not vacuumed yet."""
_DISABLE_SORT: Final = "SELECT set_config('enable_sort', 'off', true)"
"""Forces the index: with old statistics the planner may fetch and sort all rows for a page."""
_DELETE_RUNS: Final = "DELETE FROM platform.functions_run WHERE id = ANY (%s)"

Position = tuple[datetime, str]


def start(using: str, function_id: str) -> None:
    """Delete a function in the current transaction, which holds its lock; a worker removes the rest."""
    for statement in _DELETE_RELATED:
        statements.execute(using, statement, [function_id])
    inbound_endpoints.delete_all(using, function_id)
    if _remove_page(using, function_id, None) is None:
        statements.execute(using, _DELETE, [function_id])
    else:
        statements.execute(using, _DETACH, [function_id])
        dispatch.send("functions.tasks.remove_deleted", using, using=using)


def start_all(using: str, environment_id: str) -> None:
    found = Function.objects.using(using).filter(environment_id=environment_id)
    for function_id in list(found.values_list("pk", flat=True)):
        with transaction.atomic(using=using):
            if found.select_for_update().filter(pk=function_id).exists():
                start(using, function_id)


def unfinished(using: str) -> "QuerySet[Function, str]":
    return Function.objects.using(using).filter(environment_id=None).order_by("pk").values_list("pk", flat=True)


def finish(using: str, function_id: str) -> None:
    """Idempotent; a transaction per page. Raises IntegrityError for a run that is committed only now."""
    after: Position | None = None
    while True:
        with transaction.atomic(using=using):
            after = _remove_page(using, function_id, after)
            if after is None:
                statements.execute(using, _DELETE, [function_id])
                return


def _remove_page(using: str, function_id: str, after: Position | None) -> Position | None:
    """Delete a page of runs, newest first. Returns its end, None for the last one."""
    facts: dict[str, Any] = {"function_id": function_id, "batch": BATCH}
    if after is not None:
        facts |= {"at": after[0], "id": after[1]}
    statements.execute(using, _DISABLE_SORT)
    page = statements.rows(using, _PAGE.format(after="" if after is None else _AFTER), facts)
    statements.execute(using, _DELETE_RUNS, [[run_id for _, run_id in page]])
    return page[-1] if len(page) == BATCH else None
