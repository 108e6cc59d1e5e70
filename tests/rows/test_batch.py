"""`POST /v1/batch`: several writes in one transaction. docs/reference/rows.md."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, close_old_connections

from platform_site.concurrency import server_hints
from platform_site.postgres import libpq, prepared
from rows.outbox.models import OutboxEvent
from rows.write import batch as write_batch
from tests.projects.conftest import key_for
from tests.rows.conftest import Tracker
from tests.support.batches import batch, failed, insert, ref
from tests.support.client import Answer
from tests.support.concurrency import another_session, at_once, is_blocked
from tests.support.service import wait_for

MINE = {"where": {"owner_id": "$user.id"}}
DOCUMENT: dict[str, Any] = {
    "tables": {
        "teams": {
            "columns": {
                "name": {"type": "text"},
                "size": {"type": "integer", "default": 0},
                "secret": {"type": "text", "null": True},
                "vault": {"type": "text", "null": True},
                "settings": {"type": "json", "null": True},
                "owner": {"type": "user"},
            },
            "unique": [["name"]],
            "rules": {
                "user": {
                    "read": {**MINE, "columns": ["*", "-secret", "-vault"]},
                    "insert": {"set": {"owner_id": "$user.id"}, "columns": ["*", "-vault"]},
                    "update": {**MINE, "columns": ["*", "-vault"]},
                    "delete": MINE,
                }
            },
        },
        "members": {
            "columns": {
                "team": {"type": "reference", "to": "teams", "on_delete": "cascade"},
                "label": {"type": "text", "null": True},
                "count": {"type": "integer", "null": True},
                "data": {"type": "json", "null": True},
            },
            "rules": {
                "user": {
                    "read": {"where": {"team.owner_id": "$user.id"}},
                    "insert": {"check": {"team.owner_id": "$user.id"}},
                    "delete": {"where": {"team.owner_id": "$user.id"}},
                }
            },
        },
        "hidden": {"columns": {"x": {"type": "text"}}, "rules": {}},
    }
}

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def app(make_tracker: Any) -> Tracker:
    tracker: Tracker = make_tracker(DOCUMENT, "Batch")
    return tracker


def names(app: Tracker, who: str = "alice") -> list[str]:
    return sorted(row["name"] for row in app.get(who, "/rows/teams").json["data"])


def test_it_writes_all_operations_in_order(app: Tracker) -> None:
    got = batch(
        app,
        insert("teams", "team", name="Red"),
        insert("members", "one", team_id=ref("team.id"), label=ref("team.name")),
        {"op": "update", "table": "teams", "id": ref("team.id"), "values": {"size": {"$inc": 2}}},
        {"op": "upsert", "table": "teams", "on_conflict": "name", "values": {"name": "Red", "size": 9}},
        {"op": "upsert", "table": "teams", "on_conflict": "name", "values": {"name": "Blue"}},
        {"op": "delete", "table": "members", "id": ref("one.id")},
    )
    assert got.status == 200, got.json
    results = got.json["results"]
    assert [result["status"] for result in results] == [201, 201, 200, 200, 201, 204]
    assert results[1]["row"]["label"] == "Red"
    assert (results[2]["row"]["size"], results[3]["row"]["size"]) == (2, 9)
    assert results[3]["etag"] == app.get("alice", f"/rows/teams/{results[0]['row']['id']}").headers["ETag"]
    assert "row" not in results[5]
    assert names(app) == ["Blue", "Red"]
    assert app.get("alice", "/rows/members").json["data"] == []


def test_after_an_error_nothing_has_changed(app: Tracker) -> None:
    webhook = {"url": "https://hooks.example.com/in", "events": ["teams.insert"]}
    assert app.post("owner", "/webhooks", webhook).status == 201
    refused = batch(app, insert("teams", name="Red"), insert("teams", name="Blue", nme="x"))
    failed(refused, 1, 422, "validation_failed", nme="unknown")
    assert names(app) == []
    assert not OutboxEvent.objects.using(app.project.cluster).exists()
    assert batch(app, insert("teams", name="Red")).status == 200
    assert OutboxEvent.objects.using(app.project.cluster).count() == 1


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_ten_inserts_and_the_begin_of_their_transaction_are_one_round_trip(
    app: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[bytes]] = []
    alone: list[bytes] = []
    pipeline, execute = libpq.pipeline_in_order, prepared.execute

    def counted(wrapper: Any, statements: Any, is_silent: Any = None) -> Any:
        sent.append([sql for sql, _ in statements])
        return pipeline(wrapper, statements, is_silent)

    def noted(wrapper: Any, sql: bytes, values: Any) -> Any:
        alone.append(sql)
        return execute(wrapper, sql, values)

    operations = [
        operation
        for number in range(5)
        for operation in (
            insert("teams", f"team{number}", name=f"Team {number}"),
            insert("members", team_id=ref(f"team{number}.id")),
        )
    ]
    monkeypatch.setattr(libpq, "pipeline_in_order", counted)
    monkeypatch.setattr(prepared, "execute", noted)
    answer = batch(app, *operations)
    assert answer.status == 200, answer.json
    [together] = sent
    assert together[0] == b"BEGIN"
    # The five rows of a table are inserted by one statement.
    assert (len(together), alone) == (3, [])
    taken = batch(app, insert("teams", name="Other"), insert("teams", name="Team 1"))
    failed(taken, 1, 422, "validation_failed", name="taken")
    assert names(app) == [f"Team {number}" for number in range(5)]


def test_inserts_are_sent_together(app: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []
    send = write_batch.insert_in_one_trip

    def counted(context: Any, attempts: Any) -> Any:
        trips.append(len(attempts))
        return send(context, attempts)

    monkeypatch.setattr(write_batch, "insert_in_one_trip", counted)
    operations = [
        insert("teams", "red", name="Red"),
        insert("members", "one", team_id=ref("red.id")),
        insert("teams", "blue", name="Blue"),
        insert("members", team_id=ref("blue.id"), label=ref("red.name")),
        insert("members", team_id=ref("blue.id")),
    ]
    together = batch(app, *operations)
    assert together.status == 200, together.json
    assert trips == [3, 2]  # `red.name` is known only when the row has been inserted
    results = together.json["results"]
    assert [each["status"] for each in results] == [201] * 5
    assert results[1]["row"]["team_id"] == results[0]["row"]["id"]
    assert (results[3]["row"]["team_id"], results[3]["row"]["label"]) == (results[2]["row"]["id"], "Red")
    for result, table in zip(results, ("teams", "members", "teams", "members", "members"), strict=True):
        assert app.get("alice", f"/rows/{table}/{result['row']['id']}").json == result["row"]


def test_the_first_error_of_inserts_sent_together_is_reported(app: Tracker) -> None:
    """The rows are sent together, and the second is refused by a unique value, the fourth by its body."""
    rows = [insert("teams", name=name) for name in ("Red", "Red", "Blue")]
    failed(batch(app, *rows, insert("teams", nme="x")), 1, 422, "validation_failed", name="taken")
    failed(batch(app, rows[0], insert("members", team_id="none"), rows[2]), 1, 422, "validation_failed",
           team_id="no_such_row")  # fmt: skip
    wrong_type = insert("members", team_id=ref("red.id"), count=ref("red.id"))
    failed(batch(app, insert("teams", "red", name="Red"), wrong_type), 1, 422, "validation_failed", count="wrong_type")
    assert names(app) == []


def test_each_operation_keeps_its_own_error(app: Tracker) -> None:
    red = app.post("alice", "/rows/teams", {"name": "Red"})
    theirs = app.post("bob", "/rows/teams", {"name": "Green"}).json["id"]
    first, row_id = insert("teams", name="Blue"), red.json["id"]
    failed(batch(app, first, {"op": "delete", "table": "teams", "id": theirs}), 1, 404, "not_found")
    failed(batch(app, first, {"op": "delete", "table": "teams", "id": "no row"}), 1, 404, "not_found")
    failed(batch(app, first, insert("hidden", x="1")), 1, 404, "not_found")
    failed(batch(app, first, insert("teams", name="Red")), 1, 422, "validation_failed", name="taken")
    same_id = insert("teams", id=row_id, name="Pink", owner_id=app.users["bob"])
    failed(batch(app, same_id, who="operator"), 0, 409, "conflict")
    twice = [insert("teams", id="new", name=name, owner_id=app.users["bob"]) for name in ("Grey", "Pink")]
    refused = batch(app, twice[0], insert("members", team_id="new"), twice[1], who="operator")
    failed(refused, 2, 409, "conflict")
    assert refused.json["error"]["message"] == 'A row with the id "new" already exists.'
    stale = {"op": "update", "table": "teams", "id": row_id, "values": {"size": 1}, "if_match": '"0"'}
    failed(batch(app, first, stale), 1, 412, "precondition_failed")
    fresh = stale | {"if_match": red.headers["ETag"]}
    failed(batch(app, fresh, fresh), 1, 412, "precondition_failed")
    assert batch(app, fresh).status == 200
    failed(batch(app, first, insert("members", team_id=theirs)), 1, 422, "validation_failed", team_id="no_such_row")
    assert names(app) == ["Red"]


@pytest.mark.parametrize("count", [0, 101])
def test_the_number_of_operations_is_limited(app: Tracker, count: int) -> None:
    got = batch(app, *(insert("teams", name=str(number)) for number in range(count)))
    assert (got.status, got.fields) == (422, {"operations": "out_of_range"})
    assert names(app) == []


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"operations": "required"}),
        ({"operations": {}}, {"operations": "wrong_type"}),
        ({"operations": ["x"]}, {"$body": "wrong_type"}),
        ({"operations": [{"op": "drop", "table": "teams"}]}, {"op": "not_among"}),
        ({"operations": [{"op": ["insert"], "table": "teams"}]}, {"op": "not_among"}),
        ({"operations": [{"op": "insert"}]}, {"table": "required", "values": "required"}),
        ({"operations": [{"op": "delete", "table": "teams"}]}, {"id": "required"}),
        ({"operations": [{"op": "delete", "table": "teams", "id": 7}]}, {"id": "wrong_type"}),
        ({"operations": [{"op": "delete", "table": "teams", "id": "x", "values": {}}]}, {"values": "unknown_field"}),
        ({"operations": [{"op": "upsert", "table": "teams", "values": {"name": "x"}}]}, {"on_conflict": "required"}),
        ({"operations": [insert("teams", "Red Team", name="x")]}, {"name": "invalid"}),
        ({"operations": [insert("teams", "a", name="x"), insert("teams", "a", name="y")]}, {"name": "taken"}),
        ({"operations": [insert("teams", name="x") | {"if_match": '"x"'}]}, {"if_match": "unknown_field"}),
        ({"operations": [insert("teams", name="x")], "dry_run": 1}, {"dry_run": "wrong_type"}),
        ({"operations": [insert("teams", name="x")], "wheer": 1}, {"wheer": "unknown_field"}),
    ],
)
def test_a_malformed_batch_is_refused(app: Tracker, body: Any, fields: dict[str, str]) -> None:
    got = app.post("alice", "/batch", body)
    assert (got.status, got.fields) == (422, fields)
    assert names(app) == []


def test_the_request_takes_no_if_match(app: Tracker) -> None:
    got = batch(app, insert("teams", name="Red"), headers={"If-Match": '"x"'})
    assert (got.status, got.fields) == (422, {"If-Match": "not_allowed"})


def test_a_dry_run_changes_nothing(app: Tracker) -> None:
    got = batch(app, insert("teams", "t", name="Red"), insert("members", team_id=ref("t.id")), dry_run=True)
    assert [result["status"] for result in got.json["results"]] == [201, 201]
    assert names(app) == []


# ── References ──


@pytest.mark.parametrize("cell", ["t.secret", "t.nothing", "later.id", "self.id", "t", "", ".", "t.id.x", "gone.id"])
def test_a_reference_to_an_unknown_cell_is_refused(app: Tracker, cell: str) -> None:
    row_id = app.post("alice", "/rows/teams", {"name": "Old"}).json["id"]
    got = batch(
        app,
        insert("teams", "t", name="Red"),
        {"op": "delete", "table": "teams", "id": row_id, "name": "gone"},
        insert("members", "self", team_id=ref("t.id"), label=ref(cell)),
        insert("members", "later", team_id=ref("t.id")),
    )
    failed(got, 2, 422, "validation_failed", label="unknown")
    assert names(app) == ["Old"]


def test_a_reference_must_have_the_type_of_its_column(app: Tracker) -> None:
    got = batch(app, insert("teams", "t", name="Red"), insert("members", team_id=ref("t.id"), count=ref("t.name")))
    failed(got, 1, 422, "validation_failed", count="wrong_type")
    number = batch(app, insert("teams", "t", name="Red"), {"op": "delete", "table": "teams", "id": ref("t.size")})
    failed(number, 1, 422, "validation_failed", id="wrong_type")


def test_a_reference_reveals_nothing_of_a_hidden_column(app: Tracker) -> None:
    """Its type and its existence: the answer is that of a column that does not exist."""
    red = insert("teams", "t", name="Red")
    for column in ("owner_id", "size"):  # both are set or kept by the platform, or of another type
        failed(batch(app, red, insert("hidden", **{column: ref("t.name")})), 1, 404, "not_found")
    for column in ("vault", "nothing"):
        change = {"op": "update", "table": "teams", "id": ref("t.id"), "values": {column: ref("t.size")}}
        failed(batch(app, red, change), 1, 422, "validation_failed", **{column: "unknown"})


def test_in_a_json_column_a_reference_is_data(app: Tracker) -> None:
    got = batch(app, insert("teams", "t", name="Red", settings=ref("t.id")))
    assert got.json["results"][0]["row"]["settings"] == {"$ref": "t.id"}


def test_several_operations_may_change_one_row(app: Tracker) -> None:
    change = {"op": "update", "table": "teams", "id": ref("t.id"), "values": {"size": {"$inc": 1}}}
    got = batch(app, insert("teams", "t", name="Red"), change, change)
    assert [result["row"]["size"] for result in got.json["results"]] == [0, 1, 2]
    gone = {"op": "delete", "table": "teams", "id": ref("t.id")}
    failed(batch(app, insert("teams", "t", name="Blue"), gone, change), 2, 404, "not_found")


# ── Repetition, concurrency, limits ──


def test_a_repeated_batch_is_answered_and_not_written_again(app: Tracker) -> None:
    key = {"Idempotency-Key": "one"}
    first = batch(app, insert("teams", name="Red"), headers=key)
    again = batch(app, insert("teams", name="Red"), headers=key)
    assert (first.status, again.status) == (200, 200)
    assert again.body == first.body
    assert batch(app, insert("teams", name="Blue"), headers=key).status == 422
    assert names(app) == ["Red"]


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.parametrize("key", [None, "key"])
def test_batches_that_change_rows_in_opposite_order_all_finish(app: Tracker, key: str | None) -> None:
    ids = [app.post("alice", "/rows/teams", {"name": name}).json["id"] for name in ("A", "B")]

    def run(number: int) -> Answer:
        order = ids if number % 2 else ids[::-1]
        headers = None if key is None else {"Idempotency-Key": f"{key}{number}"}
        try:
            return batch(app, *({"op": "update", "table": "teams", "id": row_id, "values": {"size": {"$inc": 1}}}
                                for row_id in order * 3), headers=headers)  # fmt: skip
        finally:
            close_old_connections()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(run, range(16)))
    assert {answer.status for answer in answers} == {200}
    sizes = {row["size"] for row in app.get("alice", "/rows/teams").json["data"]}
    assert sizes == {3 * 16}


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_batch_does_not_wait_for_rows_that_the_caller_may_not_change(app: Tracker) -> None:
    ids = [app.post("alice", "/rows/teams", {"name": name}).json["id"] for name in ("A", "B")]
    removals = [{"op": "delete", "table": "teams", "id": row_id} for row_id in ids]
    with another_session(app) as other:
        other.execute("SELECT FROM teams FOR UPDATE")
        failed(batch(app, *removals, who="bob"), 0, 404, "not_found")
        assert batch(app, *removals).status == 503, "of her own she has to wait for"


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_an_error_before_the_first_change_waits_for_no_row(app: Tracker) -> None:
    ids = [app.post("alice", "/rows/teams", {"name": name}).json["id"] for name in ("A", "B")]
    changes = [{"op": "update", "table": "teams", "id": row_id, "values": {"size": 1}} for row_id in ids]
    with another_session(app) as other:
        other.execute("SELECT FROM teams FOR UPDATE")
        failed(batch(app, insert("teams"), *changes), 0, 422, "validation_failed", name="required")


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_row_is_locked_before_those_that_refer_to_it(app: Tracker) -> None:
    """As by the deletion of a row."""
    team = app.post("alice", "/rows/teams", {"name": "A"}).json["id"]
    member = app.post("alice", "/rows/members", {"team_id": team}).json["id"]
    operations = (
        {"op": "delete", "table": "members", "id": member},
        {"op": "update", "table": "teams", "id": team, "values": {"size": 1}},
    )
    with another_session(app) as other, ThreadPoolExecutor(1) as beside:
        other.execute("SELECT FROM teams FOR UPDATE")
        waiting = beside.submit(at_once, lambda: batch(app, *operations).status)
        wait_for("it waits for the team", is_blocked)
        other.execute("SELECT FROM members FOR UPDATE NOWAIT")
        other.rollback()
        assert waiting.result(30) == [200]


@pytest.mark.django_db(databases="__all__", transaction=True)
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("exist", [True, False])
def test_upserts_of_the_same_rows_in_different_orders_succeed(app: Tracker, exist: bool, has_key: bool) -> None:
    teams = ["A", "B", "C", "D"]
    if exist:
        assert batch(app, *(insert("teams", name=name) for name in teams)).status == 200

    def upserts(first: int, number: int) -> int:
        order = teams[first:] + teams[:first]
        changes = [
            {"op": "upsert", "table": "teams", "on_conflict": "name", "values": {"name": each}} for each in order
        ]
        headers = {"Idempotency-Key": f"batch-{number}"} if has_key else None
        return batch(app, *changes, headers=headers).status

    assert at_once(*(partial(upserts, number % 4, number) for number in range(12))) == [200] * 12


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_of_parallel_repetitions_one_is_written(app: Tracker) -> None:
    def run(_: int) -> Answer:
        try:
            return batch(app, insert("teams", name="Red"), headers={"Idempotency-Key": "parallel"})
        finally:
            close_old_connections()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, range(8)))
    assert {answer.status for answer in answers} <= {200, 409}, "409: the first one is not finished"
    assert len({answer.body for answer in answers if answer.status == 200}) == 1
    assert names(app) == ["Red"]


def test_upserts_that_refer_to_each_other_are_refused(app: Tracker) -> None:
    first, second = (
        {"op": "upsert", "table": "teams", "on_conflict": "name", "name": one, "values": {"name": ref(f"{other}.name")}}
        for one, other in (("a", "b"), ("b", "a"))
    )
    failed(batch(app, first, second), 0, 422, "validation_failed", name="unknown")
    assert names(app) == []


def test_a_batch_of_a_megabyte_is_refused_whole(app: Tracker) -> None:
    got = batch(app, *(insert("teams", name=f"{number}" + "x" * 11_000) for number in range(100)))
    assert (got.status, got.error) == (413, "payload_too_large")
    assert names(app) == []


def test_a_large_response_of_updates_is_refused_whole(app: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    team = app.post("alice", "/rows/teams", {"name": "Red"}).json["id"]
    monkeypatch.setattr("rows.write.errors.MAX_ANSWER_BYTES", 500)
    change = {"op": "update", "table": "teams", "id": team, "values": {"size": {"$inc": 1}}}
    failed(batch(app, change, change, change), 2, 422, "validation_failed", **{"$body": "too_large"})
    assert app.get("alice", f"/rows/teams/{team}").json["size"] == 0


def test_no_byte_changes_with_unreadable_values(app: Tracker) -> None:
    """Neither in a result nor in an error: alice reads no `secret`."""
    red = app.post("alice", "/rows/teams", {"name": "Red"}).json["id"]
    theirs = app.post("bob", "/rows/teams", {"name": "Green"}).json["id"]
    change = {"op": "update", "table": "teams", "id": red, "values": {"size": 1}}
    upsert = {"op": "upsert", "table": "teams", "on_conflict": "name", "values": {"name": "Red"}, "name": "red"}
    batches: list[list[dict[str, Any]]] = [
        [change, upsert, insert("members", team_id=ref("red.id"), label=ref("red.name"))],
        [change | {"if_match": '"0"'}],
        [upsert, insert("members", team_id=ref("red.id"), label=ref("red.secret"))],
        [change | {"id": theirs}],
        [upsert | {"on_conflict": "secret"}],
        [change | {"values": {"size": {"$inc": 2**63}}}],
    ]

    def answers() -> list[str]:
        # Ids and times of rows that a dry run makes are new each time; so are request ids.
        texts = [batch(app, *operations, dry_run=True).body.decode() for operations in batches]
        return [re.sub(r'"(id|\w+_at|etag|request_id)":"([^"\\]|\\.)*"', "", text) for text in texts]

    before = answers()
    for row_id, secret in ((red, "s" * 1000), (theirs, "Red")):
        assert app.patch("operator", f"/rows/teams/{row_id}", {"secret": secret}).status == 200
    assert answers() == before
    assert [text.startswith('{"results"') for text in before] == [True, False, False, False, False, False]


def test_it_counts_as_its_operations_against_the_rate_limit(app: Tracker, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    before = app.get("bob", "/rows/teams").headers["RateLimit"]
    after = batch(app, *(insert("teams", name=f"t{number}") for number in range(50)), who="bob").headers["RateLimit"]
    assert _left(before) - _left(after) == 50


def test_a_batch_that_waited_for_a_thread_counts_all_its_operations(
    app: Tracker, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated, before it has counted them (`platform_site.server.thread_shares`)."""
    settings.RATE_LIMIT_FACTOR = 1
    before = app.get("bob", "/rows/teams").headers["RateLimit"]
    monkeypatch.setattr(server_hints, "is_repeated", lambda request: True)
    after = batch(app, *(insert("teams", name=f"t{number}") for number in range(50)), who="bob").headers["RateLimit"]
    assert _left(before) - _left(after) == 49, "the request itself was counted before it waited"


