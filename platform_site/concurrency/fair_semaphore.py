"""A fair semaphore for slow operations whose duration a tenant decides. An owner's share shrinks with the number of
others. The last quarter of the slots is for owners that were fast, the last half is closed to slow ones (over `firm`
seconds; the penalty doubles from a minute to an hour). After `firm` seconds a slot can be reclaimed (`give_way`); a
bounded queue admits by standing, slots and age."""

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

OWNERS: Final = 10_000
FIRST_PENALTY: Final = 60.0
LONGEST_PENALTY: Final = 3600.0
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

    def standing(self, now: float) -> int:
        if now < self.slow_until:
            return _SLOW
        return _PROVEN if self.is_proven else _UNKNOWN

    def penalty(self) -> float:
        return min(LONGEST_PENALTY, FIRST_PENALTY * float(2 ** min(self.times_slow - 1, 20)))

    def record(self, since: float, firm: float, now: float) -> None:
        """Record a slot from `since` until `now`. The penalty resets after good behaviour for its length."""
        if self.times_slow and now > self.slow_until + self.penalty():
            self.times_slow = 0
        if now - since > firm:
            self.times_slow += since >= self.slow_at
            self.is_proven = False
            self.slow_at = now
            self.slow_until = now + self.penalty()
        elif now >= self.slow_until:
            self.is_proven = True


@dataclass(slots=True, eq=False)
class Hold:
    owner: str
    since: float
    give_way: Callable[[], None] | None
    is_leaving: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: str
    give_way: Callable[[], None] | None
    hold: Hold | None = None


class FairSemaphore:
    """`most` slots; one owner may have `each` while there are no others. A slot cannot be reclaimed for `firm` seconds.
    At most `line` operations wait. Thread-safe."""

    def __init__(
        self, most: int, *, each: int, firm: float, line: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.firm = most, firm
        self._each, self._most_waiting, self._clock = each, line, clock
        self._changed = threading.Condition()
        self._owners: OrderedDict[str, _Owner] = OrderedDict()
        self._holds: list[Hold] = []
        self._line: list[_Waiter] = []

    @contextmanager
    def held(self, owner: str, *, wait: float, give_way: Callable[[], None] | None = None) -> Iterator[Hold]:
        """A slot for the block; its `is_leaving` tells whether it had to give way. Raises Full."""
        hold = self.take(owner, wait=wait, give_way=give_way)
        if hold is None:
            raise Full
        try:
            yield hold
        finally:
            self.give_back(hold)

    def take(self, owner: str, *, wait: float, give_way: Callable[[], None] | None = None) -> Hold | None:
        """A slot; None after `wait` seconds. `give_way` ends the operation, without blocking or taking slots."""
        until = self._clock() + wait
        me = _Waiter(owner, give_way)
        with self._changed:
            self._line.append(me)
            try:
                while True:
                    now = self._clock()
                    self._let_in(now)
                    if me.hold is not None or now >= until:
                        return me.hold
                    self._shorten_line(now)
                    if me not in self._line:
                        return None
                    self._ask_somebody_to_leave(me, now)
                    self._changed.wait(min(until - now, self._until_one_is_lent(now)))
            finally:
                if me in self._line:
                    self._line.remove(me)

    def give_back(self, hold: Hold) -> None:
        with self._changed:
            now = self._clock()
            owner = self._of(hold.owner)
            owner.held -= 1
            owner.record(hold.since, self.firm, now)
            self._holds.remove(hold)
            self._let_in(now)

    def _of(self, name: str) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner()
            if len(self._owners) > OWNERS:
                idle = next((other for other, its in self._owners.items() if not its.held and other != name), None)
                if idle is not None:
                    del self._owners[idle]
        else:
            self._owners.move_to_end(name)
        return owner

    def _has_room(self, name: str, now: float) -> bool:
        owner, taken = self._of(name), len(self._holds)
        standing = owner.standing(now)
        if standing != _PROVEN:
            closed = math.ceil(self.most / (4 if standing == _UNKNOWN else 2))
            if taken >= max(1, self.most - closed):
                return False
        elif taken >= self.most:
            return False
        each = self._each / 4 if standing == _SLOW else self._each
        others = taken - owner.held
        return owner.held < max(1, math.ceil(each * (self.most - others) / self.most))

    def _claims(self, now: float) -> list[tuple[int, int, int]]:
        before: Counter[str] = Counter()
        claims = []
        for place, waiter in enumerate(self._line):
            owner = self._of(waiter.owner)
            claims.append((owner.standing(now), owner.held + before[waiter.owner], place))
            before[waiter.owner] += 1
        return claims

    def _let_in(self, now: float) -> None:
        while len(self._holds) < self.most and self._line:
            for *_, place in sorted(self._claims(now)):
                if self._has_room(self._line[place].owner, now):
                    self._seat(self._line.pop(place), now)
                    break
            else:
                return

    def _seat(self, waiter: _Waiter, now: float) -> None:
        waiter.hold = Hold(waiter.owner, now, waiter.give_way)
        self._holds.append(waiter.hold)
        self._of(waiter.owner).held += 1
        self._changed.notify_all()

    def _shorten_line(self, now: float) -> None:
        while self._most_waiting is not None and len(self._line) > self._most_waiting:
            *_, place = max(self._claims(now))
            del self._line[place]
            self._changed.notify_all()

    def _ask_somebody_to_leave(self, me: _Waiter, now: float) -> None:
        """Reclaim at most one slot per waiting operation of an owner without one."""
        owner = self._of(me.owner)
        if owner.held or sum(hold.is_leaving for hold in self._holds) >= len(self._line):
            return
        mine = owner.standing(now)
        lent = [
            hold
            for hold in self._holds
            if hold.give_way is not None
            and not hold.is_leaving
            and now - hold.since >= self.firm
            and self._of(hold.owner).standing(now) >= mine
        ]
        if lent:
            hold = max(lent, key=lambda each: (self._of(each.owner).standing(now), now - each.since))
            hold.is_leaving = True
            if hold.give_way is not None:
                hold.give_way()

    def _until_one_is_lent(self, now: float) -> float:
        ages = [now - hold.since for hold in self._holds if hold.give_way is not None and not hold.is_leaving]
        return max(0.01, min((self.firm - age for age in ages if age < self.firm), default=self.firm))
