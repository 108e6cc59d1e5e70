"""The process of a server that is compared with this project."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from platform_site.embedded.launch import launcher
from tests.support.service import server_process


@contextlib.contextmanager
def running(name: str, command: Sequence[str], url: str, health: str, **options: Any) -> Iterator[httpx.Client]:
    """As `server_process`, with the path of `health` below `url`; also ends with this process. Yields a client for
    `url`."""
    whole = [*launcher(signal.SIGKILL), *command]
    with (
        server_process(name, whole, url + health, stdout=subprocess.DEVNULL, **options),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client
