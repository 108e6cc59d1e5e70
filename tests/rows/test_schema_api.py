"""`/v1/schema` over HTTP: read, plan, apply, confirm, history, revert; and permissions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import connections

from accounts.models import AuditEntry, User
from platform_site.http import pagination
from platform_site.identity import plans
from projects.models import Environment
from rows.models import CurrentVersion, SchemaVersion
from tests.projects.conftest import environment_of, key_for, make_project, token_of
from tests.projects.conftest import make_account as make_account
from tests.rows.conftest import Tracker
from tests.support import catalog
from tests.support.client import Answer, Api
from tests.support.schema_documents import TRACKER
from tests.support.tenants import REGION

pytestmark = pytest.mark.django_db(databases="__all__")


class Schema:
    """The schema of one environment as one caller sees it."""

    def __init__(self, api: Api, environment: Environment, token: str) -> None:
        self.api, self.environment, self.token = api, environment, token

    def _call(self, method: str, path: str = "", **how: Any) -> Answer:
        headers = {"X-Environment": self.environment.pk, **how.pop("headers", {})}
        return self.api.request(method, f"/v1/schema{path}", token=self.token, headers=headers, **how)

    def get(self, path: str = "", **how: Any) -> Answer:
        return self._call("GET", path, **how)

    def put(
        self, document: Any, *, if_match: str | None = None, headers: dict[str, str] | None = None, **rest: Any
    ) -> Answer:
        headers = {**(headers or {}), **({"If-Match": if_match} if if_match is not None else {})}
        return self._call("PUT", json={"document": document, **rest}, headers=headers)

    def revert(self, version: int, **rest: Any) -> Answer:
        return self._call("POST", "/revert", json={"version": version, **rest})

    def tables(self) -> set[str]:
        return {row[0] for row in catalog.catalog(self.environment.pk)["columns"]}


@pytest.fixture
def alice(make_account: Any) -> User:
    user: User = make_account("alice")
    return user


@pytest.fixture
def environment(alice: User) -> Environment:
    return environment_of(make_project(alice))


@pytest.fixture
def schema(api: Api, alice: User, environment: Environment) -> Schema:
    return Schema(api, environment, token_of(alice))


def without(document: dict[str, Any], table: str, column: str) -> dict[str, Any]:
    changed = deepcopy(document)
    del changed["tables"][table]["columns"][column]
    return changed


def names(answer: Answer) -> list[str]:
    return [operation["operation"] for operation in answer.json["operations"]]


def unconfirmed(answer: Answer) -> list[str]:
    return [error["message"] for error in answer.json["error"]["fields"] if error["code"] == "unconfirmed"]


def test_a_new_environment_is_at_version_0_without_tables(schema: Schema) -> None:
    answer = schema.get()
    assert (answer.status, answer.headers["ETag"]) == (200, '"0"')
    assert answer.json == {
        "version": 0, "document": {"tables": {}}, "applied_at": None, "applied_by": None, "indexes_pending": False
    }  # fmt: skip
    assert schema.get("/versions").json == {"data": [], "next_cursor": None}


def test_an_unchanged_schema_is_304(schema: Schema) -> None:
    schema.put(TRACKER)

    def status(tag: str) -> int:
        return schema.get(headers={"If-None-Match": tag}).status

    assert [status(tag) for tag in ('"1"', 'W/"1"', '"0", "1"', "*", '"2"', "1")] == [304, 304, 304, 304, 200, 200]
    versions = CurrentVersion.objects.using(REGION).filter(environment_id=schema.environment.pk)
    versions.update(indexes_due=True)
    pending = schema.get(headers={"If-None-Match": '"1"'})
    assert (pending.status, pending.json["indexes_pending"]) == (200, True)
    assert schema.put({"tables": {}}, if_match=pending.headers["ETag"], dry_run=True).status == 200
    versions.update(indexes_due=False)
    assert status(pending.headers["ETag"]) == 200, "the indexes are built"
    schema.put({"tables": {}}, confirm=["drop table lists", "drop table tasks"])
    assert status('"1"') == 200


def test_a_document_is_applied_and_read_back_as_it_was_written(schema: Schema, alice: User) -> None:
    answer = schema.put(TRACKER)
    assert (answer.status, answer.headers["ETag"]) == (200, '"1"')
    assert names(answer) == ["create table lists", "create table tasks"]
    assert answer.json["version"] == 1
    assert schema.tables() == {"lists", "tasks"}
    found = schema.get().json
    assert found["document"] == TRACKER
    assert list(found["document"]["tables"]["tasks"]["columns"]) == list(TRACKER["tables"]["tasks"]["columns"])
    assert (found["version"], found["applied_by"]) == (1, alice.pk)


def test_the_same_document_twice_changes_nothing_the_second_time(schema: Schema) -> None:
    schema.put(TRACKER)
    again = schema.put(TRACKER)
    assert (again.status, again.json["version"], again.json["operations"]) == (200, 1, [])
    assert SchemaVersion.objects.using(catalog.REGION).count() == 1


def test_document_that_swaps_names_is_idempotent(schema: Schema) -> None:
    text = {"type": "text", "null": True}
    schema.put({"tables": {"a": {"columns": {"x": text, "y": text}}}})
    catalog.run(schema.environment.pk, "INSERT INTO a (id, x, y) VALUES ('1', 'was x', 'was y')")
    swapped = {"tables": {"a": {"columns": {"x": {**text, "renamed_from": "y"}, "y": {**text, "renamed_from": "x"}}}}}
    assert schema.put(swapped).json["version"] == 2
    assert schema.put(swapped).json["version"] == 2
    assert catalog.run(schema.environment.pk, "SELECT x, y FROM a") == [("was y", "was x")]


def test_rules_alone_make_a_version_without_sql(schema: Schema) -> None:
    schema.put(TRACKER)
    changed = deepcopy(TRACKER)
    changed["tables"]["lists"]["rules"]["user"]["delete"] = {"where": {"owner_id": "$user.id"}}
    answer = schema.put(changed)
    assert answer.json["operations"] == [{"operation": "change rules of lists", "sql": [], "destructive": False}]
    assert answer.json["version"] == 2


def test_a_dry_run_lists_the_very_statements_and_changes_nothing(schema: Schema) -> None:
    schema.put(TRACKER)
    changed = without(TRACKER, "tasks", "internal")
    changed["tables"]["tasks"]["rules"]["user"]["read"].pop("columns")
    rehearsed = schema.put(changed, dry_run=True)
    assert (rehearsed.status, rehearsed.json["version"], rehearsed.json["dry_run"]) == (200, 1, True)
    assert schema.get().json["version"] == 1
    assert ("tasks", "internal") in {row[:2] for row in catalog.catalog(schema.environment.pk)["columns"]}
    applied = schema.put(changed, confirm=["drop column tasks.internal"])
    assert applied.json["operations"] == rehearsed.json["operations"]
    assert applied.json["operations"][0] == {
        "operation": "drop column tasks.internal",
        "sql": ['ALTER TABLE "tasks" DROP COLUMN "internal" CASCADE'],
        "destructive": True,
    }


def test_schema_warnings_are_in_the_plan_and_do_not_prevent_the_change(schema: Schema) -> None:
    assert schema.put(TRACKER, dry_run=True).json["warnings"] == []
    changed = deepcopy(TRACKER)
    changed["tables"]["tasks"]["rules"] = {"editor": {"read": {"columns": ["*", "-internal"]}, "update": {}}}
    planned = schema.put(changed, dry_run=True)
    [said] = planned.json["warnings"]
    assert (said["field"], said["code"]) == ("document.tables.tasks.rules.editor.update", "hidden")
    assert "internal" in said["message"]
    applied = schema.put(changed)
    assert (applied.status, applied.json["version"], applied.json["warnings"]) == (200, 1, [said])
    again = schema.put(changed)
    assert (again.json["operations"], again.json["warnings"]) == ([], [said])
    assert schema.put(TRACKER).json["warnings"] == []


def test_what_loses_data_must_be_confirmed_by_name(schema: Schema) -> None:
    schema.put(TRACKER)
    changed = {"tables": {"lists": TRACKER["tables"]["lists"]}}
    for confirm in ([], ["drop table lists"], ["drop table task"], ["drop"]):
        refused = schema.put(changed, confirm=confirm)
        assert (refused.status, refused.error) == (422, "validation_failed")
        assert refused.fields == {"confirm": "unconfirmed"}
        assert unconfirmed(refused) == ["drop table tasks"]
    assert schema.tables() == {"lists", "tasks"}
    assert schema.put(changed, confirm=["drop table tasks"]).status == 200
    assert schema.tables() == {"lists"}


def test_if_match_holds_the_change_to_the_version_that_was_read(schema: Schema) -> None:
    assert schema.put(TRACKER, if_match='"0"').status == 200
    changed = without(TRACKER, "tasks", "due_on")
    for stale in ('"0"', '"2"', '"99999999999"', "abc", 'W/"2"'):
        refused = schema.put(changed, if_match=stale, confirm=["drop column tasks.due_on"])
        assert (refused.status, refused.error) == (412, "precondition_failed")
        assert schema.put(changed, if_match=stale, dry_run=True).status == 412
    assert schema.get().json["version"] == 1
    assert schema.put(changed, if_match='W/"1"', dry_run=True).status == 200, "a proxy that compresses made it weak"
    assert schema.put(changed, if_match='"1"', confirm=["drop column tasks.due_on"]).json["version"] == 2
    assert schema.put(TRACKER, if_match="*").status == 200


def test_a_condition_that_no_schema_can_meet_changes_nothing(schema: Schema) -> None:
    """`If-None-Match: *` asks for a first schema, and must not replace the one that is there."""
    assert schema.put(TRACKER).status == 200
    headers = {"If-None-Match": "*"}
    refused = schema.put(without(TRACKER, "tasks", "done"), confirm=["drop column tasks.done"], headers=headers)
    assert (refused.status, refused.fields) == (422, {"If-None-Match": "not_allowed"})
    assert schema.get().json["version"] == 1


def test_errors_name_their_path_in_the_body_all_at_once(schema: Schema) -> None:
    wrong = deepcopy(TRACKER)
    wrong["tables"]["tasks"]["columns"]["owner"] = {"type": "reference", "to": "usrs"}
    wrong["tables"]["lists"]["columns"]["name"]["max_length"] = "100"
    answer = schema.put(wrong)
    assert answer.status == 422
    assert answer.fields == {
        "document.tables.tasks.columns.owner.to": "unknown",
        "document.tables.lists.columns.name.max_length": "invalid",
    }
    assert schema.get().json["version"] == 0
    assert schema.tables() == set()


def test_rules_that_cannot_be_compiled_are_refused_with_their_path(schema: Schema) -> None:
    wrong = deepcopy(TRACKER)
    wrong["tables"]["lists"]["rules"]["user"]["read"]["where"] = {"ownr_id": "$user.id"}
    answer = schema.put(wrong)
    assert answer.status == 422
    assert list(answer.fields) == ["document.tables.lists.rules.user.read.where.ownr_id"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "document"), ({"document": None}, "document"), ({"document": []}, "document"),
        ({"document": "{}"}, "document"), ({"document": {"tables": {}}, "dry_run": "yes"}, "dry_run"),
        ({"document": {"tables": {}}, "confirm": "all"}, "confirm"),
        ({"document": {"tables": {}}, "confirm": [5]}, "confirm.0"),
    ],
)  # fmt: skip
def test_bad_bodies_are_named(schema: Schema, body: dict[str, Any], field: str) -> None:
    answer = schema._call("PUT", json=body)
    assert (answer.status, answer.error) == (422, "validation_failed")
    assert any(name.startswith(field) for name in answer.fields)


def test_bodies_that_cannot_be_read_are_refused(schema: Schema) -> None:
    for body in (b"", b"{", b"[]", b"null", b'{"document": {"tables": {}}, "document": {}}', b"\xff", b"NaN"):
        assert schema._call("PUT", body=body, content_type="application/json").status in (400, 422)
    deep = b'{"document":' + b'{"tables":' * 10_000 + b"1" + b"}" * 10_000 + b"}"
    assert schema._call("PUT", body=deep, content_type="application/json").status in (400, 422)
    assert schema._call("PUT", body=b"{}", content_type="text/plain").status == 415


def test_misfit_rows_are_reported_by_column_without_their_values(schema: Schema) -> None:
    text = {"tables": {"a": {"columns": {"x": {"type": "text"}}}}}
    schema.put(text)
    catalog.run(schema.environment.pk, "INSERT INTO a (id, x) VALUES ('1', 'very secret')")
    answer = schema.put({"tables": {"a": {"columns": {"x": {"type": "integer"}}}}})
    assert answer.fields == {"document.tables.a.columns.x": "invalid"}
    assert b"secret" not in answer.body
    answer = schema.put({"tables": {"a": {"columns": {"x": {"type": "text"}, "y": {"type": "text"}}}}}, dry_run=True)
    assert answer.fields == {"document.tables.a.columns.y": "required"}
    assert schema.get().json["version"] == 1


def test_the_history_has_every_version_newest_first_page_by_page(schema: Schema, alice: User) -> None:
    for n in range(3):
        schema.put({"tables": {f"t{n}": {"columns": {}}}}, confirm=[f"drop table t{n - 1}"])
    first = schema.get("/versions?limit=2").json
    assert [version["version"] for version in first["data"]] == [3, 2]
    assert first["data"][0]["operations"] == ["create table t2", "drop table t1"]
    assert first["data"][0]["applied_by"] == alice.pk
    second = schema.get(f"/versions?limit=2&cursor={first['next_cursor']}").json
    assert ([version["version"] for version in second["data"]], second["next_cursor"]) == ([1], None)
    assert schema.get("/versions/2").json["document"] == {"tables": {"t1": {"columns": {}}}}
    for unknown in ("0", "4", "99999999999999999999"):
        assert schema.get(f"/versions/{unknown}").status == 404
    for bad in ("limit=0", "limit=101", "limit=x", "cursor=x", "page=2"):
        assert schema.get(f"/versions?{bad}").status == 422


def test_a_page_of_large_documents_holds_fewer_versions(schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred documents of a megabyte, read and parsed, would take a process's memory."""
    monkeypatch.setattr(pagination, "MAX_PAGE_BYTES", 30_000)
    for version in range(1, 7):
        values = [f"{number:0200}" for number in range(100 if version == 3 else 8)]
        column = {"type": "enum", "values": values, "default": values[0]}
        assert schema.put({"tables": {f"t{n}": {"columns": {"c": column}} for n in range(version)}}).status == 200
    pages: list[list[int]] = []
    cursor = ""
    while cursor is not None:
        page = schema.get(f"/versions?limit=5{cursor and '&cursor='}{cursor}").json
        pages.append([version["version"] for version in page["data"]])
        cursor = page["next_cursor"]
    assert [version for page in pages for version in page] == [6, 5, 4, 3, 2, 1]
    assert [3] in pages
    assert 3 <= len(pages) < 6, pages


