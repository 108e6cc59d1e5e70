"""The list of projects as compiled SQL, one statement per shape, with placeholders: compiling the queryset each time
took half of the request's CPU time. Pages as in `platform_site.http.pagination`. Contract section 4.2."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from django.db import connection
from django.db.models import F
from django.db.models.fields.tuple_lookups import Tuple, TupleLessThan

from platform_site.http import cursors
from platform_site.http.fields import timestamp
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.models import Project

KIND: Final = "projects"
ORDER: Final = ("-created_at", "-id")

# Placeholders in a compiled statement for the values of a call.
_WHO: Final = "who"
_SINCE: Final = datetime.max.replace(tzinfo=UTC)
_AFTER: Final = "after"
_BY_MEMBERSHIP: Final = Caller("account", _WHO, frozenset(), account_id=_WHO)
_BY_PLACE: Final = Caller(
    "key", _WHO, frozenset(), place=EnvironmentRef("", "", project_id=_WHO, region="", cluster="", plan="", pool_id="")
)


def page(caller: Caller, limit: int, cursor: str | None) -> dict[str, Any]:
    """Up to `limit` visible projects, newest first, and the next cursor. Raises ValidationFailed. One query."""
    bound = [list(ORDER)]
    since, after = cursors.decode(KIND, bound, cursor) if cursor is not None else (None, None)
    who = caller.account_id or (caller.place.project_id if caller.place else "")
    statement, marks = _statement(caller.account_id is not None, cursor is not None, limit)
    values = {_WHO: who, _SINCE: since, _AFTER: after}
    with connection.cursor() as reading:
        reading.execute(statement, [values.get(mark, mark) for mark in marks])
        found: Sequence[tuple[str, str, str, datetime]] = reading.fetchall()
    last = found[limit - 1] if len(found) > limit else None
    return {
        "data": [
            {"id": pk, "name": name, "region": region, "created_at": timestamp(created_at)}
            for pk, name, region, created_at in found[:limit]
        ],
        "next_cursor": cursors.encode(KIND, bound, [last[3], last[0]]) if last else None,
    }


@lru_cache(maxsize=512)
def _statement(by_membership: bool, is_continued: bool, limit: int) -> tuple[str, tuple[Any, ...]]:
    """The SQL of one shape and its parameters, with placeholders."""
    visible = Project.objects.visible_to(_BY_MEMBERSHIP if by_membership else _BY_PLACE)
    if is_continued:
        visible = visible.filter(TupleLessThan(Tuple(F("created_at"), F("id")), (_SINCE, _AFTER)))
    ordered = visible.order_by(*ORDER).values_list("id", "name", "region", "created_at")
    return ordered[: limit + 1].query.sql_with_params()
