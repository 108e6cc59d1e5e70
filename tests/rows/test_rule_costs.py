"""Rules too large for one statement are refused when the schema is planned or applied."""

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from rows.migrate import service as schema_service
from rows.query.role_view import RoleView
from rows.query.sql import select
from rows.query.sql.conditions import TooLarge, compile_budget
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import Statement
from rows.rules import rule_costs, rules
from rows.write.statements import writes
from rows.write.statements.shapes import DeleteShape, InsertShape, UpdateShape
from tests.rows.conftest import Tracker
from tests.support.schema_documents import with_grants
from tests.support.tenants import ALICE, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")

TEXT = {"type": "text", "null": True}


LARGE = with_grants(grants=16, conditions=90)


@pytest.mark.parametrize("dry_run", [True, False])
def test_schema_whose_rows_no_statement_could_read_is_refused(make_tracker: Any, dry_run: bool) -> None:
    tracker: Tracker = make_tracker(with_grants(grants=2, conditions=2))
    body = {"document": LARGE, "dry_run": dry_run}
    before = time.thread_time()
    refused = tracker.call("owner", "PUT", "/schema", json=body)
    assert time.thread_time() - before < 2
    assert (refused.status, refused.fields) == (422, {"document.tables.a.rules.user": "too_large"})
    assert tracker.get("alice", "/rows/a").status == 200


def too_large(document: dict[str, Any], current: dict[str, Any] | None = None) -> list[str]:
    new, old = (schema_service.read(each or {"tables": {}}) for each in (document, current))
    return [error.field for error in rules.too_large(new, old, {})]


def test_only_the_role_with_large_rules_is_named() -> None:
    wide = deepcopy(LARGE)
    wide["tables"]["a"]["rules"]["editor"] = {"read": {"where": {"c0": "x"}}}
    assert too_large(wide) == ["tables.a.rules.user"]


def test_rules_that_are_too_large_already_may_stay() -> None:
    """An earlier version accepted them, and they are in backups."""
    wide = deepcopy(LARGE)
    wide["tables"]["a"]["rules"]["editor"] = wide["tables"]["a"]["rules"]["user"]
    assert too_large(wide, LARGE) == ["tables.a.rules.editor"]


def test_time_of_the_check_is_bounded() -> None:
    many = with_grants(grants=16, conditions=90, columns=16)
    many["tables"]["a"]["conditions"] = {"far": many["tables"]["a"]["rules"]["user"]["read"][0]["where"]}
    grants = [{"columns": [f"c{number}"], "where": {"$is": "far", "c1": str(number)}} for number in range(16)]
    many["tables"]["a"]["rules"] = {f"r{number}": {"read": grants} for number in range(32)}
    before = time.thread_time()
    assert len(too_large(many)) == 32
    assert time.thread_time() - before < 5


RULES: dict[str, Any] = {
    "read": [
        {"columns": ["*", "-x"], "where": {"$or": [{"b.name": "1"}, {"bs": {"$some": {"name": "2"}}}, {"x": None}]}},
        {"columns": ["x", "y"], "where": {"b_id": None, "$not": {"b.name": {"$in": ["1", "2"]}}}},
        {"columns": ["z"], "where": {"b.name": None, "$search": "k"}},
    ],
    "insert": {"check": {"x": "$user.id", "b.name": "1"}},
    "update": {"where": {"x": "$user.id", "b.name": "3"}, "check": {"y": "1"}},
    "delete": {"where": {"y": "1"}},
}
STATEMENTS: dict[str, Callable[[RoleView], Statement]] = {
    "read": lambda view: select.read(view, ReadShape("a")),
    "insert": lambda view: writes.insert(view, InsertShape("a")),
    "update": lambda view: writes.update(view, UpdateShape("a", ("x",))),
    "delete": lambda view: writes.delete(view, DeleteShape("a")),
}


@pytest.mark.parametrize("action", STATEMENTS)
def test_no_statement_evaluates_less_than_is_counted(action: str) -> None:
    columns = {**dict.fromkeys("xyz", TEXT), "b": {"type": "reference", "to": "b", "null": True, "related_name": "as"}}
    columns["up"] = {"type": "reference", "to": "a", "null": True, "related_name": "down"}
    far = {"name": TEXT, "a": {"type": "reference", "to": "a", "null": True, "related_name": "bs"}}
    own_table = deepcopy(RULES)
    for each in (own_table["update"], own_table["insert"]):
        each["check"] = {"up.up.x": "1"}
    for given in (RULES, own_table):
        tenant = Tenant({"tables": {"a": {"columns": columns, "rules": {"user": given}}, "b": {"columns": far}}})
        view = tenant.compiled.role_view(tenant.compiled.rules.role_key(ALICE))
        parts = [sum(map(rule_costs.cost, part)) for part in rule_costs.by_statement(view.access("a"))]
        counted = dict(zip(("read", "insert", "update", "check", "delete"), parts, strict=True))[action]
        with compile_budget(counted - 1), pytest.raises(TooLarge):
            STATEMENTS[action](view)
        if action in ("read", "delete"):
            with compile_budget(counted):
                STATEMENTS[action](view)
