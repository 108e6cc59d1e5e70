"""`POST /v1/rows/{table}/aggregate`: results, errors, and attacks."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import orjson
import pytest
from django.db import transaction

from platform_site.http.errors import NotFound, ValidationFailed
from platform_site.postgres import prepared
from rows import services
from rows.rules.principal import Principal
from tests.support.aggregates import DOCUMENT
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, REGION, VISITOR, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tenant() -> Tenant:
    """Alice has an open deal and two that are won, one without values; Bob has an open, a won and a lost one."""
    tenant = Tenant(DOCUMENT).with_users(ALICE, BOB)
    for owner, stage, value, units, margin in (
        (ALICE, "open", "10.50", 1, 5),
        (ALICE, "won", "2.00", 2, 7),
        (ALICE, "won", None, None, None),
        (BOB, "open", "100.00", 10, 50),
        (BOB, "won", "1.25", 20, 70),
        (BOB, "lost", "1000.00", 30, 90),
    ):
        cells = {"stage": stage, "value": value, "units": units, "margin": margin, "secret": margin}
        tenant.put("deals", owner_id=owner.user_id, **cells)
    return tenant


def ask(tenant: Tenant, who: Principal, **body: Any) -> Any:
    return orjson.loads(services.aggregate_rows(tenant.environment, who, "deals", body).body)


def groups(tenant: Tenant, who: Principal, **body: Any) -> list[Any]:
    found: list[Any] = ask(tenant, who, **body)["data"]
    return found


def refused(how: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        how()
    [field] = caught.value.fields
    return field.field, field.code


def insert(tenant: Tenant, number: int, columns: str, values: str) -> None:
    """So many deals of Alice's; `values` is SQL over `n`."""
    sql = (
        f"INSERT INTO {{}}.deals (id, owner_id, {columns}) SELECT 'd' || n, %s, {values} FROM generate_series(1, %s) n"
    )
    tenant.raw(sql, ALICE.user_id, number)


# Results


def test_each_function_by_group_in_its_order(tenant: Tenant) -> None:
    body = {"group": ["stage"], "count": True, "count_distinct": ["owner_id"], "sum": ["value", "units"]}
    assert groups(tenant, KEY, **body, avg=["value", "units"], min=["value"], max=["units"], order="stage.desc") == [
        {"stage": "won", "count": 3, "count_distinct_owner_id": 2, "sum_value": "3.25", "sum_units": 22,
         "avg_value": "1.625000", "avg_units": 11, "min_value": "1.25", "max_units": 20},
        {"stage": "open", "count": 2, "count_distinct_owner_id": 2, "sum_value": "110.50", "sum_units": 11,
         "avg_value": "55.250000", "avg_units": 5.5, "min_value": "10.50", "max_units": 10},
        {"stage": "lost", "count": 1, "count_distinct_owner_id": 1, "sum_value": "1000.00", "sum_units": 30,
         "avg_value": "1000.000000", "avg_units": 30, "min_value": "1000.00", "max_units": 30},
    ]  # fmt: skip


def test_the_response_is_compact_and_in_the_order_of_the_request(tenant: Tenant) -> None:
    page = services.aggregate_rows(
        tenant.environment, ALICE, "deals", {"group": ["stage"], "count": True, "sum": ["value"]}
    )
    assert page.body == (
        b'{"data":[{"stage":"open","count":2,"sum_value":"110.50"},{"stage":"won","count":3,"sum_value":"3.25"}],'
        b'"next_cursor":null}'
    )


def test_a_filter_narrows_rows_and_having_narrows_groups(tenant: Tenant) -> None:
    body = {"group": ["stage"], "sum": ["value"], "where": {"value": {"$gt": "1.50"}}}
    assert groups(tenant, KEY, **body, having={"sum_value": {"$gt": "100"}}) == [
        {"stage": "lost", "sum_value": "1000.00"},
        {"stage": "open", "sum_value": "110.50"},
    ]
    having = {"$or": [{"sum_value": {"$lt": 5}}, {"stage": {"$in": ["lost"]}}]}
    assert [group["stage"] for group in groups(tenant, KEY, **body, having=having)] == ["lost", "won"]
    assert groups(tenant, KEY, count=True, having={"count": {"$gt": 6}}) == []


