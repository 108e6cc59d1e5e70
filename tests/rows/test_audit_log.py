"""The audit log of a region is exact: it has an entry if and only if its change is committed, whatever fails when.

It is written down with the change (`rows.outbox.audit`) and brought to the control database after the commit.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import Error, connections, transaction
from django.db.models.signals import post_save

from accounts.audit import SYSTEM
from accounts.models import AuditEntry, User
from functions.models import Function
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from projects import tasks as projects_tasks
from projects.directory.environments import environment_ref
from rows import tasks
from rows.models import AuditOutboxEntry, CurrentVersion, PendingUserReferences
from rows.outbox import audit as audit_outbox
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.tracker import DOCUMENT
from tests.support.unavailable import control_unavailable, database_unavailable, terminate_connection
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhooks

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

WITH_NOTES = {"tables": {**DOCUMENT["tables"], "notes": {"columns": {"body": {"type": "text"}}}}}
HOOK = {"url": "https://example.com/hook", "events": ["*"]}
SOURCE = {"source": "export default () => 1"}
KEY = {"Idempotency-Key": "once"}


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


CHANGES: dict[str, tuple[str, Callable[[Tracker], Answer]]] = {
    "a schema change": (
        "schema.applied",
        lambda tracker: tracker.call("owner", "PUT", "/schema", json={"document": WITH_NOTES}),
    ),
    "a webhook": ("webhook.created", lambda tracker: tracker.post("owner", "/webhooks", HOOK)),
    "a webhook under a key": ("webhook.created", lambda tracker: tracker.post("owner", "/webhooks", HOOK, headers=KEY)),
    "a deployment": (
        "function.deployed",
        lambda tracker: tracker.call("owner", "PUT", "/functions/one", json=SOURCE),
    ),
}
each_change = pytest.mark.parametrize(("action", "change"), CHANGES.values(), ids=CHANGES)


def state(tracker: Tracker) -> tuple[int, int, int]:
    """The schema's version, how many webhooks, how many functions."""
    using = tracker.project.cluster
    here = {"environment_id": tracker.environment_id}
    return (
        CurrentVersion.objects.using(using).get(**here).version,
        Webhook.objects.using(using).filter(**here).count(),
        Function.objects.using(using).filter(**here).count(),
    )


def waiting(tracker: Tracker) -> list[AuditOutboxEntry]:
    """The audit entries in the region."""
    return list(AuditOutboxEntry.objects.using(tracker.project.cluster).order_by("pk"))


def entries(tracker: Tracker, action: str) -> list[AuditEntry]:
    """The entries of the audit log."""
    return list(AuditEntry.objects.filter(environment_id=tracker.environment_id, action=action))


@contextmanager
def when_written(do: Callable[[], object]) -> Iterator[None]:
    """Until the end of the block: call this whenever an entry was written down, in the transaction of the change."""

    def hear(**_: Any) -> None:
        do()

    post_save.connect(hear, sender=AuditOutboxEntry)
    try:
        yield
    finally:
        post_save.disconnect(hear, sender=AuditOutboxEntry)


@contextmanager
def control_goes_away_after_the_commit(tracker: Tracker) -> Iterator[None]:
    """… of the region, and is back at the end of the block."""
    name, using = connections["default"].settings_dict["NAME"], tracker.project.cluster
    with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser, ExitStack() as stack:

        def leave() -> None:
            # The thread's open transaction ends with an error, as with any unexpected failure.
            stack.enter_context(database_unavailable(superuser, name))

        with when_written(lambda: transaction.on_commit(leave, using=using)):
            yield
    connections["default"].close()


