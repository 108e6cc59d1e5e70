"""What the HTTP package adds to each request, in CPU of this process: results for docs/explanation/performance.md, and limits.

The best of several rounds: others share the machine, and what is asked is what the code costs, not what the neighbours do.
"""

import datetime as dt
import time
from collections.abc import Callable

import pytest
from django.test import RequestFactory

from platform_site.http import cursors
from platform_site.identity import ids
from platform_site.redis import client as redis_client
from platform_site.redis import rate_limits
from platform_site.security import keyring

pytestmark = pytest.mark.slow


def microseconds(act: Callable[[], object], rounds: int = 5, times: int = 1000) -> float:
    best = float("inf")
    for _ in range(rounds):
        at = time.thread_time()
        for _ in range(times):
            act()
        best = min(best, (time.thread_time() - at) / times * 1e6)
    return best


@pytest.fixture
def say(
    record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> Callable[[str, float], None]:
    def say(what: str, figure: float) -> None:
        record_property(what, round(figure, 1))
        with capsys.disabled():
            print(f"\n  {what}: {figure:.1f} µs", end="")

    return say


def test_a_trip_with_the_callers_record_and_its_count(say: Callable[[str, float], None]) -> None:
    request = RequestFactory().get("/v1/projects")
    redis_client.current().put({"who:benchmark": b"{}" * 100, "where:benchmark": b"{}" * 100}, 600)

    def bare() -> None:
        trip = redis_client.round_trip()
        trip.get("who:benchmark")
        trip.get("where:benchmark")
        trip.count("count:benchmark", 60)
        assert trip.run()

    def limited() -> None:
        trip = redis_client.round_trip()
        trip.get("who:benchmark")
        trip.get("where:benchmark")
        begun = rate_limits.CallerLimit(request, trip, "usr_benchmark")
        assert trip.run()
        begun.settle("team")

    limited()
    plain, whole = microseconds(bare), microseconds(limited)
    say("one trip: two records, one count", plain)
    say("the same through django-ratelimit, with headers", whole)
    assert plain < 80
    assert whole < 120


def test_a_trip_that_does_not_happen_costs_next_to_nothing(say: Callable[[str, float], None]) -> None:
    away = redis_client.Store("unix:///nonexistent.sock", 0.2)
    away.put({"who:benchmark": b""}, 1)
    away.breaker._probe_at = time.monotonic() + 3600

    def one() -> None:
        trip = away.trip()
        trip.get("who:benchmark")
        assert not trip.run()

    figure = microseconds(one)
    say("a trip while the breaker is open", figure)
    assert figure < 15


def test_cursors(say: Callable[[str, float], None]) -> None:
    facts = ["projects", ["-created_at", "-id"], "0123456789abcdef"]
    values: list[cursors.Value] = [dt.datetime.now(dt.UTC), ids.new("prj")]
    text = cursors.encode("projects", facts, values)
    made = microseconds(lambda: cursors.encode("projects", facts, values))
    read = microseconds(lambda: cursors.decode("projects", facts, text))
    say("cursor of a time and an id, made", made)
    say("and read", read)
    assert made < 15
    assert read < 15


def test_sealing(say: Callable[[str, float], None]) -> None:
    sealed = keyring.seal(b"x" * 200, purpose="benchmark")
    figure = microseconds(lambda: keyring.unseal(sealed, purpose="benchmark"))
    say("200 bytes unsealed", figure)
    assert figure < 15
