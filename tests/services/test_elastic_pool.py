"""One thread at a time, another while that one is stuck."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from platform_site.server.elastic_pool import ElasticThreadPool
from tests.support.timing import within

STUCK_AFTER = 0.02


class Jobs:
    """A pool of callables; records refused and finished ones."""

    def __init__(self, **options: Any) -> None:
        self.refused: list[Callable[[], None]] = []
        self.retired = 0
        self.finished = threading.Semaphore(0)
        self.pool: ElasticThreadPool[Callable[[], None]] = ElasticThreadPool(
            work=self._work,
            refuse=self.refused.append,
            on_retire=self._retired,
            call_later=asyncio.get_running_loop().call_later,
            **({"client_of": lambda _: "", "stuck_after": STUCK_AFTER, "idle_seconds": 60.0} | options),
        )

    def _work(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self.finished.release()

    def _retired(self) -> None:
        self.retired += 1


@asynccontextmanager
async def a_pool(**options: Any) -> AsyncIterator[Jobs]:
    jobs = Jobs(**options)
    yield jobs
    await asyncio.to_thread(jobs.pool.stop)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.fixture
def together() -> "Together":
    return Together()


class Together:
    """Counts how many run at the same moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_quick_jobs_run_one_after_the_other_in_one_thread_in_their_order(together: Together) -> None:
    async def main() -> None:
        order: list[int] = []
        threads: set[int] = set()

        def job(number: int) -> None:
            with together:
                order.append(number)
                threads.add(threading.get_ident())

        async with a_pool(stuck_after=5.0) as jobs:
            for number in range(200):
                jobs.pool.submit(lambda number=number: job(number))  # type: ignore[misc]
            await until(lambda: len(order) == 200)
        assert order == list(range(200))
        assert together.most == 1
        assert len(threads) == 1

    asyncio.run(main())


def test_clients_with_queued_jobs_take_turns() -> None:
    async def main() -> None:
        begin = threading.Event()
        served: list[str] = []
        clients: dict[Any, str] = {begin.wait: "a"}

        def submit(client: str) -> None:
            def job() -> None:
                served.append(client)

            clients[job] = client
            jobs.pool.submit(job)

        async with a_pool(stuck_after=5.0, client_of=lambda job: clients[job]) as jobs:
            jobs.pool.submit(begin.wait)  # type: ignore[arg-type]
            for client in ["a"] * 50 + ["b"] * 2 + ["c"]:
                submit(client)
            begin.set()
            await until(lambda: len(served) == 53)
            assert served[:6] == ["a", "b", "c", "a", "b", "a"]

    asyncio.run(main())


def test_jobs_of_several_clients_that_wait_too_long_are_refused() -> None:
    async def main() -> None:
        begin = threading.Event()
        async with a_pool(max_threads=1, queue_timeout=0.2, client_of=id) as jobs:
            jobs.pool.submit(begin.wait)  # type: ignore[arg-type]
            late: list[Callable[[], None]] = [lambda: None for _ in range(3)]
            for each in late:
                jobs.pool.submit(each)
            await until(lambda: len(jobs.refused) == 3)
            begin.set()
            assert jobs.refused == late

    asyncio.run(main())


def test_stuck_thread_is_replaced_by_one_more_thread(together: Together) -> None:
    async def main() -> None:
        stuck = threading.Event()
        served: list[float] = []

        def quick() -> None:
            with together:
                served.append(time.monotonic())

        async with a_pool() as jobs:
            jobs.pool.submit(lambda: stuck.wait(10) and None)
            begun = time.monotonic()
            for _ in range(50):
                jobs.pool.submit(quick)
            await until(lambda: len(served) == 50)
            assert served[0] - begun >= STUCK_AFTER * 0.9, "the first had its chance"
            assert len(jobs.pool._threads) == 2
            assert together.most == 1, "beside the stuck one, one runs"
            stuck.set()

    asyncio.run(main())


def test_replaced_thread_idles_instead_of_running_beside_the_active_one(together: Together) -> None:
    async def main() -> None:
        stuck = threading.Event()
        holding, done = threading.Event(), threading.Event()

        def quick() -> None:
            with together:
                time.sleep(0.001)

        async with a_pool(stuck_after=0.05) as jobs:
            jobs.pool.submit(lambda: stuck.wait(10) and None)
            jobs.pool.submit(holding.set)
            await until(holding.is_set)
            stuck.set()  # both threads are free now
            for _ in range(200):
                jobs.pool.submit(quick)
            jobs.pool.submit(done.set)
            await until(done.is_set)
            assert len(jobs.pool._threads) == 2
            assert together.most == 1

    asyncio.run(main())


def test_job_is_refused_after_the_queue_timeout_when_all_threads_are_stuck() -> None:
    async def main() -> None:
        stuck = threading.Event()
        ran: list[str] = []
        async with a_pool(max_threads=3, queue_timeout=0.2) as jobs:
            for _ in range(3):
                jobs.pool.submit(lambda: stuck.wait(10) and None)
            await until(lambda: not jobs.pool._queues)
            begun = time.monotonic()
            late = lambda: ran.append("late")  # noqa: E731
            jobs.pool.submit(late)
            await until(lambda: jobs.refused == [late])
            assert 0.19 <= time.monotonic() - begun < within(1.0)
            assert len(jobs.pool._threads) == 3
            stuck.set()
            jobs.pool.submit(lambda: ran.append("after"))
            await until(lambda: ran == ["after"])

    asyncio.run(main())


