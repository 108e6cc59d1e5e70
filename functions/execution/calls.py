from dataclasses import replace

from django.db import transaction

from accounts.audit import Actor
from functions import notify as function_notify
from functions.errors import RunEnded
from functions.execution import executor
from functions.models import Run
from functions.runs import completion, start
from functions.runs.start import CreatedRun, NewRun
from functions.runtime.calls import Outcome
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.outbox import audit as audit_outbox


def invoke(new: NewRun) -> tuple[CreatedRun, Outcome]:
    """Raises the errors of `start_run`."""
    started = start.start_run(new)
    return started, executor.execute(started, new.caller, new.environment)


def enqueue(new: NewRun) -> str:
    """Queue a run, which is committed with the current transaction. Raises the errors of `start_run`."""
    queued = start.start_run(replace(new, is_async=True))
    function_notify.after_commit(new.environment.cluster)
    return queued.run_id


def cancel(environment: EnvironmentRef, run: Run, *, actor: Caller | Actor) -> None:
    """Cancel a run: at once if it is queued, else when its process next checks. Idempotent. Raises RunEnded."""
    using = environment.cluster
    with transaction.atomic(using=using):
        if completion.request_cancel(using, run.pk):
            audit_outbox.record(environment, "run.cancelled", actor=actor, target_id=run.pk)
        elif not Run.objects.using(using).filter(pk=run.pk).exclude(phase=Run.Phase.ENDED).exists():
            raise RunEnded
    executor.pool().cancel(run.pk)  # if it is this process's own; `functions.runs.lease_renewer` finds it elsewhere
    run.refresh_from_db(using=using)
