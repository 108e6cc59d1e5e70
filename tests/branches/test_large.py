"""Branches too large to be filled before the answer: `creating`, filled by a worker, and settled whatever happens."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, InterfaceError, connections, transaction
from django.utils import timezone

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.users import service as accounts
from platform_site.background import long_tasks
from platform_site.concurrency.fair_semaphore import FairSemaphore
from platform_site.identity import signals
from projects import tasks
from projects.models import Environment
from projects.provisioning import branching
from rows.models import CurrentVersion, SchemaVersion
from tests.branches.conftest import Branch, address, rows
from tests.projects.conftest import key_for, schemas_in, token_of
from tests.rows.conftest import Tracker
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks
from tests.support.tracker import DOCUMENT
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
REGION = "us-east-1"


@pytest.fixture(autouse=True)
def _everything_is_large(settings: Any) -> None:
    settings.BRANCH_AT_ONCE_BYTES = settings.DELETION_GRACE_SECONDS = settings.ORPHAN_GRACE_SECONDS = 0


@pytest.fixture
def creating(branch: Branch) -> str:
    """The id of a branch that has not been filled yet: no worker runs here."""
    answer = branch("large", data="full")
    assert (answer.status, answer.json["status"], answer.json["schema_version"]) == (201, "creating", 0)
    return str(answer.json["id"])


def status_of(environment_id: str) -> tuple[str, str | None]:
    return Environment.objects.values_list("status", "status_reason").get(pk=environment_id)


def nothing_is_left_of(environment_id: str) -> bool:
    return environment_id not in schemas_in(REGION) and not any(
        model.objects.using(REGION).filter(environment_id=environment_id).exists()
        for model in (CurrentVersion, SchemaVersion, Webhook)
    )


def test_only_rows_make_it_large(branch: Branch) -> None:
    assert branch("empty", data="none").json["status"] == "ready"


def test_branch_is_not_reachable_until_it_is_filled(tracker: Tracker, creating: str) -> None:
    owner, key = tracker.tokens["owner"], key_for(creating, "rows:read")
    alice = User.objects.get(pk=tracker.users["alice"])
    # Not 401: while a branch is reset its users would sign out.
    for token, status in ((owner, 404), (key, 503), (token_of(alice, creating), 503)):
        assert tracker.api.get("/v1/rows/tasks", token=token, environment=creating).status == status
    signing_in = {"grant_type": "password", "email": "alice@tracker.example", "password": "whatever it is"}
    assert tracker.api.post("/v1/auth/token", json=signing_in, environment=creating).status == 400
    listed = tracker.api.get(f"/v1/projects/{tracker.project.pk}/environments", token=owner).json["data"]
    assert {"id": creating, "name": "large", "schema_version": 0, "status": "creating"} in listed
    assert nothing_is_left_of(creating)
    tasks.fill_branch(creating)
    assert status_of(creating) == ("ready", None)
    assert tracker.api.get(address(tracker, creating), token=owner).json["schema_version"] == 1
    for token in (owner, key):  # at once: that it was not there has not been remembered
        assert len(tracker.api.get("/v1/rows/tasks", token=token, environment=creating).json["data"]) == 2
    assert len(tracker.api.get("/v1/rows/tasks", token=token_of(alice, creating)).json["data"]) == 2


def test_it_has_the_rows_of_the_moment_it_is_filled(tracker: Tracker, creating: str) -> None:
    tracker.post("owner", "/rows/lists", {"name": "Late", "owner_id": tracker.users["bob"]})
    tasks.fill_branch(creating)
    assert {each["name"] for each in rows(tracker, "lists", creating)} == {"Home", "Late"}


def test_periodic_job_fills_branches_without_notification(tracker: Tracker, creating: str) -> None:
    tasks.finish_branches()
    assert status_of(creating) == ("ready", None)
    tasks.finish_branches()
    tasks.fill_branch(creating)  # a late notification
    assert len(rows(tracker, "tasks", creating)) == 2


def test_two_workers_fill_it_once(tracker: Tracker, creating: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[bool] = []

    def work() -> None:
        try:
            settled.append(branching.finish(creating))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert settled.count(True) == 1
    assert status_of(creating) == ("ready", None)
    assert SchemaVersion.objects.using(REGION).filter(environment_id=creating).count() == 1


def test_a_source_that_was_deleted_makes_it_fail_with_a_reason(tracker: Tracker, branch: Branch, settings: Any) -> None:
    settings.BRANCH_AT_ONCE_BYTES = 1 << 30
    source = branch("source", data="full").json["id"]
    settings.BRANCH_AT_ONCE_BYTES = 0
    target = branch("target", data="full", **{"from": "source"}).json["id"]
    owner = tracker.tokens["owner"]
    assert tracker.api.delete(address(tracker, source), token=owner).status == 204
    tasks.fill_branch(target)
    status, reason = status_of(target)
    assert status == "failed"
    assert "deleted" in (reason or "")
    shown = tracker.api.get(address(tracker, target), token=owner).json
    assert (shown["status"], shown["status_reason"], shown["parent_id"]) == ("failed", reason, None)
    assert nothing_is_left_of(target)
    tasks.finish_branches()
    assert status_of(target)[0] == "failed"
    assert tracker.api.delete(address(tracker, target), token=owner).status == 204
    assert not Environment.objects.filter(pk=target).exists()


def test_a_connection_that_broke_leaves_it_to_be_filled_later(creating: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: Any, **options: Any) -> None:
        raise InterfaceError("the connection is closed")

    with monkeypatch.context() as broken:
        broken.setattr(branching, "copy", breaks)
        assert branching.finish(creating) is False
    assert status_of(creating) == ("creating", None)
    assert branching.finish(creating) is True


@pytest.fixture
def in_the_middle(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is put into this list is called once, when the source's tables are locked and nothing is copied yet."""
    calls: list[Any] = []
    real = branching.require_both

    def require_both(source: Any, target: Any) -> None:
        while calls:
            thread = threading.Thread(target=_closing, args=[calls.pop()])
            thread.start()
            thread.join(30)
        real(source, target)

    monkeypatch.setattr(branching, "require_both", require_both)
    yield calls
    assert not calls


