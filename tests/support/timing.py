"""How long a wait may take in a test.

A limit in seconds is reliable only where nothing else runs: in the benchmarks, and in tests with `STRICT_TIMING=1`. Other
runs share their machine and may stall for seconds, so they allow five times the limit and one more second. That still
distinguishes a bounded wait from an unbounded one, or from waiting one after the other.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final

STRICT: Final = os.environ.get("STRICT_TIMING") == "1"


def within(seconds: float) -> float:
    """The limit in this run for an operation that should take at most `seconds`."""
    return seconds if STRICT else 5 * seconds + 1


def medians(
    calls: Mapping[str, Callable[[], object]], rounds: int = 60, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median seconds of each call, made in turn, so that what else goes on falls on all of them. Two rounds warm
    up."""
    took: dict[str, list[float]] = {what: [] for what in calls}
    for turn in range(rounds + 2):
        for what, call in calls.items():
            began = clock()
            call()
            if turn >= 2:
                took[what].append(clock() - began)
    return {what: statistics.median(times) for what, times in took.items()}


def are_indistinguishable(of: Mapping[str, float]) -> bool:
    """Whether these medians differ by at most 3 ms or 15 %."""
    least, most = min(of.values()), max(of.values())
    return most - least <= max(0.003, 0.15 * most)