def test_the_values_of_filter_and_having_do_not_mix(tenant: Tenant) -> None:
    body = {"group": ["stage"], "count": True, "where": {"units": {"$gt": 1}}, "having": {"count": {"$gt": 0}}}
    assert len(groups(tenant, KEY, **body)) == 3
    assert groups(tenant, KEY, **body | {"having": {"count": 2}}) == [{"stage": "won", "count": 2}]


def test_empty_sets_have_counts_of_zero_and_no_groups(tenant: Tenant) -> None:
    nothing = {"where": {"name": "nobody"}}
    assert groups(tenant, KEY, count=True, sum=["value"], avg=["units"], min=["due_on"], **nothing) == [
        {"count": 0, "sum_value": None, "avg_units": None, "min_due_on": None}
    ]
    assert groups(tenant, KEY, group=["stage"], count=True, **nothing) == []


def test_nulls_are_one_group_and_sort_as_in_a_list(tenant: Tenant) -> None:
    body = {"group": ["units"], "count": True}
    assert [group["units"] for group in groups(tenant, KEY, **body)] == [1, 2, 10, 20, 30, None]
    assert groups(tenant, KEY, **body, order="units.desc")[0] == {"units": None, "count": 1}
    assert groups(tenant, KEY, **body, order="units.nullsfirst")[0] == {"units": None, "count": 1}
    assert groups(tenant, KEY, **body, having={"units": None}) == [{"units": None, "count": 1}]


@pytest.mark.parametrize("order", [None, "count.desc", "sum_value.desc.nullslast", "sum_value.nullsfirst,units.desc"])
def test_pages_join_up_to_the_whole(tenant: Tenant, order: str | None) -> None:
    tenant.put("deals", owner_id=ALICE.user_id, units=2, value="2.00")
    body = {"group": ["units", "stage"], "count": True, "sum": ["value"], "order": order}
    whole = groups(tenant, KEY, **body)
    assert len(whole) == 7
    for limit in (1, 2, 3):
        found: list[Any] = []
        cursor = None
        while True:
            page = ask(tenant, KEY, **body, limit=limit, cursor=cursor)
            found += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == whole


def test_a_cursor_opens_only_for_its_request(tenant: Tenant) -> None:
    body = {"group": ["units"], "count": True, "limit": 1, "where": {"units": {"$gt": 0}}}
    cursor = ask(tenant, KEY, **body)["next_cursor"]
    assert ask(tenant, KEY, **body | {"limit": 5}, cursor=cursor)["data"][0]["units"] == 2
    for other in (
        {"group": ["value"]},
        {"count": False},
        {"where": {"units": {"$gt": 1}}},
        {"having": {"count": 1}},
        {"time_zone": "Asia/Tokyo"},
        {"order": "count"},
    ):
        assert refused(lambda other=other: ask(tenant, KEY, **body | other, cursor=cursor)) == (
            "cursor",
            "invalid_cursor",
        )


def test_sums_of_64_bit_integers_have_all_digits(tenant: Tenant) -> None:
    insert(tenant, 3, "units", "9223372036854775807")
    body = {"sum": ["units"], "where": {"units": {"$gt": 1000}}}
    page = services.aggregate_rows(tenant.environment, KEY, "deals", body)
    assert json.loads(page.body)["data"] == [{"sum_units": 3 * (2**63 - 1)}]
    assert groups(tenant, KEY, **body, having={"sum_units": {"$gt": "27670116110564327420"}})
    assert not groups(tenant, KEY, **body, having={"sum_units": {"$gt": "27670116110564327421"}})
    average = groups(tenant, KEY, avg=["units"], where=body["where"])[0]["avg_units"]
    assert average == pytest.approx(2.0**63)


def test_decimals_are_exact_and_floats_out_of_range_are_refused(tenant: Tenant) -> None:
    insert(tenant, 100, "value, weight", "9999999999.99, 1.7e308")
    assert Decimal(groups(tenant, KEY, sum=["value"], where={"weight": {"$gt": 0}})[0]["sum_value"]) == Decimal(
        "999999999999.00"
    )
    assert refused(lambda: ask(tenant, KEY, sum=["weight"])) == ("sum", "out_of_range")
    with transaction.atomic(using=REGION):
        assert refused(lambda: ask(tenant, KEY, avg=["weight"], sum=["value"])) == ("avg", "out_of_range")
        assert groups(tenant, KEY, max=["weight"]) == [{"max_weight": 1.7e308}]


