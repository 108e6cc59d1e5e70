"""`merge`: a branch into production, with a conflict, and by callers that may not."""

import json

import pytest

from platform_site.developer_cli.api import Api
from platform_site.developer_cli.commands import merge
from platform_site.developer_cli.failures import Exit, Failure
from tests.developer_cli.conftest import Cli
from tests.support.live_changes import App

pytestmark = pytest.mark.served


def deploy(cli: Cli, environment: str, source: str) -> None:
    folder = cli.folder / "backend" / "functions"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "greet.ts").write_text(source)
    cli.run("push", "-e", environment)


def test_a_branch_is_merged_and_merged_again(cli: Cli, app: App) -> None:
    deploy(cli, "production", "export default () => 1")
    cli.run("branch", "create", "blue", "--from", "production")
    assert "nothing to merge" in cli.run("merge", "blue").stderr
    deploy(cli, "blue", "export default () => 2")
    shown = cli.run("merge", "blue", "--dry-run")
    assert shown.stdout == "change functions.greet.source\n"
    assert cli.error("merge", "blue", code=2)["code"] == "unconfirmed"
    question = cli.error("merge", "blue", code=2)["message"]
    place = f"production of {cli.json('status')['project']['name']}"
    assert question == f"Merge 1 change from blue into {place}?"
    merged = cli.json("merge", "blue", "--yes")
    assert (merged["applied"], merged["status"]) == (True, "applied")
    assert merged["environment"] == json.loads((cli.folder / "platform.json").read_text())["environment"]
    assert cli.json("invoke", "greet")["output"] == 2
    assert cli.json("merge", "blue")["applied"] is False

    deploy(cli, "production", "export default () => 'ours'")
    deploy(cli, "blue", "export default () => 'theirs'")
    done = cli.run("merge", "blue", "--yes", code=7)
    assert "conflict functions.greet.source" in done.stdout
    assert "ours: export default () => 'ours'" in done.stdout
    error = cli.error("merge", "blue", "--yes", code=7)
    assert [field["field"] for field in error["fields"]] == ["functions.greet.source"]
    path = "functions.greet.source"
    assert cli.error("merge", "blue", "--ours", path, "--theirs", path, code=2)["code"] == "usage"
    done = cli.run("merge", "blue", "--ours", path, "--yes")
    assert f"Merged blue into {place}. To go back: platform revert cfg_" in done.stderr
    assert cli.json("invoke", "greet")["output"] == "ours"
    cli.run("merge", "production", "-e", "blue", "--yes")
    assert cli.json("invoke", "greet", "-e", "blue")["output"] == "ours"
    cli.run("branch", "delete", "blue", "--yes")


def test_a_conflict_of_sources_shows_what_differs(cli: Cli) -> None:
    head = "".join(f"// line {number}\n" for number in range(60))
    deploy(cli, "production", f"{head}export default () => 'base'\n")
    cli.run("branch", "create", "blue", "--from", "production")
    for environment, value in (("production", "ours"), ("blue", "theirs")):
        deploy(cli, environment, f"{head}export default () => '{value}'\n")
    done = cli.run("merge", "blue", code=7)
    _, *shown = done.stdout.splitlines()
    assert [line.strip() for line in shown] == [
        *("--- base", "+++ ours", "@@ -60,2 +60,2 @@", "// line 59"),
        *("-export default () => 'base'", "+export default () => 'ours'"),
        *("--- base", "+++ theirs", "@@ -60,2 +60,2 @@", "// line 59"),
        *("-export default () => 'base'", "+export default () => 'theirs'"),
    ]
    assert "// line 59" not in done.stderr, "the error has only the beginning of each side"
    cli.run("branch", "delete", "blue", "--yes")


