"""`POST /v1/projects/{id}/environments`: what comes along, what is independent, who may, and what is refused."""

import threading
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connections, transaction

from accounts import audit
from accounts.models import AuditEntry
from accounts.users import service as accounts
from functions.models import Function, Secret, Version
from platform_site.embedded import postgres as embedded_postgres
from platform_site.security import keyring
from projects.models import Environment, Member
from projects.provisioning import branching
from rows.models import CurrentVersion, OutboxEvent, SchemaVersion
from tests.branches.conftest import Branch, address, row, rows
from tests.projects.conftest import at_once, environment_of, key_for, make_project, schemas_in, token_of
from tests.rows.conftest import Tracker
from tests.support.tracker import DOCUMENT
from webhooks.delivery.signing import SECRET_PURPOSE
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
REGION = "us-east-1"


def test_rows_of_a_branch_embed_the_users_of_its_source(tracker: Tracker, branch: Branch) -> None:
    tracker.apply({**DOCUMENT, "users": {"member": ["name"]}})
    made = branch("feature/names", data="full").json["id"]
    answer = tracker.api.get("/v1/rows/tasks?with=owner", token=tracker.tokens["owner"], environment=made)
    assert [each["owner"] for each in answer.json["data"]] == [{"name": "alice"}] * 2


def test_a_key_of_a_branch_shows_no_more_of_the_sources_users(tracker: Tracker, branch: Branch) -> None:
    made = branch("preview").json["id"]
    wider = {**DOCUMENT, "users": {"server": ["id", "email"]}}
    for scopes, status in ((("schema:write",), 403), (("schema:write", "users:manage"), 200)):
        key = key_for(made, *scopes)
        for dry_run in (True, False):
            answer = tracker.api.put("/v1/schema", token=key, json={"document": wider, "dry_run": dry_run})
            assert answer.status == status, answer.json


def test_an_empty_branch_has_the_schema_the_versions_and_no_rows(tracker: Tracker, branch: Branch) -> None:
    tracker.apply({"tables": {**DOCUMENT["tables"], "notes": {"columns": {"body": {"type": "text"}}}}})
    answer = branch("feature/login")
    assert answer.status == 201
    made = answer.json
    assert answer.headers["Location"] == address(tracker, made["id"])
    assert set(made) == {
        "id", "name", "schema_version", "status", "status_reason", "parent_id", "allowed_origins", "expires_at",
        "created_at",
    }  # fmt: skip
    assert (made["name"], made["status"], made["schema_version"]) == ("feature/login", "ready", 2)
    assert made["parent_id"] == tracker.environment_id
    listed = tracker.api.get(f"/v1/projects/{tracker.project.pk}/environments", token=tracker.tokens["owner"]).json
    assert {"id": made["id"], "name": "feature/login", "schema_version": 2, "status": "ready"} in listed["data"]
    assert tracker.api.get(answer.headers["Location"], token=tracker.tokens["viewer"]).json == made
    for table in ("lists", "tasks", "comments", "notes"):
        assert rows(tracker, table, made["id"]) == []
    owner = tracker.tokens["owner"]
    source, target = (
        tracker.api.get("/v1/schema", token=owner, environment=each).json
        for each in (tracker.environment_id, made["id"])
    )
    assert source == target
    assert [
        each["version"]
        for each in tracker.api.get("/v1/schema/versions", token=owner, environment=made["id"]).json["data"]
    ] == [2, 1]
    entry = AuditEntry.objects.get(action="environment.branched")
    assert (entry.target_id, entry.project_id, entry.detail["source"]) == (
        made["id"], tracker.project.pk, tracker.environment_id,
    )  # fmt: skip


