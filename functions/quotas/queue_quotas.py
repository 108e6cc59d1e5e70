"""Quotas of an environment's run queue, in runs and in bytes of input. A caller could queue runs for days at its plan's
request rate, with inputs of 1 MB. So each kind of caller has its own budget per environment (`queued_runs`,
`queued_bytes` of the plan): keys and members; inbound endpoints; app users. Within a kind:

* One user has at most an eighth of the users' budget, and a user with queued runs gets more only while half of the
  budget is free, as networks do (`functions.quotas.client_networks`).
* One endpoint has at most half of the endpoints' budget, and of the other half an eighth: there are few of them, and
  providers send bursts.

Anonymous callers have their own limit (`functions.quotas.anonymous_queue`). Scheduled runs count as those of keys and
are never refused, being one per function; pending events wait elsewhere (`functions.triggers.events`). Counting a long
queue takes milliseconds, and queueing is one statement. So a process counts only now and then: of what it finds free it
may use half without counting again, and at most a sixteenth of the budget. So each process may exceed a budget by a
sixteenth; while little is free it counts each time. A refusal is cached briefly for all callers, so that repeated
requests cause no counting."""

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cachetools import LRUCache, TTLCache

from functions.errors import TooManyQueued
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import statements
from platform_site.postgres.transaction_settings import by_index

SHARE: Final = 8
STEPS: Final = 16
"""A process counts again after it has admitted this part of a budget or share."""
CACHE_SECONDS: Final = 2.0
_MAX_ENTRIES: Final = 20_000


class Kind(StrEnum):
    """Callers whose runs share a budget. The value appears in error messages."""

    KEYS = "queued runs of keys and members"
    INBOUND = "queued runs by inbound endpoints"
    USERS = "queued runs of app users"


_CONDITIONS: Final = {
    Kind.KEYS: "caller_kind IN ('key', 'account') AND trigger <> 'inbound'",
    Kind.INBOUND: "trigger = 'inbound'",
    Kind.USERS: "caller_kind = 'user'",
}
_OWNER_COLUMNS: Final = {Kind.KEYS: "''", Kind.INBOUND: "coalesce(address_id, '')", Kind.USERS: "caller_id"}
_SHARE_MESSAGES: Final = {
    Kind.INBOUND: "This endpoint uses an eighth of that, and can use more only while half of it is free.",
    Kind.USERS: "You have some waiting, and can queue more only while half of that is free and less than an eighth is "
    "yours.",
}
# In the order of the index `run_queue_order`, so that runs of anonymous callers and events are not scanned. `IS
# FALSE`, because Django would render NOT in a form that the index does not support.
_QUEUED: Final = {
    kind: f"""
SELECT {_OWNER_COLUMNS[kind]} AS owner, octet_length(input) AS size FROM platform.functions_run
 WHERE phase = 'queued' AND environment_id = %(environment_id)s
   AND (caller_kind = 'anonymous' OR trigger = 'event') IS FALSE AND {condition}
 ORDER BY coalesce(turn_at, created_at) LIMIT %(most)s
"""  # noqa: S608 - constants
    for kind, condition in _CONDITIONS.items()
}
_QUEUE_STATS: Final = {
    kind: f"SELECT owner, count(*), sum(size) FROM ({queued}) queued GROUP BY owner"  # noqa: S608 - constants
    for kind, queued in _QUEUED.items()
}


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of runs, and the bytes of their inputs."""

    runs: int
    size: int

    def part(self, parts: int) -> "Amount":
        return Amount(self.runs // parts, self.size // parts)

    def without(self, other: "Amount") -> "Amount":
        return Amount(self.runs - other.runs, self.size - other.size)

    def covers(self, other: "Amount") -> bool:
        return other.runs <= self.runs and other.size <= self.size

    def minimum(self, other: "Amount") -> "Amount":
        return Amount(min(self.runs, other.runs), min(self.size, other.size))

    def maximum(self, other: "Amount") -> "Amount":
        return Amount(max(self.runs, other.runs), max(self.size, other.size))


NOTHING: Final = Amount(0, 0)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The queued runs of a kind at the last count."""

    taken: Amount
    of: Mapping[str, Amount]

    def available(self, kind: Kind, budget: Amount, owner: str) -> Amount:
        """How much more this owner may queue."""
        free = budget.without(self.taken)
        left_of_half = budget.part(2).without(self.taken)
        own = self.of.get(owner, NOTHING)
        left_of_share = budget.part(SHARE).without(own)
        if kind == Kind.USERS and own.runs:
            return left_of_half.minimum(left_of_share)
        if kind == Kind.INBOUND:
            return left_of_half.maximum(left_of_share.minimum(free))
        return free

    def refusal(self, kind: Kind, budget: Amount, owner: str, wanted: Amount) -> TooManyQueued | None:
        """The error if `wanted` exceeds the quota, else None."""
        free = budget.without(self.taken)
        is_full = not free.covers(wanted)
        available = free if is_full else self.available(kind, budget, owner)
        if available.covers(wanted):
            return None
        limit = f"{budget.runs:,}" if available.runs < wanted.runs else f"{budget.size:,} bytes of input in"
        return TooManyQueued(limit, kind, "That many are waiting." if is_full else _SHARE_MESSAGES[kind])

    def only_refusable(self, kind: Kind, budget: Amount) -> "QueueStats":
        """The same, without the many owners that could not be refused."""
        most = Amount(1, budget.part(STEPS).size)
        scarce = {owner: own for owner, own in self.of.items() if not self.available(kind, budget, owner).covers(most)}
        return QueueStats(self.taken, scarce)


