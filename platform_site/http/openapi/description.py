"""The API description: OpenAPI 3.1 by drf-spectacular at `/v1/openapi.json`. An action is described by its docstring
(the summary is the text up to the first full stop or colon) and its bodies by `extend_schema`. Scope, query parameters,
and further errors (`also_raises`) are read from the viewset; errors follow from the shape of an operation, too."""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework.serializers import BaseSerializer

from platform_site.http import errors, fields
from platform_site.http.errors import ApiError
from platform_site.http.generics import ResourceViewSet
from platform_site.http.views import ApiViewSet, is_replaced
from platform_site.observability.metrics import reads_only


def listing(
    item: type[BaseSerializer[Any]], *, paged: bool = True, name: str | None = None
) -> type[BaseSerializer[Any]]:
    members: dict[str, Any] = {"data": item(many=True)}
    if paged:
        members["next_cursor"] = fields.CharField(allow_null=True, help_text="Pass it as `cursor`; null at the end.")
    return type(f"{name or item.__name__}{'Page' if paged else 'List'}", (fields.Serializer,), members)


LIMIT: Final = OpenApiParameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}, description="Maximum number of items."
)
CURSOR: Final = OpenApiParameter("cursor", {"type": "string"}, description="The `next_cursor` of the previous page.")
ENVIRONMENT: Final = OpenApiParameter(
    "X-Environment",
    {"type": "string", "pattern": "^env_[0-9a-z]{26}$"},
    OpenApiParameter.HEADER,
    description="The environment of the request, for platform accounts. Keys and app users belong to one.",
)
IF_MATCH: Final = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="Only if the resource still has this `ETag`."
)
IF_NONE_MATCH: Final = OpenApiParameter(
    "If-None-Match", str, OpenApiParameter.HEADER, description="304 and no body if the resource has this `ETag`."
)
IDEMPOTENCY_KEY: Final = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255},
    OpenApiParameter.HEADER,
    description="After a success, a repetition within 24 hours returns its response, and changes nothing.",
)
_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


