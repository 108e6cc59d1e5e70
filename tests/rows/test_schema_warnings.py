"""What a valid document allows and is seldom meant: said with its plan, and kept from nothing."""

from typing import Any

import pytest

from rows.migrate import lint
from rows.migrate import service as schema_service
from rows.schema.model import MAX_ERRORS

STAFF: dict[str, Any] = {
    "shops": {
        "columns": {"name": {"type": "text"}, "owner": {"type": "user"}},
        "rules": {"user": {"read": {}}},
    },
    "staff": {
        "columns": {
            "shop": {"type": "reference", "to": "shops"},
            "person": {"type": "user"},
            "role": {"type": "enum", "values": ["manager", "barber"], "default": "barber"},
        },
        "rules": {},
    },
    "slots": {"columns": {"shop": {"type": "reference", "to": "shops"}}, "rules": {}},
}
MANAGES = {"shop.staff": {"$some": {"person_id": "$user.id", "role": "manager"}}}


def found(**rules: Any) -> list[tuple[str, str]]:
    """Path behind `tables.` and code of what is said of `staff` (or of the table that is named) under these rules."""
    document = {"tables": {name: {**table, "rules": rules.get(name, table["rules"])} for name, table in STAFF.items()}}
    return [(each.field.removeprefix("tables."), each.code) for each in lint.of(schema_service.read(document))]


def test_a_column_that_may_be_overwritten_and_not_read_is_named() -> None:
    update = {"update": {"where": {"person_id": "$user.id"}}}
    hidden = {"user": {"read": {"columns": ["*", "-role", "-created_at"]}, **update}}
    assert found(staff=hidden) == [("staff.rules.user.update", "hidden")]
    [said] = lint.of(schema_service.read({"tables": {**STAFF, "staff": {**STAFF["staff"], "rules": hidden}}}))
    assert said.message.startswith("user may overwrite role without reading")
    for fine in (
        {"user": {"read": {}, **update}},
        {"user": {"read": {"columns": ["*", "-role"]}, "update": {"columns": ["shop", "person"]}}},
        {"user": {"read": {"columns": ["*", "-role"]}, "update": {"set": {"role": "barber"}}}},
        # Hidden in some rows only; and a form, to be filled in by callers that read nothing.
        {"user": {"read": [{"columns": ["shop"]}, {"where": {"person_id": "$user.id"}}], **update}},
        {"anonymous": {"insert": {}}},
    ):
        assert found(staff=fine) == [], fine


def test_check_over_columns_a_role_cannot_read_is_reported() -> None:
    check = {"sane": {"price": {"$lte": {"$column": "top"}}}}
    columns = {"price": {"type": "integer"}, "top": {"type": "integer"}, "name": {"type": "text"}}

    def told(rules: dict[str, Any]) -> list[tuple[str, str]]:
        document = {"tables": {"bids": {"columns": columns, "checks": check, "rules": rules}}}
        return [(each.field, each.code) for each in lint.of(schema_service.read(document))]

    hidden = {"read": {"columns": ["*", "-top"]}}
    partly = {"read": [{"columns": ["price"]}, {"where": {"name": "x"}}]}
    warned = [("tables.bids.rules.user.update", "hidden_in_check")]
    for rules in (
        {"user": {**hidden, "update": {"columns": ["price"]}}},
        {"user": {**hidden, "update": {"columns": ["name"], "set": {"price": 1}}}},
        {"user": {**partly, "update": {"columns": ["price"]}}},
    ):
        assert told(rules) == warned
    for rules in (
        {"user": {"read": {}, "update": {}}},
        {"user": {**hidden, "update": {"columns": ["name"]}}},
        {"user": {**hidden, "insert": {}}},
    ):
        assert told(rules) == []


