from django.core.validators import RegexValidator
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema

from platform_site.http import fields
from platform_site.http.fields import Serializer
from platform_site.http.filters import TimeField
from platform_site.http.generics import ResourceViewSet
from platform_site.http.pagination import read_limit
from platform_site.http.views import LIST_PARAMETERS, respond
from platform_site.request_log import reader


class LogQuery(Serializer):
    ignore_unknown = True  # `limit` and `cursor`

    since = TimeField(required=False)
    until = TimeField(required=False)
    request_id = fields.CharField(max_length=64, required=False)
    status = fields.CharField(
        max_length=3,
        required=False,
        validators=[
            RegexValidator(r"\A[1-5]([0-9]{2}|xx)\Z", "Must be a status such as 404, or a class: 4xx.", "malformed")
        ],
    )
    method = fields.CharField(max_length=10, required=False)
    route = fields.CharField(max_length=200, required=False)
    table = fields.CharField(max_length=63, required=False)
    caller = fields.CharField(max_length=30, required=False)
    function = fields.CharField(max_length=63, required=False)


class LogCaller(Serializer):
    kind = fields.ChoiceField(choices=["account", "user", "key", "anonymous", "staff"], source="caller_kind")
    id = fields.CharField(source="caller_id")


class LogEntryDetail(Serializer):
    at = fields.DateTimeField()
    request_id = fields.CharField()
    method = fields.CharField()
    route = fields.CharField(help_text="The path's template, such as `/v1/rows/{table}`.")
    table = fields.CharField(source="table_name", allow_null=True)
    function = fields.CharField(source="function_name", allow_null=True)
    status = fields.IntegerField()
    code = fields.CharField(allow_null=True, help_text="The code of the error.")
    field_codes = fields.ListField(child=fields.CharField(), help_text="The codes of the error's fields.")
    duration_ms = fields.FloatField()
    caller = LogCaller(source="*")


class LogEntryPage(Serializer):
    data = LogEntryDetail(many=True)  # type: ignore[assignment]  # a field with the name of a serializer's property
    next_cursor = fields.CharField(allow_null=True, help_text="Pass it as `cursor`; null at the end.")
    omitted = fields.IntegerField(help_text="Requests of the period that have no entry.")


class LogViewSet(ResourceViewSet):
    required_scopes = {"list": "logs:read"}
    query_parameters = {"list": LIST_PARAMETERS.union(LogQuery().fields)}
    serializer_class = LogEntryPage

    @extend_schema(operation_id="listLogEntries", responses=LogEntryPage)
    def list(self, request: HttpRequest) -> HttpResponseBase:
        """The requests of an environment, the newest first.

        A page may have fewer entries than `limit`, or none, and a cursor: few of the entries that it read match."""
        query = LogQuery(data=self.query)
        query.is_valid(raise_exception=True)
        wanted = query.validated_data
        status = wanted.pop("status", None)
        if status is not None and status.endswith("xx"):
            wanted["status_class"] = int(status[0])
        elif status is not None:
            wanted["status"] = int(status)
        page = reader.page(self.environment, wanted, read_limit(self.query.get("limit")), self.query.get("cursor"))
        return respond(self.get_serializer(page).data)
