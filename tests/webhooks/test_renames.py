"""A renamed or dropped column or table: the plan and the response list each webhook and function that still names it."""

import copy
from typing import Any

import pytest

from accounts.models import User
from tests.projects.conftest import environment_of, key_for, make_project
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.deliveries import write_list
from tests.support.functions import deploy
from tests.support.tracker import DOCUMENT

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

SOURCE = "export default async (_: any, ctx: any) => (await ctx.rows.list('tasks')).data.map((t: any) => t.title)"


def renamed(*, table: str = "tasks", **columns: str) -> dict[str, Any]:
    """The tracker's document with these columns of tasks, and the table, under another name."""
    document = copy.deepcopy(DOCUMENT)
    tasks = document["tables"]["tasks"]
    for old, new in columns.items():
        tasks["columns"][new] = tasks["columns"].pop(old) | {"renamed_from": old}
    names = {old: new for old, new in columns.items()}
    for rule in tasks["rules"]["user"].values():
        if "columns" in rule:
            rule["columns"] = [names.get(name, name) for name in rule["columns"]]
    if table != "tasks":
        document["tables"][table] = document["tables"].pop("tasks") | {"renamed_from": "tasks"}
        for other in document["tables"].values():
            for column in other["columns"].values():
                if column.get("to") == "tasks":
                    column["to"] = table
    return {"document": document}


def apply(tracker: Tracker, body: dict[str, Any], **more: Any) -> Answer:
    return tracker.call("owner", "PUT", "/schema", json=body | more)


def without(column: str | None = None, *, table: str = "tasks") -> dict[str, Any]:
    """The tracker's document without this column, or without this table and what refers to it."""
    document = copy.deepcopy(DOCUMENT)
    if column is None:
        del document["tables"][table]
        for other in document["tables"].values():
            other.pop("rules", None)
            other["columns"] = {n: c for n, c in other["columns"].items() if c.get("to") != table}
        return {"document": document}
    del document["tables"][table]["columns"][column]
    for rule in document["tables"][table]["rules"]["user"].values():
        if "columns" in rule:
            rule["columns"] = [name for name in rule["columns"] if name != column]
    return {"document": document}


def warned(answer: Answer, code: str = "renamed") -> dict[str, str]:
    assert answer.status == 200, answer.json
    return {each["field"]: each["message"] for each in answer.json["warnings"] if each["code"] == code}


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_still_has_the_old_name_of_a_column_is_listed(tracker: Tracker, subscribe: Any, dry_run: bool) -> None:
    by_key = subscribe(events=["tasks.insert"], filter={"title": "x"})["id"]
    nested = subscribe(events=["*"], filter={"$or": [{"done": True}, {"$not": {"title": {"$null": True}}}]})["id"]
    by_old = subscribe(events=["tasks.update"], filter={"internal": {"$ne": "$old.title"}})["id"]
    by_column = subscribe(events=["tasks.update"], filter={"internal": {"$eq": {"$column": "title"}}})["id"]
    listed = subscribe(events=["tasks.*"], columns={"tasks": ["done", "title"]})["id"]
    for values in (
        {"events": ["tasks.insert"], "filter": {"internal": "title"}},
        {"events": ["lists.insert"], "filter": {"name": "title"}},
        {"events": ["tasks.insert"], "columns": {"tasks": ["done"]}},
        {"events": ["tasks.insert"]},
    ):
        subscribe(**values)
    assert deploy(tracker, "titles", SOURCE).status == 201
    assert deploy(tracker, "heard", "export default (e: any) => e.data.record.title", on=["tasks.insert"]).status == 201
    for name, source in (
        ("lists", "export default () => 'title'"),
        ("subtitles", "export default () => ['tasks', 'subtitle']"),
    ):
        assert deploy(tracker, name, source).status == 201
    deploy(tracker, "earlier", SOURCE)
    deploy(tracker, "earlier", "export default () => 1")

    found = warned(apply(tracker, renamed(title="heading"), dry_run=dry_run))
    says = "This still names tasks.title, which becomes heading."
    assert found == {
        f"webhooks.{by_key}.filter": says,
        f"webhooks.{nested}.filter": says,
        f"webhooks.{by_old}.filter": says,
        f"webhooks.{by_column}.filter": says,
        f"webhooks.{listed}.columns.tasks.1": says,
        "functions.heard.source": says,
        "functions.titles.source": says,
    }


