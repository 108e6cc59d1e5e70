"""The service as production serves it (`manage.py serve`), on this run's databases."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.db import connections

from platform_site.embedded.data_dir import region_variable


@dataclass(frozen=True)
class Served:
    """A running server."""

    port: int
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """User and system time of all its processes so far."""
        used = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            times = process.cpu_times()
            used += times.user + times.system
        return used


@pytest.fixture(scope="module")
def bench(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`manage.py serve --workers 2` with the URLs of `tests.benchmarks.urls` and without rate limits."""
    databases = {
        variable: settings.LAYOUT.postgres_url(str(connections[alias].settings_dict["NAME"]))
        for alias, variable in [
            ("default", "DATABASE_URL"),
            *((region, region_variable(region)) for region in settings.REGION_DATABASES),
        ]
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("served") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--workers", "2", "--port", str(port)],
            cwd=settings.BASE_DIR,
            env=os.environ
            | databases
            | {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings", "RATE_LIMIT_FACTOR": "1000000"},
            stdout=output,
            stderr=output,
        )
    try:
        _wait(port, process, log)
        yield Served(port, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(15)


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.05)


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line of results, whatever pytest does with output."""

    def say(line: str) -> None:
        record_property("figures", line)
        with capsys.disabled():
            print(f"\n  {line}", end="")

    return say
