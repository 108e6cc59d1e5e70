import logging
import multiprocessing
import threading
from typing import Any

from celery import current_app, shared_task, signals
from django.conf import settings
from django.db import Error, connections

from functions.deploy import deletion as function_deletion
from functions.runs import leases
from functions.runs import queue as run_queue
from functions.runs import retention as run_retention
from functions.runtime import scratch
from functions.triggers import events as event_triggers
from functions.triggers import inbound_endpoints, schedules
from functions.worker import Worker
from platform_site.background import dispatch
from platform_site.background.periodic import log_failures, periodic_job, periodic_job_per_region

logger = logging.getLogger("platform.functions")

_stopping = multiprocessing.Event()
"""Created before the worker forks, so that its processes share it and a warm shutdown ends their loops."""
_workers: dict[str, Worker] = {}


@signals.worker_shutting_down.connect(weak=False)
def _stop_working(**_: Any) -> None:
    _stopping.set()


@shared_task
def work(using: str) -> None:
    if using not in settings.REGION_DATABASES:
        return
    with log_failures("queueing runs of events", using=using):
        event_triggers.queue(using)  # first: the loop may never end while others queue runs
    try:
        _workers.setdefault(using, Worker(using)).run(_stopping.is_set)
    except Error as error:
        connections[using].close()
        logger.warning("region %s: executing stopped: %s", using, type(error).__name__)


def _notify_worker(using: str) -> None:
    """If Redis is unavailable, this worker executes the runs if it serves that queue: Celery may need half a minute to
    reconnect to Redis."""
    if not dispatch.send_now(work.name, using) and "functions" in current_app.amqp.queues.consume_from:
        threading.Thread(target=_work_in_thread, args=(using,), name=f"functions-{using}").start()


def _work_in_thread(using: str) -> None:
    try:
        work(using)
    finally:
        connections.close_all()


@periodic_job_per_region(every=settings.FUNCTION_JOB_SECONDS)
def settle_and_start(using: str) -> None:
    """End or requeue runs whose worker died, and find queued runs without a notification."""
    requeued, failed = leases.settle_lost(using)
    if requeued or failed:
        logger.warning("region %s: lost workers: %s runs requeued, %s failed", using, requeued, failed)
    if run_queue.is_due(using):
        _notify_worker(using)


@periodic_job_per_region(every=settings.FUNCTION_JOB_SECONDS)
def queue_scheduled(using: str) -> None:
    if schedules.queue_due(using):
        _notify_worker(using)


@periodic_job_per_region(every=settings.FUNCTION_JOB_SECONDS)
def queue_pending_events(using: str) -> None:
    """Queue runs whose notification was lost, or that waited for a free slot."""
    if event_triggers.queue(using):
        _notify_worker(using)


@periodic_job_per_region(every=300)
def repair_future_times(using: str) -> None:
    if repaired := leases.repair_future_times(using):
        logger.warning("region %s: the clock was set back: repaired %s runs", using, repaired)
        dispatch.send_now(work.name, using)
    if repaired := schedules.repair_future_times(using):
        logger.warning("region %s: the clock was set back: repaired %s schedules", using, repaired)


@periodic_job_per_region(every=300)
def verify_endpoints(using: str) -> None:
    inbound_endpoints.verify_all(using)


@periodic_job_per_region(every=300)
def purge_old_runs(using: str) -> None:
    run_retention.purge(using)


@periodic_job_per_region(every=60)
def purge_anonymous_runs(using: str) -> None:
    run_retention.purge_anonymous_runs(using)


@periodic_job_per_region(every=300)
def shorten_histories(using: str) -> None:
    run_retention.shorten_histories(using)


@shared_task
def remove_deleted(using: str) -> None:
    if using in settings.REGION_DATABASES:
        remove_orphaned_rows(using)


@periodic_job_per_region(every=60)
def remove_orphaned_rows(using: str) -> None:
    for function_id in function_deletion.unfinished(using):
        with log_failures(f"what the deleted function {function_id} left", using=using):
            function_deletion.finish(using, function_id)
            logger.info("removed what the deleted function %s had left", function_id)


@periodic_job(every=300)
def clear_scratch() -> None:
    scratch.remove_leftovers()
