"""Events in the outbox: one for each write with a subscriber, in its transaction, with the changes."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from django.db import DatabaseError, connections, transaction

from platform_site.http.errors import ApiError
from platform_site.identity.signals import row_written
from rows import services
from rows.changes import watched_tables
from rows.models import EventInterest, OutboxEvent, WatchedTable
from rows.outbox import subscriptions
from rows.outbox.models import record
from rows.write.references import referential_actions, user_policies
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, REGION, Tenant
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tenant() -> Tenant:
    return Tenant(DOCUMENT).with_users(ALICE, BOB)


def listen(tenant: Tenant, table: str = "*", action: str = "*") -> EventInterest:
    return EventInterest.objects.using(REGION).create(
        environment_id=tenant.environment.environment_id, table_name=table, action=action
    )


def events(tenant: Tenant) -> list[tuple[str, Any]]:
    """The type and data of each event, in the order of writing."""
    found = (
        OutboxEvent.objects.using(REGION).filter(environment_id=tenant.environment.environment_id).order_by("sequence")
    )
    return [(event.type, orjson.loads(event.data)) for event in found]


def test_nothing_is_recorded_without_subscribers(tenant: Tenant) -> None:
    home = tenant.put("lists", name="x", owner_id=ALICE.user_id)
    tenant.update(KEY, "lists", home, name="y")
    tenant.delete(KEY, "lists", home)
    assert events(tenant) == []


def test_an_insert_an_update_and_a_delete_tell_what_was_and_what_is(tenant: Tenant) -> None:
    listen(tenant)
    home = tenant.insert(KEY, "lists", name="x", owner_id=ALICE.user_id)
    changed = tenant.update(KEY, "lists", home["id"], name="y", owner_id=ALICE.user_id)
    tenant.delete(KEY, "lists", home["id"])
    common = {"table": "lists", "id": home["id"]}
    assert events(tenant) == [
        ("lists.insert", {**common, "record": home, "old_record": None, "changed": []}),
        ("lists.update", {**common, "record": changed, "old_record": home, "changed": ["name"]}),
        ("lists.delete", {**common, "record": None, "old_record": changed, "changed": []}),
    ]
    for event in OutboxEvent.objects.using(REGION).filter(environment_id=tenant.environment.environment_id):
        assert event.event_id.startswith("evt_")
        assert event.subject == f"lists/{home['id']}"
        assert event.schema_version == tenant.version
        assert event.depth == 0
        assert event.relayed_at is None


def test_the_record_is_whole_even_if_the_writer_sees_less(tenant: Tenant) -> None:
    """What a webhook may carry is decided when it is delivered, not by the caller that wrote."""
    listen(tenant, "tasks", "update")
    home = tenant.put("lists", name="x", owner_id=ALICE.user_id)
    task = tenant.put("tasks", title="x", list_id=home, owner_id=ALICE.user_id, internal="secret")
    assert "internal" not in tenant.update(ALICE, "tasks", task, done=True)
    [(_, data)] = events(tenant)
    assert data["record"]["internal"] == data["old_record"]["internal"] == "secret"
    assert data["changed"] == ["done"]


@pytest.mark.parametrize(
    ("table", "action", "expected"),
    [
        ("*", "*", ["lists.insert", "lists.update", "lists.delete"]),
        ("lists", "*", ["lists.insert", "lists.update", "lists.delete"]),
        ("*", "update", ["lists.update"]),
        ("lists", "delete", ["lists.delete"]),
        ("tasks", "*", []),
    ],
)
def test_only_subscribed_events_are_recorded(tenant: Tenant, table: str, action: str, expected: list[str]) -> None:
    listen(tenant, table, action)
    home = tenant.put("lists", name="x", owner_id=ALICE.user_id)
    tenant.update(KEY, "lists", home, name="y")
    tenant.delete(KEY, "lists", home)
    assert [type_ for type_, _ in events(tenant)] == expected


def test_a_listener_is_noticed_by_the_next_write_and_its_leaving_too(tenant: Tenant) -> None:
    """No message between processes: the statement that leaves the event out tests that there is no subscriber."""
    home = tenant.put("lists", name="0", owner_id=ALICE.user_id)
    for number in range(3):
        interest = listen(tenant, "lists", "update")
        for _ in range(2):
            tenant.update(KEY, "lists", home, name=f"heard {number}")
        interest.delete(using=REGION)
        for _ in range(2):
            tenant.update(KEY, "lists", home, name="unheard")
    names = [data["record"]["name"] for _, data in events(tenant)]
    assert names == ["heard 0", "heard 0", "heard 1", "heard 1", "heard 2", "heard 2"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_listener_is_noticed_by_the_next_insert(tenant: Tenant, count: int) -> None:
    def insert(name: str) -> None:
        rows = [{"name": name, "owner_id": ALICE.user_id}] * count
        services.insert_rows(tenant.environment, KEY, "lists", rows)

    for _ in range(2):
        insert("unheard")
    listen(tenant, "lists", "insert")
    insert("heard")
    assert [data["record"]["name"] for _, data in events(tenant)] == ["heard"] * count


def test_a_refused_write_and_an_update_of_nothing_leave_no_event(tenant: Tenant) -> None:
    listen(tenant)
    home = tenant.put("lists", name="x", owner_id=BOB.user_id)
    before = events(tenant)
    for refused in (
        lambda: tenant.update(ALICE, "lists", home, name="y"),
        lambda: tenant.delete(ALICE, "lists", home),
        lambda: tenant.insert(ALICE, "tasks", title="x", list_id=home),
        lambda: tenant.insert(KEY, "lists", id=home, name="x", owner_id=BOB.user_id),
        lambda: services.update_row(tenant.environment, KEY, "lists", home, {"name": "y"}, matches=["0" * 64]),
        lambda: services.insert_rows(
            tenant.environment, KEY, "lists", [{"name": "x", "owner_id": BOB.user_id}, {"id": home, "name": "x", "owner_id":
            BOB.user_id}]
        ),
    ):  # fmt: skip
        with pytest.raises(ApiError):
            refused()
    services.update_row(tenant.environment, KEY, "lists", home, {})
    assert events(tenant) == before


def test_what_a_delete_takes_along_is_told_too(tenant: Tenant) -> None:
    listen(tenant)
    home = tenant.put("lists", name="x", owner_id=ALICE.user_id)
    tasks = [tenant.put("tasks", title=str(n), list_id=home, owner_id=ALICE.user_id) for n in range(3)]
    comment = tenant.put("comments", body="x", task_id=tasks[1])
    before = len(events(tenant))
    tenant.delete(KEY, "lists", home)
    told = events(tenant)[before:]
    assert sorted((type_, data["id"]) for type_, data in told) == sorted(
        [("comments.delete", comment), ("lists.delete", home), *(("tasks.delete", task) for task in tasks)]
    )
    assert all(data["record"] is None and data["old_record"]["id"] == data["id"] for _, data in told)
    recorded = OutboxEvent.objects.using(REGION).values_list("event_id", flat=True)
    assert len(set(recorded)) == len(recorded)


def test_a_row_that_two_references_lead_to_hides_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked for as far as a delete may go; those that were found already are not to be counted twice."""
    monkeypatch.setattr(referential_actions, "MAX_CASCADE", 4)
    node = {"type": "reference", "to": "nodes", "on_delete": "cascade", "null": True}
    tenant = Tenant({"tables": {"nodes": {"columns": {"a": {**node, "related_name": "x"}, "b": node}}}})
    listen(tenant, action="delete")
    tenant.put("nodes", id="root")
    for name in ("n1", "n2", "n3"):
        tenant.put("nodes", id=name, a_id="root", b_id="root")
    tenant.put("nodes", id="n4", b_id="root")
    tenant.put("nodes", id="n5")
    tenant.delete(KEY, "nodes", "root")
    assert sorted(data["id"] for _, data in events(tenant)) == ["n1", "n2", "n3", "n4", "root"]
    assert [row["id"] for row in tenant.rows(KEY, "nodes")] == ["n5"]


