"""The sizing model: what it multiplies, and that docs/explanation/sizing.md shows what it prints."""

import json
import re

import pytest

from tests.benchmarks.sizing import BUSY, MIX, PEAK, QUIET, average, costs, need, tables
from tests.support.service import ROOT

BENCHMARK = json.loads(QUIET.read_text())


def test_the_page_shows_what_the_command_prints() -> None:
    shown = (ROOT / "docs" / "explanation" / "sizing.md").read_text()
    for table in tables(BENCHMARK).split("\n\n"):
        assert table in shown, f"make the tables anew: python -m tests.benchmarks.sizing\n{table}"


def test_a_mix_is_weighed_by_its_shares() -> None:
    of = costs(BENCHMARK)
    half = average(of, {"retrieve": 1, "update": 1})
    assert half.web == (of["retrieve"].web + of["update"].web) / 2
    assert average(of, {"retrieve": 50, "update": 50}) == half


def test_cores_follow_the_peak_and_are_half_busy() -> None:
    cost = average(costs(BENCHMARK), {"retrieve": 1})
    wanted = need(60_000, cost, {"retrieve": 1})
    assert wanted.web == pytest.approx(1000 * PEAK * cost.web / 1e6 / BUSY)
    assert wanted.queues_gb == 0


def test_ten_times_the_load_needs_ten_times_the_cores() -> None:
    cost = average(costs(BENCHMARK), MIX)
    one, ten = need(1_000_000, cost, MIX), need(10_000_000, cost, MIX)
    assert ten.postgres == pytest.approx(10 * one.postgres)
    assert ten.queues_gb == pytest.approx(10 * one.queues_gb)


def test_a_benchmark_without_a_workload_of_the_mix_says_so() -> None:
    with pytest.raises(KeyError, match="sign in"):
        average(costs({"figures": []}), {"sign in": 1})


def test_its_names_are_those_of_the_benchmark() -> None:
    sources = "\n".join(path.read_text() for path in QUIET.parent.glob("*.py"))
    for what in MIX:
        assert re.search(rf'"{re.escape(what)}"', sources), what
