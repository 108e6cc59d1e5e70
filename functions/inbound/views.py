from functools import partial
from typing import Any

import orjson
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from functions import directory
from functions.api.views import FunctionScopedViewSet
from functions.errors import ForUsersOnly, NoSuchEndpoint, NoSuchFunction
from functions.execution import calls, custom_response, request_concurrency
from functions.inbound import dispatch, request_message, serializers
from functions.inbound import service as inbound_service
from functions.inbound.dispatch import InboundRequest
from functions.runs.start import CreatedRun, NewRun
from functions.runtime.calls import Outcome
from functions.triggers import inbound_endpoints
from platform_site.concurrency import server_hints
from platform_site.http import errors
from platform_site.http.generics import ResourceViewSet, UnpagedList
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.requests import client_address
from platform_site.http.views import ApiViewSet, created, no_content, no_store, respond
from platform_site.identity import call_depth

_CUSTOM_RESPONSE = OpenApiResponse(
    str,
    description="What the function says itself by `$response`: any status but a redirect, with the status's own body in"
    " the place of an error's. Also of another text or JSON type.",
)
_OUTPUTS = {
    (200, "application/json"): OpenApiTypes.ANY,
    (200, "text/plain"): str,
    ("default", "text/plain"): _CUSTOM_RESPONSE,
    ("default", "text/xml"): _CUSTOM_RESPONSE,
}


@extend_schema_view(
    list=extend_schema(
        responses=serializers.EndpointList,
        description="The function's inbound endpoints, oldest first, without their URLs.",
    )
)
class InboundEndpointViewSet(ListModelMixin, FunctionScopedViewSet, ResourceViewSet):
    required_scopes = {
        "list": "functions:read",
        "create": ("functions:deploy", "functions:invoke"),
        "destroy": "functions:deploy",
    }
    also_raises = {"create": (ForUsersOnly, errors.QuotaExceeded)}
    optional_bodies = frozenset({"create"})
    serializer_class = serializers.Endpoint
    pagination_class = UnpagedList

    def get_queryset(self) -> Any:
        self._require_developer()
        return inbound_service.all_of(self.environment, directory.function_of(self.environment, self.kwargs["name"]))

    @idempotent(using=in_region)
    @extend_schema(request=serializers.NewEndpoint, responses={201: serializers.CreatedEndpoint})
    def create(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Create a URL by which a provider's webhooks reach the function. `url` is shown once."""
        values = self.read(serializers.NewEndpoint)
        made, url = inbound_service.create(self.environment, name, values, runs_as=self.caller, actor=self.caller)
        shown = self.get_serializer(made).data | {"url": url}
        return no_store(created(f"/v1/functions/{name}/inbound/{made.pk}", shown))

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, name: str, address_id: str) -> HttpResponseBase:
        """Revoke an inbound endpoint. It returns 404 from now on."""
        inbound_service.revoke(self.environment, name, address_id, actor=self.caller)
        return no_content()


class InboundViewSet(ApiViewSet):
    """`/v1/inbound/{token}`: an inbound endpoint itself. The token is the only credential."""

    public = True
    third_party_queries = True
    unsafe_reads = frozenset({"get"})
    _RAISES = (
        errors.FunctionFailed, errors.FunctionTimeout, errors.Conflict, NoSuchEndpoint, errors.PayloadTooLarge,
        errors.ProjectSuspended, errors.Unavailable,
    )  # fmt: skip
    also_raises = {"get": _RAISES, "post": _RAISES}

    @extend_schema(operation_id="deliverInbound", request=None, responses={**_OUTPUTS, 202: serializers.Queued})
    def post(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Call a function by its inbound endpoint, with any body. The run is queued, or its output returned, as the
        endpoint is configured. `$response` in the output sets the status, headers and body."""
        inbound = self._dispatch(token)
        if not inbound.endpoint.is_async:
            return self._output(inbound, token)
        server_hints.will_block()
        try:
            run_id = calls.enqueue(self._new_run(inbound, token))
        except NoSuchFunction:
            raise NoSuchEndpoint from None
        inbound_endpoints.note_use(inbound.environment, inbound.endpoint.endpoint_id)
        return respond({"run_id": run_id}, 202)

    @extend_schema(operation_id="verifyInbound", responses=_OUTPUTS)
    def get(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Call a function by its inbound endpoint and wait for the response, for providers that send a challenge."""
        return self._output(self._dispatch(token), token)

    @extend_schema(exclude=True)
    def head(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Whether the endpoint exists: 200 or 404. Runs nothing."""
        self._dispatch(token)
        return no_store(respond(b""))

    def _dispatch(self, token: str) -> InboundRequest:
        request = self.http_request
        inbound = dispatch.dispatch(request, token)
        request.__dict__["caller"] = inbound.caller  # for the access log
        return inbound

    def _output(self, inbound: InboundRequest, token: str) -> HttpResponseBase:
        """The custom response, else a string as plain text (for challenges), else JSON."""
        new = self._new_run(inbound, token)
        try:
            started, ended = request_concurrency.with_slot(self.http_request, new, partial(calls.invoke, new))
        except NoSuchFunction:
            raise NoSuchEndpoint from None
        inbound_endpoints.note_use(inbound.environment, inbound.endpoint.endpoint_id)
        response = no_store(_response_to(started, ended))
        response.headers["Content-Security-Policy"] = custom_response.CONTENT_POLICY
        return response

    def _new_run(self, inbound: InboundRequest, token: str) -> NewRun:
        request, endpoint_id = self.http_request, inbound.endpoint.endpoint_id
        facts = {"client": client_address(request), "address_id": endpoint_id}
        return NewRun(
            inbound.environment,
            inbound.caller,
            inbound.endpoint.function_name,
            request_message.input_of(request.META, request.body, token, facts),
            depth=call_depth.depth_of(request.META, inbound.environment.environment_id),
            endpoint_id=endpoint_id,
        )


def _response_to(started: CreatedRun, ended: Outcome) -> HttpResponse:
    """A failure makes providers retry, and does not show the function's message, which may be confidential."""
    if ended.reason == "timeout":
        raise errors.FunctionTimeout(extra={"run_id": started.run_id})
    if ended.reason is not None:
        raise errors.FunctionFailed(extra={"run_id": started.run_id})
    output = ended.output or "null"
    if (response := custom_response.read(output)) is not None:  # the executor has checked it
        made = HttpResponse(response.body, status=response.status, headers={**response.headers})
        if "content-type" not in response.headers:
            del made.headers["Content-Type"]
        return made
    if output.startswith('"'):
        return HttpResponse(orjson.loads(output), content_type="text/plain; charset=utf-8")
    return respond(output.encode())
