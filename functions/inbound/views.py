"""The addresses of inbound addresses: those by which their owner makes and revokes them, and themselves."""

import logging

import orjson
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema

from functions.api.views import NamedViewSet
from functions.deploy import service as functions
from functions.errors import AddressesQuotaReached, ForUsersOnly, Loop, NoSuchAddress, NoSuchFunction
from functions.execution import request_concurrency
from functions.execution.custom_response import CONTENT_POLICY, Response
from functions.execution.executor import Ended
from functions.inbound import dispatch, request_message, serializers
from functions.inbound import service as inbound_service
from functions.inbound.dispatch import Arrival
from functions.models import Run
from functions.runs.start import Started
from functions.triggers import inbound_endpoints
from platform_site.concurrency import server_hints
from platform_site.http import client_ip
from platform_site.http.errors import FunctionFailed, FunctionTimeout, PayloadTooLarge, ProjectSuspended, Unavailable
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.views import ApiViewSet, answer, created, never_stored, no_content
from platform_site.identity import call_depth

log = logging.getLogger("platform.functions")

_OWN_WORDS = OpenApiResponse(
    str,
    description="What the function says itself by `$response`: any status but a redirect, with the status's own body in"
    " the place of an error's. Also of another text or JSON type.",
)
_OUTPUTS = {
    (200, "application/json"): OpenApiTypes.ANY,
    (200, "text/plain"): str,
    ("default", "text/plain"): _OWN_WORDS,
    ("default", "text/xml"): _OWN_WORDS,
}


class InboundAddressViewSet(NamedViewSet):
    """`/v1/functions/{name}/inbound` and `/v1/functions/{name}/inbound/{address_id}`."""

    required_scopes = {"list": "functions:read", "create": "functions:deploy", "destroy": "functions:deploy"}
    query_parameters = {"list": frozenset()}
    also_raises = {"create": (ForUsersOnly, AddressesQuotaReached)}
    optional_bodies = frozenset({"create"})

    @extend_schema(operation_id="listInboundAddresses", responses=serializers.AddressList)
    def list(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """The function's inbound addresses, the oldest first. Their URLs are shown to nobody again."""
        self._for_makers()
        found = inbound_service.all_of(self.place, functions.function_of(self.place, name))
        return answer({"data": [serializers.address_detail(each) for each in found]})

    @idempotent(using=in_region)
    @extend_schema(request=serializers.NewAddress, responses={201: serializers.MadeAddress})
    def create(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Make an address by which a provider's webhooks reach the function. `url` is shown this once."""
        values = self.read(serializers.NewAddress)
        made, url = inbound_service.make(self.place, name, values, runs_as=self.caller, actor=self.caller)
        shown = serializers.address_detail(made) | {"url": url}
        return never_stored(created(f"/v1/functions/{name}/inbound/{made.address.pk}", shown))

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, name: str, address_id: str) -> HttpResponseBase:
        """Revoke an inbound address. It answers no more from now on."""
        inbound_service.revoke(self.place, name, address_id, actor=self.caller)
        return no_content()


class InboundViewSet(ApiViewSet):
    """`/v1/inbound/{token}`: an address itself. Who has it needs nothing else, and learns nothing where it is none."""

    public = True
    foreign_queries = True
    unsafe_reads = frozenset({"get"})
    _RAISES = (
        FunctionFailed, FunctionTimeout, Loop, NoSuchAddress, PayloadTooLarge, ProjectSuspended, Unavailable,
    )  # fmt: skip
    also_raises = {"get": _RAISES, "post": _RAISES}

    @extend_schema(operation_id="deliverInbound", request=None, responses={**_OUTPUTS, 202: serializers.Queued})
    def post(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Call a function by its inbound address, with any body. It is queued, or answers with its output: as the
        address says. What it returns as `$response` is its own status, headers and body."""
        arrival = self._arrive(token)
        return self._queued(arrival, token) if arrival.record.is_async else self._output(arrival, token)

    @extend_schema(operation_id="verifyInbound", responses=_OUTPUTS)
    def get(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Call a function by its inbound address and wait for its answer, as providers do that send a challenge."""
        return self._output(self._arrive(token), token)

    @extend_schema(exclude=True)
    def head(self, request: HttpRequest, token: str) -> HttpResponseBase:
        """Whether the address is one: 200 or 404, and nothing runs."""
        self._arrive(token)
        return never_stored(answer(b""))

    def _arrive(self, token: str) -> Arrival:
        request = self.request._request
        arrival = dispatch.arrive(request, token)
        request.__dict__["caller"] = arrival.caller  # for the access log
        return arrival

    def _queued(self, arrival: Arrival, token: str) -> HttpResponseBase:
        server_hints.begin()
        try:
            run_id = functions.enqueue(
                arrival.place, arrival.caller, arrival.record.function_name, self._input(arrival, token),
                depth=self._depth(arrival), address_id=arrival.record.address_id,
            )  # fmt: skip
        except NoSuchFunction:
            raise NoSuchAddress from None
        _note_use(arrival)
        return answer({"run_id": run_id}, 202)

    def _output(self, arrival: Arrival, token: str) -> HttpResponseBase:
        """What the function returns: a text as it is, which is how a challenge is answered, anything else as JSON, or
        the answer that it words itself."""
        place, caller, name = arrival.place, arrival.caller, arrival.record.function_name
        address_id, input_text = arrival.record.address_id, self._input(arrival, token)
        try:
            started, ended = request_concurrency.in_turn(
                self.request._request,
                request_concurrency.turn_of(place, caller, name=f"address {address_id}", size=len(input_text)),
                lambda: functions.timeout_of(place, caller, name),
                lambda: functions.invoke(
                    place, caller, name, input_text, depth=self._depth(arrival), address_id=address_id
                ),
            )
        except NoSuchFunction:
            raise NoSuchAddress from None
        _note_use(arrival)
        answered = never_stored(_answer(started, ended))
        answered.headers["Content-Security-Policy"] = CONTENT_POLICY
        return answered

    def _input(self, arrival: Arrival, token: str) -> str:
        request = self.request._request
        client = client_ip.client_address(request)
        facts = {"client": client, "address_id": arrival.record.address_id}
        return request_message.input_of(request.META, request.body, token, facts)

    def _depth(self, arrival: Arrival) -> int:
        return call_depth.depth_of(self.request._request.META, arrival.place.environment_id)


def _answer(started: Started, ended: Ended) -> HttpResponse:
    """A failure is told so that providers send again, and without the function's words: they may not be for them."""
    if ended.is_timeout:
        raise FunctionTimeout(extra={"run_id": started.run_id})
    if ended.ending.status != Run.Status.SUCCEEDED:
        raise FunctionFailed(extra={"run_id": started.run_id})
    if ended.response is not None:
        return _worded(ended.response)
    output = ended.ending.output or "null"
    if output.startswith('"'):
        return HttpResponse(orjson.loads(output), content_type="text/plain; charset=utf-8")
    return answer(output.encode())


def _worded(response: Response) -> HttpResponse:
    """The function's own answer."""
    made = HttpResponse(response.body, status=response.status, headers={**response.headers})
    if "content-type" not in response.headers:
        del made.headers["Content-Type"]
    return made


def _note_use(arrival: Arrival) -> None:
    """No reason to refuse what is done if it fails."""
    try:
        inbound_endpoints.note_use(arrival.place, arrival.record.address_id)
    except Error as error:
        log.warning("a use was not noted: %s", type(error).__name__, extra={"address": arrival.record.address_id})