def test_what_has_waited_elsewhere_has_its_turn_and_its_end_by_that() -> None:
    async def main() -> None:
        stuck = threading.Event()
        ran: list[str] = []
        async with a_pool(max_threads=1, queue_timeout=30.0) as jobs:
            jobs.pool.submit(lambda: stuck.wait(10) and None)
            await until(lambda: not jobs.pool._queues)
            late = lambda: ran.append("late")  # noqa: E731
            jobs.pool.submit(lambda: ran.append("new"))
            for waited in (10, 20, 5):
                jobs.pool.submit(lambda waited=waited: ran.append(f"{waited}"), time.monotonic() - waited)  # type: ignore[misc]
            jobs.pool.submit(late, time.monotonic() - 30)
            await until(lambda: jobs.refused == [late])
            stuck.set()
            await until(lambda: ran == ["20", "10", "5", "new"])

    asyncio.run(main())


def test_idle_threads_end_except_one() -> None:
    async def main() -> None:
        stuck = threading.Event()
        async with a_pool(idle_seconds=0.05) as jobs:
            for _ in range(4):
                jobs.pool.submit(lambda: stuck.wait(10) and None)
            await until(lambda: len(jobs.pool._threads) == 4)
            stuck.set()
            await until(lambda: len(jobs.pool._threads) == 1)
            assert jobs.retired == 3
            answered = threading.Event()
            jobs.pool.submit(answered.set)
            await until(answered.is_set)

    asyncio.run(main())


def test_a_job_that_raises_baseexception_ends_no_thread() -> None:
    async def main() -> None:
        async with a_pool() as jobs:
            answered = threading.Event()

            def bad() -> None:
                raise KeyboardInterrupt

            jobs.pool.submit(bad)
            jobs.pool.submit(answered.set)
            await until(answered.is_set)
            assert len(jobs.pool._threads) == 1

    asyncio.run(main())


def test_stop_lets_what_waits_end_and_every_thread_leave() -> None:
    async def main() -> None:
        done: list[int] = []
        jobs = Jobs(stuck_after=5.0)
        for number in range(20):
            jobs.pool.submit(lambda number=number: (time.sleep(0.005), done.append(number)) and None)  # type: ignore[misc]
        await asyncio.to_thread(jobs.pool.stop)
        assert done == list(range(20))
        assert len(jobs.pool._threads) == 0
        assert jobs.retired >= 1

    asyncio.run(main())


def test_announced_wait_is_overtaken_at_once_up_to_a_limit(together: Together) -> None:
    async def main() -> None:
        stuck = threading.Event()
        waiting: list[int] = []
        served: list[int] = []

        async with a_pool(stuck_after=30.0, max_waiting=2) as jobs:

            def waits(number: int) -> None:
                jobs.pool.will_wait()
                waiting.append(number)
                stuck.wait(10)

            def quick(number: int) -> None:
                with together:
                    served.append(number)

            for number in range(2):
                jobs.pool.submit(lambda number=number: waits(number))  # type: ignore[misc]
            for number in range(50):
                jobs.pool.submit(lambda number=number: quick(number))  # type: ignore[misc]
            # Long before any of the timeouts, in their order, and one at a time.
            await until(lambda: len(served) == 50)
            assert (sorted(waiting), served, together.most) == ([0, 1], list(range(50)), 1)
            assert len(jobs.pool._threads) == 3
            # A third one is active like any other.
            jobs.pool.submit(lambda: waits(2))
            await until(lambda: 2 in waiting)
            jobs.pool.submit(lambda: quick(50))
            await asyncio.sleep(0.05)
            assert len(served) == 50
            stuck.set()
            await until(lambda: len(served) == 51)
            # Their places are free again.
            again = threading.Event()
            jobs.pool.submit(lambda: (jobs.pool.will_wait(), again.wait(10)) and None)
            jobs.pool.submit(again.set)
            await until(again.is_set)

    asyncio.run(main())


def test_announcing_a_wait_outside_of_the_pool_does_nothing() -> None:
    async def main() -> None:
        async with a_pool(stuck_after=30.0) as jobs:
            holding, stuck = threading.Event(), threading.Event()
            jobs.pool.submit(lambda: (holding.set(), stuck.wait(10)) and None)
            await until(holding.is_set)
            jobs.pool.will_wait()
            served = threading.Event()
            jobs.pool.submit(served.set)
            await asyncio.sleep(0.05)
            assert not served.is_set()
            stuck.set()
            await until(served.is_set)

    asyncio.run(main())


def test_the_loop_does_not_wait_for_a_thread_that_another_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a start takes long; what the loop submits meanwhile must not wait for it."""

    async def main() -> None:
        async with a_pool(max_threads=3, stuck_after=60.0) as jobs:
            starting, go_on, waits = threading.Event(), threading.Event(), threading.Event()
            start = threading.Thread.start

            def slow_start(thread: threading.Thread) -> None:
                starting.set()
                assert go_on.wait(10)
                start(thread)

            def job() -> None:
                assert waits.wait(10)
                jobs.pool.will_wait()

            jobs.pool.submit(job)
            jobs.pool.submit(lambda: None)
            monkeypatch.setattr(threading.Thread, "start", slow_start)
            waits.set()
            await until(starting.is_set)
            began = time.monotonic()
            jobs.pool.submit(lambda: None)
            assert time.monotonic() - began < 1
            go_on.set()
            for _ in range(3):
                assert await asyncio.to_thread(jobs.finished.acquire, timeout=10)

    asyncio.run(main())
