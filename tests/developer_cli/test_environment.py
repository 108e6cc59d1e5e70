"""`types`, `invoke`, `keys`, `users`, and what goes to a terminal, a pipe and a program."""

import json
import os
import pty
import subprocess
import sys
from datetime import datetime

import pytest
import typer

from platform_site.developer_cli import output
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.prompts import confirm
from tests.support.developer_cli import Cli
from tests.support.live_changes import App

pytestmark = pytest.mark.served

FAILS = 'export default async () => { console.log("about to fail \\u001b[31m"); throw new Error("no luck"); }'


@pytest.fixture(scope="module", autouse=True)
def _functions(app: App) -> None:
    app.ok("owner", "PUT", "/functions/sum", source="export default async ({a, b}) => ({sum: a + b})")
    app.ok("owner", "PUT", "/functions/fails", source=FAILS)


def test_types_are_written_once(cli: Cli) -> None:
    assert cli.json("types")["changed"]
    text = (cli.folder / "types.ts").read_text()
    assert "export interface Tables" in text
    assert not cli.json("types")["changed"]
    (cli.folder / "types.ts").write_bytes(b"\xff")
    assert cli.json("types")["changed"]
    assert 'as the role "editor"' in cli.run("types", "--role", "editor", "--out", "-").stdout
    error = cli.error("types", "--role", "nobody", code=3)
    assert error["fields"][0]["field"] == "role"
    assert (cli.folder / "types.ts").read_text() == text


def test_invoke(cli: Cli) -> None:
    assert json.loads(cli.run("invoke", "sum", '{"a": 1, "b": 2}').stdout) == {"sum": 3}
    (cli.folder / "input.json").write_text('{"a": 2, "b": 3}')
    assert cli.json("invoke", "sum", "@input.json")["output"] == {"sum": 5}
    assert cli.json("invoke", "sum", "-", stdin='{"a": 4, "b": 5}')["output"] == {"sum": 9}
    assert cli.run("invoke", "sum", "--async").stdout.startswith("run_")


def test_invoke_of_a_function_that_fails_prints_its_log(cli: Cli) -> None:
    done = cli.run("invoke", "fails", code=1)
    assert done.stdout == ""
    failed, logged, *_ = done.stderr.splitlines()
    assert "no luck" in failed
    at, level, text = logged.split(" ", 2)
    datetime.fromisoformat(at)
    assert (level, text) == ("info", "about to fail \\x1b[31m")
    answer = cli.run("invoke", "fails", "--json", code=1)
    assert json.loads(answer.stdout)["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("sum", "{"), 2, "invalid_json"),
        (("sum", "[1]"), 3, "validation_failed"),
        (("sum", "@nothing.json"), 2, "no_file"),
        (("none",), 5, "not_found"),
        (("sum?x#y",), 5, "not_found"),
        (("../keys",), 2, "invalid_name"),
        (("..",), 2, "invalid_name"),
    ],
)
def test_bad_input_of_invoke(cli: Cli, arguments: tuple[str, ...], code: int, error: str) -> None:
    assert cli.error("invoke", *arguments, code=code)["code"] == error


def test_a_function_that_is_not_there_is_compared_with_those_that_are(cli: Cli) -> None:
    for arguments in (("invoke", "fail"), ("logs", "fail"), ("secrets", "list", "fail")):
        error = cli.error(*arguments, code=5)
        assert error["message"] == 'There is no function "fail" in this environment. Did you mean "fails"?'
        assert {"sum", "fails"} <= set(error["hint"].removeprefix("You can use: ").split(", "))


def test_revoking_a_key_names_what_runs_as_it(cli: Cli, app: App) -> None:
    key = cli.json("keys", "create", "robot", "--scope", "functions:deploy", "--scope", "functions:invoke")
    robot = {"Authorization": f"Bearer {key['secret']}"}
    app.ok("owner", "PUT", "/functions/due", source="export default () => 1")
    for method, path, body in (("PATCH", "", {"schedule": "0 0 1 1 *"}), ("POST", "/inbound", {})):
        assert app.clients["owner"].request(method, f"/functions/due{path}", json=body, headers=robot).is_success
    uses = ["the schedule of due", "inbound endpoints of due"]
    question = cli.error("keys", "revoke", key["id"], code=2)["message"]
    assert question == f"Revoke {key['id']}? It stops working at once, and so do {', '.join(uses)}."
    assert cli.json("keys", "revoke", key["id"], "--yes")["stopped"] == uses
    app.ok("owner", "DELETE", "/functions/due")


