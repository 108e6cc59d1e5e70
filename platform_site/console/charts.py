"""Charts as SVG, without scripts; values are in tooltips and in a table for screen readers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

WIDTH: Final = 960
HALF: Final = 440
HEIGHT: Final = 160
_FOOT: Final = 18
_HEAD: Final = 14


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    colour: str
    """`good`, `bad`, `worse` or `plain`."""
    figures: Sequence[int]


def bars(
    title: str, labels: Sequence[str], series: Sequence[Series], *, width: int = WIDTH, summary: str = ""
) -> SafeString:
    """Stacked bars with every sixth label. `width` in units of the font size; `summary` replaces the sum."""
    totals = [sum(figures) for figures in zip(*(each.figures for each in series), strict=True)]
    top = _round_up(max(totals, default=0))
    step = width / max(1, len(labels))
    room = HEIGHT - _FOOT - _HEAD
    groups = []
    for index, label in enumerate(labels):
        bottom, parts = float(HEIGHT - _FOOT), []
        for each in series:
            tall = room * each.figures[index] / top
            if each.figures[index]:
                tall = max(tall, 1.5)  # one error among a million answers is still seen
            bottom -= tall
            parts.append((each.colour, *(f"{number:.1f}" for number in (index * step + 1, bottom, step - 2, tall))))
        counts = ", ".join(f"{each.figures[index]:,} {each.name}" for each in series)
        groups.append((f"{label}: {counts}", f"{index * step:.1f}", parts))
    texts = [
        ("middle" if index else "start", f"{index * step + (step / 2 if index else 0):.1f}", label)
        for index, label in enumerate(labels)
        if index % max(1, len(labels) // 4) == 0
    ]
    context = {
        "is_wide": width > HALF,
        "summary": summary or f"{title}: {sum(totals):,} in all, at most {max(totals, default=0):,} at a time",
        "width": width,
        "height": HEIGHT,
        "top": f"{top:,}",
        "line": _HEAD,
        "floor": HEIGHT - _FOOT,
        "foot": HEIGHT - 4,
        "bar": f"{step:.1f}",
        "groups": groups,
        "texts": texts,
    }
    return render_to_string("chart.html", context)


def legend(series: Sequence[Series]) -> SafeString:
    return format_html_join(
        "",
        '<span class="chart-legend"><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="chart-{}" width="10" '
        'height="10" rx="2"/></svg>{}</span>',
        ((each.colour, each.name) for each in series),
    )


def _round_up(figure: int) -> int:
    """The next 1, 2 or 5 with zeros, at least 4."""
    found: int = next(step * 10**zeros for zeros in count() for step in (1, 2, 5) if step * 10**zeros >= max(figure, 4))
    return found
