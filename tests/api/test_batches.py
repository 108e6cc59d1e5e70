"""What is handed in is dealt with together, in order, once, and by the process it was handed in to."""

import os
import threading

import pytest

from platform_site.fastpath.batching import Batch
from tests.support.service import wait_for

pytestmark = pytest.mark.usefixtures("with_fastpath")


class Dealt:
    """Notes what it is given, and when; `gate` holds it up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, things: list[int]) -> None:
        self.gate.wait(10)
        self.threads.add(threading.current_thread().name)
        self.batches.append(things)

    @property
    def all(self) -> list[int]:
        return [thing for batch in self.batches for thing in batch]


def test_batch_items_are_processed_in_order_in_the_batch_thread() -> None:
    dealt = Dealt()
    batch = Batch(dealt, max_items=1000)
    assert all([batch.put(number) for number in range(500)])
    wait_for("all are dealt with", lambda: len(dealt.all) == 500, 5)
    assert dealt.all == list(range(500))
    assert len(dealt.batches) < 20
    assert dealt.threads == {"batch"}
    batch.put(500)
    wait_for("a later one, too", lambda: dealt.all[-1] == 500, 5)


def test_many_threads_lose_nothing() -> None:
    dealt = Dealt()
    batch = Batch(dealt, max_items=100_000)

    def hand_in(of: int) -> None:
        for number in range(1000):
            batch.put(of * 1000 + number)

    threads = [threading.Thread(target=hand_in, args=(of,)) for of in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch.flush()
    wait_for("all are dealt with", lambda: len(dealt.all) == 8000, 5)
    assert sorted(dealt.all) == list(range(8000))


def test_what_is_too_much_is_refused_and_the_rest_stays() -> None:
    dealt = Dealt()
    dealt.gate.clear()
    batch = Batch(dealt, max_items=10)
    batch.put(0)
    wait_for("the thread has taken it", lambda: not batch._waiting, 5)
    assert [batch.put(number) for number in range(1, 13)] == [True] * 10 + [False] * 2
    dealt.gate.set()
    wait_for("what was taken is dealt with", lambda: dealt.all == list(range(11)), 5)


def test_a_dealer_that_fails_loses_its_batch_alone(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def deal(things: list[int]) -> None:
        if 1 in things:
            raise ValueError("no ones")
        seen.extend(things)

    batch = Batch(deal, max_items=10)
    batch.put(1)
    wait_for("it fails", lambda: "a batch was lost" in caplog.text, 5)
    batch.put(2)
    wait_for("the next is dealt with", lambda: seen == [2], 5)


def test_a_fork_deals_with_its_own_and_not_with_its_parents() -> None:
    read, write = os.pipe()
    batch: Batch[bytes] = Batch(lambda things: [os.write(write, thing) for thing in things] and None, max_items=10)
    batch.put(b"p")
    child = os.fork()
    if not child:
        batch.put(b"c")
        batch.flush()
        os._exit(0)
    os.waitpid(child, 0)
    batch.flush()
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert sorted(file.read()) == sorted(b"pc")