def test_going_back_renames_back_and_keeps_the_rows(schema: Schema) -> None:
    text = {"type": "text", "null": True}
    original = {
        "tables": {"a": {"columns": {"x": text, "y": text}}, "b": {"columns": {"a": {"type": "reference", "to": "a"}}}}
    }
    schema.put(original)
    catalog.run(schema.environment.pk, "INSERT INTO a (id, x) VALUES ('1', 'kept')")
    catalog.run(schema.environment.pk, "INSERT INTO b (id, a_id) VALUES ('1', '1')")
    schema.put({"tables": {
        "c": {"renamed_from": "a", "columns": {"z": {**text, "renamed_from": "x"}, "y": text}},
        "b": {"columns": {"c": {"type": "reference", "to": "c", "renamed_from": "a"}}},
    }})  # fmt: skip
    schema.put({"tables": {
        "d": {"renamed_from": "c", "columns": {"w": {**text, "renamed_from": "z"}}},
        "b": {"columns": {"c": {"type": "reference", "to": "d"}}},
    }}, confirm=["drop column d.y"])  # fmt: skip
    rehearsed = schema.revert(1, dry_run=True).json
    assert schema.get().json["version"] == 3
    answer = schema.revert(1)
    assert (answer.status, answer.json["version"]) == (200, 4)
    assert answer.json["operations"] == rehearsed["operations"]
    assert "rename table d to a" in names(answer)
    assert not any(operation["destructive"] for operation in answer.json["operations"])
    assert schema.get().json["document"] == original
    assert catalog.run(schema.environment.pk, "SELECT a.x, a.y FROM a JOIN b ON b.a_id = a.id") == [("kept", None)]
    assert schema.get("/versions/4").json["reverts_to"] == 1
    assert schema.revert(9).status == 404
    assert unconfirmed(schema.revert(0)) == ["drop table a", "drop table b"]


