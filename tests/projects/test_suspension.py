"""Suspending a project and lifting that again: what is refused and to whom, at once and everywhere; what stays open; and
which of two concurrent changes wins. Queued work is in tests/webhooks, tests/functions and tests/accounts (test_suspended).
"""

import dataclasses
import math
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test import override_settings
from psycopg import sql

from accounts import audit
from accounts.models import AuditEntry, ServerKey, User
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import ENVIRONMENT_SCOPES
from platform_site.postgres.row_access import row_access
from platform_site.redis import client as redis_client
from projects import services, tasks
from projects.errors import NoSuchProject
from projects.models import Environment, Member, Project
from projects.provisioning import suspension
from tests.projects.conftest import (
    Make,
    RoundTrips,
    at_once,
    environment_of,
    key_for,
    make_project,
    schemas_in,
    token_of,
)
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer, Api
from tests.support.command_output import run
from tests.support.concurrency import waiting_for_locks
from tests.support.flush import flush_redis
from tests.support.openapi import filled, operations
from tests.support.postbox import html_of, open_postbox, text_of
from tests.support.service import wait_for
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

AWAY = "redis://127.0.0.1:9/0"
"""No server listens there."""
WHY = "The bill of May is open: billing@example.com"


@pytest.fixture(autouse=True)
def _nobody_goes_on_writing_marks() -> Iterator[None]:
    """To an unavailable Redis, in the background, while later tests count what is sent."""
    yield
    with override_settings(REDIS_URL=AWAY):
        redis_client.current()._pending.clear()
        wait_for("the writer to end", lambda: redis_client.current()._writer is None)


def suspend(project: Project, reason: str = WHY) -> Project:
    return services.suspend_project(project.pk, reason=reason, actor=audit.SYSTEM)


def resume(project: Project) -> bool:
    return services.resume_project(project.pk, actor=audit.SYSTEM)


def is_refused(answer: Answer) -> bool:
    return answer.status == 403 and answer.error == "project_suspended"


def trail(project: Project) -> list[tuple[str, str | None]]:
    entries = AuditEntry.objects.filter(project_id=project.pk, action__in=["project.suspended", "project.resumed"])
    return [(each.action.partition(".")[2], each.detail["reason"]) for each in entries.order_by("at", "id")]


# ── What is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
@pytest.mark.parametrize("who", ["key", "user"])
def test_every_operation_refuses_keys_and_users_with_the_one_error(
    api: Api, make_account: Make, project: Project, production: Environment, settings: Any, who: str
) -> None:
    settings.RATE_LIMIT_FACTOR = 1000
    token = {
        "key": lambda: key_for(production.pk, *ENVIRONMENT_SCOPES),
        "user": lambda: token_of(make_account("uma", pool_id=production.pk), production.pk),
    }[who]()
    assert api.get("/v1/auth/me", token=token).status == 200
    suspend(project)
    asked = 0
    for method, path, operation in operations():
        if operation.get("security"):
            answer = api.request(method, filled(path, operation), token=token, body=b"{}" if method != "GET" else b"")
            assert is_refused(answer), (method, path, answer.status, answer.json)
            documented = operation["responses"]["403"]["content"]["application/json"]["examples"]
            assert "project_suspended" in documented, (method, path)
            asked += 1
    assert asked > 70
    resume(project)
    assert api.get("/v1/auth/me", token=token).status == 200


FOR_ACCOUNTS = {"getMe", "updateMe", "getLimits"}
"""Operations that may mean an environment, and that an account is answered whatever becomes of it."""


