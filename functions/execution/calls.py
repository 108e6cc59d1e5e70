"""Service of calls: run a function now or later, and cancel a run. For the API, inbound endpoints and commands."""

from dataclasses import replace
from typing import Final

from django.db import connections, transaction

from accounts.audit import Actor
from functions import notify as function_notify
from functions.directory import NAME, function_of, run_of
from functions.errors import NoSuchFunction, RunEnded
from functions.execution import executor
from functions.execution.executor import CallResult
from functions.models import Run
from functions.runs import completion, start
from functions.runs.start import CreatedRun, NewRun
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import prepared
from rows.outbox import audit as audit_outbox

_TIMEOUT: Final = b"""
SELECT f.timeout_ms FROM platform.functions_function f
 WHERE f.environment_id = $1::text AND f.name = $2::text AND %(invocable)b
""" % {b"invocable": start.IS_INVOCABLE}


def timeout_of(new: NewRun) -> float:
    """Seconds that the function may run, and that a call of it may wait. Raises NoSuchFunction, also for a function
    that this kind of caller may not invoke. One query."""
    if not NAME.fullmatch(new.function_name):
        raise NoSuchFunction
    values = [new.environment.environment_id.encode(), new.function_name.encode(), start.invoker(new.caller)]
    found = prepared.retry_if_lost(connections[new.environment.cluster], _TIMEOUT, values)
    if not found:
        raise NoSuchFunction
    return int(found[0][0] or 0) / 1000


def invoke(new: NewRun) -> tuple[CreatedRun, CallResult]:
    """Run the function now and wait for its end. Raises the errors of `start_run`. Contract section 4.11."""
    started = start.start_run(new)
    return started, executor.execute(started, new.caller, new.environment)


def enqueue(new: NewRun) -> str:
    """Queue a run and return its id. It is committed with the current transaction; then a worker is notified. Raises
    the errors of `start_run`."""
    queued = start.start_run(replace(new, is_async=True))
    function_notify.after_commit(new.environment.cluster)
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