def test_a_column_that_comes_back_not_null_gets_a_backfill(schema: Schema) -> None:
    columns = {
        "name": {"type": "text"},
        "price": {"type": "decimal", "precision": 6, "scale": 2},
        "is_new": {"type": "boolean"},
    }
    assert schema.put({"tables": {"items": {"columns": columns}}}).status == 200
    fewer = {"tables": {"items": {"columns": {"name": {"type": "text"}}}}}
    confirm = ["drop column items.price", "drop column items.is_new"]
    assert schema.put(fewer, confirm=confirm).status == 200
    catalog.run(schema.environment.pk, "INSERT INTO items (id, name) VALUES ('itm_1', 'Tea')")
    missing = {f"document.tables.items.columns.{name}": "required" for name in ("price", "is_new")}
    assert schema.revert(1).fields == missing
    del missing["document.tables.items.columns.price"]
    assert schema.revert(1, backfill={"items.price": "1.50"}).fields == missing
    for backfill, fields in (
        ([], {"backfill": "not_an_object"}),
        ({"items": 1, "items.none": 1, "none.price": 1}, dict.fromkeys(("backfill.items", "backfill.items.none", "backfill.none.price"), "unknown")),
        ({"items.price": "much", "items.is_new": True}, {"document.tables.items.columns.price.backfill": "invalid"}),
        ({"items.price": 1.5, "items.is_new": None}, {"document.tables.items.columns.is_new": "required"}),
    ):  # fmt: skip
        refused = schema.revert(1, backfill=backfill)
        assert (refused.status, refused.fields.keys()) == (422, fields.keys()), refused.json
    assert schema.revert(0, backfill={"items.price": 1}).fields == {"backfill.items.price": "unknown"}
    assert schema.get().json["version"] == 2
    backfill = {"items.price": "1.50", "items.is_new": False, "items.name": "ignored"}
    assert schema.revert(1, backfill=backfill, dry_run=True).status == 200
    assert schema.revert(1, backfill=backfill).status == 200
    assert schema.get().json["document"]["tables"]["items"]["columns"] == columns
    [row] = catalog.run(schema.environment.pk, "SELECT name, price::text, is_new FROM items")
    assert row == ("Tea", "1.50", False)


