"""Room and circuit of a receiver."""

from hypothesis import given
from hypothesis import strategies as st

from webhooks.delivery.circuit_breaker import (
    INITIAL_CONCURRENCY,
    MAX_CONCURRENCY,
    MAX_COOLDOWN,
    MAX_IN_FLIGHT_UNPROVEN,
    PREFETCH_FACTOR,
    Receivers,
)


def limit(receivers: Receivers, host: str, now: float) -> int:
    limits, default_slots = receivers.free_slots(now)
    return limits.get(host, default_slots)


def attempt(receivers: Receivers, host: str, *, responded: bool, seconds: float = 0.01, now: float = 0) -> None:
    receivers.started(host)
    receivers.ended(host, responded=responded, seconds=seconds, now=now)


def test_quick_answers_earn_room_up_to_a_bound() -> None:
    receivers = Receivers()
    limits = []
    for _ in range(6):
        attempt(receivers, "a:443", responded=True)
        limits.append(limit(receivers, "a:443", 0))
    # One that has earned all there is may have claims standing in line, too.
    assert limits == [4, 8, 16, *[MAX_CONCURRENCY * PREFETCH_FACTOR] * 3]
    assert receivers.concurrency_of("a:443") == MAX_CONCURRENCY
    attempt(receivers, "a:443", responded=True, seconds=0.5)  # quick, but a line of four would be long
    assert limit(receivers, "a:443", 0) == MAX_CONCURRENCY
    attempt(receivers, "a:443", responded=True)
    assert limit(receivers, "a:443", 0) == MAX_CONCURRENCY * PREFETCH_FACTOR


def test_unknown_receivers_yield_to_fast_ones_when_many_are_in_flight() -> None:
    receivers = Receivers()
    attempt(receivers, "quick:443", responded=True)
    attempt(receivers, "hung:443", responded=False)
    for number in range(MAX_IN_FLIGHT_UNPROVEN):
        assert limit(receivers, "new:443", 0) == INITIAL_CONCURRENCY
        receivers.started(f"{number}:443")
    assert limit(receivers, "new:443", 0) == limit(receivers, "hung:443", 0) == limit(receivers, "0:443", 0) == 0
    assert limit(receivers, "quick:443", 0) == 2 * INITIAL_CONCURRENCY
    receivers.ended("0:443", responded=True, seconds=0.01, now=0)
    assert limit(receivers, "new:443", 0) == INITIAL_CONCURRENCY
    assert limit(receivers, "hung:443", 0) == 1


def test_a_hang_leaves_one_at_a_time_and_three_open_the_circuit() -> None:
    receivers = Receivers()
    attempt(receivers, "a:443", responded=False, now=100)
    assert limit(receivers, "a:443", 100) == 1
    attempt(receivers, "a:443", responded=False, now=100)
    attempt(receivers, "a:443", responded=False, now=100)
    assert limit(receivers, "a:443", 104.9) == 0
    assert limit(receivers, "a:443", 105.1) == 1, "one attempt probes it"
    attempt(receivers, "a:443", responded=False, now=106)
    assert limit(receivers, "a:443", 115) == 0, "the pause doubles"
    attempt(receivers, "a:443", responded=True, now=120)
    assert limit(receivers, "a:443", 120) == 2


def test_an_error_status_is_an_answer() -> None:
    receivers = Receivers()
    for _ in range(5):
        attempt(receivers, "a:443", responded=True, seconds=0.2)
    assert receivers.concurrency_of("a:443") == MAX_CONCURRENCY


def test_one_that_hangs_for_days_is_tried_at_the_longest_pause() -> None:
    receivers = Receivers()
    for _ in range(3_000):
        attempt(receivers, "a:443", responded=False, seconds=15, now=0.0)
    assert limit(receivers, "a:443", MAX_COOLDOWN - 1) == 0
    assert limit(receivers, "a:443", MAX_COOLDOWN + 1) == 1


def test_what_is_in_flight_takes_room() -> None:
    receivers = Receivers()
    receivers.started("a:443")
    assert limit(receivers, "a:443", 0) == INITIAL_CONCURRENCY - 1
    receivers.started("a:443")
    assert limit(receivers, "a:443", 0) == 0
    receivers.reset_in_flight()
    assert limit(receivers, "a:443", 0) == INITIAL_CONCURRENCY


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20), st.floats(0, 5)), max_size=60))
def test_a_circuit_always_closes_again(history: list[tuple[bool, float, float]]) -> None:
    receivers, now = Receivers(), 0.0
    for responded, seconds, pause in history:
        now += pause
        attempt(receivers, "a:443", responded=responded, seconds=seconds, now=now)
    assert limit(receivers, "a:443", now + MAX_COOLDOWN + 1) >= 1