def test_a_full_branch_has_every_row_and_the_two_are_independent(tracker: Tracker, branch: Branch) -> None:
    made = branch("preview", data="full").json
    assert made["status"] == "ready"
    for table in ("lists", "tasks", "comments", "secrets"):
        assert rows(tracker, table, made["id"]) == rows(tracker, table, tracker.environment_id)
    before = {table: rows(tracker, table, tracker.environment_id) for table in ("lists", "tasks")}
    (shop,) = [each for each in rows(tracker, "tasks", made["id"]) if each["title"] == "Shop"]
    owner = tracker.tokens["owner"]
    changed = tracker.api.request(
        "PATCH", f"/v1/rows/tasks/{shop['id']}", token=owner, environment=made["id"], json={"title": "Steal"}
    )
    assert changed.json["title"] == "Steal"
    row(tracker, "lists", environment=made["id"], name="Only here", owner_id=tracker.users["bob"])
    assert {table: rows(tracker, table, tracker.environment_id) for table in before} == before
    # Production goes on by itself, too, and the branch does not follow.
    in_branch = rows(tracker, "tasks", made["id"])
    home = before["lists"][0]["id"]
    assert tracker.delete("owner", f"/rows/lists/{home}").status == 204  # its tasks go along, by the database's cascade
    assert rows(tracker, "tasks", tracker.environment_id) == []
    assert rows(tracker, "tasks", made["id"]) == in_branch
    # And the branch's own references hold: deleting there cascades there.
    assert tracker.api.delete(f"/v1/rows/lists/{home}", token=owner, environment=made["id"]).status == 204
    assert rows(tracker, "tasks", made["id"]) == []


def test_the_copy_has_the_same_tables_constraints_and_indexes(tracker: Tracker, branch: Branch) -> None:
    lists = DOCUMENT["tables"]["lists"]
    columns = {**lists["columns"], "name": {**lists["columns"]["name"], "min_length": 2}}
    checked = {**lists, "columns": columns, "checks": {"named": {"name": {"$ne": "50%"}}}}
    tracker.apply({"tables": {**DOCUMENT["tables"], "lists": checked}})
    made = branch("preview", data="full").json["id"]

    def shape(schema: str) -> list[Any]:
        with connections[REGION].cursor() as cursor:
            cursor.execute(
                "SELECT 'con', conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE connamespace = to_regnamespace(%s)"
                " UNION ALL SELECT 'ix', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = %s"
                " UNION ALL SELECT 'col', table_name, column_name, concat_ws(' ', data_type, column_default, is_nullable,"
                " collation_name, character_maximum_length, ordinal_position) FROM information_schema.columns"
                " WHERE table_schema = %s ORDER BY 1, 2, 3",
                [schema, schema, schema],
            )
            return [tuple(cell.replace(schema, "env") for cell in line) for line in cursor.fetchall()]

    assert shape(made) == shape(tracker.environment_id)


def test_a_branch_signs_in_its_parents_users_who_see_their_own_rows(tracker: Tracker, branch: Branch) -> None:
    accounts.create_user(
        pool_id=tracker.environment_id, email="carol@example.com", password="correct horse 7", name="Carol",
        actor=audit.SYSTEM,
    )  # fmt: skip
    made = branch("preview", data="full").json["id"]
    signed_in = tracker.api.post(
        "/v1/auth/token",
        json={"grant_type": "password", "email": "carol@example.com", "password": "correct horse 7"},
        environment=made,
    )
    assert signed_in.status == 200
    carol = signed_in.json["access_token"]
    assert tracker.api.get("/v1/rows/tasks", token=carol).json["data"] == []
    # A token is for the environment it was made in, though the pool is the same.
    assert tracker.api.get("/v1/rows/tasks", token=carol, environment=tracker.environment_id).status == 404
    assert tracker.api.get("/v1/rows/tasks", token=tracker.tokens["alice"], environment=made).status == 404
    alice = accounts.User.objects.get(pk=tracker.users["alice"])
    theirs = tracker.api.get("/v1/rows/tasks", token=token_of(alice, made)).json["data"]
    assert sorted(each["title"] for each in theirs) == ["Cook", "Shop"]


