"""What workers do for `webhooks`: run a region's dispatcher when nudged, and sweep what nobody was nudged for.

The sweep needs no Redis: where a nudge cannot be sent, or nobody seems to take them, the worker that sweeps does the
work itself. Celery comes back to a Redis that was away only after up to half a minute.
"""

import logging
from datetime import timedelta
from typing import Any

from celery import current_app, shared_task, signals
from django.conf import settings

from accounts.audit import SYSTEM
from platform_site.background import dispatch as background_dispatch
from platform_site.background.periodic import apart, sweep, sweep_of_each_region
from projects.directory.environments import place_of
from rows.outbox import audit as audit_outbox
from webhooks import signal_handlers
from webhooks.cli_listener import end_listeners
from webhooks.delivery import control_events, dispatcher_thread
from webhooks.delivery import retention as delivery_retention
from webhooks.delivery.clock_skew import mend_future_times
from webhooks.delivery.queue import longest_wait
from webhooks.delivery.reconciler import settle
from webhooks.models import TrailEntry

logger = logging.getLogger("platform.webhooks")


@signals.worker_shutting_down.connect(weak=False)
def _begin_nothing_more(**_: Any) -> None:
    dispatcher_thread.ask_to_stop()


@signals.worker_shutdown.connect(weak=False)
def _wait_for_what_is_in_flight(**_: Any) -> None:
    dispatcher_thread.stop()


@shared_task
def dispatch(using: str) -> None:
    """Let the region's queue be emptied. A region that is away is left to the sweep."""
    if using in settings.REGION_DATABASES:
        dispatcher_thread.wake(using)


@shared_task
def carry_over_control_events(environment_id: str) -> None:
    """Tell an environment's region what the control database has for it."""
    place = place_of(environment_id)
    if place is not None:
        _carry_over(place.cluster)


def _carry_over(using: str) -> None:
    with apart(f"control events for {using}", using=using):
        carried = 0
        while (more := control_events.carry_over(using)) > 0:
            carried += more
        if carried:
            background_dispatch.send_now(dispatch.name, using)


@sweep(every=settings.WEBHOOK_SWEEP_SECONDS)
def carry_over_what_is_left() -> None:
    """Control events whose nudge was lost."""
    for using in settings.REGION_DATABASES:
        _carry_over(using)


@shared_task
def bring_trail_over(using: str) -> None:
    """Bring what processes of the release before wrote down for the trail: what their workers did by themselves. They
    nudge this; the rest is left to the sweep. Both go with their table."""
    if using in settings.REGION_DATABASES:
        with apart(f"entries of the trail in {using}, as the release before writes them", using=using):
            while audit_outbox.bring_oldest(using, TrailEntry, actor_kind=SYSTEM.kind) > 0:
                pass


@sweep(every=30)
def bring_trail_that_is_left() -> None:
    """The same, of those whose nudge was lost."""
    for using in settings.REGION_DATABASES:
        bring_trail_over(using)


@sweep_of_each_region(every=settings.WEBHOOK_SWEEP_SECONDS)
def dispatch_what_is_due(using: str) -> None:
    """Find work that nobody was nudged for: a lost nudge, a retry whose time has come, a lease that ran out."""
    waiting = longest_wait(using)
    if waiting is not None:
        is_sent = background_dispatch.send_now(dispatch.name, using)
        is_ours = "webhooks" in current_app.amqp.queues.consume_from
        if is_ours and (not is_sent or waiting > timedelta(seconds=2 * settings.WEBHOOK_SWEEP_SECONDS)):
            dispatcher_thread.wake(using)


@sweep_of_each_region(every=settings.WEBHOOK_SWEEP_SECONDS)
def settle_deliveries(using: str) -> None:
    """Let deliveries follow webhooks that were switched, for some seconds at a time."""
    if settle(using):
        background_dispatch.send_now(dispatch.name, using)


@sweep_of_each_region(every=15)
def end_subscriptions_of_terminals(using: str) -> None:
    """Of those that were killed."""
    end_listeners(using)


@sweep_of_each_region(every=300)
def mend_what_a_clock_put_off(using: str) -> None:
    """After the clock of the region's PostgreSQL was set back. What is due then, `dispatch_what_is_due` finds."""
    if mended := mend_future_times(using, lease=settings.WEBHOOK_LEASE):
        logger.warning("region %s: the clock was set back: %s deliveries wait for it no longer", using, mended)


@shared_task
def forget_environment(environment_id: str, using: str) -> None:
    """Remove what a deleted environment with a long history has left. What goes wrong is left to the sweeps."""
    if using in settings.REGION_DATABASES:
        with apart(f"what {environment_id} left in {using}", using=using):
            signal_handlers.forget_all(environment_id, using)


@sweep_of_each_region(every=300)
def forget_what_is_old(using: str) -> None:
    """Expire held events, remove deleted webhooks, purge deliveries and relayed events past their time."""
    delivery_retention.remove_deleted(using)
    delivery_retention.purge(using, older_than=settings.WEBHOOK_RETENTION)
    # Last: it alone waits for the control database, to spare what a suspended project holds.
    delivery_retention.expire_held(using, older_than=timedelta(days=7))


@sweep(every=300)
def forget_old_control_events() -> None:
    control_events.forget_old()
