"""The service with four URLs that only identify their caller: the cost and the rules of that alone."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import path

from platform_site.http.views import ApiViewSet, respond
from platform_site.urls import urlpatterns as of_the_service


class Unused(ApiViewSet):
    environment_use = "unused"
    required_scopes = {"show": None, "write": "rows:write"}

    def show(self, request: HttpRequest) -> HttpResponseBase:
        caller, environment = self.caller, self.caller.environment
        return respond(
            {
                "kind": caller.kind,
                "id": caller.id,
                "plan": caller.plan,
                "scopes": sorted(caller.scopes),
                "environment": environment.environment_name if environment else None,
                "environment_id": environment.environment_id if environment else None,
                "role": environment.role if environment else None,
            }
        )

    write = show


class Optional(Unused):
    environment_use = "optional"


class Required(Unused):
    environment_use = "required"


urlpatterns = [
    *of_the_service,
    path("v1/test/unused", Unused.as_view({"get": "show"})),
    path("v1/test/optional", Optional.as_view({"get": "show"})),
    path("v1/test/required", Required.as_view({"get": "show", "post": "write"})),
]
