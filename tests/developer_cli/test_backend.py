"""`pull`, `plan` and `push`."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_site.developer_cli import backend_files
from platform_site.developer_cli.failures import Failure
from tests.support.backend_files import SCHEMA, SUM, Files
from tests.support.developer_cli import Cli
from tests.support.live_changes import App
from tests.support.service import Up

pytestmark = pytest.mark.served


@pytest.fixture
def files(cli: Cli) -> Iterator[Files]:
    """In an empty environment, filled by the test."""
    cli.run("branch", "create", "push", "--from", "development", "--use")
    yield Files(cli)
    cli.run("branch", "delete", "push", "--yes")


def _changes(cli: Cli, *arguments: str) -> list[str]:
    return [each["change"] for each in cli.json(*arguments)["changes"]]


def _api(cli: Cli) -> Any:
    """Of the linked environment."""
    from platform_site.developer_cli import store
    from platform_site.developer_cli.api import Api

    token = json.loads(cli.credentials.read_text())[cli.url]
    environment = json.loads((cli.folder / "platform.json").read_text())["environment"]
    return Api(cli.url, store.Credentials(token["token"]), environment)


def _pushed(files: Files) -> None:
    files.write("schema.json", SCHEMA)
    files.write("functions/sum.ts", SUM)
    files.write("functions.json", {"sum": {"timeout_ms": 900}})
    files.write("webhooks.json", [{"url": "http://127.0.0.1:8999/hook", "events": ["items.insert"], "enabled": False}])
    files.cli.run("push")


def test_an_environment_is_pushed_and_pulled(files: Files) -> None:
    cli = files.cli
    files.write("schema.json", SCHEMA)
    files.write("functions/sum.ts", SUM)
    files.write("functions.json", {"sum": {"timeout_ms": 900, "allowed_hosts": ["api.example.com"]}})
    files.write("webhooks.json", [{"url": "http://127.0.0.1:8999/hook", "events": ["items.insert"]}])
    planned = _changes(cli, "plan")
    assert planned == ["create table items", "create function sum", "create webhook http://127.0.0.1:8999/hook"]
    assert "CREATE TABLE" not in cli.run("plan").stdout
    assert "\n    CREATE TABLE" in cli.run("plan", "--sql").stdout
    done = cli.run("push")
    assert done.stdout.splitlines() == planned
    place = f"push of {cli.json('status')['project']['name']}"
    assert f"Applied 3 changes to {place}." in done.stderr
    assert f"Nothing to change in {place}." in cli.run("plan").stderr
    assert cli.json("plan")["environment"] == json.loads((cli.folder / "platform.json").read_text())["environment"]
    assert "whsec_" not in done.stdout + done.stderr
    assert _changes(cli, "plan") == []
    assert json.loads(cli.run("invoke", "sum", '{"a": 1, "b": 2}').stdout) == {"sum": 3}

    pulled = Files(cli)
    pulled.folder = cli.folder / "again"
    cli.run("pull", "--folder", "again")
    assert pulled.json("schema.json") == SCHEMA
    assert (pulled.folder / "functions" / "sum.ts").read_bytes().decode() == SUM
    assert pulled.json("functions.json") == files.json("functions.json")
    assert pulled.json("webhooks.json") == files.json("webhooks.json")
    assert _changes(cli, "plan", "--folder", "again") == []
    assert [each["file"] for each in cli.json("pull") if each["written"]] == ["backend/auth.json"]
    assert not any(each["written"] for each in cli.json("pull"))


def test_links_out_of_the_repository_are_refused(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a cloned repository they may be someone else's."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "schema.json").write_text(json.dumps(SCHEMA))
    backend = cli.folder / "backend"

    def refused() -> None:
        for command in ("pull", "plan", "push", "dev"):
            assert cli.error(command, code=2)["code"] == "link_outside", command
        assert [each.name for each in outside.iterdir()] == ["schema.json"]

    backend.symlink_to(outside)
    refused()
    backend.unlink()
    for linked in ("functions", "schema.json"):
        backend.mkdir()
        (backend / linked).symlink_to(outside if linked == "functions" else outside / linked)
        refused()
        shutil.rmtree(backend)
    (cli.folder / "shared").mkdir()
    backend.symlink_to("shared")
    cli.run("pull")
    assert (cli.folder / "shared" / "schema.json").exists()


def test_a_link_within_a_repository_is_followed(tmp_path: Path) -> None:
    shared, app = tmp_path / "shared", tmp_path / "app"
    shared.mkdir()
    app.mkdir()
    (app / "backend").symlink_to(shared)
    with pytest.raises(Failure, match="is a link out of"):
        backend_files.read(app / "backend")
    (tmp_path / ".git").mkdir()
    backend_files.read(app / "backend")


def test_options_may_stand_before_the_command(files: Files) -> None:
    cli = files.cli
    files.write("functions/sum.ts", SUM)
    [production] = [each["id"] for each in cli.json("branch", "list") if each["name"] == "production"]
    for before in (["-e", "production"], ["--environment", "production"], ["--environment=production"]):
        assert json.loads(cli.run(*before, "--json", "plan").stdout)["environment"] == production
        assert json.loads(cli.run("webhooks", "--json", *before, "list").stdout) == []
    assert "No such option: -e" in cli.run("-e", "production", "branch", "list", code=2).stderr
    assert "--folder" in cli.run("plan", "--help").stdout


def test_a_named_webhook_keeps_its_name_when_its_url_changes(files: Files) -> None:
    cli = files.cli
    hook = {"url": "http://127.0.0.1:8999/hook", "events": ["*"], "enabled": False}
    files.write("webhooks.json", [hook])
    cli.run("push")
    files.write("webhooks.json", [{"name": "crm", **hook}])
    assert _changes(cli, "push") == ["change webhook crm: name"]
    files.write("webhooks.json", [{"name": "crm", **hook, "url": "http://127.0.0.1:8999/other"}])
    assert _changes(cli, "push") == ["change webhook crm: url"]
    cli.run("pull", "--force")
    assert files.json("webhooks.json")[0]["name"] == "crm"
    same_url = [{"name": name, **hook, "url": "http://127.0.0.1:8999/other"} for name in ("erp", "crm")]
    files.write("webhooks.json", same_url)
    assert _changes(cli, "plan") == ["create webhook erp"], "the order of the file does not matter"
    files.write("webhooks.json", [same_url[0], same_url[0]])
    assert "two webhooks have this name" in cli.run("plan", code=2).stderr
    files.write("webhooks.json", [])
    assert cli.json("plan")["only_in_environment"] == ["webhook crm"]


def test_webhook_of_a_private_network_is_confirmed_in_production(files: Files) -> None:
    cli, target = files.cli, ("-e", "production")
    hooks = [
        {"url": f"http://{host}:8999/production", "events": ["*"], "enabled": False}
        for host in ("127.0.0.1", "localhost", "[::1]", "8.8.8.8", "10.0.0.1")
    ]
    files.write("webhooks.json", hooks)
    [refused] = cli.error("plan", *target, code=3)["fields"]
    assert refused["code"] == "address_not_allowed"
    assert refused["location"].startswith("backend/webhooks.json:")
    del hooks[-1]
    files.write("webhooks.json", hooks)
    local = [each["url"] for each in hooks[:-1]]
    planned = cli.json("plan", *target)["warnings"]
    assert [each.rpartition(" ")[2] for each in planned] == local
    files.write("webhooks.json", hooks[:1])
    error = cli.error("push", *target, code=2)
    assert (error["code"], error["hint"]) == ("unconfirmed", "Repeat the command with --yes.")
    assert error["message"] == f"Send events of production to {local[0]}?"
    assert len(_changes(cli, "plan", *target)) == 1
    assert len(_changes(cli, "push")) == 1, "a branch is not asked about"
    assert len(_changes(cli, "push", "--yes", *target)) == 1
    files.write("webhooks.json", [{**hooks[0], "events": ["items.insert"]}])
    assert len(_changes(cli, "push", *target)) == 1, "the URL was there before"


def test_sign_in_settings_are_pushed_and_pulled(files: Files) -> None:
    cli = files.cli
    cli.run("pull", "--force")
    was = files.json("auth.json")
    files.write("auth.json", {**was, "redirect_uris": ["https://app.example.com/signed-in"]})
    assert _changes(cli, "plan") == ['change auth.redirect_uris: [] → ["https://app.example.com/signed-in"]']
    cli.run("push")
    assert _changes(cli, "plan") == []
    cli.run("pull", "--folder", "again", "--force")
    assert json.loads((cli.folder / "again" / "auth.json").read_text()) == files.json("auth.json")
    files.write("auth.json", {"redirect_uris": ["javascript:alert(1)"]})
    refused = cli.run("push", code=3)
    assert "auth.json:3: " in refused.stderr
    files.write("auth.json", was)
    cli.run("push")


def test_a_branch_takes_the_sign_in_settings_that_it_has(files: Files) -> None:
    files.write("auth.json", {"sign_up": "open", "redirect_uris": ["https://app.example.com/signed-in"]})
    planned = files.cli.json("plan")
    assert [each["change"].partition(":")[0] for each in planned["changes"]] == ["change auth.redirect_uris"]
    assert planned["warnings"] == ["backend/auth.json: a preview branch has these settings of its source: sign_up."]


def test_a_ci_key_pushes_all_but_the_sign_in_settings(files: Files, app: App) -> None:
    cli = files.cli
    files.write("schema.json", SCHEMA)
    files.write("auth.json", {"redirect_uris": []})
    secret = cli.run("keys", "create", "ci", "--preset", "ci").stdout.strip()
    pushed = cli.json("push", PLATFORM_TOKEN=secret, PLATFORM_URL=app.served.base_url)
    assert [each["change"] for each in pushed["changes"]] == ["create table items"]
    [warning] = pushed["warnings"]
    assert warning == "backend/auth.json is left out: this key may not change the sign-in settings."


def test_the_plan_counts_rows_that_changed_rules_show_or_hide(files: Files, app: App) -> None:
    cli = files.cli
    _pushed(files)
    environment = json.loads((cli.folder / "platform.json").read_text())["environment"]
    for name in ("Tea", "Milk", "Salt"):
        headers = {"X-Environment": environment}
        app.clients["owner"].post("/rows/items", json={"name": name}, headers=headers).raise_for_status()
    changed = copy.deepcopy(SCHEMA)
    read = {"where": {"name": {"$gt": "N"}}, "columns": ["*", "-note"]}
    changed["tables"]["items"]["rules"]["user"]["read"] = read
    files.write("schema.json", changed)
    assert "impact" not in cli.run("plan").stdout
    shown = cli.run("plan", "--impact").stdout.splitlines()
    assert shown[0] == "change rules of items"
    assert "impact on items for role user, whoever it is: 0 more rows, 1 fewer; hides note" in shown
    assert cli.json("plan", "--impact")["impact"][0]["table"] == "items"


def test_a_push_is_reverted(files: Files) -> None:
    cli = files.cli
    _pushed(files)
    files.write("functions/sum.ts", SUM + "// again")
    assert cli.json("plan")["version_before"].startswith("cfg_")
    pushed = cli.run("push").stderr
    assert "To go back: platform revert cfg_" in pushed
    cli.run("revert", pushed.split()[-1], "--yes")
    assert _changes(cli, "plan") == ["change function sum: source"]
    cli.run("push")
    assert cli.json("push")["version_before"] is None, "nothing changed"


def test_wider_sign_up_is_confirmed_by_name(files: Files) -> None:
    cli, target = files.cli, ("-e", "production")
    files.write("auth.json", {"sign_up": "open"})
    planned = cli.run("plan", *target)
    assert "change auth.sign_up: off → open (more people can sign up)" in planned.stdout
    error = cli.error("push", *target, code=2)
    assert (error["code"], [each["message"] for each in error["fields"]]) == ("unconfirmed", ["auth.sign_up"])
    assert _changes(cli, "push", "--confirm", "auth.sign_up", *target) == ["change auth.sign_up: off → open"]
    files.write("auth.json", {"sign_up": "off"})
    assert _changes(cli, "push", *target) == ["change auth.sign_up: open → off"]


def test_a_push_changes_only_what_differs(files: Files) -> None:
    cli = files.cli
    _pushed(files)
    files.write("functions/sum.ts", SUM + "// again")
    files.write("functions.json", {"sum": {"timeout_ms": 800}})
    files.write("webhooks.json", [{"url": "http://127.0.0.1:8999/hook", "events": ["*"]}])
    assert _changes(cli, "push") == [
        "change function sum: source, timeout_ms",
        "change webhook http://127.0.0.1:8999/hook: events",
    ]
    (files.folder / "functions" / "sum.ts").unlink()
    (files.folder / "functions.json").unlink()
    assert cli.json("push")["only_in_environment"] == ["function sum"]
    cli.run("invoke", "sum", '{"a": 1, "b": 2}')


def test_old_names_are_warned_of_with_their_place_unless_replaced(files: Files) -> None:
    cli = files.cli
    source = "export default async (_, ctx) => (await ctx.rows.list('items')).data.map((item) => item.note)"
    hook = {"name": "crm", "url": "http://127.0.0.1:8999/hook", "events": ["items.insert"], "filter": {"note": "x"}}
    files.write("schema.json", SCHEMA)
    files.write("functions/notes.ts", source)
    files.write("functions/others.ts", source)
    files.write("webhooks.json", [hook | {"enabled": False}])
    cli.run("push")
    renamed = json.dumps(SCHEMA).replace('"note": {', '"remark": {"renamed_from": "note", ')
    files.write("schema.json", json.loads(renamed))
    files.write("functions/notes.ts", source.replace("item.note", "item.remark"))
    files.write("functions/others.ts", source + "\n")
    files.write("webhooks.json", [hook | {"enabled": False, "filter": {"remark": "x"}}])
    says = "This still names items.note, which becomes remark."
    assert cli.json("plan")["warnings"] == [f"backend/functions/others.ts: functions.others.source: {says}"]
    assert f"Warning: backend/functions/others.ts: functions.others.source: {says}" in cli.run("push").stderr


def test_a_warning_of_the_schema_names_file_and_line(files: Files) -> None:
    document = json.loads(json.dumps(SCHEMA))
    document["users"] = {"anonymous": ["id", "email"]}
    files.write("schema.json", document)
    [warning] = files.cli.json("plan")["warnings"]
    line = (files.folder / "schema.json").read_text().splitlines().index('    "anonymous": [') + 1
    assert warning.startswith(f"backend/schema.json:{line}: schema.users.anonymous: Everyone can read")


def test_a_change_that_loses_data_is_confirmed_by_name(files: Files) -> None:
    cli = files.cli
    _pushed(files)
    narrower = json.loads(json.dumps(SCHEMA))
    del narrower["tables"]["items"]["columns"]["note"]
    files.write("schema.json", narrower)
    error = cli.error("push", code=2)
    assert [each["message"] for each in error["fields"]] == ["drop column items.note"]
    assert cli.error("push", "--confirm", "drop column items.name", code=2)["code"] == "unconfirmed"
    assert _changes(cli, "push", "--confirm", "drop column items.note") == ["drop column items.note"]


def test_a_schema_that_changed_since_the_plan_is_not_overwritten(files: Files, app: App) -> None:
    """Two pushes at once: the second one planned with a version that is no longer current."""
    from platform_site.developer_cli import planning

    cli = files.cli
    _pushed(files)
    api = _api(cli)
    wider = json.loads(json.dumps(SCHEMA))
    wider["tables"]["items"]["columns"]["more"] = {"type": "integer", "null": True}
    files.write("schema.json", wider)
    plan = planning.make(api, backend_files.read(files.folder))
    other = json.loads(json.dumps(SCHEMA))
    other["tables"]["items"]["columns"]["theirs"] = {"type": "integer", "null": True}
    api.send("PUT", "/schema", {"document": other})
    with pytest.raises(Failure) as refused:
        planning.apply(api, plan)
    assert refused.value.code == "precondition_failed"
    assert refused.value.exit_code == 7
    assert "theirs" in json.dumps(api.get("/schema"))


def test_of_two_pushes_at_once_each_is_whole_or_a_conflict(files: Files) -> None:
    _pushed(files)
    wanted = []
    pushes = []
    for name in ("left", "right"):
        folder = files.folder.parent / name
        shutil.copytree(files.folder, folder)
        document = json.loads(json.dumps(SCHEMA))
        document["tables"]["items"]["columns"][name] = {"type": "text", "null": True}
        wanted.append(document)
        (folder / "schema.json").write_text(json.dumps(document))
        pushes.append(files.cli.process("push", "--folder", name, "--json"))
    codes = []
    for push in pushes:
        _, err = push.communicate(timeout=60)
        codes.append(push.returncode)
        assert "Traceback" not in err
    assert 0 in codes
    assert set(codes) <= {0, 2, 7}  # 7: it changed meanwhile; 2: the later one would drop the other's column
    files.cli.run("pull", "--force")
    assert files.json("schema.json")["tables"] in [document["tables"] for document in wanted]


def test_errors_name_the_field_and_the_line(files: Files) -> None:
    cli = files.cli
    text = json.dumps(SCHEMA, indent=2).replace('"name": {\n', '"nmae": 1,\n        "name": {\n')
    files.write("schema.json", text)
    [found] = cli.error("push", code=3)["fields"]
    line = 1 + text[: text.index('"nmae"')].count("\n")
    assert (found["field"], found["location"]) == ("schema.tables.items.columns.nmae", f"backend/schema.json:{line}")
    assert f"backend/schema.json:{line}: schema.tables.items.columns.nmae" in cli.run("plan", code=3).stderr


HOOK = {"name": "crm", "url": "http://127.0.0.1:8999/hook", "events": ["items.insert"], "enabled": False}


@pytest.mark.parametrize(
    ("wrong", "field", "location"),
    [
        ({"functions/sum.ts": "export default () => {\n  let x = ;\n}"}, "functions.sum.source", "functions/sum.ts"),
        ({"functions.json": {"sum": {"timeout_ms": 1}}}, "functions.sum.timeout_ms", "functions.json:3"),
        ({"webhooks.json": [{**HOOK, "name": ""}]}, "webhooks.http://127.0.0.1:8999/hook.name", "webhooks.json:3"),
        ({"webhooks.json": [{**HOOK, "name": 5}]}, "webhooks.5.name", "webhooks.json:3"),
        ({"webhooks.json": [{**HOOK, "filter": {"nmae": 1}}]}, "webhooks.crm.filter.nmae", "webhooks.json:10"),
        ({"webhooks.json": [{**HOOK, "url": "http://10.0.0.1/hook"}]}, "webhooks.crm.url", "webhooks.json:4"),
        ({"webhooks.json": [{"url": HOOK["url"]}]}, "webhooks.http://127.0.0.1:8999/hook.events", "webhooks.json:2"),
        ({"auth.json": {"redirect_uris": ["javascript:alert(1)"]}}, "auth.redirect_uris.0", "auth.json:3"),
    ],
)  # fmt: skip
def test_a_push_with_a_mistake_applies_no_part(
    files: Files, wrong: dict[str, object], field: str, location: str
) -> None:
    cli = files.cli
    parts = {"schema.json": SCHEMA, "functions/sum.ts": SUM, "webhooks.json": [HOOK]}
    for name, value in {**parts, **wrong}.items():
        files.write(name, value)
    error = cli.error("push", code=3)
    [found] = error["fields"]
    assert (found["field"], found["location"]) == (field, f"backend/{location}")
    assert "hint" not in error
    for name in wrong.keys() - parts.keys():
        (files.folder / name).unlink()
    for name in wrong.keys() & parts.keys():
        files.write(name, parts[name])
    assert _changes(cli, "push") == ["create table items", "create function sum", "create webhook crm"]


def test_what_was_applied_of_sources_over_1_mb_is_named(files: Files) -> None:
    """The service takes 1 MB in a request."""
    cli = files.cli
    files.write("schema.json", SCHEMA)
    large = f"/*{'x' * 400_000}*/"
    for name in ("a", "b", "c", "d"):
        files.write(f"functions/{name}.ts", SUM + large)
    files.write("functions/e.ts", large + "let x = ;")
    error = cli.error("push", code=3)
    assert [each["location"] for each in error["fields"]] == ["backend/functions/e.ts"]
    done = "; ".join(["create table items", *(f"create function {name}" for name in ("a", "b", "c", "d"))])
    assert error["hint"] == f"Already applied: {done}. Push again to apply the rest."
    files.write("functions/e.ts", SUM + large)
    assert _changes(cli, "push") == ["create function e"]
    assert _changes(cli, "push") == []


def test_many_sources_are_applied_in_steps(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one creates what later ones need. The service keeps 20 plans of a caller, so it may have dropped it."""
    from platform_site.developer_cli import planning

    monkeypatch.setattr(planning, "_MAX_SOURCES", 1)
    files.write("schema.json", SCHEMA)
    files.write("functions.json", {name: {"on": ["items.insert"]} for name in "abc"})
    for name in "abc":
        files.write(f"functions/{name}.ts", SUM)
    api, backend = _api(files.cli), backend_files.read(files.folder)
    plan = planning.make(api, backend)
    assert (len(plan.steps), plan.warnings) == (3, [])
    for _ in range(20):
        api.send("POST", "/config/plan", {"config": {"functions": {}}})
    planning.apply(api, plan)
    assert planning.make(api, backend).changes == []

    for name in "ab":
        files.write(f"functions/{name}.ts", SUM + "// again")
    plan = planning.make(api, backend_files.read(files.folder))
    api.send("PUT", "/functions/b", {"source": SUM + "// theirs", "on": ["items.insert"]})
    with pytest.raises(Failure) as refused:
        planning.apply(api, plan)
    assert refused.value.message == "The environment changed since the plan. Push again."


