"""The overview on a project's page: bounded queries and estimated row counts."""

from collections import defaultdict
from dataclasses import fields
from typing import Any, Final

from django.db import Error
from django.db.models import Count

from accounts.models import ServerKey
from platform_site.identity.plans import PlanLimits, plan_limits
from platform_site.postgres import sql_files, statements
from projects.directory import environments as directory
from projects.directory import invitations, limits
from projects.models import Environment, Project

MAX_ENVIRONMENTS: Final = 24
"""Maximum of shown items; the lists show all."""
MEASURED: Final = 3
"""Environments whose usage is shown."""
_SQL: Final = sql_files.load(__file__)


def overview(project: Project) -> dict[str, Any]:
    found = list(project.environments.exclude(status="deleting").order_by("name")[: MAX_ENVIRONMENTS + 1])
    environments = found[:MAX_ENVIRONMENTS]
    names = {environment.pk: environment.name for environment in found}
    keys = dict(
        ServerKey.objects.filter(environment_id__in=[each.pk for each in environments], revoked_at__isnull=True)
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
        shown |= _in_its_region(project.cluster, {each.pk: each.name for each in environments}, region)
        shown["usage"] = _usage(project, environments)
    except Error:
        shown["is_away"] = True
    shown["environments"] = [
        {"it": each, "from": names.get(each.parent_id or ""), "keys": keys.get(each.pk, 0), **region[each.pk]}
        for each in environments
    ]
    return shown


def _in_its_region(cluster: str, names: dict[str, str], region: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The largest tables and the newest versions. Adds to `region` what belongs to one environment."""
    ids = [*names]
    for environment_id, version in directory.schema_versions(cluster, ids).items():
        region[environment_id]["version"] = version
    for name in ("webhooks", "functions"):
        for row in statements.dicts(cluster, _SQL[name], [ids]):
            region[row["environment_id"]] |= row
    shown = {}
    for name in ("tables", "versions"):
        found = statements.dicts(cluster, _SQL[name], [ids, MAX_ENVIRONMENTS])
        shown[name] = [row | {"environment": names[row["environment_id"]]} for row in found]
    return shown


def _usage(project: Project, environments: list[Environment]) -> list[dict[str, Any]]:
    allowed = plan_limits(project.plan)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for environment in environments[:MEASURED]:
        ref = directory.environment_ref(environment.pk)
        if ref is None:
            continue
        for name, used in limits.used_in(ref).items():
            where = "project" if name.endswith("_per_project") else environment.name
            limit = getattr(allowed, name)
            share = min(100, round(100 * used / max(1, limit)))
            title = name.partition("_per_")[0].replace("_", " ").replace("app users", "users").capitalize()
            usage = {"name": name, "title": title, "where": where, "used": used, "limit": limit, "share": share}
            found.setdefault((name, where), usage)
    order = [field.name for field in fields(PlanLimits)]
    keys = sorted(found, key=lambda each: (each[1] != "project", each[1], order.index(each[0])))
    return [found[key] for key in keys]