@pytest.mark.exhaustive
def test_a_branch_of_a_branch_has_the_roots_pool_and_the_branchs_rows(tracker: Tracker, branch: Branch) -> None:
    first = branch("first", data="full").json["id"]
    row(tracker, "lists", environment=first, name="Mine", owner_id=tracker.users["alice"])
    for named in ("first", first):
        answer = branch(f"of-{named.replace('env_', '')[:10]}", data="full", **{"from": named})
        assert answer.status == 201
        assert answer.json["parent_id"] == first
        assert len(rows(tracker, "lists", answer.json["id"])) == 2
        assert Environment.objects.get(pk=answer.json["id"]).pool_id == tracker.environment_id
    # The first may go; what came of it stays, and is still a branch that can be deleted.
    assert tracker.api.delete(address(tracker, first), token=tracker.tokens["owner"]).status == 204
    orphan = Environment.objects.get(pk=answer.json["id"])
    assert (orphan.parent_id, orphan.is_branch) == (None, True)
    assert len(rows(tracker, "lists", orphan.pk)) == 2
    assert tracker.api.get(address(tracker, orphan.pk), token=tracker.tokens["owner"]).json["parent_id"] is None
    assert tracker.api.delete(address(tracker, orphan.pk), token=tracker.tokens["owner"]).status == 204


def test_an_environment_without_a_schema_gives_an_empty_branch(tracker: Tracker, branch: Branch) -> None:
    answer = branch("preview", data="full", **{"from": "development"})
    assert (answer.status, answer.json["schema_version"]) == (201, 0)
    token, made = tracker.tokens["owner"], answer.json["id"]
    put = tracker.api.request("PUT", "/v1/schema", token=token, environment=made, json={"document": DOCUMENT})
    assert (put.status, put.json["version"]) == (200, 1)
    development = environment_of(tracker.project, "development").pk
    assert tracker.api.get("/v1/schema", token=token, environment=development).json["version"] == 0


@pytest.mark.exhaustive
def test_the_schema_of_a_branch_goes_its_own_way_and_back(tracker: Tracker, branch: Branch) -> None:
    second = {"tables": {**DOCUMENT["tables"], "notes": {"columns": {"body": {"type": "text"}}}}}
    tracker.apply(second)
    made = branch("preview", data="full").json["id"]
    owner = tracker.tokens["owner"]
    third = {"tables": {**second["tables"], "more": {"columns": {"body": {"type": "text"}}}}}
    put = tracker.api.request("PUT", "/v1/schema", token=owner, environment=made, json={"document": third})
    assert put.json["version"] == 3
    assert tracker.api.get("/v1/rows/more", token=owner, environment=tracker.environment_id).status == 404
    reverted = tracker.api.post(
        "/v1/schema/revert",
        token=owner,
        environment=made,
        json={"version": 1, "confirm": ["drop table more", "drop table notes"]},
    )
    assert (reverted.status, reverted.json["version"]) == (200, 4)
    assert len(rows(tracker, "tasks", made)) == 2
    assert tracker.get("owner", "/rows/notes").status == 200  # production did not move
    assert CurrentVersion.objects.using(REGION).get(pk=tracker.environment_id).version == 2