def test_who_may_not_sees_nothing_and_changes_nothing(api: Api, environment: Environment, make_account: Any) -> None:
    reader = Schema(api, environment, key_for(environment.pk, "schema:read"))
    assert reader.get().status == 200
    for refused in (reader.put(TRACKER), reader.put(TRACKER, dry_run=True), reader.revert(0)):
        assert (refused.status, refused.error) == (403, "forbidden")
    blind = Schema(api, environment, key_for(environment.pk, "rows:read"))
    assert {blind.get().status, blind.get("/versions").status, blind.put(TRACKER).status} == {403}
    app_user = make_account("eve", pool_id=environment.pk)
    user = Schema(api, environment, token_of(app_user, environment.pk))
    assert {user.get().status, user.put(TRACKER).status} == {403}
    stranger = Schema(api, environment, token_of(make_account("charlie")))
    assert {stranger.get().status, stranger.put(TRACKER).status, stranger.get("/versions/1").status} <= {404, 422}
    other = environment_of(make_project(make_account("dave")))
    writer = Schema(api, environment, key_for(other.pk, "schema:read", "schema:write"))
    assert {writer.get().status, writer.put(TRACKER).status} == {404}
    assert CurrentVersion.objects.using(catalog.REGION).count() == 0


def test_the_environment_list_reads_the_version_from_the_region(schema: Schema, api: Api) -> None:
    schema.put(TRACKER)
    project_id = schema.environment.project_id
    listed = api.get(f"/v1/projects/{project_id}/environments", token=schema.token).json["data"]
    assert {item["name"]: (item["schema_version"], item["status"]) for item in listed} == {
        "production": (1, "ready"), "development": (0, "ready")
    }  # fmt: skip


