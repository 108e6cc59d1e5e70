"""Deleting a user is in two databases, and whatever becomes of it in between, it is done or it is not.

Rows go first, in their region (`rows.write.references.pending_user_deletions`); the user goes with the commit of the control database.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, connections

from accounts.models import AuditEntry, User
from platform_site.identity import signals
from projects.directory.environments import environment_ref
from rows import tasks
from rows.models import PendingUserDeletion
from rows.write.references import user_policies
from rows.write.references.pending_user_deletions import complete
from tests.projects.conftest import token_of
from tests.rows.conftest import Tracker
from tests.support.tenants import REGION
from tests.support.unavailable import terminate_connection

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

DOCUMENT: dict[str, Any] = {
    "tables": {
        "notes": {
            "columns": {
                "body": {"type": "text"},
                "editor": {"type": "user", "null": True, "on_delete": "null"},
                "holder": {"type": "user", "null": True, "on_delete": "delete"},
            }
        },
        "receipts": {"columns": {"note": {"type": "reference", "to": "notes", "on_delete": "restrict"}}},
    }
}


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def note(tracker: Tracker, **columns: str) -> str:
    cells = {f"{name}_id": tracker.users[who] for name, who in columns.items()}
    return str(tracker.post("key", "/rows/notes", {"body": "x", **cells}).json["id"])


def receipt(tracker: Tracker, note_id: str) -> str:
    return str(tracker.post("key", "/rows/receipts", {"note_id": note_id}).json["id"])


def notes(tracker: Tracker) -> dict[str, tuple[str | None, str | None]]:
    """Of each its editor and its holder."""
    found = tracker.get("key", "/rows/notes?limit=100").json["data"]
    return {row["id"]: (row["editor_id"], row["holder_id"]) for row in found}


def delete(tracker: Tracker, who: str = "alice", **how: Any) -> int:
    return tracker.delete("owner", f"/users/{tracker.users[who]}", **how).status


@contextmanager
def between(do: Callable[[], object]) -> Iterator[None]:
    """Do it once the rows have gone, while the control database has yet to commit."""

    def hear(**_: Any) -> None:
        do()

    signals.user_deleted.connect(hear)
    try:
        yield
    finally:
        signals.user_deleted.disconnect(hear)


@contextmanager
def cut_in_between() -> Iterator[None]:
    with between(lambda: terminate_connection(connections[DEFAULT_DB_ALIAS])):
        yield


def leaving() -> list[str]:
    return list(PendingUserDeletion.objects.using(REGION).values_list("pk", flat=True))


def is_there(tracker: Tracker, who: str = "alice") -> bool:
    return User.objects.filter(pk=tracker.users[who]).exists()


def entries(tracker: Tracker, who: str = "alice") -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(action="user.deleted", target_id=tracker.users[who]))


def test_interrupted_user_deletion_is_completed_with_later_rows(tracker: Tracker) -> None:
    alice, bob = tracker.users["alice"], tracker.users["bob"]
    note(tracker, holder="alice")
    edited, others = note(tracker, editor="alice"), note(tracker, editor="bob", holder="bob")
    with cut_in_between():
        assert delete(tracker, headers={"X-Request-Id": "the-first"}) == 503
    assert notes(tracker) == {edited: (None, None), others: (bob, bob)}
    assert (is_there(tracker), leaving(), entries(tracker)) == (True, [alice], [])
    # Until then everything goes on.
    tracker.tokens["again"] = token_of(User.objects.get(pk=alice), tracker.environment_id)
    later = note(tracker, holder="alice", editor="bob")
    assert tracker.get("again", "/auth/me").status == 200
    tasks.finish_user_deletions()
    assert (is_there(tracker), leaving()) == (False, [])
    assert notes(tracker) == {edited: (None, None), others: (bob, bob)}, later
    assert [tracker.get(who, "/auth/me").status for who in ("alice", "again", "bob")] == [401, 401, 200]
    [entry] = entries(tracker)
    owner = tracker.project.memberships.get(role="owner").user_id
    assert (entry.actor_kind, entry.actor_id, entry.request_id) == ("account", owner, "the-first")
    assert entry.environment_id == tracker.environment_id
    tasks.finish_user_deletions()
    assert len(entries(tracker)) == 1


def test_who_asks_again_is_first(tracker: Tracker) -> None:
    note(tracker, holder="alice")
    with cut_in_between():
        assert delete(tracker) == 503
    assert [delete(tracker), delete(tracker)] == [204, 404]
    assert (is_there(tracker), leaving(), len(entries(tracker))) == (False, [], 1)


def test_nothing_is_put_down_of_who_leaves_no_row(tracker: Tracker) -> None:
    kept = note(tracker, holder="bob")
    with cut_in_between():
        assert delete(tracker) == 503
    assert leaving() == []
    tasks.finish_user_deletions()
    assert (is_there(tracker), list(notes(tracker)), entries(tracker)) == (True, [kept], [])


def test_rest_of_a_committed_deletion_is_removed_by_the_periodic_job(tracker: Tracker) -> None:
    note(tracker, holder="alice")
    with between(lambda: terminate_connection(connections[REGION])):
        assert delete(tracker) == 204
    assert leaving() == [tracker.users["alice"]]
    tasks.finish_user_deletions()
    assert (leaving(), len(entries(tracker)), is_there(tracker, "bob")) == ([], 1, True)


def test_who_was_told_that_a_row_keeps_the_user_finds_the_user_later(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_policies, "_BATCH", 1)
    for _ in range(3):
        note(tracker, holder="alice")
    with cut_in_between():
        assert delete(tracker) == 503
    keeps = receipt(tracker, note(tracker, holder="alice"))
    assert leaving() == [tracker.users["alice"]]
    [read_before] = PendingUserDeletion.objects.using(REGION).all()
    refused = tracker.delete("owner", f"/users/{tracker.users['alice']}")
    assert (refused.status, refused.json["error"]["message"][-8:]) == (409, "deleted.")
    assert leaving() == []
    assert tracker.delete("key", f"/rows/receipts/{keeps}").status == 204
    tasks.finish_user_deletions()
    complete(REGION, read_before)
    assert (is_there(tracker), len(notes(tracker)), entries(tracker)) == (True, 1, [])


def test_a_row_that_came_meanwhile_and_stays_keeps_the_user_from_the_sweep(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_policies, "_BATCH", 1)
    note(tracker, holder="alice")
    with cut_in_between():
        assert delete(tracker) == 503
    stays = note(tracker, holder="alice")
    keeps = receipt(tracker, stays)
    tasks.finish_user_deletions()
    assert (leaving(), list(notes(tracker)), is_there(tracker)) == ([], [stays], True)
    assert tracker.delete("key", f"/rows/receipts/{keeps}").status == 204
    assert delete(tracker) == 204
    assert (is_there(tracker), notes(tracker), len(entries(tracker))) == (False, {}, 1)


def test_periodic_job_ignores_users_in_deletion(tracker: Tracker) -> None:
    note(tracker, holder="alice")
    seen: list[tuple[bool, list[str]]] = []

    def look() -> None:
        tasks.finish_user_deletions()
        seen.append((is_there(tracker), leaving()))
        connections.close_all()

    def meanwhile() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(20)

    with between(meanwhile):
        assert delete(tracker) == 204
    assert seen == [(True, [tracker.users["alice"]])]
    assert (is_there(tracker), leaving(), len(entries(tracker))) == (False, [], 1)


def test_rows_after_one_that_was_kept_and_then_deleted_are_found(
    make_tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_policies, "_BATCH", 1)
    note_of = {"type": "reference", "to": "notes", "null": True}
    tracker: Tracker = make_tracker(
        {
            "tables": {
                "notes": {
                    "columns": {
                        "holder": {"type": "user", "null": True, "on_delete": "delete"},
                        "parent": {**note_of, "on_delete": "cascade"},
                    }
                },
                "receipts": {
                    "columns": {
                        "note": {**note_of, "on_delete": "restrict"},
                        "book": {**note_of, "on_delete": "cascade", "related_name": "pages"},
                    }
                },
            }
        }
    )
    alice = tracker.users["alice"]
    for row_id in "bacde":
        parent = "b" if row_id == "a" else None
        made = tracker.post("key", "/rows/notes", {"id": row_id, "holder_id": alice, "parent_id": parent})
        assert made.status == 201, made.json
    assert tracker.post("key", "/rows/receipts", {"note_id": "a", "book_id": "b"}).status == 201
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    user_policies.apply_user_deletion(environment, alice, pending=None)
    assert tracker.get("key", "/rows/notes").json["data"] == []
