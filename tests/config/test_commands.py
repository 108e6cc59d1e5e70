"""`manage.py config` and `manage.py branch`."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError

from accounts.models import AuditEntry, ServerKey, User
from projects.models import Environment, Member, Project
from tests.config.conftest import READ, SCHEMA, SECRETS, Configured
from tests.projects.conftest import key_for
from tests.support.databases import database_variables

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def run(*arguments: str) -> tuple[str, str]:
    output, errors = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=output, stderr=errors, no_color=True)
    return output.getvalue(), errors.getvalue()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], str]:
    def to_file(document: Any) -> str:
        path = tmp_path / "config.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return to_file


def wider() -> dict[str, Any]:
    schema = json.loads(json.dumps(SCHEMA))
    schema["tables"]["extra"] = {"columns": {"name": {"type": "text"}}}
    return {"schema": schema}


def test_show_prints_what_the_api_returns_without_secrets(configured: Configured) -> None:
    output, errors = run("config", "show", configured.id)
    found = configured.config()
    assert json.loads(output) == found["config"]
    assert found["version"] in errors
    assert not any(secret in output + errors for secret in SECRETS)
    output, _ = run("config", "show", configured.id, "--parts", "origins")
    assert json.loads(output) == {"origins": ["https://a.example"]}
    with pytest.raises(CommandError, match="no part rows"):
        run("config", "show", configured.id, "--parts", "rows")


@pytest.mark.exhaustive
def test_a_plan_is_applied_and_taken_back(configured: Configured, alice: User, write: Any) -> None:
    file = write(wider())
    output, errors = run("config", "plan", configured.id, file, "--as", alice.pk)
    plan = output.strip()
    assert "+ create table extra" in errors
    assert "CREATE TABLE" in errors
    _, errors = run("config", "apply", configured.id, plan, "--as", alice.pk)
    assert f"{plan} is applied" in errors
    assert AuditEntry.objects.filter(action="config.applied", actor_id=alice.pk).count() == 1
    output, _ = run("config", "plan", configured.id, write({"schema": SCHEMA}), "--as", alice.pk, "--json")
    narrower = json.loads(output)
    with pytest.raises(CommandError, match="drop table extra"):
        run("config", "apply", configured.id, narrower["plan"], "--as", alice.pk)
    output, _ = run(
        "config", "apply", configured.id, narrower["plan"], "--as", alice.pk, "--confirm", "drop table extra", "--json"
    )
    assert json.loads(output)["status"] == "applied"
    output, _ = run("config", "plan", configured.id, "--version", narrower["version"], "--as", alice.pk)
    run("config", "apply", configured.id, output.strip(), "--as", alice.pk)
    assert "extra" in configured.config("?parts=schema")["config"]["schema"]["tables"]


def test_check_exits_with_3_if_anything_would_change(configured: Configured, alice: User, write: Any) -> None:
    with pytest.raises(SystemExit, match="3"):
        run("config", "plan", configured.id, write(wider()), "--as", alice.pk, "--check")
    _, errors = run("config", "plan", configured.id, write({"schema": SCHEMA}), "--as", alice.pk, "--check")
    assert "Nothing would change." in errors


def test_the_file_may_follow_options_and_common_options_the_verb(
    configured: Configured, alice: User, write: Any
) -> None:
    file = write({"schema": SCHEMA})
    for arguments in (("--as", alice.pk, configured.id, file), (configured.id, "--as", alice.pk, file, "--no-color")):
        assert "Nothing would change." in run("config", "plan", *arguments)[1]


@pytest.mark.exhaustive
def test_a_branch_is_merged_and_a_conflict_resolved(configured: Configured, alice: User, project: Project) -> None:
    body = {"name": "blue", "from": "production"}
    blue = configured.call("POST", f"/v1/projects/{project.pk}/environments", body)["id"]
    for environment, value in ((blue, 2), (configured.id, 3)):
        answer = configured.api.put(
            "/v1/functions/digest",
            token=configured.token,
            environment=environment,
            json={"source": f"export default () => {value};\n"},
        )
        assert answer.status == 200, answer.json
    output, errors = run("config", "plan", configured.id, "--from", blue, "--as", alice.pk)
    plan = output.strip()
    assert "? functions.digest.source" in errors
    with pytest.raises(CommandError, match=r"functions\.digest\.source"):
        run("config", "apply", configured.id, plan, "--as", alice.pk)
    both = ("--ours", "functions.digest.source", "--theirs", "functions.digest.source")
    with pytest.raises(CommandError, match="Both --ours and --theirs name functions.digest.source"):
        run("config", "apply", configured.id, plan, "--as", alice.pk, *both)
    run("config", "apply", configured.id, plan, "--as", alice.pk, "--theirs", "functions.digest.source")
    assert "=> 2" in configured.config("?parts=functions")["config"]["functions"]["digest"]["source"]


def test_permissions_are_those_of_the_caller(configured: Configured, bob: User, project: Project, write: Any) -> None:
    file = write(wider())
    with pytest.raises(CommandError, match="neither a member"):
        run("config", "plan", configured.id, file, "--as", bob.pk)
    Member.objects.create(project=project, user=bob, role="viewer")
    with pytest.raises(CommandError, match="schema:write"):
        run("config", "plan", configured.id, file, "--as", bob.pk)
    key_for(configured.id, *READ)
    key = ServerKey.objects.get(environment_id=configured.id)
    with pytest.raises(CommandError, match="schema:write"):
        run("config", "plan", configured.id, file, "--as", key.pk)
    Member.objects.filter(user=bob).update(role="developer")
    plan = run("config", "plan", configured.id, file, "--as", bob.pk)[0].strip()
    Member.objects.filter(user=bob).delete()
    with pytest.raises(CommandError, match="neither a member"):
        run("config", "apply", configured.id, plan, "--as", bob.pk)


def test_only_the_author_applies(configured: Configured, alice: User, bob: User, project: Project, write: Any) -> None:
    Member.objects.create(project=project, user=bob, role="owner")
    plan = run("config", "plan", configured.id, write(wider()), "--as", alice.pk)[0].strip()
    with pytest.raises(CommandError, match="Only the author"):
        run("config", "apply", configured.id, plan, "--as", bob.pk)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name one of FILE"),
        (("/nowhere.json",), "cannot be read"),
        (("--version", "cfg_none"), "no stored configuration"),
        (("--version", "cfg_none", "--include", "auth"), "belong to a merge"),
        (("--from", "env_none"), "There is no environment"),
    ],
)
def test_bad_arguments(configured: Configured, alice: User, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("config", "plan", configured.id, *arguments, "--as", alice.pk)


@pytest.mark.parametrize("document", ["[]", "{", '{"tables": {}}', '{"functions": {"f": {"secrets": {"A": "B"}}}}'])
def test_bad_documents(configured: Configured, alice: User, write: Any, document: str) -> None:
    with pytest.raises(CommandError):
        run("config", "plan", configured.id, write(document), "--as", alice.pk)


# ── manage.py branch ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def blue(configured: Configured, project: Project) -> str:
    body = {"name": "blue", "from": "production"}
    return str(configured.call("POST", f"/v1/projects/{project.pk}/environments", body)["id"])


def test_no_branches_are_said_to_be_none(project: Project) -> None:
    assert run("branch", "list", project.pk)[0] == "There are no preview branches.\n"
    assert run("branch", "list", project.pk, "--json")[0] == ""


def test_a_branch_is_listed_reset_and_expires(configured: Configured, blue: str, project: Project) -> None:
    assert "blue  of production, ready" in run("branch", "list", project.pk)[0]
    _, errors = run("branch", "reset", f"{project.pk}/blue", "--data", "--no-input")
    assert "blue is reset." in errors
    assert AuditEntry.objects.get(action="environment.reset").actor_kind == "system"
    run("branch", "expire", blue, "--in-days", "7")
    assert json.loads(run("branch", "list", project.pk, "--json")[0])["expires_at"] is not None
    run("branch", "expire", blue, "--never")
    assert Environment.objects.get(pk=blue).expires_at is None


def test_a_reset_asks_for_the_name(blue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "production")
    with pytest.raises(CommandError, match="Not confirmed"):
        run("branch", "reset", blue)
    assert not AuditEntry.objects.filter(action="environment.reset").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("closed", ["<&-", "</dev/null"])
def test_a_reset_without_standard_input_is_refused(blue: str, closed: str) -> None:
    command = [sys.executable, "manage.py", "branch", "reset", blue]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        capture_output=True, text=True, env=os.environ | database_variables(), cwd=settings.BASE_DIR,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Standard input ended before blue was typed. Nothing was changed. Pass --no-input." in done.stderr
    assert "Traceback" not in done.stderr
    assert not AuditEntry.objects.filter(action="environment.reset").exists()


@pytest.mark.parametrize(
    "arguments",
    [("reset", "--no-input"), ("expire", "--never"), ("expire", "--in-days", "1")],
)
def test_production_is_no_branch(configured: Configured, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="Only preview branches"):
        run("branch", arguments[0], configured.id, *arguments[1:])


@pytest.mark.parametrize("days", ["0", "366", "x", "-1", "1.5"])
def test_bad_days(configured: Configured, blue: str, days: str) -> None:
    with pytest.raises(CommandError, match="a number from 1 to|expected one argument"):
        run("branch", "expire", blue, "--in-days", days)


def test_unknown_names(configured: Configured) -> None:
    with pytest.raises(CommandError, match="There is no project"):
        run("branch", "list", "prj_none")
    with pytest.raises(CommandError, match="There is no environment"):
        run("branch", "reset", "env_none", "--no-input")