@pytest.mark.exhaustive
def test_an_account_reaches_nothing_that_is_in_an_environment_of_it(
    api: Api, alice: User, project: Project, production: Environment, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 1000
    token = token_of(alice)
    suspend(project)
    answered = set()
    for method, path, operation in operations():
        names = ("header", "X-Environment") in {(each["in"], each["name"]) for each in operation.get("parameters", ())}
        if names and operation.get("security"):
            for named in (production.pk, None):  # by name, and as the only project's production
                body = b"{}" if method != "GET" else b""
                answer = api.request(method, filled(path, operation), token=token, environment=named, body=body)
                if not is_refused(answer):
                    answered.add((operation["operationId"], answer.status))
    assert answered == {(each, 200) for each in FOR_ACCOUNTS}


def test_members_of_suspended_project_can_only_read_leave_and_revoke_keys(
    api: Api, alice: User, bob: User, charlie: User, project: Project, production: Environment
) -> None:
    Member.objects.create(project=project, user=bob, role=Member.Role.DEVELOPER)
    leaked = key_for(production.pk, "rows:read")
    owner, developer = token_of(alice), token_of(bob)
    before = api.get(f"/v1/projects/{project.pk}", token=owner).json
    assert (before["suspended_at"], before["suspension_reason"]) == (None, None)
    suspend(project)
    for token in (owner, developer):
        listed = api.get("/v1/projects", token=token).json["data"]
        assert [each["id"] for each in listed] == [project.pk]
        shown = api.get(f"/v1/projects/{project.pk}", token=token).json
        assert shown["suspended_at"].endswith("Z")
        assert shown["suspension_reason"] == WHY
        for path in ("environments", f"environments/{production.pk}", "members"):
            assert api.get(f"/v1/projects/{project.pk}/{path}", token=token).status == 200, path
    assert api.get(f"/v1/projects/{project.pk}", token=token_of(charlie)).status == 404, (
        "an anonymous caller learns nothing"
    )
    for method, path, body in (
        ("PATCH", "", {"name": "Other"}),
        ("PATCH", "", {"plan": "free"}),
        ("POST", "/environments", {"name": "preview"}),
        ("PATCH", f"/environments/{production.pk}", {"allowed_origins": ["*"]}),
        ("POST", "/members", {"email": charlie.email, "role": "viewer"}),
        ("PATCH", f"/members/{bob.pk}", {"role": "viewer"}),
        ("DELETE", f"/members/{bob.pk}", None),
    ):
        sent = {} if body is None else {"json": body}
        assert is_refused(api.request(method, f"/v1/projects/{project.pk}{path}", token=owner, **sent)), path
    keys = api.get(f"/v1/keys?environment_id={production.pk}", token=owner).json["data"]
    assert [each["scopes"] for each in keys] == [["rows:read"]]
    new = {"name": "new", "scopes": ["rows:read"], "environment_id": production.pk}
    assert is_refused(api.post("/v1/keys", token=owner, json=new))
    assert api.delete(f"/v1/keys/{keys[0]['id']}", token=owner).status == 204, "what leaked can be revoked meanwhile"
    assert api.delete(f"/v1/projects/{project.pk}/members/{bob.pk}", token=developer).status == 204
    assert project.memberships.count() == 1
    resume(project)
    assert api.get("/v1/auth/me", token=leaked).status == 401
    assert api.get(f"/v1/projects/{project.pk}", token=owner).json["suspension_reason"] is None


def test_nothing_beside_the_project_is_touched(api: Api, alice: User, project: Project) -> None:
    other = environment_of(make_project(alice, "Other"))
    suspend(project)
    assert api.get("/v1/auth/me", token=key_for(other.pk, "rows:read")).status == 200
    assert api.get("/v1/webhooks", token=token_of(alice), environment=other.pk).status == 200


def test_a_browser_may_read_the_refusal(api: Api, project: Project, production: Environment) -> None:
    key = key_for(production.pk, "rows:read")
    suspend(project)
    answer = api.get("/v1/auth/me", token=key, headers={"Origin": "https://app.example.com"})
    assert is_refused(answer)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.com"


def test_repeated_request_is_refused_while_suspended_and_replayed_after(make_tracker: Any) -> None:  # noqa: F811
    tracker: Tracker = make_tracker(DOCUMENT)
    how = {"headers": {"Idempotency-Key": "once"}}
    row = {"name": "Home", "owner_id": tracker.users["alice"]}
    first = tracker.post("key", "/rows/lists", row, **how)
    assert first.status == 201
    suspend(tracker.project)
    assert is_refused(tracker.post("key", "/rows/lists", row, **how))
    resume(tracker.project)
    assert tracker.post("key", "/rows/lists", row, **how).json == first.json
    assert len(tracker.get("key", "/rows/lists").json["data"]) == 1


# ── How soon, and what it costs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("redis", ["there", "away"])
def test_it_holds_from_the_next_request_on_and_so_does_its_end(
    api: Api, alice: User, make_account: Make, project: Project, production: Environment, settings: Any, redis: str
) -> None:
    tokens = [
        (key_for(production.pk, "rows:read"), None),
        (token_of(make_account("uma", pool_id=production.pk), production.pk), None),
    ]
    account = token_of(alice)
    flush_redis()  # the marks of what was just made, so that everything is cached
    if redis == "away":
        settings.REDIS_URL = AWAY
    for _ in range(2):
        for token, named in tokens:
            assert api.get("/v1/auth/me", token=token, environment=named).status == 200
        assert api.get("/v1/functions", token=account, environment=production.pk).status == 200
        suspend(project)
        for token, named in tokens:
            assert is_refused(api.get("/v1/auth/me", token=token, environment=named))
        assert is_refused(api.get("/v1/functions", token=account, environment=production.pk))
        resume(project)


def test_suspension_without_redis_takes_effect_when_the_cache_expires(
    api: Api, project: Project, production: Environment
) -> None:
    """The bound of every mark that was lost: RECORD_TTL, when what it should have covered is read anew."""
    key = key_for(production.pk, "rows:read")
    flush_redis()
    assert api.get("/v1/auth/me", token=key).status == 200
    assert api.get("/v1/auth/me", token=key).status == 200  # filled by this one's trip
    with override_settings(REDIS_URL=AWAY):
        suspend(project)
    flush_redis()  # a minute later
    assert is_refused(api.get("/v1/auth/me", token=key))


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_call_costs_what_it_did(
    api: Api, project: Project, production: Environment, trips: RoundTrips, is_suspended: bool
) -> None:
    """One trip to Redis and nothing else before the action, suspended or not (tests/projects/test_callers.py has the
    rest): calls to a suspended project cause no work on the platform."""
    key = key_for(production.pk, "rows:read")
    if is_suspended:
        suspend(project)
    flush_redis()
    for _ in range(2):
        api.get("/v1/auth/me", token=key)
    trips.reset()
    answer = api.get("/v1/auth/me", token=key)
    assert (is_refused(answer), trips.counts) == (is_suspended, (1, 0)), trips.statements


# ── Verbs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_twice_is_once_and_a_second_reason_takes_the_place_of_the_first(project: Project) -> None:
    since = suspend(project).suspended_at
    assert since is not None
    assert suspend(project).suspended_at == since
    assert suspend(project, "Fraud").suspended_at == since, "since when does not change"
    assert Project.objects.get().suspension_reason == "Fraud"
    assert resume(project) is True
    assert resume(project) is False
    project.refresh_from_db()
    assert (project.suspended_at, project.suspension_reason, project.state) == (None, None, "live")
    assert project.resumed_at is not None
    assert trail(project) == [("suspended", WHY), ("suspended", "Fraud"), ("resumed", "Fraud")]


def test_two_operators_at_once(project: Project) -> None:
    reasons = [f"reason {number}" for number in range(8)]
    made = at_once(8, lambda number: suspend(project, reasons[number]))  # type: ignore[arg-type, return-value]
    assert len({each.suspended_at for each in made}) == 1, "it begins once"
    project.refresh_from_db()
    told = trail(project)
    assert sorted(reason or "" for _, reason in told) == reasons, "each is in the audit log"
    assert project.suspension_reason == told[-1][1]
    lifted = at_once(8, lambda number: resume(project))  # type: ignore[arg-type, return-value]
    assert sorted(bool(each) for each in lifted) == [False] * 7 + [True]
    assert [verb for verb, _ in trail(project)].count("resumed") == 1


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, "two\nlines", "a\x1b[2Jscreen", "nul\0"])
def test_the_reason_is_a_line_of_words(project: Project, reason: str) -> None:
    with pytest.raises(ValidationFailed):
        suspend(project, reason)
    assert Project.objects.get().suspended_at is None
    assert trail(project) == []


