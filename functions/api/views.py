from collections.abc import Callable
from typing import Any

from django.db.models.functions import Now
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema

from functions import directory
from functions.api import serializers
from functions.api.filters import RunFilter
from functions.api.serializers import function_detail, listed_run, run_detail, version_detail
from functions.deploy import service as deploy_service
from functions.errors import NoSuchFunction, NoSuchRun, RunEnded
from functions.execution import calls
from functions.models import Function, Run, Secret, Version
from functions.runs import history
from functions.runs import retention as run_retention
from platform_site.http.errors import Forbidden, Unavailable, ValidationFailed
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.openapi.description import LIMIT
from platform_site.http.pagination import paginate, read_limit
from platform_site.http.views import ApiViewSet, created, no_content, respond
from rows.schema.identifiers import did_you_mean


class NamedViewSet(ApiViewSet):
    def _run(self, request: HttpRequest, action: Callable[..., Any]) -> HttpResponseBase:
        try:
            return super()._run(request, action)
        except NoSuchFunction as error:
            raise NoSuchFunction(self._missed(self.kwargs["name"])) from error

    def _require_developer(self) -> None:
        """App users may not read functions."""
        if self.caller.kind == "user":
            raise Forbidden("Users of an application may only invoke functions and read their own runs.")

    def _missed(self, name: str) -> str:
        """The same error for a missing function and an invisible one. It names the environment, because a missing
        function is usually in another one, and suggests names only to callers that may list functions."""
        shown = f'no function "{name}"' if directory.NAME.fullmatch(name) else "no such function"
        known: list[str] = []
        if self.caller.kind != "user" and self.caller.may("functions:read"):
            functions = Function.objects.using(self.place.cluster).filter(environment_id=self.place.environment_id)
            known = [*functions.order_by("name").values_list("name", flat=True)[:1000]]
            if name in known:
                return f'The function {name} can only be invoked by users of the application (its "invoke" is "user").'
        return f"There is {shown} in {self.place.environment_id}{did_you_mean(name, known) or '.'}"