def test_the_average_of_large_floats_is_one_where_their_squares_are_not(tenant: Tenant) -> None:
    insert(tenant, 3, "weight", "1e200")
    assert groups(tenant, KEY, avg=["weight"], where={"weight": 1e200}) == [{"avg_weight": 1e200}]


def test_the_average_of_long_decimals_has_all_its_digits() -> None:
    columns = {"value": {"type": "decimal", "precision": 22, "scale": 2}}
    tenant = Tenant({"tables": {"deals": {"columns": columns, "rules": {"server": {"read": {}}}}}})
    for cents in ("00", "00", "01"):
        tenant.put("deals", value=f"99999999999999999999.{cents}")
    assert groups(tenant, KEY, avg=["value"]) == [{"avg_value": "99999999999999999999.003333"}]
    assert groups(tenant, KEY, avg=["value"], where={"value": 0}) == [{"avg_value": None}]


def test_groups_by_every_type_and_date_part_of_a_date(tenant: Tenant) -> None:
    token = "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"
    cells = {"name": "Big", "weight": 0.5, "due_on": "2026-02-28", "token": token, "is_new": True}
    tenant.put("deals", owner_id=ALICE.user_id, **cells)
    where = {"name": "Big"}
    assert groups(tenant, KEY, group=["name", "weight", "token", "is_new"], where=where) == [
        {"name": "Big", "weight": 0.5, "token": token, "is_new": True}
    ]
    parts = [f"due_on.{part}" for part in ("day", "week", "month", "year")]
    assert groups(tenant, KEY, group=parts, where=where, time_zone="Pacific/Kiritimati") == [
        {"due_on_day": "2026-02-28", "due_on_week": "2026-02-23", "due_on_month": "2026-02-01",
         "due_on_year": "2026-01-01"}
    ]  # fmt: skip


def test_date_parts_of_a_timestamp_follow_the_time_zone(tenant: Tenant) -> None:
    tenant.put("deals", owner_id=ALICE.user_id, name="x", closed_at="2026-12-31T23:30:00Z")
    body = {"group": ["closed_at.day", "closed_at.month", "closed_at.year"], "where": {"name": "x"}}
    assert groups(tenant, KEY, **body) == [
        {"closed_at_day": "2026-12-31", "closed_at_month": "2026-12-01", "closed_at_year": "2026-01-01"}
    ]
    assert groups(tenant, KEY, **body, time_zone="Europe/Berlin") == [
        {"closed_at_day": "2027-01-01", "closed_at_month": "2027-01-01", "closed_at_year": "2027-01-01"}
    ]


