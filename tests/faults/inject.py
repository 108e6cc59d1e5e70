"""What can be done to a running service. Each function takes it, does its harm, and returns when the cause is over;
what it costs is for others to measure (the tests beside it, and `python -m tests.faults`)."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import REGIONS, Layout, region_database
from tests.faults.conftest import OwnValkey, superuser
from tests.faults.write_load import Worker
from tests.support.service import ROOT, Up, server_process, wait_for

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def server(up: Up) -> psutil.Process:
    """Of `up`, which may be starting it again after the test before."""
    [found] = wait_for("there is PostgreSQL", lambda: up.named("postgres", "-D", parent=up.process.pid))
    return found


# ── killed ──


def kill_web_workers(up: Up, times: int = 3) -> None:
    count = len(up.web_workers())
    for _ in range(times):
        victim = random.choice(up.web_workers())
        victim.kill()
        wait_for("a new worker", lambda: len([w for w in up.web_workers() if w != victim]) == count, 15)  # noqa: B023
        time.sleep(0.5)


def kill_workers(up: Up, workers: list[Worker]) -> None:
    """The one that `up` started comes back by itself, the others by us."""
    for worker in workers:
        worker.kill()
        worker.start()
        time.sleep(0.7)
    up.part("platform-worker").kill()
    wait_for("`up` has started another", lambda: up.named("platform-worker", parent=up.process.pid), 15)


def restart_postgres(up: Up) -> None:
    """A crash, and the restart by `up`; over when PostgreSQL accepts connections."""
    layout = Layout(up.data_dir)
    server(up).send_signal(signal.SIGQUIT)
    wait_for("it has gone", lambda: not embedded_postgres.answers(layout), every=0.005)
    wait_for("`up` started it again", lambda: embedded_postgres.answers(layout), 40)


def terminate_connections(up: Up, times: int = 3) -> None:
    for _ in range(times):
        with superuser(up) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'platform'")
        time.sleep(0.7)


def restart_valkey(valkey: OwnValkey, seconds: float = 3.0) -> None:
    """Killed, down for a while, back and empty."""
    valkey.kill()
    time.sleep(seconds)
    valkey.start()


def empty_valkey(valkey: OwnValkey, times: int = 3) -> None:
    for _ in range(times):
        valkey.kill()
        valkey.start()
        time.sleep(0.7)


# ── frozen ──


def freeze_postgres(up: Up, seconds: float = 2.0) -> None:
    with frozen_postgres(up):
        time.sleep(seconds)


@contextlib.contextmanager
def frozen_postgres(up: Up) -> Iterator[None]:
    """All its processes are stopped: connections are not refused, and nothing answers."""
    main = server(up)
    main.suspend()
    frozen = main.children(recursive=True)
    try:
        for backend in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                backend.suspend()
        yield
    finally:
        for process in [*frozen, main]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def freeze_valkey(valkey: OwnValkey, seconds: float = 3.0) -> None:
    valkey.signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        valkey.signal(signal.SIGCONT)


@contextlib.contextmanager
def without_the_worker_of(up: Up) -> Iterator[None]:
    """The worker of `up` is stopped: other workers have all the work, and no beat notifies them.

    It stops at a moment when no delivery of the first region is under way: one that had been sent and not yet recorded
    would be sent again, and count as another fault's duplicate.
    """
    worker = up.part("platform-worker")
    under_way = "SELECT 1 FROM platform.webhooks_delivery WHERE status = 'pending' AND claimed_until > now() LIMIT 1"
    with superuser(up, region_database("us-east-1")) as connection:

        def is_idle_and_stands() -> bool:
            worker.suspend()
            if connection.execute(under_way).fetchone() is None:  # type: ignore[call-overload]
                return True
            worker.resume()
            return False

        wait_for("nothing is under way", is_idle_and_stands, 30, every=0.02)
    try:
        yield
    finally:
        worker.resume()


# ── replaced ──


def reload_web(up: Up) -> None:
    """A rolling restart: every worker replaced, one after the other."""
    before = {worker.pid for worker in up.web_workers()}
    up.process.send_signal(signal.SIGHUP)
    wait_for("every worker is new", lambda: not before & {worker.pid for worker in up.web_workers()}, 60)


_NEXT = """
from django.db import migrations