def test_rows_whose_reference_is_cleared_have_update_events() -> None:
    tenant = Tenant(
        {
            "tables": {
                "teams": {"columns": {"name": {"type": "text"}}},
                "people": {
                    "columns": {
                        "name": {"type": "text"},
                        "team": {"type": "reference", "to": "teams", "on_delete": "null", "null": True},
                    }
                },
            }
        }
    )
    listen(tenant)
    team = tenant.put("teams", name="x")
    person = tenant.put("people", name="y", team_id=team)
    tenant.delete(KEY, "teams", team)
    assert tenant.get(KEY, "people", person)["team_id"] is None
    [released] = [data for type_, data in events(tenant) if type_ == "people.update"]
    assert released["old_record"]["team_id"] == team
    assert released["record"]["team_id"] is None
    assert released["changed"] == ["team_id"]


def test_a_row_that_is_deleted_too_has_no_update_event() -> None:
    columns = {
        "lead": {"type": "reference", "to": "teams", "on_delete": "null", "null": True, "related_name": "leads"},
        "team": {"type": "reference", "to": "teams", "on_delete": "cascade", "null": True},
    }
    tenant = Tenant({"tables": {"teams": {"columns": {"name": {"type": "text"}}}, "people": {"columns": columns}}})
    team = tenant.put("teams", name="x")
    tenant.put("people", lead_id=team, team_id=team)
    listen(tenant)
    tenant.delete(KEY, "teams", team)
    assert sorted(type_ for type_, _ in events(tenant)) == ["people.delete", "teams.delete"]


