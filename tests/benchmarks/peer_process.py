"""The process of a server that is compared with this project."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from platform_site.embedded.launch import launcher
from tests.support.service import wait_for


@contextlib.contextmanager
def running(name: str, command: Sequence[str], url: str, health: str, **options: Any) -> Iterator[httpx.Client]:
    """Runs `command` for that long, with a client for its `url`, once its path `health` answers 200. `options` are
    those of Popen. Raises RuntimeError if it ends before."""
    process = subprocess.Popen([*launcher(signal.SIGKILL), *command], stdout=subprocess.DEVNULL, **options)

    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}")
        with contextlib.suppress(httpx.TransportError):
            return client.get(health).status_code == 200
        return False

    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_for(f"{name} answers", answers, 60, every=0.1)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
