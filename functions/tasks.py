"""What workers do for `functions`: execute queued runs when nudged, and sweep what nobody was nudged for."""

import logging
import multiprocessing
import threading
from typing import Any

from celery import current_app, shared_task, signals
from django.conf import settings
from django.db import Error, connections

from functions import notify as function_notify
from functions.deploy import deletion as function_deletion
from functions.runs import leases
from functions.runs import queue as run_queue
from functions.runs import retention as run_retention
from functions.runtime import scratch
from functions.triggers import events as event_triggers
from functions.triggers import inbound_endpoints, schedules
from functions.worker import Worker
from platform_site.background import dispatch
from platform_site.background.periodic import apart, sweep, sweep_of_each_region

logger = logging.getLogger("platform.functions")

_stopping = multiprocessing.Event()
"""Made before the worker forks: its processes share it, and a warm stop reaches the loops inside them."""
_workers: dict[str, Worker] = {}


@signals.worker_shutting_down.connect(weak=False)
def _stop_working(**_: Any) -> None:
    _stopping.set()


@shared_task
def work(using: str) -> None:
    """Execute the region's queued runs, and those of the events that were heard. A region that is away is left to the
    sweep."""
    if using not in settings.REGION_DATABASES:
        return
    with apart("queueing runs of events", using=using):
        event_triggers.queue(using)  # first: others' runs may keep the loop from ever being done
    try:
        _workers.setdefault(using, Worker(using)).run(_stopping.is_set)
    except Error as error:
        connections[using].close()
        logger.warning("region %s: executing stopped: %s", using, type(error).__name__)


def _see_to_it(using: str) -> None:
    """Nudge a worker that runs are queued. Where Redis is away, this one executes them if that is its queue at all:
    Celery comes back to a Redis that was away only after up to half a minute."""
    if not dispatch.send_now(work.name, using) and "functions" in current_app.amqp.queues.consume_from:
        threading.Thread(target=_work_aside, args=(using,), name=f"functions-{using}").start()


def _work_aside(using: str) -> None:
    try:
        work(using)
    finally:
        connections.close_all()


@sweep_of_each_region(every=settings.FUNCTION_SWEEP_SECONDS)
def settle_and_start(using: str) -> None:
    """End or requeue runs whose worker died; find queued ones that nobody was nudged for."""
    requeued, failed, told = leases.settle_lost(using)
    if requeued or failed:
        logger.warning("region %s: lost workers: %s runs requeued, %s failed", using, requeued, failed)
    if told:
        function_notify.tell(using)
    if run_queue.is_due(using):
        _see_to_it(using)


@sweep_of_each_region(every=settings.FUNCTION_SWEEP_SECONDS)
def queue_scheduled(using: str) -> None:
    """Queue runs of the functions that are due by their schedule."""
    if schedules.queue_due(using):
        _see_to_it(using)


@sweep_of_each_region(every=settings.FUNCTION_SWEEP_SECONDS)
def queue_heard(using: str) -> None:
    """Queue runs of events that nobody was nudged for, or that waited for room."""
    if event_triggers.queue(using):
        _see_to_it(using)


@sweep_of_each_region(every=300)
def mend_future_times(using: str) -> None:
    """After the clock of the region's PostgreSQL was set back."""
    if mended := leases.mend_future_times(using):
        logger.warning("region %s: the clock was set back: %s runs wait for it no longer", using, mended)
        dispatch.send_now(work.name, using)
    if mended := schedules.mend_future_times(using):
        logger.warning("region %s: the clock was set back: %s schedules wait for it no longer", using, mended)


@sweep_of_each_region(every=300)
def prove_addresses(using: str) -> None:
    """Redis may have been emptied, or away when an address was made."""
    inbound_endpoints.prove_all(using)


@sweep_of_each_region(every=300)
def forget_old_runs(using: str) -> None:
    """Runs are kept for 7 days. Contract section 8."""
    run_retention.purge(using)


@sweep_of_each_region(every=60)
def forget_visits(using: str) -> None:
    """Of visitors' runs the newest are kept."""
    run_retention.purge_visits(using)


@sweep_of_each_region(every=300)
def shorten_histories(using: str) -> None:
    """Of a history that takes more of the disk than the plan allows, the oldest goes."""
    run_retention.shorten(using)


@shared_task
def remove_deleted(using: str) -> None:
    """Remove what functions have left that were deleted with a long history. A region that is away is left to the
    sweep."""
    if using in settings.REGION_DATABASES:
        remove_what_functions_left(using)


@sweep_of_each_region(every=60)
def remove_what_functions_left(using: str) -> None:
    """The same, of functions that nobody was nudged for or whose worker died."""
    for function_id in function_deletion.unfinished(using):
        with apart(f"what the deleted function {function_id} left", using=using):
            function_deletion.finish(using, function_id)
            logger.info("removed what the deleted function %s had left", function_id)


@sweep(every=300)
def clear_scratch() -> None:
    """Remove what processes of this host that were killed have left in its temporary directory."""
    scratch.sweep()
