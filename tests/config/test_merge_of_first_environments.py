"""Merges of development and production, which were not branched from each other: both began empty.

The danger here: a wrong base, by which the merge would remove what only production has.
"""

import copy
from typing import Any

import pytest

from platform_site.config.models import MergeBase
from projects.models import Project
from tests.config.conftest import (
    SOURCE,
    Configured,
    Pair,
    change_schema,
    name_webhook_and_add_row,
    paths,
    rename_title,
    schema_of,
)
from tests.projects.conftest import environment_of

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("receivers_here"),
]
REGION = "us-east-1"
NOTES: dict[str, Any] = {"columns": {"title": {"type": "text"}, "done": {"type": "boolean", "default": False}}}


@pytest.fixture
def pair(configured: Configured, project: Project) -> Pair:
    """Production with something of every part, and the empty development."""
    name_webhook_and_add_row(configured)
    return Pair(configured, Configured(configured.api, configured.owner, environment_of(project, "development")))


def put(environment: Configured, **tables: Any) -> None:
    environment.call("PUT", "/v1/schema", {"document": {"tables": copy.deepcopy(tables)}})


def titles(environment: Configured, column: str = "title") -> list[str]:
    return [row[column] for row in environment.call("GET", "/v1/rows/notes")["data"]]


def test_an_empty_environment_takes_nothing_away(pair: Pair) -> None:
    plan = pair.plan("functions", "webhooks", "auth.redirect_uris")
    assert plan["changes"] == []
    assert [each["path"] for each in plan["conflicts"]] == ["auth.redirect_uris"]
    assert pair.merge()["confirm"] == []
    assert pair.plan()["changes"] == []
    assert titles(pair.production) == ["Tea"]


def test_what_only_production_has_stays_in_every_part(pair: Pair) -> None:
    def more(tables: Any) -> None:
        tables["notes"]["columns"]["extra"] = {"type": "text", "null": True}
        tables["notes"]["checks"] = {"short": {"title": {"$ne": ""}}}
        tables["notes"]["conditions"] = {"open": {"done": False}}
        tables["notes"]["unique"] = [["title"]]
        tables["notes"]["indexes"] = [["done"]]
        tables["legacy"] = {"columns": {"name": {"type": "text"}}}

    change_schema(pair.production, more)
    put(pair.branch, notes=NOTES, tags={"columns": {"name": {"type": "text"}}})
    pair.branch.call("PUT", "/v1/functions/new", {"source": SOURCE})
    before = pair.production.config()["config"]
    plan = pair.merge()
    assert (paths(plan), plan["conflicts"], plan["confirm"]) == ({"create table tags", "functions.new"}, [], [])
    after = pair.production.config()["config"]
    assert after["schema"]["tables"].pop("tags")
    assert after["functions"].pop("new")
    assert after == before
    assert titles(pair.production) == ["Tea"]


def test_what_both_have_differently_is_a_conflict(pair: Pair) -> None:
    put(pair.branch, notes={
        "columns": {"title": {"type": "integer"}, "done": {"type": "boolean", "default": False}},
        "rules": {"user": {"read": {"where": {"done": True}}}}, "id_prefix": "nts_",
    })  # fmt: skip
    pair.branch.call("PUT", "/v1/functions/digest", {"source": "export default () => 2", "timeout_ms": 1000})
    pair.branch.call(
        "POST", "/v1/webhooks", {"name": "crm", "url": "http://127.0.0.1:8080/dev", "events": ["notes.delete"]}
    )
    plan = pair.plan()
    expected = {
        "schema.tables.notes.columns.title", "schema.tables.notes.rules.user.read",
        "functions.digest.source", "functions.digest.timeout_ms", "webhooks.crm.events",
    }  # fmt: skip
    assert expected == {each["path"] for each in plan["conflicts"]}
    assert {each["base"] for each in plan["conflicts"]} == {None}
    refused = pair.production.apply(plan)
    assert (refused.status, refused.fields) == (422, {"resolve": "unresolved"})
    resolve = dict.fromkeys(expected, "ours")
    assert pair.production.apply(plan, resolve=resolve).status == 200
    assert titles(pair.production) == ["Tea"]
    settled = pair.plan()
    assert (settled["conflicts"], settled["changes"]) == ([], [])


def test_a_secret_that_only_one_has_is_no_conflict(pair: Pair) -> None:
    function = pair.production.config()["config"]["functions"]["digest"]
    for name, environment in (("ours", pair.production), ("theirs", pair.branch)):
        environment.call("PUT", f"/v1/functions/{name}", {"source": SOURCE, "secrets": {"TOKEN": "s3cret"}})
    for name, environment in (("ours", pair.branch), ("theirs", pair.production), ("digest", pair.branch)):
        environment.call("PUT", f"/v1/functions/{name}", {"source": SOURCE})
    plan = pair.plan()
    assert [each["path"] for each in plan["conflicts"]] == []
    pair.merge()
    merged = pair.production.config()["config"]["functions"]
    assert {name: each["secret_names"] for name, each in merged.items()} == {
        "digest": function["secret_names"], "ours": ["TOKEN"], "theirs": ["TOKEN"]
    }  # fmt: skip
    unset = pair.production.call("GET", "/v1/functions/theirs")["unset_secrets"]
    assert unset == ["TOKEN"], "the name is merged, the value is not"