def test_the_secret_of_a_new_webhook_is_printed_only_if_asked_for(files: Files) -> None:
    cli = files.cli
    unnamed = [{**HOOK, "name": None, "url": f"HTTP://127.0.0.1:8999/in0123456789abcdef{n}"} for n in range(2)]
    files.write("webhooks.json", [HOOK, *unnamed])
    shown = cli.run("push", "--show-secrets").stdout.splitlines()[-3:]
    ids = [each["name"] or each["id"] for each in cli.json("webhooks", "list")]
    assert sorted(line.partition(" whsec_")[0] for line in shown) == sorted(ids)
    files.write("webhooks.json", [{**HOOK, "name": "erp", "url": "http://127.0.0.1:8999/third"}])
    pushed = cli.run("push")
    assert "whsec_" not in pushed.stdout + pushed.stderr
    assert "platform webhooks rotate erp" in pushed.stderr


def test_webhooks_with_one_masked_url_are_told_apart_by_their_id(files: Files) -> None:
    cli = files.cli
    urls = [f"http://127.0.0.1:8999/in0123456789abcdef{n}" for n in range(2)]
    files.write("webhooks.json", [{**HOOK, "name": None, "url": url} for url in urls])
    cli.run("push")
    cli.run("pull", "--force")
    first, second = files.json("webhooks.json")
    assert first["url"] == second["url"] == "http://127.0.0.1:8999/$secret:path"
    assert _changes(cli, "plan") == []
    files.write("webhooks.json", [second | {"events": ["*"]}])
    assert _changes(cli, "push") == [f"change webhook {second['url']}: events"]
    found = {each["id"]: each["events"] for each in cli.json("webhooks", "list")}
    assert found == {first["id"]: HOOK["events"], second["id"]: ["*"]}
    files.write("webhooks.json", [second, second])
    assert "two webhooks have this id" in cli.run("plan", code=2).stderr