class FunctionViewSet(NamedViewSet):
    required_scopes = {
        "list": "functions:read",
        "put": "functions:deploy",
        "configure": "functions:deploy",
        "retrieve": "functions:read",
        "destroy": "functions:deploy",
        "activate": "functions:deploy",
        "versions": "functions:read",
    }
    query_parameters = {"versions": frozenset({"limit", "cursor"})}
    also_raises = {"put": (Unavailable,), "configure": (Unavailable,)}

    @extend_schema(responses=serializers.FunctionPage)
    def list(self, request: HttpRequest) -> HttpResponseBase:
        """The functions of the environment, by name."""
        self._require_developer()
        using = self.place.cluster
        page = paginate(
            Function.objects.using(using).filter(environment_id=self.place.environment_id).prefetch_related("secrets"),
            ["name", "id"],
            read_limit(self.query.get("limit")),
            self.query.get("cursor"),
            "functions",
            [self.place.environment_id],
        )
        data = [function_detail(each, [secret.name for secret in each.secrets.all()]) for each in page.items]
        return respond({"data": data, "next_cursor": page.next_cursor})

    @extend_schema(
        operation_id="deployFunction",
        request=serializers.Deployment,
        responses={200: serializers.FunctionDetail, 201: serializers.FunctionDetail},
    )
    def put(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Deploy a new version and make it the active one. What does not load is refused with its line and column. A
        source that is that of the newest version makes no other one."""
        if not directory.NAME.fullmatch(name):
            message = "A function's name is 1 to 63 of a-z, 0-9, _ and -, beginning with a letter."
            raise ValidationFailed.of("name", "invalid_name", message)
        function, is_new = deploy_service.deploy(self.place, name, self.read(serializers.Deployment), actor=self.caller)
        shown = function_detail(function, self._secrets(function))
        return created(f"/v1/functions/{name}", shown) if is_new else respond(shown)

    @idempotent(using=in_region)
    @extend_schema(
        operation_id="configureFunction", request=serializers.Configuration, responses=serializers.FunctionDetail
    )
    def configure(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Change a function's settings, schedule, events or secrets. Its versions stay as they are."""
        values = self.read(serializers.Configuration)
        function = deploy_service.configure(self.place, name, values, actor=self.caller)
        return respond(function_detail(function, self._secrets(function)))

    @extend_schema(responses=serializers.FunctionDetail)
    def retrieve(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One function. Its secrets are names only."""
        self._require_developer()
        function = directory.function_of(self.place, name)
        return respond(function_detail(function, self._secrets(function)))

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Delete a function for good, with its versions, secrets and runs."""
        deploy_service.delete_function(self.place, name, actor=self.caller)
        return no_content()

    @idempotent(using=in_region)
    @extend_schema(request=serializers.Activation, responses=serializers.FunctionDetail)
    def activate(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Make another version the active one: a rollback, or its undoing."""
        directory.function_of(self.place, name)
        version = self.read(serializers.Activation)["version"]
        function = deploy_service.activate(self.place, name, version, actor=self.caller)
        return respond(function_detail(function, self._secrets(function)))

    @extend_schema(operation_id="listFunctionVersions", responses=serializers.VersionPage)
    def versions(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Every version of a function with its source, the newest first. A page of large ones holds fewer than
        `limit`."""
        self._require_developer()
        function = directory.function_of(self.place, name)
        page = paginate(
            Version.objects.using(self.place.cluster).filter(function=function),
            ["-number"],
            read_limit(self.query.get("limit")),
            self.query.get("cursor"),
            "versions",
            [function.pk],
            heavy="source",
        )
        data = [version_detail(each, function.active_version) for each in page.items]
        return respond({"data": data, "next_cursor": page.next_cursor})

    def _secrets(self, function: Function) -> Any:
        names = Secret.objects.using(self.place.cluster).filter(function=function).values_list("name", flat=True)
        return [*names]


class RunViewSet(NamedViewSet):
    required_scopes = {"list": "functions:read", "retrieve": "functions:read", "cancel": "functions:invoke"}
    query_parameters = {"list": frozenset({"status", "trigger", "limit"})}
    also_raises = {"cancel": (RunEnded,)}

    @extend_schema(
        parameters=[
            OpenApiParameter("status", str, enum=Run.Status.values),
            OpenApiParameter("trigger", str, enum=Run.Trigger.values, description="What started them."),
            LIMIT,
        ],
        responses=serializers.RunList,
    )
    def list(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """The runs of the last 7 days, the newest first."""
        limit = read_limit(self.query.get("limit"))
        recent = (
            self._visible(self._function(name))
            .filter(created_at__gte=Now() - run_retention.RETENTION)
            .defer("input", "output", "logs")
        )
        given = {parameter: self.query[parameter] for parameter in RunFilter.base_filters if parameter in self.query}
        found = history.newest_of(recent, RunFilter(given).wanted(), limit)
        return respond({"data": [listed_run(run) for run in found]})

    @extend_schema(responses=serializers.RunDetail)
    def retrieve(self, request: HttpRequest, name: str, run_id: str) -> HttpResponseBase:
        """One run with its output and its log."""
        return respond(self._detail(self._visible_run(name, run_id)))

    @idempotent(using=in_region)
    @extend_schema(request=None, responses=serializers.RunDetail)
    def cancel(self, request: HttpRequest, name: str, run_id: str) -> HttpResponseBase:
        """Cancel a run that has not ended."""
        if self.caller.kind == "anonymous":
            raise Forbidden("Sign in to list runs. Publishable keys cannot.")
        self._visible_run(name, run_id)
        return respond(self._detail(calls.cancel(self.place, name, run_id, actor=self.caller)))

    def _detail(self, run: Run) -> dict[str, Any]:
        """A stack reveals the source, which app users may not read."""
        return run_detail(run, with_stack=self.caller.kind != "user")

    def _function(self, name: str) -> Function:
        """The function, if this caller may invoke it."""
        function = directory.function_of(self.place, name)
        if self.caller.kind == "user" and function.invoke == "key":
            raise NoSuchFunction
        return function

    def _visible(self, function: Function) -> Any:
        """App users only see their own runs."""
        runs = Run.objects.using(self.place.cluster).filter(function=function)
        return runs.filter(caller_kind="user", caller_id=self.caller.id) if self.caller.kind == "user" else runs

    def _visible_run(self, name: str, run_id: str) -> Run:
        run: Run | None = self._visible(self._function(name)).filter(pk=run_id[:64]).first()
        if run is None:
            raise NoSuchRun
        return run