def test_a_conflict_that_loses_data_is_confirmed(pair: Pair) -> None:
    put(pair.branch, notes={"columns": {"title": {"type": "text"}}})
    path = "schema.tables.notes"
    plan = pair.plan(resolve={path: "theirs"})
    assert plan["confirm"] == ["drop column notes.done"]
    body = {"plan": plan["plan"]}
    answer = pair.production.api.post(
        "/v1/config/apply", token=pair.production.token, environment=pair.production.id, json=body
    )
    assert (answer.status, answer.fields) == (422, {"confirm": "unconfirmed"})
    assert "done" in schema_of(pair.production)["notes"]["columns"]


def test_a_rename_before_the_first_merge_drops_nothing(pair: Pair) -> None:
    put(pair.branch, notes=NOTES)
    change_schema(pair.branch, rename_title)
    change_schema(pair.branch, lambda tables: tables["notes"]["columns"]["heading"].update(null=True))
    assert pair.merge()["confirm"] == []
    assert {"title", "heading"} <= schema_of(pair.production)["notes"]["columns"].keys()
    assert titles(pair.production) == ["Tea"]


def test_from_the_first_merge_on_renames_and_deletions_follow(pair: Pair) -> None:
    put(pair.branch, notes=NOTES, tags={"columns": {"name": {"type": "text"}}})
    assert paths(pair.merge()) == {"create table tags"}
    change_schema(pair.branch, rename_title)
    change_schema(pair.branch, lambda tables: tables.pop("tags"), confirm=["drop table tags"])
    plan = pair.merge()
    assert plan["confirm"] == ["drop table tags"]
    assert titles(pair.production, "heading") == ["Tea"]
    assert "digest" in pair.production.config("?parts=functions")["config"]["functions"], "development never had it"
    assert pair.plan()["changes"] == []


def test_what_production_dropped_before_the_first_merge_is_an_addition(pair: Pair) -> None:
    put(pair.branch, notes=NOTES)
    change_schema(pair.production, lambda tables: tables.clear(), confirm=["drop table notes"])
    plan = pair.plan()
    assert (paths(plan), plan["confirm"]) == ({"create table notes"}, [])


def test_merges_in_both_directions_share_one_base(pair: Pair) -> None:
    put(pair.branch, tags={"columns": {"name": {"type": "text"}}})
    assert pair.branch.apply(pair.back()).status == 200
    assert {"notes", "tags"} == schema_of(pair.branch).keys()
    change_schema(pair.branch, lambda tables: tables.pop("notes"), confirm=["drop table notes"])
    assert pair.plan()["confirm"] == ["drop table notes"], "development had it from production"
    change_schema(pair.production, lambda tables: tables["notes"]["columns"]["title"].update(max_length=40))
    assert [each["path"] for each in pair.plan()["conflicts"]] == ["schema.tables.notes"]
    pair.merge(resolve={"schema.tables.notes": "ours"})
    assert {"notes", "tags"} == schema_of(pair.production).keys()
    assert MergeBase.objects.using(REGION).count() == 1


def test_going_back_undoes_the_merge_for_the_next_one(pair: Pair) -> None:
    put(pair.branch, notes=NOTES)
    pair.merge()
    change_schema(pair.branch, rename_title)
    change_schema(pair.branch, lambda tables: tables["notes"]["columns"].update(kind={"type": "text", "null": True}))
    pair.branch.call("PUT", "/v1/functions/new", {"source": SOURCE})
    merged = pair.merge()
    schema, now = schema_of(pair.production), pair.plan()
    back = pair.production.ask({"version": merged["version"]}).json
    assert pair.production.apply(back).status == 200
    assert "kind" not in schema_of(pair.production)["notes"]["columns"]
    again = pair.plan()
    assert (paths(again), again["conflicts"], again["warnings"]) == (paths(merged), [], merged["warnings"])
    forward = pair.production.ask({"version": back["version"]}).json
    assert pair.production.apply(forward).status == 200
    assert (schema_of(pair.production), pair.plan()["changes"]) == (schema, now["changes"])
    branch = {"token": pair.branch.token, "environment": pair.branch.id}
    pair.branch.api.request("DELETE", "/v1/functions/new", **branch)
    assert pair.plan()["confirm"] == ["functions.new"], "the base moved with the configuration"


def test_going_back_before_the_first_merge(pair: Pair) -> None:
    put(pair.branch, notes=NOTES, tags={"columns": {"name": {"type": "text"}}})
    merged = pair.merge()
    assert pair.production.apply(pair.production.ask({"version": merged["version"]}).json).status == 200
    assert "tags" not in schema_of(pair.production)
    assert paths(pair.plan()) == {"create table tags"}


def test_settings_for_development_do_not_reach_production(pair: Pair) -> None:
    put(pair.branch, notes=NOTES)
    before = pair.production.config("?parts=auth,origins")["config"]
    plan = pair.merge()
    assert plan["confirm"] == []
    assert pair.production.config("?parts=auth,origins")["config"] == before
    plan = pair.plan("auth", resolve={"auth.redirect_uris": "ours"})
    assert [each["code"] for each in plan["warnings"]] == ["not_merged"]
    assert plan["changes"] == []
