"""The work of a pass for one environment, what it may cost, and the order in which the feed's threads take it."""

import threading
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from random import randrange
from typing import Final, TypeVar

from rows.changes.event_reader import FetchedEvents
from rows.changes.streams import Stream
from rows.events.payloads import MAX_EFFORT
from rows.rules.evaluator import Effort, TooCostly

T = TypeVar("T")

WORKERS: Final = 4
PASS_SECONDS: Final = 1.0
_SECONDS_WITH_RESTS: Final = 4 * PASS_SECONDS
_SECONDS_AFTER_READ: Final = 0.2
_SLOW_SECONDS: Final = 0.5
"""An environment whose task takes longer is slow for the next _SLOW_FOR seconds."""
_SLOW_FOR: Final = 600.0
_STEPS_AT_ONCE: Final = 30_000
_STEP_SECONDS: Final = 3e-7
_RESTS: Final = 3
"""How many times as long as it works in Python a slow environment rests: threads share one interpreter."""


class PassEffort(Effort):
    """What a pass may cost an environment: PASS_SECONDS without rests, and MAX_EFFORT steps for each subscription."""

    def __init__(self) -> None:
        super().__init__(MAX_EFFORT)
        self.start(is_slow=False)

    def start(self, *, is_slow: bool) -> None:
        self._began, self._is_slow = time.monotonic(), is_slow
        self._until = self._began + PASS_SECONDS
        self._steps_since_rest, self._rested = 0, 0.0

    def extend(self) -> None:
        """Leave time for streams whose events were just read, however long that took."""
        self._until = max(self._until, time.monotonic() + _SECONDS_AFTER_READ)

    def start_subscription(self) -> None:
        self._left = MAX_EFFORT

    @property
    def seconds_left(self) -> float:
        return self._until - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0

    @property
    def seconds_worked(self) -> float:
        return time.monotonic() - self._began - self._rested

    def check(self) -> None:
        """Raises TooCostly."""
        if self.is_over:
            raise TooCostly

    def spend(self, steps: int) -> None:
        super().spend(steps)
        self._steps_since_rest += steps
        if self._steps_since_rest >= _STEPS_AT_ONCE:
            self.check()
            if self._is_slow:
                rest = self._steps_since_rest * _STEP_SECONDS * _RESTS
                self._until = min(self._until + rest, self._began + _SECONDS_WITH_RESTS)
                rest = max(0.0, min(rest, self.seconds_left))
                self._rested += rest
                time.sleep(rest)
            self._steps_since_rest = 0


@dataclass(slots=True)
class Task:
    """The work for one environment in one pass."""

    environment_id: str
    until: str | None
    """The snapshot up to which events are read; None for the current one."""
    began: float = field(default_factory=time.monotonic)
    fetched: list[tuple[list[Stream], FetchedEvents]] = field(default_factory=list)
    """Streams at positions that other environments share: one round trip has read for all of them."""
    unfetched: list[list[Stream]] = field(default_factory=list)
    """The others, by position."""
    effort: PassEffort = field(default_factory=PassEffort)
    is_slow: bool = False
    was_skipped: bool = False
    """A later pass found the task unfinished, and left its environment out."""


class TaskQueue:
    """At most one task for each environment, in their order, except that slow environments have at most half of the
    workers. None ends a worker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Task | None] = []
        self._unfinished: dict[str, Task] = {}
        self._slow_until: dict[str, float] = {}
        self._slow_running = 0
        self._longest = 0.0

    def skip_unfinished(self, environment_ids: Set[str]) -> Set[str]:
        """Those whose last task is not finished. Their `finish` says that another pass is due."""
        with self._changed:
            skipped = environment_ids & self._unfinished.keys()
            for environment_id in skipped:
                self._unfinished[environment_id].was_skipped = True
            return skipped

    def put(self, task: Task | None) -> None:
        with self._changed:
            if task is not None:
                task.is_slow = self._slow_until.get(task.environment_id, 0.0) > time.monotonic()
                self._unfinished[task.environment_id] = task
            self._waiting.append(task)
            self._changed.notify()

    def get(self) -> Task | None:
        with self._changed:
            while (index := self._next()) is None:
                self._changed.wait()
            task = self._waiting.pop(index)
            if task is not None:
                self._slow_running += task.is_slow
                task.effort.start(is_slow=task.is_slow)
            return task

    def _next(self) -> int | None:
        has_room = self._slow_running < WORKERS // 2
        return next((at for at, task in enumerate(self._waiting) if has_room or task is None or not task.is_slow), None)

    def finish(self, task: Task) -> bool:
        """Whether a pass has skipped the environment meanwhile, so that another one is due."""
        with self._changed:
            now = time.monotonic()
            self._slow_running -= task.is_slow
            if task.effort.seconds_worked > _SLOW_SECONDS:
                self._slow_until = {each: until for each, until in self._slow_until.items() if until > now}
                self._slow_until[task.environment_id] = now + _SLOW_FOR
            del self._unfinished[task.environment_id]
            self._longest = max(self._longest, now - task.began)
            self._changed.notify()
            return task.was_skipped

    def take_lag(self) -> float:
        """Seconds that the longest task took since the last call, or has taken so far."""
        with self._changed:
            now = time.monotonic()
            lag, self._longest = max([self._longest, *(now - task.began for task in self._unfinished.values())]), 0.0
            return lag


def from_random_start(items: Sequence[T]) -> list[T]:
    """Starts at a random item, so that a pass that has no time for all begins with others than the last."""
    start = randrange(len(items)) if items else 0  # noqa: S311
    return [*items[start:], *items[:start]]
