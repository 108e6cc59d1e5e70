"""Rules by form: the common ones in words, all others as JSON, and none changed by being opened and saved."""

import copy
import re
from html import unescape
from typing import Any

import pytest

from platform_site.developer_console.forms import Form
from platform_site.developer_console.schema import rule_forms
from platform_site.developer_console.schema.parts import Part
from platform_site.http.errors import ApiError
from tests.developer_console.conftest import DOCUMENT, Desk
from tests.rows.conftest import Tracker
from tests.support.schema_forms import code, draft_of, save, submit, table_after, text_of

ME = "$user.id"
TABLE: dict[str, Any] = {
    "columns": {"title": {"type": "text"}, "owner": {"type": "user"}, "editor": {"type": "user", "null": True}},
    "conditions": {"mine": {"owner_id": ME}},
}


def document_with(action: str, rule: Any, role: str = "user") -> dict[str, Any]:
    return {"tables": {"tasks": {**copy.deepcopy(TABLE), "rules": {role: {action: rule}}}}}


def opened_and_saved(document: dict[str, Any], part: Part, **changes: str) -> dict[str, Any]:
    opened = Form("part", rule_forms.fields_of(document, part), rule_forms.values_of(document, part))
    values = {**{bound.field.name: bound.value for bound in opened}, **changes}
    rule_forms.save(document, part, values["part_action"], values)
    return document


@pytest.mark.parametrize("role", ["user", "anonymous", "server", "editor"])
@pytest.mark.parametrize(
    ("action", "rule", "rows"),
    [
        ("read", {}, "all"),
        ("read", {"where": {}}, "all"),
        ("read", {"columns": []}, "all"),
        ("read", {"where": {"owner_id": ME}, "columns": ["*", "-title"]}, "owner"),
        ("read", {"where": {"editor_id": ME}}, "owner"),
        ("read", {"where": {"$is": "mine"}}, "condition"),
        ("read", {"where": {"$is": "unknown"}}, "json"),
        ("read", {"where": {"$is": ["mine"]}}, "json"),
        ("read", {"where": {"title": ME}}, "json"),
        ("read", {"where": {"owner_id": ME, "title": "x"}}, "json"),
        ("read", {"where": {"owner_id": {"$eq": ME}}}, "json"),
        ("read", {"where": []}, "json"),
        ("delete", {"where": {"$or": [{"owner_id": ME}, {"$is": "mine"}]}}, "json"),
        ("delete", {"where": {"owner_id": ME}}, "owner"),
        ("update", {"where": {"owner_id": ME}, "check": {}, "set": {}}, "owner"),
        ("update", {"where": {"owner_id": ME}, "check": {"title": {"$ne": "$old.title"}}}, "owner"),
        ("insert", {}, "all"),
        ("insert", {"check": {}, "set": {"title": "x"}}, "all"),
        ("insert", {"set": {"owner_id": ME}}, "owner"),
        ("insert", {"set": {"title": "x", "owner_id": ME}, "columns": ["*", "-editor"]}, "owner"),
        ("insert", {"set": {"owner_id": ME, "editor_id": ME}}, "all"),
        ("insert", {"check": {"$is": "mine"}, "set": {"title": "x"}}, "condition"),
        ("insert", {"check": {"owner_id": ME}}, "json"),
        ("insert", {"check": {"title": {"$ne": 1}}, "set": {"owner_id": ME}}, "json"),
        ("read", {"where": {"owner_id": ME}, "of_the_future": {"x": 1}}, "owner"),
        ("insert", {"where": {"owner_id": ME}}, "all"),
        ("read", [{"where": {"owner_id": ME}}, {"columns": ["title"]}], None),
    ],
)
def test_a_rule_that_is_opened_and_saved_is_the_same(role: str, action: str, rule: Any, rows: str | None) -> None:
    document = document_with(action, rule, role)
    part = Part("rule", "tasks", role, action)
    assert rule_forms.values_of(document, part).get("part_rows") == rows
    before = copy.deepcopy(document)
    assert opened_and_saved(document, part) == before
    offered = {field.name: [value for value, _ in field.choices] for field in rule_forms.fields_of(document, part)}
    assert rows is None or rows in offered["part_rows"]


@pytest.mark.parametrize(
    ("action", "chosen", "rule"),
    [
        ("read", {"part_rows": "all"}, {}),
        ("read", {"part_rows": "owner", "part_owner": "editor_id"}, {"where": {"editor_id": ME}}),
        ("delete", {"part_rows": "condition", "part_condition": "mine"}, {"where": {"$is": "mine"}}),
        ("insert", {"part_rows": "owner", "part_owner": "owner_id"}, {"set": {"owner_id": ME}}),
        ("insert", {"part_rows": "condition", "part_condition": "mine"}, {"check": {"$is": "mine"}}),
        ("read", {"part_rows": "json", "part_where": '{"title": 1}', "part_set": '{"title": 2}'},
         {"where": {"title": 1}}),
        ("insert", {"part_rows": "json", "part_where": '{"title": 1}', "part_check": '{"title": 2}'},
         {"check": {"title": 2}}),
    ],
)  # fmt: skip
def test_a_choice_says_its_condition_and_no_other(action: str, chosen: dict[str, str], rule: Any) -> None:
    document = document_with("read", {})
    part = Part("rule", "tasks")
    opened_and_saved(document, part, part_who="role", part_name="editor", part_action=action, **chosen)
    assert document["tables"]["tasks"]["rules"]["editor"] == {action: rule}


