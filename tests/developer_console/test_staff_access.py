"""Staff in an environment of others: only with a grant, for an hour, within what it says, and in the owner's sight."""

import time
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client, RequestFactory
from django_otp.oath import TOTP

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.staff import roles, second_factor
from accounts.staff.roles import StaffRole
from accounts.users import service as user_service
from platform_site.developer_console.api_calls import ApiClient
from platform_site.developer_console.frame import Console
from platform_site.developer_console.session import SignedIn
from platform_site.developer_console.staff import grants as staff
from platform_site.http.errors import ApiError, Forbidden, NotFound, Unauthorized
from platform_site.identity.callers import Caller
from projects import services, staff_access
from projects.directory import access
from projects.models import Member, StaffGrant
from rows.changes import credentials, open_stream
from rows.changes.credentials import SharedCredential
from tests.developer_console.conftest import PASSWORD, Desk, environment_of, give_password, sign_in
from tests.rows.conftest import Tracker
from webhooks.subscriptions import service as webhook_service

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

Hire = Callable[[StaffRole], User]


@pytest.fixture
def hired() -> Hire:
    def make(role: StaffRole) -> User:
        user = user_service.create_user(
            pool_id=None, email=f"{role.value}@platform.example", password=None, name="Staff", actor=audit.SYSTEM
        )
        roles.set_role(user, role, actor=audit.SYSTEM)
        return give_password(user)

    return make


def desk_with(user: User, tracker: Tracker, **asked: str) -> Desk:
    """The desk of staff that has asked for access."""
    desk = Desk(sign_in(user), tracker.project.pk, tracker.environment_id)
    values = {"action": "ask", "environment": tracker.environment_id, "reason": "ticket 7", **asked}
    answer = desk.browser.post("/console/staff", values)
    assert answer.status_code == 302, answer.content
    assert answer["Location"] == desk.url()
    return desk


def is_out(desk: Desk, path: str = "") -> bool:
    """Whether the desk is sent back to ask."""
    answer = desk.get(path)
    return answer.status_code == 302 and answer["Location"].startswith(("/console/staff", "/console/sign-in"))


def new_row(desk: Desk) -> Any:
    return desk.browser.post(desk.url("tables/tasks/rows"), {"title": "by staff"}, "application/json")


def test_staff_see_nothing_before_they_say_why(tracker: Tracker, hired: Hire) -> None:
    user = hired(StaffRole.SUPERUSER)
    desk = Desk(sign_in(user), tracker.project.pk, tracker.environment_id)
    answer = desk.get("tables/tasks")
    assert answer["Location"] == f"/console/staff?environment={tracker.environment_id}"
    for reason in ("", "  ", "two\nlines", "x" * 501):
        values = {"action": "ask", "environment": tracker.environment_id, "reason": reason}
        assert desk.browser.post("/console/staff", values).status_code == 422, reason
    for environment in ("", "env_x", "env_00000000000000000000000000"):
        values = {"action": "ask", "environment": environment, "reason": "why"}
        assert desk.browser.post("/console/staff", values).status_code == 404
    assert not StaffGrant.objects.exists()
    assert is_out(desk)