def test_the_database_knows_no_suspension_without_a_reason(project: Project) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():
        Project.objects.update(suspended_at=F("created_at"))


def test_who_rolls_back_suspends_nothing(api: Api, project: Project, production: Environment) -> None:
    key = key_for(production.pk, "rows:read")
    with transaction.atomic():
        suspend(project)
        transaction.set_rollback(True)
    assert api.get("/v1/auth/me", token=key).status == 200
    assert suspension.suspended_in("us-east-1") == []


def test_a_request_in_flight_ends_as_it_began(make_tracker: Any) -> None:  # noqa: F811
    """It was admitted before: it waits here for a locked row, and then continues as requested."""
    tracker: Tracker = make_tracker(DOCUMENT)
    row = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    using = tracker.project.cluster
    answers: list[Answer] = []

    def change() -> None:
        try:
            with connections[using].cursor() as cursor:
                cursor.execute("SET lock_timeout = 0; SET statement_timeout = 0")  # it has all the time that it needs
            answers.append(tracker.patch("key", f"/rows/lists/{row}", {"name": "Changed"}))
        finally:
            connections.close_all()

    request = threading.Thread(target=change)
    with row_access(), transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(sql.SQL("SELECT 1 FROM {}.lists FOR UPDATE").format(sql.Identifier(tracker.environment_id)))
        request.start()
        wait_for("the request to wait", lambda: waiting_for_locks(using) >= 1)
        suspend(tracker.project)
    request.join(60)
    (answer,) = answers
    assert (answer.status, answer.json["name"]) == (200, "Changed")
    assert is_refused(tracker.get("key", f"/rows/lists/{row}"))


