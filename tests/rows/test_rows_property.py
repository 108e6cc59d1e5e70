"""What the API answers equals what the documentation says, and what may not be read changes no byte of it.

Random documents, rules, rows, callers, filters and orders; the API's own verbs on a real PostgreSQL on one side, on the
other `tests.support.documented_rules`, which reads the same JSON and knows nothing of how the rest works.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from platform_site.http.errors import ApiError, NotFound, ValidationFailed
from rows import services
from rows.query.aggregates import request as aggregate_request
from rows.rules.principal import Principal
from rows.write import batch
from tests.support import random_documents
from tests.support.documented_rules import Documented, Reading, Unknown
from tests.support.random_documents import RELATIONS, TABLES, Conditions, order_text
from tests.support.random_rows import answer, tenant_with_rows, unreadable, usual, write
from tests.support.tenants import Tenant

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]

thorough = settings(usual, max_examples=300, derandomize=False)


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


@settings(usual, max_examples=5)
@given(data=st.data())
def test_what_may_not_be_read_changes_no_byte_of_a_batch(data: st.DataObject) -> None:
    unreadable_changes_no_byte_of_a_batch(data)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@thorough
@given(data=st.data())
def test_all_of_it_many_times_over(data: st.DataObject) -> None:
    lists_equal_the_documentation(data)
    relations_equal_the_documentation(data)
    chosen_columns_equal_the_documentation(data)
    unreadable_changes_no_byte(data)
    unreadable_changes_no_byte_of_a_batch(data)


def lists_equal_the_documentation(data: st.DataObject) -> None:
    document = data.draw(random_documents.documents(), "document")
    tenant, oracle = tenant_with_rows(document, data.draw(random_documents.rows(document), "rows"))
    for who in data.draw(random_documents.callers(), "callers"):
        for table in TABLES:
            if not oracle.read_rules(who, table):
                with pytest.raises(NotFound):
                    tenant.rows(who, table)
                continue
            for _ in range(3):
                where = data.draw(Conditions(document, random_documents.ids_of(table)).of(table), "where")
                order = data.draw(random_documents.orders(document, table), "order")
                compare(tenant, oracle, who, table, where, order)


def chosen_columns_equal_the_documentation(data: st.DataObject) -> None:
    document = data.draw(random_documents.documents(), "document")
    tenant, oracle = tenant_with_rows(document, data.draw(random_documents.rows(document), "rows"))
    for who in data.draw(random_documents.callers(), "callers"):
        for table in TABLES:
            if not oracle.read_rules(who, table):
                continue
            columns = data.draw(random_documents.choices(document, table), "columns")
            compare_chosen(
                tenant, oracle, who, table, columns, data.draw(random_documents.orders(document, table), "order")
            )
            for name, (far, _) in RELATIONS[table].items():
                columns = data.draw(random_documents.choices(document, far), "columns there")
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
    document = data.draw(random_documents.documents(), "document")
    tenant, oracle = tenant_with_rows(document, data.draw(random_documents.rows(document), "rows"))
    for who in data.draw(random_documents.callers(), "callers"):
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
    document = data.draw(random_documents.documents(), "document")
    tenant, _, who, change = unreadable_change(data, document)
    queries = [
        (t, {"where": where, "order": order_text(order), "limit": limit, "count": "exact", **shown})
        for t in TABLES
        for where in ({}, data.draw(Conditions(document, random_documents.ids_of(t)).of(t), "where"))
        for order in ([], data.draw(random_documents.orders(document, t), "order"))
        for limit, shown in (
            (2, {"columns": ",".join(data.draw(random_documents.choices(document, t), "columns"))}),
            (100, {"withs": data.draw(st.sampled_from([None, *RELATIONS[t]]), "with")}),
        )
    ]
    aggregates = [(t, body) for t in TABLES for body in aggregates_of(data, document, t)]
    before = [answer(tenant, who, t, query) for t, query in queries]
    before += [aggregate(tenant, who, t, body) for t, body in aggregates]
    change()
    after = [answer(tenant, who, t, query) for t, query in queries]
    assert after + [aggregate(tenant, who, t, body) for t, body in aggregates] == before


def unreadable_change(
    data: st.DataObject, document: Any, *, in_seen_row: bool = False
) -> tuple[Tenant, Documented, Principal, Callable[[], None]]:  # fmt: skip
    """An environment, what is known of it, a caller, and the change of one cell that this caller may not read."""
    tenant, oracle = tenant_with_rows(document, data.draw(random_documents.rows(document), "rows"))
    who = data.draw(st.sampled_from(data.draw(random_documents.callers())[:-1]), "who")
    candidates = [*unreadable(document, oracle, who)]
    if in_seen_row:
        seen = {row["id"] for t in TABLES for row in oracle.seen(who, t)}
        candidates = [one for one in candidates if one[1]["id"] in seen]
    assume(candidates)
    table, row, name, type_ = data.draw(st.sampled_from(candidates), "cell changed")
    value = data.draw(st.sampled_from([None, *random_documents.VALUES[type_]]), "new value")
    assume(row[name] != value)
    changed = Documented(
        document,
        {t: [{**r, name: value} if r is row else r for r in there] for t, there in oracle.rows.items()},
    )
    # Nothing that this caller may see has changed: neither this cell, nor what the rules make of it elsewhere.
    assume(all(oracle.seen(who, t) == changed.seen(who, t) for t in TABLES))
    return tenant, oracle, who, lambda: write(tenant, table, row["id"], name, type_, value)


def unreadable_changes_no_byte_of_a_batch(data: st.DataObject) -> None:
    document = data.draw(random_documents.documents(), "document")
    for table in document["tables"].values():
        for rules in table["rules"].values():
            rules |= {"insert": {}, "update": {}}
    tenant, oracle, who, change = unreadable_change(data, document, in_seen_row=True)
    batches = [operations for t in TABLES for row in oracle.seen(who, t) for operations in batches_of(document, t, row)]
    assume(batches)
    before = [written(tenant, who, operations) for operations in batches]
    change()
    assert [written(tenant, who, operations) for operations in batches] == before


def batches_of(document: Any, table: str, row: Any) -> Iterator[list[dict[str, Any]]]:
    """For each column: a cell that is seen is written as it is, and the column copied from the result to a new row."""
    types = {
        name: type_ for name, type_ in random_documents.type_of(document, table).items() if type_ != "reference"
    }  # fmt: skip
    same = {name: row[name] for name in types if row.get(name) is not None}
    update = {"op": "update", "table": table, "id": row["id"], "values": same, "name": "old"}
    for name in types:
        yield [update, {"op": "insert", "table": table, "values": {name: {"$ref": f"old.{name}"}}}]


def written(tenant: Tenant, who: Principal, operations: list[dict[str, Any]]) -> str:
    """The response to a batch that is only tried, or its error, without ids, times and tags, which are new each time."""
    try:
        read = batch.read_operations(operations, None)
        body = batch.as_json(batch.execute(tenant.environment, who, read, dry_run=True))
    except ApiError as refused:
        body = orjson.dumps(refused.body("req_1"))
    return re.sub(r'"(id|created_at|updated_at|etag)":"([^"\\]|\\.)*"', "", body.decode())


def aggregates_of(data: st.DataObject, document: Any, table: str) -> Iterator[dict[str, Any]]:
    """For each column of the table aggregates over it, so that one that is refused spoils no other."""
    types = random_documents.type_of(document, table)
    where = data.draw(Conditions(document, random_documents.ids_of(table)).of(table), "where of aggregates")
    for name, type_ in types.items():
        yield {"group": [name], "count": True, "limit": 2, "order": f"{name}.desc"}
        for kind, taken in aggregate_request.TAKES.items():
            if type_ in taken:
                other = data.draw(st.sampled_from(sorted(types)), "group")
                yield {"group": [other], kind: [name], "where": where, "having": {f"{kind}_{name}": {"$null": False}}}
                yield {kind: [name], "count": True}


def aggregate(tenant: Tenant, who: Principal, table: str, body: Any) -> bytes:
    """The bytes of the response to an aggregate, or of its error."""
    try:
        return services.aggregate_rows(tenant.environment, who, table, body).body
    except ApiError as refused:
        return orjson.dumps(refused.body("req_1"))