def test_staff_see_no_credential_in_the_url_of_a_webhook(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    url = "https://hooks.example.com/services/T0-hidden?token=hidden"
    hook = tracker.post("owner", "/webhooks", {"url": url, "events": ["tasks.*"], "enabled": False}).json["id"]
    theirs = desk_with(hired(StaffRole.OPERATOR), tracker, may_write="on")
    for path in ("webhooks/", f"webhooks/{hook}", f"webhooks/{hook}/deliveries", "search?q=hooks"):
        assert "T0-hidden" in desk.get(path).content.decode()
        shown = theirs.get(path).content.decode()
        assert "https://hooks.example.com" in shown, path
        assert "T0-hidden" not in shown, path
        assert "token=hidden" not in shown, path


@pytest.mark.exhaustive
def test_a_grant_reads_and_its_owner_sees_it(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    user = hired(StaffRole.SUPPORT)
    theirs = desk_with(user, tracker)
    for path in ("", "tables/tasks", "schema", "functions/", "webhooks/", "logs"):
        page = theirs.get(path)
        assert page.status_code == 200, path
        assert "Staff access, read-only" in page.content.decode()
    for path in ("auth/", "logs/audit", "settings"):
        assert theirs.get(path).status_code == 403, path
    passwords = {"current_password": PASSWORD, "password": "a different horse"}
    assert "The password is changed." in unescape(
        theirs.post("sessions", {"action": "password", **passwords}).content.decode()
    )
    shown = unescape(desk.get("logs/audit").content.decode())
    assert "staff_access.granted" in shown
    assert "user.changed" not in shown, "the affairs of staff are not the project's"
    assert "ticket 7" in shown
    assert user.pk not in shown
    assert "ticket 7" in desk.get("settings").content.decode()
    entry = AuditEntry.objects.get(action="staff_access.granted")
    assert (entry.actor_kind, entry.project_id, entry.environment_id) == (
        "staff", tracker.project.pk, tracker.environment_id,
    )  # fmt: skip
    left = StaffGrant.objects.get().expires_at - entry.at
    assert timedelta(minutes=59) < left <= timedelta(hours=1, seconds=5)


@pytest.mark.exhaustive
def test_a_read_only_grant_writes_nothing(tracker: Tracker, hired: Hire) -> None:
    desk = desk_with(hired(StaffRole.OPERATOR), tracker)
    assert new_row(desk).status_code == 403
    for path, values in (
        ("schema", {"action": "apply", "document": '{"tables": {}}'}),
        ("functions/", {"action": "new", "name": "f", "source": "export default () => 1"}),
        ("webhooks/", {"action": "new", "url": "https://x.example", "events": "row.*"}),
        ("", {"action": "create-key", "preset": "server"}),
        ("branches/", {"action": "create", "name": "b", "from": tracker.environment_id, "data": "none"}),
        ("settings", {"action": "rename", "name": "Mine"}),
        ("settings", {"action": "revoke-staff", "grant": StaffGrant.objects.get().pk}),
    ):
        assert desk.post(path, values).status_code in (400, 403), path
    assert "by staff" not in desk.get("tables/tasks").content.decode()


@pytest.mark.exhaustive
def test_a_writing_grant_is_for_operators_and_stops_at_keys_and_code(tracker: Tracker, hired: Hire) -> None:
    support = Desk(sign_in(hired(StaffRole.SUPPORT)), tracker.project.pk, tracker.environment_id)
    values = {"action": "ask", "environment": tracker.environment_id, "reason": "why", "may_write": "on"}
    assert support.browser.post("/console/staff", values).status_code == 403
    desk = desk_with(hired(StaffRole.OPERATOR), tracker, may_write="on")
    assert "may change rows and the schema" in desk.get().content.decode()
    assert new_row(desk).status_code < 300
    assert "by staff" in desk.get("tables/tasks").content.decode()
    entries = AuditEntry.objects.filter(actor_kind="staff", action="staff_access.granted")
    assert entries.get().detail["may_write"] is True
    assert desk.post("", {"action": "create-key", "preset": "server"}).status_code == 403
    deploy = {"action": "new", "name": "f", "source": "export default () => 1"}
    assert desk.post("functions/", deploy).status_code == 403


@pytest.mark.exhaustive
def test_a_grant_ends_by_time_by_hand_and_by_the_owner(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    user = hired(StaffRole.SUPPORT)
    theirs = desk_with(user, tracker)
    StaffGrant.objects.update(expires_at=Now())
    assert is_out(theirs, "tables/tasks")
    theirs = desk_with(user, tracker)
    grant = staff_access.active().get()
    theirs.browser.post("/console/staff", {"action": "end", "grant": grant.pk})
    assert is_out(theirs)
    theirs = desk_with(user, tracker)
    grant = staff_access.active().get()
    assert desk.post("settings", {"action": "revoke-staff", "grant": grant.pk}).status_code == 200
    assert is_out(theirs)
    assert desk.post("settings", {"action": "revoke-staff", "grant": grant.pk}).status_code == 404
    assert AuditEntry.objects.filter(action="staff_access.revoked", project_id=tracker.project.pk).count() == 2


def test_a_stream_lives_as_long_as_its_grant(tracker: Tracker, hired: Hire, monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[SharedCredential] = []
    opened = open_stream.open_stream

    def open_and_keep(*asked: Any) -> Any:
        streams.append(asked[-1])
        return opened(*asked)

    monkeypatch.setattr(open_stream, "open_stream", open_and_keep)
    monkeypatch.setattr(credentials, "AUTHENTICATE_SECONDS", 0)
    stream = desk_with(hired(StaffRole.SUPPORT), tracker).post("tables/tasks/live", {})
    assert stream.status_code == 200
    (credential,) = streams
    assert credential.caller().kind == "staff"
    StaffGrant.objects.update(revoked_at=Now())
    with pytest.raises(Unauthorized, match="has ended"):
        credential.caller()
    stream.queue.close()
    stream.close()


def test_a_grant_is_for_one_environment_and_one_account(tracker: Tracker, hired: Hire) -> None:
    desk = desk_with(hired(StaffRole.SUPPORT), tracker)
    other = environment_of(tracker.project, "production")
    if other.pk == tracker.environment_id:
        other = environment_of(tracker.project, "development")
    there = Desk(desk.browser, tracker.project.pk, other.pk)
    assert is_out(there, "tables/")
    assert desk.get("branches/merge", data={"from": other.pk}).status_code in (200, 404)
    assert desk.post("branches/merge", {"from": other.pk, "action": "plan"}).status_code == 422  # there is none
    colleague = Desk(sign_in(hired(StaffRole.OPERATOR)), tracker.project.pk, tracker.environment_id)
    assert is_out(colleague)


def test_a_grant_reaches_no_other_environment_by_its_name(tracker: Tracker, hired: Hire) -> None:
    user = hired(StaffRole.SUPPORT)
    made = staff_access.grant(user, tracker.environment_id, reason="a ticket", may_write=False)
    account = Caller("account", user.pk, frozenset())
    caller = staff_access.caller_with(account, made.pk, tracker.environment_id, needs_environment=True)
    for other in tracker.project.environments.exclude(pk=tracker.environment_id):
        with pytest.raises(NotFound):
            staff_access.caller_with(account, made.pk, other.pk, needs_environment=True)
        with pytest.raises(Forbidden):
            access.environment_for(caller, tracker.project.pk, other.pk)


def test_members_do_not_learn_who_of_the_staff_it_was(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    user = hired(StaffRole.OPERATOR)
    desk_with(user, tracker)
    shown = desk.get("logs/timeline").content.decode()
    assert "staff_access.granted" in shown
    assert user.pk not in shown
    assert "Nothing is recorded for this id here." in desk.get("logs/timeline", data={"id": user.pk}).content.decode()


def test_owners_end_no_grants_of_other_projects(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    other = services.create_project(
        account_id=hired(StaffRole.OPERATOR).pk, name="Other", region="us-east-1", plan="free", actor=audit.SYSTEM
    )
    made = staff_access.grant(hired(StaffRole.SUPPORT), other.environments.first().pk, reason="why", may_write=False)
    assert desk.post("settings", {"action": "revoke-staff", "grant": made.pk}).status_code == 404
    with pytest.raises(NotFound):
        staff_access.revoke(made.pk, actor=audit.SYSTEM, project_id=tracker.project.pk)
    assert staff_access.active().count() == 1


@pytest.mark.parametrize("grant", ["sgr_x", "\0"])
def test_what_is_no_id_of_a_grant_ends_none(desk: Desk, hired: Hire, grant: str) -> None:
    assert desk.post("settings", {"action": "revoke-staff", "grant": grant}).status_code == 404
    for role, status in ((StaffRole.SUPPORT, 302), (StaffRole.OPERATOR, 404)):
        sent = sign_in(hired(role)).post("/console/staff", {"action": "end", "grant": grant})
        assert sent.status_code == status


@pytest.mark.parametrize("change", ["role", "disabled", "weaker"])
def test_a_grant_ends_with_the_role(tracker: Tracker, hired: Hire, change: str) -> None:
    user = hired(StaffRole.OPERATOR)
    desk = desk_with(user, tracker, may_write="on")
    assert desk.get().status_code == 200
    if change == "disabled":
        user_service.change_user(user, actor=audit.SYSTEM, is_disabled=True)
    else:
        roles.set_role(user, StaffRole.SUPPORT if change == "weaker" else None, actor=audit.SYSTEM)
    answer = desk.get()
    assert answer.status_code == 404 or is_out(desk)


def test_accounts_that_are_no_staff_get_no_access(tracker: Tracker, hired: Hire) -> None:
    user = hired(StaffRole.SUPPORT)
    made = staff_access.grant(user, tracker.environment_id, reason="why", may_write=False)
    stranger = user_service.create_user(
        pool_id=None, email="stranger@x.example", password=None, name="S", actor=audit.SYSTEM
    )
    desk = Desk(sign_in(give_password(stranger)), tracker.project.pk, tracker.environment_id)
    assert desk.browser.get("/console/staff").status_code == 403
    values = {"action": "ask", "environment": tracker.environment_id, "reason": "let me in"}
    assert desk.browser.post("/console/staff", values).status_code == 403
    assert desk.browser.post("/console/staff", {"action": "end", "grant": made.pk}).status_code == 403
    assert desk.get().status_code == 404
    assert staff_access.active().count() == 1


def test_the_tokens_of_staff_reach_nothing_outside_the_console(tracker: Tracker, hired: Hire) -> None:
    user = hired(StaffRole.SUPERUSER)
    desk_with(user, tracker, may_write="on")
    made = Client().post(
        "/v1/auth/token",
        {"grant_type": "password", "email": user.email, "password": PASSWORD},
        content_type="application/json",
    )
    headers = {"Authorization": f"Bearer {made.json()['access_token']}", "X-Environment": tracker.environment_id}
    assert Client().get("/v1/rows/tasks", headers=headers).status_code == 404
    assert Client().get(f"/v1/projects/{tracker.project.pk}", headers=headers).status_code == 404


def test_a_second_factor_counts_as_in_admin(tracker: Tracker, hired: Hire, settings: Any) -> None:
    user = hired(StaffRole.SUPPORT)
    desk = desk_with(user, tracker)
    settings.CONSOLE_REQUIRE_TOTP = True
    assert desk.get().status_code == 404
    assert desk.browser.get("/console/staff").status_code == 403
    settings.CONSOLE_REQUIRE_TOTP = False
    assert desk.get().status_code == 200
    device = second_factor.begin_enrolment(user)
    totp = TOTP(device.key)
    totp.time = time.time() - 30
    second_factor.confirm_enrolment(user, f"{totp.token():06d}")
    assert desk.get().status_code == 404  # this session did not show it
    browser = Client()
    browser.post("/console/sign-in", {"email": user.email, "password": PASSWORD})
    totp.time = time.time()
    assert browser.post("/console/sign-in/code", {"code": f"{totp.token():06d}"}).status_code == 302
    verified = Desk(browser, desk.project_id, desk.environment_id)
    assert verified.get().status_code == 200
    second_factor.disable(user, actor=audit.SYSTEM)  # it was stolen
    replaced = second_factor.begin_enrolment(user)
    totp = TOTP(replaced.key)
    totp.time = time.time()
    second_factor.confirm_enrolment(user, f"{totp.token():06d}")
    assert verified.get().status_code == 404
    assert browser.get("/console/staff").status_code == 403


def test_staff_see_no_emails_of_members(tracker: Tracker, desk: Desk, rf: RequestFactory) -> None:
    """Whose list the API refuses them: schema versions and schedules name their authors by ids alone."""
    members = Member.objects.filter(project=tracker.project, user__isnull=False)
    emails = dict(members.values_list("user_id", "user__email"))
    assert emails
    for grant, expected in ((None, emails), (StaffGrant(), {})):
        client = ApiClient(rf.get("/"), SignedIn("usr_x", "ses_x", 0, 0), grant)
        console = Console(rf.get("/"), client, "schema", {"id": tracker.project.pk}, {}, {})
        assert console.emails_of(emails) == expected


def test_a_session_that_has_ended_asks_for_no_access(tracker: Tracker, hired: Hire) -> None:
    """The cookie is still valid: someone may have copied it."""
    user = hired(StaffRole.SUPPORT)
    desk = desk_with(user, tracker)
    copied = Client()
    copied.cookies = deepcopy(desk.browser.cookies)
    desk.browser.post("/console/sign-out")
    for method in (copied.get, copied.post):
        answer = method("/console/staff", {"action": "ask", "environment": tracker.environment_id, "reason": "mine"})
        assert answer.status_code == 302
        assert "/console/sign-in" in answer["Location"]
    assert not StaffGrant.objects.filter(reason="mine").exists()


def test_a_suspended_project_is_refused_to_staff_as_to_members(tracker: Tracker, hired: Hire) -> None:
    desk = desk_with(hired(StaffRole.OPERATOR), tracker, may_write="on")
    services.suspend_project(tracker.project.pk, reason="unpaid", actor=audit.SYSTEM)
    assert desk.get("tables/tasks").status_code == 403
    assert new_row(desk).status_code == 403


class Stopped:
    """A function with a run that goes on, a schedule and an event trigger, and a webhook."""

    SLOW = "export default async () => { for (;;) await new Promise((done) => setTimeout(done, 50)); };"

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        settings = {"schedule": "@daily", "on": ["tasks.insert"]}
        assert tracker.call("owner", "PUT", "/functions/slow", json={"source": self.SLOW, **settings}).status < 300
        self.run_id = tracker.post("owner", "/functions/slow/invoke", {"async": True}).json["run_id"]
        values = {"url": "https://example.com/hook", "events": ["tasks.*"]}
        self.webhook_id = tracker.post("owner", "/webhooks", values).json["id"]

    def run(self) -> Any:
        return self.tracker.get("owner", f"/functions/slow/runs/{self.run_id}").json

    def webhook(self) -> Any:
        return self.tracker.get("owner", f"/webhooks/{self.webhook_id}").json

    def function(self) -> Any:
        return self.tracker.get("owner", "/functions/slow").json

    def press(self, desk: Desk) -> list[int]:
        """Every button that stops something."""
        return [
            desk.post(f"functions/slow/runs/{self.run_id}", {"action": "cancel"}).status_code,
            desk.post(f"webhooks/{self.webhook_id}", {"action": "disable"}).status_code,
            desk.post("functions/slow/settings", {"action": "schedule", "schedule": ""}).status_code,
            desk.post("functions/slow/settings", {"action": "events", "on": ""}).status_code,
        ]

    @property
    def is_untouched(self) -> bool:
        function = self.function()
        return bool(
            self.run()["status"] == "running" and self.webhook()["enabled"] and function["next_run_at"]
            and AuditEntry.objects.filter(action__in=STOPS).count() == 0
        )  # fmt: skip


STOPS = ("run.cancelled", "webhook.changed", "function.schedule_stopped", "function.events_stopped")


@pytest.mark.exhaustive
def test_a_writing_grant_stops_what_a_tenant_runs_and_its_owner_sees_it(
    tracker: Tracker, hired: Hire, desk: Desk
) -> None:
    target = Stopped(tracker)
    theirs = desk_with(hired(StaffRole.OPERATOR), tracker, may_write="on")
    assert target.press(theirs) == [200] * 4
    assert target.run()["status"] != "succeeded"
    assert not target.webhook()["enabled"]
    assert target.function()["next_run_at"] is None
    entries = AuditEntry.objects.filter(action__in=STOPS, project_id=tracker.project.pk)
    assert {(each.action, each.actor_kind) for each in entries} == {(action, "staff") for action in STOPS}
    shown = unescape(desk.get("logs/audit").content.decode())
    for action in STOPS:
        assert action in shown
    # Nothing else of these pages is theirs.
    webhook, function = f"webhooks/{target.webhook_id}", "functions/slow/settings"
    for path, values in (
        (webhook, {"action": "enable"}),
        (webhook, {"action": "edit", "url": "https://staff.example/", "events": "*"}),
        (webhook, {"action": "rotate"}),
        (webhook, {"action": "delete"}),
        (function, {"action": "schedule", "schedule": "@hourly"}),
        (function, {"action": "events", "on": "*"}),
        (function, {"action": "secret", "secret_name": "A", "secret_value": "b"}),
        (function, {"action": "delete", "confirm": "slow"}),
    ):
        assert theirs.post(path, values).status_code in (403, 412), values
    assert target.webhook()["url"] == "https://example.com/hook"
    other = "run_01h455vb4pex5vsknk084sn02q"
    assert theirs.post(f"functions/slow/runs/{other}", {"action": "cancel"}).status_code == 404
    assert theirs.post("webhooks/wh_01h455vb4pex5vsknk084sn02q", {"action": "disable"}).status_code == 404


@pytest.mark.exhaustive
def test_no_other_grant_stops_anything(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    target = Stopped(tracker)
    user = hired(StaffRole.OPERATOR)
    reading = desk_with(user, tracker)
    assert target.press(reading) == [403] * 4
    assert target.is_untouched
    writing = desk_with(user, tracker, may_write="on")
    StaffGrant.objects.update(expires_at=Now())
    assert target.press(writing) == [302] * 4
    writing = desk_with(user, tracker, may_write="on")
    desk.post("settings", {"action": "revoke-staff", "grant": staff_access.active().get().pk})
    assert target.press(writing) == [302] * 4
    writing = desk_with(user, tracker, may_write="on")
    roles.set_role(user, StaffRole.SUPPORT, actor=audit.SYSTEM)
    assert target.press(writing) == [302] * 4
    assert target.is_untouched


def test_a_grant_that_ends_during_the_request_stops_nothing(tracker: Tracker, hired: Hire) -> None:
    target = Stopped(tracker)
    user = hired(StaffRole.OPERATOR)
    grant = staff_access.grant(user, tracker.environment_id, reason="why", may_write=True)
    signed_in = SignedIn(user.pk, "ses_x", 0, 0)
    client = ApiClient(RequestFactory().get("/"), signed_in, grant)
    StaffGrant.objects.update(revoked_at=Now())
    with pytest.raises(ApiError, match="has ended"):
        staff.stop(client, webhook_service.change_webhook, target.webhook_id, {"enabled": False})
    assert target.is_untouched


@pytest.mark.exhaustive
def test_another_tenants_webhook_is_not_stopped(tracker: Tracker, hired: Hire, desk: Desk) -> None:
    target = Stopped(tracker)
    other = environment_of(tracker.project, "production")
    if other.pk == tracker.environment_id:
        other = environment_of(tracker.project, "development")
    user = hired(StaffRole.OPERATOR)
    staff_access.grant(user, other.pk, reason="why", may_write=True)
    there = Desk(sign_in(user), tracker.project.pk, other.pk)
    assert [each in (302, 404) for each in target.press(there)] == [True] * 4
    assert target.is_untouched
