"""`POST /v1/config/plan` with `from`: a three-way merge of two environments of a project.

The attackers here: a branch whose settings would send production's data or secrets elsewhere, and a merge that would
silently overwrite what changed in production.
"""

import copy
import json
from typing import Any

import pytest

from accounts import audit
from accounts.models import User
from platform_site.config.merge.three_way import Merger, Sides
from platform_site.config.models import MergeBase, StoredPlan
from projects import services
from projects.models import Project
from tests.config.conftest import (
    READ,
    SCHEMA,
    SOURCE,
    WRITE,
    Configured,
    Pair,
    change_schema,
    name_webhook_and_add_row,
    paths,
    rename_title,
    schema_of,
)
from tests.projects.conftest import environment_of, key_for, make_project, token_of

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("receivers_here"),
]
REGION = "us-east-1"


@pytest.fixture
def pair(configured: Configured, project: Project) -> Pair:
    name_webhook_and_add_row(configured)
    path = f"/v1/projects/{project.pk}/environments"
    branch = configured.call("POST", path, {"name": "blue", "from": "production"})
    return Pair(configured, Configured(configured.api, configured.owner, type("Place", (), {"pk": branch["id"]})()))


class TestOneSide:
    def test_a_branch_without_changes_changes_nothing(self, pair: Pair) -> None:
        plan = pair.plan()
        assert (plan["changes"], plan["conflicts"], plan["confirm"]) == ([], [], [])
        assert pair.back()["changes"] == []

    def test_changes_of_the_branch_arrive(self, pair: Pair) -> None:
        change_schema(pair.branch, lambda tables: tables.update(tags={"columns": {"name": {"type": "text"}}}))
        pair.branch.call("PUT", "/v1/functions/digest", {"source": "export default () => 2"})
        pair.branch.call("PUT", "/v1/functions/new", {"source": SOURCE, "timeout_ms": 1000})
        plan = pair.merge()
        assert paths(plan) == {"create table tags", "functions.digest.source", "functions.new"}
        assert plan["confirm"] == []
        assert schema_of(pair.production) == schema_of(pair.branch)
        functions = pair.production.config("?parts=functions")["config"]["functions"]
        assert functions["digest"]["source"] == "export default () => 2"
        assert functions["new"]["timeout_ms"] == 1000
        assert pair.plan()["changes"] == pair.back()["changes"] == []

    def test_going_back_before_a_reset_keeps_the_base_of_the_reset(self, pair: Pair, project: Project) -> None:
        change_schema(pair.branch, lambda tables: tables.update(tags={"columns": {"name": {"type": "text"}}}))
        merged = pair.merge()
        path = f"/v1/projects/{project.pk}/environments/{pair.branch.id}/reset"
        pair.production.call("POST", path, {"data": "none"})
        assert pair.production.apply(pair.production.ask({"version": merged["version"]}).json).status == 200
        plan = pair.plan()
        assert (plan["changes"], [each["field"] for each in plan["warnings"]]) == ([], ["schema.tables.tags"])

    def test_changes_of_production_stay(self, pair: Pair) -> None:
        change_schema(pair.production, lambda tables: tables.update(tags={"columns": {"name": {"type": "text"}}}))
        pair.production.call("PUT", "/v1/functions/digest", {"source": "export default () => 3"})
        assert pair.plan()["changes"] == []
        assert paths(pair.back()) == {"create table tags", "functions.digest.source"}

    def test_a_rename_stays_a_rename(self, pair: Pair) -> None:
        change_schema(pair.branch, rename_title)
        plan = pair.merge()
        assert plan["confirm"] == [], "nothing is dropped"
        [row] = pair.production.call("GET", "/v1/rows/notes")["data"]
        assert row["heading"] == "Tea"
        assert pair.plan()["changes"] == []

    def test_a_webhook_without_a_name_keeps_no_rename_from_being_merged(self, pair: Pair) -> None:
        body = {"url": "http://127.0.0.1:8080/hook", "events": ["notes.insert"], "filter": {"title": "a"}}
        webhook_id = pair.production.call("POST", "/v1/webhooks", body)["id"]
        change_schema(pair.branch, rename_title)
        [warning] = pair.merge()["warnings"]
        assert (warning["field"], warning["code"]) == (f"webhooks.{webhook_id}.filter", "renamed")
        assert "heading" in schema_of(pair.production)["notes"]["columns"]
        kept = pair.production.config("?parts=webhooks")["config"]["webhooks"][webhook_id]
        assert kept["filter"] == {"title": "a"}

    def test_a_renamed_table_keeps_its_rows(self, pair: Pair) -> None:
        def rename(tables: Any) -> None:
            tables["memos"] = {**tables.pop("notes"), "renamed_from": "notes"}

        change_schema(pair.branch, rename)
        assert pair.merge()["confirm"] == []
        assert len(pair.production.call("GET", "/v1/rows/memos")["data"]) == 1

    def test_a_deletion_stays_a_deletion_and_is_confirmed(self, pair: Pair) -> None:
        change_schema(
            pair.branch, lambda tables: tables["notes"]["columns"].pop("done"), confirm=["drop column notes.done"]
        )
        pair.branch.api.request("DELETE", "/v1/functions/digest", token=pair.branch.token, environment=pair.branch.id)
        plan = pair.merge()
        assert plan["confirm"] == ["drop column notes.done", "functions.digest"]
        assert pair.production.config("?parts=functions")["config"]["functions"] == {}


