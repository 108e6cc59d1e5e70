"""Whether one more run may wait in an environment's queue, and its input with it.

Whoever calls and waits for no end could queue for days at the rate of their plan, with inputs of 1 MB. So each kind of
caller has a budget of its own in each environment, in runs and in bytes of input (`queued_runs`, `queued_bytes` of the
plan), and none takes another's: keys and members; providers, by inbound addresses; app users. Of the users one has an
eighth at most, and who has something waiting already gets more only while half of the budget is free, as networks do
(`functions.networks`). Visitors have theirs (`functions.runs`). Runs by schedules count as those of keys and are not
refused, being one of each function; runs on events wait elsewhere (`functions.heard`).

To count what waits takes milliseconds where much does, and a queued call has one statement. So a process looks only now
and then: of what a look finds free it may give half away without another, and no more than a sixteenth of the budget.
So each process may pass a budget by a sixteenth; where little is free it looks each time. What was refused is refused
again for a moment without a look, so that nobody makes PostgreSQL count by asking.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from functions.errors import TooManyQueued
from functions.networks import has_share
from platform_site.api.callers import Caller, Place
from platform_site.api.plans import plan_limits
from platform_site.postgres.indexed import by_index

SHARE: Final = 8
"""One user has this part of the users' budget."""
STEPS: Final = 16
"""A process looks again after this part of a budget, or of a user's share."""
_PAUSE: Final = 2.0
"""Seconds for which a refusal holds without a look."""
_MOST_KNOWN: Final = 20_000


class Kind(StrEnum):
    """Whose runs share a budget; the value is what an error calls them."""

    KEYS = "queued runs of keys and members"
    INBOUND = "queued runs by inbound addresses"
    USERS = "queued runs of app users"


_IS_OF: Final = {
    Kind.KEYS: "caller_kind IN ('key', 'account') AND trigger <> 'inbound'",
    Kind.INBOUND: "trigger = 'inbound'",
    Kind.USERS: "caller_kind = 'user'",
}
# In the order of the index `run_turn_of_crowd`: what visitors and events have waiting is not walked over. `IS FALSE`,
# since a NOT would be spelled out as what no index has. Of a kind no more than the budget's are counted, and no input
# is read for its size.
_QUEUED: Final = """
SELECT caller_id, octet_length(input) AS size FROM platform.functions_run
 WHERE phase = 'queued' AND environment_id = %(environment_id)s
   AND (caller_kind = 'anonymous' OR trigger = 'event') IS FALSE AND {is_of}
 ORDER BY coalesce(turn_at, created_at) LIMIT %(most)s
"""
_LOOK: Final = {
    kind: f"""
SELECT count(*), coalesce(sum(size), 0), count(*) FILTER (WHERE caller_id = %(caller_id)s),
       coalesce(sum(size) FILTER (WHERE caller_id = %(caller_id)s), 0)
  FROM ({_QUEUED.format(is_of=is_of)}) queued
"""  # noqa: S608 - constants
    for kind, is_of in _IS_OF.items()
}


