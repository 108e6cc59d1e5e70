"""Serializers of inbound endpoints."""

from typing import Any, Final

from functions.inbound.service import EndpointWithToken
from platform_site.http import fields
from platform_site.http.fields import Serializer, timestamp
from platform_site.http.openapi.description import listing

CALLER_DELETED: Final = "caller_gone"
_LABEL: Final = "A name for it."
_ASYNC: Final = "Whether POST is answered at once and the run queued; else the answer is the function's output."


class NewEndpoint(Serializer):
    label = fields.CharField(max_length=100, required=False, help_text=_LABEL)  # type: ignore[assignment]

    def get_fields(self) -> dict[str, Any]:
        """`async` is a Python keyword, so it cannot be declared as an attribute."""
        return {**super().get_fields(), "async": fields.BooleanField(required=False, default=True, help_text=_ASYNC)}


class Endpoint(Serializer):
    id = fields.CharField()
    label = fields.CharField(help_text=_LABEL)  # type: ignore[assignment]
    runs_as = fields.CharField(help_text="The key or account whose rights its runs have.")
    stopped = fields.ChoiceField(choices=[CALLER_DELETED], allow_null=True, help_text="Why it returns 404.")
    uses = fields.IntegerField(help_text="How many requests it has accepted.")
    last_used_at = fields.DateTimeField(allow_null=True)
    created_at = fields.DateTimeField()

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "async": fields.BooleanField(help_text=_ASYNC)}


class CreatedEndpoint(Endpoint):
    url = fields.CharField(help_text="The URL for the provider. Shown once: everyone who has it can call the function.")


EndpointList = listing(Endpoint, paged=False)


class Queued(Serializer):
    run_id = fields.CharField()


def endpoint_detail(shown: EndpointWithToken) -> dict[str, Any]:
    endpoint = shown.endpoint
    return {
        "id": endpoint.pk,
        "label": endpoint.label,
        "async": endpoint.is_async,
        "runs_as": endpoint.runs_as_id,
        "stopped": CALLER_DELETED if shown.is_stopped else None,
        "uses": endpoint.uses,
        "last_used_at": timestamp(endpoint.last_used_at) if endpoint.last_used_at else None,
        "created_at": timestamp(endpoint.created_at),
    }
