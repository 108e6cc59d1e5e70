"""The table of plans, and the page that shows it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from platform_site.identity.plans import IP_ADDRESS_LIMITS, PLANS, PlanLimits, plan_limits
from projects.models import Plan

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
NAMES = [field.name for field in fields(PlanLimits)]


def test_the_plans_are_those_of_the_contract() -> None:
    assert list(PLANS) == Plan.values == ["free", "pro", "team"]
    with pytest.raises(KeyError):
        plan_limits("gold")


@pytest.mark.parametrize("limit", NAMES)
def test_a_larger_plan_never_allows_less(limit: str) -> None:
    allowed = [getattr(plan_limits(name), limit) for name in ("free", "pro", "team")]
    assert allowed == sorted(allowed)
    assert allowed[0] >= 1


def test_docs_limits_shows_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    shown = [(name, *(int(value.replace(",", "")) for value in values)) for name, *values in rows]
    assert shown == [(limit, *(getattr(plan_limits(name), limit) for name in PLANS)) for limit in NAMES]
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert [(name, int(value)) for name, value in rows] == [
        (field.name, getattr(IP_ADDRESS_LIMITS, field.name)) for field in fields(IP_ADDRESS_LIMITS)
    ]