def test_webhooks_come_along_disabled_with_secrets_of_their_own(tracker: Tracker, branch: Branch) -> None:
    made = tracker.post(
        "owner",
        "/webhooks",
        {
            "url": "https://hooks.example.com/in", "events": ["tasks.insert"], "filter": {"done": False},
            "columns": {"tasks": ["title"]}, "ordering": "row", "description": "Ours",
        },
    )  # fmt: skip
    assert made.status == 201, made.json
    deleted = tracker.post("owner", "/webhooks", {"url": "https://gone.example.com/", "events": ["*"]}).json["id"]
    tracker.delete("owner", f"/webhooks/{deleted}")
    target = branch("preview", data="full").json["id"]
    (copy,) = Webhook.objects.using(REGION).filter(environment_id=target)
    original = Webhook.objects.using(REGION).get(pk=made.json["id"])
    for field in ("url", "host", "events", "filter", "columns", "ordering", "description"):
        assert getattr(copy, field) == getattr(original, field), field
    assert (copy.enabled, copy.disabled_reason) == (False, "branched")
    secrets = [keyring.unseal(bytes(each.sealed_secret), purpose=SECRET_PURPOSE) for each in (original, copy)]
    assert secrets[0] != secrets[1]
    assert copy.pk != original.pk
    assert original.enabled
    # The rows that were copied are no news, and none of production's events moved over.
    assert not OutboxEvent.objects.using(REGION).filter(environment_id=target).exists()
    listed = tracker.api.get("/v1/webhooks", token=tracker.tokens["owner"], environment=target).json["data"]
    assert [(each["id"], each["enabled"]) for each in listed] == [(copy.pk, False)]


def test_branch_has_functions_with_versions_and_secrets_without_values(tracker: Tracker, branch: Branch) -> None:
    environment = branching.ref_of(tracker.project, Environment.objects.get(pk=tracker.environment_id))
    original = Function.objects.using(REGION).create(
        environment_id=environment.environment_id, name="hello", active_version=2, last_version=3, timeout_ms=700, memory_mb=64,
        allowed_hosts=["api.example.com"], invoke="key", attempts=3,
    )  # fmt: skip
    for number in (1, 2, 3):
        Version.objects.using(REGION).create(
            function=original, number=number, source=f"// {number}", source_hash=str(number), author_kind="system"
        )
    Secret.objects.using(REGION).create(function=original, name="TOKEN", sealed_value=b"sealed")
    target = branch("preview").json["id"]
    copy = Function.objects.using(REGION).get(environment_id=target)
    for field in ("name", "timeout_ms", "memory_mb", "allowed_hosts", "invoke", "attempts"):
        assert getattr(copy, field) == getattr(original, field), field
    assert (copy.active_version, copy.last_version) == (2, 3)
    versions = Version.objects.using(REGION).filter(function=copy).order_by("number")
    assert list(versions.values_list("number", "source")) == [(1, "// 1"), (2, "// 2"), (3, "// 3")]
    secrets = Secret.objects.using(REGION).filter(function=copy).values_list("name", "sealed_value")
    assert list(secrets) == [("TOKEN", None)]
    for place, unset in ((target, ["TOKEN"]), (tracker.environment_id, [])):
        token = tracker.tokens["owner"]
        shown = tracker.api.get("/v1/functions/hello", token=token, environment=place).json
        assert (shown["secrets"], shown["unset_secrets"]) == (["TOKEN"], unset)