def test_a_value_gives_a_new_column_its_backfill(cli: Cli, app: App) -> None:
    cli.run("pull")
    schema = cli.folder / "backend" / "schema.json"
    document = json.loads(schema.read_text())
    cli.run("branch", "create", "backfill", "--from", "production")
    row = app.put("teams", name="Red")["id"]
    document["tables"]["teams"]["columns"]["country"] = {"type": "text"}
    schema.write_text(json.dumps(document))
    cli.run("push", "-e", "backfill")
    path = "schema.tables.teams.columns.country"
    refused = cli.run("merge", "backfill", "--yes", code=3)
    assert f"add --value '{path}=JSON'" in refused.stderr
    assert cli.error("merge", "backfill", "--value", path, code=2)["code"] == "usage"
    cli.run("merge", "backfill", "--value", f'{path}={{"type": "text", "backfill": "DE"}}', "--yes")
    assert app.ok("server", "GET", f"/rows/teams/{row}")["country"] == "DE"
    cli.run("branch", "delete", "backfill", "--yes")


def test_a_merge_is_reverted(cli: Cli) -> None:
    deploy(cli, "production", "export default () => 'before'")
    cli.run("branch", "create", "green", "--from", "production")
    deploy(cli, "green", "export default () => 'after'")
    version = cli.json("merge", "green", "--yes")["version"]
    assert cli.json("invoke", "greet")["output"] == "after"
    assert cli.run("revert", version, "--dry-run").stdout == "change functions.greet.source\n"
    assert cli.error("revert", version, code=2)["code"] == "unconfirmed"
    done = cli.run("revert", version, "--yes")
    assert f"is back at {version}. To undo this: platform revert cfg_" in done.stderr
    assert cli.json("invoke", "greet")["output"] == "before"
    assert "This is the configuration already." in cli.run("revert", version).stderr
    assert cli.json("revert", version)["applied"] is False
    cli.run("revert", done.stderr.split()[-1], "--yes")
    assert cli.json("invoke", "greet")["output"] == "after"
    for unknown in ("cfg_00000000000000000000000000", "x"):
        assert cli.error("revert", unknown, code=5)["code"] == "not_found"
    cli.run("branch", "delete", "green", "--yes")


@pytest.mark.parametrize(
    ("refused", "path"),
    [
        ("schema.tables.t.rules.user.insert.columns.5", "schema.tables.t.rules.user.insert"),
        ("schema.tables.t.columns.price.backfill", "schema.tables.t.columns.price"),
        ("schema.tables.t.unique.0.1", "schema.tables.t.unique"),
    ],
)
def test_the_hint_names_a_path_that_can_be_resolved(monkeypatch: pytest.MonkeyPatch, refused: str, path: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Failure(Exit.REFUSED, "validation_failed", "Wrong.", fields=[{"field": f"config.{refused}"}])

    api = Api("http://localhost", None)
    monkeypatch.setattr(api, "send", refuse)
    with pytest.raises(Failure) as failure:
        merge._planned(api, {})
    assert failure.value.hint == f"Change it in the source, or add --value '{path}=JSON'."


def test_development_is_merged_into_production(cli: Cli) -> None:
    deploy(cli, "development", "export default () => 'new'")
    plan = cli.json("merge", "development", "--theirs", "functions.greet.source", "--dry-run")
    assert (plan["conflicts"], plan["confirm"]) == ([], []), "production keeps what development lacks"
    cli.run("merge", "development", "--theirs", "functions.greet.source", "--yes")
    assert cli.json("invoke", "greet")["output"] == "new"


def test_mistakes(cli: Cli) -> None:
    assert cli.error("merge", "nothing", code=5)["code"] == "not_found"
    assert cli.error("merge", "production", code=3)["fields"][0]["code"] == "same"
    assert cli.error("merge", "development", "--include", "rows", code=3)["fields"][0]["field"] == "include"
    link = cli.folder / "platform.json"
    linked = json.loads(link.read_text())
    link.unlink()
    assert cli.error("merge", "blue", "-e", linked["environment"], code=2)["code"] == "not_linked"
    link.write_text(json.dumps(linked))
