"""A fair semaphore for operations whose duration a tenant controls. An owner's share shrinks with the slots that others
hold. An owner is slow for a minute, doubling up to an hour, after an operation longer than `slow_after` seconds, and
proven after a fast one. Slow owners cannot take the last half of the slots, and only proven owners the last quarter. A
slot held for `slow_after` seconds can be reclaimed for another owner. The queue is served by reputation, slots held and
age."""

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

MAX_OWNERS: Final = 10_000
FIRST_PENALTY: Final = 60.0
MAX_PENALTY: Final = 3600.0
_PROVEN, _UNKNOWN, _SLOW = range(3)


class Full(Exception):
    pass


@dataclass(slots=True)
class _Owner:
    held: int = 0
    is_proven: bool = False
    times_slow: int = 0
    slow_until: float = -math.inf
    slow_at: float = -math.inf

    def reputation(self, now: float) -> int:
        if now < self.slow_until:
            return _SLOW
        return _PROVEN if self.is_proven else _UNKNOWN

    def penalty(self) -> float:
        return min(MAX_PENALTY, FIRST_PENALTY * float(2 ** min(self.times_slow - 1, 20)))

    def record(self, since: float, slow_after: float, now: float) -> None:
        """Record a slot from `since` until `now`. The penalty resets after good behaviour for its length."""
        if self.times_slow and now > self.slow_until + self.penalty():
            self.times_slow = 0
        if now - since > slow_after:
            self.times_slow += since >= self.slow_at
            self.is_proven = False
            self.slow_at = now
            self.slow_until = now + self.penalty()
        elif now >= self.slow_until:
            self.is_proven = True


@dataclass(slots=True, eq=False)
class Slot:
    owner: str
    on_reclaim: Callable[[], None] | None
    since: float = 0.0
    is_reclaimed: bool = False


class FairSemaphore:
    """One owner may have `per_owner` slots while there are no others. Thread-safe."""

    def __init__(
        self,
        capacity: int,
        *,
        per_owner: int,
        slow_after: float,
        max_waiting: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity, self.slow_after = capacity, slow_after
        self._per_owner, self._max_waiting, self._clock = per_owner, max_waiting, clock
        self._changed = threading.Condition()
        self._owners: OrderedDict[str, _Owner] = OrderedDict()
        self._slots: list[Slot] = []
        self._queue: list[Slot] = []

    @contextmanager
    def slot(self, owner: str, *, wait: float, on_reclaim: Callable[[], None] | None = None) -> Iterator[Slot]:
        """`is_reclaimed`: whether it was needed for another owner. Raises Full."""
        slot = self.acquire(owner, wait=wait, on_reclaim=on_reclaim)
        if slot is None:
            raise Full
        try:
            yield slot
        finally:
            self.release(slot)

    def acquire(self, owner: str, *, wait: float, on_reclaim: Callable[[], None] | None = None) -> Slot | None:
        """A slot; None after `wait` seconds. `on_reclaim` ends the operation, without blocking or taking slots."""
        until = self._clock() + wait
        slot = Slot(owner, on_reclaim)
        with self._changed:
            self._queue.append(slot)
            try:
                while True:
                    now = self._clock()
                    self._grant_slots(now)
                    if slot in self._slots:
                        return slot
                    if now >= until:
                        return None
                    self._trim_queue(now)
                    if slot not in self._queue:
                        return None
                    self._reclaim_slot(slot.owner, now)
                    self._changed.wait(min(until - now, self._seconds_until_reclaimable(now)))
            finally:
                if slot in self._queue:
                    self._queue.remove(slot)

    def release(self, slot: Slot) -> None:
        with self._changed:
            now = self._clock()
            owner = self._owner(slot.owner)
            owner.held -= 1
            owner.record(slot.since, self.slow_after, now)
            self._slots.remove(slot)
            self._grant_slots(now)

    def _owner(self, name: str) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner()
            if len(self._owners) > MAX_OWNERS:
                idle = next((other for other, its in self._owners.items() if not its.held and other != name), None)
                if idle is not None:
                    del self._owners[idle]
        else:
            self._owners.move_to_end(name)
        return owner

    def _has_room(self, name: str, now: float) -> bool:
        owner, taken = self._owner(name), len(self._slots)
        reputation = owner.reputation(now)
        if reputation != _PROVEN:
            closed = math.ceil(self.capacity / (4 if reputation == _UNKNOWN else 2))
            if taken >= max(1, self.capacity - closed):
                return False
        elif taken >= self.capacity:
            return False
        each = self._per_owner / 4 if reputation == _SLOW else self._per_owner
        others = taken - owner.held
        return owner.held < max(1, math.ceil(each * (self.capacity - others) / self.capacity))

    def _priorities(self, now: float) -> list[tuple[int, int, int]]:
        before: Counter[str] = Counter()
        priorities = []
        for position, slot in enumerate(self._queue):
            owner = self._owner(slot.owner)
            priorities.append((owner.reputation(now), owner.held + before[slot.owner], position))
            before[slot.owner] += 1
        return priorities

    def _grant_slots(self, now: float) -> None:
        while len(self._slots) < self.capacity and self._queue:
            for *_, position in sorted(self._priorities(now)):
                if self._has_room(self._queue[position].owner, now):
                    self._grant(self._queue.pop(position), now)
                    break
            else:
                return

    def _grant(self, slot: Slot, now: float) -> None:
        slot.since = now
        self._slots.append(slot)
        self._owner(slot.owner).held += 1
        self._changed.notify_all()

    def _trim_queue(self, now: float) -> None:
        while self._max_waiting is not None and len(self._queue) > self._max_waiting:
            *_, position = max(self._priorities(now))
            del self._queue[position]
            self._changed.notify_all()

    def _reclaim_slot(self, name: str, now: float) -> None:
        owner = self._owner(name)
        if owner.held or sum(slot.is_reclaimed for slot in self._slots) >= len(self._queue):
            return
        mine = owner.reputation(now)
        reclaimable = [
            slot
            for slot in self._slots
            if slot.on_reclaim is not None
            and not slot.is_reclaimed
            and now - slot.since >= self.slow_after
            and self._owner(slot.owner).reputation(now) >= mine
        ]
        if reclaimable:
            slot = max(reclaimable, key=lambda each: (self._owner(each.owner).reputation(now), now - each.since))
            slot.is_reclaimed = True
            if slot.on_reclaim is not None:
                slot.on_reclaim()

    def _seconds_until_reclaimable(self, now: float) -> float:
        ages = [now - slot.since for slot in self._slots if slot.on_reclaim is not None and not slot.is_reclaimed]
        return max(0.01, min((self.slow_after - age for age in ages if age < self.slow_after), default=self.slow_after))
