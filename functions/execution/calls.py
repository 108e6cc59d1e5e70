"""Service of calls: run a function now or later, and cancel a run. For the API, inbound endpoints and commands."""

from typing import Final

from django.db import connections, transaction

from accounts.audit import Actor
from functions import notify as function_notify
from functions.directory import NAME, function_of, run_of
from functions.errors import CallLoopError, NoSuchFunction, RunEnded
from functions.execution import executor
from functions.execution.executor import CallResult
from functions.models import Run
from functions.quotas.client_networks import AnonymousCall
from functions.runs import completion, start
from functions.runs.start import CreatedRun
from platform_site.identity import call_depth
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import prepared
from rows.outbox import audit as audit_outbox

_TIMEOUT: Final = b"""
SELECT f.timeout_ms FROM platform.functions_function f
 WHERE f.environment_id = $1::text AND f.name = $2::text AND %(invocable)b
""" % {b"invocable": start.IS_INVOCABLE}


def start_call(
    environment: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    is_async: bool = False,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> CreatedRun:
    """Create a run of the function, to be executed here or by a worker. `anonymous` is the client network of an
    anonymous caller, `address_id` the inbound endpoint of the call. Raises NoSuchFunction, TooManyRuns,
    TooManyAnonymousCalls, TooManyQueued, and Conflict for a chain of calls that has become a loop."""
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    if depth >= call_depth.MAX_DEPTH:
        raise CallLoopError(depth)
    return start.start_run(
        environment,
        caller,
        name,
        input_text,
        depth=depth,
        is_async=is_async,
        anonymous=anonymous,
        address_id=address_id,
    )


def timeout_of(environment: EnvironmentRef, caller: Caller, name: str) -> float:
    """Seconds that a function may run, and that a call of it may wait. Raises NoSuchFunction, also for a function that
    this kind of caller may not invoke. One query."""
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    values = [environment.environment_id.encode(), name.encode(), start.invoker(caller)]
    found = prepared.retry_if_lost(connections[environment.cluster], _TIMEOUT, values)
    if not found:
        raise NoSuchFunction
    return int(found[0][0] or 0) / 1000


def invoke(
    environment: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> tuple[CreatedRun, CallResult]:
    """Run the function now and wait for its end. `input_text` is JSON. Raises NoSuchFunction, TooManyRuns. Contract
    section 4.11."""
    started = start_call(environment, caller, name, input_text, depth=depth, anonymous=anonymous, address_id=address_id)
    return started, executor.execute(started, caller, environment)


def enqueue(
    environment: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> str:
    """Queue a run and return its id. It is committed with the current transaction; then a worker is notified. Raises
    NoSuchFunction, TooManyAnonymousCalls, TooManyQueued."""
    queued = start_call(
        environment, caller, name, input_text, depth=depth, is_async=True, anonymous=anonymous, address_id=address_id
    )
    function_notify.after_commit(environment.cluster)
    return queued.run_id


def cancel(environment: EnvironmentRef, name: str, run_id: str, *, actor: Caller | Actor) -> Run:
    """Cancel a run: at once if it is queued, else when its process next checks. Idempotent. Raises NoSuchRun,
    RunEnded."""
    using = environment.cluster
    run = run_of(environment, function_of(environment, name), run_id)
    with transaction.atomic(using=using):
        is_new, _ = completion.request_cancel(using, run.pk)
        if is_new:
            audit_outbox.record(environment, "run.cancelled", actor=actor, target_id=run_id)
        elif not Run.objects.using(using).filter(pk=run.pk).exclude(phase=Run.Phase.ENDED).exists():
            raise RunEnded
    executor.pool().cancel(run.pk)  # if it is this process's own; `functions.runs.lease_renewer` finds it elsewhere
    run.refresh_from_db(using=using)
    return run
