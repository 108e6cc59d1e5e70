"""`functions`, `secrets`, `logs` and `branch`."""

import json
import re
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from platform_site.developer_cli import session
from platform_site.developer_cli.commands import branch, logs
from platform_site.developer_cli.failures import Exit, Failure
from tests.support.developer_cli import Cli
from tests.support.live_changes import App
from tests.support.service import wait_for

pytestmark = pytest.mark.served
READS = """export default async ({fail}, ctx) => {
    console.log("the token has", ctx.secrets.TOKEN?.length ?? 0, "characters");
    if (fail) throw new Error("no luck");
    return null;
}"""


@pytest.fixture(scope="module", autouse=True)
def _functions(app: App) -> None:
    app.ok("owner", "PUT", "/functions/reads", source=READS)


def test_a_secret_is_set_from_standard_input_and_never_shown(cli: Cli) -> None:
    done = cli.run("secrets", "set", "reads", "TOKEN", stdin="hunter2hunter2\n")
    assert "hunter2" not in done.stdout + done.stderr
    assert cli.json("secrets", "list", "reads") == [{"name": "TOKEN", "set": True}]
    cli.run("branch", "create", "unset", "--from", "production")
    assert cli.json("secrets", "list", "reads", "-e", "unset") == [{"name": "TOKEN", "set": False}]
    assert "No value in this environment: TOKEN." in cli.run("secrets", "list", "reads", "-e", "unset").stderr
    cli.run("branch", "delete", "unset", "--yes")
    run_id = cli.json("invoke", "reads")["run_id"]
    _, line = cli.run("logs", "reads", "--limit", "1").stdout.splitlines()
    assert re.fullmatch(r"    [0-9-]{10}T[0-9:.]+Z info the token has 14 characters", line)
    assert [each["id"] for each in _lines(cli.run("logs", "reads", "--limit", "1", "--json").stdout)] == [run_id]
    assert cli.error("secrets", "remove", "reads", "TOKEN", code=2)["code"] == "unconfirmed"
    cli.run("secrets", "remove", "reads", "TOKEN", "--yes")
    assert cli.json("secrets", "list", "reads") == []


def test_a_function_is_listed_and_deleted_after_a_confirmation(cli: Cli, app: App) -> None:
    app.ok("owner", "PUT", "/functions/old", source=READS)
    listed = cli.json("functions", "list")
    assert [(each["name"], each["active_version"]) for each in listed] == [("old", 1), ("reads", 1)]
    header, *lines = cli.run("functions", "list").stdout.splitlines()
    assert header.split("\t")[2:6] == ["schedule", "schedule_stopped", "on", "on_stopped"]
    assert len(lines) == 2
    assert cli.error("functions", "delete", "old", code=2)["code"] == "unconfirmed"
    assert cli.run("functions", "delete", "old", "--yes").stdout == "old is deleted.\n"
    assert [each["name"] for each in cli.json("functions", "list")] == ["reads"]
    assert cli.error("functions", "delete", "old", "--yes", code=5)["code"] == "not_found"


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_bad_input_of_secrets(cli: Cli) -> None:
    assert cli.error("secrets", "set", "reads", "token", stdin="x", code=3)["fields"][0]["field"].startswith("secrets")
    assert cli.error("secrets", "set", "reads", "TOKEN", code=2)["code"] == "no_input"
    error = cli.error("secrets", "set", "reads", "TOKEN", stdin="very-secret" * 1000, code=3)
    assert "very-secret" not in json.dumps(error)
    assert cli.error("secrets", "list", "none", code=5)["code"] == "not_found"


def test_a_run_that_times_out_fails_with_its_log_and_error(cli: Cli, app: App) -> None:
    source = "export default async () => { console.log('begun'); await new Promise(() => {}) }"
    app.ok("owner", "PUT", "/functions/waits", source=source, timeout_ms=500)
    failed, log = cli.run("invoke", "waits", code=1).stderr.splitlines()
    assert failed == "waits failed: The function ran longer than its timeout."
    assert log.endswith(" info begun")
    answer = json.loads(cli.run("invoke", "waits", "--json", code=1).stdout)
    assert (answer["status"], answer["run_id"][:4]) == ("failed", "run_")
    run, _ = cli.run("logs", "waits", "--limit", "1").stdout.splitlines()
    assert re.search(r" call failed \d+ ms FunctionTimeout: ", run)


