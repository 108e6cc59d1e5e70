"""The audit log of one project, for its owners: entries that name the project, or only one of its environments."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db.models import F, Q, QuerySet
from django.db.models.fields.tuple_lookups import Tuple, TupleLessThan

from accounts.models import AuditEntry
from platform_site.http import cursors
from platform_site.http.pagination import Page
from projects.models import Project

_KIND: Final = "audit"
_ORDER: Final = ("-at", "-id")
_OWN_AFFAIRS: Final = Q(actor_kind="account", target_id=F("actor_id"), action__regex=r"^(user|session|identity)\.")


def page(project: Project, wanted: Mapping[str, Any], limit: int, cursor: str | None) -> Page[AuditEntry]:
    """The newest entries that match `wanted`: `environment`, `action` (a name, or `function.*`), `actor`, `target`,
    `request_id`, `since` (inclusive), `until` (exclusive). Two queries, one index range per environment. Raises
    ValidationFailed on the field `cursor`."""
    bound = [project.pk, *(f"{name}={_text(value)}" for name, value in sorted(wanted.items()))]
    entries = AuditEntry.objects.filter(_matching(wanted)).exclude(_OWN_AFFAIRS)
    if cursor is not None:
        entries = entries.filter(TupleLessThan(Tuple(F("at"), F("id")), tuple(cursors.decode(_KIND, bound, cursor))))
    first, *others = (
        part.order_by(*_ORDER)[: limit + 1] for part in _parts(entries, project, wanted.get("environment"))
    )
    found = list(first.union(*others, all=True).order_by(*_ORDER)[: limit + 1] if others else first)
    if len(found) <= limit:
        return Page(found, None)
    last = found[limit - 1]
    return Page(found[:limit], cursors.encode(_KIND, bound, [last.at, last.pk]))


def _parts(entries: QuerySet[AuditEntry], project: Project, environment_id: str | None) -> list[QuerySet[AuditEntry]]:
    """The project's entries, and those of its environments that name no project."""
    environment_ids = set(project.environments.values_list("pk", flat=True))
    if environment_id is not None:
        environment_ids &= {environment_id}
    of_project = entries.filter(project_id=project.pk)
    return [of_project, *(entries.filter(project_id=None, environment_id=pk) for pk in sorted(environment_ids))]


def _matching(wanted: Mapping[str, Any]) -> Q:
    found = Q()
    for parameter, lookup in (
        ("environment", "environment_id"), ("actor", "actor_id"), ("target", "target_id"),
        ("request_id", "request_id"), ("since", "at__gte"), ("until", "at__lt"),
    ):  # fmt: skip
        if parameter in wanted:
            found &= Q(**{lookup: wanted[parameter]})
    action = wanted.get("action")
    if action is not None:
        found &= Q(action__startswith=action[:-1]) if action.endswith("*") else Q(action=action)
    return found


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
