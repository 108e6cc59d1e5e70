"""What the API answers equals what the documentation says, and what may not be read changes no byte of it.

Random documents, rules, rows, callers, filters and orders; the API's own verbs on a real PostgreSQL on one side, on the
other `tests.rows.documented`, which reads the same JSON and knows nothing of how the rest works.
"""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from django.db import connections
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from psycopg import sql

from platform_site.http.errors import ApiError, NotFound, ValidationFailed
from platform_site.postgres.prepared import opened_door
from rows import services
from rows.rules.rules import Principal, validate
from rows.schema.model import SQL_TYPES
from rows.schema.parser import parse
from tests.rows import drawn
from tests.rows.documented import Documented, Reading, Unknown
from tests.rows.drawn import RELATIONS, TABLES, Conditions, order_text
from tests.rows.tenants import ALICE, BOB, OPERATOR, REGION, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")

# What fails is small already, and each step of making it smaller makes tables: so no shrinking.
usual = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
thorough = settings(usual, max_examples=300, derandomize=False)


def inhabited(document: Any, rows: dict[str, list[Any]]) -> tuple[Tenant, Documented]:
    """An environment with these tables and rows, and what is known of it."""
    assert validate(parse(document)) == []
    tenant = Tenant(document).with_users(ALICE, BOB)
    for table in TABLES:
        for row in rows[table]:
            tenant.put(table, **row)
    return tenant, Documented(document, {table: tenant.rows(OPERATOR, table, limit=100) for table in TABLES})


@usual
@given(data=st.data())
def test_lists_equal_the_documentation(data: st.DataObject) -> None:
    lists_equal_the_documentation(data)


@usual
@given(data=st.data())
def test_relations_equal_the_documentation(data: st.DataObject) -> None:
    relations_equal_the_documentation(data)


@settings(usual, max_examples=3)
@given(data=st.data())
def test_chosen_columns_equal_the_documentation(data: st.DataObject) -> None:
    chosen_columns_equal_the_documentation(data)


@settings(usual, max_examples=12)
@given(data=st.data())
def test_what_may_not_be_read_changes_no_byte(data: st.DataObject) -> None:
    unreadable_changes_no_byte(data)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@thorough
@given(data=st.data())
def test_all_of_it_many_times_over(data: st.DataObject) -> None:
    lists_equal_the_documentation(data)
    relations_equal_the_documentation(data)
    chosen_columns_equal_the_documentation(data)
    unreadable_changes_no_byte(data)


def lists_equal_the_documentation(data: st.DataObject) -> None:
    document = data.draw(drawn.documents(), "document")
    tenant, oracle = inhabited(document, data.draw(drawn.rows(document), "rows"))
    for who in data.draw(drawn.callers(), "callers"):
        for table in TABLES:
            if not oracle.read_rules(who, table):
                with pytest.raises(NotFound):
                    tenant.rows(who, table)
                continue
            for _ in range(3):
                where = data.draw(Conditions(document, drawn.ids_of(table)).of(table), "where")
                order = data.draw(drawn.orders(document, table), "order")
                compare(tenant, oracle, who, table, where, order)


def chosen_columns_equal_the_documentation(data: st.DataObject) -> None:
    document = data.draw(drawn.documents(), "document")
    tenant, oracle = inhabited(document, data.draw(drawn.rows(document), "rows"))
    for who in data.draw(drawn.callers(), "callers"):
        for table in TABLES:
            if not oracle.read_rules(who, table):
                continue
            columns = data.draw(drawn.choices(document, table), "columns")
            compare_chosen(tenant, oracle, who, table, columns, data.draw(drawn.orders(document, table), "order"))
            for name, (far, _) in RELATIONS[table].items():
                columns = data.draw(drawn.choices(document, far), "columns there")
                compare_narrowed(tenant, oracle, who, table, name, columns)


