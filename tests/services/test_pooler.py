"""Behind PgBouncer in transaction mode, with the files of docs/deploy: everything goes on, on two connections a database.

What a session would keep (a lock, a setting, a prepared name) is on another session's connection a moment later; so each
part that works here keeps nothing, or goes direct (`platform_site.postgres.direct`).
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg import sql

from platform_site.embedded import launch
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import REGIONS, Layout, region_variable
from tests.support.receiver import Receiver
from tests.support.service import ROOT, Up, start_up, wait_for

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = [
    pytest.mark.served,
    pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer on this machine"),
    pytest.mark.timeout(240),
]
DEPLOY = ROOT / "docs" / "deploy"
POOL = 3


def version() -> tuple[int, ...]:
    assert PGBOUNCER is not None
    said = subprocess.run([PGBOUNCER, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found is not None, said
    return tuple(map(int, found.groups()))


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, str]]:
    """Names of four empty databases of the test run's server, by the variable that would name them."""
    layout = Layout(Path(os.environ["DATA_DIR"]))
    names = {"DATABASE_URL": "pooled_control"} | {
        region_variable(region): f"pooled_{region.replace('-', '_')}" for region in REGIONS
    }
    psql = embedded_postgres.binaries() / "psql"
    with embedded_postgres.connect(layout) as connection:
        for name in names.values():
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER platform").format(sql.Identifier(name)))
    for name in names.values():
        schema = "public" if name == "pooled_control" else "platform"
        url = layout.postgres_url(name, user="postgres", password_name="postgres_superuser_password")
        command = [psql, url, "-v", "ON_ERROR_STOP=1", "-v", "role=platform", "-v", f"schema={schema}"]
        subprocess.run([*command, "-f", DEPLOY / "pooled.sql"], check=True, capture_output=True)
    yield names
    with embedded_postgres.connect(layout) as connection:
        for name in names.values():
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def pooler(databases: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of PgBouncer's socket. It runs as the configuration of docs/deploy says, but for where and how
    many."""
    layout = Layout(Path(os.environ["DATA_DIR"]))
    directory = tmp_path_factory.mktemp("pooler")
    user = embedded_postgres.server_user(layout)
    text = (DEPLOY / "pgbouncer.ini").read_text()
    lines = "\n".join(f"{name} = host={layout.sockets}" for name in databases.values())
    text = re.sub(r"(?<=\[databases\]\n).*?(?=\n\[)", lines + "\n", text, flags=re.DOTALL)
    replaced = {
        "listen_addr": "",
        "default_pool_size": str(POOL),
        "auth_file": str(directory / "users.txt"),
        "unix_socket_dir": str(directory),
        "logfile": str(directory / "log"),
    }
    if version() < (1, 21):
        text = re.sub(r"^max_prepared_statements.*\n", "", text, flags=re.MULTILINE)
    for name in replaced:
        text = re.sub(rf"^{name} =.*\n", "", text, flags=re.MULTILINE)
    text += "".join(f"{name} = {value}\n" for name, value in replaced.items())
    (directory / "pgbouncer.ini").write_text(text)
    (directory / "users.txt").write_text(f'"platform" "{layout.read_secrets()["postgres_password"]}"\n')
    if user:
        shutil.chown(directory, user)
    assert PGBOUNCER is not None
    process = subprocess.Popen(
        [*launch.launcher(signal.SIGKILL, user), PGBOUNCER, str(directory / "pgbouncer.ini")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip

    def is_there() -> bool:
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        return (directory / ".s.PGSQL.6432").exists()

    wait_for("the pooler", is_there, 15)
    yield directory
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def up(
    databases: dict[str, str], pooler: Path, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    layout = Layout(Path(os.environ["DATA_DIR"]))
    password = layout.read_secrets()["postgres_password"]
    environment = {
        variable: f"postgresql://platform:{password}@/{name}?host={pooler}&port=6432"
        for variable, name in databases.items()
    }
    environment |= {
        variable.removesuffix("_URL") + "_DIRECT_URL": layout.postgres_url(name) for variable, name in databases.items()
    }
    environment |= {"DATABASE_PREPARED_STATEMENTS": "1" if version() >= (1, 21) else "0"}
    environment |= {"JOB_SECONDS": "1", "SCHEMA_LARGE_TABLE_ROWS": "0", "OUTBOUND_ALLOWED_NETWORKS": "127.0.0.0/8"}
    made = start_up(tmp_path_factory.mktemp("pooled") / "data", environment=environment)
    yield made
    assert made.stop() == 0, made.output


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def test_rows_schemas_events_runs_and_jobs_need_no_session(
    up: Up, receiver: Receiver, databases: dict[str, str]
) -> None:
    headers = {"Authorization": f"Bearer {up.facts['server_key']}"}
    with httpx.Client(base_url=f"{up.base_url}/v1", headers=headers, timeout=30) as client:

        def ask(method: str, path: str, body: Any = None) -> Any:
            answer = client.request(method, path, json=body)
            assert answer.status_code < 300, f"{path}: {answer.text}\n{up.output[-2000:]}"
            return answer.json()

        owner = up.facts["app_users"][0]["id"]
        ask("POST", "/webhooks", {"url": receiver.url(), "events": ["lists.insert"], "filter": {"owner_id": owner}})

        def write(_: int) -> list[str]:
            ids = [f"pooled-{uuid4().hex}" for _ in range(25)]
            for row_id in ids:
                ask("POST", "/rows/lists", {"id": row_id, "name": row_id, "owner_id": owner})
                assert ask("GET", f"/rows/lists/{row_id}")["name"] == row_id
            assert len(ask("GET", f'/rows/lists?where={{"owner_id":"{owner}"}}&limit=100')["data"]) >= 25
            return ids

        with ThreadPoolExecutor(8) as threads:
            written = {row_id for ids in threads.map(write, range(8)) for row_id in ids}
        run = ask("POST", "/functions/sum/invoke", {"input": {"a": 1, "b": 2}, "async": True})["run_id"]
        wait_for(
            "a queued run", lambda: ask("GET", f"/functions/sum/runs/{run}")["status"] == "succeeded", 30, every=0.2
        )
        wait_for("the events", lambda: len(receiver.requests) >= len(written), 30, every=0.2)

        document = ask("GET", "/schema")["document"]
        document["tables"]["lists"] |= {"indexes": [["name"]], "unique": [["name", "owner_id"]]}
        changed = ask("PUT", "/schema", {"document": document})
        assert "UNIQUE USING INDEX" in str(changed["operations"]), "its index, made on a connection of its own"
    layout = Layout(Path(os.environ["DATA_DIR"]))
    with embedded_postgres.connect(layout, databases["REGION_US_EAST_1_URL"]) as region:
        query = "SELECT count(*) FROM pg_indexes WHERE tablename = 'lists' AND indexdef LIKE '%(name%'"

        def is_made() -> bool:
            return region.execute(query).fetchone() != (0,)

        wait_for("the index, made by a worker on a connection of its own", is_made, 40, every=0.2)
    # No job's lock was left on a pooled connection: each is held for a moment only.
    with embedded_postgres.connect(layout, databases["DATABASE_URL"]) as control:
        left = _advisory_locks(control, databases["DATABASE_URL"])

        def are_released() -> bool:
            nonlocal left
            left &= _advisory_locks(control, databases["DATABASE_URL"])
            return not left

        wait_for("the lock was released", are_released, every=0.3)
        pooled = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{databases['DATABASE_URL']}'"
        assert control.execute(pooled).fetchone()[0] <= POOL + 5 + 8  # type: ignore[index, operator]


def _advisory_locks(connection: "psycopg.Connection[tuple[object, ...]]", database: str) -> set[Any]:
    query = (
        "SELECT l.pid, l.objid FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
        " WHERE l.locktype = 'advisory' AND d.datname = %s"
    )
    return set(connection.execute(query, [database]).fetchall())