@contextmanager
def undone_in_control() -> Iterator[None]:
    """A transaction of the control database that rolls back at the end of the block."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def cut(using: str, statement: str, *, before: bool) -> Iterator[list[str]]:
    """Until the end of the block: the session of this database ends before or after the first statement that begins
    so."""
    ended: list[str] = []

    def end(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        is_it = sql.startswith(statement) and not ended
        if is_it and before:
            ended.append(sql)
            terminate_connection(connections[using])
        result = execute(sql, parameters, many, context)
        if is_it and not before:
            ended.append(sql)
            terminate_connection(connections[using])
        return result

    with connections[using].execute_wrapper(end):
        yield ended


@each_change
def test_a_change_brings_its_entry_at_once(tracker: Tracker, action: str, change: Callable[[Tracker], Answer]) -> None:
    before, known = state(tracker), entries(tracker, action)
    answer = change(tracker)
    assert answer.status in (200, 201), answer.json
    assert sum(state(tracker)) == sum(before) + 1
    [entry] = [each for each in entries(tracker, action) if each not in known]
    assert entry.request_id == answer.headers["X-Request-Id"]
    assert waiting(tracker) == []


@each_change
def test_control_database_lost_after_commit_gets_the_audit_entry_later(
    tracker: Tracker, action: str, change: Callable[[Tracker], Answer]
) -> None:
    before, known = state(tracker), entries(tracker, action)
    with control_goes_away_after_the_commit(tracker):
        answer = change(tracker)
        assert answer.status in (200, 201), answer.json
        [noted] = waiting(tracker)
        tasks.flush_remaining_audit_outbox()
        with pytest.raises(Error):
            AuditEntry.objects.exists()
    assert sum(state(tracker)) == sum(before) + 1
    assert entries(tracker, action) == known
    tasks.flush_remaining_audit_outbox()
    assert waiting(tracker) == []
    [entry] = [each for each in entries(tracker, action) if each not in known]
    owner = User.objects.get(environment_id=None, email="owner@tracker.example")
    assert (entry.actor_kind, entry.actor_id, entry.project_id) == ("account", owner.pk, tracker.project.pk)
    assert entry.request_id == answer.headers["X-Request-Id"]
    facts = [(each.pk, each.at, each.target_id, each.detail) for each in (noted, entry)]
    assert facts[0] == facts[1]


@each_change
def test_a_change_whose_commit_fails_leaves_no_entry(
    tracker: Tracker, action: str, change: Callable[[Tracker], Answer]
) -> None:
    before, known = state(tracker), entries(tracker, action)
    with when_written(lambda: terminate_connection(connections[tracker.project.cluster])):
        answer = change(tracker)
    assert answer.status == 503, answer.json
    connections[tracker.project.cluster].close()
    assert state(tracker) == before
    tasks.flush_remaining_audit_outbox()
    assert (entries(tracker, action), waiting(tracker)) == (known, [])


def test_regional_requests_work_while_control_database_is_unavailable(tracker: Tracker) -> None:
    """For callers whose records Redis has."""
    assert tracker.get("owner", "/webhooks").status == 200
    with control_unavailable():
        hook = tracker.post("owner", "/webhooks", HOOK)
        assert hook.status == 201, hook.json
        assert tracker.delete("owner", f"/webhooks/{hook.json['id']}").status == 204
        deployed = tracker.call("owner", "PUT", "/functions/one", json=SOURCE)
        assert deployed.status == 201, deployed.json
        assert tracker.delete("owner", "/functions/one").status == 204
    tasks.flush_remaining_audit_outbox()
    assert waiting(tracker) == []
    found = AuditEntry.objects.filter(environment_id=tracker.environment_id).order_by("-at")[:4]
    assert [each.action for each in found] == [
        "function.deleted",
        "function.deployed",
        "webhook.deleted",
        "webhook.created",
    ]


def test_audit_entry_is_committed_only_with_its_change(tracker: Tracker) -> None:
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    with pytest.raises(transaction.TransactionManagementError):
        audit_outbox.record(environment, "webhook.created", actor=SYSTEM, target_id="wh_1")
    assert (entries(tracker, "webhook.created"), waiting(tracker)) == ([], [])


def test_what_changes_nothing_leaves_no_entry(tracker: Tracker) -> None:
    hook = tracker.post("owner", "/webhooks", HOOK).json
    known = AuditEntry.objects.count()
    assert tracker.call("owner", "PUT", "/schema", json={"document": DOCUMENT}).json["version"] == 1
    assert tracker.patch("owner", f"/webhooks/{hook['id']}", {}).status == 200
    assert (AuditEntry.objects.count(), waiting(tracker)) == (known, [])


def backed_up(tracker: Tracker, directory: Path) -> str:
    file = directory / "backup.zip"
    call_command("backup", tracker.environment_id, "--to", str(file), "--no-progress", stdout=StringIO())
    return str(file)


def restored(tracker: Tracker, file: str) -> str:
    out = StringIO()
    call_command("restore", file, "--into", tracker.environment_id, "--replace", "--no-progress", stdout=out)
    return out.getvalue()


def test_a_restore_is_said_to_be_done_when_it_is_and_its_entry_arrives(tracker: Tracker, tmp_path: Path) -> None:
    using = tracker.project.cluster
    file = backed_up(tracker, tmp_path)
    with control_goes_away_after_the_commit(tracker):
        assert "version 2, 4 tables" in restored(tracker, file)
        [noted] = waiting(tracker)
    assert (state(tracker)[0], entries(tracker, "environment.restored")) == (2, [])
    assert PendingUserReferences.objects.using(using).count() == 1
    tasks.flush_remaining_audit_outbox()
    tasks.apply_pending_user_deletions()
    [entry] = entries(tracker, "environment.restored")
    assert (entry.pk, entry.at, entry.actor_kind, entry.detail["version"]) == (noted.pk, noted.at, "system", 2)
    assert (waiting(tracker), PendingUserReferences.objects.using(using).count()) == ([], 0)


def test_a_restore_whose_commit_fails_leaves_no_entry(tracker: Tracker, tmp_path: Path) -> None:
    using, file = tracker.project.cluster, backed_up(tracker, tmp_path)
    with (
        when_written(lambda: terminate_connection(connections[using])),
        pytest.raises(CommandError, match="Nothing was changed"),
    ):
        restored(tracker, file)
    connections[using].close()
    tasks.flush_remaining_audit_outbox()
    assert (state(tracker)[0], entries(tracker, "environment.restored"), waiting(tracker)) == (1, [], [])


def test_outcome_of_outer_control_transaction_loses_no_audit_entry(tracker: Tracker) -> None:
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    with undone_in_control():
        webhooks.create_webhook(environment, HOOK, actor=SYSTEM)
    assert (len(entries(tracker, "webhook.created")), len(waiting(tracker))) == (0, 1)
    tasks.flush_remaining_audit_outbox()
    assert (len(entries(tracker, "webhook.created")), len(waiting(tracker))) == (1, 0)
    with transaction.atomic():
        webhooks.create_webhook(environment, HOOK, actor=SYSTEM)
        assert (len(entries(tracker, "webhook.created")), len(waiting(tracker))) == (1, 1)
        with pytest.raises(RuntimeError, match="durable"):
            audit_outbox.flush_oldest(environment.cluster)
    assert (len(entries(tracker, "webhook.created")), len(waiting(tracker))) == (2, 0)


INTO, FROM = 'INSERT INTO "accounts_auditentry"', 'DELETE FROM "rows_auditoutboxentry"'


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("where", "statement"), [("default", INTO), ("us-east-1", FROM)])
def test_cut_off_anywhere_each_entry_is_brought_once(
    tracker: Tracker, where: str, statement: str, before: bool
) -> None:
    with cut(where, statement, before=before) as ended:
        made = tracker.post("owner", "/webhooks", HOOK)
        assert made.status == 201, made.json
        assert ended, "each change writes its own entry"
    assert len(waiting(tracker)) == 1
    with cut(where, statement, before=before) as ended:
        tasks.flush_remaining_audit_outbox()
        assert ended, "the periodic job transfers what is left"
    tasks.flush_remaining_audit_outbox()
    assert waiting(tracker) == []
    [entry] = entries(tracker, "webhook.created")
    assert entry.target_id == made.json["id"]


def test_periodic_job_transfers_all_entries_in_order_with_their_times(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_outbox, "BATCH", 2)
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    with undone_in_control():
        made = [webhooks.create_webhook(environment, HOOK, actor=SYSTEM)[0].pk for _ in range(5)]
    tasks.flush_remaining_audit_outbox()
    assert waiting(tracker) == []
    found = AuditEntry.objects.filter(action="webhook.created").order_by("at", "pk")
    assert [each.target_id for each in found] == made


def test_the_entries_of_an_environment_that_is_gone_arrive(tracker: Tracker) -> None:
    with control_goes_away_after_the_commit(tracker):
        assert tracker.post("owner", "/webhooks", HOOK).status == 201
    path = f"/v1/projects/{tracker.project.pk}"
    assert tracker.api.request("DELETE", path, token=tracker.tokens["owner"]).status == 204
    projects_tasks.finish_and_clean()
    assert not Webhook.objects.using(tracker.project.cluster).exists()
    tasks.flush_remaining_audit_outbox()
    assert waiting(tracker) == []
    [entry] = entries(tracker, "webhook.created")
    assert entry.project_id == tracker.project.pk


def test_the_url_of_a_receiver_is_stored_without_what_may_be_a_credential(tracker: Tracker) -> None:
    made = tracker.post("owner", "/webhooks", {**HOOK, "url": "https://example.com/services/tok3n?key=s3cret"})
    assert tracker.delete("owner", f"/webhooks/{made.json['id']}").status == 204
    for action in ("webhook.created", "webhook.deleted"):
        [entry] = entries(tracker, action)
        assert entry.detail == {"url": "https://example.com"}