# ── Who ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_who_may_make_and_delete_branches(tracker: Tracker, branch: Branch, make_account: Any) -> None:
    developer, stranger = make_account("dave"), make_account("charlie")
    Member.objects.create(project=tracker.project, user=developer, role=Member.Role.DEVELOPER)
    development = environment_of(tracker.project, "development").pk
    tracker.tokens.update(
        developer=token_of(developer),
        stranger=token_of(stranger),
        key=key_for(tracker.environment_id, "environments:write", "environments:read"),
        keyless=key_for(tracker.environment_id, "environments:read", "schema:write"),
        other=key_for(development, "environments:write"),
        account_key=key_for(None, "projects:create", "projects:delete", account=developer),
    )
    statuses = {
        "viewer": 403, "alice": 403, "keyless": 403, "other": 403, "account_key": 403, "stranger": 404,
        "owner": 201, "developer": 201, "key": 201,
    }  # fmt: skip
    made = {}
    for who, status in statuses.items():
        answer = branch(f"by-{who.replace('_', '-')}", who=who)
        assert answer.status == status, (who, answer.json)
        if status == 201:
            made[who] = answer.json["id"]
    assert branch("from-own", who="other", **{"from": "development"}).status == 422  # quota of three, and no 403
    assert tracker.api.post(f"/v1/projects/{tracker.project.pk}/environments", json={"name": "x"}).status == 401
    assert set(Environment.objects.branches().values_list("pk", flat=True)) == set(made.values())
    for who in ("viewer", "alice", "keyless", "other", "account_key", "stranger"):
        status = tracker.api.delete(address(tracker, made["key"]), token=tracker.tokens[who]).status
        assert status == (404 if who == "stranger" else 403), who
    assert len(Environment.objects.branches()) == 3
    tracker.tokens["of_branch"] = key_for(made["owner"], "environments:write")
    assert tracker.api.delete(address(tracker, made["key"]), token=tracker.tokens["of_branch"]).status == 403
    for who, target in (("of_branch", "owner"), ("developer", "developer"), ("key", "key")):
        assert tracker.api.delete(address(tracker, made[target]), token=tracker.tokens[who]).status == 204, who
    assert not Environment.objects.branches().exists()


def test_other_projects_are_out_of_reach(tracker: Tracker, branch: Branch, make_account: Any) -> None:
    other = make_project(make_account("charlie"), "Other")
    theirs = environment_of(other).pk
    answer = branch("preview", **{"from": theirs})
    assert (answer.status, answer.fields) == (422, {"from": "unknown"})
    unknown = branch("preview", **{"from": "env_01h455vb4pex5vsknk084sn02q"})
    assert unknown.json["error"] | {"request_id": 0} == answer.json["error"] | {"request_id": 0}
    for method in ("DELETE", "GET"):
        path = f"/v1/projects/{tracker.project.pk}/environments/{theirs}"
        assert tracker.api.request(method, path, token=tracker.tokens["owner"]).status == 404
    assert Environment.objects.get(pk=theirs).status == "ready"


# ── What is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


REFUSED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {"name": "required"}),
    ({"name": ""}, {"name": "blank"}),
    ({"name": None}, {"name": "null"}),
    ({"name": 7}, {"name": "invalid"}),
    ({"name": "x" * 49}, {"name": "too_long"}),
    ({"name": "Preview"}, {"name": "malformed"}),
    ({"name": "-x"}, {"name": "malformed"}),
    ({"name": "x/"}, {"name": "malformed"}),
    ({"name": "a b"}, {"name": "malformed"}),
    ({"name": "é"}, {"name": "malformed"}),
    ({"name": "x\n"}, {"name": "malformed"}),
    ({"name": "env_01h455vb4pex5vsknk084sn02q"}, {"name": "malformed"}),
    ({"name": "'; DROP SCHEMA platform; --"}, {"name": "malformed"}),
    ({"name": "production"}, {"name": "taken"}),
    ({"name": "x", "from": "staging"}, {"from": "unknown"}),
    ({"name": "x", "from": ""}, {"from": "blank"}),
    ({"name": "x", "from": 1}, {"from": "invalid"}),
    ({"name": "x", "data": "some"}, {"data": "not_among"}),
    ({"name": "x", "data": True}, {"data": "invalid"}),
    ({"name": "x", "status": "ready"}, {"status": "unknown_field"}),
    (
        {"name": "X", "from": 1, "pool_id": "p"},
        {"name": "malformed", "from": "invalid", "pool_id": "unknown_field"},
    ),
]


def test_what_is_wrong_is_named_and_nothing_is_made(tracker: Tracker) -> None:
    for body, fields in REFUSED:
        answer = tracker.api.post(
            f"/v1/projects/{tracker.project.pk}/environments", token=tracker.tokens["owner"], json=body
        )
        assert (answer.status, answer.fields) == (422, fields), body
    assert Environment.objects.count() == len(schemas_in(REGION)) == 2


