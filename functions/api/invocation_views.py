import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from django.db import Error, IntegrityError, close_old_connections, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.functional import cached_property
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError as InvalidField

from functions.api import serializers
from functions.api.serializers import error_text
from functions.api.views import FunctionScopedViewSet
from functions.errors import NoSuchFunction, NoSuchRun
from functions.execution import calls, executor, request_concurrency
from functions.models import Run
from functions.quotas import client_networks
from functions.quotas.client_networks import AnonymousCall
from functions.runs import start
from functions.runs.start import CreatedRun, NewRun
from functions.runtime.calls import Outcome
from platform_site.concurrency import server_hints
from platform_site.http import fields, idempotency
from platform_site.http.errors import FunctionTimeout, RateLimited, Unavailable
from platform_site.http.openapi.description import IDEMPOTENCY_KEY
from platform_site.http.requests import site_of
from platform_site.http.views import respond
from platform_site.identity import call_depth
from platform_site.postgres import sqlstates

_INPUT = fields.ObjectField()
_WAIT = re.compile(r"wait=(\d{1,4})", re.ASCII)


class InvocationViewSet(FunctionScopedViewSet):
    required_scopes = {"invoke": "functions:invoke"}
    also_raises = {"invoke": (FunctionTimeout, RateLimited, Unavailable)}
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
        """Run a function and wait for its end, or queue it (`async`)."""
        given, is_async = self._read_body()
        wait = _preferred_wait(request.META.get("HTTP_PREFER", ""))
        new = NewRun(
            self.environment,
            self.caller,
            name,
            orjson.dumps(given or {}).decode(),
            depth=call_depth.depth_here(self.environment.environment_id),
            anonymous=self._anonymous_call,
        )
        if not is_async and wait is None:
            return request_concurrency.with_slot(self.http_request, new, partial(self._call, new))
        server_hints.will_block()
        ticket = idempotency.read_ticket(self.http_request, self.caller)
        queue = partial(calls.enqueue, new)
        run_id = queue() if ticket is None else self._create_with_key(ticket, queue)
        if wait is not None and not is_async:
            slot = request_concurrency.limiter.slot(self.environment.environment_id, anonymous=self._anonymous_call)
            with suppress(request_concurrency.Full), slot:
                server_hints.will_call_function(self.http_request)
                server_hints.will_block()
                run = self._wait_for_end(run_id, wait)
                if run is not None:
                    return _stored_response(run)
        return self._queued_response(name, run_id)

    def _call(self, new: NewRun) -> HttpResponseBase:
        ticket = idempotency.read_ticket(self.http_request, self.caller)
        if ticket is not None:
            return self._call_with_key(ticket, new)
        started, outcome = calls.invoke(new)
        return _response(started.run_id, outcome)

    @cached_property
    def _anonymous_call(self) -> AnonymousCall | None:
        if self.caller.kind != "anonymous":
            return None
        return client_networks.anonymous_call_of(self.environment.environment_id, site_of(self.http_request))

    def _read_body(self) -> tuple[dict[str, Any] | None, bool]:
        """The input, and whether the run is to be queued. Clearly valid input skips the serializer, which takes as long
        as the rest of the call."""
        body = self.read_object()
        given, is_async = body.get("input"), body.get("async", False)
        if body.keys() <= {"input", "async"} and type(is_async) is bool:
            if given is None:
                return None, is_async
            with suppress(InvalidField):
                return _INPUT.to_internal_value(given), is_async
        body = self.read(serializers.Invocation)
        return body.get("input"), body.get("async", False)

    def _call_with_key(self, ticket: idempotency.Ticket, new: NewRun) -> HttpResponseBase:
        """The run is committed before it executes; a repetition returns that run."""
        begun: dict[str, CreatedRun] = {}

        def begin() -> str:
            started = start.start_run(new)
            begun[started.run_id] = started
            return started.run_id

        run_id = self._create_with_key(ticket, begin)
        if run_id in begun:
            return _response(run_id, executor.execute(begun[run_id], self.caller, self.environment))
        run = self._wait_for_end(run_id, 5)
        if run is None:
            return self._queued_response(new.function_name, run_id)
        try:
            response = _stored_response(run)
        except FunctionTimeout as error:
            error.headers[idempotency.REPLAYED] = "true"
            raise
        response.headers[idempotency.REPLAYED] = "true"
        return response

    def _create_with_key(self, ticket: idempotency.Ticket, make: Callable[[], str]) -> str:
        """The id of this key's run: existing, or created by `make`. Repeated after a lost connection: the key, which is
        committed with the run, shows whether the commit succeeded."""
        try:
            return self._find_or_create(ticket, make)
        except Error as error:
            if not sqlstates.lost_connection(error):
                raise
            close_old_connections()
            return self._find_or_create(ticket, make)

    def _find_or_create(self, ticket: idempotency.Ticket, make: Callable[[], str]) -> str:
        using = self.environment.cluster
        try:
            with transaction.atomic(using=using):
                kept = idempotency.claim(ticket, using=using)
                if kept is not None and kept.reference is not None:
                    if not Run.objects.using(using).filter(pk=kept.reference).exists():
                        raise idempotency.no_longer_stored()
                    return kept.reference
                run_id = make()
                idempotency.store_reference(ticket, run_id, using=using)
                return run_id
        except IntegrityError as error:
            if sqlstates.sqlstate(error) == "23503":  # the run's function was deleted: the key is checked at the commit
                raise NoSuchFunction from error
            raise

    def _wait_for_end(self, run_id: str, seconds: float) -> Run | None:
        deadline = time.monotonic() + seconds
        pause = 0.005
        while True:
            run = (
                Run.objects.using(self.environment.cluster)
                .filter(pk=run_id, function__environment_id__isnull=False)
                .first()
            )
            if run is None:
                raise NoSuchRun
            if run.phase == Run.Phase.ENDED:
                return run
            if time.monotonic() >= deadline:
                return None
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, 0.25)

    def _queued_response(self, name: str, run_id: str) -> HttpResponseBase:
        location = f"/v1/functions/{name}/runs/{run_id}"
        return respond({"run_id": run_id, "status": "running"}, 202, {"Location": location})


def _response(run_id: str, outcome: Outcome, *, has_output: bool = True) -> HttpResponseBase:
    """A timeout is 504 with the run's id; a thrown error is 200 without output."""
    if outcome.reason == "timeout":
        raise FunctionTimeout(extra={"run_id": run_id})
    shown: dict[str, Any] = {"run_id": run_id, "status": outcome.status, "duration_ms": outcome.duration_ms}
    if not has_output:
        shown["not_stored"] = ["output"]
    elif outcome.reason is None:
        shown["output"] = orjson.Fragment(outcome.output or "null")
    else:
        shown["error"] = error_text(outcome.error)
    return respond(shown)


def _stored_response(run: Run) -> HttpResponseBase:
    error = run.error if isinstance(run.error, dict) else {}
    reason = error.get("reason", "platform") if run.status == Run.Status.FAILED else None
    outcome = Outcome((run.duration_ms or 0) / 1000, run.output, reason, error)
    return _response(run.pk, outcome, has_output="output" not in (run.not_stored or ()))


def _preferred_wait(header: str) -> float | None:
    """Seconds of `Prefer: respond-async, wait=N` (RFC 7240), None without `respond-async`; 0 without `wait`."""
    parts = [part.strip().lower() for part in header.split(",")]
    if "respond-async" not in parts:
        return None
    for part in parts:
        if (found := _WAIT.fullmatch(part)) is not None:
            return min(60.0, float(found[1]))
    return 0.0
