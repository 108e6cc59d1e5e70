"""Celery tasks of `webhooks`. Without Redis, the periodic jobs do the work themselves."""

import logging
from datetime import timedelta
from typing import Any

from celery import current_app, shared_task, signals
from django.conf import settings

from platform_site.background import dispatch as background_dispatch
from platform_site.background.periodic import log_failures, periodic_job, periodic_job_per_region
from projects.directory.environments import environment_ref
from webhooks.cli_listener import end_listeners
from webhooks.delivery import control_events, dispatcher_thread
from webhooks.delivery import retention as delivery_retention
from webhooks.delivery.clock_skew import repair_future_times
from webhooks.delivery.queue import longest_wait
from webhooks.delivery.reconciler import reconcile
from webhooks.subscriptions import deletion

logger = logging.getLogger("platform.webhooks")


@signals.worker_shutting_down.connect(weak=False)
def _stop_claiming(**_: Any) -> None:
    dispatcher_thread.ask_to_stop()


@signals.worker_shutdown.connect(weak=False)
def _finish_attempts(**_: Any) -> None:
    dispatcher_thread.stop()


@shared_task
def dispatch(using: str) -> None:
    if using in settings.REGION_DATABASES:
        dispatcher_thread.wake(using)


@shared_task
def move_control_events(environment_id: str) -> None:
    environment = environment_ref(environment_id)
    if environment is not None:
        _move(environment.cluster)


def _move(using: str) -> None:
    with log_failures(f"control events for {using}", using=using):
        moved = 0
        while (more := control_events.move_to_region(using)) > 0:
            moved += more
        if moved:
            background_dispatch.send_now(dispatch.name, using)


@periodic_job(every=settings.WEBHOOK_JOB_SECONDS)
def move_remaining_control_events() -> None:
    for using in settings.REGION_DATABASES:
        _move(using)


@periodic_job_per_region(every=settings.WEBHOOK_JOB_SECONDS)
def dispatch_due(using: str) -> None:
    """Wake a worker for what is due: this one, if it serves the queue and the task was not sent or has not helped."""
    waiting = longest_wait(using)
    if waiting is not None:
        is_sent = background_dispatch.send_now(dispatch.name, using)
        serves_queue = "webhooks" in current_app.amqp.queues.consume_from
        if serves_queue and (not is_sent or waiting > timedelta(seconds=2 * settings.WEBHOOK_JOB_SECONDS)):
            dispatcher_thread.wake(using)


@periodic_job_per_region(every=settings.WEBHOOK_JOB_SECONDS)
def settle_deliveries(using: str) -> None:
    if reconcile(using):
        background_dispatch.send_now(dispatch.name, using)


@periodic_job_per_region(every=15)
def end_cli_listeners(using: str) -> None:
    end_listeners(using)


@periodic_job_per_region(every=300)
def repair_delivery_times(using: str) -> None:
    """After the database clock was set back; `dispatch_due` finds what is due then."""
    if repaired := repair_future_times(using):
        logger.warning("region %s: the clock was set back: repaired %s deliveries", using, repaired)


@shared_task
def delete_environment(environment_id: str, using: str) -> None:
    if using in settings.REGION_DATABASES:
        with log_failures(f"what {environment_id} left in {using}", using=using):
            deletion.finish(environment_id, using)


@periodic_job_per_region(every=300)
def purge_old_deliveries(using: str) -> None:
    delivery_retention.remove_deleted(using)
    delivery_retention.purge(using, older_than=settings.WEBHOOK_RETENTION)
    # Last, since it alone needs the control database, for suspended projects.
    delivery_retention.expire_held(using, older_than=timedelta(days=7))


@periodic_job(every=300)
def purge_old_control_events() -> None:
    control_events.purge_old()
