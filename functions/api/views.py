from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db.models import QuerySet, TextChoices
from django.db.models.functions import Now
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django_filters import FilterSet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request

from functions import directory
from functions.api import serializers
from functions.deploy import service as deploy_service
from functions.deploy import trial
from functions.errors import NoSuchFunction, NoSuchRun, RunEnded
from functions.execution import calls
from functions.models import Function, Run, Version
from functions.runs import history
from functions.runs import retention as run_retention
from platform_site.http import fields
from platform_site.http.cursors import Fact
from platform_site.http.errors import Forbidden, Unavailable, ValidationFailed
from platform_site.http.fields import Serializer
from platform_site.http.filters import Filter
from platform_site.http.generics import ResourceViewSet, UnpagedList
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.openapi.description import LIMIT
from platform_site.http.pagination import read_limit
from platform_site.http.views import ApiViewSet, created, no_content, respond
from platform_site.postgres import loop_connections
from rows.schema.identifiers import did_you_mean


class FunctionScopedViewSet(ApiViewSet):
    def _run(self, request: HttpRequest, action: Callable[..., Any]) -> HttpResponseBase:
        try:
            return super()._run(request, action)
        except NoSuchFunction as error:
            message = loop_connections.in_thread(partial(self._not_found_message, self.kwargs["name"]))
            raise NoSuchFunction(message) from error

    def _require_developer(self) -> None:
        if self.caller.kind == "user":
            raise Forbidden("Users of an application may only invoke functions and read their own runs.")

    def _not_found_message(self, name: str) -> str:
        """The same for a missing function and an invisible one. It names the environment, because a missing function is
        usually in another one."""
        shown = f'no function "{name}"' if directory.NAME.fullmatch(name) else "no such function"
        known: list[str] = []
        if self.caller.kind != "user" and self.caller.may("functions:read"):
            functions = Function.objects.of(self.environment)
            known = [*functions.order_by("name").values_list("name", flat=True)[:1000]]
            if name in known:
                return f'The function {name} can only be invoked by users of the application (its "invoke" is "user").'
        return f"There is {shown} in {self.environment.environment_id}{did_you_mean(name, known) or '.'}"


