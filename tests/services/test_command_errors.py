"""`manage.py` where a command meets no database: a sentence that says what to do, and no trace of our code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class
from django.db import DatabaseError, connections
from psycopg.errors import DeadlockDetected, DiskFull, QueryCanceled, UndefinedTable, UniqueViolation

from platform_site.cli import errors as command_errors
from tests.support.databases import database_variables
from tests.support.service import ROOT, wait_for

pytestmark = pytest.mark.exhaustive


def run(data_dir: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    names = ("DATABASE_URL", "REGION_US_EAST_1_URL", "REGION_EU_WEST_1_URL", "REGION_AP_SOUTHEAST_1_URL", "REDIS_URL")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=inherited | {"DATA_DIR": str(data_dir), "PYTHONWARNINGS": "ignore"} | environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("environment", [{}, {"DATABASE_URL": "postgresql://a:very-secret@127.0.0.1:1/control"}])
def test_without_a_database_a_sentence_says_what_to_start(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run(tmp_path, "list_projects", **environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"Is `manage.py up` running on {tmp_path}?" in done.stderr
    assert "very-secret" not in done.stderr


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path / "file", "check", PROMETHEUS_MULTIPROC_DIR="")
    assert done.returncode == 1
    assert done.stderr == f"DATA_DIR cannot be used: {tmp_path}/file/metrics: Not a directory\n"


def test_in_production_the_variables_are_named(tmp_path: Path) -> None:
    url = "postgresql://a:very-secret@127.0.0.1:1/control"
    secrets = {"PLATFORM_MODE": "production", "SECRET_KEY": "s" * 64, "ENCRYPTION_KEYS": "11" * 32}
    done = run(tmp_path, "list_projects", DATABASE_URL=url, **secrets)
    assert done.returncode == 1
    assert "Check DATABASE_URL" in done.stderr
    assert "manage.py up" not in done.stderr


def test_a_database_that_was_not_migrated_is_told_from_other_mistakes() -> None:
    for cause, says in (
        (UndefinedTable(), "manage.py migrate"),
        (UniqueViolation(), None),
        (QueryCanceled(), "took too long"),
        (DeadlockDetected(), "run the command again"),
        (DiskFull(), "refused a statement (DiskFull)"),
    ):
        error = DatabaseError("nothing was said")
        error.__cause__ = cause
        told = command_errors.error_text(error)
        assert told is None if says is None else says in str(told)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_what_others_hold_for_too_long_is_told_in_a_sentence() -> None:
    url = settings.LAYOUT.postgres_url(str(connections["default"].settings_dict["NAME"]))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE projects_project IN ACCESS EXCLUSIVE MODE")
        done = run(settings.DATA_DIR, "list_projects", **database_variables())
    assert done.returncode == 1
    assert done.stderr == (
        "Another session holds a lock that this command needs (see pg_stat_activity). "
        "The current step was undone: run the command again.\n"
    )


def test_an_invalid_setting_is_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "work", LOG_FORMAT="loud")
    assert (done.returncode, done.stderr) == (1, "LOG_FORMAT must be one of json, text, not 'loud'\n")
    assert "Traceback" in run(tmp_path, "work", "--traceback", LOG_FORMAT="loud").stderr


def test_the_trace_is_there_for_who_asks(tmp_path: Path) -> None:
    assert "Traceback" in run(tmp_path, "list_projects", "--traceback").stderr


def is_idle(pid: int) -> bool:
    """Whether it computes nothing for a second. While it imports, Python makes other errors of some interrupts."""
    before = psutil.Process(pid).cpu_times()
    time.sleep(1)
    return psutil.Process(pid).cpu_times() == before


def test_who_stops_reading_or_presses_ctrl_c_sees_no_trace_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "manage.py")]
    environment = os.environ | {"DATA_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*command, "help"], env=environment, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
    asking = [*command, "create_account", "a@example.com", "--password-stdin"]
    with subprocess.Popen(asking, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as waits:
        wait_for("it waits for its password", lambda: is_idle(waits.pid), every=0)
        waits.send_signal(signal.SIGINT)
        assert waits.wait(60) == 130
        assert waits.stderr is not None
        assert b"Traceback" not in waits.stderr.read()


def test_who_ends_the_input_where_a_password_is_asked_for_is_told_so(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    asking = [sys.executable, str(ROOT / "manage.py"), "create_account", "a@example.com"]
    environment = os.environ | {"DATA_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    try:
        with subprocess.Popen(
            asking, env=environment, stdin=theirs, stderr=subprocess.PIPE, start_new_session=True
        ) as waits:
            assert waits.stderr is not None
            asked = b""
            while not asked.endswith(b"Password: ") and (byte := waits.stderr.read(1)):
                asked += byte
            os.write(ours, b"\x04")  # Ctrl-D
            said = waits.stderr.read()
            assert waits.wait(60) == 1
            assert said.strip() == b"The input ended before the answer."
    finally:
        os.close(ours)
        os.close(theirs)


def test_an_argument_in_another_encoding_is_named() -> None:
    told = None
    try:
        "\udcff@example.com".encode()
    except UnicodeEncodeError as error:
        told = command_errors.error_text(error)
    assert told == "An argument is not UTF-8."


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_port_that_is_none_is_refused_in_words(command: str, tmp_path: Path) -> None:
    for port in ("99999", "-1", "http"):
        refused = run(tmp_path, command, f"--port={port}")
        assert refused.returncode == 2, port
        assert "argument --port: must be a number from 0 to 65535" in refused.stderr
        assert "Traceback" not in refused.stderr


OPTIONS = [
    ("up", "--workers", ["0", "-1", "1001", "two", "²"], "a number from 1 to 1000"),
    ("serve", "--workers", ["0"], "a number from 1 to 1000"),
    ("work", "--concurrency", ["0", "-1", "many"], "a number from 1 to 1000"),
    ("work", "--queues", ["zzz", "", "webhooks,", "webhooks,zzz"], "one or more of webhooks,functions,default"),
    ("list_projects", "--limit", ["0"], "a number from 1 to 9999999"),
    ("schema history env_x", "--limit", ["0", "-5"], "a number from 1 to 9999999"),
    ("import_rows env_x tasks file.csv", "--show", ["-1"], "a number from 0 to 1000"),
]


@pytest.mark.parametrize(("command", "option", "values", "says"), OPTIONS, ids=[f"{c} {o}" for c, o, *_ in OPTIONS])
def test_what_an_option_cannot_be_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], command: str, option: str, values: list[str], says: str
) -> None:
    name, *further = command.split()
    found = load_command_class(str(get_commands()[name]), name)
    found._called_from_command_line = True
    parser = found.create_parser("manage.py", name)
    for value in values:
        with pytest.raises(SystemExit) as refused:
            parser.parse_args([*further, f"{option}={value}"])
        assert refused.value.code == 2
        assert f"argument {option}: must be {says}" in capsys.readouterr().err, value
