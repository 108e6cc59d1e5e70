from django.urls import path

from rows.api import openapi_views
from rows.api.aggregate_views import AggregateViewSet
from rows.api.batch_views import BatchViewSet
from rows.api.change_views import ChangesViewSet
from rows.api.row_views import RowViewSet
from rows.api.schema_views import SchemaViewSet

urlpatterns = [
    path(
        "v1/rows/<str:table>",
        RowViewSet.as_view({"get": "list", "post": "create", "patch": "bulk_update", "delete": "bulk_destroy"}),
    ),
    # No row may be called so (`column_values.RESERVED_IDS`): these would hide it.
    path("v1/rows/<str:table>/query", RowViewSet.as_view({"post": "search"})),
    path("v1/rows/<str:table>/explain", RowViewSet.as_view({"post": "explain"})),
    path(
        "v1/rows/<str:table>/aggregate",
        AggregateViewSet.as_view(
            {"post": "aggregate", "get": "retrieve", "patch": "partial_update", "delete": "destroy"}
        ),
    ),
    path(
        "v1/rows/<str:table>/<str:row_id>",
        RowViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path("v1/openapi.json", openapi_views.openapi, name="openapi"),
    path("v1/batch", BatchViewSet.as_view({"post": "create"})),
    path("v1/changes", ChangesViewSet.as_view({"post": "create"})),
    path("v1/schema", SchemaViewSet.as_view({"get": "retrieve", "put": "replace"})),
    path("v1/schema/types.ts", SchemaViewSet.as_view({"get": "types"})),
    path("v1/schema/versions", SchemaViewSet.as_view({"get": "versions"})),
    path("v1/schema/versions/<int:number>", SchemaViewSet.as_view({"get": "version"})),
    path("v1/schema/revert", SchemaViewSet.as_view({"post": "revert"})),
]