def compare_narrowed(
    tenant: Tenant, oracle: Documented, who: Principal, table: str, name: str, columns: list[str]
) -> None:  # fmt: skip
    """A relation with some columns of its rows, beside whole rows and beside ids alone."""
    spelled = ",".join(f"{name}.{one}" for one in columns)
    try:
        far = Reading(oracle, who).relation(table, name)[0]
    except Unknown:
        far = ""
    shown = ["id", *(one for one in oracle.columns(who, far) if one in columns)] if far else []
    if set(columns) - set(shown):
        with pytest.raises(ValidationFailed):
            tenant.rows(who, table, withs=name if far else None, columns=spelled)
        return
    expected = tenant.rows(who, table, withs=name, limit=100)
    for row in expected:
        row[name] = narrowed(row[name], shown)
    assert tenant.rows(who, table, withs=name, columns=spelled, limit=100) == expected
    for row in expected[:1]:
        own = {"id": row["id"], name: row[name]}
        assert tenant.get(who, table, row["id"], name, columns=f"id,{spelled}") == own


def compare_chosen(
    tenant: Tenant, oracle: Documented, who: Principal, table: str, columns: list[str], order: Any
) -> None:  # fmt: skip
    """Named, and as all but those named: the same cells as in the whole row, and the same rows in the same pages."""
    query = {"order": order_text(order), "limit": 2}
    known = oracle.columns(who, table)
    others = ",".join(["*", *(f"-{name}" for name in columns)])
    if not set(columns) <= set(known):
        for spelled in (",".join(columns), others):
            with pytest.raises(ValidationFailed) as refused:
                tenant.rows(who, table, columns=spelled)
            assert [(error.field, error.code) for error in refused.value.fields] == [("columns", "unknown")]
        return
    try:
        whole = tenant.pages(who, table, **query)
    except ValidationFailed:  # the order names what this caller may not see
        whole, query = tenant.pages(who, table, limit=2), {"limit": 2}
    for spelled, shown in ((",".join(columns), set(columns)), (others, set(known) - set(columns))):
        expected = [{name: row[name] for name in known if name == "id" or name in shown} for row in whole]
        assert tenant.pages(who, table, columns=spelled, **query) == expected
        for row in expected[:1]:
            assert tenant.get(who, table, row["id"], columns=spelled) == row


def compare(tenant: Tenant, oracle: Documented, who: Principal, table: str, where: Any, order: Any) -> None:
    reading = Reading(oracle, who)
    for conditions, keys in ((where, []), ({}, order)):
        try:
            list(reading.operands(table, conditions))
            for name, _, _ in keys:
                far, last = reading.walk(table, name)
                if not reading.has_column(far, last):
                    raise Unknown(name)
        except Unknown:
            with pytest.raises(ValidationFailed) as refused:
                tenant.rows(who, table, where=conditions, order=order_text(keys))
            assert [(error.field, error.code) for error in refused.value.fields] == [
                ("where" if conditions else "order", "unknown")
            ]
            where, order = ({}, order) if conditions else (where, [])
    expected = [row for row in oracle.seen(who, table) if reading.true(table, where, row)]
    expected = reading.ordered(table, expected, order)
    assert tenant.pages(who, table, where=where, order=order_text(order), limit=2) == expected
    page = tenant.page(who, table, where=where, order=order_text(order), limit=100, count="exact")
    assert (page["data"], page["count"]) == (expected, len(expected))


def relations_equal_the_documentation(data: st.DataObject) -> None:
    document = data.draw(drawn.documents(), "document")
    tenant, oracle = inhabited(document, data.draw(drawn.rows(document), "rows"))
    for who in data.draw(drawn.callers(), "callers"):
        reading = Reading(oracle, who)
        for table in TABLES:
            if not oracle.read_rules(who, table):
                continue
            for name in RELATIONS[table]:
                try:
                    far, _, many = reading.relation(table, name)
                except Unknown:
                    with pytest.raises(ValidationFailed):
                        tenant.rows(who, table, withs=name)
                    continue
                expected = []
                for row in oracle.seen(who, table):
                    related = sorted(reading.related(table, name, row), key=lambda other: other["id"])
                    expected.append({**row, name: related if many else related[0] if related else None})
                expected.sort(key=lambda row: row["id"])
                assert tenant.rows(who, table, withs=name, limit=100) == expected
                for row in expected:
                    assert tenant.get(who, table, row["id"], name) == row
            for hidden in {row["id"] for row in oracle.rows[table]} - {row["id"] for row in oracle.seen(who, table)}:
                with pytest.raises(NotFound):
                    tenant.get(who, table, hidden)


