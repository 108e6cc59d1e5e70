"""`manage.py up`: starts from nothing, runs once, heals, stops cleanly, and starts again on the same data."""

import contextlib
import json
import os
import pty
import pwd
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
from django.db.migrations.loader import MigrationLoader
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded import up as up_module
from platform_site.embedded import valkey as embedded_valkey
from platform_site.embedded.data_dir import REGIONS, Layout, region_database, region_variable
from tests.support.service import ROOT, Up, start_up, wait_for, wait_for_ready
from tests.support.timing import within

pytestmark = pytest.mark.exhaustive


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so with an error of its own at every line, also at the one that tells of the orderly end."""
    terminal, ours = pty.openpty()
    output = os.fdopen(ours, "w")
    monkeypatch.setattr(sys, "stdout", output)
    up_module._write("this is read\n")
    os.close(terminal)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(ours, b"x")
    up_module._write("and this is not\n" * 10_000)
    with contextlib.suppress(OSError):  # unread output is still in there
        output.close()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data dir for the tests that start and stop `up` themselves. The first one fills it."""
    return tmp_path_factory.mktemp("data") / "data"


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """A test that failed before it stopped its `up` does not fail the others, which may use the same data dir."""
    before = {child.pid for child in psutil.Process().children()}
    yield
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.pid not in before and "up" in child.cmdline():
                child.terminate()
                child.wait(25)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One for all tests that leave it running, in a data dir with a name that tries the quoting."""
    running = start_up(tmp_path_factory.mktemp("up") / "a data dir with 'odd' #names?")
    yield running
    assert running.stop() == 0, running.output


def everyone(up: Up) -> list[psutil.Process]:
    return [psutil.Process(up.process.pid), *up.children()]


def wait_until_gone(processes: list[psutil.Process], seconds: float = 12.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive, alive


def control(data_dir: Path) -> "psycopg.Connection[tuple[object, ...]]":
    """A connection to the embedded server's control database, as its superuser."""
    return embedded_postgres.connect(Layout(data_dir), "control")


def test_the_first_start_makes_a_demo_whose_facts_are_in_demo_json(up: Up) -> None:
    facts = up.facts
    shown = {"base_url", "admin", "account", "project_id", "environments", "server_key", "app_users"}
    assert set(facts) == shown | {"webhook"}
    assert facts["base_url"] == up.base_url
    assert set(facts["admin"]) == {"email", "password"}
    assert set(facts["account"]) == {"id", "email", "password"}
    assert set(facts["environments"]) == {"production", "development"}
    assert facts["project_id"].startswith("prj_")
    assert facts["server_key"].startswith("sk_")
    assert [set(user) for user in facts["app_users"]] == [{"id", "email", "password"}] * 2
    for name in ("demo.json", "secrets.json"):
        assert stat.S_IMODE((up.data_dir / name).stat().st_mode) == 0o600
    with control(up.data_dir) as connection:
        staff = connection.execute("SELECT is_superuser FROM accounts_user WHERE email = %s", [facts["admin"]["email"]])
        assert staff.fetchall() == [(True,)]
        pools = "SELECT environment_id FROM accounts_user WHERE id = ANY(%s)"
        assert (
            connection.execute(pools, [[user["id"] for user in facts["app_users"]]]).fetchall()
            == [(facts["environments"]["production"],)] * 2
        )


def made_of(data_dir: Path, region: str) -> dict[str, list[object]]:
    """What a region's own tables consist of, as PostgreSQL describes it, and which migrations it believes it had."""
    asked = {
        "columns": "SELECT attrelid::regclass::text, attname, attnum, format_type(atttypid, atttypmod), attnotnull,"
        " pg_get_expr(adbin, adrelid) FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attnum > 0 AND attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'platform'::regnamespace)",
        "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'platform'",
        "constraints": "SELECT conname, conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'platform'::regnamespace",
        "triggers": "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "settings": "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'platform'::regnamespace",
        "migrations": "SELECT app, name FROM platform.django_migrations",
    }
    with embedded_postgres.connect(Layout(data_dir), region_database(region)) as connection:
        connection.execute("SET search_path = platform")
        return {what: sorted(connection.execute(question).fetchall(), key=str) for what, question in asked.items()}


def test_every_region_is_made_alike(up: Up) -> None:
    first, *others = (made_of(up.data_dir, region) for region in REGIONS)
    assert set(first["migrations"]) == set(MigrationLoader(None).disk_migrations)
    assert all(first.values()), "nothing asked in vain"
    for other in others:
        assert other == first


