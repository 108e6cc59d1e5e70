"""The endpoints of rows as clients use them: statuses, headers, bodies. One project serves the whole of each test."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from django.db import connections

from platform_site.http import idempotency
from platform_site.identity import call_depth
from rows.models import EventInterest, OutboxEvent
from tests.projects.conftest import key_for
from tests.rows.conftest import Tracker
from tests.support.concurrency import another_session, at_once, is_blocked
from tests.support.service import wait_for
from tests.support.tenants import REGION
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def new_list(tracker: Tracker, owner: str, name: str = "Home") -> str:
    answer = tracker.post("key", "/rows/lists", {"name": name, "owner_id": tracker.users[owner]})
    assert answer.status == 201, answer.json
    return str(answer.json["id"])


def new_task(tracker: Tracker, owner: str, list_id: str, **cells: Any) -> str:
    body = {"title": "x", "list_id": list_id, "owner_id": tracker.users[owner], **cells}
    answer = tracker.post("key", "/rows/tasks", body)
    assert answer.status == 201, answer.json
    return str(answer.json["id"])


def test_a_row_is_made_read_changed_and_deleted(tracker: Tracker) -> None:
    home = new_list(tracker, "alice")
    made = tracker.post("alice", "/rows/tasks", {"title": "Milk", "list_id": home})
    assert made.status == 201
    task = made.json["id"]
    assert made.headers["Location"] == f"/v1/rows/tasks/{task}"
    assert task.startswith("tsk_")

    got = tracker.get("alice", f"/rows/tasks/{task}")
    assert (got.status, got.body, got.headers["ETag"]) == (200, made.body, made.headers["ETag"])

    changed = tracker.patch("alice", f"/rows/tasks/{task}", {"done": True})
    assert changed.status == 200
    assert {**changed.json, "updated_at": 0} == {**got.json, "done": True, "updated_at": 0}
    assert changed.json["updated_at"] > got.json["updated_at"]
    assert tracker.get("alice", f"/rows/tasks/{task}").headers["ETag"] == changed.headers["ETag"] != got.headers["ETag"]

    listed = tracker.get("alice", "/rows/tasks")
    assert listed.json == {"data": [changed.json], "next_cursor": None}

    gone = tracker.delete("alice", f"/rows/tasks/{task}")
    assert (gone.status, gone.body) == (204, b"")
    assert tracker.get("alice", f"/rows/tasks/{task}").status == 404
    assert tracker.delete("alice", f"/rows/tasks/{task}").status == 404


def test_the_row_that_was_addressed_is_changed_or_deleted_and_no_other(tracker: Tracker) -> None:
    """Lists, to which rows refer, and comments, to which none does: they go by other statements."""
    for table, column in (("lists", "name"), ("comments", "body")):
        extra: dict[str, str] = {"owner_id": tracker.users["alice"]}
        if table == "comments":
            extra = {"task_id": new_task(tracker, "alice", new_list(tracker, "alice"))}
        rows = [{"id": row_id, column: row_id, **extra} for row_id in ("a", "b", "c")]
        assert tracker.post("key", f"/rows/{table}", rows).status == 201

        def held(table: str = table, column: str = column) -> dict[str, str]:
            page = tracker.post("key", f"/rows/{table}/query", {"where": {"id": {"$in": ["a", "b", "c"]}}}).json
            return {row["id"]: row[column] for row in page["data"]}

        assert tracker.patch("key", f"/rows/{table}/b", {column: "changed"}).status == 200
        assert held() == {"a": "a", "b": "changed", "c": "c"}
        assert tracker.delete("key", f"/rows/{table}/b").status == 204
        assert held() == {"a": "a", "c": "c"}


def test_the_list_filters_orders_and_pages_as_the_contract_says(tracker: Tracker) -> None:
    home = new_list(tracker, "alice")
    for number in range(5):
        new_task(tracker, "alice", home, title=f"T{number}", done=number % 2 == 0)
    where = quote(json.dumps({"done": True}))
    first = tracker.get("alice", f"/rows/tasks?where={where}&order=title.desc&limit=2")
    assert [row["title"] for row in first.json["data"]] == ["T4", "T2"]
    second = tracker.get(
        "alice", f"/rows/tasks?where={where}&order=title.desc&limit=2&cursor={quote(first.json['next_cursor'])}"
    )
    assert [row["title"] for row in second.json["data"]] == ["T0"]
    assert second.json["next_cursor"] is None
    asked = {"where": {"done": True}, "order": "title.desc", "limit": 2, "cursor": first.json["next_cursor"]}
    assert tracker.post("alice", "/rows/tasks/query", asked).json == second.json
    assert tracker.get("alice", "/rows/tasks?limit=1&count=exact").json["count"] == 5
    embedded = tracker.get("alice", f"/rows/tasks?limit=1&with=list&where={where}").json["data"][0]
    assert embedded["list"]["name"] == "Home"


@pytest.mark.parametrize(("order", "reads"), [("updated_at.asc", "some again"), ("id.asc", "each once")])
def test_a_row_whose_sort_key_changes_comes_again(tracker: Tracker, order: str, reads: str) -> None:
    home = new_list(tracker, "alice")
    made = {new_task(tracker, "alice", home, title=f"T{number}") for number in range(4)}
    seen: list[str] = []
    cursor = ""
    for _ in range(3):
        page = tracker.get("alice", f"/rows/tasks?order={order}&limit=2{cursor}").json
        for row in page["data"]:
            seen.append(row["id"])
            assert tracker.patch("alice", f"/rows/tasks/{row['id']}", {"title": "read"}).status == 200
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={quote(page['next_cursor'])}"
    assert set(seen) == made
    assert len(seen) == (6 if reads == "some again" else 4)


def test_users_cannot_be_embedded_unless_the_document_opens_them(tracker: Tracker) -> None:
    refused = tracker.get("alice", "/rows/tasks?with=owner")
    assert (refused.status, refused.fields) == (422, {"with": "unknown"})
    told = refused.json["error"]["fields"][0]["message"]
    assert told == 'owner: your role may not read any field of users. "users" in the schema document allows fields.'


def test_conditional_requests(tracker: Tracker) -> None:
    task = new_task(tracker, "alice", new_list(tracker, "alice"))
    path = f"/rows/tasks/{task}"
    etag = tracker.get("alice", path).headers["ETag"]
    unchanged = tracker.get("alice", path, headers={"If-None-Match": etag})
    assert (unchanged.status, unchanged.body, unchanged.headers["ETag"]) == (304, b"", etag)
    for stale in ('"other"', 'W/"other"', "nonsense", "", "\ufffd"):
        assert tracker.get("alice", path, headers={"If-None-Match": '"other"'}).status == 200
        refused = tracker.patch("alice", path, {"done": True}, headers={"If-Match": stale})
        assert (refused.status, refused.error) == (412, "precondition_failed")
        assert tracker.delete("alice", path, headers={"If-Match": stale}).status == 412
    assert tracker.get("alice", path).headers["ETag"] == etag
    assert tracker.patch("alice", path, {}, headers={"If-Match": '"other"'}).status == 412
    assert tracker.patch("alice", path, {"done": True}, headers={"If-Match": f'"other", {etag}'}).status == 200
    assert tracker.patch("alice", path, {"done": False}, headers={"If-Match": "*"}).status == 200
    for by_a_proxy in ("W/{}", "{}", "W/{}, W/{}"):
        for coding in ("", "-gzip", "--gzip", ";br"):
            etag = tracker.get("alice", path).headers["ETag"]
            derived = by_a_proxy.replace("{}", f'{etag[:-1]}{coding}"')
            assert tracker.get("alice", path, headers={"If-None-Match": derived}).status == 304, derived
            done = {"done": not tracker.get("alice", path).json["done"]}
            assert tracker.patch("alice", path, done, headers={"If-Match": derived}).status == 200, derived
            assert tracker.patch("alice", path, {}, headers={"If-Match": derived}).status == 412, "it has changed"
    assert tracker.patch("bob", path, {"done": True}, headers={"If-Match": '"other"'}).status == 404
    # The tag is of the row as its reader sees it: the key sees a column more.
    assert tracker.get("key", path).headers["ETag"] != tracker.get("alice", path).headers["ETag"]
    assert tracker.delete("alice", path, headers={"If-Match": tracker.get("alice", path).headers["ETag"]}).status == 204


def test_invalid_condition_is_refused_and_changes_nothing(tracker: Tracker) -> None:
    task = new_task(tracker, "alice", new_list(tracker, "alice"))
    path = f"/rows/tasks/{task}"
    before = tracker.get("alice", path)
    for none_match in ("*", '"other"', before.headers["ETag"], ""):
        headers = {"If-None-Match": none_match, "If-Match": before.headers["ETag"]}
        for refused in (
            tracker.patch("alice", path, {"done": True}, headers=headers),
            tracker.delete("alice", path, headers=headers),
        ):
            assert (refused.status, refused.fields) == (422, {"If-None-Match": "not_allowed"})
    tag = {"If-Match": before.headers["ETag"]}
    refused = tracker.post("key", "/rows/lists", {"name": "New", "owner_id": tracker.users["alice"]}, headers=tag)
    assert (refused.status, refused.fields) == (422, {"If-Match": "not_allowed"})
    assert tracker.get("alice", path).body == before.body
    assert tracker.get("key", "/rows/lists?count=exact").json["count"] == 1


def test_nothing_sent_changes_nothing(tracker: Tracker) -> None:
    task = new_task(tracker, "alice", new_list(tracker, "alice"))
    before = tracker.get("alice", f"/rows/tasks/{task}")
    answer = tracker.patch("alice", f"/rows/tasks/{task}", {})
    assert (answer.status, answer.body) == (200, before.body)
    assert tracker.patch("bob", f"/rows/tasks/{task}", {}).status == 404
    assert tracker.patch("alice", "/rows/tasks/tsk_missing", {}).status == 404


def test_a_refused_write_says_what_is_true_of_a_row_that_is_seen(tracker: Tracker) -> None:
    """One answer for a row that is missing, hidden, or seen and not to be changed; "that you can see" is not true of
    the last."""
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["user"]["read"] = [{"where": {"owner_id": "$user.id"}}, {"columns": ["title"]}]
    tracker.apply(document)
    home = new_list(tracker, "alice")
    task = new_task(tracker, "alice", home)
    seen = tracker.get("bob", f"/rows/tasks/{task}")
    assert seen.status == 200

    refused = [
        tracker.patch("bob", f"/rows/tasks/{task}", {"done": True}),
        tracker.patch("bob", "/rows/tasks/tsk_missing", {"done": True}),
        tracker.delete("bob", f"/rows/tasks/{task}"),
        tracker.delete("bob", "/rows/tasks/tsk_missing"),
        tracker.patch("alice", f"/rows/lists/{home}", {"name": "Mine"}),  # no user with her role changes lists
        tracker.delete("alice", f"/rows/lists/{home}"),
    ]
    assert {(each.status, each.error) for each in refused} == {(404, "not_found")}
    assert {each.json["error"]["message"] for each in refused} == {"Not found, or you have no permission to change it."}
    assert tracker.get("bob", f"/rows/tasks/{task}").body == seen.body

    unwelcome = tracker.post("alice", "/rows/lists", {"name": "Another"})
    assert (unwelcome.status, unwelcome.json["error"]["message"]) == (
        404,
        "You have no permission to insert rows into lists.",
    )
    assert len(tracker.get("owner", "/rows/lists").json["data"]) == 1


def test_scopes_and_roles(tracker: Tracker) -> None:
    home = new_list(tracker, "alice")
    for who in ("key", "owner", "viewer", "reader", "operator", "alice"):
        assert tracker.get(who, f"/rows/lists/{home}").status == 200
    assert tracker.get("bob", f"/rows/lists/{home}").status == 404
    for who in ("viewer", "reader"):
        for answer in (
            tracker.post(who, "/rows/lists", {"name": "x", "owner_id": tracker.users["bob"]}),
            tracker.patch(who, f"/rows/lists/{home}", {"name": "x"}),
            tracker.delete(who, f"/rows/lists/{home}"),
        ):
            assert (answer.status, answer.error) == (403, "forbidden")
    assert tracker.post("reader", "/rows/lists/explain", {"id": home}).status == 403
    assert tracker.get("key", f"/rows/lists/{home}").json["name"] == "Home"


def test_who_lacks_a_scope_is_told_in_words_for_them(tracker: Tracker) -> None:
    """A key has scopes; a signed-in account has none and has a role, or is a user of the application."""
    tracker.tokens["modeller"] = key_for(tracker.environment_id, "schema:read", "webhooks:write")
    for who, method, path, message in (
        ("reader", "PATCH", "/rows/lists/lst_x", "This needs the scope rows:write."),
        ("viewer", "PATCH", "/rows/lists/lst_x", "This needs the scope rows:write, which your role in the project "
         "does not give."),
        ("modeller", "POST", "/rows/lists/explain", "This needs the scope rows:read."),
        ("modeller", "POST", "/webhooks", "This needs the scope rows:read."),
        ("alice", "GET", "/users", "This needs the scope users:manage, which users of an application do not have."),
        ("alice", "GET", "/functions", "Users of an application may only invoke functions and read their own "
         "runs."),
    ):  # fmt: skip
        answer = tracker.api.request(
            method,
            f"/v1{path}",
            token=tracker.tokens[who],
            environment=tracker.environment_id,
            json=None if method == "GET" else {},
        )
        assert (answer.status, answer.json["error"]["message"]) == (403, message)


def test_key_that_may_not_read_rows_only_inserts(tracker: Tracker) -> None:
    """Filters and responses of the other writes say what rows hold, also where nothing is changed."""
    tracker.tokens["writer"] = key_for(tracker.environment_id, "rows:write")
    home = new_list(tracker, "alice")
    sent = {"name": "Mine", "owner_id": tracker.users["alice"]}
    insert = {"op": "insert", "table": "lists", "values": sent}
    assert tracker.post("writer", "/rows/lists", sent).status == 201
    assert tracker.post("writer", "/batch", {"operations": [insert]}).status == 200
    refused = [
        tracker.patch("writer", "/rows/lists?where={}", {}),
        tracker.delete("writer", "/rows/lists?where={}"),
        tracker.patch("writer", f"/rows/lists/{home}", {}),
        tracker.delete("writer", f"/rows/lists/{home}"),
        tracker.post("writer", "/rows/lists?on_conflict=id", sent | {"id": home}),
        *(
            tracker.post("writer", "/batch", {"operations": [insert, other]})
            for other in (
                {"op": "update", "table": "lists", "id": home, "values": {}},
                {"op": "upsert", "table": "lists", "values": sent | {"id": home}, "on_conflict": "id"},
                {"op": "delete", "table": "lists", "id": home},
            )
        ),
    ]
    for answer in refused:
        assert (answer.status, answer.json["error"]["message"]) == (403, "This needs the scope rows:read.")
    assert [row["name"] for row in tracker.get("key", "/rows/lists").json["data"]] == ["Home", "Mine", "Mine"]


def test_many_rows_at_once_and_the_same_request_twice(tracker: Tracker) -> None:
    home = new_list(tracker, "alice")
    bodies = [{"title": str(number), "list_id": home} for number in range(3)]
    headers = {"Idempotency-Key": "once"}
    first = tracker.post("alice", "/rows/tasks", bodies, headers=headers)
    assert first.status == 201
    assert [row["title"] for row in first.json["data"]] == ["0", "1", "2"]
    again = tracker.post("alice", "/rows/tasks", bodies, headers=headers)
    assert (again.status, again.body) == (201, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert tracker.get("alice", "/rows/tasks?count=exact").json["count"] == 3
    refused = tracker.post("alice", "/rows/tasks", [bodies[0], {"title": 5}], headers={"Idempotency-Key": "two"})
    assert (refused.status, refused.fields) == (422, {"1.title": "wrong_type", "1.list_id": "required"})
    fine = tracker.post("alice", "/rows/tasks", bodies[0], headers={"Idempotency-Key": "two"})
    assert fine.status == 201


@pytest.mark.parametrize("who", ["alice", "key"])
def test_a_row_too_large_to_be_stored_is_read_again_and_written_once(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(idempotency, "MAX_STORED", 100)
    headers = {"Idempotency-Key": "large"}
    body = {"title": "Milk", "list_id": new_list(tracker, "alice")}
    if who == "key":
        body["owner_id"] = tracker.users["alice"]
    made, again = (tracker.post(who, "/rows/tasks", body, headers=headers) for _ in range(2))
    assert (made.status, again.status, again.body) == (201, 201, made.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert [again.headers[name] == made.headers[name] for name in ("Location", "ETag")] == [True, True]
    path = f"/rows/tasks/{made.json['id']}"
    changed = tracker.patch(who, path, {"title": "Oats"}, headers=headers)
    other = tracker.patch("key", path, {"priority": 1})
    again = tracker.patch(who, path, {"title": "Oats"}, headers=headers)
    assert (changed.status, again.status, again.json["priority"]) == (200, 200, 1), "as it is now"
    assert again.headers["ETag"] == tracker.get(who, path).headers["ETag"] != changed.headers["ETag"]
    assert tracker.get(who, path).json["updated_at"] == other.json["updated_at"]


def test_a_response_with_several_rows_that_is_too_large_is_not_stored(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [{"title": title, "list_id": new_list(tracker, "alice")} for title in "ab"]
    monkeypatch.setattr(idempotency, "MAX_STORED", 100)
    headers = {"Idempotency-Key": "large"}
    first, again = (tracker.post("alice", "/rows/tasks", bodies, headers=headers) for _ in range(2))
    assert (first.status, again.status, again.error) == (201, 409, "conflict")
    assert tracker.get("alice", "/rows/tasks?count=exact").json["count"] == 2


@pytest.mark.parametrize(("most", "status"), [(64 * 1024, 201), (100, 409)])
def test_a_repetition_shows_no_more_than_the_first_response(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, most: int, status: int
) -> None:
    """That was for the same caller, who may have lost the right to read the row. What is read again is not."""
    monkeypatch.setattr(idempotency, "MAX_STORED", most)
    headers, body = {"Idempotency-Key": "once"}, {"title": "Milk", "list_id": new_list(tracker, "alice")}
    first = tracker.post("alice", "/rows/tasks", body, headers=headers)
    changes = {"owner_id": tracker.users["bob"], "title": "Secret"}
    assert tracker.patch("key", f"/rows/tasks/{first.json['id']}", changes).status == 200
    again = tracker.post("alice", "/rows/tasks", body, headers=headers)
    assert (again.status, again.body == first.body) == (status, status == 201)
    assert b"Secret" not in again.body


def test_who_was_signed_out_deleted_or_revoked_gets_no_stored_response(tracker: Tracker) -> None:
    home = new_list(tracker, "alice")
    path, headers = "/rows/lists", {"Idempotency-Key": "one"}
    body = {"name": "Work", "owner_id": tracker.users["alice"]}
    first = tracker.post("key", path, body, headers=headers)
    assert tracker.post("key", path, body, headers=headers).body == first.body
    of_users = {"alice": {"title": "a", "list_id": home}, "bob": {"title": "b", "list_id": new_list(tracker, "bob")}}
    for who, task in of_users.items():
        assert tracker.post(who, "/rows/tasks", task, headers=headers).status == 201
    assert tracker.post("alice", "/auth/revoke", {"scope": "current"}).status == 204
    assert tracker.delete("owner", f"/users/{tracker.users['bob']}").status == 204
    for each in tracker.get("owner", "/keys").json["data"]:
        assert tracker.delete("owner", f"/keys/{each['id']}").status == 204
    for who, task in of_users.items():
        assert tracker.post(who, "/rows/tasks", task, headers=headers).status == 401
    assert tracker.post("key", path, body, headers=headers).status == 401


def test_explain_says_which_clause_refuses(tracker: Tracker) -> None:
    task = new_task(tracker, "alice", new_list(tracker, "alice"), internal="secret")
    asked = {"id": task, "as": tracker.users["bob"]}
    answer = tracker.post("owner", "/rows/tasks/explain", asked)
    assert answer.status == 200
    assert answer.json["visible"] is False
    read = next(rule for rule in answer.json["rules"] if rule["action"] == "read")
    assert read["role"] == "user"
    [clause] = read["clauses"]
    assert clause["clause"] == '{"owner_id": "$user.id"}'
    assert clause["verdict"] is False
    assert tracker.users["alice"] in clause["why"]
    assert tracker.users["bob"] in clause["why"]
    mine = tracker.post("owner", "/rows/tasks/explain", {**asked, "as": tracker.users["alice"]}).json
    assert mine["visible"] is True
    assert [hidden["column"] for hidden in mine["hidden_columns"]] == ["internal"]
    assert all(rule["verdict"] for rule in mine["rules"])
    for body, status in (
        ({"id": "tsk_missing"}, 404),
        ({"id": task, "as": "usr_nobody"}, 422),
        ({"as": "server"}, 422),
        ({"id": 5}, 422),
    ):
        assert tracker.post("owner", "/rows/tasks/explain", body).status == status
    assert tracker.post("owner", "/rows/nothing/explain", {"id": task}).status == 404
    assert tracker.post("key", "/rows/tasks/explain", {"id": task, "as": "member"}).json["visible"] is True


def test_explain_says_that_related_rows_decide(tracker: Tracker) -> None:
    """A verdict shown beside the cells of one row alone would seem to contradict them."""
    document = json.loads(json.dumps(DOCUMENT))
    members = {"list.tasks": {"$some": {"owner_id": "$user.id", "comments": {"$none": {"stars": 1}}}}}
    document["tables"]["tasks"]["rules"]["user"]["read"] = {"where": {"$or": [{"owner_id": "$user.id"}, members]}}
    tracker.apply(document)
    home = new_list(tracker, "alice")
    task = new_task(tracker, "alice", home)
    bob = tracker.users["bob"]
    asked = {"id": task, "as": bob}

    def clause() -> dict[str, Any]:
        told = tracker.post("owner", "/rows/tasks/explain", asked).json
        (found,) = next(rule for rule in told["rules"] if rule["action"] == "read")["clauses"]
        return dict(found)

    alice = tracker.users["alice"]
    why = f'owner_id is "{alice}"; $or.1.list.tasks.$some is {{}}; $user.id is "{bob}"'
    assert (clause()["verdict"], clause()["why"]) == (False, why.format("false"))
    assert tracker.post("key", "/rows/tasks", {"title": "his", "list_id": home, "owner_id": bob}).status == 201
    assert (clause()["verdict"], clause()["why"]) == (True, why.format("true"))


def test_explain_speaks_of_the_rules_that_hold_now(tracker: Tracker) -> None:
    """Though nothing else was asked since they changed, and though this process still knows the old ones."""
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    asked = {"id": home, "as": "server"}
    assert tracker.post("owner", "/rows/lists/explain", asked).json["visible"] is True
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["lists"]["rules"]["server"] = {"read": {"where": {"name": "Work"}}}
    tracker.apply(document)
    told = tracker.post("owner", "/rows/lists/explain", asked).json
    assert (told["visible"], told["rules"][0]["role"]) == (False, "server")
    assert tracker.post("key", "/rows/lists/explain", asked).status == 404


def test_explain_tells_no_cell_to_who_may_read_no_rows(tracker: Tracker) -> None:
    task = new_task(tracker, "alice", new_list(tracker, "alice"))
    keys = {
        scopes: key_for(tracker.environment_id, *scopes)
        for scopes in (("schema:read",), ("rows:read",), ("schema:read", "rows:read"))
    }
    for scopes, key in keys.items():
        answer = tracker.api.post("/v1/rows/tasks/explain", token=key, json={"id": task, "as": tracker.users["alice"]})
        assert answer.status == (200 if len(scopes) == 2 else 403), scopes


def test_explain_tells_what_is_known_of_a_user_to_who_manages_users(make_tracker: Any) -> None:
    where = {"body": {"$ne": "$user.email"}, "owner_id": "$user.id"}
    columns = {"body": {"type": "text"}, "owner": {"type": "user"}}
    tracker: Tracker = make_tracker(
        {"tables": {"notes": {"columns": columns, "rules": {"user": {"read": {"where": where}}}}}}
    )
    alice = tracker.users["alice"]
    note = tracker.post("key", "/rows/notes", {"body": "x", "owner_id": alice}).json["id"]

    def why(who: str) -> str:
        answer = tracker.post(who, "/rows/notes/explain", {"id": note, "as": alice})
        assert answer.json["visible"] is True
        return str(answer.json)

    assert "$user.email is" in why("owner")
    assert "alice@" in why("owner")
    for who in ("viewer", "key"):
        assert "$user.email has a value" in why(who)
        assert alice in why(who)
        assert "alice@" not in why(who)


def test_another_environments_tables_are_not_there(tracker: Tracker, make_tracker: Any) -> None:
    other = make_tracker({"tables": {"notes": {"columns": {"body": {"type": "text"}}}}}, "Other")
    assert other.post("key", "/rows/notes", {"body": "x"}).status == 201
    assert tracker.get("key", "/rows/notes").status == 404
    assert other.get("key", "/rows/tasks").status == 404
    stolen = tracker.api.get("/v1/rows/notes", token=tracker.tokens["key"], environment=other.environment_id)
    assert stolen.status == 404


@pytest.mark.exhaustive
def test_no_update_is_lost_under_if_match(tracker: Tracker) -> None:
    """Sixteen clients count one number up; each change is conditional on what its client read."""
    task = new_task(tracker, "alice", new_list(tracker, "alice"), priority=0)
    path = f"/rows/tasks/{task}"

    def count_up(_: int) -> int:
        wins = 0
        try:
            while wins < 3:
                seen = tracker.get("key", path)
                answer = tracker.patch(
                    "key", path, {"priority": seen.json["priority"] + 1}, headers={"If-Match": seen.headers["ETag"]}
                )
                assert answer.status in (200, 412), answer.json
                wins += answer.status == 200
        finally:
            connections.close_all()
        return wins

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(count_up, range(16))) == 48
    assert tracker.get("key", path).json["priority"] == 48


def test_rows_of_one_batch_may_refer_to_each_other_whatever_their_ids(make_tracker: Any) -> None:
    columns = {
        "name": {"type": "text"},
        "parent": {"type": "reference", "to": "nodes", "on_delete": "cascade", "null": True},
    }
    tracker: Tracker = make_tracker({"tables": {"nodes": {"columns": columns}}})
    rows = [
        {"id": "z", "name": "root"},
        {"id": "m", "name": "branch", "parent_id": "z"},
        {"id": "a", "name": "leaf", "parent_id": "m"},
    ]
    for batch in (rows, rows[::-1]):
        made = tracker.post("key", "/rows/nodes", batch)
        assert made.status == 201, made.json
        assert [row["id"] for row in made.json["data"]] == [row["id"] for row in batch]
        assert tracker.delete("key", "/rows/nodes/z").status == 204
    circle = [{"id": "a", "name": "x", "parent_id": "b"}, {"id": "b", "name": "y", "parent_id": "a"}]
    refused = tracker.post("key", "/rows/nodes", circle)
    assert (refused.status, refused.fields) == (422, {"0.parent_id": "no_such_row"})


def test_batches_with_ids_in_common_wait_for_each_other(tracker: Tracker) -> None:
    rows = [{"id": f"row-{number}", "name": "x", "owner_id": tracker.users["alice"]} for number in range(20)]
    statuses = at_once(
        *[lambda: tracker.post("key", "/rows/lists", rows).status] * 4,
        *[lambda: tracker.post("key", "/rows/lists", rows[::-1]).status] * 4,
    )
    assert statuses == [201, *[409] * 7]
    refused = tracker.post("key", "/rows/lists", [rows[0] | {"id": "another"}, rows[0]])
    assert (refused.status, refused.json["error"]["message"]) == (409, 'A row with the id "row-0" already exists.')
    assert tracker.get("key", "/rows/lists?count=exact").json["count"] == 20


def test_a_deadlock_is_undone_and_run_again(make_tracker: Any) -> None:
    """Two batches claim the same unique values in opposite orders: one is undone by PostgreSQL, runs again, and learns
    that the values are taken."""
    columns = {"code": {"type": "text"}}
    tracker = make_tracker({"tables": {"coupons": {"columns": columns, "unique": [["code"]]}}})
    rows = [{"code": f"{number:03}"} for number in range(100)]
    statuses = at_once(
        lambda: tracker.post("key", "/rows/coupons", rows).status,
        lambda: tracker.post("key", "/rows/coupons", rows[::-1]).status,
    )
    assert statuses == [201, 422]
    assert tracker.get("key", "/rows/coupons?count=exact").json["count"] == 100


def deleted_after(tracker: Tracker, path: str, other: "psycopg.Connection[Any]") -> int:
    """The status of a DELETE that begins before `other` commits what it wrote, and has to wait for it."""
    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(at_once, lambda: tracker.delete("key", path).status)
        wait_for("the deletion waits", is_blocked)
        other.commit()
        [status] = deleting.result(30)
    return status


def test_row_referring_to_a_row_in_deletion_is_deleted_with_its_event(tracker: Tracker) -> None:
    """PostgreSQL's own cascade would take it without a word."""
    EventInterest.objects.using(REGION).create(environment_id=tracker.environment_id, table_name="*", action="delete")
    task = new_task(tracker, "alice", new_list(tracker, "alice"))
    with another_session(tracker) as other:
        other.execute("INSERT INTO comments (id, body, task_id) VALUES ('late', 'x', %s)", [task])
        assert deleted_after(tracker, f"/rows/tasks/{task}", other) == 204
    assert tracker.get("key", "/rows/comments").json["data"] == []
    told = OutboxEvent.objects.using(REGION).filter(environment_id=tracker.environment_id)
    assert sorted(told.values_list("subject", flat=True)) == ["comments/late", f"tasks/{task}"]