def test_logs_of_failed_runs(cli: Cli) -> None:
    cli.run("invoke", "reads", '{"fail": true}', code=1)
    text = cli.run("logs", "reads", "--status", "failed").stdout
    assert " ms Error: no luck\n" in text
    assert "succeeded" not in text
    assert cli.error("logs", "none", code=5)
    assert cli.run("logs", "reads", "--status", "running").stderr == "No runs to show.\n"
    assert cli.run("logs", "--status", "418").stderr == "No requests to show.\n"
    assert cli.error("logs", "reads", "--status", "great", code=3)["fields"][0]["field"] == "status"


FORGES = """export default ({text}) => {
    console.log(text);
    throw new Error(text);
}"""


def test_texts_of_logs_cannot_look_like_lines_of_it(cli: Cli, app: App) -> None:
    app.ok("owner", "PUT", "/functions/forges", source=FORGES)
    forged = "2026-01-01T00:00:00.000000Z run_00000000000000000000000000 call succeeded 3 ms"
    text = f"hi\n{forged}\n    {forged}\u202e\r{forged}"
    cli.run("invoke", "forges", json.dumps({"text": text}), code=1)
    first, *rest = cli.run("logs", "forges").stdout.splitlines()
    assert not first.startswith(" ")
    assert all(line.startswith("    ") for line in rest)
    assert [line for line in rest if not line.startswith("        ")] == [rest[0]], "one line was logged"
    assert "\\u202e\\x0d" in "".join(rest)


def test_logs_follow_until_interrupted(cli: Cli, app: App) -> None:
    following = cli.process("logs", "reads", "-f", "--limit", "1", "--json")
    assert following.stdout is not None
    following.stdout.readline()
    run_id = app.ok("owner", "POST", "/functions/reads/invoke", input={})["run_id"]
    assert json.loads(following.stdout.readline())["id"] == run_id
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=20)
    assert following.returncode == 130
    assert "Traceback" not in err


def refuse(app: App) -> str:
    answer = app.clients["ada"].post("/rows/tasks", json={"title": 3})
    assert answer.status_code == 422
    return str(answer.json()["error"]["request_id"])


def test_logs_of_requests(cli: Cli, app: App) -> None:
    refuse(app)
    app.ok("ada", "GET", "/rows/tasks")

    def refused() -> list[str]:
        return cli.run("logs", "--status", "4xx", "--limit", "1").stdout.splitlines()

    [line] = wait_for("the refused request", lambda: [each for each in refused() if "/v1/rows/{table}" in each])
    assert " POST /v1/rows/{table} tasks 422 " in line
    assert " validation_failed " in line
    assert re.search(r"req_\w+$", line)
    found = [json.loads(each) for each in cli.run("logs", "--json").stdout.splitlines()]
    assert [each["at"] for each in found] == sorted(each["at"] for each in found)
    assert cli.error("logs", "--status", "great", code=3)["fields"][0]["field"] == "status"


def test_logs_of_requests_follow_until_interrupted(cli: Cli, app: App) -> None:
    first = refuse(app)
    wait_for("the first request", lambda: first in cli.run("logs", "--status", "4xx", "--limit", "1").stdout)
    following = cli.process("logs", "-f", "--status", "4xx", "--limit", "1", "--json")
    assert following.stdout is not None
    seen = [json.loads(following.stdout.readline())["request_id"]]
    assert seen == [first]
    wanted = [refuse(app) for _ in range(3)]
    while set(wanted) - set(seen):
        seen.append(json.loads(following.stdout.readline())["request_id"])
    assert len(seen) == len(set(seen))
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=20)
    assert following.returncode == 130
    assert "Traceback" not in err


def test_following_begins_behind_the_requests_of_others_who_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (
        {"at": f"2026-11-29T12:00:{n}Z", "request_id": route, "route": route}
        for n, route in ((20, "/v1/logs"), (10, "/v1/rows"))
    )
    printed: list[Any] = []

    def wait(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "_print_request", printed.append)
    monkeypatch.setattr(logs.time, "sleep", wait)
    api: Any = SimpleNamespace(pages=lambda path, **_: iter([own] * 20 + [other]))
    with pytest.raises(KeyboardInterrupt):
        logs._print_requests(api, follow=True, limit=1, status=None)
    assert printed == [other]