def test_each_environment_has_its_own_schema(schema: Schema, api: Api) -> None:
    schema.put(TRACKER)
    development = Environment.objects.get(project_id=schema.environment.project_id, name="development")
    other = Schema(api, development, schema.token)
    assert other.get().json["version"] == 0
    assert other.put({"tables": {"tasks": {"columns": {}}}}).json["version"] == 1
    assert schema.get().json["document"] == TRACKER


def test_the_trail_says_who_changed_what_once_it_is_there_to_stay(
    schema: Schema, alice: User, django_capture_on_commit_callbacks: Any
) -> None:
    @contextmanager
    def committed() -> Iterator[None]:
        capture = partial(django_capture_on_commit_callbacks, execute=True)
        with capture(using="default"), capture(using=catalog.REGION):
            yield

    with committed():
        schema.put(TRACKER)
        assert not AuditEntry.objects.filter(action__startswith="schema.").exists()
    with committed():
        schema.put({"tables": {}})
        schema.put(TRACKER, dry_run=True)
    with committed():
        schema.revert(0, confirm=["drop table lists", "drop table tasks"])
    first, second = AuditEntry.objects.filter(action__startswith="schema.").order_by("at", "id")
    assert (first.action, first.actor_id, first.environment_id) == ("schema.applied", alice.pk, schema.environment.pk)
    assert first.detail == {"version": 1, "operations": ["create table lists", "create table tasks"]}
    assert (second.action, second.detail["version"]) == ("schema.reverted", 2)