@pytest.mark.exhaustive
def test_the_plan_says_how_many(tracker: Tracker, branch: Branch) -> None:
    for number in range(3):
        assert branch(f"b{number}").status == 201
    refused = branch("b3")
    assert (refused.status, refused.error) == (422, "quota_exceeded")
    assert "3 preview branches" in refused.json["error"]["message"]

    def limits() -> Any:
        shown = tracker.get("owner", "/limits").json["limits"]
        return shown["preview_branches_per_project"]

    assert limits() == {"limit": 3, "used": 3}
    first = Environment.objects.get(name="b0").pk
    assert tracker.api.delete(address(tracker, first), token=tracker.tokens["owner"]).status == 204
    assert limits() == {"limit": 3, "used": 2}
    assert branch("b3").status == 201


@pytest.mark.exhaustive
def test_a_name_is_taken_once_and_free_again_after_the_deletion(tracker: Tracker, branch: Branch) -> None:
    answers = at_once(6, lambda n: branch("same"))
    assert sorted(answer.status for answer in answers) == [201] + [422] * 5
    assert {answer.fields["name"] for answer in answers if answer.status == 422} == {"taken"}
    first = Environment.objects.get(name="same").pk
    assert tracker.api.delete(address(tracker, first), token=tracker.tokens["owner"]).status == 204
    again = branch("same")
    assert again.status == 201
    assert again.json["id"] != first


@pytest.mark.exhaustive
def test_several_at_once_do_not_pass_the_quota_and_are_all_whole(tracker: Tracker, branch: Branch) -> None:
    answers = at_once(6, lambda n: branch(f"b{n}", data="full"))
    made = [answer.json["id"] for answer in answers if answer.status == 201]
    assert sorted(answer.status for answer in answers) == [201] * 3 + [422] * 3
    assert len(schemas_in(REGION)) == 5
    for environment_id in made:
        assert len(rows(tracker, "tasks", environment_id)) == 2


def test_the_same_key_makes_one_branch(tracker: Tracker, branch: Branch) -> None:
    headers = {"Idempotency-Key": "once"}
    first, second = (branch("preview", data="full", headers=headers) for _ in range(2))
    assert (first.status, second.status) == (201, 201)
    assert first.body == second.body
    assert second.headers["Idempotency-Replayed"] == "true"
    assert branch("other", headers=headers).fields == {"Idempotency-Key": "reused"}
    assert len(schemas_in(REGION)) == 3


def test_what_is_not_ready_is_not_branched(tracker: Tracker, branch: Branch) -> None:
    made = branch("first").json["id"]
    for status in ("creating", "failed"):
        Environment.objects.filter(pk=made).update(status=status)
        answer = branch("second", **{"from": "first"})
        assert (answer.status, answer.error) == (409, "conflict")
    Environment.objects.filter(pk=made).update(status="deleting")
    assert branch("second", **{"from": "first"}).fields == {"from": "unknown"}
    assert len(schemas_in(REGION)) == 3


# ── Meanwhile ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schema_change_cannot_slip_into_a_copy(
    tracker: Tracker, branch: Branch, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """While rows are copied the source's schema is locked: a change waits, gives up, and succeeds afterwards."""
    settings.SCHEMA_LOCK_ATTEMPTS = 2
    seen: list[int] = []
    real = branching.require_both

    def change_meanwhile(source: Any, target: Any) -> None:
        real(source, target)
        if not seen:
            thread = threading.Thread(target=change)
            thread.start()
            thread.join(30)

    def change() -> None:
        try:
            body = {"document": {"tables": {**DOCUMENT["tables"], "notes": {"columns": {"b": {"type": "text"}}}}}}
            seen.append(tracker.call("owner", "PUT", "/schema", json=body).status)
        finally:
            connections.close_all()

    monkeypatch.setattr(branching, "require_both", change_meanwhile)
    answer = branch("preview", data="full")
    assert seen == [503]
    assert (answer.status, answer.json["schema_version"]) == (201, 1)
    change()
    assert seen == [503, 200]


