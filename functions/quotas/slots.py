"""The concurrency slots of an environment: `function_concurrency` of its plan for synchronous runs (`Run.slot` is 1, 2,
…) and as many for queued runs (-1, -2, …), so that these never take the slot of a waiting caller.

1. **Anonymous callers and events** may only use the first half of each. Others take this half last.
2. **Shares.** A client network that has one of these slots gets another one only while half of them are free.
3. **Recent usage.** A network with high recent usage may not take the last quarter of them.

`functions.runs` takes slots, in `start.sql` and `queue.sql`: 2 and 3 apply to synchronous runs. Before that,
`functions.execution.request_concurrency` applies the rules to the calls of its process."""

from functools import cache


def anonymous_slots(limit: int) -> int:
    return max(1, limit // 2)


def slots_for_all_networks(most: int) -> int:
    """How many of `most` slots of anonymous callers are open to networks with high recent usage."""
    return most if most < 2 else most - -(-most // 4)


def has_share(most: int, taken: int, own: int) -> bool:
    """Whether a network with `own` of the `taken` among `most` slots may have one more."""
    return taken < most and (not own or 2 * taken < most)


@cache
def in_order(limit: int, may_take: int, start: int) -> str:
    """The slots up to `may_take` as a PostgreSQL array, each part rotated by `start`. Those that fewer callers may take
    come first."""
    shared = anonymous_slots(limit)
    for_all_networks = slots_for_all_networks(shared)
    parts = (
        range(shared + 1, may_take + 1),
        range(for_all_networks + 1, min(shared, may_take) + 1),
        range(1, for_all_networks + 1),
    )
    order = [str(part[(start + index) % len(part)]) for part in parts for index in range(len(part))]
    return f"{{{','.join(order)}}}"
