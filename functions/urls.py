from django.urls import path

from functions.api.invocation_views import InvocationViewSet
from functions.api.views import FunctionViewSet, RunViewSet, VersionViewSet
from functions.inbound.views import InboundEndpointViewSet, InboundViewSet

urlpatterns = [
    path("v1/functions/<str:name>/invoke", InvocationViewSet.as_view({"post": "invoke"})),
    path("v1/functions", FunctionViewSet.as_view({"get": "list"})),
    path(
        "v1/functions/<str:name>",
        FunctionViewSet.as_view({"get": "retrieve", "put": "put", "patch": "configure", "delete": "destroy"}),
    ),
    path("v1/functions/<str:name>/activate", FunctionViewSet.as_view({"post": "activate"})),
    path("v1/functions/<str:name>/versions", VersionViewSet.as_view({"get": "list"})),
    path("v1/functions/<str:name>/inbound", InboundEndpointViewSet.as_view({"get": "list", "post": "create"})),
    path("v1/functions/<str:name>/inbound/<str:address_id>", InboundEndpointViewSet.as_view({"delete": "destroy"})),
    path("v1/inbound/<str:token>", InboundViewSet.as_view({"get": "get", "post": "post", "head": "head"})),
    path("v1/functions/<str:name>/runs", RunViewSet.as_view({"get": "list"})),
    path("v1/functions/<str:name>/runs/<str:run_id>", RunViewSet.as_view({"get": "retrieve"})),
    path("v1/functions/<str:name>/runs/<str:run_id>/cancel", RunViewSet.as_view({"post": "cancel"})),
]
