"""Formats shares, quantiles, durations and ages."""

from collections.abc import Sequence

from platform_site.console import rollups
from platform_site.observability import metrics


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


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def percentage(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def tone_of(part: int, whole: int) -> str:
    return "" if not whole else "good" if part / whole >= 0.95 else "bad"


def up_to(count: int | None) -> str:
    if count is None:
        return "–"
    return f"more than {rollups.MAX_COUNTED:,}" if count > rollups.MAX_COUNTED else f"{count:,}"


def oldest(age: float | None) -> str:
    return "" if age is None else f"the oldest for {age_of(age)}"


def age_of(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