def test_a_followed_log_shows_requests_between_its_first_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ({"at": f"2026-11-29T12:00:{n}Z", "request_id": str(n), "route": "/v1/rows"} for n in (10, 20))
    printed: list[Any] = []
    readings = iter([[first], [second, first], [second, first]])

    def wait(_: float) -> None:
        if second in printed:
            raise KeyboardInterrupt

    monkeypatch.setattr(logs, "_print_request", printed.append)
    monkeypatch.setattr(logs.time, "sleep", wait)
    api: Any = SimpleNamespace(pages=lambda path, **_: iter(next(readings)))
    with pytest.raises(KeyboardInterrupt):
        logs._print_requests(api, follow=True, limit=1, status=None)
    assert printed == [first, second]


def test_following_requests_does_not_show_its_own(cli: Cli, app: App) -> None:
    following = cli.process("logs", "-f", "--limit", "1", "--json")
    assert following.stdout is not None
    following.stdout.readline()  # of a request before: from here on it follows
    routes = []
    for _ in range(2):
        wanted = refuse(app)
        while (found := json.loads(following.stdout.readline()))["request_id"] != wanted:
            routes.append(found["route"])
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=20)
    assert "/v1/logs" not in routes


def test_a_branch(cli: Cli, app: App) -> None:
    made = cli.json("branch", "create", "try/it", "--from", "production", "--use", "--expires-in", "7")
    assert made["expires_at"] is not None
    assert made["status"] == "ready"
    [linked] = [each for each in cli.json("branch", "list") if each["linked"]]
    assert linked["name"] == "try/it"
    cli.run("types")
    assert made["id"] in (cli.folder / "types.ts").read_text()
    assert cli.error("branch", "create", "try/it", code=3)["fields"][0]["code"] == "taken"
    assert cli.error("branch", "create", "No Name", code=3)["fields"][0]["field"] == "name"
    assert cli.error("branch", "create", "other", "--from", "nothing", code=3)["fields"][0]["field"] == "from"
    assert cli.error("branch", "reset", "try/it", code=2)["code"] == "unconfirmed"
    assert cli.json("branch", "reset", "try/it", "--data", "--yes")["id"] == made["id"]
    assert cli.error("branch", "delete", "try/it", code=2)["code"] == "unconfirmed"
    key = cli.run("keys", "create", "page", "--preset", "browser", "--json").stdout
    (cli.folder / "key.json").write_text(key)
    (cli.folder / "package.json").write_text('{"name": "app"}')
    warned = cli.run("branch", "use", "production").stderr
    assert warned == f"Warning: key.json holds a key of another environment ({made['id']}).\n"
    assert cli.run("branch", "use", "try/it").stderr == ""
    cli.run("branch", "use", "production")
    cli.run("branch", "create", "try/more", "--from", "try/it")
    question = f"Delete try/it ({made['id']}) with its rows?"
    lost = "try/more cannot be merged or reset any more: its source is deleted."
    assert cli.error("branch", "delete", "try/it", code=2)["message"] == f"{question} {lost}"
    assert f"Warning: {lost}\n" in cli.run("branch", "delete", "try/it", "--yes").stderr
    assert "what try/more was branched from is deleted" in cli.error("merge", "try/more", code=7)["message"]
    assert cli.json("branch", "delete", "try/more", "--yes")["branches"] == []
    assert cli.error("branch", "use", "try/it", code=5)["code"] == "not_found"
    for command in ("delete", "reset"):  # without the question
        error = cli.error("branch", command, "production", code=7)
        assert (error["code"], error["message"]) == (
            "conflict",
            "Only preview branches can be reset or deleted, not production.",
        )
    assert {each["name"] for each in cli.json("branch", "list")} == {"development", "production"}


def test_input_that_json_cannot_have(cli: Cli) -> None:
    for text in ('{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}'):
        assert cli.error("invoke", "reads", text, code=2)["code"] == "invalid_input"


def test_a_branch_that_is_deleted_meanwhile_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the branches of another one are looked up, to warn of them."""
    listed = [{"id": name, "name": name} for name in ("production", "gone", "more")]

    class Environments:
        def get(self, path: str) -> Any:
            if path == "environments/gone":
                raise Failure(Exit.NOT_FOUND, "not_found", "There is no such environment.")
            return {"parent_id": "try"} if path == "environments/more" else {"data": listed}

    monkeypatch.setattr(session, "project_environments", lambda: (Environments(), "environments"))
    assert branch._branches_of("try") == ["more"]
