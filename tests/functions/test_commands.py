"""`manage.py deploy_function` and `manage.py run_function`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError

from functions.models import Function, Run
from functions.worker import Worker
from tests.rows.conftest import Tracker
from tests.support.functions import SUM

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture
def deploy(tracker: Tracker, tmp_path: Path) -> Any:
    def to(name: str, source: str, *arguments: str) -> str:
        file = tmp_path / "module.ts"
        file.write_text(source)
        return run("deploy_function", tracker.environment_id, name, str(file), *arguments)[1]

    return to


def run(*arguments: str) -> tuple[str, str]:
    """What the command printed to standard output and to standard error."""
    output, errors = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=output, stderr=errors)
    return output.getvalue(), errors.getvalue()


@pytest.mark.exhaustive
def test_a_module_is_deployed_and_run(tracker: Tracker, deploy: Any) -> None:
    assert "sum version 1 is deployed (a new function)" in deploy("sum", SUM)
    output, errors = run("run_function", tracker.environment_id, "sum", "--input", '{"a": 1, "b": 2}')
    assert json.loads(output) == {"sum": 3}
    assert "succeeded in" in errors
    assert tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 2, "b": 2}}).json["output"] == {"sum": 4}
    assert "sum version 2 is deployed." in deploy("sum", SUM + "\n")
    assert "sum version 2 is deployed." in deploy("sum", SUM + "\n")


@pytest.mark.exhaustive
def test_an_output_is_printed_with_all_its_digits(tracker: Tracker, tmp_path: Path) -> None:
    module = tmp_path / "long.ts"
    module.write_text(f"export default () => (JSON as any).rawJSON('{2**64 + 1}');")
    run("deploy_function", tracker.environment_id, "long", str(module))
    output, _ = run("run_function", tracker.environment_id, "long", "--input", f'{{"n": {2**70}}}')
    assert output.strip() == str(2**64 + 1)


@pytest.mark.exhaustive
def test_settings_and_secrets_are_set_kept_and_removed(
    tracker: Tracker, deploy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "very-secret")
    said = deploy(
        "mail",
        SUM,
        "--timeout-ms",
        "900",
        "--allow-host",
        "api.example.com",
        "--invoke",
        "key",
        "--secret",
        "API_TOKEN",
    )
    assert "very-secret" not in said
    deploy("mail", SUM)
    shown = tracker.get("owner", "/functions/mail").json
    assert (shown["timeout_ms"], shown["allowed_hosts"], shown["invoke"]) == (900, ["api.example.com"], "key")
    assert (shown["secrets"], shown["active_version"]) == (["API_TOKEN"], 1)
    said = deploy("mail", SUM, "--no-hosts", "--invoke", "anybody", "--unset-secret", "API_TOKEN")
    assert "invoked by users, server keys and members, secrets none" in said
    shown = tracker.get("owner", "/functions/mail").json
    assert (shown["allowed_hosts"], shown["invoke"], shown["secrets"]) == ([], None, [])
    with pytest.raises(CommandError, match="no variable MISSING"):
        deploy("mail", SUM, "--secret", "MISSING")


def test_what_is_refused_changes_nothing(tracker: Tracker, deploy: Any, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"(?s)source: .*function\.ts:2:16"):
        deploy("broken", "export default () => {\n  const x = 1 +; }")
    with pytest.raises(CommandError, match="timeout_ms: "):
        deploy("slow", SUM, "--timeout-ms", "99999999")
    with pytest.raises(CommandError, match="beginning with a letter"):
        deploy("../etc", SUM)
    with pytest.raises(CommandError, match="cannot be read"):
        run("deploy_function", tracker.environment_id, "sum", str(tmp_path / "none.ts"))
    (tmp_path / "latin.ts").write_bytes(b"// \xe9")
    with pytest.raises(CommandError, match="not UTF-8"):
        run("deploy_function", tracker.environment_id, "sum", str(tmp_path / "latin.ts"))
    with pytest.raises(CommandError, match="no environment"):
        run("deploy_function", "env_nothing", "sum", str(tmp_path / "latin.ts"))
    assert "Nothing was deployed" in deploy("checked", SUM, "--check")
    assert not Function.objects.using(tracker.project.cluster).exists()


@pytest.mark.exhaustive
def test_it_runs_with_the_configured_identity(tracker: Tracker, deploy: Any) -> None:
    names = "export default async (_: any, ctx: any) => (await ctx.rows.list('lists')).data.map((row: any) => row.name)"
    deploy("names", names)
    for who in ("alice", "bob"):
        row = {"name": f"{who}'s", "owner_id": tracker.users[who]}
        assert tracker.post("key", "/rows/lists", row).status == 201
    command = ("run_function", tracker.environment_id, "names")
    assert json.loads(run(*command, "--as", tracker.users["alice"])[0]) == ["alice's"]
    assert len(json.loads(run(*command)[0])) == 2
    for nobody in ("usr_" + "0" * 26, "key_" + "0" * 26, "alice"):
        with pytest.raises(CommandError, match="not an app user, member or key"):
            run(*command, "--as", nobody)
    with pytest.raises(CommandError, match="no such function"):
        run("run_function", tracker.environment_id, "nothing")


def test_a_failure_is_an_exit_code_and_its_log_drives_no_terminal(
    tracker: Tracker, deploy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy(
        "bad",
        "export default () => { console.log('\\x1b[2Jsly'); throw new TypeError('no \\x1b[2J', {cause: new Error('why')}) }",
    )
    with pytest.raises(SystemExit) as stopped:
        call_command("run_function", tracker.environment_id, "bad")
    assert stopped.value.code == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "TypeError: no" in printed.err
    assert "\nCaused by: Error: why\n" in printed.err
    assert "\x1b[2J" not in printed.err
    for text, message in (("[1]", "JSON object"), ("{", "not JSON"), ('{"a": NaN}', "NaN"), ("@/nothing", "be read")):
        with pytest.raises(CommandError, match=message):
            run("run_function", tracker.environment_id, "bad", "--input", text)


def test_a_queued_run_is_left_to_a_worker(tracker: Tracker, deploy: Any) -> None:
    deploy("sum", SUM)
    command = ("run_function", tracker.environment_id, "sum", "--input", '{"a": 1, "b": 2}', "--async")
    with pytest.raises(CommandError, match="--as"):
        run(*command)
    run_id = run(*command, "--as", tracker.users["alice"])[0].strip()
    assert Worker(tracker.project.cluster).run() == 1
    assert Run.objects.using(tracker.project.cluster).get(pk=run_id).output == '{"sum":3}'


@pytest.mark.exhaustive
def test_a_schedule_is_set_kept_and_taken_away(tracker: Tracker, deploy: Any) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    viewer = tracker.project.memberships.get(role="viewer").user_id
    for arguments, why in (
        (("--schedule", "@daily"), "name it with --as"),
        (("--schedule", "60 * * * *", "--as", owner), 'schedule: "60" is not a valid minute'),
        (("--schedule", "@daily", "--as", tracker.users["alice"]), "not as an app user"),
        (("--schedule", "@daily", "--as", viewer), "may not invoke functions here"),
        (("--schedule", "@daily", "--as", "key_x"), "not an app user, member or key"),
    ):
        with pytest.raises(CommandError, match=why):
            deploy("sum", SUM, *arguments)
    assert not Function.objects.using(tracker.project.cluster).exists()
    assert "schedule: @daily, next at 2" in deploy("sum", SUM, "--schedule", "@daily", "--as", owner)
    assert f"00:00 UTC, as {owner}" in deploy("sum", SUM)
    assert tracker.get("owner", "/functions/sum").json["scheduled_as"] == owner
    assert "schedule:" not in deploy("sum", SUM, "--no-schedule")
    assert tracker.get("owner", "/functions/sum").json["schedule"] is None


def test_settings_change_without_a_file(tracker: Tracker, deploy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    deploy("sum", SUM)
    monkeypatch.setenv("API_TOKEN", "s3cret")
    command = ("deploy_function", tracker.environment_id, "sum")
    printed, said = run(*command, "--secret", "API_TOKEN", "--schedule", "@daily", "--as", owner, "--json")
    shown = json.loads(printed)
    assert (shown["active_version"], shown["secrets"], shown["schedule"]) == (1, ["API_TOKEN"], "@daily")
    assert "sum is changed; version 1 stays active." in run(*command, "--attempts", "2")[1]
    assert tracker.get("owner", "/functions/sum").json["scheduled_as"] == owner
    for arguments, why in (
        ((), "Name the module's FILE"),
        (("--check", "--attempts", "2"), "Name the module's FILE"),
        (("--attempts", "9"), "attempts: "),
    ):
        with pytest.raises(CommandError, match=why):
            run(*command, *arguments)
    with pytest.raises(CommandError, match="no such function"):
        run("deploy_function", tracker.environment_id, "none", "--attempts", "2")


@pytest.mark.exhaustive
def test_inbound_endpoints_are_made_listed_and_revoked(tracker: Tracker, deploy: Any) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    viewer = tracker.project.memberships.get(role="viewer").user_id
    deploy("sum", SUM)
    command = ("inbound_address", tracker.environment_id)
    for arguments, why in (
        (("sum", "--as", tracker.users["alice"]), "not as an app user"),
        (("sum", "--as", viewer), "may not invoke functions here"),
        (("sum", "--as", owner, "--label", "x" * 101), "label: "),
        (("none", "--as", owner), "no such function"),
        (("sum", "--revoke", "inb_x"), "no such inbound endpoint"),
    ):
        with pytest.raises(CommandError, match=why):
            run(*command, *arguments)
    listed, said = run(*command, "sum")
    assert (listed, "no inbound endpoint" in said) == ("", True)  # a program reads an empty list, people a sentence
    url, said = run(*command, "sum", "--as", owner, "--label", "Stripe", "--wait")
    assert url.strip().rpartition("/")[2] not in said
    (shown,) = [json.loads(line) for line in run(*command, "sum")[0].splitlines()]
    assert (shown["label"], shown["async"], shown["runs_as"]) == ("Stripe", False, owner)
    path = url.strip().removeprefix(settings.BASE_URL)
    assert tracker.api.post(path, json={}).json == {"sum": None}
    deploy("sum", SUM, "--as", owner)
    assert "revoked" in run(*command, "sum", "--revoke", shown["id"])[1]
    assert tracker.api.post(path, json={}).status == 404


@pytest.mark.exhaustive
def test_events_are_named_kept_and_taken_away(tracker: Tracker, deploy: Any) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    viewer = tracker.project.memberships.get(role="viewer").user_id
    for arguments, why in (
        (("--on", "lists.insert"), "name it with --as"),
        (("--on", "lists.sold", "--as", owner), "lists.sold"),
        (("--on", "function.run.failed", "--as", owner), "an event of function runs"),
        (("--on", "lists.insert", "--as", tracker.users["alice"]), "not as an app user"),
        (("--on", "lists.insert", "--as", viewer), "may not invoke functions here"),
    ):
        with pytest.raises(CommandError, match=why):
            deploy("sum", SUM, *arguments)
    assert not Function.objects.using(tracker.project.cluster).exists()
    said = deploy("sum", SUM, "--on", "lists.insert", "--on", "tasks.*", "--as", owner)
    assert f"runs on lists.insert, tasks.*, as {owner}" in said
    assert f"runs on lists.insert, tasks.*, as {owner}" in deploy("sum", SUM)
    assert tracker.get("owner", "/functions/sum").json["on_as"] == owner
    Function.objects.using(tracker.project.cluster).update(events_stopped="caller_gone")
    assert "its events are stopped (caller_gone): lists.insert, tasks.*" in deploy("sum", SUM)
    assert "runs on" not in deploy("sum", SUM, "--no-events")
    assert tracker.get("owner", "/functions/sum").json["on"] is None