def test_a_row_that_turned_away_from_one_that_is_being_deleted_stays(tracker: Tracker) -> None:
    home = new_list(tracker, "alice")
    task, refuge = new_task(tracker, "alice", home), new_task(tracker, "alice", home)
    comment = tracker.post("key", "/rows/comments", {"body": "x", "task_id": task}).json["id"]
    with another_session(tracker) as other:
        other.execute("UPDATE comments SET task_id = %s WHERE id = %s", [refuge, comment])
        assert deleted_after(tracker, f"/rows/tasks/{task}", other) == 204
    assert tracker.get("key", f"/rows/comments/{comment}").json["task_id"] == refuge


WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/rows/lists", {"name": "Other"}),
    ("POST", "/rows/lists", [{"name": "Third"}]),
    ("POST", "/rows/lists?on_conflict=id", {"id": "HOME", "name": "Renamed"}),
    ("POST", "/rows/lists?on_conflict=id", [{"id": "HOME", "name": "Again"}]),
    ("PATCH", "/rows/lists/HOME", {"name": "Changed"}),
    ("PATCH", "/rows/lists?where={}", {"name": "All"}),
    ("DELETE", "/rows/lists/HOME", None),
    ("DELETE", "/rows/lists?where={}", None),
]


def depths_after(tracker: Tracker, method: str, path: str, body: Any, header: str) -> set[int]:
    """The depths of the events that a write leaves, whose path and body may name a list of alice's, HOME."""
    home, alice = new_list(tracker, "alice"), tracker.users["alice"]
    EventInterest.objects.using(REGION).create(environment_id=tracker.environment_id, table_name="*", action="*")
    text = json.dumps(body).replace("HOME", home).replace('"name"', f'"owner_id": "{alice}", "name"')
    sent = {} if body is None else {"json": json.loads(text)}
    answer = tracker.call("key", method, path.replace("HOME", home), headers={"X-Platform-Depth": header}, **sent)
    assert answer.status in (200, 201, 204), answer.json
    told = OutboxEvent.objects.using(REGION).filter(environment_id=tracker.environment_id)
    return {*told.values_list("depth", flat=True)}


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_write_in_answer_to_an_event_is_the_next_link_of_its_chain(
    tracker: Tracker, method: str, path: str, body: Any
) -> None:
    assert depths_after(tracker, method, path, body, call_depth.sign(5, tracker.environment_id)) == {5}


