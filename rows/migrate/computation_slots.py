"""Parsing and planning a schema can take seconds of CPU. A project gets one slot of a process at a time for it, so that
it cannot take all threads from others."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from platform_site.concurrency.fair_semaphore import FairSemaphore, Full
from platform_site.http.errors import Unavailable
from platform_site.identity.callers import EnvironmentRef

P = ParamSpec("P")
T = TypeVar("T")
WAIT_SECONDS: Final = 5.0
_slots: Final = FairSemaphore(4, per_owner=1, slow_after=3.0, max_waiting=6)


class SchemasBusy(Unavailable):
    message = "Other schemas are being planned. Nothing was changed; try again shortly."


def in_slot(work: Callable[Concatenate[EnvironmentRef, P], T]) -> Callable[Concatenate[EnvironmentRef, P], T]:
    """Calls of `work` take a slot of the environment's project, so none may be within another. They also raise
    SchemasBusy."""

    @wraps(work)
    def call(environment: EnvironmentRef, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            with _slots.slot(environment.project_id, wait=WAIT_SECONDS):
                return work(environment, *args, **options)
        except Full:
            raise SchemasBusy from None

    return call