@pytest.mark.parametrize(("policy", "action"), [("null", "update"), ("delete", "delete")])
def test_new_listener_receives_rows_of_deleted_users(policy: str, action: str) -> None:
    owner = {"type": "user", "null": True, "on_delete": policy}
    tenant = Tenant({"tables": {"notes": {"columns": {"owner": owner}}}}).with_users(ALICE)
    note = tenant.put("notes", owner_id=ALICE.user_id)
    assert not tenant.compiled.wants_events("notes", action)  # and this process remembers
    listen(tenant)
    user_policies.apply_user_deletion(tenant.environment, ALICE.user_id or "", pending=None)
    assert [(type_, data["id"]) for type_, data in events(tenant)] == [(f"notes.{action}", note)]


def test_an_event_that_cannot_be_written_takes_the_write_with_it(tenant: Tenant) -> None:
    """The disk is full when the event is inserted."""
    listen(tenant)
    home = tenant.put("lists", name="x", owner_id=ALICE.user_id)
    with connections[REGION].cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION platform.refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON platform.rows_outboxevent "
            "FOR EACH ROW EXECUTE FUNCTION platform.refuse()"
        )
    for write in (
        lambda: tenant.update(KEY, "lists", home, name="y"),
        lambda: tenant.insert(KEY, "lists", name="z", owner_id=ALICE.user_id),
        lambda: tenant.delete(KEY, "lists", home),
    ):
        with pytest.raises(DatabaseError) as caught:
            write()
        assert getattr(caught.value.__cause__, "sqlstate", None) == "53100"
    assert [row["name"] for row in tenant.rows(OPERATOR, "lists")] == ["x"]


def test_the_floor_above_is_told_once_for_each_recorded_event(tenant: Tenant) -> None:
    heard: list[Any] = []

    def hear(**told: Any) -> None:
        heard.append((told["table"], told["action"], told["row_id"], told["environment"], told["using"]))

    row_written.connect(hear)
    try:
        quiet = tenant.put("lists", name="x", owner_id=ALICE.user_id)
        listen(tenant, "lists", "update")
        tenant.update(KEY, "lists", quiet, name="y")
    finally:
        row_written.disconnect(hear)
    assert heard == [("lists", "update", quiet, tenant.environment, REGION)]