@dataclass(frozen=True, slots=True)
class Amount:
    """Of runs, and of bytes that their inputs have."""

    runs: int
    size: int

    def part(self, parts: int) -> "Amount":
        return Amount(self.runs // parts, self.size // parts)

    def without(self, other: "Amount") -> "Amount":
        return Amount(self.runs - other.runs, self.size - other.size)

    def covers(self, other: "Amount") -> bool:
        return other.runs <= self.runs and other.size <= self.size


@dataclass(frozen=True, slots=True)
class _Refusal:
    limit: str
    whose: Kind
    is_share: bool
    size: int
    """Of the input for which there was no room; 0 where there is none for any."""
    until: float

    def error(self) -> TooManyQueued:
        return TooManyQueued(self.limit, self.whose, is_share=self.is_share)


class Memory:
    """What may be queued without a look, and what was refused a moment ago. Thread-safe; of the last so many names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: OrderedDict[str, Amount] = OrderedDict()
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()

    def take(self, name: str, wanted: Amount, *, at_first: Amount) -> bool:
        """Whether so much was there, and is taken. `at_first` is there under a name that is not known."""
        with self._lock:
            left = self._left.get(name, at_first)
            if not left.covers(wanted):
                return False
            _put(self._left, name, left.without(wanted))
            return True

    def renew(self, name: str, budget: Amount, free: Amount) -> None:
        """A look found so much of the budget free."""
        step, half = budget.part(STEPS), free.part(2)
        with self._lock:
            _put(self._left, name, Amount(min(step.runs, half.runs), min(step.size, half.size)))
            self._refused.pop(name, None)

    def refuse(self, name: str, refusal: _Refusal) -> None:
        with self._lock:
            _put(self._refused, name, refusal)

    def check(self, name: str, wanted: Amount) -> None:
        """Raises TooManyQueued if as much was refused a moment ago."""
        with self._lock:
            refusal = self._refused.get(name)
        if refusal is not None and wanted.size >= refusal.size and time.monotonic() < refusal.until:
            raise refusal.error()


def _put(known: OrderedDict[str, Any], name: str, value: Any) -> None:
    known[name] = value
    known.move_to_end(name)
    if len(known) > _MOST_KNOWN:
        known.popitem(last=False)


_budgets: Final = Memory()
_shares: Final = Memory()
"""Of users, apart: thousands of them make no budget forgotten."""
_NOTHING: Final = Amount(0, 0)


def admit(place: Place, caller: Caller, trigger: str, size: int) -> None:
    """One more run of the caller, with an input of so many bytes, is about to be queued. Raises TooManyQueued.

    No statement as a rule, one now and then. Not under a lock: those that come at the same moment may pass a budget
    together.
    """
    kind = _kind_of(caller, trigger)
    limits = plan_limits(place.plan)
    budget, wanted = Amount(limits.queued_runs, limits.queued_bytes), Amount(1, size)
    whole, own = f"{place.environment_id} {kind}", f"{place.environment_id} {caller.id}"
    _budgets.check(whole, wanted)
    is_there = _budgets.take(whole, wanted, at_first=_NOTHING)
    if kind == Kind.USERS:
        _shares.check(own, wanted)
        share = budget.part(SHARE)
        is_there = _shares.take(own, wanted, at_first=share.part(STEPS)) and is_there
    if is_there:
        return
    taken, taken_own = _look(place, kind, caller.id, budget.runs)
    free = budget.without(taken)
    if refusal := _refusal(budget, taken, _NOTHING, wanted, kind):
        _budgets.refuse(whole, refusal)
        raise refusal.error()
    if kind == Kind.USERS:
        if refusal := _refusal(budget, taken, taken_own, wanted, kind):
            _shares.refuse(own, refusal)
            raise refusal.error()
        _shares.renew(own, share, share.without(taken_own).without(wanted))
    _budgets.renew(whole, budget, free.without(wanted))


def _kind_of(caller: Caller, trigger: str) -> Kind:
    if trigger == "inbound":
        return Kind.INBOUND
    return Kind.USERS if caller.kind == "user" else Kind.KEYS


def _refusal(budget: Amount, taken: Amount, own: Amount, wanted: Amount, kind: Kind) -> _Refusal | None:
    """Why one more is too much for the budget, or for who has `own` of what is taken; None if it is not."""
    until = time.monotonic() + _PAUSE
    is_share = bool(own.runs)
    share = budget.part(SHARE)
    if not has_share(budget.runs, taken.runs, own.runs) or (is_share and own.runs >= share.runs):
        return _Refusal(f"{budget.runs:,}", kind, is_share, 0, until)
    room = budget.size // 2 if is_share else budget.size
    if taken.size + wanted.size > room or (is_share and own.size + wanted.size > share.size):
        return _Refusal(f"{budget.size:,} bytes of input in", kind, is_share, wanted.size, until)
    return None


def _look(place: Place, kind: Kind, caller_id: str, most: int) -> tuple[Amount, Amount]:
    """What waits of the kind, and what of it is this caller's."""
    parameters: dict[str, Any] = {"environment_id": place.environment_id, "caller_id": caller_id, "most": most}
    with by_index(place.cluster) as cursor:
        cursor.execute(_LOOK[kind], parameters)
        count, size, own, own_size = map(int, cursor.fetchone())
    return Amount(count, size), Amount(own, own_size)


_MOST: Final = "SELECT max({what}) FROM ({looks}) AS looks (runs, size, own, own_size)"


def count_waiting(place: Place) -> int:
    """How many queued runs wait of the kind of which most do; no more than the plan's limit are counted."""
    return _most(place, "runs")


def count_bytes(place: Place) -> int:
    """How many bytes the inputs have of the kind of which most wait."""
    return _most(place, "size")


def _most(place: Place, what: str) -> int:
    parameters: dict[str, Any] = {
        "environment_id": place.environment_id,
        "caller_id": "",
        "most": plan_limits(place.plan).queued_runs,
    }
    with by_index(place.cluster) as cursor:
        cursor.execute(_MOST.format(what=what, looks=" UNION ALL ".join(_LOOK.values())), parameters)
        return int(cursor.fetchone()[0])
