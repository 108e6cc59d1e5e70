"""A time budget for processing events in one transaction, with a share for each environment, so that expensive events
do not delay others. What is over budget waits for the next one."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

SECONDS: Final = 1.0
SHARE: Final = 0.25
"""Seconds for one environment."""


class TimeBudget:
    def __init__(self) -> None:
        self._begun = self._charged_at = time.monotonic()
        self._spent: dict[str, float] = defaultdict(float)

    @property
    def is_over(self) -> bool:
        return self._charged_at - self._begun > SECONDS

    def charge(self, environment_id: str) -> None:
        """For the time since the last call."""
        now = time.monotonic()
        self._spent[environment_id] += now - self._charged_at
        self._charged_at = now

    def has_used_share(self, environment_id: str) -> bool:
        return self._spent.get(environment_id, 0.0) > SHARE

    @property
    def expensive(self) -> Collection[str]:
        return [environment_id for environment_id in self._spent if self.has_used_share(environment_id)]


class ExpensiveEnvironments:
    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def select(self, environment_ids: Collection[str]) -> list[str]:
        """Those of the environments that are not expensive, then one that is."""
        known = [each for each in self if each in environment_ids]
        return [each for each in environment_ids if each not in known] + known[:1]

    def add(self, environment_id: str) -> None:
        self._known.pop(environment_id, None)
        self._known[environment_id] = None

    def discard(self, environment_id: str) -> None:
        self._known.pop(environment_id, None)