def test_a_new_rule_begins_with_the_rows_of_the_owner() -> None:
    values = rule_forms.values_of({"tables": {"tasks": copy.deepcopy(TABLE)}}, Part("rule", "tasks"))
    assert (values["part_who"], values["part_rows"], values["part_owner"]) == ("user", "owner", "owner_id")


def test_a_table_without_owners_and_conditions_offers_no_empty_choice() -> None:
    table = {"columns": {"title": {"type": "text"}}}
    fields = rule_forms.fields_of({"tables": {"tasks": table}}, Part("rule", "tasks"))
    assert [each.name for each in fields if each.kind == "select" and not each.choices] == []


def test_a_rule_of_another_action_takes_along_only_what_fits() -> None:
    document = document_with("update", {"where": {"owner_id": ME}, "check": {}, "columns": ["title"]})
    opened_and_saved(document, Part("rule", "tasks", "user", "update"), part_action="delete")
    assert document["tables"]["tasks"]["rules"] == {"user": {"delete": {"where": {"owner_id": ME}}}}


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        ({"part_rows": "everything"}, "part_rows"),
        ({"part_rows": "owner", "part_owner": "title"}, "part_owner"),
        ({"part_rows": "owner", "part_owner": ""}, "part_owner"),
        ({"part_rows": "condition", "part_condition": "other"}, "part_condition"),
        ({"part_rows": "json", "part_where": "{"}, "part_where"),
        ({"part_who": "role", "part_name": " "}, "part_name"),
    ],
)
def test_a_choice_that_is_none_opens_nothing(chosen: dict[str, str], field: str) -> None:
    document = document_with("read", {"where": {"owner_id": ME}})
    with pytest.raises(ApiError) as refused:
        opened_and_saved(document, Part("rule", "tasks", "user", "read"), **chosen)
    assert [each.field for each in refused.value.fields] == [field]


@pytest.mark.django_db(transaction=True, databases="__all__")
class TestThePage:
    def test_everybody_is_two_rules(self, tracker: Tracker, desk: Desk) -> None:
        made = save(desk, code("rule", "tasks"), who="everybody", action="insert", rows="all", columns="title")
        rules = table_after(made)["rules"]
        assert rules["anonymous"] == {"insert": {"columns": ["title"]}}
        assert rules["user"]["insert"] == rules["anonymous"]["insert"]
        again = save(desk, code("rule", "tasks"), draft_of(made), who="everybody", action="insert", rows="all")
        assert again.status_code == 422
        assert draft_of(again) == draft_of(made)

    def test_one_role_of_both_keeps_the_rule_of_the_other(self, desk: Desk) -> None:
        part = code("rule", "tasks", "user", "read")
        made = save(desk, part, who="everybody", action="read", rows="all", columns="title")
        assert table_after(made)["rules"] == {
            "user": {"read": {"columns": ["title"]}}, "anonymous": {"read": {"columns": ["title"]}},
        }  # fmt: skip

    def test_the_form_shows_the_rule_of_the_document_and_the_json_follows(self, tracker: Tracker, desk: Desk) -> None:
        form = text_of(submit(desk, f"edit {code('rule', 'tasks', 'user', 'read')}"))
        assert re.search(r'value="owner" selected', form)
        assert re.search(r'value="owner_id" selected', form)
        saved = save(desk, code("rule", "tasks", "user", "read"), who="user", action="read", rows="all")
        assert table_after(saved)["rules"]["user"]["read"] == {}
        assert "read" in text_of(saved)
        assert tracker.get("owner", "/schema").json["version"] == 1

    def test_the_error_of_the_api_stays_in_the_form(self, desk: Desk) -> None:
        refused = save(
            desk, code("rule", "tasks"), who="role", name="editor", action="read", rows="owner", owner="owner_id",
            columns="nothing",
        )  # fmt: skip
        assert refused.status_code == 422
        assert 'id="part-part_columns-problem"' in unescape(refused.content.decode())

    def test_a_table_without_users_and_conditions_offers_neither(self, desk: Desk) -> None:
        bare = copy.deepcopy(DOCUMENT)
        bare["tables"] = {"plain": {"columns": {"title": {"type": "text"}}}}
        form = text_of(submit(desk, f"edit {code('rule', 'plain')}", bare))
        assert 'value="all" selected' in form
        assert 'value="owner"' not in form
        assert '<option value="condition"' not in form
