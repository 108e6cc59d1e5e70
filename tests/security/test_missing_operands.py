"""Directus GHSA-hxgm-ghmv-xjjm: an empty `_in`, or a variable without a value, made a rule true of every row.

Threat T4: every operator, in every clause that can lean on a variable, against PostgreSQL itself. The same clauses are
decided in plain Python in tests/rows/test_rules.py, which also shows that each of them reads rows for some claim.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rows.rules.operators import ALL_OPERATORS
from rows.rules.principal import Principal
from rows.rules.rules import validate
from rows.schema.parser import parse
from tests.support.missing_operands import CLAIMS, uses
from tests.support.tenants import ALICE, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")

ROLES_PER_TABLE = 30

PAGES = {
    "body": {"type": "text"},
    "team": {"type": "text", "null": True},
    "level": {"type": "integer", "null": True},
    "tags": {"type": "text[]", "null": True},
    "meta": {"type": "json", "null": True},
    "task": {"type": "reference", "to": "tasks", "on_delete": "cascade", "null": True},
}


def clauses() -> Iterator[tuple[str, Any]]:
    """Each with the operator it is about, plain, negated, and under one more relation."""
    for word, found in uses("$user.claims.x", "$user.claims.x").items():
        for clause in found:
            yield word, clause
            yield word, {"$not": clause}
            yield word, {"body": "x", "$or": [clause, {"$not": clause}]}
    for word, found in uses("red", []).items():
        for clause in found:
            if word in ("$in", "$nin", "$hasAny", "$hasAll"):
                yield word, clause
                yield word, {"$not": clause}


@pytest.mark.exhaustive
def test_a_rule_that_misses_an_operand_reads_no_row() -> None:
    numbered = [*enumerate(clauses())]
    assert {word for _, (word, _) in numbered} == ALL_OPERATORS - {"$null"}  # takes no operand that could be missing
    tables: dict[str, Any] = {"tasks": {"columns": {"title": {"type": "text", "null": True}}}}
    for at in range(0, len(numbered), ROLES_PER_TABLE):
        some = numbered[at : at + ROLES_PER_TABLE]
        columns = {**PAGES, "task": {**PAGES["task"], "related_name": f"pages_{at}"}}
        rules = {f"r{number}": {"read": {"where": clause}} for number, (_, clause) in some}
        tables[f"pages_{at}"] = {"columns": columns, "rules": {**rules, "user": {"read": {}}}}
    document = {"tables": tables}
    assert validate(parse(document)) == []
    tenant = Tenant(document)

    task = tenant.put("tasks", title="red")
    other = tenant.put("tasks", title=None)
    for at in range(0, len(numbered), ROLES_PER_TABLE):
        for cells in (
            {},
            {"team": "", "level": 0, "tags": [], "meta": {}},
            {"team": "red", "level": 3, "tags": ["red"], "meta": {"red": 1}, "task_id": task},
            {"team": "blue", "level": -3, "tags": ["blue"], "meta": ["red"], "task_id": other},
        ):
            tenant.put(f"pages_{at}", body="x", **cells)
        assert len(tenant.rows(ALICE, f"pages_{at}")) == 4

    def read(number: int, claims: dict[str, Any]) -> int:
        who: Principal = replace(ALICE, role=f"r{number}", claims=claims)
        return len(tenant.rows(who, f"pages_{number - number % ROLES_PER_TABLE}"))

    for number, (_, clause) in numbered:
        for claims in CLAIMS.values():
            assert read(number, claims) == 0, (clause, claims)
    # With a claim of the right type the same statements read rows.
    present = [{"x": claim} for claim in ("red", 0, ["red"], [3], {"red": 1})]
    idle = [clause for number, (_, clause) in numbered if not any(read(number, claims) for claims in present)]
    assert all("[]" in str(clause) for clause in idle), idle
