"""`GET /v1/openapi.json`: the platform's description, and with `environment` that of an environment with its tables."""

import orjson
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from platform_site.http import exception_handler
from platform_site.http.errors import ValidationFailed
from platform_site.http.openapi import description as platform_openapi
from platform_site.http.views import ApiViewSet, respond
from platform_site.identity import ids
from rows.api import etags
from rows.codegen.generated import generated
from rows.codegen.openapi import environment_description
from rows.codegen.role_tables import RoleTables
from rows.rules.principal import Principal

PARAMETER = "environment"


class EnvironmentDescriptionViewSet(ApiViewSet):
    required_scopes = {"retrieve": "schema:read"}
    query_parameters = {"retrieve": frozenset({PARAMETER, "role"})}

    def retrieve(self, request: HttpRequest) -> HttpResponseBase:
        """The platform's description with the tables of the environment, as a role may use them."""
        found = generated(self.environment, Principal.of(self.caller), self.query.get("role"), _description)
        headers = {"ETag": found.etag, "Cache-Control": "private, no-cache"}
        return etags.not_modified(request, headers) or respond(found.text, headers=headers)


def _description(tables: RoleTables) -> bytes:
    return orjson.dumps(environment_description(platform_openapi.description(settings.ROOT_URLCONF), tables))


_environment_description = EnvironmentDescriptionViewSet.as_view({"get": "retrieve"})


def openapi(request: HttpRequest) -> HttpResponseBase:
    """Public without `environment`; with it, the caller needs `schema:read` there."""
    if PARAMETER not in request.GET:
        return platform_openapi.openapi(request)
    named = request.GET[PARAMETER]
    if not ids.matches("env", named):
        refused = ValidationFailed.of(PARAMETER, "invalid_id", "Must be an id that starts with env_.")
        return exception_handler.respond(refused)
    # The environment that the call means, as if the header had named it: the caller is checked against it.
    request.META["HTTP_X_ENVIRONMENT"] = named
    return _environment_description(request)
