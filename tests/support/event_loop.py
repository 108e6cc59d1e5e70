"""An event loop in a test, and requests that run on it in greenlets."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from platform_site.concurrency import loop_requests
from platform_site.concurrency.loop_requests import LoopRequest
from platform_site.postgres import loop_connections


class Loop:
    """An event loop, and requests that run on it."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.outcomes: dict[str, Any] = {}

    def start(self, name: str, work: Callable[[], Any]) -> LoopRequest:
        def run() -> None:
            here = loop_requests.current()
            assert here is not None
            try:
                self.outcomes[name] = work()
            except BaseException as error:
                self.outcomes[name] = error
            finally:
                loop_connections.give_back(here)

        request = LoopRequest(self.loop, run)
        self.loop.call_soon(request.switch)
        return request

    def run(self, *works: Callable[[], Any], seconds: float = 20.0) -> list[Any]:
        """What each returned or raised."""
        self.outcomes = {}
        for number, work in enumerate(works):
            self.start(str(number), work)

        async def all_ended() -> None:
            while len(self.outcomes) < len(works):
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(asyncio.wait_for(all_ended(), seconds))
        return [self.outcomes[str(number)] for number in range(len(works))]