@pytest.mark.parametrize(
    ("zone", "first", "last"),
    [
        ("America/New_York", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
        ("Asia/Tokyo", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
        ("UTC", "0001-01-01T00:59:59Z", "9999-12-31T23:00:00Z"),
    ],
)
def test_the_first_and_last_timestamp_count_to_the_first_and_last_day(
    tenant: Tenant, zone: str, first: str, last: str
) -> None:
    for closed_at in (first, last):
        tenant.put("deals", owner_id=ALICE.user_id, name="x", closed_at=closed_at)
    body: dict[str, Any] = {"where": {"name": "x"}, "time_zone": zone}
    for part, buckets in {
        "hour": ["0001-01-01T00:00:00.000000Z", "9999-12-31T23:00:00.000000Z"],
        "day": ["0001-01-01", "9999-12-31"],
        "week": ["0001-01-01", "9999-12-27"],
        "month": ["0001-01-01", "9999-12-01"],
        "year": ["0001-01-01", "9999-01-01"],
    }.items():
        found = groups(tenant, KEY, group=[f"closed_at.{part}"], **body)
        assert [group[f"closed_at_{part}"] for group in found] == buckets, part
        whole = groups(tenant, KEY, group=[f"closed_at.{part}"], count=True, where={"closed_at": None}, time_zone=zone)
        assert whole == [{f"closed_at_{part}": None, "count": 6}]


def test_an_hour_that_comes_twice_is_two_groups_of_one_day(tenant: Tenant) -> None:
    for hour in ("2026-10-24T22:10:00Z", "2026-10-25T00:10:00Z", "2026-10-25T01:10:00Z", "2026-10-25T22:59:00Z"):
        tenant.put("deals", owner_id=ALICE.user_id, name="autumn", closed_at=hour)
    body = {"count": True, "where": {"name": "autumn"}, "time_zone": "Europe/Berlin"}
    assert [group["closed_at_hour"] for group in groups(tenant, KEY, group=["closed_at.hour"], **body)] == [
        "2026-10-24T22:00:00.000000Z",
        "2026-10-25T00:00:00.000000Z",
        "2026-10-25T01:00:00.000000Z",
        "2026-10-25T22:00:00.000000Z",
    ]
    assert groups(tenant, KEY, group=["closed_at.day"], **body) == [{"closed_at_day": "2026-10-25", "count": 4}]


def test_the_day_that_loses_an_hour_is_one_group(tenant: Tenant) -> None:
    for hour in ("2026-03-28T22:59:59Z", "2026-03-28T23:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T21:59:59Z"):
        tenant.put("deals", owner_id=ALICE.user_id, name="spring", closed_at=hour)
    body = {"count": True, "where": {"name": "spring"}, "time_zone": "Europe/Berlin"}
    assert groups(tenant, KEY, group=["closed_at.day"], **body) == [
        {"closed_at_day": "2026-03-28", "count": 1},
        {"closed_at_day": "2026-03-29", "count": 3},
    ]
    half = {**body, "time_zone": "Asia/Kolkata"}
    first = groups(tenant, KEY, group=["closed_at.hour"], **half)[0]
    assert first == {"closed_at_hour": "2026-03-28T22:30:00.000000Z", "count": 2}


# Errors


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({}, "group", "required"),
        ({"count": False}, "group", "required"),
        ({"group": "stage"}, "group", "wrong_type"),
        ({"group": [1]}, "group", "wrong_type"),
        ({"group": ["stage", "stage"]}, "group", "invalid"),
        ({"group": ["stage", "value", "units", "name", "weight"]}, "group", "too_many"),
        ({"group": ["meta"]}, "group", "invalid"),
        ({"group": ["tags"]}, "group", "invalid"),
        ({"group": ["notes"]}, "group", "invalid"),
        ({"group": ["notes.body"]}, "group", "invalid"),
        ({"group": ["parent"]}, "group", "invalid"),
        ({"group": ["parent.stage"]}, "group", "invalid"),
        ({"group": ["nothing"]}, "group", "unknown"),
        ({"group": ["x" * 200]}, "group", "unknown"),
        ({"group": ["closed_at.minute"]}, "group", "invalid"),
        ({"group": ["closed_at.day.day"]}, "group", "invalid"),
        ({"group": ["due_on.hour"]}, "group", "invalid"),
        ({"group": ["stage.day"]}, "group", "invalid"),
        ({"count": 1}, "count", "wrong_type"),
        ({"sum": ["stage"]}, "sum", "invalid"),
        ({"sum": ["closed_at"]}, "sum", "invalid"),
        ({"avg": ["is_new"]}, "avg", "invalid"),
        ({"min": ["meta"]}, "min", "invalid"),
        ({"max": ["owner_id"]}, "max", "invalid"),
        ({"count_distinct": ["meta"]}, "count_distinct", "invalid"),
        ({"sum": ["value", "value"]}, "sum", "invalid"),
        ({"sum": ["value"] * 21}, "sum", "too_many"),
        ({"count": True, "limit": 0}, "limit", "out_of_range"),
        ({"count": True, "limit": 1001}, "limit", "out_of_range"),
        ({"count": True, "limit": "5"}, "limit", "out_of_range"),
        ({"count": True, "where": "{}"}, "where", "wrong_type"),
        ({"count": True, "where": {"nothing": 1}}, "where", "unknown"),
        ({"count": True, "having": []}, "having", "wrong_type"),
        ({"count": True, "having": {"sum_value": {"$gt": "1"}}}, "having", "unknown"),
        ({"count": True, "having": {"value": {"$gt": "1"}}}, "having", "unknown"),
        ({"count": True, "having": {"count": {"$gt": "x"}}}, "having", "wrong_type"),
        ({"count": True, "having": {"$or": [{"$search": "x"}]}}, "having", "misplaced"),
        ({"count": True, "order": "sum_value"}, "order", "unknown"),
        ({"count": True, "order": "value"}, "order", "unknown"),
        ({"count": True, "order": "count,count.desc"}, "order", "invalid"),
        ({"count": True, "order": ["count"]}, "order", "wrong_type"),
        ({"count": True, "cursor": "x"}, "cursor", "invalid_cursor"),
        ({"count": True, "cursor": 5}, "cursor", "wrong_type"),
        ({"count": True, "time_zone": "Berlin"}, "time_zone", "unknown"),
        ({"count": True, "time_zone": "<+02>-2"}, "time_zone", "unknown"),
        ({"count": True, "time_zone": 1}, "time_zone", "wrong_type"),
    ],
)
def test_what_is_refused(tenant: Tenant, body: dict[str, Any], field: str, code: str) -> None:
    assert refused(lambda: ask(tenant, KEY, **body)) == (field, code)


