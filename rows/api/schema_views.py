"""`/v1/schema`: the document of the environment, its versions, and changing it."""

import re
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from platform_site.http.errors import Conflict, PreconditionFailed, QuotaExceeded, Unavailable, ValidationFailed
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.openapi.description import IF_MATCH, IF_NONE_MATCH
from platform_site.http.pagination import paginate, read_limit
from platform_site.http.views import ApiViewSet, respond
from rows.api import etags
from rows.api import schema_serializers as serializers
from rows.codegen.generated import generated
from rows.codegen.role_tables import RoleTables
from rows.codegen.typescript import types_module
from rows.migrate import rule_impact
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.rules.principal import Principal

TYPESCRIPT: Final = "application/typescript"
_ROLE: Final = OpenApiParameter(
    "role",
    str,
    description="A role as rules name it: `user`, `anonymous`, `member`, `server` or one of your own. Default: the "
    "caller's.",
)
_VERSION: Final = re.compile(r"\d{1,9}", re.ASCII)
_PENDING: Final = "-indexes-pending"


class SchemaViewSet(ApiViewSet):
    long_floats = "refused"
    required_scopes = {
        **dict.fromkeys(("retrieve", "versions", "version", "types"), "schema:read"),
        **dict.fromkeys(("replace", "revert"), "schema:write"),
    }
    query_parameters = {"versions": frozenset({"limit", "cursor"}), "types": frozenset({"role"})}
    has_etag = frozenset({"retrieve", "replace", "revert", "types"})
    also_raises = {
        **dict.fromkeys(("replace", "revert"), (Conflict, PreconditionFailed, QuotaExceeded, Unavailable)),
        "types": (Unavailable,),
    }

    @extend_schema(parameters=[IF_NONE_MATCH], responses={200: serializers.SchemaResponse, 304: None})
    def retrieve(self, request: HttpRequest) -> HttpResponseBase:
        """The schema as it is now; version 0 and no tables before the first. The `ETag` goes into `If-Match`.

        304 if `If-None-Match` names it."""
        state = schema_versions.current(self.environment)
        headers = _etag(state.version, indexes_pending=state.indexes_due)
        return etags.not_modified(request, headers) or respond(serializers.SchemaResponse(state).data, headers=headers)

    @extend_schema(parameters=[IF_MATCH], request=serializers.SchemaChange, responses=serializers.OutcomeResponse)
    def replace(self, request: HttpRequest) -> HttpResponseBase:
        """Make this document the schema, in one transaction, or with `dry_run` list what that would do.

        Operations that lose data must be named in `confirm`. With `impact`, a dry run also counts the rows that become
        visible or hidden, and to whom; it needs the scope `rows:read`, and `users:manage` to name users. Sending the
        document that is applied already changes nothing."""
        values = self.read(serializers.SchemaChange)
        return self._change(request, values["document"], values)

    @idempotent(using=in_region)
    @extend_schema(parameters=[IF_MATCH], request=serializers.SchemaRevert, responses=serializers.OutcomeResponse)
    def revert(self, request: HttpRequest) -> HttpResponseBase:
        """Bring back the document of an earlier version, as a new version; names that changed since change back."""
        values = self.read(serializers.SchemaRevert)
        document = schema_versions.document_to_revert_to(self.environment, values["version"], values["backfill"])
        return self._change(request, document, values, reverts_to=values["version"])

    @extend_schema(operation_id="listSchemaVersions", responses=serializers.SchemaVersionPage)
    def versions(self, request: HttpRequest) -> HttpResponseBase:
        """Every version that was applied, the newest first. A page of large documents holds fewer than `limit`."""
        page = paginate(
            schema_versions.history(self.environment),
            ["-version"],
            read_limit(self.query.get("limit")),
            self.query.get("cursor"),
            "schema-versions",
            [self.environment.environment_id],
            heavy="document_text",
        )
        shown = serializers.VersionResponse(page.items, many=True).data
        return respond({"data": shown, "next_cursor": page.next_cursor})

    @extend_schema(operation_id="getSchemaVersion", responses=serializers.VersionResponse)
    def version(self, request: HttpRequest, number: int) -> HttpResponseBase:
        """One version."""
        return respond(serializers.VersionResponse(schema_versions.version(self.environment, number)).data)

    @extend_schema(
        operation_id="getSchemaTypes",
        parameters=[_ROLE, IF_NONE_MATCH],
        responses={(200, TYPESCRIPT): OpenApiTypes.STR, 304: None},
    )
    def types(self, request: HttpRequest) -> HttpResponseBase:
        """TypeScript types of the tables as a role may use them: rows, inserts, updates, filters, relations.

        Tables and columns that no rule grants to the role are left out. 304 if `If-None-Match` names the `ETag`."""
        found = generated(self.environment, Principal.of(self.caller), self.query.get("role"), _types)
        headers = {"ETag": found.etag, "Cache-Control": "private, no-cache"}
        return etags.not_modified(request, headers) or HttpResponse(
            found.text, content_type=TYPESCRIPT, headers=headers
        )

    def _change(
        self, request: HttpRequest, document: Any, values: dict[str, Any], reverts_to: int | None = None
    ) -> HttpResponseBase:
        expected = _expected(request)
        if values["impact"]:
            if not values["dry_run"]:
                raise ValidationFailed.of("impact", "invalid", "Only a dry run counts the impact.")
            self.caller.need("rows:read")
        try:
            if values["dry_run"]:
                outcome = schema_service.rehearse(self.environment, document, actor=self.caller, expected=expected)
            else:
                outcome = schema_service.change(
                    self.environment,
                    document,
                    actor=self.caller,
                    expected=expected,
                    confirm=values["confirm"],
                    reverts_to=reverts_to,
                )
        except schema_service.VersionConflict as error:
            if expected is None:
                raise
            message = f"The schema is at version {error.version}, not at {expected}."
            raise PreconditionFailed(message, headers=_etag(error.version)) from error
        shown = {
            "outcome": outcome,
            "warnings": map(serializers.with_path, outcome.warnings),
            "dry_run": values["dry_run"],
        }
        if values["impact"]:
            shown["impact"] = rule_impact.of_change(
                self.environment, document, name_users=self.caller.may("users:manage")
            )
        return respond(serializers.OutcomeResponse(shown).data, headers=_etag(outcome.version))


def _types(tables: RoleTables) -> bytes:
    return types_module(tables).encode()


def _etag(version: int, *, indexes_pending: bool = False) -> dict[str, str]:
    """The response of a version changes when its indexes are built. Writes ignore the suffix."""
    return {"ETag": f'"{version}{_PENDING if indexes_pending else ""}"'}


def _expected(request: HttpRequest) -> int | None:
    """The version in `If-Match`, or None. Raises PreconditionFailed, ValidationFailed (`If-None-Match`)."""
    etags.refuse(request.META, ("If-None-Match",), etags.ONLY_IF_MATCH)
    header = request.headers.get("If-Match")
    if header is None or header.strip() == "*":
        return None
    named = etags.values(header) or (header.strip(),)
    version = named[0].removesuffix(_PENDING)
    if len(named) != 1 or not _VERSION.fullmatch(version):
        raise PreconditionFailed('If-Match must be one version in quotes, such as "3".')
    return int(version)
