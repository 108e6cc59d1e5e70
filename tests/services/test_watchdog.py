"""The watchdog of the event loop: what stands in its way is logged with the stack, and nothing else is."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop

from platform_site.server.watchdog import INTERVAL, MAX_CPU_SECONDS, Watchdog


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = uvloop.new_event_loop()
    yield made
    made.close()


def run(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Run the loop with its watchdog, and `work` on it after a while."""
    watchdog = Watchdog(loop)

    async def watched() -> None:
        await asyncio.sleep(0.1)
        loop.call_soon(work)
        await asyncio.sleep(0.1)  # and as long as the work takes
        await asyncio.sleep(0.2)

    watchdog.start()
    try:
        loop.run_until_complete(watched())
    finally:
        watchdog.stop()


def wait_for_a_disk() -> None:
    time.sleep(0.3)


def compute_for_long(seconds: float = 0.3) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


@pytest.mark.parametrize(("work", "doing"), [(wait_for_a_disk, "sleeps"), (compute_for_long, "computes")])
def test_what_stops_the_loop_is_logged_once_with_its_stack(
    loop: asyncio.AbstractEventLoop, work: Callable[[], None], doing: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run(loop, work)
    message, over = [each.getMessage() for each in caplog.records if each.name == "platform_site.server.watchdog"][:2]
    assert message.startswith(f"the event loop is blocked: it {doing}\n")
    assert work.__name__ in message
    computing = int(over.removesuffix(" of them computing").rpartition(" ")[2])
    if doing == "computes":
        # It asks once in each interval, and may be late by as much.
        assert computing >= 1000 * (0.3 - 2 * INTERVAL), over
    else:
        assert computing < 1000 * MAX_CPU_SECONDS, over


@pytest.mark.exhaustive
def test_threads_that_keep_the_interpreter_busy_are_not_logged(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    threads = [threading.Thread(target=compute_for_long, args=(0.05,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    run(loop, lambda: None)
    for thread in threads:
        thread.join()
    assert not [each for each in caplog.records if each.name == "platform_site.server.watchdog"]


def test_a_loop_that_waits_for_sockets_is_not_logged(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run(loop, lambda: None)
    assert not [each for each in caplog.records if each.name == "platform_site.server.watchdog"]