class TestBothSides:
    def test_the_same_change_on_both_sides(self, pair: Pair) -> None:
        for environment in (pair.production, pair.branch):
            environment.call("PUT", "/v1/functions/digest", {"source": "export default () => 5"})
            change_schema(environment, rename_title)
        plan = pair.plan()
        assert (plan["changes"], plan["conflicts"]) == ([], [])

    def test_different_changes_of_one_table(self, pair: Pair) -> None:
        change_schema(
            pair.production, lambda tables: tables["notes"]["columns"].update(a={"type": "text", "null": True})
        )
        change_schema(pair.branch, lambda tables: tables["notes"]["columns"].update(b={"type": "text", "null": True}))
        pair.merge()
        assert [*schema_of(pair.production)["notes"]["columns"]] == ["title", "done", "a", "b"]

    @pytest.mark.parametrize("renamed", ["production", "branch"])
    def test_a_rename_on_one_side_and_a_change_on_the_other(self, pair: Pair, renamed: str) -> None:
        sides = [pair.production, pair.branch]
        environment, other = sides if renamed == "production" else reversed(sides)
        change_schema(environment, rename_title)
        change_schema(other, lambda tables: tables["notes"]["columns"]["title"].update(max_length=40))
        plan = pair.merge()
        assert (plan["conflicts"], plan["confirm"]) == ([], [])
        assert schema_of(pair.production)["notes"]["columns"]["heading"] == {"type": "text", "max_length": 40}
        [row] = pair.production.call("GET", "/v1/rows/notes")["data"]
        assert row["heading"] == "Tea"
        assert pair.plan()["changes"] == []

    def test_what_production_removed_is_named_and_can_be_taken_again(self, pair: Pair) -> None:
        tag = {"columns": {"name": {"type": "text"}}}
        change_schema(pair.branch, lambda tables: tables.update(tags=tag))
        pair.merge()

        def remove(tables: Any) -> None:
            del tables["tags"], tables["notes"]["columns"]["done"]

        change_schema(pair.production, remove, confirm=["drop table tags", "drop column notes.done"])
        digest = {"token": pair.production.token, "environment": pair.production.id}
        pair.production.api.request("DELETE", "/v1/functions/digest", **digest)
        plan = pair.plan()
        removed = {"schema.tables.tags", "schema.tables.notes.columns.done", "functions.digest"}
        assert {(each["field"], each["code"]) for each in plan["warnings"]} == {(path, "kept") for path in removed}
        assert (plan["changes"], plan["conflicts"]) == ([], [])
        again = {"type": "boolean", "backfill": True}
        resolve = dict.fromkeys(removed, "theirs") | {"schema.tables.notes.columns.done": again}
        plan = pair.plan(resolve=resolve)
        assert ([each for each in plan["warnings"] if each["code"] == "kept"], plan["conflicts"]) == ([], [])
        assert pair.production.apply(plan).status == 200
        assert schema_of(pair.production)["tags"] == schema_of(pair.branch)["tags"]
        assert pair.production.config("?parts=functions")["config"]["functions"].keys() == {"digest"}
        [row] = pair.production.call("GET", "/v1/rows/notes")["data"]
        assert row["done"] is True

    def test_what_a_revert_took_back_is_named(self, pair: Pair) -> None:
        change_schema(pair.branch, rename_title)
        change_schema(pair.production, lambda tables: tables["notes"].update(indexes=[["done"]]))
        before = pair.production.call("GET", "/v1/schema")["version"]
        pair.merge()
        pair.production.call("POST", "/v1/schema/revert", {"version": before})
        change_schema(pair.production, lambda tables: tables.update(own={"columns": {"name": {"type": "text"}}}))
        plan = pair.plan()
        path = "schema.tables.notes.columns.title.name"
        assert (plan["changes"], [each["field"] for each in plan["warnings"]]) == ([], [path])
        pair.production.apply(pair.plan(resolve={path: "theirs"}))
        assert [*schema_of(pair.production)["notes"]["columns"]] == ["heading", "done"]
        assert pair.plan()["warnings"] == []

    def test_two_names_for_one_column_are_a_conflict(self, pair: Pair) -> None:
        def to_name(tables: Any) -> None:
            columns = tables["notes"]["columns"]
            columns["name"] = {**columns.pop("title"), "renamed_from": "title"}

        change_schema(pair.production, to_name)
        change_schema(pair.branch, rename_title)
        [conflict] = pair.plan()["conflicts"]
        assert conflict == {
            "path": "schema.tables.notes.columns.name.name", "base": "title", "ours": "name", "theirs": "heading"
        }  # fmt: skip
        pair.merge(resolve={conflict["path"]: "theirs"})
        [row] = pair.production.call("GET", "/v1/rows/notes")["data"]
        assert row["heading"] == "Tea"

    @pytest.mark.parametrize("side", ["ours", "theirs"])
    def test_rules_that_differ_by_the_two_names_are_no_conflicts(self, pair: Pair, side: str) -> None:
        def use_title(tables: Any) -> None:
            uses = {"columns": ["title", "done"], "where": {"$or": [{"title": "a"}, {"done": True}]}}
            tables["notes"] |= {
                "rules": {"user": {"read": {}, "update": uses}},
                "indexes": [["-title"]],
                "unique": [["title", "done"]],
            }

        def to(name: str) -> Any:
            def rename(tables: Any) -> None:
                renamed = json.loads(json.dumps(tables["notes"]).replace("title", name))
                renamed["columns"][name]["renamed_from"] = "title"
                tables["notes"] = renamed

            return rename

        change_schema(pair.production, use_title)
        assert pair.branch.apply(pair.back()).status == 200
        change_schema(pair.production, to("name"))
        change_schema(pair.branch, to("heading"))
        chosen = schema_of(pair.production if side == "ours" else pair.branch)
        [conflict] = pair.plan()["conflicts"]
        assert conflict["path"] == "schema.tables.notes.columns.name.name"
        pair.merge(resolve={conflict["path"]: side})
        assert schema_of(pair.production) == chosen

    def test_a_filter_may_name_a_column_of_a_schema_in_conflict(self, pair: Pair) -> None:
        change_schema(pair.production, lambda tables: tables["notes"]["columns"]["title"].update(max_length=40))
        change_schema(
            pair.branch, lambda tables: tables["notes"]["columns"].update(
                title={"type": "text", "max_length": 50}, kind={"type": "text", "null": True}
            )
        )  # fmt: skip
        webhooks = pair.branch.config("?parts=webhooks")["config"]["webhooks"]
        name = next(each for each in webhooks if not each.startswith("wh_"))
        pair.branch.applied(webhooks=webhooks | {name: webhooks[name] | {"filter": {"kind": "a"}}})
        plan = pair.plan()
        [conflict] = plan["conflicts"]
        applied = pair.production.apply(plan, resolve={conflict["path"]: "theirs"}, confirm=plan["confirm"])
        assert applied.status == 200, applied.json
        assert pair.production.config("?parts=webhooks")["config"]["webhooks"][name]["filter"] == {"kind": "a"}

    def test_delete_against_change(self, pair: Pair) -> None:
        change_schema(pair.branch, lambda tables: tables.clear(), confirm=["drop table notes"])
        change_schema(pair.production, lambda tables: tables["notes"]["columns"]["title"].update(max_length=40))
        plan = pair.plan()
        [conflict] = plan["conflicts"]
        assert (conflict["path"], conflict["theirs"]) == ("schema.tables.notes", None)
        answer = pair.production.apply(plan)
        assert (answer.status, answer.fields) == (422, {"resolve": "unresolved"})
        assert pair.production.apply(plan, resolve={conflict["path"]: "ours"}).status == 200
        assert "notes" in schema_of(pair.production)
        assert pair.plan()["changes"] == [], "the conflict is settled"

    def test_a_rule_deleted_here_and_changed_there_is_one_conflict(self) -> None:
        merger = Merger({})
        assert merger.mapping("rules.user", Sides({"read": {}}, {}, {"read": {"author": "$user"}})) == {}
        assert [each.path for each in merger.conflicts] == ["rules.user.read"]

    def test_a_resolution_that_loses_data_is_confirmed(self, pair: Pair) -> None:
        change_schema(pair.branch, lambda tables: tables.clear(), confirm=["drop table notes"])
        change_schema(pair.production, lambda tables: tables["notes"]["columns"]["title"].update(max_length=40))
        plan = pair.plan()
        resolve = {"schema.tables.notes": "theirs"}
        answer = pair.production.apply(plan, resolve=resolve)
        assert (answer.status, answer.fields) == (422, {"confirm": "unconfirmed"})
        assert pair.production.apply(plan, resolve=resolve, confirm=["drop table notes"]).status == 200
        assert schema_of(pair.production) == {}

    def test_a_column_type_against_a_rule_that_uses_it(self, pair: Pair) -> None:
        change_schema(pair.production, lambda tables: tables["notes"]["columns"].update(done={"type": "text"}))
        rule = {"where": {"done": {"$eq": True}}}
        change_schema(pair.branch, lambda tables: tables["notes"]["rules"].update(user={"read": rule}))
        [conflict] = pair.plan()["conflicts"]
        assert conflict["path"] == "schema.tables.notes.rules.user.read"
        assert (conflict["ours"], conflict["theirs"]) == ({}, rule)
        pair.merge(resolve={conflict["path"]: {"where": {"done": "true"}}})
        assert schema_of(pair.production)["notes"]["rules"]["user"]["read"] == {"where": {"done": "true"}}

    def test_names_that_are_swapped_are_a_conflict(self, pair: Pair) -> None:
        change_schema(
            pair.production, lambda tables: tables["notes"]["columns"].update(other={"type": "text", "null": True})
        )
        pair.back()
        pair.branch.apply(pair.back())

        def swap(tables: Any) -> None:
            columns = tables["notes"]["columns"]
            title, other = columns["title"], columns["other"]
            columns["title"], columns["other"] = {**other, "renamed_from": "other"}, {**title, "renamed_from": "title"}

        change_schema(pair.branch, swap)
        rule = {"where": {"title": "x"}}
        change_schema(pair.production, lambda tables: tables["notes"]["rules"].update(user={"read": rule}))
        assert {"schema.tables.notes.columns.title", "schema.tables.notes.columns.other"} <= {
            conflict["path"] for conflict in pair.plan()["conflicts"]
        }

    @pytest.mark.parametrize("side", ["ours", "theirs"])
    def test_a_column_that_was_created_again_is_resolved(self, pair: Pair, side: str) -> None:
        change_schema(
            pair.production, lambda tables: tables["notes"]["columns"].pop("done"), confirm=["drop column notes.done"]
        )
        again = {"type": "boolean", "null": True}
        change_schema(pair.production, lambda tables: tables["notes"]["columns"].update(done=again))
        [conflict] = pair.plan()["conflicts"]
        path = "schema.tables.notes.columns.done"
        before = schema_of(pair.branch)["notes"]["columns"]["done"]
        assert (conflict["path"], conflict["ours"], conflict["theirs"]) == (path, again, before)
        pair.merge(resolve={path: side})
        assert schema_of(pair.production)["notes"]["columns"]["done"] == (again if side == "ours" else before)
        assert pair.plan()["conflicts"] == []

    def test_a_resolution_removes_a_column_of_one_side(self, pair: Pair) -> None:
        extra = {"type": "text", "null": True}
        change_schema(pair.production, lambda tables: tables["notes"]["columns"].update(extra=extra))
        plan = pair.plan(resolve={"schema.tables.notes.columns.extra": "theirs"})
        assert (plan["conflicts"], plan["confirm"]) == ([], ["drop column notes.extra"])

    def test_tables_that_both_sides_created_again_are_resolved(self, pair: Pair) -> None:
        for side in (pair.production, pair.branch):
            change_schema(side, lambda tables: tables.update(tags={"columns": {"name": {"type": "text"}}}))
        assert pair.plan()["conflicts"] == []
        path = "schema.tables.notes"
        notes = schema_of(pair.production)["notes"]
        change_schema(pair.production, lambda tables: tables.pop("notes"), confirm=["drop table notes"])
        change_schema(pair.production, lambda tables: tables.update(notes=notes))
        assert path in {conflict["path"] for conflict in pair.plan()["conflicts"]}
        assert pair.plan(resolve={path: "ours"})["conflicts"] == []

    @pytest.mark.parametrize("side", ["ours", "theirs"])
    def test_of_tables_that_were_created_again_one_is_chosen_whole(self, pair: Pair, side: str) -> None:
        change_schema(pair.production, lambda tables: tables.pop("notes"), confirm=["drop table notes"])
        columns = {"title": {"type": "text"}, "mine": {"type": "text", "null": True}}
        change_schema(pair.production, lambda tables: tables.update(notes={"columns": columns}))
        chosen = schema_of(pair.production if side == "ours" else pair.branch)["notes"]
        plan = pair.plan(resolve={"schema.tables.notes": side})
        assert plan["conflicts"] == []
        pair.merge(resolve={"schema.tables.notes": side}, confirm=plan["confirm"])
        assert schema_of(pair.production)["notes"] == chosen
        assert pair.plan()["changes"] == []

    @pytest.mark.parametrize("side", ["ours", "theirs"])
    def test_a_resolved_name_takes_nothing_away_that_was_renamed(self, pair: Pair, side: str) -> None:
        """`title` became `heading` on one side, which has a new `title`."""

        def rename(tables: Any) -> None:
            rename_title(tables)
            tables["notes"]["columns"]["heading"]["null"] = True

        changed = pair.production if side == "ours" else pair.branch
        change_schema(changed, rename)
        change_schema(changed, lambda tables: tables["notes"]["columns"].update(title={"type": "text", "null": True}))
        path = "schema.tables.notes.columns.title"
        plan = pair.plan(resolve={path: side})
        assert plan["conflicts"] == []
        pair.merge(resolve={path: side}, confirm=plan["confirm"])
        assert {"heading", "title", "done"} <= schema_of(pair.production)["notes"]["columns"].keys()
        [row] = pair.production.call("GET", "/v1/rows/notes")["data"]
        assert row["heading" if side == "ours" else "title"] == "Tea"

    def test_function_against_function_shows_the_sources(self, pair: Pair) -> None:
        pair.production.call("PUT", "/v1/functions/digest", {"source": "export default () => 'ours'"})
        pair.branch.call("PUT", "/v1/functions/digest", {"source": "export default () => 'theirs'"})
        assert pair.plan()["conflicts"] == [
            {
                "path": "functions.digest.source", "base": SOURCE, "ours": "export default () => 'ours'",
                "theirs": "export default () => 'theirs'",
            }
        ]  # fmt: skip
        both = "export default () => 'both'"
        pair.merge(resolve={"functions.digest.source": both})
        assert pair.production.config("?parts=functions")["config"]["functions"]["digest"]["source"] == both

    def test_a_function_kept_against_its_deletion_brings_no_trust(self, pair: Pair) -> None:
        """What `theirs` brings back is new in production: its callers, hosts and triggers need `include`."""
        path, theirs = "functions.digest", "export default () => 'theirs'"
        settings = {"allowed_hosts": ["other.example"], "on": ["*"], "schedule": "@daily", "invoke": "public"}
        pair.branch.call("PUT", "/v1/functions/digest", {"source": theirs, **settings})
        pair.production.api.request(
            "DELETE", "/v1/functions/digest", token=pair.production.token, environment=pair.production.id
        )
        [conflict] = pair.plan()["conflicts"]
        assert (conflict["path"], conflict["ours"]) == (path, None)
        for resolution in (5, "other", [], {"source": "export default () => 'other'"}):
            answer = pair.ask(pair.production, pair.branch, resolve={path: resolution})
            assert (answer.status, answer.fields) == (422, {f"resolve.{path}": "not_among"})
        assert pair.plan(resolve={path: None})["changes"] == pair.plan(resolve={path: "ours"})["changes"] == []
        with_trust = paths(pair.plan(path, resolve={path: "theirs"}))
        assert with_trust == {path, *(f"{path}.{name}" for name in settings)}
        plan = pair.merge(resolve={path: "theirs"})
        assert plan["confirm"] == []
        merged = pair.production.config("?parts=functions")["config"]["functions"]["digest"]
        assert merged["source"] == theirs
        assert not {"allowed_hosts", "on", "schedule"} & {name for name, value in merged.items() if value}
        assert merged.get("invoke") != "public"

    def test_there_and_back_and_there_again(self, pair: Pair) -> None:
        change_schema(pair.branch, rename_title)
        pair.merge()
        change_schema(
            pair.production, lambda tables: tables["notes"]["columns"].update(a={"type": "text", "null": True})
        )
        assert pair.branch.apply(pair.back()).status == 200
        assert schema_of(pair.branch) == schema_of(pair.production)
        change_schema(pair.branch, lambda tables: tables["notes"]["columns"].pop("a"), confirm=["drop column notes.a"])
        assert pair.merge()["confirm"] == ["drop column notes.a"]


