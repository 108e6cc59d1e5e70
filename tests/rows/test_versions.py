"""A new version of the schema is followed by the next request, whoever applied it and whatever is going on
meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from platform_site.http.errors import NotFound, Unavailable, ValidationFailed
from rows import services
from rows.query import context, schema_cache
from rows.write.bulk import BulkQuery
from rows.write.references import user_policies
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, REGION, Tenant

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

CLIENTS = 8


def version(number: int) -> dict[str, Any]:
    """Version `number` of a table: its text is called by the number, and every other version hides the sum."""
    text = {"type": "text"} if number == 1 else {"type": "text", "renamed_from": f"text_{number - 1}"}
    columns: dict[str, Any] = {f"text_{number}": text, "sum": {"type": "integer", "default": 0}}
    if number % 3 == 0:
        columns["extra"] = {"type": "boolean", "default": True}
    shown = ["*", "-sum"] if number % 2 else ["*"]
    return {
        "tables": {
            "notes": {
                "columns": columns,
                "rules": {
                    "user": {"read": {"columns": shown}},
                    "server": {"read": {}, "insert": {}, "update": {}, "delete": {}},
                },
            }
        }
    }


def shape(number: int) -> set[str]:
    """The columns that an app user finds in version `number`."""
    found = {"id", f"text_{number}", "created_at", "updated_at"}
    return found | ({"extra"} if number % 3 == 0 else set()) | (set() if number % 2 else {"sum"})


@pytest.mark.exhaustive
def test_readers_and_writers_follow_while_the_schema_changes(make_tracker: Any) -> None:
    """Eight clients read and write while ten versions are applied: every answer is of a version that was current at
    some moment of its request, none is an internal error, and no write is lost. On a busy machine versions can come
    faster than a request goes: 503 says to try again."""
    tracker: Tracker = make_tracker(version(1))
    made = tracker.post("key", "/rows/notes", [{"text_1": str(number)} for number in range(CLIENTS)])
    rows = [row["id"] for row in made.json["data"]]
    begun, done = [1], [1]
    stop = threading.Event()

    def possible(since: int) -> set[int]:
        return set(range(since, begun[0] + 1))

    def check(since: int, found: dict[str, Any]) -> None:
        assert any(set(found) == shape(number) for number in possible(since)), (since, begun[0], sorted(found))

    def answered(ask: Callable[[], Answer]) -> tuple[int, Answer]:
        """The version that was current before the request, and its answer."""
        while True:
            since = done[0]
            answer = ask()
            if answer.status != 503:
                return since, answer
            assert begun[0] > since, "said to be changing when nothing did"

    def client(number: int) -> tuple[int, int]:
        reads = writes = 0
        row = rows[number]
        try:
            while not stop.is_set():
                since, got = answered(lambda: tracker.get("alice", f"/rows/notes/{row}"))
                assert got.status == 200, got.json
                check(since, got.json)
                since, listed = answered(lambda: tracker.get("alice", "/rows/notes?order=created_at.desc"))
                assert listed.status == 200, listed.json
                assert len(listed.json["data"]) == CLIENTS
                for found in listed.json["data"]:
                    check(since, found)
                reads += 2
                body = {"sum": writes + 1}
                _, changed = answered(lambda body=body: tracker.patch("key", f"/rows/notes/{row}", body))  # type: ignore[misc]
                assert changed.status == 200, changed.json
                assert changed.json["sum"] == writes + 1
                writes += 1
        finally:
            connections.close_all()
        return reads, writes

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(CLIENTS)]
        try:
            for number in range(2, 12):
                begun[0] = number
                tracker.apply(version(number))
                done[0] = number
        finally:
            stop.set()
        counts = [one.result(60) for one in clients]
    assert all(reads > 10 and writes > 5 for reads, writes in counts), counts
    sums = {row["id"]: row["sum"] for row in tracker.get("key", "/rows/notes").json["data"]}
    assert sums == {rows[number]: writes for number, (_, writes) in enumerate(counts)}


NOTES: dict[str, Any] = {
    "columns": {"body": {"type": "text"}, "owner": {"type": "user"}, "hidden": {"type": "text", "null": True}},
    "rules": {"user": {"read": {"where": {"owner_id": "$user.id"}}, "update": {"columns": ["body"]}}},
}


@pytest.fixture
def tenant() -> Any:
    made = Tenant({"tables": {"notes": NOTES}}).with_users(ALICE, BOB)
    yield made
    connections[REGION].close()
    with connections[REGION].cursor() as cursor:
        cursor.execute(f'DROP SCHEMA "{made.environment.environment_id}" CASCADE')


def test_a_rule_that_changed_is_asked_by_the_next_request(tenant: Tenant) -> None:
    """Threat T5. This process has seen the old rule, compiled it and prepared it."""
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    for _ in range(3):
        assert tenant.get(ALICE, "notes", note)["body"] == "x"
        assert tenant.update(ALICE, "notes", note, body="x")["body"] == "x"
        assert len(tenant.rows(ALICE, "notes")) == 1
    tenant.apply({"tables": {"notes": {**NOTES, "rules": {"user": {"read": {"where": {"body": "nobody's"}}}}}}})
    assert tenant.rows(ALICE, "notes") == []
    with pytest.raises(NotFound):
        tenant.get(ALICE, "notes", note)
    with pytest.raises(NotFound):
        tenant.update(ALICE, "notes", note, body="y")
    assert tenant.get(KEY, "notes", note)["body"] == "x"


def delete_many(tenant: Tenant, note: str) -> None:
    if not services.delete_rows(tenant.environment, ALICE, "notes", BulkQuery({"id": note})).ids:
        raise NotFound


WRITES: dict[str, Callable[[Tenant, str], Any]] = {
    "insert": lambda tenant, note: tenant.insert(ALICE, "notes", body="new", owner_id=ALICE.user_id),
    "update": lambda tenant, note: tenant.update(ALICE, "notes", note, body="new"),
    "update of nothing": lambda tenant, note: tenant.update(ALICE, "notes", note),
    "delete": lambda tenant, note: tenant.delete(ALICE, "notes", note),
    "delete of many": delete_many,
}


@pytest.mark.parametrize("shape", ["alone", "referred to", "looking back"])
@pytest.mark.parametrize("write", WRITES)
def test_a_right_to_write_that_was_taken_is_gone_with_the_next_request(tenant: Tenant, write: str, shape: str) -> None:
    """Threat T5. Rows to which others refer go by other statements, and so do those whose rules walk back into the
    table: each of them tests the version."""
    tables: dict[str, Any] = {"notes": {"columns": {**NOTES["columns"]}}}
    check = {}
    if shape == "referred to":
        tables["remarks"] = {"columns": {"note": {"type": "reference", "to": "notes", "on_delete": "cascade"}}}
    if shape == "looking back":
        up = {"type": "reference", "to": "notes", "null": True, "related_name": "down", "on_delete": "null"}
        tables["notes"]["columns"]["up"] = up
        check = {"check": {"down": {"$none": {"body": "nobody's"}}}}

    def apply(word: str) -> None:
        rules = {"read": {}, "insert": check, "update": check, "delete": {}}
        nobody = {"check": {"hidden": word}} if write == "insert" else {"where": {"hidden": word}}
        tables["notes"]["rules"] = {"user": {**rules, **({write.partition(" ")[0]: nobody} if word else {})}}
        tenant.apply({"tables": tables})

    apply("")
    for _ in range(3):  # by text, at its preparation, and prepared
        WRITES[write](tenant, tenant.put("notes", body="x", owner_id=ALICE.user_id))
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    before = tenant.rows(OPERATOR, "notes", limit=100)
    apply("nobody's")
    with pytest.raises((NotFound, ValidationFailed)):
        WRITES[write](tenant, note)
    after = tenant.rows(OPERATOR, "notes", limit=100)
    assert [(row["id"], row["updated_at"]) for row in after] == [(row["id"], row["updated_at"]) for row in before]


def test_rows_of_a_user_who_is_gone_follow_the_policy_of_today(tenant: Tenant) -> None:
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    columns = {**NOTES["columns"], "owner": {"type": "user", "on_delete": "delete"}}
    tenant.apply({"tables": {"notes": {**NOTES, "columns": columns}}})
    assert schema_cache.compiled_schema(tenant.environment).version == 1
    user_policies.apply_user_deletion(tenant.environment, ALICE.user_id or "", pending=None)
    with pytest.raises(NotFound):
        tenant.get(KEY, "notes", note)


@pytest.mark.parametrize("verb", ["list", "get", "update", "insert", "filter", "order"])
def test_a_column_or_table_that_is_new_is_known_at_once(tenant: Tenant, verb: str) -> None:
    """What this process does not know may have come since: nothing is refused before that was looked up."""
    assert tenant.rows(KEY, "notes") == []
    columns = {**NOTES["columns"], "more": {"type": "integer", "default": 1}}
    tenant.apply(
        {"tables": {"notes": {**NOTES, "columns": columns}, "others": {"columns": {"name": {"type": "text"}}}}}
    )
    assert schema_cache.compiled_schema(tenant.environment).version == 1
    match verb:
        case "list":
            assert tenant.rows(KEY, "others") == []
        case "get":
            with pytest.raises(NotFound):
                tenant.get(KEY, "others", "x")
        case "insert":
            assert tenant.insert(KEY, "notes", body="x", owner_id=ALICE.user_id, more=2)["more"] == 2
        case "filter":
            assert tenant.rows(KEY, "notes", where={"more": 1}) == []
        case "order":
            assert tenant.rows(KEY, "notes", order="more.desc") == []
        case "update":
            note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
            assert tenant.update(KEY, "notes", note, more=3)["more"] == 3
    assert schema_cache.compiled_schema(tenant.environment).version == 2


def test_dropped_column_is_gone_at_once_and_its_name_is_reused_empty(tenant: Tenant) -> None:
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id, hidden="secret")
    for _ in range(3):
        assert tenant.rows(KEY, "notes", where={"hidden": "secret"})[0]["id"] == note
    columns = {name: column for name, column in NOTES["columns"].items() if name != "hidden"}
    tenant.apply({"tables": {"notes": {**NOTES, "columns": columns}}})
    with pytest.raises(ValidationFailed):
        tenant.rows(KEY, "notes", where={"hidden": "secret"})
    assert "hidden" not in tenant.get(KEY, "notes", note)
    tenant.apply({"tables": {"notes": NOTES}})
    assert tenant.get(KEY, "notes", note)["hidden"] is None
    assert tenant.rows(KEY, "notes", where={"hidden": "secret"}) == []
    tenant.apply({"tables": {}})
    for _ in range(2):
        with pytest.raises(NotFound):
            tenant.rows(KEY, "notes")


def test_schema_that_keeps_changing_is_no_internal_error(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that the last run named and that went meanwhile: 503, not 500."""
    monkeypatch.setattr(context, "MAX_RUNS", 1)
    assert tenant.rows(KEY, "notes", where={"hidden": "x"}) == []
    columns = {name: column for name, column in NOTES["columns"].items() if name != "hidden"}
    tenant.apply({"tables": {"notes": {**NOTES, "columns": columns}}})
    with pytest.raises(Unavailable):
        tenant.rows(KEY, "notes", where={"hidden": "x"})