def test_a_change_under_way_is_waited_for_and_its_schema_is_copied(tracker: Tracker, branch: Branch) -> None:
    """The copy's snapshot is older than the change: it begins again, instead of mixing two versions."""
    document = {"tables": {**DOCUMENT["tables"], "notes": {"columns": {"b": {"type": "text", "null": True}}}}}
    changing, go_on = threading.Event(), threading.Event()

    def change() -> None:
        try:
            with transaction.atomic(using=REGION):
                row = CurrentVersion.objects.using(REGION).select_for_update().get(pk=tracker.environment_id)
                changing.set()
                assert go_on.wait(10)
                record = SchemaVersion.objects.using(REGION).get(environment_id=tracker.environment_id)
                with connections[REGION].cursor() as cursor:
                    cursor.execute(f'CREATE TABLE "{tracker.environment_id}".spare (id int)')
                row.save()  # the row is new for older snapshots
                assert record.version == row.version
        finally:
            connections.close_all()

    thread = threading.Thread(target=change)
    thread.start()
    assert changing.wait(10)
    timer = threading.Timer(0.5, go_on.set)
    timer.start()
    try:
        answer = branch("preview", data="full")
    finally:
        go_on.set()
        thread.join(10)
        timer.join()
    assert answer.status == 201
    assert len(rows(tracker, "tasks", answer.json["id"])) == 2
    tracker.apply(document)


@pytest.mark.exhaustive
def test_rows_written_meanwhile_are_all_there_or_none_of_them(tracker: Tracker, branch: Branch) -> None:
    """Each writer's pair of rows, made in one transaction, is in the copy as a pair."""
    stop = threading.Event()

    def write() -> None:
        try:
            number = 0
            while not stop.is_set():
                number += 1
                body = [{"name": f"{number} {half}", "owner_id": tracker.users["bob"]} for half in "ab"]
                assert tracker.post("owner", "/rows/lists", body).status == 201
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        answers = [branch(f"b{number}", data="full") for number in range(3)]
    finally:
        stop.set()
        writer.join(10)
    for answer in answers:
        assert answer.status == 201
        names = [each["name"] for each in everything(tracker, "lists", answer.json["id"])]
        assert len(names) % 2 == 1  # the pairs, and "Home"


def everything(tracker: Tracker, table: str, environment: str) -> list[Any]:
    found: list[Any] = []
    cursor = ""
    while True:
        page = tracker.api.get(
            f"/v1/rows/{table}?limit=100{cursor}", token=tracker.tokens["owner"], environment=environment
        ).json
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_unavailable_region_is_503_and_leaves_nothing(tracker: Tracker, branch: Branch, monkeypatch: Any) -> None:
    alias = connections[REGION]
    alias.close()
    monkeypatch.setitem(alias.settings_dict, "NAME", "nowhere")
    try:
        for data in ("none", "full"):
            answer = branch("preview", data=data)
            assert (answer.status, answer.error) == (503, "unavailable")
            assert int(answer.headers["Retry-After"]) >= 1
    finally:
        alias.close()
        monkeypatch.undo()
    assert Environment.objects.count() == 2
    assert not AuditEntry.objects.filter(action="environment.branched").exists()
    assert len(schemas_in(REGION)) == 2
    assert branch("preview", data="full").status == 201


def test_a_reader_is_not_in_the_way(tracker: Tracker, branch: Branch) -> None:
    with (
        embedded_postgres.connect(django_settings.LAYOUT, connections[REGION].settings_dict["NAME"]) as other,
        other.transaction(),
    ):
        other.execute(f'SELECT * FROM "{tracker.environment_id}".tasks FOR UPDATE')
        assert branch("preview", data="full").status == 201
