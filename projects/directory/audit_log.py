"""The audit log of one project, for its owners: entries that name the project, or only one of its environments."""

from collections.abc import Sequence
from typing import Final

from django.db.models import F, Q, QuerySet

from accounts.models import AuditEntry
from projects.models import Project

_OWN_AFFAIRS: Final = Q(actor_kind="account", target_id=F("actor_id"), action__regex=r"^(user|session|identity)\.")


def entries() -> QuerySet[AuditEntry]:
    """Without those of an account about itself."""
    return AuditEntry.objects.exclude(_OWN_AFFAIRS)


def index_ranges(
    found: QuerySet[AuditEntry], project: Project, environment_id: str | None
) -> Sequence[QuerySet[AuditEntry]]:
    """The project's entries, and those of each of its environments that name no project. One query."""
    environment_ids = set(project.environments.values_list("pk", flat=True))
    if environment_id is not None:
        environment_ids &= {environment_id}
    of_project = found.filter(project_id=project.pk)
    return [of_project, *(found.filter(project_id=None, environment_id=pk) for pk in sorted(environment_ids))]