def test_a_type_that_changed_is_known_at_once(tenant: Tenant) -> None:
    note = tenant.put("notes", body="12", owner_id=ALICE.user_id)
    for _ in range(3):
        assert tenant.rows(KEY, "notes", where={"body": "12"}, order="body")[0]["body"] == "12"
        tenant.update(KEY, "notes", note, body="12")
    cursor = None
    tenant.put("notes", body="13", owner_id=ALICE.user_id)
    cursor = tenant.page(KEY, "notes", order="body", limit=1)["next_cursor"]
    columns = {**NOTES["columns"], "body": {"type": "integer"}}
    tenant.apply({"tables": {"notes": {**NOTES, "columns": columns}}})
    assert tenant.rows(KEY, "notes", where={"body": 12})[0]["body"] == 12
    assert tenant.update(KEY, "notes", note, body=14)["body"] == 14
    with pytest.raises(ValidationFailed) as caught:  # it was the cursor of a list of texts
        tenant.page(KEY, "notes", order="body", limit=1, cursor=cursor)
    assert [field.field for field in caught.value.fields] == ["cursor"]


def test_a_statement_that_is_prepared_outlives_a_change_of_type(tenant: Tenant) -> None:
    """What it answers with is of the same types and collations before and after; elsewise PostgreSQL refuses it on each
    connection that has it prepared."""
    as_a_number = {**NOTES["columns"], "body": {"type": "integer"}}
    looks_back = {"update": {"check": {"up.owner_id": "$user.id"}}}
    up = {"type": "reference", "to": "notes", "null": True, "related_name": "down"}
    rules = {"user": {"read": {}, **looks_back}}

    def apply(columns: dict[str, Any]) -> None:
        tenant.apply({"tables": {"notes": {"columns": {**columns, "up": up}, "rules": rules}}})

    apply(NOTES["columns"])
    top = tenant.put("notes", body="12", owner_id=ALICE.user_id)
    note = tenant.put("notes", body="13", owner_id=ALICE.user_id, up_id=top)
    for columns, value in ((NOTES["columns"], "13"), (as_a_number, 13), (NOTES["columns"], "13")):
        apply(columns)
        for _ in range(3):
            assert [row["body"] for row in tenant.rows(KEY, "notes", order="body.desc", limit=1)] == [value]
            assert tenant.update(ALICE, "notes", note, hidden="x")["body"] == value


def test_an_environment_that_is_gone_has_no_tables(tenant: Tenant) -> None:
    from rows.models import CurrentVersion

    assert tenant.rows(KEY, "notes") == []
    CurrentVersion.objects.using(REGION).filter(environment_id=tenant.environment.environment_id).delete()
    with pytest.raises(NotFound):
        tenant.rows(KEY, "notes")
    with pytest.raises(NotFound):
        services.insert_row(tenant.environment, KEY, "notes", {"body": "x", "owner_id": ALICE.user_id})
