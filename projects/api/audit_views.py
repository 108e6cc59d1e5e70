from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.core.validators import RegexValidator
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema

from accounts.models import AuditEntry
from platform_site.http import fields
from platform_site.http.errors import Forbidden, NotFound
from platform_site.http.fields import Serializer, timestamp
from platform_site.http.openapi.description import listing
from platform_site.http.pagination import read_limit
from platform_site.http.views import LIST_PARAMETERS, ApiViewSet, respond
from projects.api.views import team_of
from projects.directory import audit_log


class AuditQuery(Serializer):
    project = fields.IdField("prj")
    environment = fields.IdField("env", required=False)
    action = fields.CharField(
        max_length=60,
        required=False,
        validators=[
            RegexValidator(r"\A[a-z_]+\.(\*|[a-z_]+)\Z", "Must be like key.issued, or key.* for all.", "malformed")
        ],
    )
    actor = fields.CharField(max_length=30, required=False)
    target = fields.CharField(max_length=64, required=False)
    request_id = fields.CharField(max_length=64, required=False)
    since = fields.DateTimeField(required=False)
    until = fields.DateTimeField(required=False)


class AuditActor(Serializer):
    kind = fields.ChoiceField(choices=["account", "user", "key", "staff", "system"])
    id = fields.CharField(allow_null=True, help_text="Null for `staff` and `system`.")


class AuditEntryDetail(Serializer):
    id = fields.CharField()
    at = fields.DateTimeField()
    action = fields.CharField()
    actor = AuditActor()
    target_id = fields.CharField(allow_null=True)
    environment_id = fields.CharField(allow_null=True)
    detail = fields.ObjectField()
    request_id = fields.CharField(allow_null=True)


class AuditViewSet(ApiViewSet):
    environment = "unused"
    required_scopes = {"list": "projects:read"}
    query_parameters = {"list": LIST_PARAMETERS.union(AuditQuery().fields)}
    also_raises: ClassVar = {"list": (Forbidden, NotFound)}

    @extend_schema(
        operation_id="listAuditEntries",
        parameters=[OpenApiParameter("project", {"type": "string"}, required=True)],
        responses=listing(AuditEntryDetail),
    )
    def list(self, request: HttpRequest) -> HttpResponseBase:
        """The audit log of a project, the newest entries first. Owners only."""
        wanted = self.read_filters(AuditQuery)
        project = team_of(self.caller, wanted.pop("project"), "owner", though_suspended=True)
        page = audit_log.page(project, wanted, read_limit(self.query.get("limit")), self.query.get("cursor"))
        return respond({"data": [_entry(entry) for entry in page.items], "next_cursor": page.next_cursor})


def _entry(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.pk,
        "at": timestamp(entry.at),
        "action": entry.action,
        "actor": {"kind": entry.actor_kind, "id": None if entry.actor_kind == "staff" else entry.actor_id},
        "target_id": entry.target_id,
        "environment_id": entry.environment_id,
        "detail": _without_credentials(entry.detail),
        "request_id": entry.request_id,
    }


def _without_credentials(detail: dict[str, Any]) -> dict[str, Any]:
    """Receivers' URLs as scheme and host: the rest is often a credential."""
    url = detail.get("url")
    if not isinstance(url, str):
        return detail
    try:
        parts = urlsplit(url)
        return detail | {"url": f"{parts.scheme}://{parts.hostname or ''}"}
    except ValueError:
        return detail | {"url": ""}