class Migration(migrations.Migration):
    dependencies = [("{app}", "{last}")]
    operations = [migrations.RunSQL({sql!r}, migrations.RunSQL.noop)]
"""
_CONTROL = """
ALTER TABLE projects_project ADD COLUMN of_the_next_release text;
ALTER TABLE projects_environment ADD COLUMN of_the_next_release integer NOT NULL DEFAULT 7;
CREATE TABLE projects_of_the_next_release (id bigint PRIMARY KEY);
"""
_REGION = """
ALTER TABLE platform.webhooks_delivery ADD COLUMN of_the_next_release text;
ALTER TABLE platform.rows_outboxevent ADD COLUMN of_the_next_release integer NOT NULL DEFAULT 7;
"""


def next_release(directory: Path) -> Path:
    """A copy of this release with migrations that docs/how-to/operations/upgrades.md allows: columns that the old code can leave out, in
    tables that every write touches, and a new table."""
    tree = directory / "next"
    tree.mkdir()
    for name in ("accounts", "functions", "platform_site", "projects", "rows", "templates", "webhooks"):
        shutil.copytree(ROOT / name, tree / name)  # with the compiled code, which is valid there
    shutil.copy(ROOT / "manage.py", tree)
    for app, sql in (("projects", _CONTROL), ("webhooks", _REGION)):
        migrations = tree / app / "migrations"
        last = max(path.stem for path in migrations.glob("0*.py"))
        (migrations / "9999_next_release.py").write_text(_NEXT.format(app=app, last=last, sql=sql))
    return tree


def migrate(up: Up, tree: Path, environment: dict[str, str]) -> str:
    """What `manage.py migrate` of that release says, on both outputs."""
    done = subprocess.run(
        [sys.executable, str(tree / "manage.py"), "migrate"],
        cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100,
        env={**os.environ, **environment, "DATA_DIR": str(up.data_dir)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def forget_next_release(up: Up) -> None:
    """Delete its columns and records, so that the next test finds the current schema."""
    away = "DELETE FROM {}django_migrations WHERE name = '9999_next_release'"
    with superuser(up) as control:
        control.execute("ALTER TABLE projects_project DROP COLUMN IF EXISTS of_the_next_release")
        control.execute("ALTER TABLE projects_environment DROP COLUMN IF EXISTS of_the_next_release")
        control.execute("DROP TABLE IF EXISTS projects_of_the_next_release")
        control.execute(away.format("public."))  # type: ignore[call-overload]
    for region in REGIONS:
        with superuser(up, region_database(region)) as connection:
            connection.execute("ALTER TABLE platform.webhooks_delivery DROP COLUMN IF EXISTS of_the_next_release")
            connection.execute("ALTER TABLE platform.rows_outboxevent DROP COLUMN IF EXISTS of_the_next_release")
            connection.execute(away.format("platform."))  # type: ignore[call-overload]


# ── beside it ──


def shifted(seconds: int) -> dict[str, str]:
    """Variables for a Python whose clock is wrong by so much; its timers are right."""
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": str(Path(__file__).parent / "clock"),
    }


@contextlib.contextmanager
def another_web(up: Up, environment: dict[str, str], log: str = os.devnull) -> Iterator[Up]:
    """Another web server of the same service, with variables of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    whole = {
        **os.environ,
        "OUTBOUND_ALLOWED_NETWORKS": "127.0.0.0/8",
        "BASE_URL": up.base_url,
        **environment,
        "DATA_DIR": str(up.data_dir),
    }
    command = [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(port), "--workers", "2"]
    url = f"http://127.0.0.1:{port}"
    with (
        open(log, "wb") as output,
        server_process(
            "another web server", command, f"{url}/healthz",
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, text=True, env=whole,
        ) as process,
    ):  # fmt: skip
        yield replace(up, process=process, base_url=url)