def test_a_user_cannot_end_the_chain_of_their_writes(tracker: Tracker) -> None:
    """A receiver of webhooks could replay the header of a delivery to keep its own rows from triggers and webhooks."""
    home = new_list(tracker, "alice")
    EventInterest.objects.using(REGION).create(environment_id=tracker.environment_id, table_name="*", action="*")
    sent = {"X-Platform-Depth": call_depth.sign(7, tracker.environment_id)}
    values = {"title": "A", "list_id": home}
    batch = {"operations": [{"op": "insert", "table": "tasks", "values": values}]}
    assert tracker.call("alice", "POST", "/rows/tasks", headers=sent, json=values).status == 201
    assert tracker.call("alice", "POST", "/batch", headers=sent, json=batch).status == 200
    told = OutboxEvent.objects.using(REGION).filter(environment_id=tracker.environment_id)
    assert [*told.values_list("depth", flat=True)] == [0, 0]


@pytest.mark.parametrize("header", ["5", "", "5.AAAA", "of another environment"])
def test_forged_chain_is_ignored(tracker: Tracker, header: str) -> None:
    if header == "of another environment":
        header = call_depth.sign(5, "env_01h455vb4pex5vsknk084sn02q")
    assert depths_after(tracker, "PATCH", "/rows/lists/HOME", {"name": "Changed"}, header) == {0}