def test_two_results_of_one_name_are_refused() -> None:
    columns = {name: {"type": "integer", "null": True} for name in ("count", "units", "sum_units")}
    tenant = Tenant({"tables": {"deals": {"columns": columns, "rules": {"server": {"read": {}}}}}})
    for body in ({"group": ["count"], "count": True}, {"group": ["sum_units"], "sum": ["units"]}):
        assert refused(lambda body=body: ask(tenant, KEY, **body))[1] == "invalid"


def test_1001_groups_are_refused_without_a_limit(tenant: Tenant) -> None:
    insert(tenant, 1000, "name", "'n' || n")
    body = {"group": ["name"], "count": True, "where": {"name": {"$null": False}}}
    assert len(groups(tenant, KEY, **body)) == 1000
    insert_one = {"owner_id": ALICE.user_id, "name": "one more"}
    tenant.put("deals", **insert_one)
    assert refused(lambda: ask(tenant, KEY, **body)) == ("group", "too_many")
    page = ask(tenant, KEY, **body, limit=1000)
    assert len(page["data"]) == 1000
    rest = ask(tenant, KEY, **body, limit=1000, cursor=page["next_cursor"])
    assert (rest["data"], rest["next_cursor"]) == ([{"name": "one more", "count": 1}], None)


def test_a_response_over_16_mb_is_refused(tenant: Tenant) -> None:
    columns = {"body": {"type": "text"}}
    tenant.apply({"tables": {**DOCUMENT["tables"], "texts": {"columns": columns, "rules": {"server": {"read": {}}}}}})
    tenant.raw(
        "INSERT INTO {}.texts (id, body) SELECT 't' || n, n || repeat('x', 1000000) FROM generate_series(1, 20) n"
    )
    body = {"group": ["body"], "limit": 20}
    assert refused(lambda: services.aggregate_rows(tenant.environment, KEY, "texts", body)) == ("limit", "too_large")


def test_the_timeout_ends_with_the_aggregate_in_a_transaction(tenant: Tenant, settings: Any) -> None:
    settings.AGGREGATE_STATEMENT_TIMEOUT_MS = 1234
    with transaction.atomic(using=REGION):
        assert groups(tenant, KEY, count=True) == [{"count": 6}]
        assert prepared.run(REGION, b"SHOW statement_timeout", []) == [(b"5s",)]


# Attacks


def test_only_visible_rows_are_counted(tenant: Tenant) -> None:
    assert groups(tenant, KEY, count=True) == [{"count": 6}]
    assert groups(tenant, ALICE, count=True) == [{"count": 5}]
    assert groups(tenant, BOB, count=True) == [{"count": 6}]
    with pytest.raises(NotFound):
        ask(tenant, VISITOR, count=True)
    other = Tenant(DOCUMENT)
    assert groups(other, OPERATOR, count=True) == [{"count": 0}]


def test_a_column_that_no_rule_grants_is_unknown(tenant: Tenant) -> None:
    for body in (
        {"group": ["secret"]},
        {"sum": ["secret"]},
        {"avg": ["secret"]},
        {"min": ["secret"]},
        {"max": ["secret"]},
        {"count_distinct": ["secret"]},
        {"count": True, "where": {"secret": 5}},
        {"count": True, "having": {"secret": 5}},
        {"count": True, "order": "secret"},
    ):
        with pytest.raises(ValidationFailed) as hidden:
            ask(tenant, ALICE, **body)
        with pytest.raises(ValidationFailed) as missing:
            ask(tenant, ALICE, **json.loads(json.dumps(body).replace("secret", "nosuch")))
        [one], [other] = hidden.value.fields, missing.value.fields
        assert (one.field, one.code, one.message) == (
            other.field,
            other.code,
            other.message.replace("nosuch", "secret"),
        )


