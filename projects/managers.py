"""Querysets of projects and environments: live ones, those that an account may see, and the fields of a place."""

from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.db.models import ExpressionWrapper, F, Q, QuerySet
from django.db.models.expressions import BaseExpression, Combinable
from django.db.models.functions import JSONObject

from platform_site.identity.callers import Caller

if TYPE_CHECKING:
    from projects.models import Environment, Project  # noqa: F401 - named in a string below

_PLACE_COLUMNS: "Final[dict[str, str | ExpressionWrapper[Any]]]" = {
    "environment_id": "id",
    "environment_name": "name",
    "project_id": "project_id",
    "region": "project__region",
    "cluster": "project__cluster",
    "plan": "project__plan",
    "pool_id": "pool_id",
    "allowed_origins": "allowed_origins",
    "is_suspended": ExpressionWrapper(Q(project__suspended_at__isnull=False), models.BooleanField()),
}
"""The columns of the fields of `platform_site.identity.callers.EnvironmentRef`; queries for accounts add `role`."""


class ProjectQuerySet(models.QuerySet["Project"]):
    def live(self) -> "ProjectQuerySet":
        """Not marked for deletion: a marked project does not exist for any caller."""
        return self.filter(deleted_at__isnull=True)

    def visible_to(self, caller: Caller) -> "ProjectQuerySet":
        """The live projects that `caller` may see: an account's by membership, else that of its environment."""
        if caller.account_id is not None:
            return self.live().filter(memberships__user_id=caller.account_id)
        return self.live().filter(pk=caller.place.project_id) if caller.place else self.none()


class EnvironmentQuerySet(models.QuerySet["Environment"]):
    def live(self) -> "EnvironmentQuerySet":
        """Neither they nor their project are marked for deletion."""
        return self.filter(~Q(status="deleting"), project__deleted_at__isnull=True)

    def reachable(self) -> "EnvironmentQuerySet":
        """Live and usable: their creation has succeeded."""
        return self.live().filter(status__in=["ready", "migrating"])

    def suspended(self) -> "EnvironmentQuerySet":
        return self.filter(project__suspended_at__isnull=False)

    def branches(self) -> "EnvironmentQuerySet":
        """Preview branches, also those whose parent is deleted."""
        return self.exclude(pool_id=F("pk"))

    def of_account(self, account_id: "str | BaseExpression | Combinable") -> "EnvironmentQuerySet":
        """Environments of the projects that the account is a member of, with its `role` there."""
        return self.filter(project__memberships__user_id=account_id).annotate(role=F("project__memberships__role"))

    def places_as_json(self) -> "QuerySet[Environment, Any]":
        """As one JSON column with the members of `Place`; `role` among them after `of_account`."""
        return self.values(place=JSONObject(**self._place_columns()))

    def _place_columns(self) -> "dict[str, str | ExpressionWrapper[Any]]":
        asked_role = "role" in self.query.annotations
        return _PLACE_COLUMNS | {"role": "role"} if asked_role else _PLACE_COLUMNS