class ApiSchema(AutoSchema):
    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None or not isinstance(self.view, ApiViewSet):
            return operation
        view: ApiViewSet = self.view
        if "requestBody" in operation:
            operation["requestBody"]["required"] = view.action not in view.optional_bodies
        scopes = () if view.public else view.scopes_of(view.action)
        if scopes:
            operation["x-required-scope"] = " ".join(scopes)
        if not view.public:
            needed = f"Scope: {', '.join(f'`{scope}`' for scope in scopes)}." if scopes else "Needs a valid token."
            operation["description"] = f"{operation.get('description', '')}\n\n{needed}".strip()
        responses = operation["responses"]
        is_repeatable = any(each["name"] == IDEMPOTENCY_KEY.name for each in operation.get("parameters", ()))
        for status, answer in responses.items():
            names = ["X-Request-Id"]
            # 202 as the only status creates no resource.
            if status in ("201", "303") or (status == "202" and len(responses) > 1):
                names.append("Location")
            if view.action in view.has_etag:
                names.append("ETag")
            if is_repeatable:
                names.append("Idempotency-Replayed")
            answer["headers"] = _headers(names) | answer.get("headers", {})
            answer["description"] = _SUCCESSES.get(status) or answer["description"] or "Done."
        meant: dict[str, list[type[ApiError]]] = {}
        for error in dict.fromkeys(_errors(view, operation)):
            meant.setdefault(str(error.status), []).append(error)
        responses |= {status: _error_response(of_status) for status, of_status in meant.items()}
        operation["responses"] = dict(sorted(responses.items()))
        return operation

    def _resource(self) -> str:
        return re.sub(r"ViewSet$", "", type(self.view).__name__)

    def get_operation_id(self) -> str:
        thing = self._resource()
        action: str = getattr(self.view, "action", "")
        verb = _VERBS.get(action, re.sub(r"_(\w)", lambda found: found[1].upper(), action))
        if action == "list" and not thing.endswith("s"):
            thing = re.sub(r"(?<=[^aeiou])y$", "ie", thing) + "s"
        return f"{verb}{thing}"

    def get_summary(self) -> str | None:
        return re.split(r"[.:](?:\s|$)", self.get_description(), maxsplit=1)[0].replace("\n", " ") or None

    def get_description(self) -> str:  # type: ignore[override]  # drf-spectacular's own signature
        """`extend_schema_view` gives inherited actions another description."""
        return inspect.getdoc(getattr(self.view, getattr(self.view, "action", ""), None)) or ""

    def _is_list_view(self, serializer: Any = None) -> bool:
        """Lists have a serializer of their own (`listing`)."""
        return False if isinstance(self.view, ApiViewSet) else super()._is_list_view(serializer)

    def get_tags(self) -> list[str]:
        words = [word for word in self.path.split("/") if word and word != "v1" and not word.startswith("{")]
        return [words[0].lstrip(".")]

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [] if getattr(self.view, "public", True) else [{"bearer": []}]

    def get_request_serializer(self) -> Any:
        is_input = self.method in _BODY_METHODS and not isinstance(self.view, ResourceViewSet)
        return getattr(self.view, "serializer_class", None) if is_input else None

    def get_response_serializers(self) -> Any:
        if isinstance(self.view, ResourceViewSet) and self.method != "DELETE":
            item = self.view.get_serializer_class()
            if self.view.action != "list":
                return item
            return listing(item, paged="cursor" in self.view.pagination_class.parameters, name=self._resource())
        return {204: None} if self.method == "DELETE" else {200: {"type": "object"}}

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        """JSON includes null: drf-spectacular's `oneOf` would match twice."""
        found: dict[str, Any] = super()._map_serializer_field(field, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        if found.get("oneOf") == [{}, {"type": "null"}]:
            del found["oneOf"]
        return found

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> dict[str, Any]:
        """Bounds apply to requests only: a response may hold more."""
        found: dict[str, Any] = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if direction == "response":
            for member in found.get("properties", {}).values():
                for bound in ("maxItems", "minimum", "maximum"):
                    member.pop(bound, None)
        return found

    def get_override_parameters(self) -> list[Any]:
        view = self.view
        if not isinstance(view, ApiViewSet):
            return []
        names = sorted(view.parameters_of(view.action) or ())
        found = [_KNOWN.get(name) or OpenApiParameter(name, {"type": "string"}) for name in names]
        if view.environment_use == "optional" or (view.environment_use == "required" and not view.public):
            found.append(ENVIRONMENT)
        if getattr(getattr(view, view.action), "is_idempotent", False):
            found.append(IDEMPOTENCY_KEY)
        return found


def _errors(view: ApiViewSet, operation: Mapping[str, Any]) -> list[type[ApiError]]:
    read = {(parameter["in"], parameter["name"]) for parameter in operation.get("parameters", ())}
    locations = {location for location, _ in read}
    names_environment = ("header", ENVIRONMENT.name) in read
    found: list[type[ApiError]] = [errors.InvalidRequest, errors.RateLimited, errors.Internal, errors.Unavailable]
    if "requestBody" in operation:
        found += [errors.PayloadTooLarge, errors.UnsupportedMediaType, errors.ValidationFailed]
    if "query" in locations or names_environment:
        found.append(errors.ValidationFailed)
    if ("header", IDEMPOTENCY_KEY.name) in read:
        found += [errors.Conflict, errors.ValidationFailed]
    if ("header", "If-Match") in read:
        found.append(errors.PreconditionFailed)
    if "path" in locations or (names_environment and view.client_errors_as is None):
        found.append(errors.NotFound)
    if not view.public:
        found.append(errors.Unauthorized)
        if view.scopes_of(view.action):
            found.append(errors.Forbidden)
    if not view.public or names_environment:
        found.append(errors.ProjectSuspended)
    found += view.also_raises.get(view.action, ())
    other = view.client_errors_as
    if other is not None:
        found = [other if is_replaced(one) else one for one in found]
    return found


_KNOWN: Final = {"limit": LIMIT, "cursor": CURSOR}
_VERBS: Final = {
    "list": "list",
    "partial_update": "update",
    "update": "replace",
    "destroy": "delete",
    "retrieve": "get",
}
_SUCCESSES: Final = {
    "200": "Done.",
    "201": "Created. `Location` is its URL.",
    "202": "Accepted. It continues in the background; `Location` is the URL of its state.",
    "204": "Done. The response has no body.",
    "303": "Continue at `Location`.",
    "304": "Not changed.",
}


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _error_response(meant: list[type[ApiError]]) -> dict[str, Any]:
    status = meant[0].status
    also = {429: ["Retry-After"], 503: ["Retry-After"], 401: ["WWW-Authenticate"], 412: ["ETag"]}
    return {
        "description": " ".join(f"`{error.code}`: {error.message}" for error in meant),
        "headers": _headers(["X-Request-Id", *also.get(status, ())]),
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/Error"},
                "examples": {error.code: {"value": _example_of(error)} for error in meant},
            }
        },
    }


