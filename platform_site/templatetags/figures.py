"""Filters of the operators' metrics: shares, quantiles, durations and ages; and the lists behind the numbers."""

import re
from collections.abc import Sequence
from typing import Any

from django import template
from django.template.defaultfilters import filesizeformat

from platform_site.observability import metrics

register = template.Library()


@register.simple_tag(takes_context=True)
def list_of(context: Any, label: str, **query: str) -> str | None:
    from platform_site.console import sidebar  # late: unfold loads all tag libraries while it is imported

    return sidebar.list_of(context["request"], label, **query)


@register.filter
def thousands(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


@register.filter
def amount(number: int, limit: str) -> str:
    """Limits whose name ends in `_bytes` are shown as sizes."""
    return filesizeformat(number) if limit.endswith("_bytes") else thousands(number)


@register.filter
def endpoint_label(route: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route)


def quantile(share: float, buckets: Sequence[int]) -> float | None:
    """A quantile in seconds, with Prometheus' linear interpolation; at most the last bound."""
    rank, below, low = share * sum(buckets), 0, 0.0
    if not rank:
        return None
    for bound, count in zip(metrics.BOUNDS, buckets, strict=True):
        if below + count >= rank:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / count
        below, low = below + count, bound
    return low


@register.filter
def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


@register.filter
def percentage(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


@register.filter
def tone_of(part: int, whole: int) -> str:
    return "" if not whole else "good" if part / whole >= 0.95 else "bad"


@register.filter
def up_to(count: int | None) -> str:
    from platform_site.console import rollups  # late, as above

    if count is None:
        return "–"
    return f"more than {rollups.MAX_COUNTED:,}" if count > rollups.MAX_COUNTED else f"{count:,}"


@register.filter
def oldest(age: float | None) -> str:
    return "" if age is None else f"the oldest for {age_of(age)}"


@register.filter
def age_of(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
