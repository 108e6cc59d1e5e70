"""The timeline: any id leads to what happened around it, and to nothing that is a tenant's own."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import AnonymousUser
from django.db import OperationalError, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from functions.models import Function, InboundEndpoint
from platform_site.console import timeline
from platform_site.console.search import search
from platform_site.http.requests import close_request, open_request
from platform_site.identity import ids
from platform_site.request_log import recording
from platform_site.request_log.writer import Writer
from rows.models import CurrentVersion, SchemaVersion
from tests.console.conftest import REGION, SECRET_URL, World
from tests.projects.conftest import key_for
from tests.support.client import Api

REGIONS = ("us-east-1", "eu-west-1", "ap-southeast-1")

pytestmark = pytest.mark.django_db(databases="__all__")


class Story:
    """One request: a key changed a row, which was delivered at the second try, and invoked a function."""

    def __init__(self, world: World, request_id: str) -> None:
        self.request_id = request_id
        token = open_request(request_id)
        try:
            self.audit = audit.record(
                "key.issued", ids.new("key"), actor=audit.SYSTEM, environment_id=world.environment.pk,
                project_id=world.project.pk,
            )  # fmt: skip
        finally:
            close_request(token)
        self.event = world.event(request_id=request_id, subject="tasks/tsk_1")
        self.delivery = world.delivery(self.event, code=500)
        world.attempt(self.delivery, 200, number=2)
        self.run = world.run(request_id=request_id, status="failed", error={"reason": "timeout"})
        self.ids = {self.audit.pk, self.event.event_id, self.delivery.pk, self.run.pk}


@pytest.fixture
def story(world: World) -> Story:
    found = Story(world, ids.new("req"))
    Story(world, ids.new("req"))  # another, which is not shown where the first is meant
    return found


def found(text: str, environment_id: str = "") -> timeline.Timeline:
    return timeline.of(text, environment_id)


def ids_of(shown: timeline.Timeline) -> set[str]:
    return {entry.id for entry in shown.entries if entry.kind not in ("attempt", "request")}


@pytest.mark.parametrize("from_where", ["request", "event", "delivery", "run", "audit"])
def test_from_anywhere_the_whole_story_is_found(story: Story, from_where: str) -> None:
    start = {
        "request": story.request_id, "event": story.event.event_id, "delivery": story.delivery.pk,
        "run": story.run.pk, "audit": story.audit.pk,
    }[from_where]  # fmt: skip
    shown = found(start)
    assert ids_of(shown) == story.ids
    kinds = [entry.kind for entry in shown.entries]
    assert kinds[0] == "request"
    assert sorted(kinds) == ["attempt", "attempt", "audit", "delivery", "event", "request", "run"]
    titles = " | ".join(entry.title for entry in shown.entries)
    assert "attempt 1: answered 500" in titles
    assert "attempt 2: answered 200" in titles
    assert "sum: failed" in titles
    assert not shown.unavailable


def test_details_in_the_audit_log_are_readable(world: World) -> None:
    detail = {"fields": ["filter", "url"], "publishable": True, "operations": ["create table notes"] * 20}
    entry = audit.record("webhook.changed", world.webhook.pk, actor=audit.SYSTEM, **detail)
    (shown,) = [each for each in found(entry.pk).entries if each.id == entry.pk]
    facts = dict(shown.facts)
    assert (facts["fields"], facts["publishable"]) == ("filter, url", "yes")
    assert (len(facts["operations"]), facts["operations"][-1]) == (200, "…"), "it shows that more follows"


@pytest.mark.parametrize("from_where", ["event", "run", "function"])
def test_the_runs_on_an_event_are_part_of_its_story(world: World, from_where: str) -> None:
    """Also of one that no request led to."""
    event = world.event(request_id=None, subject="tasks/tsk_1")
    world.event(request_id=None, subject="tasks/tsk_2")
    run = world.run(trigger="event", event_id=event.event_id)
    other = world.run(trigger="event", event_id=ids.new("evt"))
    shown = found({"event": event.event_id, "run": run.pk, "function": world.function.pk}[from_where])
    if from_where == "function":
        assert {run.pk, other.pk} <= ids_of(shown)
    else:
        assert ids_of(shown) == {event.event_id, run.pk}
    [entry] = [entry for entry in shown.entries if entry.id == run.pk]
    assert ("event", event.event_id) in entry.facts
    assert entry.depth == 2


def an_address(world: World) -> InboundEndpoint:
    return InboundEndpoint.objects.using(REGION).create(
        function=world.function, token_hash=ids.new("inb").encode(), label="a tenant's words", is_async=True,
        runs_as_kind="key", runs_as_id=ids.new("key"), uses=3,
    )  # fmt: skip


def came_by(address: InboundEndpoint, **told: str) -> str:
    return orjson.dumps({"method": "POST", **told, "address_id": address.pk, "body": "a tenant's"}).decode()


def test_inbound_endpoint_links_function_runs_and_audit_log(world: World) -> None:
    address, other = an_address(world), an_address(world)
    run = world.run(trigger="inbound", input=came_by(address), request_id=ids.new("req"))
    claimed = f'"address_id":"{address.pk}"'
    world.run(trigger="inbound", input=came_by(other, query=claimed, headers=claimed))
    world.run(trigger="call", input=came_by(address))
    facts = {"target": world.function.pk, "actor": audit.SYSTEM, "environment_id": world.environment.pk}
    made, ended, _ = (
        audit.record("function.inbound_made", **facts, address=address.pk),
        audit.record("function.inbound_revoked", **facts, address=address.pk),
        audit.record("function.inbound_made", **facts, address=other.pk),
    )
    shown = found(address.pk)
    assert ids_of(shown) == {address.pk, run.pk, made.pk, ended.pk}
    [entry] = [entry for entry in shown.entries if entry.kind == "endpoint"]
    assert entry.title == "sum: inbound endpoint"
    assert ("function", world.function.pk) in entry.facts
    assert ("uses", "3") in entry.facts
    assert ids_of(found(address.pk, world.environment.pk)) == ids_of(shown)
    address_id = address.pk
    address.delete()
    assert ids_of(found(address_id)) == {made.pk, ended.pk}, "what became of one that is revoked"
    assert "No data is stored" in found(ids.new("inb")).hint


@pytest.mark.parametrize(("status", "expected"), [("pending", "2026-01-02 03:04:05"), ("held", None)])
def test_only_what_is_pending_has_a_next_attempt(world: World, status: str, expected: str | None) -> None:
    due = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    delivery = world.delivery(world.event(request_id=ids.new("req")), status=status, next_attempt_at=due)
    (shown,) = [entry for entry in found(delivery.pk).entries if entry.kind == "delivery"]
    assert dict(shown.facts).get("next attempt") == expected


def test_a_request_id_that_a_client_chose_is_found_too(world: World) -> None:
    mine = Story(world, "checkout-42")
    assert ids_of(found("checkout-42")) == mine.ids
    assert ids_of(found("  checkout-42 ")) == mine.ids


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    """Of the request log, without their threads."""
    recording.queues.update({using: recording.Queue() for using in ("default", *REGIONS)})
    yield [Writer(using, queue) for using, queue in recording.queues.items()]
    recording.queues.clear()


def test_a_request_that_changed_nothing_is_found(world: World, writers: list[Writer]) -> None:
    api, key = Api(), key_for(world.environment.pk, "rows:read")
    absent = api.get("/v1/rows/tasks", token=key)
    invalid = api.get("/v1/rows/tasks?limit=no", token=key, headers={"X-Request-Id": "my-own"})
    unknown = api.get("/v1/nothing")
    refused = api.get("/v1/rows/tasks", token="sk_wrong")
    for writer in writers:
        writer.write()
    for answer, title, region in (
        (absent, "GET /v1/rows/{table}: 404", REGION),
        (invalid, "GET /v1/rows/{table}: 422", REGION),
        (unknown, "GET (unknown): 404", ""),
        (refused, "GET /v1/rows/{table}: 401", ""),
    ):
        [entry] = found(answer.headers["X-Request-Id"]).entries
        assert (entry.kind, entry.title, entry.region, entry.tone) == ("request", title, region, "bad")
    assert ("fields", "out_of_range") in found("my-own").entries[0].facts


def test_the_page_shows_the_entry_of_a_request(console: Client, world: World, writers: list[Writer]) -> None:
    Api().get("/v1/nothing", headers={"X-Request-Id": "my-own"})
    for writer in writers:
        writer.write()
    assert "GET (unknown): 404" in console.get("/admin/timeline/", {"q": "my-own"}).content.decode()


def test_a_row_is_found_by_its_id_and_its_environment(world: World, story: Story) -> None:
    CurrentVersion.objects.using(REGION).create(environment_id=world.environment.pk, version=1)
    SchemaVersion.objects.using(REGION).create(
        environment_id=world.environment.pk, version=1, author_kind="system", source_digest="x",
        document_text='{"tables": {"tasks": {"columns": {"title": {"type": "text"}}}}}',
    )  # fmt: skip
    other = world.event(request_id=None, subject="tasks/tsk_2")
    for text in ("tsk_1", "tasks/tsk_1"):
        assert story.event.event_id in ids_of(found(text, world.environment.pk)), text
        assert other.event_id not in ids_of(found(text, world.environment.pk)), text
    nothing = found("tsk_9", world.environment.pk)
    assert not nothing.entries
    assert "No event of this row" in nothing.hint
    assert "name its environment" in found("tsk_9").hint
    assert "no environment" in found("tsk_9", "env_nope").hint


def test_containers_show_what_happened_in_them(world: World, story: Story) -> None:
    for container in (world.project.pk, world.environment.pk, str(story.audit.target_id)):
        assert story.audit.pk in ids_of(found(container)), container
    assert {story.event.event_id, story.run.pk} <= ids_of(found(world.environment.pk))
    assert story.delivery.pk in ids_of(found(world.webhook.pk))
    assert story.run.pk in ids_of(found(world.function.pk))


def test_people_are_found_by_what_they_did_and_what_was_done_to_them(make_user: Callable[..., User]) -> None:
    alice, boss = make_user("alice"), make_user("boss", is_staff=True)
    roles.set_role(alice, StaffRole.SUPPORT, actor=audit.Actor.staff(boss))
    entry = AuditEntry.objects.get(action="user.staff_role_changed")
    assert entry.pk in ids_of(found(alice.pk))
    assert entry.pk in ids_of(found(boss.pk))


def test_much_is_cut_and_says_so(world: World) -> None:
    for _ in range(timeline.MAX_SHOWN + 5):
        world.event(request_id="busy")
    shown = found("busy")
    assert len(shown.entries) == timeline.MAX_SHOWN
    assert shown.is_cut


def test_unavailable_region_is_named_and_others_are_shown(world: World, story: Story) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("unavailable")

    with connections["eu-west-1"].execute_wrapper(away):
        shown = found(story.request_id)
    assert shown.unavailable == ["eu-west-1"]
    assert ids_of(shown) == story.ids
    with connections[REGION].execute_wrapper(away):
        shown = found(story.request_id)
    assert shown.unavailable == [REGION]
    assert ids_of(shown) == {story.audit.pk}


@pytest.mark.parametrize("text", ["", " ", "'", "%", "x" * 5000, "wh_", "evt_zzz", "\0", "tasks/" + "y" * 300, "😀"])
def test_whatever_is_pasted_the_page_opens(console: Client, text: str) -> None:
    for environment in ("", "env_", text):
        assert console.get("/admin/timeline/", {"q": text, "environment": environment}).status_code == 200


def test_many_requests_and_functions_cost_no_more_statements(world: World) -> None:
    def statements() -> int:
        with ExitStack() as stack:
            asked = [stack.enter_context(CaptureQueriesContext(connections[alias])) for alias in ("default", *REGIONS)]
            for text in (world.environment.pk, world.function.pk, world.webhook.pk):
                found(text)
        return sum(len(each) for each in asked)

    Story(world, ids.new("req"))
    few = statements()
    for number in range(6):
        Story(world, ids.new("req"))
        more = Function.objects.using(REGION).create(
            environment_id=world.environment.pk, name=f"more-{number}", active_version=1, last_version=1, timeout_ms=1000,
            memory_mb=64,
        )  # fmt: skip
        world.run(function=more)
    assert statements() == few


def test_the_page_links_and_hides_what_is_the_tenants(console: Client, world: World, story: Story) -> None:
    page = console.get("/admin/timeline/", {"q": story.request_id}).content.decode()
    for one in story.ids:
        assert one in page
    assert f"/admin/timeline/?q={story.delivery.pk}" in page
    assert "receiver.example:443" in page
    for secret in ("t0psecret", "alsosecret", "a tenant", "an input", "a receiver"):
        assert secret not in page, secret
    evil = Story(world, "<script>alert(1)</script>"[:60])
    assert "<script>alert" not in console.get("/admin/timeline/", {"q": evil.request_id}).content.decode()
    assert "<script>alert" not in console.get("/admin/timeline/", {"q": evil.event.event_id}).content.decode()


def test_staff_read_no_credential_in_a_url_of_the_audit_log(console: Client, world: World) -> None:
    """Earlier releases stored the whole URL."""
    environment_id = world.environment.pk
    entry = audit.record("webhook.created", "wh_1", actor=audit.SYSTEM, environment_id=environment_id, url=SECRET_URL)
    change = reverse("admin:accounts_auditentry_change", args=[quote(entry.pk)])
    for path, query in (("/admin/timeline/", {"q": environment_id}), (change, {})):
        page = console.get(path, query).content.decode()
        assert "https://receiver.example" in page
        for secret in ("t0psecret", "alsosecret"):
            assert secret not in page, path


def test_support_reads_it_and_accounts_do_not(make_user: Callable[..., User], story: Story) -> None:
    alice = make_user("alice-2")
    browser = Client()
    browser.force_login(alice)
    assert browser.get("/admin/timeline/").status_code == 302
    roles.set_role(alice, StaffRole.SUPPORT, actor=audit.SYSTEM)
    assert story.run.pk in browser.get("/admin/timeline/", {"q": story.request_id}).content.decode()
    assert browser.post("/admin/timeline/", {"q": story.request_id}).status_code == 405


def test_the_command_palette_leads_to_it(rf: Any) -> None:
    [result] = search(rf.get("/"), "evt_01k60000000000000000000000")
    assert re.search(r"/admin/timeline/\?q=evt_", str(result.link))
    request = rf.get("/")
    request.user = AnonymousUser()
    assert search(request, "users") == []


def test_each_lookup_has_an_index(console: Client, world: World) -> None:
    """With scans forbidden, PostgreSQL still scans where it has no index: nothing here may."""
    large = (
        "request_log",
        "webhooks_delivery",
        "webhooks_attempt",
        "functions_run",
        "functions_pendingevent",
        "rows_outboxevent",
    )
    story = Story(world, ids.new("req"))
    plans: list[str] = []

    def explained(execute: Any, statement: str, parameters: Any, many: bool, context: Any) -> Any:
        if statement.lstrip().startswith("SELECT") and any(table in statement for table in large):
            with context["connection"].cursor() as cursor:
                cursor.cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.cursor.execute(f"EXPLAIN {statement}", parameters)
                plans.append("\n".join(line for (line,) in cursor.cursor.fetchall()))
        return execute(statement, parameters, many, context)

    with connections[REGION].execute_wrapper(explained):
        for text in (*story.ids, story.request_id, world.webhook.pk, world.function.pk, world.environment.pk):
            found(text)
        found("tasks/tsk_1", world.environment.pk)
        found(an_address(world).pk)
        assert console.get(f"/admin/waiting/{REGION}/").status_code == 200
    assert len(plans) > 20
    for plan in plans:
        for table in large:
            assert f"Seq Scan on {table}" not in plan, plan


def test_audit_log_of_an_endpoint_has_an_index(world: World) -> None:
    plans: list[str] = []

    def explained(execute: Any, statement: str, parameters: Any, many: bool, context: Any) -> Any:
        if "address" in str(parameters):
            with context["connection"].cursor() as cursor:
                cursor.cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.cursor.execute(f"EXPLAIN {statement}", parameters)
                plans.append("\n".join(line for (line,) in cursor.cursor.fetchall()))
        return execute(statement, parameters, many, context)

    audit.record("function.inbound_made", world.function.pk, actor=audit.SYSTEM, address=ids.new("inb"))
    with connections["default"].cursor() as cursor:
        cursor.execute("ANALYZE accounts_auditentry")
    with connections["default"].execute_wrapper(explained):
        found(ids.new("inb"))
    [plan] = plans
    assert "audit_of_address" in plan


def test_what_is_stopped_in_the_console_of_the_project_leads_there(console: Client, world: World) -> None:
    base = f"/console/{world.project.pk}/{world.environment.pk}"
    event = world.event(request_id=None)
    delivery, run = world.delivery(event), world.run(status="succeeded")
    for sought, section in ((delivery, "webhooks"), (run, "functions"), (world.webhook, "webhooks")):
        page = console.get("/admin/timeline/", {"q": sought.pk}).content.decode()
        assert f'href="{base}/{section}/"' in page, sought
    assert base not in console.get("/admin/timeline/", {"q": event.event_id}).content.decode()
