"""A semaphore shared with owners of whom any number is slow on purpose. The clock is the test's; waiting is real."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from platform_site.concurrency.fair_semaphore import FIRST_PENALTY, MAX_PENALTY, FairSemaphore, Full, Slot

SLOW_AFTER = 1.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def held(semaphore: FairSemaphore, owner: str, most: int = 1000) -> list[Slot]:
    """What `owner` gets at once, up to so many."""
    got: list[Slot] = []
    while len(got) < most and (slot := semaphore.acquire(owner, wait=0)) is not None:
        got.append(slot)
    return got


def be_quick(semaphore: FairSemaphore, *owners: str) -> None:
    for owner in owners:
        with semaphore.slot(owner, wait=0):
            pass


def be_slow(semaphore: FairSemaphore, clock: Clock, *owners: str) -> None:
    for owner in owners:
        with semaphore.slot(owner, wait=0):
            clock.now += SLOW_AFTER + 0.1


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_share_shrinks_with_use_by_others_and_new_owner_gets_last_slot(clock: Clock) -> None:
    semaphore = FairSemaphore(8, per_owner=4, slow_after=SLOW_AFTER, clock=clock)
    be_quick(semaphore, *"abcde")
    assert [len(held(semaphore, owner)) for owner in "abcde"] == [4, 2, 1, 1, 0]


def test_limit_of_one_eighth_leaves_room_beside_eight_busy_owners(clock: Clock) -> None:
    semaphore = FairSemaphore(64, per_owner=8, slow_after=SLOW_AFTER, clock=clock)
    taken = [len(held(semaphore, f"hostile {number}")) for number in range(8)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] == 8
    assert sum(taken) <= 44
    assert len(held(semaphore, "somebody", 2)) == 2


@pytest.mark.parametrize(("most", "each", "unknown"), [(8, 4, 6), (64, 8, 48), (3, 2, 2), (2, 2, 1), (1, 1, 1)])
def test_newcomers_leave_a_quarter_of_the_slots_to_proven_owners(
    clock: Clock, most: int, each: int, unknown: int
) -> None:
    semaphore = FairSemaphore(most, per_owner=each, slow_after=SLOW_AFTER, clock=clock)
    be_quick(semaphore, "known", "known too")
    taken = sum(len(held(semaphore, f"newcomer {number}")) for number in range(most * 2))
    assert taken == unknown
    assert bool(held(semaphore, "known too", 1)) == (most > 1)


def test_any_number_of_slow_ones_holds_half_and_each_a_quarter_of_a_share(clock: Clock) -> None:
    semaphore = FairSemaphore(8, per_owner=4, slow_after=SLOW_AFTER, clock=clock)
    be_slow(semaphore, clock, *(f"slow {number}" for number in range(9)))
    assert [len(held(semaphore, f"slow {number}")) for number in range(9)] == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert held(semaphore, "newcomer", 1)


def test_penalty_doubles_each_time_and_resets_after_good_behaviour(clock: Clock) -> None:
    semaphore = FairSemaphore(4, per_owner=4, slow_after=SLOW_AFTER, clock=clock)

    def is_known_as_slow() -> bool:
        got = held(semaphore, "it")
        for slot in got:
            semaphore.release(slot)
        return len(got) == 1

    penalty = FIRST_PENALTY
    for _ in range(9):
        be_slow(semaphore, clock, "it")
        clock.now += penalty - 1
        assert is_known_as_slow()
        clock.now += 2
        assert not is_known_as_slow()
        penalty = min(MAX_PENALTY, penalty * 2)
    clock.now += MAX_PENALTY + 1
    be_quick(semaphore, "it")
    be_slow(semaphore, clock, "it")
    clock.now += FIRST_PENALTY + 1
    assert not is_known_as_slow()


def test_one_slow_moment_counts_once_however_many_slots_it_held(clock: Clock) -> None:
    semaphore = FairSemaphore(8, per_owner=8, slow_after=SLOW_AFTER, clock=clock)
    be_quick(semaphore, "it")
    met = held(semaphore, "it")
    assert len(met) == 8
    clock.now += SLOW_AFTER + 1
    for slot in met:
        clock.now += 0.1
        semaphore.release(slot)
    clock.now += FIRST_PENALTY - 1
    of_the_slow = held(semaphore, "it")
    for slot in of_the_slow:
        semaphore.release(slot)
    clock.now += 2
    assert (len(of_the_slow), len(held(semaphore, "it"))) == (2, 6)


def test_slow_slot_is_reclaimed_for_a_waiter_and_not_before_its_time(clock: Clock) -> None:
    semaphore = FairSemaphore(2, per_owner=2, slow_after=SLOW_AFTER, clock=clock)
    be_quick(semaphore, "a", "b", "c")
    asked: list[str] = []
    slots = {name: semaphore.acquire(name, wait=0, on_reclaim=lambda name=name: asked.append(name)) for name in "ab"}
    with ThreadPoolExecutor() as threads:
        clock.now += SLOW_AFTER / 2
        waits = threads.submit(semaphore.acquire, "c", wait=600)
        until(lambda: len(semaphore._queue) == 1)
        time.sleep(0.1)
        assert asked == []
        clock.now += SLOW_AFTER
        until(lambda: bool(asked))
        time.sleep(0.1)
        assert asked == ["a"], "the oldest, and no other"
        assert not waits.done(), "it has not left yet"
        assert slots["a"] is not None
        assert slots["a"].is_reclaimed
        semaphore.release(slots["a"])
        got = waits.result(20)
    assert got is not None
    assert got.owner == "c"
    assert [slot.owner for slot in semaphore._slots] == ["b", "c"]


def test_slot_is_not_reclaimed_for_an_owner_of_worse_reputation(clock: Clock) -> None:
    semaphore = FairSemaphore(2, per_owner=1, slow_after=SLOW_AFTER, clock=clock)
    be_slow(semaphore, clock, "slow")
    be_quick(semaphore, "a", "b")
    asked: list[str] = []
    for name in "ab":
        semaphore.acquire(name, wait=0, on_reclaim=lambda name=name: asked.append(name))
    clock.now += 2 * SLOW_AFTER
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(semaphore.acquire, "slow", wait=5)
        until(lambda: len(semaphore._queue) == 1)
        clock.now += 10
        assert waits.result(20) is None
    assert asked == []


def test_waiters_are_ordered_by_priority_and_then_by_usage(clock: Clock) -> None:
    semaphore = FairSemaphore(2, per_owner=2, slow_after=600, clock=clock)
    be_quick(semaphore, "greedy", "other")
    with semaphore.slot("slow", wait=0):
        clock.now += 601
    first, second = semaphore.acquire("greedy", wait=0), semaphore.acquire("other", wait=0)
    assert first is not None
    assert second is not None
    came: list[str] = []

    def wait(name: str) -> None:
        with semaphore.slot(name, wait=3600):
            came.append(name)

    waiting = []
    for number, name in enumerate(["slow", "newcomer", "greedy", "other"]):
        waiting.append(threading.Thread(target=wait, args=[name], daemon=True))
        waiting[-1].start()
        until(lambda number=number: len(semaphore._queue) == number + 1)
    semaphore.release(second)
    until(lambda: len(came) == 2)
    semaphore.release(first)
    for thread in waiting:
        thread.join(20)
    assert came == ["other", "greedy", "newcomer", "slow"]
    assert semaphore._slots == []
    assert semaphore._queue == []


def test_queue_is_bounded_and_higher_priority_takes_the_last_position(clock: Clock) -> None:
    semaphore = FairSemaphore(1, per_owner=1, slow_after=600, max_waiting=1, clock=clock)
    be_quick(semaphore, "known")
    first = semaphore.acquire("somebody", wait=0)
    with ThreadPoolExecutor() as threads:
        newcomer = threads.submit(semaphore.acquire, "newcomer", wait=3600)
        until(lambda: len(semaphore._queue) == 1)
        assert semaphore.acquire("another", wait=3600) is None, "a later owner with no higher priority"
        known = threads.submit(semaphore.acquire, "known", wait=3600)
        assert newcomer.result(20) is None
        assert first is not None
        semaphore.release(first)
        got = known.result(20)
    assert got is not None
    assert got.owner == "known"


def test_wait_without_success_raises_full_and_leaves_nothing(clock: Clock) -> None:
    semaphore = FairSemaphore(1, per_owner=1, slow_after=SLOW_AFTER)
    with semaphore.slot("a", wait=0):
        with pytest.raises(Full), semaphore.slot("b", wait=0.05):
            pytest.fail("there was no slot")
        assert semaphore._queue == []
    with semaphore.slot("b", wait=0):
        pass
    assert semaphore._slots == []


def test_idle_owners_are_evicted_and_those_with_a_slot_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform_site.concurrency.fair_semaphore.MAX_OWNERS", 3)
    semaphore = FairSemaphore(8, per_owner=4, slow_after=SLOW_AFTER, clock=clock)
    slot = semaphore.acquire("under way", wait=0)
    be_quick(semaphore, *"abcdef")
    assert len(semaphore._owners) == 3
    assert "under way" in semaphore._owners
    assert slot is not None
    semaphore.release(slot)
    assert semaphore._owners["under way"].held == 0