def test_a_revert_is_repeated_by_its_key_and_done_once(schema: Schema) -> None:
    schema.put(TRACKER)
    how = {
        "json": {"version": 0, "confirm": ["drop table lists", "drop table tasks"]},
        "headers": {"Idempotency-Key": "k1"},
    }
    first, again = schema._call("POST", "/revert", **how), schema._call("POST", "/revert", **how)
    assert first.status == again.status == 200
    assert first.body == again.body
    assert again.headers["Idempotency-Replayed"] == "true"
    assert schema.get().json["version"] == 2


def test_the_plan_bounds_the_tables_and_says_how_many_there_are(
    make_tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def document(tables: int) -> dict[str, Any]:
        return {"tables": {f"table_{number}": {"columns": {}} for number in range(tables)}}

    tracker: Tracker = make_tracker(document(3))
    free = plans.PLANS["free"]
    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "free": replace(free, tables_per_environment=2)})
    assert tracker.get("owner", "/limits").json["limits"]["tables_per_environment"] == {"limit": 2, "used": 3}
    for body in ({"document": document(4)}, {"document": document(4), "dry_run": True}):
        refused = tracker.call("owner", "PUT", "/schema", json=body)
        assert (refused.status, refused.error) == (422, "quota_exceeded")
    assert tracker.get("owner", "/schema").json["version"] == 1
    # What grew under a larger plan may stay, change and shrink.
    tracker.apply(document(2))
    assert tracker.get("owner", "/limits").json["limits"]["tables_per_environment"]["used"] == 2


@pytest.mark.parametrize("rehearsed", [False, True])
def test_an_environment_that_a_restore_lost_says_what_to_do(
    schema: Schema, environment: Environment, rehearsed: bool
) -> None:
    """It is in the control database, and was made after its region's backup."""
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(f'DROP SCHEMA "{environment.pk}"')
    got = schema.put(TRACKER, dry_run=rehearsed)
    assert (got.status, got.json["error"]["code"]) == (409, "conflict")
    assert "Delete it, or its project" in got.json["error"]["message"]
    environment.refresh_from_db()
    assert environment.status == "ready"


def test_a_dry_run_counts_the_impact_for_who_may_read_rows(make_tracker: Callable[..., Tracker]) -> None:
    tracker = make_tracker(TRACKER)
    email = User.objects.get(pk=tracker.users["alice"]).email
    in_list = tracker.post("key", "/rows/lists", {"name": "l", "owner_id": tracker.users["alice"]}).json["id"]
    task = {"title": "t", "list_id": in_list, "owner_id": tracker.users["alice"]}
    assert tracker.post("key", "/rows/tasks", task).status == 201
    document = deepcopy(TRACKER)
    document["tables"]["tasks"]["rules"]["user"]["read"] = {"where": {"done": True}}
    change = {"document": document, "dry_run": True, "impact": True}

    def told(token: str) -> Answer:
        return tracker.api.put("/v1/schema", json=change, token=token, environment=tracker.environment_id)

    found = told(tracker.tokens["owner"]).json["impact"]
    [alice] = [each for each in found if each["subject"] == f"{email} (role user)"]
    assert (alice["table"], alice["before"], alice["after"], alice["vanishing"]) == ("tasks", 1, 0, 1)
    assert (alice["is_sample"], alice["not_counted"]) == (False, None)
    reader = key_for(tracker.environment_id, "schema:read", "schema:write", "rows:read")
    assert not any("@" in each["subject"] for each in told(reader).json["impact"]), "users need users:manage"
    refused = told(key_for(tracker.environment_id, "schema:read", "schema:write"))
    assert (refused.status, "rows:read" in refused.json["error"]["message"]) == (403, True)
    change = {**change, "dry_run": False}
    assert told(tracker.tokens["owner"]).fields == {"impact": "invalid"}
    assert tracker.get("owner", "/schema").json["version"] == 1