class TestTrust:
    def test_settings_that_carry_trust_keep_the_targets_values(self, pair: Pair, project: Project) -> None:
        settings = {
            "allowed_hosts": ["evil.example"], "schedule": "* * * * *", "on": ["*"], "invoke": "public",
        }  # fmt: skip
        pair.branch.call("PUT", "/v1/functions/digest", {"source": SOURCE, **settings})
        pair.branch.call("PUT", "/v1/functions/new", {"source": SOURCE, **settings})
        [crm] = pair.branch.call("GET", "/v1/webhooks")["data"]
        evil = {"url": "http://127.0.0.1:8080/evil", "enabled": True, "events": ["notes.delete"]}
        pair.branch.call("PATCH", f"/v1/webhooks/{crm['id']}", evil)
        pair.branch.call("POST", "/v1/webhooks", {"name": "spy", "url": "http://127.0.0.1:8080/spy", "events": ["*"]})
        pair.branch.call("PUT", "/v1/redirect-uris", {"redirect_uris": ["https://evil.example"]})
        path = f"/v1/projects/{project.pk}/environments/{pair.branch.id}"
        pair.branch.call("PATCH", path, {"allowed_origins": ["https://evil.example"]})
        before = pair.production.config()["config"]
        plan = pair.merge()
        assert paths(plan) == {"functions.new", "webhooks.crm.events"}
        assert {(warning["field"], warning["code"]) for warning in plan["warnings"]} == {
            *((f"functions.{name}.{key}", "not_included") for name in ("digest", "new") for key in settings),
            *((f"webhooks.{path}", "not_included") for path in ("crm.url", "spy")),
        }
        after = pair.production.config()["config"]
        assert after["functions"]["digest"] == before["functions"]["digest"]
        new = after["functions"]["new"]
        assert (new["allowed_hosts"], new["schedule"], new["on"], new["invoke"]) == ([], None, [], None)
        assert after["webhooks"] == {"crm": {**before["webhooks"]["crm"], "events": ["notes.delete"]}}
        assert (after["auth"], after["origins"]) == (before["auth"], before["origins"])

    def test_included_they_are_merged_and_confirmed_later_too(self, pair: Pair) -> None:
        pair.branch.call("PATCH", "/v1/functions/digest", {"allowed_hosts": ["c.example.com"]})
        assert pair.merge()["changes"] == []
        change_schema(pair.branch, rename_title)
        [warning] = pair.merge()["warnings"]
        assert warning["field"] == "functions.digest.allowed_hosts", "still left out"
        plan = pair.plan("functions.digest.allowed_hosts")
        assert plan["confirm"] == ["functions.digest.allowed_hosts"], "the base has not moved for it"
        assert pair.production.apply(plan).status == 200
        digest = pair.production.config("?parts=functions")["config"]["functions"]["digest"]
        assert digest["allowed_hosts"] == ["c.example.com"]

    def test_what_a_new_function_came_without_is_included_later(self, pair: Pair) -> None:
        settings = {"allowed_hosts": ["b.example.com"], "schedule": "0 6 * * *", "on": ["*"], "invoke": "public"}
        pair.branch.call("PUT", "/v1/functions/new", {"source": SOURCE, **settings})
        advised = [each["field"] for each in pair.merge()["warnings"]]
        assert {*advised} == {f"functions.new.{name}" for name in settings}
        plan = pair.plan(*advised)
        assert (plan["conflicts"], {*plan["confirm"]}) == ([], {*advised})

    def test_what_a_branch_turned_off_is_not_a_change_of_its_source(self, pair: Pair) -> None:
        """Only what production changed is left out of a merge into the branch: the copies of webhooks are off."""
        assert pair.back()["warnings"] == []
        pair.production.call("PATCH", "/v1/functions/digest", {"invoke": "key"})
        assert [each["field"] for each in pair.back()["warnings"]] == ["functions.digest.invoke"]
        assert pair.plan()["warnings"] == []
        assert pair.back("functions.digest.source", "functions.digest.invoke")["warnings"] == []

    def test_a_function_for_keys_does_not_open_to_users(self, pair: Pair) -> None:
        pair.branch.call("PUT", "/v1/functions/new", {"source": SOURCE, "invoke": "key"})
        assert pair.merge()["confirm"] == ["functions.new.invoke"]
        assert pair.production.config("?parts=functions")["config"]["functions"]["new"]["invoke"] == "key"

    def test_origins_and_redirect_uris_if_included(self, pair: Pair, project: Project) -> None:
        pair.branch.call("PUT", "/v1/redirect-uris", {"redirect_uris": ["https://b.example"]})
        [conflict] = pair.plan("auth", "origins")["conflicts"]
        assert conflict["path"] == "auth.redirect_uris", "they were not the same when it was branched"
        plan = pair.plan("auth", "origins", resolve={"auth.redirect_uris": "theirs"})
        assert paths(plan) == {"auth.redirect_uris"}
        assert pair.production.apply(plan).status == 200
        auth = pair.production.config("?parts=auth")["config"]["auth"]
        assert auth["redirect_uris"] == ["https://b.example"]
        assert list(auth["providers"]) == ["acme"], "a branch has none, which deletes none"

    def test_an_included_setting_moves_the_base(self, pair: Pair) -> None:
        pair.branch.call("PUT", "/v1/redirect-uris", {"redirect_uris": ["https://b.example"]})
        include = "auth.redirect_uris"
        plan = pair.plan(include, resolve={include: "theirs"})
        assert pair.production.apply(plan).status == 200
        pair.production.call("PUT", "/v1/redirect-uris", {"redirect_uris": []})
        plan = pair.plan(include)
        assert (plan["changes"], plan["conflicts"]) == ([], []), "only production changed it since the merge"

    def test_a_new_webhook_is_disabled_if_only_its_url_is_included(self, pair: Pair) -> None:
        spy = {"name": "spy", "url": "http://127.0.0.1:8080/spy", "events": ["*"]}
        pair.branch.call("POST", "/v1/webhooks", spy)
        [warning] = pair.merge("webhooks.spy.url")["warnings"]
        assert warning["field"] == "webhooks.spy.enabled"
        webhooks = pair.production.config("?parts=webhooks")["config"]["webhooks"]
        assert webhooks["spy"]["enabled"] is False
        pair.merge("webhooks.spy.enabled")
        assert pair.production.config("?parts=webhooks")["config"]["webhooks"]["spy"]["enabled"] is True

    def test_a_new_webhook_that_was_left_out_can_be_included_later(self, pair: Pair) -> None:
        pair.branch.call("POST", "/v1/webhooks", {"name": "spy", "url": "http://127.0.0.1:8080/spy", "events": ["*"]})
        change_schema(
            pair.branch, lambda tables: tables["notes"]["columns"].update(more={"type": "text", "null": True})
        )
        plan = pair.merge()
        assert [warning["field"] for warning in plan["warnings"]] == ["webhooks.spy"]
        pair.merge("webhooks.spy")
        assert "spy" in pair.production.config("?parts=webhooks")["config"]["webhooks"]

    def test_webhooks_without_a_name_are_left_alone(self, pair: Pair) -> None:
        url = {"url": "http://127.0.0.1:8080/a", "events": ["*"]}
        pair.production.call("POST", "/v1/webhooks", url)
        pair.branch.call("POST", "/v1/webhooks", url)
        plan = pair.plan("webhooks")
        assert (plan["changes"], [warning["code"] for warning in plan["warnings"]]) == ([], ["no_name"])


