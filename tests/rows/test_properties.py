"""What the rows' verbs do, compared with plain Python over random schemas, rules, rows, callers and questions.

test_rows_property.py holds reading against the documentation; here it is the writes, and that a statement which was just
compiled and one that was remembered are the same. Each example makes a real environment. Deadlines are off: the first statement of a shape compiles it.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from accounts.api.serializers import UserDetail
from accounts.models import User
from platform_site.http.errors import Conflict, NotFound, ValidationFailed
from rows.query import context
from rows.rules import rules
from rows.schema.model import Schema
from rows.schema.parser import parse
from tests.support import random_schemas
from tests.support.row_oracle import Refused, World
from tests.support.tenants import ALICE, BOB, OPERATOR, Tenant

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]
some = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
QUESTIONS = 12


class Example:
    """One environment with rows, and the same in plain Python."""

    def __init__(self, data: st.DataObject) -> None:
        bare: dict[str, Any] = data.draw(random_schemas.tables())
        plain = parse({"tables": bare})
        document = {
            "tables": {
                name: {**table, "rules": data.draw(random_schemas.rules(plain, plain.tables[name]))}
                for name, table in bare.items()
            },
            "users": data.draw(random_schemas.users),
        }
        self.schema: Schema = parse(document)
        assert rules.validate(self.schema) == []
        rows = data.draw(random_schemas.rows(self.schema))
        self.tenant = Tenant(document)
        self.tenant.with_users(ALICE, BOB)
        for name, cells in rows.items():
            for row in cells:
                self.tenant.put(name, **row)
        stored = {name: self._stored(name) for name in self.schema.tables}
        users = User.objects.in_pool(self.tenant.environment.pool_id)
        self.world = World(self.schema, stored, {each.pk: dict(UserDetail(each).data) for each in users})

    def _stored(self, table: str) -> list[Any]:
        return self.tenant.pages(OPERATOR, table, limit=100)

    def assert_equal_to_the_world(self) -> None:
        for table in self.schema.tables:
            stamped = [{**row, "created_at": 0, "updated_at": 0} for row in self._stored(table)]
            expected = [{**row, "created_at": 0, "updated_at": 0} for row in self.world.rows[table]]
            assert stamped == sorted(expected, key=lambda row: str(row["id"]))


def outcome(how: Any) -> Any:
    """The answer, or which error with which fields."""
    try:
        return how()
    except (Conflict, NotFound, ValidationFailed) as error:
        return type(error), error.body(None)


@some
@given(data=st.data())
def test_a_list_is_what_plain_python_says(data: st.DataObject) -> None:
    example = Example(data)
    answered = 0
    for _ in range(QUESTIONS):
        who = data.draw(random_schemas.callers)
        table = data.draw(st.sampled_from(random_schemas.TABLES))
        where = data.draw(st.none() | random_schemas.conditions(example.schema, table, is_rule=False))
        order = data.draw(random_schemas.orders(example.schema, table))
        withs = data.draw(random_schemas.withs(example.schema, table))
        limit = data.draw(st.sampled_from([1, 2, 3, 100]))
        role_key = example.world.rules.role_key(who)
        if example.world.rules.access(table, role_key).read is None:
            with pytest.raises(NotFound):
                example.tenant.rows(who, table, where=where)
            continue
        expected = outcome(lambda: example.world.list(who, table, where, order, withs))  # noqa: B023
        got = outcome(lambda: example.tenant.pages(who, table, where=where, order=order, withs=withs, limit=limit))  # noqa: B023
        assert got == expected
        answered += isinstance(got, list) and bool(got)
        # A statement that was just compiled and one that was remembered are the same.
        context._statements.clear()
        again = outcome(lambda: example.tenant.pages(who, table, where=where, order=order, withs=withs, limit=limit))  # noqa: B023
        assert again == got
        for row in example.world.seen(who, table):
            assert example.tenant.get(who, table, row["id"]) == row
    event(f"answered with rows: {answered}")


@some
@given(data=st.data())
def test_a_write_does_what_plain_python_says_and_a_refused_one_nothing(data: st.DataObject) -> None:
    example = Example(data)
    done = 0
    for number in range(QUESTIONS):
        who = data.draw(random_schemas.callers)
        table = data.draw(st.sampled_from(random_schemas.TABLES))
        if example.world.rows[table] and data.draw(st.integers(0, 4)) == 0:
            done += deleted(example, who, table, data.draw(st.sampled_from(example.world.rows[table]))["id"])
            continue
        columns = list(example.schema.tables[table].columns.values())
        inserts = data.draw(st.booleans()) or not example.world.rows[table]
        chosen = columns if inserts else data.draw(st.lists(st.sampled_from(columns), max_size=3, unique=True))
        body = {c.name: data.draw(random_schemas.cell(c, example.world.rows)) for c in chosen}
        if any(body[c.name] is None and not c.null for c in chosen):
            continue
        role_key = example.world.rules.role_key(who)
        access = example.world.rules.access(table, role_key)
        if inserts:
            if access.insert is not None and data.draw(st.booleans()):
                body = {name: value for name, value in body.items() if name in access.insert.columns}
            got = outcome(lambda: example.tenant.insert(who, table, **body))  # noqa: B023
            row_id = got["id"] if isinstance(got, dict) else f"new-{number}"
            expected = refused(lambda: example.world.insert(who, table, body, row_id))  # noqa: B023
            if isinstance(got, dict):
                stored = next(row for row in example._stored(table) if row["id"] == row_id)
                example.world.rows[table][-1] |= {name: stored[name] for name in ("created_at", "updated_at")}
        else:
            row_id = data.draw(st.sampled_from(example.world.rows[table]))["id"]
            got = outcome(lambda: example.tenant.update(who, table, row_id, **body))  # noqa: B023
            expected = refused(lambda: example.world.update(who, table, row_id, body))  # noqa: B023
        if isinstance(expected, int):
            assert not isinstance(got, dict), (got, expected)
            assert expected in (0, got[0].status)
        else:
            assert isinstance(got, dict), got
            unstamped = {**got, "updated_at": 0, "created_at": 0}
            assert {**expected, "updated_at": 0, "created_at": 0} == unstamped
            done += 1
        example.assert_equal_to_the_world()
    event(f"writes done: {done}")


def deleted(example: Example, who: Any, table: str, row_id: str) -> bool:
    """Whether a row went, here as there."""
    got = outcome(lambda: example.tenant.delete(who, table, row_id))
    expected = refused(lambda: example.world.delete(who, table, row_id))
    assert (got and got[0].status) == expected
    example.assert_equal_to_the_world()
    return expected is None


def refused(how: Any) -> Any:
    try:
        return how()
    except Refused as refusal:
        return refusal.status
