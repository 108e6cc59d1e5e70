"""Parsing and planning a schema can take seconds of CPU. A project gets one slot of a process at a time for
it, so that it cannot take all threads from others. The rest waits in a short queue."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from platform_site.concurrency.fair_semaphore import FairSemaphore
from platform_site.http.errors import Unavailable
from platform_site.identity.callers import EnvironmentRef

P = ParamSpec("P")
T = TypeVar("T")
WAIT_SECONDS: Final = 5.0
_slots: Final = FairSemaphore(4, per_owner=1, slow_after=3.0, max_waiting=6)
_here: Final = threading.local()


class SchemasBusy(Unavailable):
    message = "Other schemas are being planned. Nothing was changed; try again shortly."


def in_slot(work: Callable[Concatenate[EnvironmentRef, P], T]) -> Callable[Concatenate[EnvironmentRef, P], T]:
    """Calls of `work` take a slot of the environment's project, unless the thread has one. They also raise
    SchemasBusy."""

    @wraps(work)
    def call(environment: EnvironmentRef, /, *args: P.args, **options: P.kwargs) -> T:
        if getattr(_here, "has_slot", False):
            return work(environment, *args, **options)
        slot = _slots.acquire(environment.project_id, wait=WAIT_SECONDS)
        if slot is None:
            raise SchemasBusy
        _here.has_slot = True
        try:
            return work(environment, *args, **options)
        finally:
            _here.has_slot = False
            _slots.release(slot)

    return call
