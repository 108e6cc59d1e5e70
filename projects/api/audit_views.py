from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from django.core.validators import RegexValidator
from django.db.models import F, Q, QuerySet
from django_filters import FilterSet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from accounts.models import AuditEntry
from platform_site.http import fields
from platform_site.http.cursors import Fact
from platform_site.http.errors import Forbidden, NotFound
from platform_site.http.fields import Serializer
from platform_site.http.filters import Filter, TimeFilter
from platform_site.http.generics import ResourceViewSet
from platform_site.http.openapi.description import listing
from projects.api.views import team_of
from projects.models import Project

_OWN_AFFAIRS: Final = Q(actor_kind="account", target_id=F("actor_id"), action__regex=r"^(user|session|identity)\.")
"""Entries of an account about itself."""


class ActionFilter(Filter):
    def filter(self, queryset: QuerySet[Any], value: str | None) -> QuerySet[Any]:
        if value is not None and value.endswith("*"):
            return queryset.filter(action__startswith=value[:-1])
        return super().filter(queryset, value)


class AuditFilter(FilterSet):  # type: ignore[misc]  # the library is not typed
    project = Filter(fields.IdField("prj"), required=True, method="of_any_project")
    environment = Filter(fields.IdField("env"), "environment_id")
    action = ActionFilter(
        fields.CharField(
            max_length=60,
            validators=[
                RegexValidator(
                    r"\A[a-z_]+\.(\*|[a-z_]+)\Z",
                    "Must be an action such as key.issued, or a group: key.*.",
                    "malformed",
                )
            ],
        )
    )
    actor = Filter(fields.CharField(max_length=30), "actor_id")
    target = Filter(fields.CharField(max_length=64), "target_id")
    request_id = Filter(fields.CharField(max_length=64))
    since = TimeFilter("at", "gte")
    until = TimeFilter("at", "lt")

    def of_any_project(self, queryset: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        """The view divides the entries of the project into index ranges."""
        return queryset


class AuditActor(Serializer):
    kind = fields.ChoiceField(choices=["account", "user", "key", "staff", "system"], source="actor_kind")
    id = fields.CharField(source="actor_id_for_members", allow_null=True, help_text="Null for `staff` and `system`.")


class AuditEntryDetail(Serializer):
    id = fields.CharField()
    at = fields.DateTimeField()
    action = fields.CharField()
    actor = AuditActor(source="*")
    target_id = fields.CharField(allow_null=True)
    environment_id = fields.CharField(allow_null=True)
    detail = fields.ObjectField(source="shown_detail")
    request_id = fields.CharField(allow_null=True)


@extend_schema_view(
    list=extend_schema(
        operation_id="listAuditEntries",
        parameters=[OpenApiParameter("project", {"type": "string"}, required=True)],
        responses=listing(AuditEntryDetail),
        description="The audit log of a project, the newest entries first. Owners only.",
    )
)
class AuditViewSet(ListModelMixin, ResourceViewSet):
    environment_use = "unused"
    required_scopes = {"list": "projects:read"}
    also_raises: ClassVar = {"list": (Forbidden, NotFound)}
    serializer_class = AuditEntryDetail
    filterset_class = AuditFilter
    cursor_kind, ordering = "audit", ("-at", "-id")
    project: Project

    def get_queryset(self) -> QuerySet[AuditEntry]:
        return AuditEntry.objects.exclude(_OWN_AFFAIRS)

    def filter_queryset(self, queryset: Any) -> Any:
        found = super().filter_queryset(queryset)
        self.project = team_of(self.caller, self.query["project"], "owner", though_suspended=True)
        return found

    def index_ranges(self, queryset: QuerySet[AuditEntry]) -> Sequence[QuerySet[AuditEntry]]:
        """The entries of the project, and those of each of its environments that name no project."""
        environment_ids = set(self.project.environments.values_list("pk", flat=True))
        if "environment" in self.query:
            environment_ids &= {self.query["environment"]}
        of_project = queryset.filter(project_id=self.project.pk)
        return [of_project, *(queryset.filter(project_id=None, environment_id=pk) for pk in sorted(environment_ids))]

    def cursor_facts(self) -> Sequence[Fact]:
        wanted = sorted(self.filterset.form.cleaned_data.items())
        texts = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in wanted}
        project = texts.pop("project")
        return [project, *(f"{name}={text}" for name, text in texts.items() if text is not None)]
