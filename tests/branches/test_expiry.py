"""`expires_at` of preview branches: set when they are made or later, and a periodic job deletes what has expired."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from accounts.models import AuditEntry
from projects import services, tasks
from projects.models import Environment
from tests.branches.conftest import Branch, address
from tests.projects.conftest import environment_of, key_for
from tests.rows.conftest import Tracker
from tests.support.client import Answer

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def moment(**after: float) -> str:
    return (datetime.now(UTC) + timedelta(**after)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def change(tracker: Tracker, environment_id: str, expires_at: Any, who: str = "owner") -> Answer:
    return tracker.api.patch(
        address(tracker, environment_id), token=tracker.tokens[who], json={"expires_at": expires_at}
    )


@pytest.mark.exhaustive
def test_only_expired_branches_are_deleted(tracker: Tracker, branch: Branch) -> None:
    expired = branch("expired", expires_at=moment(days=1)).json["id"]
    later = branch("later", expires_at=moment(days=7)).json["id"]
    forever = branch("forever").json["id"]
    Environment.objects.filter(pk=expired).update(expires_at=Now() - timedelta(seconds=1))
    tasks.delete_expired_branches()
    owner = tracker.tokens["owner"]
    assert tracker.api.get(address(tracker, expired), token=owner).status == 404
    assert tracker.api.get(address(tracker, later), token=owner).status == 200
    assert tracker.api.get(address(tracker, forever), token=owner).status == 200
    entry = AuditEntry.objects.get(action="environment.deleted")
    assert (entry.target_id, entry.actor_kind) == (expired, "system")
    tasks.delete_expired_branches()
    assert AuditEntry.objects.filter(action="environment.deleted").count() == 1


def test_branch_that_cannot_be_deleted_does_not_keep_the_others(
    tracker: Tracker, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, expired = branch("locked").json["id"], branch("expired").json["id"]
    Environment.objects.filter(pk=locked).update(expires_at=Now() - timedelta(minutes=2))
    Environment.objects.filter(pk=expired).update(expires_at=Now() - timedelta(minutes=1))
    delete = services.delete_environment

    def refuse_one(project_id: str, environment_id: str, **given: Any) -> None:
        if environment_id == locked:
            raise OperationalError("canceling statement due to lock timeout")
        delete(project_id, environment_id, **given)

    monkeypatch.setattr(services, "delete_environment", refuse_one)
    tasks.delete_expired_branches()
    assert set(Environment.objects.live().branches().values_list("pk", flat=True)) == {locked}


def test_it_is_shown_changed_and_removed(tracker: Tracker, branch: Branch) -> None:
    expiry, later = moment(days=1), moment(days=2)
    made = branch("preview", expires_at=expiry)
    assert (made.status, made.json["expires_at"]) == (201, expiry)
    changed = change(tracker, made.json["id"], later)
    assert (changed.status, changed.json["expires_at"]) == (200, later)
    assert AuditEntry.objects.get(action="environment.changed").detail["expires_at"] is not None
    assert change(tracker, made.json["id"], later).status == 200
    assert AuditEntry.objects.filter(action="environment.changed").count() == 1, "nothing has changed"
    assert change(tracker, made.json["id"], None).json["expires_at"] is None


@pytest.mark.parametrize("wrong", ["past", "far", "tomorrow", 5, "2026-13-01T00:00:00Z"])
def test_a_time_that_cannot_be_meant_is_refused(tracker: Tracker, branch: Branch, wrong: Any) -> None:
    wrong = {"past": moment(seconds=-1), "far": moment(days=366)}.get(wrong, wrong)
    refused = branch("preview", expires_at=wrong)
    assert (refused.status, list(refused.fields)) == (422, ["expires_at"])
    made = branch("preview").json["id"]
    assert list(change(tracker, made, wrong).fields) == ["expires_at"]


def test_production_does_not_expire(tracker: Tracker) -> None:
    production = environment_of(tracker.project, "production").pk
    refused = change(tracker, production, moment(days=1))
    assert refused.fields == {"expires_at": "not_a_branch"}
    Environment.objects.filter(pk=production).update(expires_at=Now() - timedelta(days=1))
    tasks.delete_expired_branches()
    assert Environment.objects.get(pk=production).status == Environment.Status.READY


def test_who_may_not_delete_a_branch_cannot_let_it_expire(tracker: Tracker, branch: Branch) -> None:
    made = branch("preview").json["id"]
    assert change(tracker, made, moment(days=1), "viewer").status == 403
    key = key_for(tracker.environment_id, "environments:read")
    answer = tracker.api.patch(address(tracker, made), token=key, json={"expires_at": moment(days=1)})
    assert answer.status in (403, 404)
    assert Environment.objects.get(pk=made).expires_at is None
