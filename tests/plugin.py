"""Starts a real PostgreSQL and a real Valkey for the test run, in a data dir of its own, before Django reads its settings.

Named by `-p tests.plugin` in pyproject.toml. Each worker of pytest-xdist has servers of its own: counts in Redis and
connections to PostgreSQL are looked at, and ended, by tests that must not meet each other there.
"""

import atexit
import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout

# Also where the machine forbids it: each of the many processes that tests start would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest.register_assert_rewrite("tests.support")

_UNLESS_NAMED = "not slow and not exhaustive"
"""The selection of pyproject.toml."""
_OWNER = "TEST_SERVICES_OWNER"
_WORKER = "TEST_SERVICES_WORKER"


def _worker() -> str:
    return os.environ.get("PYTEST_XDIST_WORKER", "alone")


def _start() -> None:
    from tests.support import valkey as embedded_valkey  # after its assertions are registered

    directory = Path(tempfile.mkdtemp(prefix="bp-tests-"))
    directory.chmod(0o755)
    layout = Layout(directory)
    os.environ["DATA_DIR"] = str(directory)
    os.environ[_OWNER] = str(os.getpid())
    os.environ[_WORKER] = _worker()
    # A test within one transaction asks some of its databases seldom.
    os.environ["IDLE_IN_TRANSACTION_TIMEOUT_MS"] = "120000"
    servers: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []

    def stop() -> None:
        if os.environ.get(_OWNER) != str(os.getpid()):
            return  # a forked child must not stop its parent's servers
        for server, how in servers:
            server.send_signal(how)
        for server, _ in servers:
            server.wait(20)
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    servers.append((embedded_postgres.start(layout, durable=False, log=directory / "postgres.log"), signal.SIGINT))
    servers.append((embedded_valkey.start(layout, log=directory / "valkey.log"), signal.SIGTERM))
    with embedded_postgres.connect(layout) as connection:
        connection.execute("ALTER ROLE platform CREATEDB")  # Django makes test databases with it


def pytest_configure(config: pytest.Config) -> None:
    """A folder, file or test that is named runs with its exhaustive tests. The processes of `-n` take the selection of
    their parent."""
    if hasattr(config, "workerinput"):
        config.option.markexpr = config.workerinput["markexpr"]
    elif config.args_source is config.ArgsSource.ARGS and config.option.markexpr == _UNLESS_NAMED:
        config.option.markexpr = "not slow"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of pytest-xdist, for each process."""
    node.workerinput["markexpr"] = node.config.option.markexpr
    node.workerinput["whole"] = node.config.args_source is not pytest.Config.ArgsSource.ARGS


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For `-n logical` three processes on two cores: the cores are idle a quarter of the time with two, since tests wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # what pytest-xdist documents
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return cores + cores // 2


def _compile_share(config: pytest.Config) -> None:
    """In a new checkout each of the processes of `-n` would compile all tests, at the same time. So each imports a share
    of them first, and finds the others compiled."""
    if not getattr(config, "workerinput", {}).get("whole"):
        return
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]  # type: ignore[attr-defined]
    for path in sorted(config.rootpath.glob("tests/**/test_*.py"))[number::count]:
        with suppress(Exception, pytest.skip.Exception):  # the collection tells of it
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Ten thousand tests and all modules live to the end: spare the collector. What is left is looked at less often:
    with Python's thresholds that takes an eighth of the CPU time of tests in this process."""
    gc.disable()
    _compile_share(session.config)
    collected = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()
    return collected


# Compiling the tests takes 24 s in each process of `-n`, and compiling the product 0.6 s in each command that a test runs:
# it is done once per checkout, also where the environment asks Python to keep no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if os.environ.get(_WORKER) != _worker():
    for variable in (
        "DATABASE_URL",
        "REDIS_URL",
        "REGION_US_EAST_1_URL",
        "REGION_EU_WEST_1_URL",
        "REGION_AP_SOUTHEAST_1_URL",
    ):
        os.environ.pop(variable, None)
    _start()
