"""Code that handles any error of the database catches `django.db.Error`: a connection that broke may be an InterfaceError,
which is no DatabaseError. DatabaseError alone is for those who look at what it was, and go on with the rest."""

import ast
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, ProgrammingError

from accounts.console.base import _explanation
from platform_site.embedded import postgres as embedded_postgres
from platform_site.observability.traffic import Reporter
from platform_site.postgres import sqlstates
from projects.provisioning import deletion as project_deletion
from projects.provisioning import schemas
from tests.support.service import wait_for

ROOT = Path(__file__).resolve().parents[1]
APPS = ("accounts", "functions", "platform_site", "projects", "rows", "webhooks")


def _handlers() -> Iterator[tuple[str, str, str]]:
    """Where something is caught, what, and what is done about it."""
    for path in (path for app in APPS for path in sorted((ROOT / app).rglob("*.py"))):
        source = path.read_text()
        if "DatabaseError" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                done = "\n".join(map(ast.unparse, node.body))
                yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.type), done
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node), ""


def test_nobody_takes_database_error_for_all_that_a_database_may_say() -> None:
    looked_at = ("sqlstate", "raise")
    kept = {
        "platform_site/postgres/prepared.py": "one statement's outcome among many; a lost connection is met before",
        "webhooks/delivery/dispatcher.py": "behind OperationalError and InterfaceError",
        "rows/migrate/concurrent_unique_indexes.py": "suppressed on the way out of an error",
    }
    wrong = [
        where
        for where, caught, done in _handlers()
        if "DatabaseError" in caught and "InterfaceError" not in caught
        if not any(word in done for word in looked_at) and where.partition(":")[0] not in kept
    ]
    assert wrong == []


def test_a_deletion_stands_whatever_becomes_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_tables(*_: object) -> int:
        raise InterfaceError("the connection is closed")

    monkeypatch.setattr(schemas, "count_tables", count_tables)
    project_deletion.finish_environment_soon("env_x", "us-east-1")


@pytest.mark.parametrize("error", [InterfaceError, KeyError])
def test_figures_are_handed_in_again_whatever_went_wrong(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    tries: list[None] = []

    def write(_: Reporter) -> int:
        tries.append(None)
        raise error("this time")

    monkeypatch.setattr(Reporter, "write", write)
    monkeypatch.setattr("platform_site.observability.traffic.EVERY_SECONDS", 0.01)
    reporter = Reporter()
    reporter.start()
    wait_for("it goes on", lambda: len(tries) >= 3)
    reporter.stop()
    reporter.join(10)


def test_the_console_says_that_a_database_is_away_of_nothing_else() -> None:
    import psycopg

    def wrapped(error: Exception, cause: Exception) -> Exception:
        error.__cause__ = cause
        return error

    away = wrapped(OperationalError(), psycopg.OperationalError("refused"))
    closed = wrapped(InterfaceError(), psycopg.InterfaceError("closed"))
    taken = wrapped(IntegrityError("secret"), psycopg.errors.UniqueViolation("secret"))
    wrong = wrapped(ProgrammingError(), psycopg.errors.UndefinedColumn())
    assert [sqlstates.is_unavailable(error) for error in (away, closed, taken, wrong, KeyError())] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert "unavailable" in _explanation(away)
    assert "taken" in _explanation(taken)
    with pytest.raises(ProgrammingError):
        _explanation(wrong)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("setting", "statement", "state"),
    [
        (
            "SET LOCAL temp_file_limit = '64kB'",
            "SELECT * FROM generate_series(1, 2000000) n ORDER BY random()",
            "53400",
        ),
        ("SET TRANSACTION READ ONLY", "CREATE TABLE refused (n int)", "25006"),
    ],
)
def test_what_a_server_cannot_do_now_is_503(setting: str, statement: str, state: str) -> None:
    """Its bound on temporary files is reached; or it is a standby that was not promoted yet."""
    with embedded_postgres.connect(settings.LAYOUT, "postgres") as connection:  # such bounds are for superusers to set
        connection.execute("BEGIN")
        connection.execute(setting)
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(statement)
        connection.execute("ROLLBACK")
    assert sqlstates.sqlstate(raised.value) == state
    answer = sqlstates.error_for(raised.value)
    assert (answer.status, answer.code) == (503, "unavailable")
