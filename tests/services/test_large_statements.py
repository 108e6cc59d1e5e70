"""Short requests whose statements are long, because each related table on the way adds its rules."""

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from platform_site.http.errors import Unavailable, ValidationFailed
from rows.query import context
from rows.rules.rule_costs import MAX_CONDITIONS
from tests.support.event_loop import Loop
from tests.support.tenants import ALICE, OPERATOR, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")


def tenant_with(rule: Any) -> Tenant:
    """One row of a table whose rows refer to one another."""
    columns = {"a": {"type": "text"}, "p": {"type": "reference", "to": "t", "null": True}}
    tenant = Tenant({"tables": {"t": {"columns": columns, "rules": {"user": {"read": {"where": rule}}}}}})
    tenant.put("t", a="x")
    return tenant


def contain(path: str, count: int) -> list[Any]:
    return [{path: {"$icontains": str(number)}} for number in range(count)]


def one_of(*conditions: Any) -> str:
    return json.dumps({"$or": conditions})


def large() -> tuple[Tenant, str]:
    """A tenant and a filter that fits one row; together about 800 conditions."""
    tenant = tenant_with({"$or": [{"a": "x"}, *contain("p.a", 10)]})
    return tenant, one_of({"a": "x"}, *contain("p.p.a", 3))


def test_a_statement_that_takes_seconds_to_compile_is_refused() -> None:
    tenant = tenant_with({"$or": contain("p.p.p.a", 30)})
    where = one_of({"a": "x"}, *contain("p.p.p.a", 30))
    before = time.thread_time()
    with pytest.raises(ValidationFailed) as refused:
        tenant.rows(ALICE, "t", where=where)
    assert time.thread_time() - before < 5  # without a limit it takes minutes
    assert f"{MAX_CONDITIONS:,}" in refused.value.text
    assert len(tenant.rows(OPERATOR, "t", where=where)) == 1, "a key without rules has a shorter statement"


def test_a_large_statement_is_compiled_beside_the_event_loop_and_once(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, where = large()
    compiled_in: list[int] = []
    compile_large = context.QueryContext._compile_large

    def noted(self: context.QueryContext, *arguments: Any) -> Any:
        compiled_in.append(threading.get_ident())
        return compile_large(self, *arguments)

    monkeypatch.setattr(context.QueryContext, "_compile_large", noted)
    for _ in range(2):
        [found] = loop.run(lambda: tenant.rows(ALICE, "t", where=where))
        assert len(found) == 1
    assert len(compiled_in) == 1
    assert compiled_in[0] != threading.get_ident()


def test_large_statements_are_compiled_one_at_a_time(settings: Any) -> None:
    settings.WEB_QUEUE_TIMEOUT = 0.1
    tenant, where = large()
    with context._large_statements.slot("env_other", wait=1):
        with pytest.raises(Unavailable):
            tenant.rows(ALICE, "t", where=where)
        assert len(tenant.rows(ALICE, "t", where=one_of({"a": "x"}))) == 1
    assert len(tenant.rows(ALICE, "t", where=where)) == 1


def test_all_environments_of_a_project_take_turns_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, where = large()
    tenant.environment = replace(tenant.environment, project_id="prj_a")
    slot, owners = context._large_statements.slot, list[str]()

    def noted(owner: str, *, wait: float) -> Any:
        owners.append(owner)
        return slot(owner, wait=wait)

    monkeypatch.setattr(context._large_statements, "slot", noted)
    assert len(tenant.rows(ALICE, "t", where=where)) == 1
    assert owners == ["prj_a"]
