from typing import Final

from functions.models import Function
from platform_site.http import fields
from platform_site.http.fields import Serializer
from platform_site.http.openapi.description import listing

_LABEL: Final = "A label, shown in lists."
_ASYNC: Final = "Whether POST is answered at once and the run queued; else the answer is the function's output."


class NewEndpoint(Serializer):
    label = fields.CharField(max_length=100, required=False, help_text=_LABEL)  # type: ignore[assignment]
    async_ = fields.BooleanField(required=False, default=True, help_text=_ASYNC)


class Endpoint(Serializer):
    id = fields.CharField()
    label = fields.CharField(help_text=_LABEL)  # type: ignore[assignment]
    runs_as = fields.CharField(source="runs_as_id", help_text="The key or account whose rights its runs have.")
    stopped = fields.ChoiceField(
        choices=[Function.Stopped.CALLER_GONE.value], allow_null=True, help_text="Why it returns 404."
    )
    uses = fields.IntegerField(help_text="How many requests it has accepted.")
    last_used_at = fields.DateTimeField(allow_null=True)
    created_at = fields.DateTimeField()
    async_ = fields.BooleanField(source="is_async", help_text=_ASYNC)


class CreatedEndpoint(Endpoint):
    url = fields.CharField(help_text="The URL for the provider. Shown once: everyone who has it can call the function.")


EndpointList = listing(Endpoint, paged=False)


class Queued(Serializer):
    run_id = fields.CharField()
