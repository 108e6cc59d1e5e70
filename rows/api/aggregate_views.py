from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers

from platform_site.http import fields
from platform_site.http.views import respond
from rows import services
from rows.api.row_views import RowViewSet
from rows.api.serializers import Described, refuse_unknown_fields
from rows.query.aggregates.request import AGGREGATE_FIELDS, DATE_PARTS, MAX_GROUPS, MAX_KEYS

_ROW_ID: Final = "aggregate"


class Aggregate(fields.Serializer):
    group = serializers.ListField(
        child=fields.CharField(),
        required=False,
        max_length=MAX_KEYS,
        help_text=f"Columns, or date parts of them ({', '.join(DATE_PARTS)}), such as `created_at.month`.",
    )
    count = serializers.BooleanField(required=False, help_text="Also the number of rows, as `count`.")
    count_distinct = serializers.ListField(child=fields.CharField(), required=False, help_text="Columns.")
    avg = serializers.ListField(child=fields.CharField(), required=False, help_text="Columns of numbers.")
    where = serializers.DictField(required=False, help_text="The filter of the rows.")
    having = serializers.DictField(required=False, help_text="The filter of the groups, over the names of the results.")
    order = fields.CharField(required=False, help_text="Results and directions, such as `sum_value.desc`.")
    limit = serializers.IntegerField(required=False, min_value=1, max_value=MAX_GROUPS)
    cursor = fields.CharField(required=False)
    time_zone = fields.CharField(required=False, help_text="Of date parts, such as `Europe/Berlin`; default UTC.")
    sum = serializers.ListField(child=fields.CharField(), required=False, help_text="Columns.")
    min = serializers.ListField(child=fields.CharField(), required=False, help_text="Columns.")
    max = serializers.ListField(child=fields.CharField(), required=False, help_text="Columns.")


class GroupPage(Described):
    description = {
        "type": "object",
        "properties": {
            "data": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "The group's keys, then its results, such as `count` and `sum_value`.",
                    "additionalProperties": True,
                },
            },
            "next_cursor": {"type": ["string", "null"], "description": "Pass it as `cursor`; null at the end."},
        },
        "required": ["data", "next_cursor"],
    }


class AggregateViewSet(RowViewSet):
    safe_posts = frozenset({"aggregate"})
    required_scopes = {**RowViewSet.required_scopes, "aggregate": "rows:read"}
    query_parameters = {**RowViewSet.query_parameters, "aggregate": frozenset[str]()}

    @extend_schema(operation_id="aggregateRows", request=Aggregate, responses=GroupPage)
    def aggregate(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """Counts, sums, averages, minima and maxima of the rows that the caller may read, by group.

        It changes nothing. A cell that the caller may not read counts as null."""
        body = self.read_object()
        message = f"There is no such field. The fields are {', '.join(sorted(AGGREGATE_FIELDS))}."
        refuse_unknown_fields(body, AGGREGATE_FIELDS, message)
        return respond(services.aggregate_rows(self.environment, self._principal(), table, body, self.freshness).body)

    @extend_schema(exclude=True)
    def retrieve(self, request: HttpRequest, table: str, row_id: str = _ROW_ID) -> HttpResponseBase:
        return super().retrieve(request, table, row_id)

    @extend_schema(exclude=True)
    def partial_update(self, request: HttpRequest, table: str, row_id: str = _ROW_ID) -> HttpResponseBase:
        return super().partial_update(request, table, row_id)

    @extend_schema(exclude=True)
    def destroy(self, request: HttpRequest, table: str, row_id: str = _ROW_ID) -> HttpResponseBase:
        return super().destroy(request, table, row_id)