def _example_of(error: type[ApiError]) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.code == "validation_failed":
        body["fields"] = [{"field": "name", "code": "required", "message": "This field is required."}]
    if error.code in ("function_failed", "function_timeout"):
        body["run_id"] = "run_01k6zv3c5jf6q8m0h2w4x7y9ab"
    return {"error": body | {"request_id": "req_01k6zv3c5jf6q8m0h2w4x7y9ab"}}


def _codes(error: type[ApiError] = ApiError) -> set[str]:
    return {error.code}.union(*map(_codes, error.__subclasses__()))


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    shared = json.loads(Path(__file__).with_name("components.json").read_text(encoding="utf-8"))
    shared["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"] = sorted(_codes())
    components = result.setdefault("components", {})
    schemas = components.get("schemas", {}) | shared["schemas"]
    components |= shared | {"schemas": dict(sorted(schemas.items()))}
    return result


@cache
def examples() -> dict[str, dict[str, Any]]:
    """`parameters` by name, `bodies` by operation id, in an order that works on the demo."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("examples.json").read_text())
    return found


def add_examples(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    operations = [each for path in result["paths"].values() for each in path.values() if isinstance(each, dict)]
    for operation in operations:
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in examples()["parameters"]:
                parameter["example"] = examples()["parameters"][parameter["name"]]
        body = examples()["bodies"].get(operation["operationId"])
        if body is not None and "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"]["example"] = body
    return result


def generic_view_classes() -> list[type]:
    from drf_spectacular.plumbing import get_lib_doc_excludes

    theirs: list[type] = get_lib_doc_excludes()  # type: ignore[no-untyped-call]
    return [*theirs, ApiViewSet, ResourceViewSet, fields.Serializer]


_generating: Final = Lock()


def _document(urlconf: str) -> tuple[bytes, str]:
    with _generating:  # drf-spectacular's generator changes what all threads share
        return _generated(urlconf)


@lru_cache(maxsize=4)
def _generated(urlconf: str) -> tuple[bytes, str]:
    schema = SchemaGenerator(urlconf=urlconf).get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    text = orjson.dumps(schema, default=str)
    return text, f'"{sha256(text).hexdigest()[:32]}"'


def description(urlconf: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(_document(urlconf)[0])
    return found


def openapi(request: HttpRequest) -> HttpResponse:
    reads_only(request)
    text, tag = _document(settings.ROOT_URLCONF)
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    response = HttpResponse(text, content_type="application/json", headers=headers)
    return get_conditional_response(request, etag=tag, response=response) or response