def test_a_suspended_project_is_deleted_as_any_other(api: Api, alice: User, project: Project) -> None:
    suspend(project)
    assert api.delete(f"/v1/projects/{project.pk}", token=token_of(alice)).status == 204
    assert schemas_in("us-east-1") == []
    assert not Project.objects.exists()
    with pytest.raises(NoSuchProject):
        suspend(project)
    with pytest.raises(NoSuchProject):
        resume(project)
    assert suspension.suspended_in("us-east-1") == []


def test_a_branch_under_way_is_finished_and_waits_with_the_others(
    api: Api, alice: User, project: Project, production: Environment, settings: Any
) -> None:
    settings.BRANCH_AT_ONCE_BYTES = -1  # every copy is a worker's
    body = {"name": "preview", "data": "full"}
    made = api.post(f"/v1/projects/{project.pk}/environments", token=token_of(alice), json=body)
    assert (made.status, made.json["status"]) == (201, "creating")
    suspend(project)
    tasks.finish_branches()
    assert Environment.objects.get(pk=made.json["id"]).status == "ready"
    key = key_for(made.json["id"], "rows:read")
    assert is_refused(api.get("/v1/auth/me", token=key))
    assert made.json["id"] in suspension.suspended_in("us-east-1")
    resume(project)
    assert api.get("/v1/auth/me", token=key).status == 200


