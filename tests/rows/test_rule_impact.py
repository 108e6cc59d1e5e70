"""The impact of a change of rules: what each role and some users see before and after."""

import json
from typing import Any

import pytest

from projects.directory.environments import environment_ref
from rows.migrate import rule_impact
from rows.schema.model import MAX_ERRORS
from tests.rows.conftest import Tracker
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

SECRET = "for our eyes only"


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


@pytest.fixture
def tasks(tracker: Tracker) -> dict[str, str]:
    """A task each of alice and bob, and what is in it that they may not read."""
    made = {}
    for who in ("alice", "bob"):
        owner = tracker.users[who]
        tasks_list = tracker.post("key", "/rows/lists", {"name": f"{who}'s", "owner_id": owner}).json["id"]
        task = {"title": f"{who} <b>works</b>", "list_id": tasks_list, "owner_id": owner, "internal": SECRET}
        made[who] = tracker.post("key", "/rows/tasks", task).json["id"]
    return made


def test_the_impact_of_rules_for_whoever_has_not_signed_in_is_counted(tracker: Tracker, tasks: dict[str, str]) -> None:
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["anonymous"] = {"read": {"where": {"title": {"$startsWith": "alice"}}}}
    [told] = [one for one in rule_impact.of_change(environment, document) if one.label.startswith("role anonymous")]
    assert told.seen is not None
    assert (told.seen.before, told.seen.after, told.seen.appearing) == (0, 1, 1)
    assert "title" in told.columns_appearing


def changed(**rules: Any) -> dict[str, Any]:
    """DOCUMENT with other rules of tasks."""
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["user"].update(rules)
    return document


def told(tracker: Tracker, document: dict[str, Any], **how: Any) -> dict[str, rule_impact.Impact]:
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    return {each.label: each for each in rule_impact.of_change(environment, document, **how)}


def test_the_impact_of_a_rule_agrees_with_what_it_then_does(tracker: Tracker, tasks: dict[str, str]) -> None:
    for number in range(4):
        own = {"title": f"task {number}", "list_id": _list_of(tracker, "alice"), "owner_id": tracker.users["alice"]}
        assert tracker.post("key", "/rows/tasks", {**own, "done": number % 2 == 0}).status == 201
    document = changed(read={"where": {"done": False}})
    document["tables"]["tasks"]["rules"]["user"]["insert"]["columns"] = ["title", "list_id"]
    found = told(tracker, document)
    alice = found["alice@tracker.example (role user)"].seen
    assert alice is not None
    assert (alice.before, alice.after, alice.appearing, alice.vanishing, alice.is_sample) == (5, 4, 1, 2, False)
    anybody = found["role user, whoever it is"]
    assert anybody.seen is not None
    assert (anybody.seen.before, anybody.seen.after) == (0, 4)
    assert anybody.columns_appearing == ("internal",)

    def seen() -> set[str]:
        return {row["id"] for row in tracker.get("alice", "/rows/tasks?limit=100").json["data"]}

    before = seen()
    assert len(before) == alice.before
    tracker.apply(document)
    after = seen()
    assert (len(after), len(after - before), len(before - after)) == (alice.after, alice.appearing, alice.vanishing)
    assert told(tracker, document) == {}


def test_cells_that_appear_or_vanish_in_visible_rows_are_told(tracker: Tracker, tasks: dict[str, str]) -> None:
    own = {"where": {"owner_id": "$user.id"}, "columns": ["title", "internal"]}
    for hidden, shown in ((["title"], ["title", "internal"]), (["title", "done"], ["title"])):
        tracker.apply(changed(read=[own, {"columns": hidden}]))
        found = told(tracker, changed(read=[own, {"columns": shown}]))["alice@tracker.example (role user)"]
        assert found.seen is not None
        assert (found.seen.appearing, found.seen.vanishing) == (0, 0)
        more, fewer = (tuple(sorted({*a} - {*b})) for a, b in ((shown, hidden), (hidden, shown)))
        assert (found.columns_appearing, found.columns_vanishing) == (more, fewer)
    nobody = told(tracker, changed(read=[own, {"columns": ["title"]}, {**own, "where": {"done": True}}]))
    assert nobody["alice@tracker.example (role user)"].columns_appearing == ()


def test_roles_that_end_see_nothing(tracker: Tracker, tasks: dict[str, str]) -> None:
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    del document["tables"]["tasks"]["rules"]["user"]
    seen = told(tracker, document)["bob@tracker.example (role user)"].seen
    assert seen is not None
    assert (seen.before, seen.after, seen.vanishing) == (1, 0, 1)


def test_what_the_change_itself_makes_is_told_only_after_it(tracker: Tracker) -> None:
    document = changed(read={"where": {"fresh": True}})
    document["tables"]["tasks"]["columns"]["fresh"] = {"type": "boolean", "default": False}
    document["tables"]["lists"]["rules"]["user"]["read"] = {}
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    found = rule_impact.of_change(environment, document)
    [unknown] = [each for each in found if each.table == "tasks"]
    assert unknown.seen is None
    assert "use what the change creates" in unknown.why_not
    assert any(each.table == "lists" and each.seen is not None for each in found)


def test_unknown_rules_of_one_table_hide_no_other_tables(tracker: Tracker) -> None:
    """A document's first hundred errors may all be of one table."""
    document = changed(read={"where": {"fresh": True}})
    for name in ("lists", "tasks"):
        document["tables"][name]["columns"]["fresh"] = {"type": "boolean", "default": False}
    many = {"read": [{"where": {"fresh": True}}] * 4}
    document["tables"]["lists"]["rules"] = {f"role{number}": many for number in range(MAX_ERRORS // 4 + 1)}
    document["tables"]["comments"]["rules"]["user"]["read"] = {}
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    found = rule_impact.of_change(environment, document)
    assert {each.table for each in found if each.seen is None} == {"lists", "tasks"}
    assert any(each.table == "comments" and each.seen is not None for each in found)


def test_other_fields_of_embedded_users_are_told_by_role(tracker: Tracker) -> None:
    document: dict[str, Any] = {**DOCUMENT, "users": {"user": ["id", "name"], "anonymous": ["name"]}}
    tracker.apply(document)
    found = told(tracker, {**document, "users": {"user": ["id", "email"]}})
    assert {label: (each.table, each.columns_appearing, each.columns_vanishing) for label, each in found.items()} == {
        "role anonymous": (None, (), ("name",)),
        "role user": (None, ("email",), ("name",)),
    }


def test_a_sample_says_that_there_are_more(
    tracker: Tracker, tasks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_impact, "SAMPLES", (1,))
    seen = told(tracker, changed(read={}))["role user, whoever it is"].seen
    assert seen is not None
    assert (seen.is_sample, seen.before) == (True, 0)
    assert seen.after >= 1
    monkeypatch.setattr(rule_impact, "TOTAL_SECONDS", -1.0)
    late = told(tracker, changed(read={}))["role user, whoever it is"]
    assert (late.seen, late.why_not) == (None, "Not counted: no time was left for it.")


def _list_of(tracker: Tracker, who: str) -> str:
    [found] = tracker.get(who, "/rows/lists").json["data"]
    return str(found["id"])
