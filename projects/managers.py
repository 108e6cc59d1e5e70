from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import ExpressionWrapper, F, Q, QuerySet
from django.db.models.expressions import BaseExpression, Combinable
from django.db.models.functions import Coalesce, JSONObject

from platform_site.identity.callers import Caller

if TYPE_CHECKING:
    from projects.models import Environment, Project  # noqa: F401 - named in a string below

_REF_COLUMNS: "Final[dict[str, str | Coalesce | ExpressionWrapper[Any]]]" = {
    "environment_id": "id",
    "environment_name": "name",
    "project_id": "project_id",
    "region": "project__region",
    "cluster": "project__cluster",
    "plan": "project__plan",
    "pool_id": "pool_id",
    "allowed_origins": "allowed_origins",
    "owner_id": Coalesce("project__created_by_id", "project_id", output_field=models.CharField()),
    "is_suspended": ExpressionWrapper(Q(project__suspended_at__isnull=False), models.BooleanField()),
}


class ProjectQuerySet(models.QuerySet["Project"]):
    def live(self) -> "ProjectQuerySet":
        return self.filter(deleted_at__isnull=True)

    def visible_to(self, caller: Caller) -> "ProjectQuerySet":
        """The live projects that `caller` may see: by membership, else that of its environment."""
        if caller.account_id is not None:
            return self.live().filter(memberships__user_id=caller.account_id)
        return self.live().filter(pk=caller.environment.project_id) if caller.environment else self.none()


class EnvironmentQuerySet(models.QuerySet["Environment"]):
    def live(self) -> "EnvironmentQuerySet":
        return self.filter(~Q(status="deleting"), project__deleted_at__isnull=True)

    def reachable(self) -> "EnvironmentQuerySet":
        return self.live().filter(status__in=["ready", "migrating"])

    def suspended(self) -> "EnvironmentQuerySet":
        return self.filter(project__suspended_at__isnull=False)

    def branches(self) -> "EnvironmentQuerySet":
        return self.exclude(pool_id=F("pk"))

    def of_account(self, account_id: "str | BaseExpression | Combinable") -> "EnvironmentQuerySet":
        return self.filter(project__memberships__user_id=account_id).annotate(role=F("project__memberships__role"))

    def refs_as_json(self) -> "QuerySet[Environment, Any]":
        """One JSON column with the fields of `EnvironmentRef`; with `role` after `of_account`."""
        has_role = "role" in self.query.annotations
        return self.values(ref=JSONObject(**_REF_COLUMNS, **({"role": "role"} if has_role else {})))
