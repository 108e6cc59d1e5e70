"""`POST /v1/rows/{table}/aggregate` outside of any transaction: the endpoint, and the timeout of its statement."""

from typing import Any

import pytest
from django.db import connections

from platform_site.postgres import prepared, row_access
from tests.rows.conftest import Tracker
from tests.support.aggregates import DOCUMENT
from tests.support.tenants import REGION

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

THINGS: dict[str, Any] = {"tables": {"things": {"columns": {"name": {"type": "text"}}}}}


def fill(tracker: Tracker, number: int) -> None:
    with row_access.row_access(), connections[REGION].cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{tracker.environment_id}".things (id, name)'
            " SELECT 'n' || n, repeat('ab', 100) || n FROM generate_series(1, %s) n",
            [number],
        )


def test_over_http(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker(DOCUMENT)
    for value in ("1.50", "2.00"):
        row = {"owner_id": tracker.users["alice"], "stage": "won", "value": value}
        assert tracker.post("operator", "/rows/deals", row).status == 201
    body = {"group": ["stage"], "count": True, "sum": ["value"]}
    for who in ("alice", "alice", "alice", "bob", "reader", "owner", "viewer"):
        answer = tracker.post(who, "/rows/deals/aggregate", body, headers={"Idempotency-Key": "one"})
        expected = [{"stage": "won", "count": 2, "sum_value": "3.50"}]
        assert (answer.status, answer.json) == (200, {"data": expected, "next_cursor": None}), who
    assert tracker.post("reader", "/rows/nothing/aggregate", body).status == 404
    unknown = tracker.post("key", "/rows/deals/aggregate", {**body, "columns": "id"})
    assert unknown.fields == {"columns": "unknown_field"}
    assert tracker.post("key", "/rows/deals/aggregate?limit=1", body).status == 422
    assert tracker.post("key", "/rows/deals/aggregate", []).status == 422
    assert tracker.api.post("/v1/rows/deals/aggregate", json=body).status == 401


def test_a_key_without_rows_read_gets_403(make_tracker: Any) -> None:
    from tests.projects.conftest import key_for

    tracker: Tracker = make_tracker(DOCUMENT)
    key = key_for(tracker.environment_id, "schema:read")
    answer = tracker.api.post("/v1/rows/deals/aggregate", token=key, json={"count": True})
    assert answer.status == 403


def test_a_row_whose_id_is_aggregate_is_still_there(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker(THINGS)
    assert tracker.post("key", "/rows/things", {"id": "aggregate", "name": "x"}).status == 201
    assert tracker.get("key", "/rows/things/aggregate").json["name"] == "x"
    assert tracker.patch("key", "/rows/things/aggregate", {"name": "y"}).json["name"] == "y"
    assert tracker.post("key", "/rows/things/aggregate", {"group": ["name"]}).json["data"] == [{"name": "y"}]
    assert tracker.delete("key", "/rows/things/aggregate").status == 204
    assert tracker.get("key", "/rows/things/aggregate").status == 404


def test_a_slow_aggregate_is_503_with_a_hint(make_tracker: Any, settings: Any) -> None:
    tracker: Tracker = make_tracker(THINGS)
    fill(tracker, 30_000)
    body = {"count_distinct": ["name"]}
    assert tracker.post("key", "/rows/things/aggregate", body).json["data"] == [{"count_distinct_name": 30_000}]
    settings.AGGREGATE_STATEMENT_TIMEOUT_MS = 5
    for _ in range(3):  # by its text, prepared, and as prepared before
        answer = tracker.post("key", "/rows/things/aggregate", body)
        assert (answer.status, answer.error) == (503, "unavailable")
        assert "Narrow" in answer.json["error"]["message"]
    settings.AGGREGATE_STATEMENT_TIMEOUT_MS = 5_000
    assert prepared.run(REGION, b"SHOW statement_timeout", []) == [(b"5s",)]
    assert tracker.post("key", "/rows/things/aggregate", body).status == 200


def test_an_aggregate_goes_on_when_its_connection_is_terminated(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker(THINGS)
    fill(tracker, 3)
    for _ in range(4):
        assert tracker.post("key", "/rows/things/aggregate", {"count": True}).json["data"] == [{"count": 3}]
        connection = connections[REGION].connection
        assert connection is not None
        connection.pgconn.exec_(b"SELECT pg_terminate_backend(pg_backend_pid())")
    connections[REGION].close()


def test_a_prepared_aggregate_that_vanished_is_run_again(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker(THINGS)
    fill(tracker, 3)
    for number in range(5):
        if number == 3:
            prepared.run(REGION, b"DEALLOCATE ALL", [])
        assert tracker.post("key", "/rows/things/aggregate", {"count": True}).json["data"] == [{"count": 3}]


def test_a_change_of_schema_is_seen_at_once(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker(THINGS)
    fill(tracker, 3)
    body = {"max": ["name"], "count": True}
    for _ in range(3):
        assert tracker.post("key", "/rows/things/aggregate", body).status == 200
    columns = {"name": {"type": "text"}, "hidden": {"type": "integer", "null": True}}
    rules = {"server": {"read": {"columns": ["*", "-name"]}}}
    tracker.apply({"tables": {"things": {"columns": columns, "rules": rules}}})
    assert tracker.post("key", "/rows/things/aggregate", body).fields == {"max": "unknown"}