@pytest.mark.parametrize(
    "check",
    [
        MANAGES,
        {"$or": [{"shop.owner_id": "$user.id"}, MANAGES]},
        {"$or": [{"person_id": {"$ne": "$user.id"}}, MANAGES]},
        {"$or": [{"person_id": {"$ne": "$user.id"}, **MANAGES}, {"role": "manager", **MANAGES}]},
        {"shop": {"$some": {"staff": {"$some": {"person_id": "$user.id"}}}}},
        {"role": "manager", **MANAGES},
    ],
)
def test_a_check_that_the_row_may_fulfil_by_itself_is_named(check: dict[str, Any]) -> None:
    """A user who inserts the first manager's row becomes a manager: a check sees the rows after the write."""
    assert found(staff={"user": {"read": {}, "insert": {"check": check}}}) == [
        ("staff.rules.user.insert.check", "vouches_for_itself")
    ]
    assert found(staff={"user": {"read": {}, "update": {"columns": ["role"], "check": check}}}) == [
        ("staff.rules.user.update.check", "vouches_for_itself")
    ]


@pytest.mark.parametrize(
    "insert",
    [
        {"check": {"person_id": {"$ne": "$user.id"}, **MANAGES}},
        {"check": {"role": "barber", **MANAGES}},
        {"check": {"$or": [{"shop.owner_id": "$user.id"}, {"person_id": {"$ne": "$user.id"}, **MANAGES}]}},
        {"check": {"role": "barber", "$or": [{"shop.owner_id": "$user.id"}, MANAGES]}},
        {"set": {"role": "barber"}, "check": MANAGES},
        {"check": {"shop.owner_id": "$user.id"}},
        {"check": {"shop.staff": {"$none": {"person_id": "$user.id"}}}},
        {},
    ],
)
def test_a_check_that_the_row_cannot_fulfil_by_itself_is_not(insert: dict[str, Any]) -> None:
    assert found(staff={"user": {"read": {}, "insert": insert}}) == []


def test_what_is_asked_of_the_row_before_or_of_another_table_is_not_named() -> None:
    assert found(staff={"user": {"read": {}, "update": {"where": MANAGES}, "delete": {"where": MANAGES}}}) == []
    assert found(slots={"user": {"read": {}, "insert": {"check": MANAGES}}}) == []


def test_every_role_is_looked_at_and_no_more_is_said_than_errors_are() -> None:
    rules = {"read": {"columns": ["shop"]}, "update": {}}
    roles = ["user", "member", "server", "anonymous", "editor"]
    assert found(staff=dict.fromkeys(roles, rules)) == [(f"staff.rules.{role}.update", "hidden") for role in roles]
    many = {**STAFF["staff"], "rules": {f"role{number}": rules for number in range(32)}}
    document = {"tables": {**STAFF, **{f"staff{number}": many for number in range(4)}}}
    assert len(lint.of(schema_service.read(document))) == MAX_ERRORS


@pytest.mark.parametrize("operator", ["$like", "$ilike"])
def test_a_variable_in_a_pattern_is_pointed_out(operator: str) -> None:
    where = {
        "$or": [{"name": {operator: "$user.email"}}, {"name": {operator: "$$5"}}, {"name": {"$ieq": "$user.email"}}]
    }
    assert found(shops={"user": {"read": {"where": where}}}) == [("shops.rules.user.read", "variable_in_pattern")]


@pytest.mark.parametrize(
    ("role", "meant"),
    [("anonymus", "anonymous"), ("users", "user"), ("servers", "server"), ("anon", "anonymous")],
)
def test_a_misspelled_built_in_role_is_pointed_out(role: str, meant: str) -> None:
    warned = [(f"users.{role}", "misspelled_role"), (f"tables.notes.rules.{role}", "misspelled_role")]
    document = {
        "users": {role: ["name"]},
        "tables": {"notes": {"columns": {"body": {"type": "text"}}, "rules": {role: {"read": {}}}}},
    }
    found = lint.of(schema_service.read(document))
    assert [(each.field, each.code) for each in found] == warned
    assert found[0].message.endswith(f'did you mean "{meant}"?')


def test_other_roles_are_not_taken_for_misspelled_ones() -> None:
    roles = ("editor", "observer", "superuser", "membership", "manager", "service")
    assert found(shops={role: {"read": {}} for role in roles}) == []