@pytest.mark.parametrize(
    "url",
    ["HTTP://127.0.0.1:8999/hook", "http://127.0.0.1:8999", "http://127.0.0.1:80/hook", "http://localhost.:8999/é"],
)
def test_a_url_that_the_service_writes_otherwise_is_the_same_webhook(files: Files, url: str) -> None:
    files.write("webhooks.json", [{**HOOK, "name": None, "url": url}])
    assert len(_changes(files.cli, "push")) == 1
    assert _changes(files.cli, "push") == []


def test_credentials_in_urls_are_neither_pulled_nor_changed(files: Files) -> None:
    cli = files.cli
    urls = {
        "slack": "https://hooks.slack.com/services/T0/B0/abcdefghijklmnopqrstuvwx",
        "query": "http://127.0.0.1:8999/in?token=s3cret&kind=",
        None: "http://127.0.0.1:8999/in0123456789abcdef",
    }
    hooks = [{**HOOK, "name": name, "url": url} for name, url in urls.items()]
    files.write("webhooks.json", hooks)
    planned = cli.run("plan")
    assert planned.stdout.splitlines() == [
        "create webhook query", "create webhook slack", "create webhook http://127.0.0.1:8999/$secret:url",
    ]  # fmt: skip
    pushed = cli.run("push")
    for token in ("abcdefghij", "s3cret", "in0123"):
        assert token not in planned.stdout + planned.stderr + pushed.stdout + pushed.stderr
    assert _changes(cli, "plan") == []

    pulled = cli.run("pull", "--force")
    left_out = "query, slack, http://127.0.0.1:8999/$secret:path"
    assert f"Credentials in URLs of webhooks are left out: {left_out}." in pulled.stderr
    written = {each.get("name"): each["url"] for each in files.json("webhooks.json")}
    assert written == {
        "slack": "https://hooks.slack.com/$secret:path",
        "query": "http://127.0.0.1:8999/in?token=$secret:token&kind=",
        None: "http://127.0.0.1:8999/$secret:path",
    }
    assert _changes(cli, "plan") == []
    changed = [each | {"events": ["*"]} for each in files.json("webhooks.json")]
    files.write("webhooks.json", changed)
    assert len(_changes(cli, "push")) == 3
    cli.run("pull", "--force", "--with-credentials")
    assert {each.get("name"): each["url"] for each in files.json("webhooks.json")} == urls

    same_url = [{**HOOK, "name": name, "url": "https://hooks.slack.com/$secret:path"} for name in ("new", "slack")]
    files.write("webhooks.json", same_url)
    for command in ("plan", "push"):
        [found] = cli.error(command, code=3)["fields"]
        assert (found["code"], found["location"]) == ("secret_missing", "backend/webhooks.json:4")