def narrowed(related: Any, shown: list[str]) -> Any:
    """A relation's row, rows or null with these columns."""
    if isinstance(related, list):
        return [narrowed(row, shown) for row in related]
    return None if related is None else {name: related[name] for name in shown}


def unreadable_changes_no_byte(data: st.DataObject) -> None:
    document = data.draw(drawn.documents(), "document")
    tenant, oracle = inhabited(document, data.draw(drawn.rows(document), "rows"))
    who = data.draw(st.sampled_from(data.draw(drawn.callers())[:-1]), "who")

    candidates = [*unreadable(document, oracle, who)]
    assume(candidates)
    table, row, name, type_ = data.draw(st.sampled_from(candidates), "cell changed")
    value = data.draw(st.sampled_from([None, *drawn.VALUES[type_]]), "new value")
    assume(row[name] != value)
    changed = Documented(
        document,
        {t: [{**r, name: value} if r is row else r for r in there] for t, there in oracle.rows.items()},
    )
    # Nothing that this caller may see has changed: neither this cell, nor what the rules make of it elsewhere.
    assume(all(oracle.seen(who, t) == changed.seen(who, t) for t in TABLES))

    queries = [
        (t, {"where": where, "order": order_text(order), "limit": limit, "count": "exact", **shown})
        for t in TABLES
        for where in ({}, data.draw(Conditions(document, drawn.ids_of(t)).of(t), "where"))
        for order in ([], data.draw(drawn.orders(document, t), "order"))
        for limit, shown in (
            (2, {"columns": ",".join(data.draw(drawn.choices(document, t), "columns"))}),
            (100, {"withs": data.draw(st.sampled_from([None, *RELATIONS[t]]), "with")}),
        )
    ]
    before = [answer(tenant, who, t, query) for t, query in queries]
    write(tenant, table, row["id"], name, type_, value)
    assert [answer(tenant, who, t, query) for t, query in queries] == before


def unreadable(document: Any, oracle: Documented, who: Principal) -> Iterator[tuple[str, Any, str, str]]:
    """Cells that `who` may not read: table, row, column, type."""
    for table in TABLES:
        seen = {row["id"]: row for row in oracle.seen(who, table)}
        for row in oracle.rows[table]:
            for name, type_ in drawn.type_of(document, table).items():
                if type_ != "reference" and seen.get(row["id"], {}).get(name) is None:
                    yield table, row, name, type_


def answer(tenant: Tenant, who: Principal, table: str, query: Any) -> bytes:
    """The bytes of the answer, cursor and all, or of the refusal."""
    try:
        return services.list_rows(tenant.place, who, table, services.ListQuery(**query)).body
    except ApiError as refused:
        return orjson.dumps(refused.body("req_1"))


def write(tenant: Tenant, table: str, row_id: str, column: str, type_: str, value: Any) -> None:
    """Change one cell and nothing else, `updated_at` least of all."""
    spelled = value
    if type_ == "json" and value is not None:
        spelled = orjson.dumps(value).decode()
    statement = sql.SQL("UPDATE {}.{} SET {} = %s::{} WHERE id = %s").format(
        sql.Identifier(tenant.place.environment_id),
        sql.Identifier(table),
        sql.Identifier(column),
        sql.SQL(SQL_TYPES[type_]),  # type: ignore[index, arg-type]
    )
    with opened_door(), connections[REGION].cursor() as cursor:
        cursor.execute(statement, [spelled, row_id])
        assert cursor.rowcount == 1