def test_keys(cli: Cli) -> None:
    done = cli.run("keys", "create", "page", "--preset", "browser")
    secret = done.stdout.strip()
    assert secret.startswith("pk_")
    assert secret not in done.stderr
    [key] = [each for each in cli.json("keys", "list") if each["prefix"] == secret[: len(each["prefix"])]]
    assert key["publishable"]
    assert secret not in cli.run("keys", "list").stdout
    assert cli.error("keys", "revoke", key["id"], code=2)["code"] == "unconfirmed"
    cli.run("keys", "revoke", key["id"], "--yes")
    assert cli.error("keys", "revoke", key["id"], "--yes", code=5)
    assert 'no key "paeg"' in cli.error("keys", "revoke", "paeg", "--yes", code=5)["message"]
    named = cli.json("keys", "create", "only one", "--preset", "ci")
    question = cli.error("keys", "revoke", "only one", code=2)["message"]
    assert question == f"Revoke only one ({named['id']})? It stops working at once."
    assert cli.json("keys", "revoke", "only one", "--yes")["id"] == named["id"]
    server = cli.json("keys", "create", "server", "--preset", "server")
    assert "users:manage" in server["scopes"]
    assert not server["publishable"]
    assert cli.error("keys", "create", "x", code=2)["code"] == "no_scope"
    assert cli.error("keys", "create", "x", "--preset", "all", code=2)["code"] == "unknown_preset"
    assert cli.error("keys", "create", "x", "--scope", "all", code=3)["fields"]


def test_users(cli: Cli, app: App) -> None:
    email = f"cli-{app.environment}@example.com"
    made = cli.json("users", "add", email, "--role", "editor", stdin="correct horse battery\n")
    assert made["role"] == "editor"
    assert cli.error("users", "add", email, code=3)["fields"][0]["code"] == "taken", "it needs no password"
    assert cli.error("users", "add", email, stdin="short\n", code=3)["fields"][0]["field"] == "password"
    assert [each["id"] for each in cli.json("users", "list", "--email", email)] == [made["id"]]
    assert len(cli.json("users", "list", "--limit", "1")) == 1
    changed = cli.json("users", "set", email, "--role", "", "--disable")
    assert changed["role"] is None
    assert changed["disabled_at"]
    assert cli.error("users", "set", email, code=2)["code"] == "nothing_to_change"
    assert cli.error("users", "delete", email, code=2)["code"] == "unconfirmed"
    header, shown = cli.run("users", "list", "--email", email).stdout.splitlines()
    assert shown.split("\t")[header.split("\t").index("role")] == "user"
    cli.run("users", "delete", email, "--yes")
    assert cli.error("users", "delete", email, "--yes", code=5)["code"] == "not_found"


def test_another_environment_of_the_project(cli: Cli) -> None:
    assert cli.json("users", "list", "-e", "development") == []
    assert cli.error("users", "list", "-e", "nothing", code=5)["code"] == "not_found"


def _in_a_terminal(cli: Cli, *arguments: str, **environment: str) -> str:
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "platform_site.developer_cli", *arguments],
        cwd=cli.folder, env={**cli.environment, "TERM": "xterm-256color", **environment},
        stdin=secondary, stdout=secondary, stderr=secondary,
    )  # fmt: skip
    os.close(secondary)
    read = b""
    while True:
        try:
            read += os.read(primary, 65536)
        except OSError:
            break
    process.wait(30)
    os.close(primary)
    return read.decode()


def test_colour_in_a_terminal_unless_it_has_none(cli: Cli) -> None:
    assert "\x1b[1" in _in_a_terminal(cli, "keys", "list")
    assert "\x1b[3" in _in_a_terminal(cli, "invoke", "none")
    assert "\x1b[3" not in _in_a_terminal(cli, "invoke", "none", NO_COLOR="1")
    assert "\x1b" not in _in_a_terminal(cli, "keys", "list", TERM="dumb")


def test_ids_are_whole_in_a_narrow_terminal(cli: Cli) -> None:
    made = cli.json("users", "add", "whole.id.in.a.narrow.terminal@example.com")["id"]
    assert made in _in_a_terminal(cli, "users", "list", COLUMNS="80")


def test_texts_of_the_server_cannot_control_the_terminal(cli: Cli) -> None:
    assert "\x1b[31m" not in _in_a_terminal(cli, "invoke", "fails", NO_COLOR="1")


def test_a_value_of_one_line_is_printed_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "x\nError: y\x1b[2K\r\u202e"
    escaped = r"x\nError: y\x1b[2K\x0d\u202e"
    output.note(f"Warning: {forged}")
    output.result({}, forged, "second")
    output.say({}, forged)
    output.table([{"name": f"{forged}\tz", "tags": [forged]}], ["name", "tags"], "")
    output.failure(Failure(Exit.REFUSED, "x", f"a\nb {forged}", forged, [{"field": "f", "message": forged}], forged))
    out, err = capsys.readouterr()
    assert out.splitlines() == [escaped, "second", "name\ttags", rf"{escaped}\tz" + f"\t{escaped}"]
    below = rf"        Error: y{escaped.partition('y')[2]}"
    assert err.splitlines() == [
        f"Warning: {escaped}", escaped, "Error: a", "        b x", below, "  f: x", below, escaped,
        f"Request id: {escaped}",
    ]  # fmt: skip


def test_questions_show_control_characters_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda question, **options: asked.append(question))
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    with pytest.raises(typer.Exit):
        confirm("Merge into A\x1b[2K\u202e\nB?", yes=False)
    assert asked == [r"Merge into A\x1b[2K\u202e\nB?"]