def test_no_process_of_a_function_stays_before_somebody_calls_one(up: Up) -> None:
    """The demo's are tried when they are deployed, in the process that the workers are forked from."""
    wait_for("they have ended", lambda: not up.named("deno", "run"), 10)


def test_it_prints_three_commands_that_work_when_pasted(up: Up) -> None:
    if shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    key, *calls = re.findall(r"^  (KEY=.+|curl .+)$", up.output, re.MULTILINE)
    found = []
    for line in calls:
        pasted = f"{key}\n{line} -sS --fail-with-body"
        done = subprocess.run(["/bin/sh", "-c", pasted], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        found.append(json.loads(done.stdout))
    rows, run = found
    assert rows["data"], "the demo has rows"
    assert run["status"] == "succeeded"
    assert run["output"]


def test_it_prints_the_consoles_url_first_and_short_lines(up: Up) -> None:
    message = up.output[up.output.index("Ready in ") :]
    lines = re.findall(r"^  .+$", message, re.MULTILINE)
    assert lines[0] == f"  Console  {up.base_url}/console/"
    assert lines[2] == f"  Admin    {up.base_url}/admin/"
    for line, who in ((lines[1], "account"), (lines[3], "admin")):
        assert line.split() == [up.facts[who]["email"] + ",", "password", up.facts[who]["password"]]
    message = message.replace(shlex.quote(str(up.data_dir / "demo.json")), ".data/demo.json")
    sample = message.replace(str(up.data_dir), ".data").splitlines()[:14]
    assert max(map(len, sample)) <= 100, "with a path as short as the usual one"
    url = up.base_url
    said = (ROOT / "README.md").read_text().replace("http://127.0.0.1:8000", url)
    said = said[said.index("    Ready in ") :]
    for who in ("account", "admin"):
        said = said.replace("password …", "password " + up.facts[who]["password"], 1)
    shown = [line[4:] for line in said.splitlines()[:14]]
    assert [line for line in shown[1:] if line] == [line for line in sample[1:] if line][
        : len([*filter(None, shown[1:])])
    ]


def test_ready_is_printed_when_readyz_is_200(up: Up) -> None:
    answer = httpx.get(f"{up.base_url}/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] in ("ready", "degraded"), "the worker starts a moment later"
    wait_for("all is ready", lambda: httpx.get(f"{up.base_url}/readyz").json()["status"] == "ready", 30)
    required = f"{up.base_url}/readyz?require=workers"
    wait_for("each web process knows", lambda: httpx.get(required).status_code == 200, 30)


def test_demo_webhook_reports_a_comment_and_console_has_styles(up: Up) -> None:
    key = {"Authorization": f"Bearer {up.facts['server_key']}"}
    task = httpx.get(f"{up.base_url}/v1/rows/tasks", headers=key).json()["data"][0]
    comment = {"task_id": task["id"], "body": "Hello", "owner_id": up.facts["app_users"][0]["id"]}
    made = httpx.post(f"{up.base_url}/v1/rows/comments", headers=key, json=comment)
    assert (made.status_code, made.json()["body"]) == (201, "Hello")
    deliveries = f"{up.base_url}/v1/webhooks/{up.facts['webhook']['id']}/deliveries"

    def is_delivered() -> bool:
        told = httpx.get(deliveries, headers=key).json()["data"]
        return bool(told) and (told[0]["event_type"], told[0]["status"]) == ("comments.insert", "delivered")

    wait_for("the demo's webhook has told of the comment", is_delivered, 30)
    console = httpx.get(f"{up.base_url}/admin/login/")
    assert console.status_code == 200
    for style in re.findall(r'href="(/static/[^"]+\.css[^"]*)"', console.text):
        assert httpx.get(f"{up.base_url}{style}").status_code == 200


def test_a_second_one_on_the_same_data_says_so_and_disturbs_nothing(up: Up) -> None:
    before = up.named(parent=up.process.pid)  # PostgreSQL's own come and go
    second = start_up(up.data_dir, wait=False)
    assert second.process.wait(10) == 1
    wait_for("the sentence", lambda: "already running" in second.output)
    assert second.output == (
        f"`manage.py up` is already running on {up.data_dir} (process {up.process.pid}, port {up.base_url.rpartition(':')[2]}). "
        "Stop it first, or give this one another --data-dir and --port."
    )
    assert up.named(parent=up.process.pid) == before
    assert httpx.get(f"{up.base_url}/healthz").status_code == 200


def test_a_port_in_use_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = start_up(tmp_path / "data", "--port", str(port), wait=False)
        assert refused.process.wait(10) == 1
    wait_for("the sentence", lambda: f"Port {port} on 127.0.0.1 is in use" in refused.output)
    assert not (tmp_path / "data" / "postgres").exists()


@pytest.mark.served
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_with_exit_code_0_leaves_no_process_and_keeps_its_data(data_dir: Path, number: signal.Signals) -> None:
    first = start_up(data_dir)
    processes = everyone(first)
    for part in ("postgres -D", "valkey-server", "platform-web", "platform-worker"):
        assert first.named(part), part
    with control(data_dir) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (at timestamptz)")
        connection.execute("INSERT INTO kept VALUES (now())")
        kept = connection.execute("SELECT count(*) FROM kept").fetchone()
    begun = time.monotonic()
    assert first.stop(number) == 0, first.output
    assert time.monotonic() - begun < within(10)
    wait_until_gone(processes, seconds=1)
    assert "kill" not in first.output
    second = start_up(data_dir)
    try:
        assert {**second.facts, "base_url": ""} == {**first.facts, "base_url": ""}
        assert second.facts["base_url"] == second.base_url
        with control(data_dir) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == kept
    finally:
        assert second.stop() == 0


@pytest.mark.served
def test_ctrl_c_during_the_start_leaves_nothing_behind(tmp_path: Path) -> None:
    early = start_up(tmp_path / "data", wait=False)
    processes = wait_for("PostgreSQL runs", lambda: early.named("postgres", "-D") and everyone(early))
    assert early.stop(signal.SIGINT) == 0, early.output
    wait_until_gone(processes, seconds=2)


@pytest.mark.served
def test_sigkill_leaves_no_processes_and_restart_finds_the_data(data_dir: Path) -> None:
    first = start_up(data_dir)
    processes = everyone(first)
    first.process.kill()
    second = start_up(data_dir, "--port", first.base_url.rpartition(":")[2])  # at once, on the same port
    try:
        wait_until_gone(processes, seconds=3)
        assert second.facts == first.facts
    finally:
        assert second.stop() == 0


@pytest.mark.served
def test_stale_server_lock_with_reused_pid_does_not_block_the_start(data_dir: Path) -> None:
    # As after a container restart: the file names a living process, but not a PostgreSQL.
    (data_dir / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n{data_dir}\n")
    up = start_up(data_dir)
    assert up.stop() == 0


@pytest.mark.served
@pytest.mark.parametrize("part", ["platform-web", "platform-worker", "valkey-server", "postgres -D"])
def test_a_part_that_dies_is_started_again(up: Up, part: str) -> None:
    victim = up.part(part)
    if part == "platform-worker":  # ready only now: it starts after the web
        wait_for("the worker is ready", lambda: "ready." in up.output)
    before = {child.pid for child in up.named(part)}  # some of them are adopted for a moment
    victim.kill()
    name = {"platform-web": "web", "platform-worker": "worker", "valkey-server": "valkey", "postgres -D": "postgres"}[
        part
    ]
    told = f"{name} ended (signal SIGKILL); starting it again in 0.1 s"
    wait_for("it says so", lambda: told in up.output)

    def healed() -> bool:
        fresh = [child for child in up.named(part, parent=up.process.pid) if child.pid not in before]
        try:
            return bool(fresh) and httpx.get(f"{up.base_url}/readyz?require=all", timeout=5).status_code == 200
        except httpx.TransportError:
            return False  # the one who was asked is the one who died

    wait_for(f"{part} runs again", healed, seconds=30, every=0.1)


@pytest.mark.served
@pytest.mark.parametrize(
    ("environment", "sentences"),
    [
        ({"WEB_THREADS": "many"}, ["WEB_THREADS must be a number, not 'many'"]),
        ({"DATABASE_URL": "postgresql://a@127.0.0.1:1/b"}, ["web ended (exit code 1). Its last lines:", "refused"]),
    ],
    ids=["a setting", "a database"],
)
def test_a_part_that_cannot_run_ends_it_all_with_its_last_words(
    tmp_path: Path, environment: dict[str, str], sentences: list[str]
) -> None:
    broken = start_up(tmp_path / "data", wait=False, environment=environment)
    processes = everyone(broken)
    assert broken.process.wait(60) == 1
    for sentence in sentences:
        wait_for("its last words", lambda: sentence in broken.output)  # noqa: B023
    wait_until_gone(processes, seconds=1)


@pytest.fixture
def other_servers() -> Iterator[dict[str, str]]:
    """URLs of four empty databases and a Valkey of the test run: external servers."""
    layout = Layout(Path(os.environ["DATA_DIR"]))
    variables = {"DATABASE_URL": "other_control"} | {
        region_variable(region): f"other_{region.replace('-', '_')}" for region in REGIONS
    }
    with embedded_postgres.connect(layout) as connection:
        for database in variables.values():
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER platform").format(sql.Identifier(database)))
    yield {name: layout.postgres_url(database) for name, database in variables.items()} | {
        "REDIS_URL": layout.redis_url()
    }
    with embedded_postgres.connect(layout) as connection:
        for database in variables.values():
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))


@pytest.mark.served
def test_url_variables_replace_what_is_embedded(tmp_path: Path, other_servers: dict[str, str]) -> None:
    up = start_up(tmp_path / "data", environment=other_servers)
    try:
        assert not up.named("postgres", "-D")
        assert not up.named("valkey-server")
        assert not (tmp_path / "data" / "postgres").exists()
        with psycopg.connect(other_servers["DATABASE_URL"]) as connection:
            assert connection.execute("SELECT id FROM projects_project").fetchall() == [(up.facts["project_id"],)]
        with psycopg.connect(other_servers["REGION_US_EAST_1_URL"]) as connection:
            schema = up.facts["environments"]["production"]
            assert connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", [schema]).fetchone() == (True,)
    finally:
        assert up.stop() == 0


@pytest.mark.served
def test_a_very_long_path_moves_the_sockets_and_nothing_else(tmp_path: Path) -> None:
    data_dir = tmp_path / ("long" * 30) / "data"
    layout = Layout(data_dir)
    assert layout.sockets.parent == Path(tempfile.gettempdir())
    up = start_up(data_dir, "--no-demo", "--workers", "1")
    try:
        assert stat.S_IMODE(layout.sockets.stat().st_mode) == 0o700
        assert (layout.sockets / ".s.PGSQL.5432").exists()
        assert embedded_valkey.answers(layout)
        assert not (data_dir / "demo.json").exists()
        with control(data_dir) as connection:
            assert connection.execute("SELECT count(*) FROM accounts_user").fetchone() == (0,)
        [command] = re.findall(
            r"^  Account  (DATA_DIR=\S+ \S+ \S*manage.py create_account .*)$", up.output, re.MULTILINE
        )
        subprocess.run(f"{command} --password a-long-passphrase", shell=True, check=True, cwd=ROOT)  # noqa: S602
        with control(data_dir) as connection:
            assert connection.execute("SELECT is_superuser FROM accounts_user").fetchone() == (True,)
    finally:
        assert up.stop() == 0
        shutil.rmtree(layout.sockets)


def test_sockets_of_other_users_in_the_temporary_directory_are_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of another user")
    layout = Layout(tmp_path / ("long" * 30) / "data")
    layout.sockets.mkdir()
    os.chown(layout.sockets, 12345, 12345)
    try:
        with pytest.raises(PermissionError, match="belongs to another user"):
            layout.make_sockets(pwd.getpwnam("nobody").pw_uid)
    finally:
        layout.sockets.rmdir()


def test_an_ordinary_user_can_run_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("every other test here runs as an ordinary user already")
    nobody = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="bp-nobody-"))
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        try:
            subprocess.run(
                [sys.executable, str(ROOT / "manage.py"), "help"], cwd="/", capture_output=True, check=True, **who
            )
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip("this clone or its Python is not readable by other users")
        begun = time.monotonic()
        up = start_up(home / "data", "--workers", "1", wait=False, environment={"HOME": str(home)}, **who)
        try:
            wait_for_ready(up, begun)
            assert {child.username() for child in up.children()} == {"nobody"}
        finally:
            assert up.stop() == 0, up.output
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.served
def test_orphans_are_adopted_and_buried(up: Up) -> None:
    if sys.platform != "linux":
        pytest.skip("orphans go to the system's first process here")
    wait_for("the worker is ready", lambda: "ready." in up.output)
    main = up.part("platform-web")
    workers = main.children()
    main.kill()
    wait_for("its workers have ended, and are no zombies", lambda: not any(psutil.pid_exists(w.pid) for w in workers))
    wait_for(
        "no other process is one",
        lambda: not [child for child in up.children() if child.is_running() and child.status() == psutil.STATUS_ZOMBIE],
    )
