"""Quotas of an environment's run queue, in runs and in bytes of input. Keys and members, inbound endpoints, and app
users have a budget each (`queued_runs`, `queued_bytes` of the plan):

* One user has at most an eighth of it, and may add to its queued runs only while half of the budget is free.
* One endpoint has at most half of it, and of the other half an eighth: there are few, and providers send bursts.

Anonymous callers have their own limit (`functions.quotas.anonymous_queue`). Scheduled runs count as those of keys and
are never refused, being one per function. Counting a long queue takes milliseconds, so a process counts again only
after it has queued half of what it found free, or a sixteenth of the budget: by that it may exceed a budget."""

import threading
import time
from collections.abc import Callable, Mapping
from operator import add, sub
from typing import Any, Final, NamedTuple

from cachetools import LRUCache

from functions.errors import TooManyQueued
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import most_of, plan_limits
from platform_site.postgres import statements
from platform_site.postgres.transaction_settings import by_index

OWNER_SHARE: Final = 8
"""An owner may have one eighth of a budget."""
COUNT_STEPS: Final = 16
"""A process counts again after one sixteenth of a budget, or of an owner's share."""
CACHE_SECONDS: Final = 2.0
"""A refusal is repeated for this time without counting."""


class Kind(NamedTuple):
    """Callers whose runs share a budget."""

    name: str
    """Shown in error messages."""
    condition: str
    owner: str = "''"
    why_no_more: str = ""
    """For an owner that has its share, while the budget is not used up."""

    @property
    def queued(self) -> str:
        """In the order of the index `run_queue_order`, so that runs of anonymous callers and events are not scanned.
        `IS FALSE`, because Django would render NOT in a form that the index does not support."""
        return f"""
SELECT {self.owner} AS owner, octet_length(input) AS size FROM platform.functions_run
 WHERE phase = 'queued' AND environment_id = %(environment_id)s
   AND (caller_kind = 'anonymous' OR trigger = 'event') IS FALSE AND {self.condition}
 ORDER BY coalesce(turn_at, created_at) LIMIT %(most)s
"""  # noqa: S608 - constants


KEYS: Final = Kind("queued runs of keys and members", "caller_kind IN ('key', 'account') AND trigger <> 'inbound'")
INBOUND: Final = Kind(
    "queued runs by inbound endpoints",
    "trigger = 'inbound'",
    "coalesce(address_id, '')",
    "This endpoint uses an eighth of that, and can use more only while half of it is free.",
)
USERS: Final = Kind(
    "queued runs of app users",
    "caller_kind = 'user'",
    "caller_id",
    "You have some waiting, and can queue more only while half of that is free and less than an eighth is yours.",
)


class Amount(NamedTuple):
    runs: int
    size: int
    """Bytes of their inputs."""

    def part(self, parts: int) -> "Amount":
        return Amount(self.runs // parts, self.size // parts)

    def covers(self, other: "Amount") -> bool:
        return other.runs <= self.runs and other.size <= self.size


def _each(operation: Callable[[int, int], int], one: Amount, other: Amount) -> Amount:
    return Amount(operation(one.runs, other.runs), operation(one.size, other.size))


NOTHING: Final = Amount(0, 0)


class QueueCount:
    """The queued runs of an environment and kind at the last count, and those that this process has queued since."""

    def __init__(self, kind: Kind, budget: Amount, by_owner: Mapping[str, Amount]) -> None:
        self.kind, self.budget, self.by_owner = kind, budget, by_owner
        self.taken = Amount(sum(each.runs for each in by_owner.values()), sum(each.size for each in by_owner.values()))
        self.free = _each(sub, budget, self.taken)
        self.at = time.monotonic()
        self._queued_since: dict[str, Amount] = {}
        """By owner; under "" all of them."""

    def available(self, owner: str) -> Amount:
        left_of_half = _each(sub, self.budget.part(2), self.taken)
        own = self.by_owner.get(owner, NOTHING)
        left_of_share = _each(sub, self.budget.part(OWNER_SHARE), own)
        if self.kind is USERS and own.runs:
            return _each(min, left_of_half, left_of_share)
        if self.kind is INBOUND:
            return _each(max, left_of_half, _each(min, left_of_share, self.free))
        return self.free

    def refusal(self, owner: str, wanted: Amount) -> TooManyQueued | None:
        """The error if `wanted` exceeded the quota at the count, else None."""
        is_full = not self.free.covers(wanted)
        available = self.free if is_full else self.available(owner)
        if available.covers(wanted):
            return None
        limit = f"{self.budget.runs:,}" if available.runs < wanted.runs else f"{self.budget.size:,} bytes of input in"
        return TooManyQueued(limit, self.kind.name, "That many are waiting." if is_full else self.kind.why_no_more)

    def take(self, owner: str, wanted: Amount) -> bool:
        """Whether the run may be queued without another count."""
        allowed = {"": _each(min, self.budget.part(COUNT_STEPS), self.free.part(2))}
        if owner:
            share = self.budget.part(OWNER_SHARE)
            allowed[owner] = _each(min, share.part(COUNT_STEPS), self.available(owner).part(2))
        queued = {name: _each(add, self._queued_since.get(name, NOTHING), wanted) for name in allowed}
        if not all(allowed[name].covers(queued[name]) for name in allowed):
            return False
        self._queued_since |= queued
        return True


# Bounded by the number of owners: the largest queue may have one for each run.
_counts: Final[LRUCache[str, QueueCount]] = LRUCache(
    2 * most_of("queued_runs"), getsizeof=lambda count: 1 + len(count.by_owner)
)
_counts_lock: Final = threading.Lock()


def admit(environment: EnvironmentRef, caller: Caller, size: int, *, endpoint_id: str | None = None) -> None:
    """`size`: bytes of the input. Concurrent calls may exceed a budget together. Raises TooManyQueued."""
    kind, owner = (USERS, caller.id) if caller.kind == "user" else (KEYS, "")
    if endpoint_id is not None:
        kind, owner = INBOUND, endpoint_id
    wanted = Amount(1, size)
    key = f"{environment.environment_id} {environment.plan} {kind.name}"
    with _counts_lock:
        last = _counts.get(key)
        if last is not None:
            is_recent = time.monotonic() - last.at < CACHE_SECONDS
            if is_recent and (refusal := last.refusal(owner, wanted)):
                raise refusal
            if last.take(owner, wanted):
                return
    count = _count(environment, kind)
    with _counts_lock:
        _counts[key] = count
    if refusal := count.refusal(owner, wanted):
        raise refusal


_BY_OWNER: Final = {
    kind: f"SELECT owner, count(*), sum(size) FROM ({kind.queued}) queued GROUP BY owner"  # noqa: S608 - constants
    for kind in (KEYS, INBOUND, USERS)
}


def _count(environment: EnvironmentRef, kind: Kind) -> QueueCount:
    limits = plan_limits(environment.plan)
    parameters = {"environment_id": environment.environment_id, "most": limits.queued_runs}
    with by_index(environment.cluster):
        found = statements.rows(environment.cluster, _BY_OWNER[kind], parameters)
    amounts = {owner: Amount(int(runs), int(size)) for owner, runs, size in found}
    return QueueCount(kind, Amount(limits.queued_runs, limits.queued_bytes), amounts)


_SUM: Final = "SELECT count(*) AS runs, coalesce(sum(size), 0) AS size FROM ({queued}) queued"
_USED: Final = f"""
SELECT max(runs), max(size)
  FROM ({" UNION ALL ".join(_SUM.format(queued=kind.queued) for kind in _BY_OWNER)}) sums
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
