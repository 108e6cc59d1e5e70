"""Endpoints for the tests of the HTTP package, beside the real ones: a viewset with configurable behavior."""

from typing import Any

import psycopg
from django.contrib.auth.models import Group
from django.core.exceptions import BadRequest, DisallowedHost, PermissionDenied, SuspiciousOperation
from django.db import OperationalError, connection, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from rest_framework import exceptions as drf

from platform_site import urls as roof
from platform_site.http import errors, fields
from platform_site.http.views import ApiViewSet, created, no_content, respond
from platform_site.identity.callers import Caller, EnvironmentRef

CALLERS: dict[str, Caller] = {}
"""Bearer token to caller."""


class ByTable:
    """Authentication out of CALLERS: what the kernel needs to know of `projects.api.authentication`."""

    def authenticate(self, request: Any) -> tuple[Caller, None] | None:
        token = request.META.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
        return (CALLERS[token], None) if token in CALLERS else None


class ThingInput(fields.Serializer):
    name = fields.CharField(max_length=10)
    size = fields.IntegerField(required=False)
    on = fields.BooleanField(required=False)
    kind = fields.ChoiceField(choices=["a", "b"], required=False)
    at = fields.DateTimeField(required=False)
    tags = fields.ListField(child=fields.CharField(), required=False, distinct=True, max_length=3)
    data = fields.ObjectField(required=False)
    price = fields.FloatField(required=False)
    env = fields.IdField("env", required=False)


class Things(ApiViewSet):
    required_scopes = {"list": None, "create": "rows:write", "retrieve": "rows:read", "destroy": None, "run": None}
    query_parameters = {"list": frozenset({"limit", "cursor", "status"})}
    optional_bodies = frozenset({"run"})

    authentication_classes = (ByTable,)

    def list(self, request: Any) -> HttpResponse:
        return respond({"query": self.query, "caller": self.caller.id})

    def create(self, request: Any) -> HttpResponse:
        values = self.read(ThingInput)
        if "at" in values:
            values["at"] = fields.timestamp(values["at"])
        return created("/v1/test/things/1", values)

    def retrieve(self, request: Any, thing_id: str) -> HttpResponse:
        return respond({"id": thing_id}, headers={"ETag": '"1"'})

    def destroy(self, request: Any, thing_id: str) -> HttpResponse:
        return no_content()

    def run(self, request: Any) -> HttpResponse:
        return respond({"data": self.read_object()})


class Echo(ApiViewSet):
    """Public; answers with the body as it was read."""

    public = True

    def create(self, request: Any) -> HttpResponse:
        return respond({"text": repr(self.request.data)})


class Granting(ApiViewSet):
    """What the token endpoint does with a client's errors."""

    public = True
    client_errors_as = errors.InvalidGrant

    def create(self, request: Any) -> HttpResponse:
        return respond(self.read(ThingInput))


FAULTS: dict[str, Any] = {
    "drf-validation": drf.ValidationError({"a": [{"b": ["bad"]}, {}]}),
    "drf-parse": drf.ParseError("secret detail"),
    "drf-auth": drf.AuthenticationFailed("secret detail"),
    "drf-permission": drf.PermissionDenied("secret detail"),
    "drf-not-found": drf.NotFound("secret detail"),
    "drf-throttled": drf.Throttled(7),
    "http404": Http404("secret detail"),
    "permission": PermissionDenied("secret detail"),
    "suspicious": SuspiciousOperation("secret detail"),
    "bad-request": BadRequest("secret detail"),
    "host": DisallowedHost("secret detail"),
    "unforeseen": RuntimeError('SELECT * FROM accounts_user; File "x.py"'),
    "conflict": errors.Conflict(),
    "hint": errors.Forbidden(extra={"hint": "Ask an owner."}),
}


class Faults(ApiViewSet):
    """Raises what its path names, lets PostgreSQL raise that SQLSTATE, or returns the given response."""

    public = True

    def retrieve(self, request: Any, name: str) -> HttpResponse:
        if name in FAULTS:
            raise FAULTS[name]
        if says := request.GET.get("says"):
            raise RuntimeError(says)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(raising(name))
        return respond({})


def raising(sqlstate: str) -> str:
    """SQL that fails with `sqlstate` and a message that must not travel."""
    assert sqlstate.isalnum()
    return f"DO $$ BEGIN RAISE EXCEPTION 'accounts_user leaks' USING ERRCODE = '{sqlstate}'; END $$"


RUNS: list[str] = []
"""What `Unlucky` did, in order."""


class Unlucky(ApiViewSet):
    """Its transactions are rolled back by PostgreSQL, or its connection is lost, as often as the path says."""

    public = True

    def _run(self, request: HttpRequest, action: Any) -> Any:
        RUNS.append("run")
        return super()._run(request, action)

    def undone(self, request: Any, times: int) -> HttpResponse:
        with transaction.atomic(), connection.cursor() as cursor:
            if len(RUNS) <= times:
                cursor.execute(raising("40P01"))
        return respond({"runs": len(RUNS)})

    def undone_later(self, request: Any, times: int) -> HttpResponse:
        with transaction.atomic():
            Group.objects.create(name=f"made {len(RUNS)}")
        return self.undone(request, times)

    def cut(self, request: Any, times: int) -> HttpResponse:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            if len(RUNS) <= times:
                with psycopg.connect(**_plain(connection.get_connection_params()), autocommit=True) as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", cursor.fetchone())
            cursor.execute("SELECT 1")
        return respond({"runs": len(RUNS)})


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}


def page_that_breaks(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("secret detail")


def page_without_its_database(request: HttpRequest) -> HttpResponse:
    raise OperationalError("secret detail") from psycopg.OperationalError()


urlpatterns = [
    *roof.urlpatterns,
    path("v1/test/things", Things.as_view({"get": "list", "post": "create"})),
    path("v1/test/things/<str:thing_id>", Things.as_view({"get": "retrieve", "delete": "destroy"})),
    path("v1/test/run", Things.as_view({"post": "run"})),
    path("v1/test/echo", Echo.as_view({"post": "create"})),
    path("v1/test/granting", Granting.as_view({"post": "create"})),
    path("v1/test/faults/<str:name>", Faults.as_view({"get": "retrieve", "post": "retrieve"})),
    path("v1/test/undone/<int:times>", Unlucky.as_view({"get": "undone", "post": "undone"})),
    path("v1/test/undone-later/<int:times>", Unlucky.as_view({"post": "undone_later"})),
    path("v1/test/cut/<int:times>", Unlucky.as_view({"get": "cut", "post": "cut"})),
    path("broken-page", page_that_breaks),
    path("page-without-its-database", page_without_its_database),
]
handler400, handler403, handler404, handler500 = roof.handler400, roof.handler403, roof.handler404, roof.handler500


def environment(**changes: Any) -> EnvironmentRef:
    facts: dict[str, Any] = {
        "environment_id": "env_01k6zzzzzzzzzzzzzzzzzzzzzz",
        "environment_name": "production",
        "project_id": "prj_01k6zzzzzzzzzzzzzzzzzzzzzz",
        "region": "us-east-1",
        "cluster": "us-east-1",
        "plan": "free",
        "pool_id": "env_01k6zzzzzzzzzzzzzzzzzzzzzz",
    }
    return EnvironmentRef(**(facts | changes))
