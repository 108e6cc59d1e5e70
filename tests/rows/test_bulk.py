"""`PATCH` and `DELETE /v1/rows/{table}?where=…`: what fits is changed, all of it or nothing."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from rows.models import OutboxEvent
from rows.write.bulk import MAX_ROWS
from rows.write.row_size import LARGE_WRITE
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.concurrency import another_session, at_once, is_blocked
from tests.support.service import wait_for
from tests.support.tenants import REGION

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

OWN = {"owner_id": "$user.id"}
DOCUMENT: dict[str, Any] = {
    "tables": {
        "lists": {
            "columns": {"name": {"type": "text"}, "owner": {"type": "user", "null": True}},
            "rules": {"user": {"read": {"where": OWN}}},
        },
        "tasks": {
            "columns": {
                "title": {"type": "text"},
                "notes": {"type": "text", "null": True},
                "done": {"type": "boolean", "default": False},
                "priority": {"type": "integer", "default": 0},
                "slot": {"type": "integer", "null": True},
                "touched": {"type": "text", "null": True},
                "cost": {"type": "integer", "null": True},
                "list": {"type": "reference", "to": "lists", "on_delete": "cascade", "null": True},
                "owner": {"type": "user", "null": True},
            },
            "unique": [["slot"]],
            "rules": {
                "user": {
                    "read": {"where": {"$or": [OWN, {"title": "public"}]}, "columns": ["*", "-cost"]},
                    "update": {
                        "where": OWN,
                        "columns": ["title", "done", "priority", "slot", "list_id", "notes"],
                        "check": {"priority": {"$lte": 9}},
                        "set": {"touched": "by its owner"},
                    },
                    "delete": {"where": {**OWN, "title": {"$ne": "kept"}}},
                },
            },
        },
        "comments": {
            "columns": {
                "body": {"type": "text"},
                "task": {"type": "reference", "to": "tasks", "on_delete": "cascade"},
            }
        },
        "invoices": {
            "columns": {"task": {"type": "reference", "to": "tasks", "on_delete": "restrict"}},
        },
        "folders": {
            "columns": {
                "name": {"type": "text"},
                "owner": {"type": "user", "null": True},
                "up": {"type": "reference", "to": "folders", "on_delete": "cascade", "null": True},
            },
            "rules": {"user": {"read": {}, "update": {"check": {"up.owner_id": "$user.id"}}}},
        },
    }
}


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def where(condition: Any, **more: Any) -> str:
    return "&".join([f"where={quote(json.dumps(condition))}", *(f"{name}={value}" for name, value in more.items())])


def change(tracker: Tracker, who: str, condition: Any, changes: Any, table: str = "tasks", **more: Any) -> Answer:
    return tracker.patch(who, f"/rows/{table}?{where(condition, **more)}", changes)


def remove(tracker: Tracker, who: str, condition: Any, table: str = "tasks", **more: Any) -> Answer:
    return tracker.delete(who, f"/rows/{table}?{where(condition, **more)}")


def add(tracker: Tracker, *tasks: dict[str, Any], table: str = "tasks") -> None:
    assert tracker.post("key", f"/rows/{table}", [{"title": "t", **task} for task in tasks]).status == 201


def held(tracker: Tracker, column: str, table: str = "tasks") -> dict[str, Any]:
    rows = tracker.get("operator", f"/rows/{table}?limit=100").json["data"]
    return {row["id"]: row[column] for row in rows}


def events(tracker: Tracker) -> list[tuple[str, dict[str, Any]]]:
    found = OutboxEvent.objects.using(REGION).filter(environment_id=tracker.environment_id).order_by("sequence")
    return [(event.type, json.loads(event.data)) for event in found]


def listen(tracker: Tracker, *types: str) -> None:
    body = {"url": "https://receiver.example/hook", "events": list(types)}
    assert tracker.post("owner", "/webhooks", body).status == 201


def test_all_that_fit_are_changed_and_named(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "priority": 1}, {"id": "b", "priority": 5}, {"id": "c", "priority": 7})
    before = held(tracker, "updated_at")
    answer = change(tracker, "key", {"priority": {"$gte": 5}}, {"done": True, "notes": "late"})
    assert (answer.status, answer.json) == (200, {"ids": ["b", "c"], "next_cursor": None})
    assert held(tracker, "done") == {"a": False, "b": True, "c": True}
    assert held(tracker, "notes") == {"a": None, "b": "late", "c": "late"}
    assert held(tracker, "priority") == {"a": 1, "b": 5, "c": 7}
    assert {name for name, at in held(tracker, "updated_at").items() if at > before[name]} == {"b", "c"}
    nothing = change(tracker, "key", {"priority": 99}, {"done": True})
    assert (nothing.status, nothing.json) == (200, {"ids": [], "next_cursor": None})
    everything = change(tracker, "key", {}, {"done": False})
    assert everything.json["ids"] == ["a", "b", "c"]
    assert set(held(tracker, "done").values()) == {False}


def test_all_that_fit_are_deleted_with_what_goes_with_them(tracker: Tracker) -> None:
    add(tracker, {"id": "a"}, {"id": "b", "done": True}, {"id": "c", "done": True})
    for task in "abc":
        assert tracker.post("key", "/rows/comments", {"id": f"on-{task}", "body": "x", "task_id": task}).status == 201
    listen(tracker, "tasks.delete", "comments.delete")
    answer = remove(tracker, "key", {"done": True})
    assert (answer.status, answer.json) == (200, {"ids": ["b", "c"], "next_cursor": None})
    assert (set(held(tracker, "id")), set(held(tracker, "id", "comments"))) == ({"a"}, {"on-a"})
    told = sorted((type_, data["id"], data["old_record"]["id"]) for type_, data in events(tracker))
    assert told == [
        ("comments.delete", "on-b", "on-b"),
        ("comments.delete", "on-c", "on-c"),
        ("tasks.delete", "b", "b"),
        ("tasks.delete", "c", "c"),
    ]
    assert remove(tracker, "key", {"done": True}).json["ids"] == []


def test_each_row_has_its_own_event(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "priority": 3}, {"id": "b", "priority": 4})
    assert change(tracker, "key", {}, {"notes": "no process listens"}).status == 200
    listen(tracker, "tasks.update")
    assert change(tracker, "key", {}, {"priority": 4}).status == 200
    assert [(type_, data["id"], data["changed"]) for type_, data in events(tracker)] == [
        ("tasks.update", "a", ["priority"]),
        ("tasks.update", "b", []),
    ]
    first = events(tracker)[0][1]
    assert (first["old_record"]["priority"], first["record"]["priority"]) == (3, 4)
    assert first["record"]["updated_at"] > first["old_record"]["updated_at"]
    ids = OutboxEvent.objects.using(REGION).filter(environment_id=tracker.environment_id)
    assert len(set(ids.values_list("event_id", flat=True))) == 2
    assert change(tracker, "key", {}, {}).json["ids"] == ["a", "b"], "they fit"
    assert len(events(tracker)) == 2, "and nothing was changed"


def test_which_rows_must_be_said_and_understood(tracker: Tracker) -> None:
    add(tracker, {"id": "a"})
    for method, body in (("PATCH", {"done": True}), ("DELETE", None)):

        def ask(query: str, method: str = method, body: Any = body, **how: Any) -> Answer:
            more = {} if body is None else {"json": body}
            return tracker.call("key", method, f"/rows/tasks{query}", **more, **how)

        assert ask("").fields == {"where": "required"}
        assert 'where={"done": true}' in ask("").json["error"]["fields"][0]["message"]
        assert ask("?where=").fields == {"where": "invalid_json"}
        assert ask("?where=[]").fields == {"where": "wrong_type"}
        assert ask('?where={"nope":1}').fields == {"where": "unknown"}
        assert ask("?where={}&order=title").fields == {"order": "unknown_parameter"}
        assert ask("?where={}&with=list").fields == {"with": "unknown_parameter"}
        assert ask("?where={}&where={}").fields == {"where": "repeated"}
        for limit in ("0", "-1", "1.5", "", "x", str(MAX_ROWS + 1), "²"):
            assert ask(f"?where={{}}&limit={quote(limit)}").fields == {"limit": "out_of_range"}, limit
        assert ask("?where={}&cursor=x").fields == {"cursor": "invalid_cursor"}
        assert ask("?where={}", headers={"If-Match": '"abc"'}).fields == {"If-Match": "not_allowed"}
        assert ask('?where={"title":"never"}', headers={"If-Match": "*"}).status == 200
        assert ask("?where={}", headers={"If-None-Match": "*"}).fields == {"If-None-Match": "not_allowed"}
    for body in ([], "x", None, [{"done": True}]):
        assert tracker.patch("key", "/rows/tasks?where={}", body).status == 422, body
    assert change(tracker, "key", {}, {"done": 5, "nope": 1}).fields == {"done": "wrong_type", "nope": "unknown"}
    assert change(tracker, "key", {}, {"id": "z"}).fields == {"id": "read_only"}
    assert change(tracker, "key", {}, {"owner_id": "usr_nobody"}).fields == {"owner_id": "no_such_user"}
    assert change(tracker, "key", {}, {"x": 1}, table="nowhere").status == 404
    assert held(tracker, "done") == {"a": False}


def test_nobody_changes_more_by_a_filter_than_row_by_row(tracker: Tracker) -> None:
    alice, bob = tracker.users["alice"], tracker.users["bob"]
    add(
        tracker,
        {"id": "hers", "owner_id": alice},
        {"id": "his", "owner_id": bob},
        {"id": "seen", "owner_id": bob, "title": "public"},
        {"id": "kept", "owner_id": alice, "title": "kept"},
    )
    answer = change(tracker, "alice", {}, {"done": True})
    assert (answer.status, answer.json["ids"]) == (200, ["hers", "kept"])
    assert held(tracker, "done") == {"hers": True, "his": False, "seen": False, "kept": True}
    assert held(tracker, "touched") == {"hers": "by its owner", "his": None, "seen": None, "kept": "by its owner"}
    assert remove(tracker, "alice", {}).json["ids"] == ["hers"]
    assert set(held(tracker, "id")) == {"his", "seen", "kept"}
    assert remove(tracker, "alice", {"id": "his"}).json["ids"] == [], "as if it were not there"

    hidden = change(tracker, "alice", {"cost": 5}, {"done": True})
    assert (hidden.status, hidden.fields) == (422, {"where": "unknown"})
    assert remove(tracker, "alice", {"cost": 5}).fields == {"where": "unknown"}
    assert change(tracker, "alice", {}, {"cost": 5}).fields == {"cost": "unknown"}
    assert change(tracker, "alice", {}, {"touched": "x"}).fields == {"touched": "read_only"}
    for table in ("comments", "invoices", "lists"):
        assert remove(tracker, "alice", {}, table=table).status == 404
        assert change(tracker, "alice", {}, {}, table=table).status == 404
    assert [remove(tracker, who, {}).status for who in ("reader", "viewer")] == [403, 403]
    assert [change(tracker, who, {}, {"done": True}).status for who in ("reader", "viewer")] == [403, 403]
    assert len(held(tracker, "id")) == 3


def test_one_row_that_is_refused_is_named_and_nothing_is_changed(tracker: Tracker) -> None:
    alice, bob = tracker.users["alice"], tracker.users["bob"]
    add(tracker, {"id": "a", "owner_id": alice, "slot": 1}, {"id": "b", "owner_id": alice})
    assert tracker.post("key", "/rows/lists", {"id": "bobs", "name": "x", "owner_id": bob}).status == 201
    for changes, code in (
        ({"priority": 10}, {"priority": "not_allowed"}),
        ({"list_id": "bobs"}, {"list_id": "no_such_row"}),
        ({"list_id": "nowhere"}, {"list_id": "no_such_row"}),
    ):
        refused = change(tracker, "alice", {}, {"done": True, **changes})
        assert (refused.status, refused.fields) == (422, code)
        assert refused.json["error"]["fields"][0]["message"].startswith("a: ")
    taken = change(tracker, "alice", {}, {"slot": 2})
    assert (taken.status, taken.fields) == (422, {"slot": "taken"})
    assert change(tracker, "alice", {"id": "b"}, {"slot": 1}).fields == {"slot": "taken"}
    assert (held(tracker, "done"), held(tracker, "slot")) == ({"a": False, "b": False}, {"a": 1, "b": None})
    assert tracker.post("key", "/rows/invoices", {"task_id": "b"}).status == 201
    assert remove(tracker, "alice", {}).status == 409
    assert set(held(tracker, "id")) == {"a", "b"}


def test_rules_that_look_back_and_large_values_are_asked_row_by_row(tracker: Tracker) -> None:
    alice, bob = tracker.users["alice"], tracker.users["bob"]
    folders = [("root", alice, None), ("his", bob, None), ("one", None, "root"), ("two", None, "root")]
    for name, owner, up in folders:
        body = {"id": name, "name": name, "owner_id": owner, "up_id": up}
        assert tracker.post("key", "/rows/folders", body).status == 201
    listen(tracker, "folders.update", "tasks.update")
    moved = change(tracker, "alice", {"up_id": "root"}, {"name": "moved"}, table="folders")
    assert moved.json["ids"] == ["one", "two"]
    refused = change(tracker, "alice", {"up_id": "root"}, {"up_id": "his", "name": "x"}, table="folders")
    assert (refused.status, refused.fields) == (422, {"up_id": "not_allowed"})
    assert set(held(tracker, "name", "folders").values()) == {"root", "his", "moved"}
    add(tracker, {"id": "a", "owner_id": alice}, {"id": "b", "owner_id": alice})
    text = "x" * (LARGE_WRITE + 1)
    assert change(tracker, "alice", {}, {"notes": text}).json["ids"] == ["a", "b"]
    assert held(tracker, "notes") == {"a": text, "b": text}
    told = [(type_, data["id"]) for type_, data in events(tracker)]
    assert told == [("folders.update", "one"), ("folders.update", "two"), ("tasks.update", "a"), ("tasks.update", "b")]


def test_more_than_one_request_changes_come_by_pages(tracker: Tracker) -> None:
    add(tracker, *({"id": f"t{number}"} for number in range(5)))
    seen, cursor = [], None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        answer = change(tracker, "key", {"done": False}, {"priority": 3}, limit=2, **more)  # goes on fitting
        seen.append(answer.json["ids"])
        cursor = answer.json["next_cursor"]
        if cursor is None:
            break
    assert seen == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    first = remove(tracker, "key", {"done": False}, limit=4)
    assert first.json["ids"] == ["t0", "t1", "t2", "t3"]
    for other in (
        change(tracker, "key", {"done": False}, {}, limit=4, cursor=first.json["next_cursor"]),
        remove(tracker, "key", {"done": True}, limit=4, cursor=first.json["next_cursor"]),
        tracker.get("key", f"/rows/tasks?{where({'done': False}, cursor=first.json['next_cursor'])}"),
    ):
        assert other.fields == {"cursor": "invalid_cursor"}, "of this action and this filter"
    assert remove(tracker, "key", {"done": False}, limit=1).json == {"ids": ["t4"], "next_cursor": None}


def test_too_many_without_a_limit_are_not_touched(tracker: Tracker) -> None:
    with another_session(tracker) as other:
        other.execute(
            "INSERT INTO tasks (id, title, done, priority, created_at, updated_at)"
            " SELECT 'n' || lpad(n::text, 5, '0'), 'x', false, 0, now(), now() FROM generate_series(0, %s) AS n",
            [MAX_ROWS],
        )
    for refused in (change(tracker, "key", {}, {"done": True}), remove(tracker, "key", {})):
        assert (refused.status, refused.fields) == (422, {"where": "too_many"})
    assert tracker.get("key", f"/rows/tasks?count=exact&{where({'done': False})}").json["count"] == MAX_ROWS + 1
    listen(tracker, "tasks.update")
    exactly = change(tracker, "key", {"id": {"$ne": "n00000"}}, {"done": True})
    assert (exactly.status, len(exactly.json["ids"]), exactly.json["next_cursor"]) == (200, MAX_ROWS, None)
    assert len(events(tracker)) == MAX_ROWS
    page = remove(tracker, "key", {}, limit=MAX_ROWS)
    assert len(page.json["ids"]) == MAX_ROWS
    assert remove(tracker, "key", {}, cursor=page.json["next_cursor"]).json["ids"] == [f"n{MAX_ROWS:05}"]


def test_a_row_that_stops_fitting_before_it_is_locked_is_left_alone(tracker: Tracker) -> None:
    add(tracker, {"id": "a"}, {"id": "b"}, {"id": "c"})
    with another_session(tracker) as other, ThreadPoolExecutor(1) as beside:
        other.execute("UPDATE tasks SET done = true WHERE id = 'b'")
        waiting = beside.submit(at_once, lambda: remove(tracker, "key", {"done": False}).status)
        wait_for("it waits for the row", is_blocked)
        other.commit()
        assert waiting.result(30) == [200]
    assert set(held(tracker, "id")) == {"b"}


def test_a_row_that_refers_elsewhere_before_it_is_locked_stays(tracker: Tracker) -> None:
    add(tracker, {"id": "a"}, {"id": "b"})
    comment = tracker.post("key", "/rows/comments", {"body": "x", "task_id": "a"}).json["id"]
    with another_session(tracker) as other, ThreadPoolExecutor(1) as beside:
        other.execute("UPDATE comments SET task_id = 'b'")
        waiting = beside.submit(at_once, lambda: tracker.delete("key", "/rows/tasks/a").status)
        wait_for("it waits for the row", is_blocked)
        other.commit()
        assert waiting.result(30) == [204]
    assert held(tracker, "task_id", "comments") == {comment: "b"}


def test_at_the_same_moment_each_row_is_changed_by_one_after_the_other(tracker: Tracker) -> None:
    add(tracker, *({"id": f"t{number:02}"} for number in range(40)))
    changed: list[str] = []

    def one(answer: Answer) -> int:
        changed.extend(answer.json["ids"])
        return answer.status

    statuses = at_once(
        *[lambda: one(change(tracker, "key", {"done": False}, {"done": True}))] * 3,
        *[lambda: one(remove(tracker, "key", {"done": False}))] * 3,
    )
    assert statuses == [200] * 6
    assert sorted(changed) == [f"t{number:02}" for number in range(40)], "each by exactly one of them"


def test_an_update_is_repeated_under_an_idempotency_key_as_it_was_answered(tracker: Tracker) -> None:
    add(tracker, {"id": "a"})
    path, headers = f"/rows/tasks?{where({'done': False})}", {"Idempotency-Key": "all-done"}
    first = tracker.patch("key", path, {"done": True}, headers=headers)
    again = tracker.patch("key", path, {"done": True}, headers=headers)
    assert (first.status, again.status) == (200, 200)
    assert first.json["ids"] == again.json["ids"] == ["a"]
    other = tracker.patch("key", f"/rows/tasks?{where({})}", {"done": True}, headers=headers)
    assert other.status == 422, "another request under the same key"