def test_a_reference_has_two_names(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(events=["tasks.insert"], filter={"parent_id": None})["id"]
    answer = apply(tracker, renamed(parent="above"), dry_run=True)
    assert warned(answer) == {f"webhooks.{made}.filter": "This still names tasks.parent_id, which becomes above_id."}


def test_what_still_has_the_old_name_of_a_table_is_listed(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(events=["lists.insert", "tasks.insert"], columns={"tasks": ["title"], "lists": ["name"]})["id"]
    subscribe(events=["*.insert"])
    assert deploy(tracker, "titles", SOURCE, on=["tasks.*"]).status == 201
    says = "This still names the table tasks, which becomes jobs."
    assert warned(apply(tracker, renamed(table="jobs"), dry_run=True)) == {
        f"webhooks.{made}.events.1": says,
        f"webhooks.{made}.columns.tasks": says,
        "functions.titles.on.0": says,
        "functions.titles.source": says,
    }


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_still_names_a_dropped_column_is_listed(tracker: Tracker, subscribe: Any, dry_run: bool) -> None:
    filtered = subscribe(events=["tasks.insert"], filter={"title": "x"})["id"]
    listed = subscribe(events=["tasks.*"], columns={"tasks": ["done", "title"]})["id"]
    subscribe(events=["lists.insert"], filter={"name": "title"}, columns={"lists": ["name"]})
    assert deploy(tracker, "titles", SOURCE).status == 201
    assert deploy(tracker, "others", "export default () => ['tasks', 'subtitle']").status == 201

    answer = apply(tracker, without("title"), confirm=["drop column tasks.title"], dry_run=dry_run)
    says = "This still names tasks.title, which the change drops."
    assert warned(answer, "dropped") == {
        f"webhooks.{filtered}.filter": says,
        f"webhooks.{listed}.columns.tasks.1": says,
        "functions.titles.source": says,
    }
    assert warned(answer) == {}


def test_a_dropped_reference_has_two_names(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(events=["tasks.insert"], filter={"parent_id": None})["id"]
    assert warned(apply(tracker, without("parent", table="tasks"), dry_run=True), "dropped") == {
        f"webhooks.{made}.filter": "This still names tasks.parent_id, which the change drops."
    }


def test_what_still_names_a_dropped_table_is_listed(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(events=["lists.insert", "tasks.insert"], columns={"tasks": ["title"], "lists": ["name"]})["id"]
    subscribe(events=["*.insert"], filter={"title": "x"})
    assert deploy(tracker, "titles", SOURCE, on=["tasks.*"]).status == 201
    says = "This still names the table tasks, which the change drops."
    assert warned(apply(tracker, without(), dry_run=True), "dropped") == {
        f"webhooks.{made}.events.1": says,
        f"webhooks.{made}.columns.tasks": says,
        "functions.titles.on.0": says,
        "functions.titles.source": says,
    }


def test_a_name_that_a_rename_takes_over_is_not_dropped(tracker: Tracker, subscribe: Any) -> None:
    subscribe(events=["tasks.insert"], filter={"title": "x", "internal": "x"})
    body = without("title")
    tasks = body["document"]["tables"]["tasks"]
    tasks["rules"]["user"]["read"]["columns"] = ["*"]
    tasks["columns"]["title"] = tasks["columns"].pop("internal") | {"renamed_from": "internal"}
    answer = apply(tracker, body, dry_run=True)
    assert warned(answer, "dropped") == {}
    assert list(warned(answer).values()) == ["This still names tasks.internal, which becomes title."]


def test_without_a_rename_and_after_it_nothing_is_listed(tracker: Tracker, subscribe: Any) -> None:
    subscribe(events=["tasks.insert"], filter={"title": "x"})
    document = copy.deepcopy(DOCUMENT)
    document["tables"]["tasks"]["columns"]["more"] = {"type": "text", "null": True}
    assert warned(apply(tracker, {"document": document})) == {}
    assert len(warned(apply(tracker, renamed(title="heading"), confirm=["drop column tasks.more"]))) == 1
    assert warned(apply(tracker, renamed(title="heading"))) == {}


def bigger(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The tracker's document with `changes` of tasks."""
    document = copy.deepcopy(document)
    document["tables"]["tasks"] |= changes
    return document


def test_filters_that_become_invalid_without_a_rename_are_listed(
    tracker: Tracker, subscribe: Any, dispatch: Any
) -> None:
    """By a condition that goes, another type, or a rule that hides the column: such a webhook would fall silent."""
    document = bigger(DOCUMENT, conditions={"titled": {"title": {"$startsWith": "A"}}})
    document["tables"]["tasks"]["columns"]["size"] = {"type": "integer", "null": True}
    tracker.apply(document)
    by_condition = subscribe(events=["tasks.insert"], filter={"$is": "titled"})["id"]
    by_type = subscribe(events=["tasks.insert"], filter={"size": {"$gte": 10}})["id"]
    by_rule = subscribe(events=["tasks.insert"], filter={"done": False}, columns={"tasks": ["done"]})["id"]
    subscribe(events=["tasks.insert"], filter={"title": "x"}, columns={"tasks": ["title"]})

    def listed(changed: dict[str, Any], **more: Any) -> set[str]:
        found = warned(apply(tracker, {"document": changed} | more), "invalid")
        assert all(message.startswith("The change makes this invalid. ") for message in found.values())
        return set(found)

    no_condition = bigger(document, conditions={})
    assert listed(no_condition, dry_run=True) == {f"webhooks.{by_condition}.filter.$is"}
    other_type = copy.deepcopy(document)
    other_type["tables"]["tasks"]["columns"]["size"]["type"] = "text"
    assert listed(other_type, dry_run=True) == {f"webhooks.{by_type}.filter.size.$gte"}
    rules = document["tables"]["tasks"]["rules"] | {"server": {"read": {"columns": ["title", "size"]}}}
    hidden = {f"webhooks.{by_rule}.filter.done", f"webhooks.{by_rule}.columns.tasks.0"}
    assert listed(bigger(document, rules=rules), dry_run=True) == hidden
    key = key_for(tracker.environment_id, "schema:write")
    body = {"document": no_condition, "dry_run": True}
    assert warned(tracker.api.request("PUT", "/v1/schema", token=key, json=body), "invalid") == {}

    assert listed(no_condition) == {f"webhooks.{by_condition}.filter.$is"}
    path = f"/webhooks/{by_condition}"
    [warning] = tracker.get("owner", path).json["warnings"]
    assert warning["field"] == "filter.$is"
    assert tracker.get("owner", f"/webhooks/{by_type}").json["warnings"] == []
    blind = tracker.api.get(f"/v1{path}", token=key_for(tracker.environment_id, "webhooks:read"))
    assert blind.json["warnings"] == [warning | {"message": "This is not valid for the schema."}]

    tracker.post(
        "owner", "/rows/tasks", {"title": "A", "list_id": write_list(tracker), "owner_id": tracker.users["alice"]}
    )
    dispatch()
    [delivery] = tracker.get("owner", f"{path}/deliveries").json["data"]
    assert (delivery["status"], delivery["outcome"]) == (
        "filtered",
        "the webhook's filter is not valid for tasks, at $is",
    )
    assert listed(bigger(no_condition, rules=rules)) == hidden, "not what is invalid already"


def test_the_caller_learns_only_of_what_it_may_read(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(events=["tasks.insert"], filter={"title": "x"})["id"]
    deploy(tracker, "titles", SOURCE)
    body = renamed(title="heading") | {"dry_run": True}
    expected = {
        (): set(),
        ("webhooks:read",): {f"webhooks.{made}.filter"},
        ("functions:read",): {"functions.titles.source"},
    }
    for scopes, fields in expected.items():
        key = key_for(tracker.environment_id, "schema:write", *scopes)
        assert set(warned(tracker.api.request("PUT", "/v1/schema", token=key, json=body))) == fields


def test_another_environment_is_not_looked_at(tracker: Tracker, subscribe: Any) -> None:
    subscribe(events=["tasks.insert"], filter={"title": "x"})
    deploy(tracker, "titles", SOURCE)

    other = environment_of(make_project(User.objects.get(environment_id=None, name="owner"), "Other"))
    key = key_for(other.pk, "schema:write", "webhooks:read", "functions:read")
    first = tracker.api.request("PUT", "/v1/schema", token=key, json={"document": DOCUMENT})
    assert first.status == 200, first.json
    answer = tracker.api.request("PUT", "/v1/schema", token=key, json=renamed(title="heading"))
    assert warned(answer) == {}
