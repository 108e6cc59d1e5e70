"""`POST /v1/rows/{table}?on_conflict=…`: rows that are there already are updated instead of inserted."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from platform_site.http.fields import WHOLE_BODY
from rows.models import OutboxEvent
from rows.write import errors
from tests.rows.conftest import Tracker
from tests.support.concurrency import another_session, at_once, is_blocked
from tests.support.service import wait_for
from tests.support.tenants import REGION

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

DOCUMENT: dict[str, Any] = {
    "tables": {
        "products": {
            "columns": {
                "sku": {"type": "text", "max_length": 40},
                "name": {"type": "text", "max_length": 100},
                "stock": {"type": "integer", "default": 0},
                "ean": {"type": "text", "max_length": 20, "null": True},
                "cost": {"type": "integer", "null": True},
            },
            "unique": [["sku"], ["ean"], ["cost"]],
            "rules": {"server": {"read": {"columns": ["*", "-cost"]}, "insert": {}, "update": {}}},
        },
        "settings": {
            "columns": {
                "owner": {"type": "user"},
                "name": {"type": "text", "max_length": 40},
                "value": {"type": "json", "null": True},
                "level": {"type": "integer", "default": 1},
            },
            "unique": [["owner", "name"], ["name", "level"]],
            "rules": {
                "user": {
                    "read": {"where": {"owner_id": "$user.id"}},
                    "insert": {"set": {"owner_id": "$user.id"}, "columns": ["name", "value"]},
                    "update": {
                        "where": {"owner_id": "$user.id", "name": {"$ne": "frozen"}},
                        "columns": ["name", "value"],
                    },
                }
            },
        },
        "votes": {
            "columns": {"owner": {"type": "user"}, "name": {"type": "text"}},
            "unique": [["name"]],
            "rules": {
                "user": {
                    "read": {"where": {"owner_id": "$user.id"}},
                    "insert": {"set": {"owner_id": "$user.id"}},
                }
            },
        },
        "nodes": {
            "columns": {
                "name": {"type": "text"},
                "parent": {"type": "reference", "to": "nodes", "on_delete": "cascade", "null": True},
            }
        },
    }
}


@pytest.fixture
def shop(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def put(shop: Tracker, who: str, table: str, key: str, body: Any, **how: Any) -> Any:
    return shop.post(who, f"/rows/{table}?on_conflict={key}", body, **how)


def test_a_row_is_inserted_and_the_next_time_updated(shop: Tracker) -> None:
    made = put(shop, "key", "products", "sku", {"sku": "a-1", "name": "Apple", "stock": 5})
    assert (made.status, made.headers["Location"]) == (201, f"/v1/rows/products/{made.json['id']}")
    again = put(shop, "key", "products", "sku", {"sku": "a-1", "name": "Apple, red"})
    assert (again.status, again.headers.get("Location")) == (200, None)
    assert again.json == {**made.json, "name": "Apple, red", "updated_at": again.json["updated_at"]}, "stock stays"
    assert again.json["updated_at"] > made.json["updated_at"]
    assert again.headers["ETag"] == shop.get("key", f"/rows/products/{made.json['id']}").headers["ETag"]
    unchanged = put(shop, "key", "products", "sku", {"sku": "a-1", "name": "Apple, red"})
    assert unchanged.status == 200
    assert shop.get("key", "/rows/products?count=exact").json["count"] == 1


def test_a_condition_is_never_ignored(shop: Tracker) -> None:
    """With a tag the caller would lose later changes; with the requirement that there be none, existing rows."""
    made = put(shop, "key", "products", "sku", {"sku": "a-1", "name": "Apple"})
    for name, value in (
        ("If-Match", '"other"'), ("If-Match", made.headers["ETag"]), ("If-Match", "*"), ("If-Match", "nonsense"),
        ("If-None-Match", "*"), ("If-None-Match", '"other"'),
    ):  # fmt: skip
        for body in ({"sku": "a-1", "name": "Pear"}, [{"sku": "a-1", "name": "Pear"}, {"sku": "a-2", "name": "New"}]):
            refused = put(shop, "key", "products", "sku", body, headers={name: value})
            assert (refused.status, refused.fields) == (422, {name: "not_allowed"}), value
    assert [row["name"] for row in shop.get("key", "/rows/products").json["data"]] == ["Apple"]


def test_by_an_id_of_ones_own(shop: Tracker) -> None:
    body = {"id": "apple", "sku": "a-1", "name": "Apple"}
    assert put(shop, "key", "products", "id", body).status == 201
    again = put(shop, "key", "products", "id", {**body, "stock": 7})
    assert (again.status, again.json["id"], again.json["stock"]) == (200, "apple", 7)
    other = put(shop, "key", "products", "id", {"sku": "a-2", "name": "Without an id"})
    assert other.status == 201, "there is nothing to look for"
    named = put(shop, "key", "products", "sku", {**body, "stock": 8})
    assert (named.status, named.json["stock"]) == (200, 8), "the id that it has"
    renamed = put(shop, "key", "products", "sku", {**body, "id": "pear"})
    assert (renamed.status, renamed.fields) == (422, {"id": "read_only"})
    taken = put(shop, "key", "products", "id", {**body, "id": "pear"})
    assert (taken.status, taken.fields) == (422, {"sku": "taken"}), "by another unique than the one that was named"


def test_many_at_once_are_all_or_none(shop: Tracker) -> None:
    def rows(*stock: int) -> list[dict[str, Any]]:
        return [{"sku": f"s-{number}", "name": "n", "stock": count} for number, count in enumerate(stock)]

    assert put(shop, "key", "products", "sku", rows(1, 2)).status == 201
    mixed = put(shop, "key", "products", "sku", rows(3, 4, 5))
    assert (mixed.status, [row["stock"] for row in mixed.json["data"]]) == (201, [3, 4, 5])
    again = put(shop, "key", "products", "sku", rows(6, 7, 8)[::-1])
    assert (again.status, [row["sku"] for row in again.json["data"]]) == (200, ["s-2", "s-1", "s-0"])
    refused = put(shop, "key", "products", "sku", [*rows(9, 9, 9, 9), {"sku": "s-9", "name": 5}])
    assert (refused.status, refused.fields) == (422, {"4.name": "wrong_type"})
    late = put(shop, "key", "products", "sku", [*rows(9, 9, 9, 9), {"sku": "s-9", "name": "x", "ean": "1"},
                                                {"sku": "s-8", "name": "y", "ean": "1"}])  # fmt: skip
    assert (late.status, late.fields) == (422, {"5.ean": "taken"})
    held = shop.get("key", "/rows/products?order=sku").json["data"]
    assert [(row["sku"], row["stock"]) for row in held] == [("s-0", 6), ("s-1", 7), ("s-2", 8)]


def test_one_key_twice_in_a_batch_is_refused_new_or_not(shop: Tracker) -> None:
    twice = [{"sku": "a-1", "name": "one"}, {"sku": "a-1", "name": "two"}]
    assert put(shop, "key", "products", "sku", twice).fields == {"1.sku": "taken"}
    assert put(shop, "key", "products", "sku", twice[0]).status == 201
    assert put(shop, "key", "products", "sku", twice).fields == {"1.sku": "taken"}


def test_one_id_twice_in_a_request_is_refused_with_the_number_of_the_row(shop: Tracker) -> None:
    twice = [{"id": "a", "name": "one"}, {"name": "two"}, {"id": "a", "name": "three"}]
    for refused in (put(shop, "key", "nodes", "id", twice), shop.post("key", "/rows/nodes", twice)):
        assert (refused.status, refused.fields) == (422, {"2.id": "taken"})
    assert put(shop, "key", "nodes", "id", twice[:2]).status == 201
    assert put(shop, "key", "nodes", "id", twice).fields == {"2.id": "taken"}


def test_batch_rows_may_refer_to_each_other_and_to_existing_rows(shop: Tracker) -> None:
    assert put(shop, "key", "nodes", "id", {"id": "m", "name": "old"}).status == 201
    batch = [
        {"id": "a", "name": "leaf", "parent_id": "m"},
        {"id": "m", "name": "branch", "parent_id": "z"},
        {"id": "z", "name": "root"},
    ]
    made = put(shop, "key", "nodes", "id", batch)
    assert (made.status, [row["parent_id"] for row in made.json["data"]]) == (201, ["m", "z", None])


def test_the_owner_that_a_rule_sets_is_a_part_of_the_key(shop: Tracker) -> None:
    made = put(shop, "alice", "settings", "owner_id,name", {"name": "theme", "value": "dark"})
    other = put(shop, "bob", "settings", "name,owner_id", {"name": "theme", "value": "light"})
    assert (made.status, other.status) == (201, 422), "bob's has the name and the level of alice's"
    again = put(shop, "alice", "settings", "owner_id,name", {"name": "theme", "value": None})
    assert (again.status, again.json["id"], again.json["value"]) == (200, made.json["id"], None)
    assert again.json["owner_id"] == shop.users["alice"]


def test_what_has_a_default_is_found_by_it(shop: Tracker) -> None:
    alice = shop.users["alice"]
    made = put(shop, "key", "settings", "name,level", {"name": "theme", "owner_id": alice})
    again = put(shop, "key", "settings", "name,level", {"name": "theme", "owner_id": alice, "value": 1})
    assert (made.status, again.status, again.json["id"]) == (201, 200, made.json["id"])
    assert put(shop, "key", "settings", "name,level", {"name": "theme", "owner_id": alice, "level": 2}).fields == {
        "owner_id": "taken",
        "name": "taken",
    }


def test_null_is_the_key_of_no_row(shop: Tracker) -> None:
    for number in range(2):
        assert put(shop, "key", "products", "ean", {"sku": f"s-{number}", "name": "n", "ean": None}).status == 201


def test_a_hidden_row_is_not_updated_and_tells_no_more_than_to_an_insert(shop: Tracker) -> None:
    hers = put(shop, "alice", "settings", "owner_id,name", {"name": "theme", "value": "dark"}).json
    body = {"name": "theme", "value": "mine"}
    refused = put(shop, "bob", "settings", "name,level", body)
    plain = shop.post("bob", "/rows/settings", body)
    assert (
        (refused.status, refused.fields) == (plain.status, plain.fields) == (422, {"name": "taken", "level": "taken"})
    )
    assert shop.get("alice", f"/rows/settings/{hers['id']}").json == hers
    by_id = put(shop, "bob", "settings", "id", {**body, "id": hers["id"]})
    assert (by_id.status, by_id.fields) == (422, {"id": "read_only"}), "app users choose no ids"


def test_a_column_that_the_caller_may_not_read_is_no_key(shop: Tracker) -> None:
    for who, choice in (("key", "id, or sku, or ean"), ("operator", "id, or sku, or ean, or cost")):
        refused = put(shop, who, "products", "name", {"sku": "s", "name": "n"})
        assert (refused.status, refused.fields) == (422, {"on_conflict": "not_unique"})
        assert refused.json["error"]["fields"][0]["message"] == f"Must name a unique constraint: {choice}."
    assert put(shop, "operator", "products", "cost", {"sku": "s", "name": "n", "cost": 5}).status == 201
    for key in ("cost", "", "sku,ean", "Sku", "id,sku", "*", "sku" * 50, ",".join("abc" * 500)):
        assert put(shop, "key", "products", key, {"sku": "s", "name": "n"}).fields == {"on_conflict": "not_unique"}, key


def test_what_may_not_be_updated_says_so(shop: Tracker) -> None:
    body = {"name": "frozen", "value": 1}
    assert put(shop, "alice", "settings", "owner_id,name", body).status == 201
    refused = put(shop, "alice", "settings", "owner_id,name", body)
    assert (refused.status, refused.error) == (409, "conflict")
    assert "no permission to update it" in refused.json["error"]["message"]


def test_a_role_that_updates_nothing_is_told_of_a_visible_row_alone(shop: Tracker) -> None:
    assert put(shop, "alice", "votes", "name", {"name": "a"}).status == 201
    refused = put(shop, "alice", "votes", "name", [{"name": "b"}, {"name": "a"}])
    assert (refused.status, refused.error) == (409, "conflict")
    assert "no permission to update it" in refused.json["error"]["message"]
    hidden = put(shop, "bob", "votes", "name", {"name": "a"})
    assert (hidden.status, hidden.fields) == (422, {"name": "taken"})
    assert len(shop.get("alice", "/rows/votes").json["data"]) == 1


def test_each_row_has_the_event_of_what_became_of_it(shop: Tracker) -> None:
    subscribed = {"url": "https://receiver.example/hook", "events": ["products.insert", "products.update"]}
    assert shop.post("owner", "/webhooks", subscribed).status == 201
    first = put(shop, "key", "products", "sku", [{"sku": "a", "name": "n"}])
    put(shop, "key", "products", "sku", [{"sku": "b", "name": "n"}, {"sku": "a", "name": "m"}])
    assert put(shop, "key", "products", "sku", [{"sku": "a"}]).fields == {"0.name": "required"}, "as for an insert"
    events = OutboxEvent.objects.using(REGION).filter(environment_id=shop.environment_id).order_by("sequence")
    told = [(event.type, json.loads(event.data)["record"]["sku"]) for event in events]
    assert told == [("products.insert", "a"), ("products.insert", "b"), ("products.update", "a")]
    assert first.status == 201


def test_it_is_repeated_under_an_idempotency_key_as_it_was_answered(shop: Tracker) -> None:
    headers = {"Idempotency-Key": "sync-1"}
    body = {"sku": "a", "name": "n"}
    first = shop.post("key", "/rows/products?on_conflict=sku", body, headers=headers)
    again = shop.post("key", "/rows/products?on_conflict=sku", body, headers=headers)
    assert (first.status, again.status, again.body) == (201, 201, first.body)


def test_a_row_that_loses_the_key_before_it_is_locked_is_left_alone(shop: Tracker) -> None:
    first = put(shop, "key", "products", "sku", {"sku": "a", "name": "old"}).json
    with another_session(shop) as other, ThreadPoolExecutor(1) as beside:
        other.execute("UPDATE products SET sku = 'b' WHERE id = %s", [first["id"]])
        body = {"sku": "a", "name": "meant for a"}
        waiting = beside.submit(at_once, lambda: put(shop, "key", "products", "sku", body).status)
        wait_for("it waits for the row", is_blocked)
        other.commit()
        assert waiting.result(30) == [201]
    held = shop.get("key", "/rows/products?order=sku").json["data"]
    assert [(row["sku"], row["name"]) for row in held] == [("a", "meant for a"), ("b", "old")]


@pytest.mark.parametrize("key", ["sku", None])
@pytest.mark.parametrize("table", ["products", "nodes"])
def test_a_large_response_is_refused_before_anything_is_written(
    shop: Tracker, monkeypatch: pytest.MonkeyPatch, table: str, key: str | None
) -> None:
    """The bodies are short: rows hold more than is sent."""
    rows = [{"id": f"row-{number}", "name": "n" * 90} for number in range(6)]
    if table == "products":
        rows = [{**row, "sku": row["id"]} for row in rows]
    path = f"/rows/{table}" if key is None else f"/rows/{table}?on_conflict={'id' if table == 'nodes' else key}"
    if key is not None:
        assert shop.post("operator", path, rows[:4]).status == 201
    monkeypatch.setattr(errors, "MAX_ANSWER_BYTES", 700)
    before = shop.get("operator", f"/rows/{table}").json["data"]
    refused = shop.post("operator", path, [{**row, "name": "new"} if key else row for row in rows])
    assert (refused.status, refused.fields) == (422, {WHOLE_BODY: "too_large"})
    assert shop.get("operator", f"/rows/{table}").json["data"] == before
    assert shop.post("operator", path, rows[:2]).status == (201 if key is None else 200)


@pytest.mark.exhaustive
def test_who_comes_at_the_same_moment_updates_what_another_inserted(shop: Tracker) -> None:
    batch = [{"id": f"row-{number:02}", "sku": f"s-{number}", "name": "n"} for number in range(20)]
    for key in ("id", "sku"):
        statuses = at_once(
            *[lambda key=key: put(shop, "key", "products", key, batch).status] * 4,
            *[lambda key=key: put(shop, "key", "products", key, batch[::-1]).status] * 4,
        )
        assert set(statuses) <= {200, 201}, statuses
    assert shop.get("key", "/rows/products?count=exact").json["count"] == 20
