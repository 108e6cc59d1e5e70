"""REST endpoints of functions and runs. Contract sections 4.11 and 4.12."""

import re
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import orjson
from django.db import Error, IntegrityError, close_old_connections, transaction
from django.db.models.functions import Now
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.functional import cached_property
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError as InvalidField

from functions.api import serializers
from functions.api.filters import RunFilter
from functions.api.serializers import error_text, function_detail, listed_run, run_detail, version_detail
from functions.deploy import service as deploy_service
from functions.errors import NoSuchFunction, NoSuchRun, RunEnded
from functions.execution import request_concurrency
from functions.execution.executor import CallResult
from functions.models import Function, Run, Secret, Version
from functions.quotas import client_networks
from functions.quotas.client_networks import AnonymousCall
from functions.runs import history
from functions.runs import retention as run_retention
from functions.runs.start import Started
from platform_site.concurrency import server_hints
from platform_site.http import client_ip, fields, idempotency
from platform_site.http.errors import Forbidden, FunctionTimeout, RateLimited, Unavailable, ValidationFailed
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.openapi.description import IDEMPOTENCY_KEY, LIMIT
from platform_site.http.pagination import paginate, read_limit
from platform_site.http.views import ApiViewSet, created, no_content, respond
from platform_site.identity import call_depth
from platform_site.postgres import sqlstates
from rows.schema.identifiers import did_you_mean

_INPUT = fields.ObjectField()
_WAIT = re.compile(r"wait=(\d{1,4})", re.ASCII)


class NamedViewSet(ApiViewSet):
    """Shared behaviour where the URL names no function."""

    def _run(self, request: HttpRequest, action: Callable[..., Any]) -> HttpResponseBase:
        try:
            return super()._run(request, action)
        except NoSuchFunction as error:
            raise NoSuchFunction(self._missed(self.kwargs["name"])) from error

    def _for_makers(self) -> None:
        """App users invoke functions and see their own runs; what a function is made of is not theirs to read."""
        if self.caller.kind == "user":
            raise Forbidden("Users of an application invoke functions and see their own runs, and no more of them.")

    def _missed(self, name: str) -> str:
        """The same error for a missing function and one that this caller may not invoke. It names the environment,
        because a missing function is most often in another one, and suggests names only to callers that may list
        functions."""
        shown = f'no function "{name}"' if deploy_service.NAME.fullmatch(name) else "no such function"
        known: list[str] = []
        if self.caller.kind != "user" and self.caller.may("functions:read"):
            functions = Function.objects.using(self.place.cluster).filter(environment_id=self.place.environment_id)
            known = [*functions.order_by("name").values_list("name", flat=True)[:1000]]
            if name in known:
                return f'The function {name} is for users of the application alone: its "invoke" is "user".'
        return f"There is {shown} in {self.place.environment_id}{did_you_mean(name, known) or '.'}"