class TestRefused:
    def test_412_after_the_source_changed(self, pair: Pair) -> None:
        pair.branch.call("PUT", "/v1/functions/digest", {"source": "export default () => 2"})
        plan = pair.plan()
        pair.branch.call("PUT", "/v1/functions/digest", {"source": "export default () => 3"})
        assert pair.production.apply(plan).status == 412

    def test_after_the_source_was_deleted(self, pair: Pair, project: Project) -> None:
        plan = pair.plan()
        services.delete_environment(project.pk, pair.branch.id, actor=audit.SYSTEM)
        assert pair.production.apply(plan).status == 412
        assert pair.ask(pair.production, pair.branch).fields == {"from": "unknown"}
        assert not MergeBase.objects.using(REGION).filter(environment_id=pair.branch.id).exists()

    def test_itself_and_another_project(self, pair: Pair, bob: User) -> None:
        assert pair.ask(pair.production, pair.production).fields == {"from": "same"}
        theirs = make_project(bob, "Other", plan="pro")
        services.add_member(theirs.pk, email=pair.production.owner.email, role="owner", actor=audit.SYSTEM)
        elsewhere = copy.copy(pair.branch)
        elsewhere.id = environment_of(theirs).pk
        assert pair.ask(pair.production, elsewhere).fields == {"from": "unknown"}

    def test_after_the_parent_was_deleted(self, pair: Pair, project: Project) -> None:
        child = copy.copy(pair.branch)
        path = f"/v1/projects/{project.pk}/environments"
        child.id = pair.production.call("POST", path, {"name": "child", "from": pair.branch.id})["id"]
        child.call("PUT", "/v1/functions/digest", {"source": "export default () => 5"})
        answer = pair.ask(pair.branch, child)
        assert answer.status == 200
        services.delete_environment(project.pk, pair.branch.id, actor=audit.SYSTEM)
        assert pair.branch.apply(answer.json).status == 404
        assert pair.ask(pair.branch, child).status == 404
        assert pair.ask(child, pair.branch).fields == {"from": "unknown"}
        refused = pair.ask(pair.production, child)
        assert refused.status == 409, "they have no common base"
        message = refused.json["error"]["message"]
        assert "what child was branched from is deleted" in message
        assert message.endswith("`platform pull -e child`, then `platform push -e production`.")

    def test_viewers_and_keys_of_the_target(self, pair: Pair, bob: User, project: Project) -> None:
        services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
        body = {"from": pair.branch.id}
        api = pair.production.api
        viewer = api.post("/v1/config/plan", token=token_of(bob), environment=pair.production.id, json=body)
        assert viewer.status == 403
        assert all(scope in viewer.json["error"]["message"] for scope in ("schema:write", "functions:deploy", "webhooks:write"))  # fmt: skip
        key = key_for(pair.production.id, "schema:read", "schema:write")
        assert api.post("/v1/config/plan", token=key, json=body).fields == {"from": "unknown"}

    @pytest.mark.parametrize(
        ("body", "fields"),
        [
            ({"from": "production"}, {"from": "unknown"}),
            ({"from": 1}, {"from": "invalid"}),
            ({"include": ["rows"]}, {"include": "not_among"}),
            (
                {"include": ["functions.digest.invoke", "functions.digset", "webhooks.crm.secret"]},
                {"include.1": "unknown", "include.2": "unknown"},
            ),
            ({"resolve": {"schema.tables.nothing": "ours"}}, {"resolve.schema.tables.nothing": "unknown"}),
            ({"config": {"schema": SCHEMA}}, {"config": "required"}),
        ],
    )
    def test_bad_input(self, pair: Pair, body: Any, fields: Any) -> None:
        body = {"from": pair.branch.id, **body}
        answer = pair.production.ask(body)
        assert (answer.status, answer.fields) == (422, fields)

    def test_a_path_inside_a_merged_value_is_refused_with_that_of_the_value(self, pair: Pair) -> None:
        path = "schema.tables.notes.rules.user.read"
        answer = pair.ask(pair.production, pair.branch, resolve={f"{path}.columns.0": "ours"})
        [error] = answer.json["error"]["fields"]
        assert error["message"] == f"The merge has no such path, but {path}."

    def test_another_author_who_does_not_see_the_branch_is_refused_as_such(self, pair: Pair) -> None:
        change_schema(pair.branch, rename_title)
        answer = pair.production.apply(pair.plan(), key_for(pair.production.id, *READ, *WRITE))
        assert (answer.status, answer.error) == (403, "forbidden")
        assert "Only the author" in answer.json["error"]["message"]
        assert "title" in schema_of(pair.production)["notes"]["columns"]

    @pytest.mark.parametrize("path", ["schema.tables.notes.columns.title", "sk_live_c4n4ryc4n4ryc4n4ry"])
    def test_secrets_in_a_resolution_are_refused_and_not_stored(self, pair: Pair, path: str) -> None:
        resolve = {path: {"type": "text", "default": "sk_live_c4n4ryc4n4ryc4n4ry"}}
        for answer in (
            pair.ask(pair.production, pair.branch, resolve=resolve),
            pair.production.apply(pair.plan(), resolve=resolve),
        ):
            assert (answer.status, answer.fields) == (422, {"resolve": "secret"})
            assert "c4n4ry" not in answer.body.decode()
        assert "c4n4ry" not in str(list(StoredPlan.objects.using(REGION).values_list("merge", "document_text")))

    def test_a_new_column_gets_the_backfill_that_existing_rows_need(self, pair: Pair) -> None:
        change_schema(pair.branch, lambda tables: tables["notes"]["columns"].update(price={"type": "integer"}))
        path = "schema.tables.notes.columns.price"
        refused = pair.ask(pair.production, pair.branch)
        assert refused.status == 422, "production has rows"
        plan = pair.plan(resolve={path: {"type": "integer", "backfill": 7}})
        assert pair.production.apply(plan).status == 200
        [row] = pair.production.call("GET", "/v1/rows/notes")["data"]
        assert row["price"] == 7
        assert pair.plan()["changes"] == []
