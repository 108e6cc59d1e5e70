"""Few places for what may take long at somebody else's pleasure, shared so that whoever is slow keeps few from it.

Calls to identity providers, look-ups of names and modules that are tried out have this in common: a tenant decides how
long each takes, a process can afford few at a time, and a tenant may have as many environments as it likes. Shares
alone do not help then. What holds is that a place costs its owner something:

1. **Shares.** What one owner may have shrinks with what the others have; with none under way it may have the last one.
2. **Standing.** The last quarter of the places is for owners that were seen to be quick; the last half is closed to
   those who were slow lately. Slow is who held a place for longer than `firm` seconds. It is held against them for a
   minute, and twice as long each time, up to an hour; meanwhile they have a quarter of a share. Places that were taken
   before the last time ended count as the same time: one slow moment is one, however many it met.
3. **Giving way.** After `firm` seconds a place is lent: where somebody of no worse standing waits for one, the worst
   and then the oldest of those is asked to give its place back, if what is done there can be ended (`give_way`).
4. **A line.** Who finds no room may wait a moment. The better standing goes first, then who has less, then who came
   first. The line is short too, and who comes with a better claim takes the last one's place in it.

So a slow owner takes one place of the first half, for `firm` seconds where others want it; many of them the same half.
Newcomers without a past can fill three quarters, for `firm` seconds each, and become slow ones by that. To reach the
last quarter an environment must have been quick before, and can spend that once in an hour. Everything is known per
process, by the clock, of the last OWNERS owners; nothing here knows what is done in a place.
"""

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
"""Seconds."""
_PROVEN, _UNKNOWN, _SLOW = range(3)
"""Standings, the best first."""


class Full(Exception):
    """No place came free in time."""


@dataclass(slots=True)
class _Owner:
    held: int = 0
    is_proven: bool = False
    """Whether it was quick since it was last slow."""
    times_slow: int = 0
    slow_until: float = -math.inf
    slow_at: float = -math.inf
    """When it was last found to be slow."""

    def standing(self, now: float) -> int:
        if now < self.slow_until:
            return _SLOW
        return _PROVEN if self.is_proven else _UNKNOWN

    def penalty(self) -> float:
        return min(LONGEST_PENALTY, FIRST_PENALTY * float(2 ** min(self.times_slow - 1, 20)))

    def book(self, since: float, firm: float, now: float) -> None:
        """It held a place from then until now. Who behaved for as long as its last penalty after it begins anew."""
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
    """A place that is taken."""

    owner: str
    since: float
    give_way: Callable[[], None] | None
    is_leaving: bool = False
    """Whether it was asked to give way."""


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: str
    give_way: Callable[[], None] | None
    hold: Hold | None = None
    """Its place, once it has one; it stands in the line no longer then."""


class FairPlaces:
    """`most` places, of which one owner may have `each` while nobody else has any. Thread-safe.

    `firm` seconds are how long a place is its holder's whatever others want. At most `line` wait (None: any number).
    """

    def __init__(
        self,
        most: int,
        *,
        each: int,
        firm: float,
        line: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.firm = most, firm
        self._each, self._most_waiting, self._clock = each, line, clock
        self._changed = threading.Condition()
        self._owners: OrderedDict[str, _Owner] = OrderedDict()
        self._holds: list[Hold] = []
        """The oldest first."""
        self._line: list[_Waiter] = []
        """Who came first stands first."""

    @contextmanager
    def held(self, owner: str, *, wait: float, give_way: Callable[[], None] | None = None) -> Iterator[Hold]:
        """A place for the block. Raises Full. Afterwards `is_leaving` of it says whether it had to give way."""
        hold = self.take(owner, wait=wait, give_way=give_way)
        if hold is None:
            raise Full
        try:
            yield hold
        finally:
            self.give_back(hold)

    def take(self, owner: str, *, wait: float, give_way: Callable[[], None] | None = None) -> Hold | None:
        """A place for `owner`, waited for `wait` seconds at most; None if none came free.

        `give_way` ends what is done there, soon and from any thread, without waiting and without asking for places.
        """
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
            owner.book(hold.since, self.firm, now)
            self._holds.remove(hold)
            self._let_in(now)

    # ── All of these are called with the lock held ──

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
        """Of each in the line, the smaller the better: its standing, what it has and waits for, where it stands."""
        before: Counter[str] = Counter()
        claims = []
        for place, waiter in enumerate(self._line):
            owner = self._of(waiter.owner)
            claims.append((owner.standing(now), owner.held + before[waiter.owner], place))
            before[waiter.owner] += 1
        return claims

    def _let_in(self, now: float) -> None:
        """Give places to those in the line for whom there is room, the best claims first."""
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
        """Send the ones with the worst claims away."""
        while self._most_waiting is not None and len(self._line) > self._most_waiting:
            *_, place = max(self._claims(now))
            del self._line[place]
            self._changed.notify_all()

    def _ask_somebody_to_leave(self, me: _Waiter, now: float) -> None:
        """One at most for each who waits. Who has a place already makes nobody leave."""
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
        """Seconds; at least a moment, at most `firm`."""
        ages = [now - hold.since for hold in self._holds if hold.give_way is not None and not hold.is_leaving]
        return max(0.01, min((self.firm - age for age in ages if age < self.firm), default=self.firm))