@extend_schema_view(
    list=extend_schema(description="The functions of the environment, by name."),
    retrieve=extend_schema(description="One function. Its secrets are names only."),
)
class FunctionViewSet(ListModelMixin, RetrieveModelMixin, FunctionScopedViewSet, ResourceViewSet):
    long_floats = "refused"
    required_scopes = {
        "list": "functions:read",
        "put": "functions:deploy",
        "configure": "functions:deploy",
        "retrieve": "functions:read",
        "destroy": "functions:deploy",
        "activate": "functions:deploy",
    }
    also_raises = {"put": (Unavailable,), "configure": (Unavailable,)}

    serializer_class = serializers.FunctionDetail
    cursor_kind, ordering = "functions", ("name", "id")

    def get_queryset(self) -> QuerySet[Function]:
        self._require_developer()
        return Function.objects.of(self.environment).prefetch_related("secrets", "inbound_endpoints")

    def get_object(self) -> Function:
        self._require_developer()
        return directory.function_of(self.environment, self.kwargs["name"])

    def cursor_facts(self) -> Sequence[Fact]:
        return [self.environment.environment_id]

    @extend_schema(
        operation_id="deployFunction",
        request=serializers.Deployment,
        responses={200: serializers.FunctionDetail, 201: serializers.FunctionDetail},
    )
    def put(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Deploy a new version and make it the active one. What does not load is refused with its line and column. A
        source that is that of the newest version makes no other one."""
        if not directory.NAME.fullmatch(name):
            raise ValidationFailed.of("name", "invalid_name", directory.NAME_RULE)
        values = self.read(serializers.Deployment)
        trial.try_out(self.environment, name, values)
        function, is_new = deploy_service.deploy(self.environment, name, values, actor=self.caller)
        trial.warm(self.environment, function, values["source"])
        shown = self.get_serializer(function).data
        return created(f"/v1/functions/{name}", shown) if is_new else respond(shown)

    @idempotent(using=in_region)
    @extend_schema(request=serializers.Configuration)
    def configure(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Change a function's settings, schedule, events or secrets. Its versions stay as they are."""
        values = self.read(serializers.Configuration)
        trial.try_out(self.environment, name, values)
        function = deploy_service.configure(self.environment, name, values, actor=self.caller)
        return respond(self.get_serializer(function).data)

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Delete a function for good, with its versions, secrets and runs."""
        deploy_service.delete_function(self.environment, name, actor=self.caller)
        return no_content()

    @idempotent(using=in_region)
    @extend_schema(request=serializers.Activation)
    def activate(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Make another version the active one: a rollback, or its undoing."""
        directory.function_of(self.environment, name)
        version = self.read(serializers.Activation)["version"]
        function = deploy_service.activate(self.environment, name, version, actor=self.caller)
        return respond(self.get_serializer(function).data)


@extend_schema_view(
    list=extend_schema(
        operation_id="listFunctionVersions",
        description="Every version of a function with its source, the newest first. A page of large ones holds fewer "
        "than `limit`.",
    )
)
class VersionViewSet(ListModelMixin, FunctionScopedViewSet, ResourceViewSet):
    required_scopes = {"list": "functions:read"}
    serializer_class = serializers.VersionDetail
    cursor_kind, ordering, heavy_field = "versions", ("-number",), "source"

    def get_queryset(self) -> QuerySet[Version]:
        self._require_developer()
        self.function = directory.function_of(self.environment, self.kwargs["name"])
        return self.function.versions.using(self.environment.cluster)

    def cursor_facts(self) -> Sequence[Fact]:
        return [self.function.pk]


def _one_of(name: str, choices: type[TextChoices]) -> Filter:
    *others, last = choices.values
    message = f"{name} must be {', '.join(others)} or {last}."
    return Filter(fields.ChoiceField(choices=choices.values, error_messages={"invalid_choice": message}))


class RunFilter(FilterSet):  # type: ignore[misc]  # the library is not typed
    status = _one_of("status", Run.Status)
    trigger = _one_of("trigger", Run.Trigger)


class NewestRuns(UnpagedList):
    parameters = frozenset({"limit"})

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        filtered_by = view.query.keys() & view.filterset.filters.keys()
        return list(history.newest_of(queryset, filtered_by, read_limit(view.query.get("limit"))))


@extend_schema_view(
    list=extend_schema(
        parameters=[
            OpenApiParameter("status", str, enum=Run.Status.values),
            OpenApiParameter("trigger", str, enum=Run.Trigger.values, description="What started them."),
            LIMIT,
        ],
        description="The runs of the last 7 days, the newest first.",
    ),
    retrieve=extend_schema(description="One run with its output and its log."),
)
class RunViewSet(ListModelMixin, RetrieveModelMixin, FunctionScopedViewSet, ResourceViewSet):
    required_scopes = {"list": "functions:read", "retrieve": "functions:read", "cancel": "functions:invoke"}
    also_raises = {"cancel": (RunEnded,)}
    lookup_url_kwarg = "run_id"
    not_found = NoSuchRun
    filterset_class = RunFilter
    pagination_class = NewestRuns

    def get_queryset(self) -> QuerySet[Run]:
        """App users only see their own runs, of functions that they may invoke."""
        function = directory.function_of(self.environment, self.kwargs["name"])
        runs = Run.objects.using(self.environment.cluster).filter(function=function)
        if self.caller.kind == "user":
            if function.invoke == "key":
                raise NoSuchFunction
            runs = runs.filter(caller_kind="user", caller_id=self.caller.id)
        if self.action != "list":
            return runs
        return runs.filter(created_at__gte=Now() - run_retention.RETENTION).defer("input", "output", "logs")

    def get_serializer_class(self) -> type[Serializer]:
        return serializers.ListedRun if self.action == "list" else serializers.RunDetail

    @idempotent(using=in_region)
    @extend_schema(request=None)
    def cancel(self, request: HttpRequest, name: str, run_id: str) -> HttpResponseBase:
        """Cancel a run that has not ended. Its output and log need `functions:read`, and are empty without."""
        if self.caller.kind == "anonymous":
            raise Forbidden("Sign in to list runs. Publishable keys cannot.")
        run = self.get_object()
        calls.cancel(self.environment, run, actor=self.caller)
        return respond(self.get_serializer(run).data)