def test_while_the_control_database_is_away_workers_go_by_what_it_said(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspend(project)
    known = suspension.suspended_in("us-east-1")
    assert sorted(known) == sorted(project.environments.values_list("pk", flat=True))
    monkeypatch.setattr(suspension, "FRESH_SECONDS", 0.0)

    with monkeypatch.context() as held:
        held.setattr(suspension, "MAX_WAIT_SECONDS", 0.0)  # no answer comes so soon
        assert suspension.suspended_in("us-east-1") == known
        suspension.evict("us-east-1")
        assert suspension.suspended_in("us-east-1") == known, "a process that it never told goes by what others heard"
        suspension.evict("us-east-1")
        with override_settings(REDIS_URL=AWAY):
            assert suspension.suspended_in("us-east-1") == [], "without notifications, no request waits"
        suspension.evict("us-east-1")
        assert suspension.suspended_in("us-east-1") == known
        with pytest.raises(OperationalError):
            suspension.suspended_or_recently_resumed("us-east-1", timedelta(days=7))
    suspension.evict("us-east-1")
    assert suspension.suspended_in("us-east-1") == known
    resume(project)
    assert suspension.suspended_in("us-east-1") == []
    suspension.evict("us-east-1")
    monkeypatch.setattr(suspension, "MAX_WAIT_SECONDS", 0.0)
    assert suspension.suspended_in("us-east-1") == [], "that no project is suspended any more is cached as well"


def test_who_was_not_answered_goes_by_what_is_known_before_asking_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspend(project)
    known = suspension.suspended_in("us-east-1")
    monkeypatch.setattr(suspension, "MAX_WAIT_SECONDS", 0.3)
    monkeypatch.setattr(suspension, "FRESH_SECONDS", 0.3)
    control = connections["default"].settings_dict["NAME"]
    with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"])), control) as busy, busy.transaction():
        busy.execute("LOCK TABLE projects_project")
        suspension._known["us-east-1"] = dataclasses.replace(suspension._known["us-east-1"], asked_at=-math.inf)
        assert suspension.suspended_in("us-east-1") == known
        assert suspension.suspended_in("us-east-1") == known
        asking = [thread for thread in threading.enumerate() if thread.name == "suspensions"]
        assert len(asking) == 1
    asking[0].join(30)


def test_what_may_not_expire_is_known_for_as_long_as_its_owner_needs(project: Project, alice: User) -> None:
    make_project(alice, "Other")
    ours = sorted(project.environments.values_list("pk", flat=True))
    week = timedelta(days=7)
    assert suspension.suspended_or_recently_resumed("us-east-1", week) == []
    suspend(project)
    assert sorted(suspension.suspended_or_recently_resumed("us-east-1", week)) == ours
    resume(project)
    assert sorted(suspension.suspended_or_recently_resumed("us-east-1", week)) == ours
    Project.objects.update(resumed_at=F("resumed_at") - week)
    assert suspension.suspended_or_recently_resumed("us-east-1", week) == []


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_commands_say_what_they_did(project: Project) -> None:
    assert f"{project.pk} is suspended since" in run("suspend_project", project.pk, reason=WHY)
    listed = run("list_projects")
    assert "  suspended  " in listed
    assert repr(WHY) in listed
    assert run("resume_project", project.pk) == f"{project.pk} is no longer suspended.\n"
    assert run("resume_project", project.pk) == f"{project.pk} was not suspended.\n"
    assert "suspended" not in run("list_projects")
    assert AuditEntry.objects.filter(action="project.suspended", actor_kind="system").count() == 1


def test_the_commands_say_what_is_wrong(project: Project) -> None:
    with pytest.raises(CommandError, match="no project prj_x"):
        run("suspend_project", "prj_x", reason=WHY)
    with pytest.raises(CommandError, match="no project prj_x"):
        run("resume_project", "prj_x")
    with pytest.raises(CommandError, match="1 to 500"):
        run("suspend_project", project.pk, reason="\n")
    with pytest.raises(CommandError, match="--reason"):
        call_command("suspend_project", project.pk)


def test_operators_issue_and_revoke_keys_meanwhile(project: Project, production: Environment) -> None:
    suspend(project)
    key_for(production.pk, "rows:read")
    assert ServerKey.objects.filter(environment_id=production.pk).count() == 1


def test_only_owners_are_notified_by_email(make_account: Make, alice: User, project: Project, settings: Any) -> None:
    User.objects.filter(pk=alice.pk).update(email_verified_at=Now())
    others = {
        "second": ("owner", True), "developer": ("developer", True), "unproven": ("owner", False),
        "disabled": ("owner", True),
    }  # fmt: skip
    for name, (role, is_verified) in others.items():
        account = make_account(name, is_email_verified=is_verified)
        Member.objects.create(project=project, user=account, role=role)
    User.objects.filter(email="disabled@example.com").update(disabled_at=Now())
    with open_postbox() as postbox:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", postbox.port
        suspend(project, "The bill <of May> is open")
        suspend(project, "Another reason")
        assert email_outbox.send_due() == 2
        assert {message["To"] for message in postbox.messages} == {"alice@example.com", "second@example.com"}
        told = postbox.last("alice@example.com")
        assert told["Subject"] == f"Your project {project.pk} at the backend platform is suspended"
        assert "The bill <of May> is open" in text_of(told)
        assert "The bill &lt;of May&gt; is open" in html_of(told)
        resume(project)
        assert not resume(project)
        assert email_outbox.send_due() == 2
        told = postbox.last("second@example.com")
        assert told["Subject"] == f"Your project {project.pk} at the backend platform is no longer suspended"
        assert len(postbox.messages) == 4


def test_what_was_not_sent_in_time_is_not_sent_of_an_earlier_suspension(alice: User, project: Project) -> None:
    User.objects.filter(pk=alice.pk).update(email_verified_at=Now())
    suspend(project)
    resume(project)
    suspend(project, "Once more")
    [waiting] = AccountEmail.objects.all()
    assert (waiting.kind, waiting.details["reason"]) == ("project_suspended", "Once more")


def test_no_email_of_a_suspension_that_did_not_happen(alice: User, project: Project) -> None:
    User.objects.filter(pk=alice.pk).update(email_verified_at=Now())
    with transaction.atomic():
        suspend(project)
        transaction.set_rollback(True)
    assert not AccountEmail.objects.exists()
