"""How long a wait may take in a test.

A figure in seconds is proven where nothing else runs: by the benchmarks, and by the tests under `FIGURES=strict`. Every
other run shares its machine with work it does not know of and may stand still for seconds. It allows five times the
figure and a second: that still tells a wait with a bound from one without, or from one that everybody takes in turn.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Final

STRICT: Final = os.environ.get("FIGURES") == "strict"


def within(figure: float) -> float:
    """The most seconds that this run allows for what ought to take at most `figure` seconds."""
    return figure if STRICT else 5 * figure + 1


def medians(
    calls: Mapping[str, Callable[[], object]], rounds: int = 60, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median seconds of each call, made in turn, so that what else goes on falls on all of them. Two rounds warm up."""
    took: dict[str, list[float]] = {what: [] for what in calls}
    for turn in range(rounds + 2):
        for what, call in calls.items():
            began = clock()
            call()
            if turn >= 2:
                took[what].append(clock() - began)
    return {what: statistics.median(times) for what, times in took.items()}


def are_one(of: Mapping[str, float]) -> bool:
    """Nobody tells these medians apart: they differ by at most 3 ms or 15 %."""
    least, most = min(of.values()), max(of.values())
    return most - least <= max(0.003, 0.15 * most)