def _closing(call: Any) -> None:
    try:
        call()
    finally:
        connections.close_all()


def test_a_source_deleted_while_its_rows_are_copied(
    tracker: Tracker, branch: Branch, settings: Any, in_the_middle: list[Any]
) -> None:
    settings.BRANCH_AT_ONCE_BYTES = 1 << 30
    source = branch("source", data="full").json["id"]
    settings.BRANCH_AT_ONCE_BYTES = 0
    target = branch("target", data="full", **{"from": "source"}).json["id"]
    owner = tracker.tokens["owner"]
    answers: list[int] = []
    in_the_middle.append(lambda: answers.append(tracker.api.delete(address(tracker, source), token=owner).status))
    tasks.fill_branch(target)
    assert answers == [204]
    assert status_of(target)[0] == "failed"
    assert nothing_is_left_of(target)
    tasks.finish_and_clean()
    assert source not in schemas_in(REGION)


def test_a_branch_deleted_while_it_is_filled(tracker: Tracker, creating: str, in_the_middle: list[Any]) -> None:
    owner = tracker.tokens["owner"]
    in_the_middle.append(lambda: tracker.api.delete(address(tracker, creating), token=owner))
    tasks.fill_branch(creating)
    assert tracker.api.get(address(tracker, creating), token=owner).status == 404
    tasks.finish_and_clean()
    assert not Environment.objects.filter(pk=creating).exists()
    assert nothing_is_left_of(creating)


def test_a_project_deleted_with_a_branch_in_the_making(tracker: Tracker, creating: str, in_the_middle: Any) -> None:
    owner = tracker.tokens["owner"]
    in_the_middle.append(lambda: tracker.api.delete(f"/v1/projects/{tracker.project.pk}", token=owner))
    tasks.fill_branch(creating)
    tasks.finish_and_clean()
    tasks.finish_branches()
    assert schemas_in(REGION) == []
    assert not Environment.objects.exists()
    assert nothing_is_left_of(creating)


def test_an_app_that_cannot_copy_its_part_undoes_all_of_it(tracker: Tracker, creating: str) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("secret of the house")

    signals.environment_branched.connect(refuse)
    try:
        tasks.fill_branch(creating)
    finally:
        signals.environment_branched.disconnect(refuse)
    status, reason = status_of(creating)
    assert status == "failed"
    assert reason
    assert "secret" not in reason
    assert nothing_is_left_of(creating)


def test_unavailable_region_delays_the_copy(tracker: Tracker, creating: str, monkeypatch: Any) -> None:
    alias = connections[REGION]
    alias.close()
    with monkeypatch.context() as patched:
        patched.setitem(alias.settings_dict, "NAME", "nowhere")
        tasks.finish_branches()
        alias.close()
    assert status_of(creating) == ("creating", None)
    tasks.finish_branches()
    assert status_of(creating) == ("ready", None)


def test_it_is_given_up_in_the_end(creating: str, settings: Any) -> None:
    Environment.objects.filter(pk=creating).update(created_at=timezone.now() - timedelta(hours=7))
    tasks.finish_branches()
    assert status_of(creating)[0] == "failed"
    assert nothing_is_left_of(creating)


def test_how_long_it_is_tried_is_a_setting(creating: str, settings: Any) -> None:
    settings.BRANCH_GIVE_UP_SECONDS = 8 * 3600
    Environment.objects.filter(pk=creating).update(created_at=timezone.now() - timedelta(hours=7))
    tasks.finish_branches()
    assert status_of(creating) == ("ready", None)