def test_a_cell_that_is_unreadable_in_a_row_is_null_there(tenant: Tenant) -> None:
    body = {"group": ["stage"], "count": True, "sum": ["margin"], "count_distinct": ["margin"], "max": ["margin"]}
    assert groups(tenant, ALICE, **body) == [
        {"stage": "open", "count": 2, "count_distinct_margin": 1, "sum_margin": 5, "max_margin": 5},
        {"stage": "won", "count": 3, "count_distinct_margin": 1, "sum_margin": 7, "max_margin": 7},
    ]
    assert groups(tenant, ALICE, group=["margin"], count=True) == [
        {"margin": 5, "count": 1},
        {"margin": 7, "count": 1},
        {"margin": None, "count": 3},
    ]


def test_sums_with_and_without_a_filter_do_not_differ_by_hidden_cells(tenant: Tenant) -> None:
    whole = groups(tenant, ALICE, count=True, sum=["units"])
    assert whole == [{"count": 5, "sum_units": 33}]
    for where in ({"margin": {"$gt": 40}}, {"margin": {"$in": [50, 70]}}, {"$not": {"margin": {"$not": {"$gt": 40}}}}):
        assert groups(tenant, ALICE, count=True, sum=["units"], where=where) == [{"count": 0, "sum_units": None}]
    rest = groups(tenant, ALICE, count=True, sum=["units"], where={"$not": {"margin": {"$gt": 40}}})
    assert rest == whole
    body = {"group": ["units"], "sum": ["margin"]}
    assert not groups(tenant, ALICE, **body, having={"sum_margin": {"$gt": 40}})
    assert groups(tenant, ALICE, **body, order="sum_margin.desc.nullslast")[0] == {"units": 2, "sum_margin": 7}


def test_no_byte_changes_with_unreadable_values(tenant: Tenant) -> None:
    """Of floats, too, whose sum depends on the order of the rows: a change of a hidden cell moves a row."""
    insert(tenant, 200, "stage, weight, margin, secret", "'won', (n * 0.1 + 1e16 * (n %% 3)) * (-1) ^ n, n, n")
    tenant.raw("UPDATE {}.deals SET owner_id = %s WHERE id LIKE 'd%%' AND length(id) = 3", BOB.user_id)
    bodies: list[dict[str, Any]] = [
        {"count": True, "sum": ["weight", "margin"], "avg": ["weight", "margin"], "min": ["margin"], "max": ["margin"]},
        {"group": ["stage"], "count_distinct": ["margin"], "sum": ["weight"], "order": "sum_weight.desc"},
        {"group": ["margin"], "count": True, "sum": ["weight"], "limit": 3},
        {"group": ["margin", "stage"], "count": True, "order": "margin.desc", "limit": 2},
        {"count": True, "where": {"margin": {"$gt": 3}}, "sum": ["weight"]},
        {"group": ["stage"], "sum": ["margin"], "having": {"sum_margin": {"$gt": 3}}},
        {"group": ["secret"]},
    ]

    def responses() -> list[Any]:
        found: list[Any] = []
        for body in bodies:
            try:
                found.append(services.aggregate_rows(tenant.environment, ALICE, "deals", body).body)
            except ValidationFailed as error:
                found.append(error.body("req_1"))
        return found

    before = responses()
    changed = (
        "UPDATE {}.deals SET secret = secret + 1000, margin = CASE WHEN owner_id = %s THEN margin ELSE 9 - margin END"
    )
    tenant.raw(changed, ALICE.user_id)
    assert responses() == before
    tenant.raw("DELETE FROM {}.deals WHERE stage = 'lost'")
    tenant.raw("UPDATE {}.deals SET secret = -1 WHERE id LIKE 'd%%5'")
    assert responses() == before


def test_a_related_row_is_filtered_by_what_the_caller_sees(tenant: Tenant) -> None:
    mine = tenant.put("deals", owner_id=ALICE.user_id, stage="lost", name="mine")
    hers = tenant.put("deals", owner_id=BOB.user_id, stage="lost", name="hidden")
    for deal in (mine, hers):
        tenant.put("notes", body="x", deal_id=deal)
    body = {"count": True, "where": {"deal.name": {"$null": False}}}
    found = orjson.loads(services.aggregate_rows(tenant.environment, ALICE, "notes", body).body)
    assert found["data"] == [{"count": 1}]


def test_injection_through_names_is_refused(tenant: Tenant) -> None:
    for name in ('stage"', "stage; --", "closed_at.day'", "closed_at.day' , 1)", "_c0", "_r", "ctid", "*", ""):
        for field in ("group", "sum"):
            assert refused(lambda field=field, name=name: ask(tenant, KEY, **{field: [name]}))[0] == field
