"""The service with two more URLs: a bare Django view, and an authenticated one that does nothing."""

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path

from platform_site.http.views import ApiViewSet, respond
from platform_site.urls import urlpatterns as of_the_service


def bare(request: HttpRequest) -> HttpResponse:
    return HttpResponse(b"{}", content_type="application/json")


class NothingViewSet(ApiViewSet):
    environment_use = "unused"
    required_scopes = {"nothing": None}

    def nothing(self, request: HttpRequest) -> HttpResponseBase:
        return respond({})


class NothingSomewhereViewSet(NothingViewSet):
    environment_use = "required"


urlpatterns = [
    path("v1/bench/bare", bare),
    path("v1/bench/nothing", NothingViewSet.as_view({"get": "nothing"})),
    path("v1/bench/nothing-somewhere", NothingSomewhereViewSet.as_view({"get": "nothing"})),
    *of_the_service,
]