def test_a_worker_whose_clock_is_ahead_gives_none_up(creating: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right() + timedelta(days=2))
    tasks.finish_branches()
    assert status_of(creating) == ("ready", None)


@pytest.mark.exhaustive
def test_two_at_once_from_one_source(tracker: Tracker, branch: Branch) -> None:
    made = [branch(f"b{number}", data="full").json["id"] for number in range(3)]
    threads = [threading.Thread(target=_closing, args=[lambda pk=pk: tasks.fill_branch(pk)]) for pk in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [status_of(pk)[0] for pk in made] == ["ready"] * 3
    assert {len(rows(tracker, "tasks", pk)) for pk in made} == {2}


def test_copies_of_one_project_leave_slots_to_others(
    branch: Branch, in_the_middle: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's threads also deliver webhooks and start functions."""
    monkeypatch.setattr(long_tasks, "slots", FairSemaphore(4, per_owner=1, slow_after=30))
    first, second = (branch(name, data="full").json["id"] for name in ("first", "second"))
    found: list[str] = []

    def meanwhile() -> None:
        tasks.fill_branch(second)
        found.append(status_of(second)[0])
        with long_tasks.slots.slot("another project", wait=0):
            pass

    in_the_middle.append(meanwhile)
    tasks.fill_branch(first)
    assert found == ["creating"]
    assert [status_of(each)[0] for each in (first, second)] == ["ready", "ready"], "it follows at once"


# ── Users who go meanwhile ──────────────────────────────────────────────────────────────────────────────────────────

LETTING_GO = {
    "tables": {
        **DOCUMENT["tables"],
        "notes": {"columns": {"body": {"type": "text"}, "author": {"type": "user", "on_delete": "delete"}}},
    }
}


def _branch_with_notes(tracker: Tracker, branch: Branch) -> str:
    """Its id. One note of alice and one of bob are to be copied."""
    tracker.apply(LETTING_GO)
    for who in ("alice", "bob"):
        assert tracker.post("owner", "/rows/notes", {"body": who, "author_id": tracker.users[who]}).status == 201
    made: str = branch("large", data="full").json["id"]
    return made


@pytest.mark.exhaustive
def test_user_deleted_during_the_copy_is_removed_from_the_branch(
    tracker: Tracker, branch: Branch, in_the_middle: list[Any]
) -> None:
    target = _branch_with_notes(tracker, branch)
    bob = User.objects.get(pk=tracker.users["bob"])
    in_the_middle.append(lambda: accounts.delete_user(bob, actor=audit.SYSTEM))
    tasks.fill_branch(target)
    assert AuditEntry.objects.filter(action="user.deleted").count() == 1
    assert status_of(target) == ("ready", None)
    for environment_id in (tracker.environment_id, target):
        assert [each["body"] for each in rows(tracker, "notes", environment_id)] == ["alice"]


def test_a_user_whose_deletion_is_under_way_is_removed_from_the_branch(
    tracker: Tracker, branch: Branch, in_the_middle: list[Any]
) -> None:
    """It does not know the branch, and commits after the copy."""
    target = _branch_with_notes(tracker, branch)
    is_deleted = threading.Event()

    def delete() -> None:
        with transaction.atomic():
            accounts.delete_user(User.objects.get(pk=tracker.users["bob"]), actor=audit.SYSTEM)
            is_deleted.set()
            wait_until(lambda: waiting_for_locks(DEFAULT_DB_ALIAS))

    with ThreadPoolExecutor(1) as pool:
        in_the_middle.append(lambda: pool.submit(in_thread, delete) and is_deleted.wait(10))
        tasks.fill_branch(target)
    assert [each["body"] for each in rows(tracker, "notes", target)] == ["alice"]


def test_a_user_is_not_deleted_in_the_moment_a_branch_appears(
    tracker: Tracker, branch: Branch, settings: Any, in_the_middle: list[Any]
) -> None:
    """The copy holds the pool: a deletion waits for it, is refused if that takes too long, and then finds the
    branch."""
    settings.BRANCH_AT_ONCE_BYTES = 1 << 30
    tracker.apply(LETTING_GO)
    assert tracker.post("owner", "/rows/notes", {"body": "x", "author_id": tracker.users["bob"]}).status == 201
    key = key_for(tracker.environment_id, "users:manage")
    path = f"/v1/users/{tracker.users['bob']}"
    answers: list[int] = []
    in_the_middle.append(lambda: answers.append(tracker.api.delete(path, token=key).status))
    target = branch("small", data="full").json["id"]
    assert answers == [503]
    assert len(rows(tracker, "notes", target)) == 1
    assert tracker.api.delete(path, token=key).status == 204
    for environment_id in (tracker.environment_id, target):
        assert rows(tracker, "notes", environment_id) == []