def test_warnings_name_their_file(files: Files) -> None:
    files.write("schema.json", {"tables": {"notes": {"columns": {"text": {"type": "text"}}}}})
    files.write("functions/pay.ts", '\nconst key = "sk_live_abcdefghijklmnop1234";\n' + SUM)
    files.write("functions.json", {"pay": {"on": ["nots.insert", "notes.*", "*.delete", "schema.migrated"]}})
    files.write("webhooks.json", [{**HOOK, "events": ["nots.insert"]}])
    warnings = files.cli.json("plan")["warnings"]
    assert sorted(each.partition(": There")[0] for each in warnings) == [
        "backend/functions.json:3: functions.pay.on",
        "backend/functions/pay.ts: functions.pay.source: Line 2 looks like it holds a secret. "
        "Read it from ctx.secrets.",
        f"backend/webhooks.json:4: this machine or a private network: {HOOK['url']}",
        "backend/webhooks.json:5: webhooks.crm.events",
    ]
    assert "sk_live" not in str(warnings)


def test_a_stopped_schedule_is_warned_of(files: Files) -> None:
    cli = files.cli
    files.write("functions/sum.ts", SUM)
    files.write("functions.json", {"sum": {"schedule": "0 0 1 1 *"}})
    assert cli.json("push")["warnings"] == []
    cli.run("branch", "create", "copy", "--from", "push")
    planned = cli.json("plan", "-e", "copy")
    assert planned["changes"] == []
    assert planned["warnings"] == [
        "backend/functions.json:3: functions.sum.schedule is stopped here (copied), and push leaves it so. "
        "To start it, save it in the console."
    ]
    files.write("functions.json", {"sum": {"schedule": "0 0 2 1 *"}})
    assert cli.json("push", "-e", "copy")["warnings"] == []
    assert cli.json("plan", "-e", "copy")["warnings"] == [], "a new schedule starts"
    cli.run("branch", "delete", "copy", "--yes")


