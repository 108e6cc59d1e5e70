"""`/v1/schema`: the document of the environment, its versions, and changing it."""

import re
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema

from platform_site.http.errors import Conflict, PreconditionFailed, QuotaExceeded, Unavailable
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.openapi import IF_MATCH
from platform_site.http.pagination import paginate, read_limit
from platform_site.http.views import ApiViewSet, answer
from rows.api import etags
from rows.migrate import errors as migrate_errors
from rows.migrate import service as schema_service
from rows.migrate.errors import outcome_answer, state_answer, version_answer

_VERSION: Final = re.compile(r"\d{1,9}", re.ASCII)


class SchemaViewSet(ApiViewSet):
    required_scopes = {
        "retrieve": "schema:read",
        "replace": "schema:write",
        "versions": "schema:read",
        "version": "schema:read",
        "revert": "schema:write",
    }
    query_parameters = {"versions": frozenset({"limit", "cursor"})}
    tagged = frozenset({"retrieve", "replace", "revert"})
    also_raises = {
        "replace": (Conflict, PreconditionFailed, QuotaExceeded, Unavailable),
        "revert": (Conflict, PreconditionFailed, QuotaExceeded, Unavailable),
    }

    @extend_schema(responses=migrate_errors.SchemaAnswer)
    def retrieve(self, request: HttpRequest) -> HttpResponseBase:
        """The schema as it is now; version 0 and no tables before the first. The `ETag` goes into `If-Match`."""
        state = schema_service.current(self.place)
        return answer(state_answer(state), headers=_etag(state.version))

    @extend_schema(parameters=[IF_MATCH], request=migrate_errors.SchemaChange, responses=migrate_errors.OutcomeAnswer)
    def replace(self, request: HttpRequest) -> HttpResponseBase:
        """Make this document the schema, in one transaction, or with `dry_run` list what that would do.

        Operations that lose data must be named in `confirm`. Sending the document that is applied already changes
        nothing.
        """
        values = self.read(migrate_errors.SchemaChange)
        return self._change(request, values["document"], values)

    @idempotent(using=in_region)
    @extend_schema(parameters=[IF_MATCH], request=migrate_errors.SchemaRevert, responses=migrate_errors.OutcomeAnswer)
    def revert(self, request: HttpRequest) -> HttpResponseBase:
        """Bring back the document of an earlier version, as a new version; names that changed since change back."""
        values = self.read(migrate_errors.SchemaRevert)
        document = schema_service.document_to_revert_to(self.place, values["version"])
        return self._change(request, document, values, reverts_to=values["version"])

    @extend_schema(operation_id="listSchemaVersions", responses=migrate_errors.SchemaVersionPage)
    def versions(self, request: HttpRequest) -> HttpResponseBase:
        """Every version that was applied, the newest first. A page of large documents holds fewer than `limit`."""
        page = paginate(
            schema_service.history(self.place),
            ["-version"],
            read_limit(self.query.get("limit")),
            self.query.get("cursor"),
            "schema-versions",
            [self.place.environment_id],
            heavy="document_text",
        )
        return answer({"data": [version_answer(record) for record in page.items], "next_cursor": page.next_cursor})

    @extend_schema(operation_id="getSchemaVersion", responses=migrate_errors.VersionAnswer)
    def version(self, request: HttpRequest, number: int) -> HttpResponseBase:
        """One version."""
        return answer(version_answer(schema_service.version(self.place, number)))

    def _change(
        self, request: HttpRequest, document: Any, values: dict[str, Any], reverts_to: int | None = None
    ) -> HttpResponseBase:
        expected = _expected(request)
        try:
            if values["dry_run"]:
                outcome = schema_service.rehearse(self.place, document, expected=expected)
            else:
                outcome = schema_service.change(
                    self.place,
                    document,
                    actor=self.caller,
                    expected=expected,
                    confirm=values["confirm"],
                    reverts_to=reverts_to,
                )
        except schema_service.VersionMoved as error:
            if expected is None:
                raise
            message = f"The schema is at version {error.version}, not at {expected}."
            raise PreconditionFailed(message, headers=_etag(error.version)) from error
        return answer(outcome_answer(outcome, dry_run=values["dry_run"]), headers=_etag(outcome.version))


def _etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"'}


def _expected(request: HttpRequest) -> int | None:
    """The version that `If-Match` names; None without the header or with `*`. Raises PreconditionFailed for a tag that
    no version of ours has, ValidationFailed for an `If-None-Match`."""
    etags.refuse(request.META, ("If-None-Match",), etags.ONLY_IF_MATCH)
    header = request.headers.get("If-Match")
    if header is None or header.strip() == "*":
        return None
    named = etags.values(header) or (header.strip(),)
    if len(named) != 1 or not _VERSION.fullmatch(named[0]):
        raise PreconditionFailed('If-Match must be one version in quotes, such as "3".')
    return int(named[0])