class FunctionViewSet(NamedViewSet):
    """`/v1/functions` and `/v1/functions/{name}`."""

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
        self._for_makers()
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
        if not deploy_service.NAME.fullmatch(name):
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
        self._for_makers()
        function = deploy_service.function_of(self.place, name)
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
        deploy_service.function_of(self.place, name)
        version = self.read(serializers.Activation)["version"]
        function = deploy_service.activate(self.place, name, version, actor=self.caller)
        return respond(function_detail(function, self._secrets(function)))

    @extend_schema(operation_id="listFunctionVersions", responses=serializers.VersionPage)
    def versions(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Every version of a function with its source, the newest first. A page of large ones holds fewer than
        `limit`."""
        self._for_makers()
        function = deploy_service.function_of(self.place, name)
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
    """`/v1/functions/{name}/invoke` and `/v1/functions/{name}/runs`."""

    required_scopes = {
        "invoke": "functions:invoke",
        "list": "functions:read",
        "retrieve": "functions:read",
        "cancel": "functions:invoke",
    }
    query_parameters = {"list": frozenset({"status", "trigger", "limit"})}
    also_raises = {"invoke": (FunctionTimeout, RateLimited, Unavailable), "cancel": (RunEnded,)}
    optional_bodies = frozenset({"invoke"})

    @extend_schema(
        operation_id="invokeFunction",
        request=serializers.Invocation,
        responses={200: serializers.InvokeResponse, 202: serializers.InvokeResponse},
        parameters=[
            OpenApiParameter(
                "Prefer", str, OpenApiParameter.HEADER, description="`respond-async, wait=N`: 202 after N seconds."
            ),
            IDEMPOTENCY_KEY,
        ],
    )
    def invoke(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Run a function and wait for its end, or queue it with `async: true`."""
        given, is_async = self._invocation()
        input_text = orjson.dumps(given or {}).decode()
        wait = _preferred_wait(request.META.get("HTTP_PREFER", ""))
        depth = call_depth.depth_of(request.META, self.place.environment_id)
        if not is_async and wait is None:
            return request_concurrency.with_slot(
                self.request._request,
                request_concurrency.admission_of(self.place, self.caller, self._visit, size=len(input_text)),
                lambda: deploy_service.timeout_of(self.place, self.caller, name),
                lambda: self._call(name, input_text, depth),
            )
        run_id = self._enqueue(name, input_text, depth)
        if wait is not None and not is_async:
            with suppress(request_concurrency.Full), self._slot():
                server_hints.will_block()
                run = self._waited(run_id, wait)
                if run is not None:
                    return self._of_record(run)
        return self._queued(name, run_id)

    def _call(self, name: str, input_text: str, depth: int) -> HttpResponseBase:
        ticket = idempotency.read_ticket(self.request._request, self.caller)
        if ticket is not None:
            return self._once(ticket, name, input_text, depth)
        return self._ended(
            *deploy_service.invoke(self.place, self.caller, name, input_text, depth=depth, anonymous=self._visit)
        )

    def _slot(self) -> AbstractContextManager[None]:
        return request_concurrency.limiter.slot(self.place.environment_id, anonymous=self._visit)

    @cached_property
    def _visit(self) -> AnonymousCall | None:
        """The client network of an anonymous call."""
        if self.caller.kind != "anonymous":
            return None
        return client_networks.anonymous_call_of(self.place.environment_id, client_ip.site_of(self.request._request))

    def _invocation(self) -> tuple[dict[str, Any] | None, bool]:
        """The input, and whether the run is to be queued. Raises ValidationFailed.

        What is plainly well formed is not shown to the serializer, which costs as much as the call: it says what is
        wrong with the rest.
        """
        body = self.read_object()
        given, is_async = body.get("input"), body.get("async", False)
        if body.keys() <= {"input", "async"} and type(is_async) is bool:
            if given is None:
                return None, is_async
            with suppress(InvalidField):
                return _INPUT.to_internal_value(given), is_async
        body = self.read(serializers.Invocation)
        return body.get("input"), body.get("async", False)

    def _enqueue(self, name: str, input_text: str, depth: int) -> str:
        """Queue a run, once per Idempotency-Key."""
        server_hints.will_block()
        ticket = idempotency.read_ticket(self.request._request, self.caller)

        def enqueue() -> str:
            return deploy_service.enqueue(self.place, self.caller, name, input_text, depth=depth, anonymous=self._visit)

        return enqueue() if ticket is None else self._under_key(ticket, enqueue)

    def _once(self, ticket: idempotency.Ticket, name: str, input_text: str, depth: int) -> HttpResponseBase:
        """A synchronous call under an Idempotency-Key: the run is committed with its record before it executes, and a
        repetition answers with what became of that run."""
        begun: dict[str, Started] = {}

        def begin() -> str:
            started = deploy_service.start_call(
                self.place, self.caller, name, input_text, depth=depth, anonymous=self._visit
            )
            begun[started.run_id] = started
            return started.run_id

        run_id = self._under_key(ticket, begin)
        if run_id in begun:
            started = begun[run_id]
            return self._ended(started, deploy_service.execute(started, self.caller, self.place))
        run = self._waited(run_id, 5)
        if run is None:
            return self._queued(name, run_id)
        response = self._of_record(run)
        response.headers[idempotency.REPLAYED] = "true"
        return response

    def _under_key(self, ticket: idempotency.Ticket, make: Callable[[], str]) -> str:
        """The id of the run that was made under this key: by an earlier request, or now by `make`; committed with the
        record that points at it.

        Where the connection is lost, the answer to the commit maybe, once more on a new one: the record then says
        whether it came through.
        """
        try:
            return self._made_or_found(ticket, make)
        except Error as error:
            if not sqlstates.lost_connection(error):
                raise
            close_old_connections()
            return self._made_or_found(ticket, make)

    def _made_or_found(self, ticket: idempotency.Ticket, make: Callable[[], str]) -> str:
        using = self.place.cluster
        with _together_with_its_record(using):
            kept = idempotency.claim(ticket, using=using)
            if kept is not None and kept.reference is not None:
                return kept.reference
            run_id = make()
            idempotency.store_reference(ticket, run_id, using=using)
        return run_id

    def _waited(self, run_id: str, seconds: float) -> Run | None:
        """The run once it has ended, None if it has not after `seconds`."""
        deadline = time.monotonic() + seconds
        pause = 0.005
        while True:
            run = (
                Run.objects.using(self.place.cluster).filter(pk=run_id, function__environment_id__isnull=False).first()
            )
            if run is None:
                raise NoSuchRun
            if run.phase == Run.Phase.ENDED:
                return run
            if time.monotonic() >= deadline:
                return None
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, 0.25)

    def _queued(self, name: str, run_id: str) -> HttpResponseBase:
        location = f"/v1/functions/{name}/runs/{run_id}"
        return respond({"run_id": run_id, "status": "running"}, 202, {"Location": location})

    def _ended(self, started: Started, ended: CallResult) -> HttpResponseBase:
        """A timeout is 504 with the run's id; what throws is 200 with an error and no output."""
        ending = ended.ending
        if ended.is_timeout:
            raise FunctionTimeout(extra={"run_id": started.run_id})
        shown: dict[str, Any] = {"run_id": started.run_id, "status": ending.status, "duration_ms": ending.duration_ms}
        if ending.status == "succeeded":
            shown["output"] = orjson.Fragment(ending.output or "null")
        else:
            shown["error"] = error_text(ending.error)
        return respond(shown)

    def _of_record(self, run: Run) -> HttpResponseBase:
        error = run.error if isinstance(run.error, dict) else {}
        if error.get("reason") == "timeout":
            raise FunctionTimeout(extra={"run_id": run.pk})
        shown: dict[str, Any] = {"run_id": run.pk, "status": run.status, "duration_ms": run.duration_ms or 0}
        if "output" in (run.not_stored or ()):
            shown["not_stored"] = ["output"]
        elif run.status == Run.Status.SUCCEEDED:
            shown["output"] = orjson.Fragment(run.output or "null")
        else:
            shown["error"] = error_text(error)
        return respond(shown)

    @extend_schema(
        parameters=[
            OpenApiParameter("status", str, enum=Run.Status.values),
            OpenApiParameter("trigger", str, enum=Run.Trigger.values, description="How they came about."),
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
        return respond(self._detail(deploy_service.cancel(self.place, name, run_id, actor=self.caller)))

    def _detail(self, run: Run) -> dict[str, Any]:
        """A stack tells of the source, which app users do not read."""
        return run_detail(run, with_stack=self.caller.kind != "user")

    def _function(self, name: str) -> Function:
        """The function, if it exists for this caller: one that app users may not invoke is not there for them."""
        function = deploy_service.function_of(self.place, name)
        if self.caller.kind == "user" and function.invoke == "key":
            raise NoSuchFunction
        return function

    def _visible(self, function: Function) -> Any:
        """App users see their own runs, all others see all runs."""
        runs = Run.objects.using(self.place.cluster).filter(function=function)
        return runs.filter(caller_kind="user", caller_id=self.caller.id) if self.caller.kind == "user" else runs

    def _visible_run(self, name: str, run_id: str) -> Run:
        run: Run | None = self._visible(self._function(name)).filter(pk=run_id[:64]).first()
        if run is None:
            raise NoSuchRun
        return run


@contextmanager
def _together_with_its_record(using: str) -> Generator[None]:
    """A transaction for a run and the record of its Idempotency-Key. Raises NoSuchFunction where the function was
    deleted meanwhile: PostgreSQL asks for a run's function at the commit."""
    try:
        with transaction.atomic(using=using):
            yield
    except IntegrityError as error:
        if sqlstates.sqlstate(error) == "23503":
            raise NoSuchFunction from error
        raise


def _preferred_wait(header: str) -> float | None:
    """Seconds of `Prefer: respond-async, wait=N` (RFC 7240), None without `respond-async`; 0 without `wait`."""
    parts = [part.strip().lower() for part in header.split(",")]
    if "respond-async" not in parts:
        return None
    for part in parts:
        if (found := _WAIT.fullmatch(part)) is not None:
            return min(60.0, float(found[1]))
    return 0.0
