"""Functions that run on events."""

from typing import Any

from functions.models import Run
from functions.worker import Worker
from platform_site.identity.callers import EnvironmentRef
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from webhooks.delivery.relay import relay_batch

TELL = "export default (input: any, ctx: any) => ({...input, caller: ctx.caller})"


def put(tracker: Tracker, who: str, name: str, source: str = TELL, **more: Any) -> Answer:
    return tracker.call(who, "PUT", f"/functions/{name}", json={"source": source, **more})


def relay(using: str) -> int:
    """Settle all events of the region; how many."""
    settled = 0
    while found := relay_batch(using):
        settled += found
    return settled


def runs(environment: EnvironmentRef, **which: Any) -> list[Run]:
    return list(Run.objects.using(environment.cluster).filter(trigger="event", **which).order_by("created_at", "id"))


def run_events(environment: EnvironmentRef) -> list[Run]:
    """Let everything come of what was written; the runs on events."""
    relay(environment.cluster)
    Worker(environment.cluster).run()
    return runs(environment)