class TestEventsOfLiveChangesAlone:
    """The relay has nothing to do with them: they are inserted as relayed, and no worker is notified."""

    @pytest.fixture
    def heard(self) -> Iterator[list[bool]]:
        """For each announced event whether it is due."""
        heard: list[bool] = []

        def hear(*, is_due: bool, **_: Any) -> None:
            heard.append(is_due)

        row_written.connect(hear)
        yield heard
        row_written.disconnect(hear)

    def watch(self, tenant: Tenant, *tables: str) -> None:
        watched_tables.watch(tenant.environment, tables)

    def due(self, tenant: Tenant) -> list[bool]:
        found = OutboxEvent.objects.using(REGION).filter(environment_id=tenant.environment.environment_id)
        return [event.relayed_at is None for event in found.order_by("sequence")]

    def test_none_of_its_writes_is_due(self, tenant: Tenant, heard: list[bool]) -> None:
        self.watch(tenant, "lists")
        row_id = tenant.put("lists", name="x", owner_id=ALICE.user_id)
        tenant.update(KEY, "lists", row_id, name="y")
        services.delete_row(tenant.environment, OPERATOR, "lists", row_id)
        assert self.due(tenant) == [False, False, False]
        assert not heard[0]
        assert not heard[1]

    def test_none_is_recorded_once_its_watched_tables_expired(self, tenant: Tenant, heard: list[bool]) -> None:
        """By time, or with a crash, which empties the table and leaves what was wanted."""
        watched = WatchedTable.objects.using(REGION).filter(environment_id=tenant.environment.environment_id)
        for is_crash in (False, True):
            self.watch(tenant, "lists")
            row_id = tenant.put("lists", name="x", owner_id=ALICE.user_id)
            if is_crash:
                watched.delete()
            else:
                watched.update(expires_at="2020-01-01T00:00:00Z")
            watched_tables.expire(REGION)
            tenant.update(KEY, "lists", row_id, name="y")
        assert len(self.due(tenant)) == 2, "those of the inserts"

    def test_another_subscriber_makes_them_due_for_its_time(self, tenant: Tenant, heard: list[bool]) -> None:
        self.watch(tenant, "lists")
        row_id = tenant.put("lists", name="x", owner_id=ALICE.user_id)
        interest = listen(tenant, "*", "update")
        tenant.update(KEY, "lists", row_id, name="y")
        interest.delete(using=REGION)
        tenant.update(KEY, "lists", row_id, name="z")
        assert self.due(tenant) == heard == [False, True, False]

    def test_what_subscribers_share_is_due(self, tenant: Tenant, heard: list[bool], monkeypatch: Any) -> None:
        """A webhook and a stream with the same pattern have one interest, whoever came first."""
        patterns: list[list[str]] = []
        monkeypatch.setattr(subscriptions, "_sources", [*subscriptions._sources, (lambda *_: patterns, True)])
        environment_id = tenant.environment.environment_id
        self.watch(tenant, "lists")
        for patterns[:] in ([["lists.*"]], [], [["lists.*"]]):
            subscriptions.refresh(environment_id, REGION)
            tenant.put("lists", name="x", owner_id=ALICE.user_id)
        WatchedTable.objects.using(REGION).filter(environment_id=environment_id).delete()
        subscriptions.refresh(environment_id, REGION)
        tenant.put("lists", name="x", owner_id=ALICE.user_id)
        assert self.due(tenant) == heard == [True, False, True, True]


def test_system_event_is_recorded_in_the_current_transaction(tenant: Tenant) -> None:
    environment_id = tenant.environment.environment_id

    @transaction.atomic(using=REGION)
    def record_and_fail() -> None:
        record("schema.migrated", {"version": 2}, using=REGION, environment_id=environment_id)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        record_and_fail()
    assert events(tenant) == []
    record("schema.migrated", {"version": 2}, using=REGION, environment_id=environment_id)
    assert events(tenant) == [("schema.migrated", {"version": 2})]
