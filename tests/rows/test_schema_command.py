"""`manage.py schema` as an operator or a deployment uses it."""

import io
import json
import os
import pty
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections

from platform_site.identity.callers import EnvironmentRef
from projects.directory.environments import environment_ref
from projects.provisioning import schemas as provisioning_schemas
from rows.migrate import versions as schema_versions
from tests.projects.conftest import environment_of, make_project, schemas_in
from tests.projects.conftest import make_account as make_account
from tests.support import catalog
from tests.support.concurrency import wait_until
from tests.support.databases import database_variables
from tests.support.schema_documents import TRACKER

pytestmark = pytest.mark.exhaustive

NARROW = {"tables": {"lists": TRACKER["tables"]["lists"]}}


@pytest.fixture
def environment(make_account: Any) -> Iterator[EnvironmentRef]:
    found = environment_ref(environment_of(make_project(make_account("alice"))).pk)
    assert found is not None
    yield found
    for environment_id in schemas_in(catalog.REGION):
        provisioning_schemas.drop_schema(environment_id, catalog.REGION)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(document: Any) -> str:
        path = tmp_path / "schema.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return to_file


def schema(*arguments: str) -> tuple[str, str]:
    """What the command prints to standard output and to standard error."""
    out, err = io.StringIO(), io.StringIO()
    call_command("schema", *arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


@pytest.mark.django_db(databases="__all__")
class TestInThisProcess:
    def test_a_document_is_planned_applied_and_shown_again(self, environment: EnvironmentRef, write: Any) -> None:
        file = write(TRACKER)
        out, err = schema("plan", environment.environment_id, file)
        assert out == ""
        assert "+ create table tasks\n      CREATE TABLE" in err
        assert "2 operations." in err
        assert schema_versions.current(environment).version == 0
        out, err = schema("apply", environment.environment_id, file)
        assert (out, err.startswith("Version 1 is applied")) == ("", True)
        out, err = schema("show", environment.environment_id)
        assert json.loads(out) == TRACKER
        assert err.startswith(f"production ({environment.environment_id}): version 1, ")
        assert schema("plan", environment.environment_id, file)[1] == "Nothing would change.\n"
        assert "version 1 is this document" in schema("apply", environment.environment_id, file)[1]

    def test_an_environment_can_be_named_by_its_project(self, environment: EnvironmentRef) -> None:
        assert json.loads(schema("show", f"{environment.project_id}/production")[0]) == {"tables": {}}
        for unknown in ("env_nothing", f"{environment.project_id}/staging", "prj_x/production", "x" * 500):
            with pytest.raises(CommandError, match="There is no environment"):
                schema("show", unknown)

    def test_check_answers_by_its_exit_code(self, environment: EnvironmentRef, write: Any) -> None:
        file = write(TRACKER)
        with pytest.raises(SystemExit) as caught:
            schema("plan", environment.environment_id, file, "--check")
        assert caught.value.code == 3
        schema("apply", environment.environment_id, file)
        schema("plan", environment.environment_id, file, "--check")

    def test_what_loses_data_is_refused_until_it_is_named(self, environment: EnvironmentRef, write: Any) -> None:
        schema("apply", environment.environment_id, write(TRACKER))
        file = write(NARROW)
        _, err = schema("plan", environment.environment_id, file)
        assert "- drop table tasks    (loses data)" in err
        assert "1 operation, 1 with loss of data." in err
        with pytest.raises(CommandError, match='--confirm "drop table tasks"'):
            schema("apply", environment.environment_id, file)
        assert schema_versions.current(environment).version == 1
        schema("apply", environment.environment_id, file, "--confirm", "drop table tasks")
        assert schema_versions.current(environment).version == 2

    def test_errors_are_listed_with_their_paths(self, environment: EnvironmentRef, write: Any) -> None:
        wrong = {"tables": {"a": {"columns": {"x": {"type": "txt"}, "y": {"type": "reference", "to": "b"}}}}}
        with pytest.raises(CommandError) as caught:
            schema("apply", environment.environment_id, write(wrong))
        assert "\n  tables.a.columns.x.type: " in str(caught.value)
        assert "\n  tables.a.columns.y.to: no table" in str(caught.value)

    def test_files_that_hold_no_document_are_refused(self, environment: EnvironmentRef, write: Any) -> None:
        for text in ("", "{", "[]", "nonsense", '{"tables": {}, "tables": {}}'):
            with pytest.raises(CommandError):
                schema("apply", environment.environment_id, write(text))
        with pytest.raises(CommandError, match="cannot be read"):
            schema("apply", environment.environment_id, "/nowhere/schema.json")
        long = {"tables": {"a": {"columns": {"x": {"type": "json", "default": 10**24}}}}}
        with pytest.raises(CommandError, match="more than 64 bits"):
            schema("apply", environment.environment_id, write(long))

    def test_history_and_the_way_back(self, environment: EnvironmentRef, write: Any) -> None:
        assert schema("history", environment.environment_id)[1] == "No schema was applied yet.\n"
        schema("apply", environment.environment_id, write(TRACKER))
        schema("apply", environment.environment_id, write(NARROW), "--confirm", "drop table tasks", "--if-version", "1")
        schema("revert", environment.environment_id, "1")
        out, _ = schema("history", environment.environment_id)
        assert [line.split("  ")[0] for line in out.splitlines() if line.startswith("version")] == [
            "version 3", "version 2", "version 1"
        ]  # fmt: skip
        assert ", back to 1\n    create table tasks\n" in out
        lines = schema("history", environment.environment_id, "--json", "--limit", "2")[0].splitlines()
        assert [json.loads(line)["version"] for line in lines] == [3, 2]
        assert json.loads(schema("show", environment.environment_id, "--version", "2")[0]) == NARROW
        for refused in (
            ["revert", environment.environment_id, "9"],
            ["show", environment.environment_id, "--version", "9"],
        ):
            with pytest.raises(CommandError, match="There is no version 9"):
                schema(*refused)
        with pytest.raises(CommandError, match="is at version 3 now"):
            schema("apply", environment.environment_id, write(NARROW), "--if-version", "1")
        none = ("--backfill", "tasks.none=1")
        with pytest.raises(CommandError, match="backfill.tasks.none: The version has no such column"):
            schema("revert", environment.environment_id, "2", *none)
        with pytest.raises(CommandError, match="write it as TABLE.COLUMN=JSON"):
            schema("revert", environment.environment_id, "2", "--backfill", "tasks.title")

    def test_a_default_cannot_drive_the_operators_terminal(self, environment: EnvironmentRef, write: Any) -> None:
        nasty = {"tables": {"a": {"columns": {"x": {"type": "text", "default": "\x1b[2J\x07"}}}}}
        _, err = schema("plan", environment.environment_id, write(nasty))
        assert "\x1b" not in err
        assert "\x07" not in err

    def test_what_is_seldom_meant_is_said_and_changes_no_exit_code(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        unseen = json.loads(json.dumps(NARROW))
        unseen["tables"]["lists"]["rules"] = {"editor": {"read": {"columns": ["id"]}, "update": {"columns": ["name"]}}}
        file = write(unseen)
        said = "! tables.lists.rules.editor.update: editor may overwrite name without reading the values."
        for verb in ("plan", "apply", "plan"):
            assert said in schema(verb, environment.environment_id, file)[1]
        assert schema("plan", environment.environment_id, file, "--check")[1].startswith("Nothing would change.\n! ")
        [found] = json.loads(schema("plan", environment.environment_id, file, "--json")[0])["warnings"]
        assert (found["field"], found["code"]) == ("tables.lists.rules.editor.update", "hidden")
        assert "! " not in schema("plan", environment.environment_id, write(NARROW))[1]

    def test_json_is_for_programs(self, environment: EnvironmentRef, write: Any) -> None:
        planned = json.loads(schema("plan", environment.environment_id, write(TRACKER), "--json")[0])
        applied = json.loads(schema("apply", environment.environment_id, write(TRACKER), "--json")[0])
        assert planned == applied | {"version": 0}
        assert applied["changed"] is True
        assert json.loads(schema("show", environment.environment_id, "--json")[0])["version"] == 1


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_at_a_terminal_it_asks_for_the_name_of_what_is_lost(environment: EnvironmentRef, write: Any) -> None:
    schema("apply", environment.environment_id, write(TRACKER))
    file = write(NARROW)
    for typed, version in (("yes", 1), ("drop table tasks", 2)):
        ours, theirs = pty.openpty()
        os.write(ours, f"{typed}\n".encode())
        done = subprocess.run(
            [sys.executable, "manage.py", "schema", "apply", environment.environment_id, file],
            stdin=theirs,
            capture_output=True,
            text=True,
            env=os.environ | database_variables(),
            cwd=django_settings.BASE_DIR,
        )
        os.close(ours)
        os.close(theirs)
        assert done.returncode == (0 if version == 2 else 1), done.stderr
        assert '"drop table tasks" loses data for good. Type it to continue:' in done.stderr
        assert schema_versions.current(environment).version == version
    assert "Version 2 is applied" in done.stderr


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_input_that_ends_or_is_closed_before_the_name_changes_nothing(environment: EnvironmentRef, write: Any) -> None:
    schema("apply", environment.environment_id, write(TRACKER))
    command = [sys.executable, "manage.py", "schema", "apply", environment.environment_id, write(NARROW)]
    variables = os.environ | database_variables()
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"\x04")  # Ctrl-D
        ended = subprocess.run(
            command, stdin=theirs, capture_output=True, text=True, env=variables, cwd=django_settings.BASE_DIR
        )
    finally:
        os.close(ours)
        os.close(theirs)
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True, text=True, env=variables, cwd=django_settings.BASE_DIR,
    )  # fmt: skip
    assert (ended.returncode, closed.returncode) == (1, 1)
    assert "Standard input ended before drop table tasks was typed. Nothing was changed." in ended.stderr
    assert '--confirm "drop table tasks"' in ended.stderr
    assert '--confirm "drop table tasks"' in closed.stderr
    assert "Traceback" not in ended.stderr + closed.stderr
    assert schema_versions.current(environment).version == 1


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_index_over_too_long_rows_is_reported_and_version_is_unchanged(
    environment: EnvironmentRef, write: Any, settings: Any
) -> None:
    columns = {name: {"type": "text"} for name in "ab"}
    schema("apply", environment.environment_id, write({"tables": {"pairs": {"columns": columns}}}))
    chance = random.Random(4)
    a, b = ("".join(chance.choices("0123456789abcdef", k=2000)) for _ in "ab")
    catalog.run(environment.environment_id, f"INSERT INTO pairs (id, a, b) VALUES ('p', '{a}', '{b}')")
    catalog.run(environment.environment_id, "ANALYZE pairs")
    settings.SCHEMA_LARGE_TABLE_ROWS = 0
    wanted = write({"tables": {"pairs": {"columns": columns, "indexes": [["a", "b"]]}}})
    with pytest.raises(CommandError, match=r"Version 2 is applied, but .* the index pairs \(a, b, id\)"):
        schema("apply", environment.environment_id, wanted)
    assert schema_versions.current(environment).version == 2


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_canceled_index_is_named_and_the_version_stays(environment: EnvironmentRef, write: Any, settings: Any) -> None:
    columns = {"a": {"type": "text"}}
    schema("apply", environment.environment_id, write({"tables": {"pairs": {"columns": columns}}}))
    catalog.run(environment.environment_id, "ANALYZE pairs")
    settings.SCHEMA_LARGE_TABLE_ROWS = 0
    wanted = write({"tables": {"pairs": {"columns": columns, "indexes": [["a"]]}}})
    url = django_settings.LAYOUT.postgres_url(str(connections[catalog.REGION].settings_dict["NAME"]))
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'"
    reader = psycopg.connect(url)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with reader, psycopg.connect(url, autocommit=True) as operator, ThreadPoolExecutor(1) as beside:
        reader.execute("SELECT")  # for which the index waits, since it may yet look into the table
        cancelled = beside.submit(wait_until, lambda: any(done for (done,) in operator.execute(cancel)))
        with pytest.raises(CommandError, match=r"Version 2 is applied, but .* index pairs \(a, id\) .*QueryCanceled"):
            schema("apply", environment.environment_id, wanted)
        cancelled.result()
    assert schema_versions.current(environment).version == 2
    assert schema_versions.current(environment).indexes_due
