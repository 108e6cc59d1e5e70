"""The bars of a webhook's health chart: its last deliveries, each by its latest attempt. Pure computation.

The console draws them as SVG; every bar leads to its delivery. Heights are a logarithm of the time taken, so that a
receiver's 20 ms and its 15 s timeouts fit in one picture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

WIDTH: Final = 1000
HEIGHT: Final = 100
_LEAST: Final = 4
"""An attempt that took no time is still to be seen."""
_LONGEST_MS: Final = 15_000
GRID: Final = (10, 100, 1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Tried:
    """The latest attempt of one delivery."""

    delivery_id: str
    at: datetime
    has_succeeded: bool
    duration_ms: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    tried: Tried


@dataclass(frozen=True, slots=True)
class Line:
    y: float
    label: str


def bars(tried: Sequence[Tried], room: int) -> list[Bar]:
    """One bar for each of `tried`, in its order, in a chart that is wide enough for `room` bars."""
    step = WIDTH / max(room, 1)
    made = []
    for index, each in enumerate(tried):
        height = height_of(each.duration_ms or 0)
        made.append(Bar(round(index * step + step * 0.1, 2), HEIGHT - height, round(step * 0.8, 2), height, each))
    return made


def height_of(duration_ms: int) -> float:
    """Between _LEAST and HEIGHT, by the logarithm of the time; what took longer than a time-out is as high as one."""
    share = math.log10(1 + min(max(duration_ms, 0), _LONGEST_MS)) / math.log10(1 + _LONGEST_MS)
    return round(max(_LEAST, share * HEIGHT), 2)


def grid() -> list[Line]:
    """Where the times of GRID stand."""
    return [Line(HEIGHT - height_of(ms), f"{ms} ms" if ms < 1000 else f"{ms // 1000} s") for ms in GRID]
