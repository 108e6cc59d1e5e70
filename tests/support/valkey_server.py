"""A Valkey of a test's own, to be frozen, killed and started again."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis

from platform_site.embedded.data_dir import Layout
from platform_site.redis.client import Store
from tests.support import valkey as embedded_valkey
from tests.support.timing import within
from tests.support.valkey import Refusal, refuse_writes, start_for_operators, take_writes

BUDGET = 0.2
SLACK = within(0.15)
"""What a busy machine may add to a wait before a test calls it too long."""


class RedisServer:
    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.store = Store(self.url, BUDGET)

    @property
    def url(self) -> str:
        return self.layout.redis_url()

    @property
    def client(self) -> redis.Redis:
        return embedded_valkey.client(self.layout)

    def start(self) -> None:
        self._process = start_for_operators(self.layout)

    def refuse_writes(self, why: Refusal) -> None:
        refuse_writes(self.client, why)

    def take_writes(self) -> None:
        take_writes(self.client)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self.send(signal.SIGKILL)
            self._process.wait(10)
            self._process = None


def until(holds: Callable[[], object], seconds: float = 10) -> None:
    """Wait until `holds()` is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