class SpareQuota:
    """The amounts that may be queued without counting, for the last _MAX_ENTRIES names. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: LRUCache[str, Amount] = LRUCache(_MAX_ENTRIES)

    def take(self, name: str, wanted: Amount, *, default: Amount) -> bool:
        """`default` is available for an unknown name."""
        with self._lock:
            left = self._left.get(name, default)
            if not left.covers(wanted):
                return False
            self._left[name] = left.without(wanted)
            return True

    def renew(self, name: str, most: Amount, free: Amount) -> None:
        """The count found `free` of the `most` of this name."""
        with self._lock:
            self._left[name] = most.part(STEPS).minimum(free.part(2))


_budgets: Final = SpareQuota()
_shares: Final = SpareQuota()
"""Separate, so that entries of thousands of users do not evict budgets."""
_recent_stats: Final[TTLCache[str, QueueStats]] = TTLCache(math.inf, CACHE_SECONDS)
_recent_stats_lock: Final = threading.Lock()


def admit(environment: EnvironmentRef, caller: Caller, size: int, *, endpoint_id: str | None = None) -> None:
    """Check the quota for one more queued run, with an input of `size` bytes. Usually without a statement. Not under a
    lock: concurrent calls may exceed a budget together. Raises TooManyQueued."""
    kind, owner = _owner_of(caller, endpoint_id)
    limits = plan_limits(environment.plan)
    budget, wanted = Amount(limits.queued_runs, limits.queued_bytes), Amount(1, size)
    share = budget.part(SHARE)
    whole = f"{environment.environment_id} {kind}"
    own = f"{whole} {owner}"
    with _recent_stats_lock:
        recent = _recent_stats.get(whole)
    if recent is not None and (refusal := recent.refusal(kind, budget, owner, wanted)):
        raise refusal
    # The own share first: a caller that has used up its share takes nothing of the common budget.
    has_share = not owner or _shares.take(own, wanted, default=share.part(STEPS))
    if has_share and _budgets.take(whole, wanted, default=NOTHING):
        return
    stats = _queue_stats(environment, kind, budget.runs)
    refusable = stats.only_refusable(kind, budget)
    with _recent_stats_lock:
        _recent_stats[whole] = refusable
    if refusal := stats.refusal(kind, budget, owner, wanted):
        raise refusal
    if owner:
        _shares.renew(own, share, stats.available(kind, budget, owner).without(wanted))
    _budgets.renew(whole, budget, budget.without(stats.taken).without(wanted))


def _owner_of(caller: Caller, endpoint_id: str | None) -> tuple[Kind, str]:
    if endpoint_id is not None:
        return Kind.INBOUND, endpoint_id
    return (Kind.USERS, caller.id) if caller.kind == "user" else (Kind.KEYS, "")


def _queue_stats(environment: EnvironmentRef, kind: Kind, most: int) -> QueueStats:
    parameters = {"environment_id": environment.environment_id, "most": most}
    with by_index(environment.cluster):
        found = statements.rows(environment.cluster, _QUEUE_STATS[kind], parameters)
    of = {owner: Amount(int(runs), int(size)) for owner, runs, size in found}
    return QueueStats(Amount(sum(each.runs for each in of.values()), sum(each.size for each in of.values())), of)


_SUM: Final = "SELECT count(*) AS runs, coalesce(sum(size), 0) AS size FROM ({queued}) queued"
_USED: Final = f"""
SELECT max(runs), max(size) FROM ({" UNION ALL ".join(_SUM.format(queued=each) for each in _QUEUED.values())}) sums
"""  # noqa: S608 - constants


def used(environment: EnvironmentRef) -> tuple[int, int]:
    """The most queued runs of any kind, and the most bytes of their inputs."""
    parameters: dict[str, Any] = {
        "environment_id": environment.environment_id,
        "most": plan_limits(environment.plan).queued_runs,
    }
    with by_index(environment.cluster):
        runs, size = statements.row(environment.cluster, _USED, parameters)
    return int(runs), int(size)