def test_pull_overwrites_nothing_unless_forced(files: Files) -> None:
    cli = files.cli
    _pushed(files)
    hook = {"url": "http://127.0.0.1:8999/hook", "events": ["items.update", "items.insert"], "enabled": False}
    files.write("webhooks.json", [hook])
    cli.run("push")
    cli.run("pull")  # the order of events means nothing
    files.write("functions/sum.ts", "// mine")
    error = cli.error("pull", code=7)
    assert "backend/functions/sum.ts" in error["message"]
    assert (files.folder / "functions" / "sum.ts").read_text() == "// mine"
    (files.folder / "schema.json").write_bytes(b"\xff")
    cli.run("pull", "--force")
    assert files.json("schema.json") == SCHEMA
    assert (files.folder / "functions" / "sum.ts").read_bytes().decode() == SUM


@pytest.mark.parametrize(
    ("name", "text", "code", "message"),
    [
        ("schema.json", "", "invalid_file", "schema.json:1: "),
        ("schema.json", '{\n  "tables": {', "invalid_file", "schema.json:2: "),
        ("schema.json", "[]", "invalid_file", "an object"),
        ("schema.json", '{"tables": {}, "tables": {}}', "invalid_file", 'the key "tables" appears twice'),
        ("schema.json", '{"tables": NaN}', "invalid_file", "NaN"),
        ("schema.json", "[" * 100_000, "invalid_file", "schema.json"),
        ("schema.json", '{"tables": {"t": 0.1000000000000000055}}', "invalid_file", "0.1000000000000000055 would be rounded"),
        ("schema.json", '{"tables": 1e-99999999999999999999}', "invalid_file", "schema.json"),
        ("webhooks.json", '[{"url": 1}]', "invalid_file", "webhooks.json:1"),
        ("webhooks.json", '[{"url": "u"},\n{"url": "u"}]', "invalid_file", "webhooks.json:2"),
        ("webhooks.json", '[{"url": "http://a"},\n{"url": "http://a:80/"}]', "invalid_file", "webhooks.json:2"),
        ("webhooks.json", '[{"url": "u",\n"secret": "x"}]', "invalid_file", 'webhooks.json:2: there is no setting "secret"'),
        ("webhooks.json", '[{"url": "https://x/whsec_abcdefghijklmnopqrst"}]', "secret_in_file", "webhooks.json:1"),
        ("functions.json", '{"none": {}}', "invalid_file", "functions/none.ts"),
        ("functions.json", '{"sum":\n{"secrets": {"A": "b"}}}', "secret_in_file", "functions.json:2"),
        ("functions.json", '{"sum": {"memory": 1}}', "invalid_file", 'no setting "memory"'),
        ("functions/a b.ts", "", "invalid_file", "cannot be the name"),
        ("functions/sum.js", "", "invalid_file", "are one function"),
    ],
)  # fmt: skip
def test_a_file_with_a_mistake_changes_nothing(signed_out: Cli, name: str, text: str, code: str, message: str) -> None:
    """Refused before any request: these tests do not sign in."""
    files = Files(signed_out)
    files.write("functions/sum.ts", SUM)
    files.write(name, text)
    error = signed_out.error("push", code=2)
    assert error["code"] == code
    assert message in error["message"]


