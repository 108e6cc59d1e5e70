"""What becomes of rows whose user is deleted: the policy of each user column, in each environment of the pool."""

from typing import Any

import pytest
from django.db.models import Q

from accounts import audit
from accounts.models import User
from accounts.users import service as accounts
from platform_site.http.errors import Conflict
from projects.models import Environment
from rows.models import CurrentVersion, EventInterest, OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.tenants import REGION

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

DOCUMENT: dict[str, Any] = {
    "tables": {
        "notes": {
            "columns": {
                "body": {"type": "text"},
                "author": {"type": "user"},
                "editor": {"type": "user", "null": True, "on_delete": "null"},
                "holder": {"type": "user", "null": True, "on_delete": "delete"},
            }
        },
        "remarks": {"columns": {"note": {"type": "reference", "to": "notes", "on_delete": "cascade"}}},
        "receipts": {"columns": {"note": {"type": "reference", "to": "notes", "on_delete": "restrict", "null": True}}},
    }
}


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def note(tracker: Tracker, **columns: str) -> str:
    cells = {name: tracker.users[who] for name, who in columns.items()}
    return str(tracker.post("key", "/rows/notes", {"body": "x", "author_id": tracker.users["bob"], **cells}).json["id"])


def delete(tracker: Tracker, who: str) -> None:
    accounts.delete_user(User.objects.get(pk=tracker.users[who]), actor=audit.SYSTEM)


def test_rows_of_a_deleted_user_follow_on_delete(tracker: Tracker) -> None:
    EventInterest.objects.using(REGION).create(environment_id=tracker.environment_id, table_name="*", action="*")
    written = note(tracker, author_id="alice")
    edited = note(tracker, editor_id="alice")
    held = note(tracker, holder_id="alice", editor_id="alice")
    others = note(tracker, editor_id="bob", holder_id="bob")
    remark = tracker.post("key", "/rows/remarks", {"note_id": held}).json["id"]
    before = OutboxEvent.objects.using(REGION).count()
    delete(tracker, "alice")
    rows = {row["id"]: row for row in tracker.get("key", "/rows/notes").json["data"]}
    assert set(rows) == {written, edited, others}
    assert rows[written]["author_id"] == tracker.users["alice"]
    assert rows[edited]["editor_id"] is None
    assert rows[others]["editor_id"] == rows[others]["holder_id"] == tracker.users["bob"]
    assert tracker.get("key", f"/rows/remarks/{remark}").status == 404
    told = OutboxEvent.objects.using(REGION).order_by("sequence")[before:]
    assert sorted((event.type, event.subject) for event in told) == sorted(
        [
            ("notes.update", f"notes/{edited}"),
            ("notes.delete", f"notes/{held}"),
            ("remarks.delete", f"remarks/{remark}"),
        ]
    )


def test_a_row_that_must_stay_keeps_its_user(tracker: Tracker) -> None:
    held = note(tracker, holder_id="alice")
    assert tracker.post("key", "/rows/receipts", {"note_id": held}).status == 201
    edited = note(tracker, editor_id="alice")
    with pytest.raises(Conflict):
        delete(tracker, "alice")
    assert tracker.get("key", f"/rows/notes/{edited}").json["editor_id"] == tracker.users["alice"], "nothing was begun"
    assert User.objects.filter(pk=tracker.users["alice"]).exists()
    assert tracker.get("key", f"/rows/notes/{held}").json["holder_id"] == tracker.users["alice"]


def test_nothing_is_known_of_an_environment_that_is_gone(tracker: Tracker) -> None:
    from projects import services as projects
    from projects.provisioning import deletion as project_deletion

    EventInterest.objects.using(REGION).create(environment_id=tracker.environment_id, table_name="*", action="*")
    note(tracker)
    projects.delete_project(tracker.project.pk, actor=audit.SYSTEM)
    project_deletion.finish(tracker.project.pk)
    mine = Q(environment_id=tracker.environment_id)
    assert not Environment.objects.filter(pk=tracker.environment_id).exists()
    for model in (CurrentVersion, EventInterest, OutboxEvent):
        assert not model.objects.using(REGION).filter(mine).exists()  # type: ignore[attr-defined]
