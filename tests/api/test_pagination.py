"""Pages over a real table: every item once, in order, whatever happens to the table meanwhile, one query each."""

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from accounts.models import AuditEntry
from platform_site.http.errors import ValidationFailed
from platform_site.http.pagination import Page, paginate, read_limit

pytestmark = pytest.mark.django_db
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def make(count: int, *, ties: int = 3) -> None:
    AuditEntry.objects.bulk_create(
        AuditEntry(
            actor_kind="system",
            action=f"a{n % 4}",
            at=START + dt.timedelta(microseconds=n // ties),
        )
        for n in range(count)
    )


def page(order: list[str], limit: int, cursor: str | None, queryset: Any = None) -> Page[Any]:
    return paginate(AuditEntry.objects.all() if queryset is None else queryset, order, limit, cursor, "test")


def walk(order: list[str], limit: int) -> list[str]:
    found, cursor = [], None
    for _ in range(1000):
        one = page(order, limit, cursor)
        assert len(one.items) == limit or one.next_cursor is None
        found += [item.pk for item in one.items]
        cursor = one.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the pages never end")


ORDERS = [
    [sign + name for name in names] for names in (["id"], ["at", "id"], ["action", "at", "id"]) for sign in ("", "-")
]


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
@pytest.mark.parametrize("limit", [1, 7, 100])
def test_the_pages_are_the_list(order: list[str], limit: int) -> None:
    make(40)
    assert walk(order, limit) == list(AuditEntry.objects.order_by(*order).values_list("pk", flat=True))


def test_the_last_page_says_so_also_when_it_is_full() -> None:
    make(20)
    assert page(["id"], 20, None).next_cursor is None
    first = page(["id"], 10, None)
    assert page(["id"], 10, first.next_cursor).next_cursor is None
    assert page(["id"], 10, None, AuditEntry.objects.none()) == Page([], None)


def test_a_page_is_one_query_however_deep() -> None:
    make(60)
    cursor = None
    for _ in range(5):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            cursor = page(["-at", "-id"], 10, cursor).next_cursor
        assert len(queries) == 1
        assert "OFFSET" not in queries[0]["sql"]


@pytest.mark.exhaustive
@examples(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_that_come_and_go_neither_hide_nor_repeat_others(data: st.DataObject) -> None:
    AuditEntry.objects.all().delete()
    make(30)
    order = data.draw(st.sampled_from(ORDERS))
    original = list(AuditEntry.objects.order_by(*order).values_list("pk", flat=True))
    deleted: set[str] = set()
    seen: list[str] = []
    cursor = None
    while True:
        one = page(order, data.draw(st.integers(1, 9)), cursor)
        seen += [item.pk for item in one.items]
        cursor = one.next_cursor
        if cursor is None:
            break
        make(data.draw(st.integers(0, 3)))
        for pk in data.draw(st.lists(st.sampled_from(original), max_size=3)):
            if pk not in seen[:-1]:
                deleted.add(pk)
            AuditEntry.objects.filter(pk=pk).delete()  # the row of the cursor, too
    assert len(seen) == len(set(seen)), "nothing twice"
    kept = [pk for pk in original if pk not in deleted]
    assert [pk for pk in seen if pk in kept] == kept, "nothing left out, nothing out of order"


def test_a_cursor_of_another_order_kind_or_fact_is_refused() -> None:
    make(5)
    cursor = page(["at", "id"], 2, None).next_cursor
    assert cursor is not None
    for order, kind, facts in ((["-at", "id"], "test", []), (["at", "id"], "other", []), (["at", "id"], "test", ["x"])):
        with pytest.raises(ValidationFailed) as told:
            paginate(AuditEntry.objects.all(), order, 2, cursor, kind, facts)
        assert told.value.fields[0].field == "cursor"


def test_an_index_answers_a_deep_page() -> None:
    """Cost does not grow with depth: the condition is the index's, nothing is read and discarded."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX test_page ON accounts_auditentry (at DESC, id DESC)")
    make(3_000, ties=3_000)  # one moment for all, as after an import
    newest = AuditEntry.objects.order_by("-at", "-id")[2_900]
    from platform_site.http.pagination import _after

    query = AuditEntry.objects.filter(_after(["-at", "-id"], [newest.at, newest.pk])).order_by("-at", "-id")[:20]
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE accounts_auditentry")
    plan = query.explain(analyze=True, costs=False, timing=False, summary=False)
    assert "Index Cond: (ROW" in plan
    assert "Rows Removed" not in plan


@pytest.mark.parametrize(("text", "value"), [(None, 20), ("1", 1), ("100", 100), ("020", 20)])
def test_limits_that_are_read(text: str | None, value: int) -> None:
    assert read_limit(text) == value


@pytest.mark.parametrize(
    "text", ["", "0", "101", "-1", "+1", "1.0", "1e1", "abc", " 1", "1 ", "٣", "9" * 4000, "0x1", "1_0"]
)
def test_limits_that_are_refused(text: str) -> None:
    with pytest.raises(ValidationFailed) as told:
        read_limit(text)
    assert [(field.field, field.code) for field in told.value.fields] == [("limit", "out_of_range")]