def test_a_new_project(signed_out: Cli, served: Up) -> None:
    signed_out.login(served.facts["account"])
    assert signed_out.error("init", " ", code=3)["fields"][0]["field"] == "name"
    assert not (signed_out.folder / "platform.json").exists()
    made = signed_out.json("init", "From a terminal")
    assert _changes(signed_out, "plan") == []
    signed_out.run("types")
    assert made["environment"] in (signed_out.folder / "types.ts").read_text()
    assert signed_out.error("init", "Another", code=7)["code"] == "linked"
    with httpx.Client(base_url=f"{served.base_url}/v1") as client:
        token = json.loads(signed_out.credentials.read_text())[served.base_url]["token"]
        gone = client.delete(f"/projects/{made['project']}", headers={"Authorization": f"Bearer {token}"})
        assert gone.status_code == 204
    assert signed_out.error("plan", code=5)["code"] == "not_found"


def test_no_folder(signed_out: Cli) -> None:
    error = signed_out.error("push", code=2)
    assert error["code"] == "no_folder"
    assert "`platform init NAME`" in error["hint"]


def test_a_function_of_the_service_cannot_lead_out_of_the_folder() -> None:
    for name in ("../x", "a/b", "", ".", "a\x00"):
        with pytest.raises(Failure):
            backend_files.check_name(name)