def test_a_batch_beyond_the_rate_limit_is_one_request(app: Tracker, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    before = app.get("bob", "/rows/teams").headers["RateLimit"]
    settings.RATE_LIMIT_FACTOR = 30 / (30 + _left(before))
    got = batch(app, *(insert("teams", name=f"t{number}") for number in range(100)), who="bob")
    after = app.get("bob", "/rows/teams")
    assert (got.status, _left(got.headers["RateLimit"]) - _left(after.headers["RateLimit"])) == (429, 1)


def _left(rate_limit: str) -> int:
    return int(rate_limit.split(";r=")[1].split(";")[0])


@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.parametrize("headers", [None, {"Idempotency-Key": "a-key"}])
def test_a_deadlock_is_repeated_three_times_in_all_and_counted_once(
    app: Tracker, settings: Any, monkeypatch: pytest.MonkeyPatch, headers: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    runs: list[str] = []

    def deadlock(self: Any) -> Any:
        runs.append("run")
        raise OperationalError from psycopg.errors.DeadlockDetected()

    monkeypatch.setattr(write_batch._Batch, "_run", deadlock)
    before = app.get("bob", "/rows/teams").headers["RateLimit"]
    got = batch(app, *(insert("teams", name=f"t{number}") for number in range(50)), who="bob", headers=headers)
    assert (got.status, got.json["error"]["operation"], len(runs)) == (503, 0, 3)
    assert _left(before) - _left(got.headers["RateLimit"]) == 50


def test_a_batch_needs_the_scope_to_write(app: Tracker) -> None:
    got = batch(app, insert("teams", name="Red"), who="reader")
    assert (got.status, got.error) == (403, "forbidden")


def test_what_finds_rows_needs_the_scope_to_read(app: Tracker) -> None:
    team = app.post("alice", "/rows/teams", {"name": "Red"}).json["id"]
    app.tokens["writer"] = key_for(app.environment_id, "rows:write")
    upsert = {"op": "upsert", "table": "teams", "on_conflict": "name", "values": {"name": "Red"}}
    for finds in ({"op": "delete", "table": "teams", "id": team}, upsert):
        failed(batch(app, insert("teams", name="Blue"), finds, who="writer"), 1, 403, "forbidden")


def test_an_error_of_the_database_names_the_operation(app: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: Any, **__: Any) -> Any:
        raise OperationalError from psycopg.errors.LockNotAvailable()

    monkeypatch.setattr(write_batch.service, "delete", locked)
    team = app.post("alice", "/rows/teams", {"name": "Red"}).json["id"]
    failed(
        batch(app, insert("teams", name="Blue"), {"op": "delete", "table": "teams", "id": team}), 1, 503, "unavailable"
    )
    assert names(app) == ["Red"]


def test_functions_write_batches(app: Tracker) -> None:
    source = """export default ({operations}, ctx) => ctx.rows.batch(operations)"""
    assert app.call("owner", "PUT", "/functions/write", json={"source": source}).status == 201
    operations = [insert("teams", "t", name="Red"), insert("members", team_id=ref("t.id"))]
    got = app.post("alice", "/functions/write/invoke", {"input": {"operations": operations}})
    assert got.status == 200, got.json
    assert [result["status"] for result in got.json["output"]["results"]] == [201, 201]
    wrong = {"operations": [insert("teams", name="Blue"), insert("teams")]}
    refused = app.post("alice", "/functions/write/invoke", {"input": wrong})
    assert refused.json["status"] == "failed"
    assert "operation 1: " in refused.json["error"]
    assert names(app) == ["Red"]
    source = """export default ({operations}, ctx) => ctx.rows.batch(operations).catch(({code, operation}) => [code, operation])"""
    assert app.call("owner", "PUT", "/functions/told", json={"source": source}).status == 201
    assert app.post("alice", "/functions/told/invoke", {"input": wrong}).json["output"] == ["validation_failed", 1]
