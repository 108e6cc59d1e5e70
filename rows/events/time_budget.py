"""A time budget for processing events in one transaction, with a share for each environment.

Steps bound one event (`rows.events.payloads`); a hundred that stay below that bound are a hundred times as much.
PostgreSQL ends a transaction in which nothing is said for so long, and those who wait behind an environment's costly
events are others. So a budget ends by the clock, wherever it is, and an environment has a share of it: what was decided
so far is settled, the rest comes with the next budget.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

SECONDS: Final = 1.0
"""After so much a budget takes up no further event."""
SHARE: Final = 0.25
"""Seconds of a budget after which it takes up no further event of one environment."""


class TimeBudget:
    """The clock of one budget, which begins now. Each event that it took up is booked once it is decided."""

    def __init__(self) -> None:
        self._begun = self._booked = time.monotonic()
        self._spent: dict[str, float] = defaultdict(float)

    @property
    def is_over(self) -> bool:
        """Never before the first event."""
        return self._booked - self._begun > SECONDS

    def book(self, environment_id: str) -> None:
        """What passed since the last call was spent on an event of this environment."""
        now = time.monotonic()
        self._spent[environment_id] += now - self._booked
        self._booked = now

    def has_had(self, environment_id: str) -> bool:
        """Whether it had its share."""
        return self._spent.get(environment_id, 0.0) > SHARE

    @property
    def costly(self) -> Collection[str]:
        """The environments that had their share."""
        return [environment_id for environment_id in self._spent if self.has_had(environment_id)]


class ExpensiveEnvironments:
    """The environments whose events took long in this process, in the order in which they had their last budget."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def one_of(self, environment_ids: Collection[str]) -> list[str]:
        """These, of the costly ones only the one whose budget it is, at the end."""
        known = [each for each in self if each in environment_ids]
        return [each for each in environment_ids if each not in known] + known[:1]

    def add(self, environment_id: str) -> None:
        """It goes to the end of the line."""
        self._known.pop(environment_id, None)
        self._known[environment_id] = None

    def discard(self, environment_id: str) -> None:
        self._known.pop(environment_id, None)
