"""`POST /v1/changes`: what changes in the rows of several tables, as Server-Sent Events."""

from functools import partial
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from platform_site.http import fields
from platform_site.http.errors import NotFound
from platform_site.http.event_streams import EventStreamResponse
from platform_site.http.requests import named_environment, site_of
from platform_site.http.views import ApiViewSet
from platform_site.identity.callers import Caller
from projects import staff_access
from projects.api.authentication import check_again, lookup_of
from rows.api.serializers import refuse_unknown_fields
from rows.changes import open_stream
from rows.changes.credentials import SharedCredential, shared_credential
from rows.changes.positions import HEADER

_LAST_EVENT_ID: Final = OpenApiParameter(
    HEADER, str, OpenApiParameter.HEADER, description="The last `id` of an earlier stream, to continue after it."
)


_CREDENTIAL: Final = ("HTTP_AUTHORIZATION", "HTTP_X_ENVIRONMENT", "HTTP_HOST", "REMOTE_ADDR")


class ChangesRequest(fields.Serializer):
    subscriptions = serializers.DictField(
        child=serializers.DictField(),
        help_text="By name, as for a list: `{table, where?, columns?, with?}`. 1 to 20.",
    )


class ChangesViewSet(ApiViewSet):
    long_floats = "refused"
    required_scopes = {"create": "rows:read"}
    query_parameters = {"create": frozenset[str]()}
    safe_posts = frozenset({"create"})
    also_raises = {"create": (NotFound,)}

    @extend_schema(
        operation_id="streamChanges",
        parameters=[_LAST_EVENT_ID],
        request=ChangesRequest,
        responses={
            (200, "text/event-stream"): OpenApiResponse(
                OpenApiTypes.STR,
                description="Events `ready`, `row`, `gone`, `reset`, `ping` and `bye`, until one side ends it.",
            )
        },
    )
    def create(self, request: HttpRequest) -> HttpResponseBase:
        """A stream of what changes in the rows that the caller may read. It changes nothing."""
        body: dict[str, Any] = self.read_object()
        message = "There is no such field. The field is subscriptions."
        refuse_unknown_fields(sorted(body), {"subscriptions"}, message)
        last_id = self.http_request.META.get("HTTP_LAST_EVENT_ID")
        network = site_of(self.http_request)
        credential = self._shared_credential()
        stream = open_stream.open_stream(self.environment, self.caller, body, last_id, network, credential)
        return EventStreamResponse(stream.queue)

    def _shared_credential(self) -> SharedCredential:
        request = self.http_request
        meta = tuple((name, request.META[name]) for name in _CREDENTIAL if name in request.META)
        grant_id = request.__dict__.get(staff_access.ATTRIBUTE)
        credential: Any = self.request.auth
        lookup = lookup_of(credential, named_environment(request), "required") if grant_id is None else None
        return shared_credential((meta, grant_id), partial(_authenticate_again, meta, grant_id), self.caller, lookup)


def _authenticate_again(meta: tuple[tuple[str, str], ...], grant_id: str | None) -> Caller:
    request = HttpRequest()
    request.method = "POST"
    request.META = dict(meta)
    if grant_id is not None:
        request.__dict__[staff_access.ATTRIBUTE] = grant_id
    return check_again(request)
