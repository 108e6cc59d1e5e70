from django.urls import path

from functions.api.invocation_views import InvocationViewSet
from functions.api.views import FunctionViewSet, RunViewSet, VersionViewSet
from functions.inbound.views import InboundEndpointViewSet, InboundViewSet

urlpatterns = [
    path("v1/functions/<str:name>/invoke", InvocationViewSet.as_view({"post": "invoke"}), name="function-invoke"),
    path("v1/functions", FunctionViewSet.as_view({"get": "list"}), name="functions"),
    path(
        "v1/functions/<str:name>",
        FunctionViewSet.as_view({"get": "retrieve", "put": "put", "patch": "configure", "delete": "destroy"}),
        name="function",
    ),
    path("v1/functions/<str:name>/activate", FunctionViewSet.as_view({"post": "activate"}), name="function-activate"),
    path("v1/functions/<str:name>/versions", VersionViewSet.as_view({"get": "list"}), name="function-versions"),
    path(
        "v1/functions/<str:name>/inbound",
        InboundEndpointViewSet.as_view({"get": "list", "post": "create"}),
        name="inbound-addresses",
    ),
    path(
        "v1/functions/<str:name>/inbound/<str:address_id>",
        InboundEndpointViewSet.as_view({"delete": "destroy"}),
        name="inbound-address",
    ),
    path(
        "v1/inbound/<str:token>", InboundViewSet.as_view({"get": "get", "post": "post", "head": "head"}), name="inbound"
    ),
    path("v1/functions/<str:name>/runs", RunViewSet.as_view({"get": "list"}), name="runs"),
    path("v1/functions/<str:name>/runs/<str:run_id>", RunViewSet.as_view({"get": "retrieve"}), name="run"),
    path("v1/functions/<str:name>/runs/<str:run_id>/cancel", RunViewSet.as_view({"post": "cancel"}), name="run-cancel"),
]
