"""The overview on a project's page: bounded queries and estimated row counts."""

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Any, Final

from django.db import Error, connections
from django.db.models import Count
from django.template.defaultfilters import filesizeformat

from accounts.models import ServerKey
from platform_site.identity.plans import PlanLimits, plan_limits
from platform_site.postgres import sql_files
from projects.console.base import console_url, list_url
from projects.directory import environments as directory
from projects.directory import invitations, limits
from projects.models import Environment, Project

MAX_ENVIRONMENTS: Final = 24
"""Maximum of shown items; the lists show all."""
MEASURED: Final = 3
"""Environments whose usage is shown."""
_SQL: Final = sql_files.load(__file__)


@dataclass(frozen=True, slots=True)
class Used:
    name: str
    where: str
    used: int
    limit: int

    @property
    def title(self) -> str:
        return self.name.partition("_per_")[0].replace("_", " ").replace("app users", "users").capitalize()

    @property
    def spelled(self) -> tuple[str, str]:
        if self.name.endswith("_bytes"):
            return filesizeformat(self.used), filesizeformat(self.limit)
        return f"{self.used:,}", f"{self.limit:,}"

    @property
    def share(self) -> int:
        return min(100, round(100 * self.used / max(1, self.limit)))


def overview(project: Project) -> dict[str, Any]:
    found = list(project.environments.exclude(status="deleting").order_by("name")[: MAX_ENVIRONMENTS + 1])
    ids = [environment.pk for environment in found[:MAX_ENVIRONMENTS]]
    keys = dict(
        ServerKey.objects.filter(environment_id__in=ids, revoked_at__isnull=True)
        .values_list("environment_id")
        .annotate(count=Count("pk"))
        .order_by()
    )
    shown: dict[str, Any] = {
        "members": list(project.memberships.select_related("user").order_by("created_at")[:MAX_ENVIRONMENTS]),
        "invited": list(invitations.pending(project.pk).order_by("created_at")[:MAX_ENVIRONMENTS]),
        "has_more": len(found) > MAX_ENVIRONMENTS,
        "is_away": False,
        "tables": [],
        "versions": [],
        "usage": [],
    }
    region: dict[str, dict[str, Any]] = defaultdict(dict)
    try:
        shown |= _in_its_region(project, found[:MAX_ENVIRONMENTS], region)
        shown["usage"] = _usage(project, found[:MAX_ENVIRONMENTS])
    except Error:
        shown["is_away"] = True
    names = {environment.pk: environment.name for environment in found}
    shown["environments"] = [
        {
            "it": environment,
            "from": names.get(environment.parent_id or ""),
            "keys": keys.get(environment.pk, 0),
            "lists": _lists(environment),
            **region[environment.pk],
        }
        for environment in found[:MAX_ENVIRONMENTS]
    ]
    return shown


def _in_its_region(
    project: Project, environments: list[Environment], region: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    cluster, project_id = project.cluster, project.pk
    ids = [environment.pk for environment in environments]
    names = {environment.pk: environment.name for environment in environments}
    for environment_id, version in directory.schema_versions(cluster, ids).items():
        region[environment_id]["version"] = version
    with connections[cluster].cursor() as cursor:
        cursor.execute(_SQL["webhooks"], [ids])
        for environment_id, count, disabled, failing in cursor.fetchall():
            region[environment_id] |= {"webhooks": count, "disabled": disabled, "failing": failing}
        cursor.execute(_SQL["functions"], [ids])
        for environment_id, count in cursor.fetchall():
            region[environment_id]["functions"] = count
        cursor.execute(_SQL["tables"], [ids, MAX_ENVIRONMENTS])
        tables = [
            {"environment": names[schema], "name": table, "rows": f"{rows:,}", "bytes": size,
             "link": console_url(project_id, schema, "table", table)}
            for schema, table, rows, size in cursor.fetchall()
        ]  # fmt: skip
        cursor.execute(_SQL["versions"], [ids, MAX_ENVIRONMENTS])
        versions = [
            {"environment": names[environment_id], "version": version, "at": at, "reverts_to": reverts_to,
             "author": author or kind,
             "link": console_url(project_id, environment_id, "schema")}
            for environment_id, version, at, kind, author, reverts_to in cursor.fetchall()
        ]  # fmt: skip
    return {"tables": tables, "versions": versions}


def _lists(environment: Environment) -> dict[str, str | None]:
    pk = environment.pk
    return {
        "schema": console_url(environment.project_id, pk, "schema"),
        "rows": console_url(environment.project_id, pk, "tables"),
        "webhooks": console_url(environment.project_id, pk, "webhooks"),
        "functions": console_url(environment.project_id, pk, "functions"),
        "keys": list_url("accounts.ServerKey", q=pk),
        "users": list_url("accounts.User", q=environment.pool_id),
    }


def _usage(project: Project, environments: list[Environment]) -> list[Used]:
    allowed = plan_limits(project.plan)
    found: dict[tuple[str, str], Used] = {}
    for environment in environments[:MEASURED]:
        ref = directory.environment_ref(environment.pk)
        if ref is None:
            continue
        for name, used in limits.used_in(ref).items():
            where = "project" if name.endswith("_per_project") else environment.name
            found.setdefault((name, where), Used(name, where, used, getattr(allowed, name)))
    order = [field.name for field in fields(PlanLimits)]
    return sorted(found.values(), key=lambda each: (each.where != "project", each.where, order.index(each.name)))
