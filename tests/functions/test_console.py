"""The console's pages of functions and runs, through Django's own test client, with runs that really ran."""

import html
import re
import time
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import audit
from accounts.models import AuditEntry
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from accounts.users import service as user_service
from functions.console import highlight
from functions.models import Function, Run
from functions.triggers import events as event_triggers
from functions.triggers import schedules
from rows.models import EventInterest, OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.console import (
    FUNCTIONS,
    RUNS,
    of,
    page,
)
from tests.support.console import console as console
from tests.support.functions import SUM, deploy, invoke
from tests.support.timing import within
from webhooks.delivery.relay import relay_batch

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

FAILS = """
export default ({who}: {who: string}) => {
  console.log(`greeting ${who}`);
  console.error("<script>alert(1)</script>");
  throw new RangeError("no <b>greeting</b> today");
};
"""


def press(console: Client, path: str, verb: str, **more: str) -> str:
    return html.unescape(console.post(path, {"verb": verb, **more}, follow=True).content.decode())


def the_function(tracker: Tracker) -> Function:
    return Function.objects.using(tracker.project.cluster).get()


def test_only_staff_see_these_pages(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    path = of(the_function(tracker).pk, FUNCTIONS)
    owner = Client()
    owner.force_login(tracker.project.memberships.get(role="owner").user)
    for client in (Client(), owner):
        for each in (path, f"{FUNCTIONS}?environment={tracker.environment_id}", RUNS):
            assert client.get(each).status_code == 302
            assert client.post(each, {"verb": "delete", "confirmed": "1", "typed": "sum"}).status_code == 302
    assert the_function(tracker).name == "sum"


def test_failed_run_shows_log_error_and_sandbox_layers(
    console: Client,
    tracker: Tracker,
) -> None:
    deploy(tracker, "greet", FAILS)
    run_id = invoke(tracker, "greet", {"who": "ada"}).json["run_id"]
    path = of(run_id, RUNS)
    raw = console.get(path).content.decode()
    assert "<script>alert" not in raw
    assert "<b>greeting" not in raw
    shown = html.unescape(raw)
    for text in ("greeting ada", "<script>alert(1)</script>", "RangeError: no <b>greeting</b> today", "user_error",
                 '"who": "ada"', "no_new_privileges", "None: the run failed"):  # fmt: skip
        assert text in shown, text
    entry = AuditEntry.objects.get(action="run.viewed")
    assert (entry.target_id, entry.actor_kind, entry.environment_id) == (run_id, "staff", tracker.environment_id)
    listed = page(console, f"{RUNS}?environment={tracker.environment_id}&status=failed")
    assert path in listed
    assert path not in page(console, f"{RUNS}?environment={tracker.environment_id}&status=succeeded")
    assert console.get(f"{RUNS}?q={run_id}").headers["Location"] == path
    page(console, of("run_01h455vb4pex5vsknk084sn02q", RUNS), 404)
    assert "no longer possible" in press(console, path, "cancel", confirmed="1")  # it has ended


def test_a_function_shows_its_versions_their_source_and_no_secret(
    console: Client,
    tracker: Tracker,
) -> None:
    deploy(tracker, "sum", SUM, secrets={"API_TOKEN": "very-secret-value"})
    deploy(tracker, "sum", SUM.replace("a + b", "a - b") + "\n// </td><script>alert(1)</script>")
    path = of(the_function(tracker).pk, FUNCTIONS)
    raw = console.get(path).content.decode()
    assert "<script>alert(1)" not in raw
    assert "very-secret-value" not in raw
    assert "API_TOKEN" in raw
    assert 'class="kd"' in raw or 'class="k"' in raw  # the words of the language have their colour
    shown = page(console, f"{path}?version=1")
    assert "Source of version 1" in shown
    assert "version 2 (active)" in shown
    assert "Version 1 answers" not in press(console, path, "activate", version="1")
    assert the_function(tracker).active_version == 2  # asked, not done
    assert "Version 1 answers" in press(console, path, "activate", version="1", confirmed="1")
    assert the_function(tracker).active_version == 1
    assert invoke(tracker, "sum", {"a": 5, "b": 2}).json["output"] == {"sum": 7}
    assert "no such version" in press(console, path, "activate", version="9", confirmed="1")
    assert AuditEntry.objects.get(action="function.activated").actor_kind == "staff"


def test_a_run_with_an_output_deeper_than_most_readers_go_has_its_page(
    console: Client,
    tracker: Tracker,
) -> None:
    deploy(
        tracker,
        "deep",
        "export default () => { let deep = 1; for (let i = 0; i < 300; i++) deep = [deep]; return deep }",
    )
    run_id = invoke(tracker, "deep").json["run_id"]
    assert "[\n  [\n    [" in page(console, of(run_id, RUNS))


def test_sources_made_to_be_slow_to_compare_are_not_compared(console: Client, tracker: Tracker) -> None:
    for step in (1, 7):
        numbers = "\n".join(f"//{number * step % 200}" for number in range(30_000))
        assert deploy(tracker, "long", f"{SUM}\n{numbers}").status in (200, 201)
    shown = page(console, f"{of(the_function(tracker).pk, FUNCTIONS)}?version=1")
    assert "Not compared: 30,001 lines and 30,001 lines" in shown


def test_deleting_wants_the_name_typed(console: Client, tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    path = of(the_function(tracker).pk, FUNCTIONS)
    press(console, path, "delete", confirmed="1", typed="Sum")
    assert the_function(tracker).name == "sum"
    assert "sum is deleted" in press(console, path, "delete", confirmed="1", typed="sum")
    assert not Function.objects.using(tracker.project.cluster).exists()
    page(console, path, 404)


def test_a_queued_run_is_cancelled_after_a_question(console: Client, tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    queued = tracker.post("owner", "/functions/sum/invoke", {"async": True}).json["run_id"]
    path = of(queued, RUNS)
    assert "stopped at once" in press(console, path, "cancel")
    runs = Run.objects.using(tracker.project.cluster)
    assert runs.get(pk=queued).phase == "queued"
    assert "is being cancelled" in press(console, path, "cancel", confirmed="1")
    assert runs.get(pk=queued).status == "failed"
    assert AuditEntry.objects.get(action="run.cancelled").actor_kind == "staff"


def test_all_runs_of_an_environment_are_paged_in_order_at_a_fixed_cost(
    console: Client,
    tracker: Tracker,
) -> None:
    for name in ("one", "two"):
        deploy(tracker, name, SUM)
    using = tracker.project.cluster
    functions = list(Function.objects.using(using).order_by("name"))

    def add(count: int) -> None:
        Run.objects.using(using).bulk_create(
            Run(
                environment_id=tracker.environment_id, function=functions[number % 2], version=1, phase="ended",
                status="failed" if number % 5 == 0 else "succeeded", is_async=False, input="{}", caller_kind="key",
                caller_id="key_x",
            )
            for number in range(count)
        )  # fmt: skip

    def ids(text: str) -> list[str]:
        return list(dict.fromkeys(re.findall(r"run_[0-9a-z]{26}", text)))

    def statements() -> int:
        page(console, path)
        with CaptureQueriesContext(connections[using]) as captured:
            page(console, path)
        return len(captured)

    path = f"{RUNS}?environment={tracker.environment_id}"
    add(4)
    before = statements()
    add(116)
    assert statements() == before <= 8, "four of them begin, end and plan the search"
    seen: list[str] = []
    text = page(console, path)
    for _ in range(3):
        seen += ids(text)
        following = re.search(r'rel="next" href="\?([^"]+)"', text)
        if following is None:
            break
        text = page(console, f"{RUNS}?{following[1]}")
    wanted = Run.objects.using(using).order_by("-created_at", "-id").values_list("pk", flat=True)
    assert seen == list(wanted)
    failed = page(console, f"{path}&status=failed")
    assert len(ids(failed)) == 25
    assert len(ids(page(console, f"{path}&function=one"))) == 50
    assert "belongs to another list" in page(console, f"{path}&status=failed&cursor=nonsense")


def test_coloured_source_is_the_source() -> None:
    for source in (SUM, FAILS, "", "\n\n  x\n", "<&>\"'`</pre>", "/re[<]gex/.test(`${a}`)", "é漢😀\t\r\n" * 3):
        text = re.sub(r"<[^>]+>", "", highlight.coloured(source))
        assert html.unescape(text).rstrip("\n") == source.replace("\r\n", "\n").rstrip("\n")
    assert "<" not in highlight.coloured("<" * (highlight.MAX_COLOURED + 1))
    assert highlight.line_numbers("a\nb\n") == "1\n2\n3"


@pytest.mark.parametrize("hostile", [".", "'\\", "(/*a"])
def test_a_source_that_a_lexer_cannot_finish_is_shown_plain(hostile: str) -> None:
    source = hostile * (highlight.MAX_COLOURED // len(hostile))
    began = time.thread_time()
    assert html.unescape(highlight.coloured(source)) == source
    assert time.thread_time() - began < within(2)


def test_unknown_environments_and_regions_that_hold_nothing(console: Client, tracker: Any) -> None:
    assert "None deployed yet" in page(console, f"{FUNCTIONS}?environment={tracker.environment_id}")
    assert "None here" in page(console, f"{RUNS}?environment={tracker.environment_id}")
    page(console, f"{FUNCTIONS}?environment=env_x", 404)
    page(console, of("fn_01h455vb4pex5vsknk084sn02q", FUNCTIONS), 404)
    page(console, of("nonsense", FUNCTIONS), 404)


def test_a_schedule_is_shown_with_its_next_time_and_whose_it_is(console: Client, tracker: Tracker) -> None:
    using = tracker.project.cluster
    owner = tracker.project.memberships.get(role="owner").user_id
    deploy(tracker, "sum", SUM, schedule="30 4 * * *")
    path = of(the_function(tracker).pk, FUNCTIONS)
    shown = page(console, path)
    assert "<code>30 4 * * *</code>" in shown
    assert "04:30 UTC, as account" in shown
    assert owner in shown
    called = invoke(tracker, "sum", {"a": 1, "b": 2}).json["run_id"]
    Function.objects.using(using).update(next_run_at="2026-01-01T04:30:00Z")
    assert schedules.queue_due(using) == 1
    made = Run.objects.using(using).get(trigger="schedule").pk
    assert "by the function's schedule, queued" in page(console, of(made, RUNS))
    assert "by the function's schedule" not in page(console, of(called, RUNS))
    for chosen in (f"environment={tracker.environment_id}", f"environment={tracker.environment_id}&function=sum"):
        runs = {kind: page(console, f"{RUNS}?{chosen}&trigger={kind}") for kind in ("", "schedule", "call", "no")}
        assert {kind: (made in text, called in text) for kind, text in runs.items()} == {
            "": (True, True), "schedule": (True, False), "call": (False, True), "no": (True, True),
        }  # fmt: skip
    Function.objects.using(using).update(next_run_at="2026-01-01T04:30:00Z")
    assert schedules.queue_due(using) == 0
    assert "passed over at 2026-01-01 04:30:00 UTC" in page(console, path)
    # An operator who reverts to another version cannot be the run-as identity of a run.
    deploy(tracker, "sum", SUM + "\n")
    press(console, path, "activate", version="1", confirmed="1")
    function = the_function(tracker)
    assert (function.active_version, function.scheduled_id, function.schedule_stopped) == (1, owner, None)
    assert "until its schedule is set again" in press(console, path, "stop_schedule")
    assert the_function(tracker).next_run_at is not None, "it asks first"
    press(console, path, "stop_schedule", confirmed="1")
    assert "stopped: operator" in page(console, path)
    assert "Stop the schedule" not in page(console, path)
    assert "stopped" in page(console, f"{FUNCTIONS}?environment={tracker.environment_id}")
    entry = AuditEntry.objects.get(action="function.schedule_stopped")
    assert (entry.actor_kind, entry.detail["reason"]) == ("staff", "operator")
    Function.objects.using(using).update(schedule_stopped="caller_gone")
    press(console, path, "stop_schedule", confirmed="1")
    assert AuditEntry.objects.filter(action="function.schedule_stopped").count() == 1
    assert the_function(tracker).schedule_stopped == "caller_gone"


def test_inbound_addresses_are_shown_and_revoked_by_operators_alone(console: Client, tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    deploy(tracker, "plain", SUM)
    made = [
        tracker.post("owner", "/functions/sum/inbound", {"label": label}).json
        for label in ("Stripe </td><script>alert(1)</script>", "GitHub")
    ]
    token = made[0]["url"].rpartition("/")[2]
    assert tracker.api.post(f"/v1/inbound/{token}", json={}).status == 202
    sums = Function.objects.using(tracker.project.cluster).get(name="sum")
    plain = Function.objects.using(tracker.project.cluster).get(name="plain")
    path = of(sums.pk, FUNCTIONS)
    raw = console.get(path).content.decode()
    assert "<script>alert(1)" not in raw
    assert token not in raw
    shown = html.unescape(raw)
    for text in (made[0]["id"], made[1]["id"], "GitHub", "at once", '<td data-label="Requests">1</td>', "never"):
        assert text in shown, text
    assert "Inbound endpoints" not in page(console, of(plain.pk, FUNCTIONS))
    run = Run.objects.using(tracker.project.cluster).get(trigger="inbound")
    assert "by an inbound endpoint" in page(console, of(run.pk, RUNS))
    listed = f"{RUNS}?environment={tracker.environment_id}&function=sum"
    assert of(run.pk, RUNS) in page(console, f"{listed}&trigger=inbound")
    assert of(run.pk, RUNS) not in page(console, f"{listed}&trigger=call")

    support = Client()
    user = user_service.create_user(
        pool_id=None, email="sue@example.com", password=None, is_staff=True, actor=audit.SYSTEM
    )
    support.force_login(roles.set_role(user, StaffRole.SUPPORT, actor=audit.SYSTEM))
    seen = support.get(path).content.decode()
    assert made[1]["id"] in seen
    assert "revoke_address" not in seen
    posted = {"verb": "revoke_address", "address": made[1]["id"], "confirmed": "1"}
    assert support.post(path, posted).status_code == 403

    assert "is revoked" not in press(console, path, "revoke_address", address=made[0]["id"])  # asked, not done
    other = of(plain.pk, FUNCTIONS)
    assert "no such inbound endpoint" in press(
        console, other, "revoke_address", address=made[0]["id"], confirmed="1"
    ), "it is another function's"
    assert tracker.api.post(f"/v1/inbound/{token}", json={}).status == 202
    assert "is revoked" in press(console, path, "revoke_address", address=made[0]["id"], confirmed="1")
    assert tracker.api.post(f"/v1/inbound/{token}", json={}).status == 404
    assert [each["id"] for each in tracker.get("owner", "/functions/sum/inbound").json["data"]] == [made[1]["id"]]
    assert AuditEntry.objects.get(action="function.inbound_revoked").actor_kind == "staff"


def test_events_are_shown_with_whose_they_are_and_can_be_stopped(console: Client, tracker: Tracker) -> None:
    using = tracker.project.cluster
    owner = tracker.project.memberships.get(role="owner").user_id
    deploy(tracker, "sum", SUM, on=["lists.insert", "tasks.*"])
    path = of(the_function(tracker).pk, FUNCTIONS)
    shown = page(console, path)
    assert "<code>lists.insert</code>, <code>tasks.*</code>" in shown
    assert "as account" in shown
    assert owner in shown
    assert "<code>tasks.*</code>" in page(console, f"{FUNCTIONS}?environment={tracker.environment_id}")
    called = invoke(tracker, "sum", {"a": 1, "b": 2}).json["run_id"]
    assert tracker.post("key", "/rows/lists", {"name": "x", "owner_id": tracker.users["alice"]}).status == 201
    relay_batch(using)
    waits = page(console, f"/admin/waiting/{using}/")
    assert OutboxEvent.objects.using(using).get(type="lists.insert").event_id in waits
    assert "each event has its runs" not in waits
    assert event_triggers.queue(using) == 1
    assert "each event has its runs" in page(console, f"/admin/waiting/{using}/")
    made = Run.objects.using(using).get(trigger="event")
    text = page(console, of(made.pk, RUNS))
    assert "on an event, queued" in text
    assert f'?q={made.event_id}"' in text
    assert "on an event" not in page(console, of(called, RUNS))
    for chosen in (f"environment={tracker.environment_id}", f"environment={tracker.environment_id}&function=sum"):
        listed = page(console, f"{RUNS}?{chosen}&trigger=event")
        assert (made.pk in listed, called in listed) == (True, False)
    # An operator who reverts to another version cannot be the run-as identity of a run.
    deploy(tracker, "sum", SUM + "\n")
    press(console, path, "activate", version="1", confirmed="1")
    function = the_function(tracker)
    assert (function.active_version, function.events_id, function.events_stopped) == (1, owner, None)
    assert "until its events are set again" in press(console, path, "stop_events")
    assert the_function(tracker).events_stopped is None, "it asks first"
    press(console, path, "stop_events", confirmed="1")
    assert "stopped: operator" in page(console, path)
    assert "Stop its events" not in page(console, path)
    assert not EventInterest.objects.using(using).exists()
    entry = AuditEntry.objects.get(action="function.events_stopped")
    assert (entry.actor_kind, entry.detail["reason"]) == ("staff", "operator")
    press(console, path, "stop_events", confirmed="1")
    assert AuditEntry.objects.filter(action="function.events_stopped").count() == 1
