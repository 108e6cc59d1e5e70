"""`GET /v1/openapi.json?environment=env_…`: valid, and true of the rows of this environment alone."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from rows.codegen import generated, openapi, role_tables
from rows.migrate import computation_slots
from rows.schema.model import SQL_TYPES
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.openapi import validate_description
from tests.support.typescript import DOCUMENT, HOSTILE, one_table

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def ask(tracker: Tracker, who: str = "owner", role: str | None = "user", **how: Any) -> Answer:
    query = f"environment={tracker.environment_id}" + (f"&role={role}" if role else "")
    return tracker.api.get(f"/v1/openapi.json?{query}", token=tracker.tokens[who], **how)


def description(tracker: Tracker, role: str | None = "user", who: str = "owner") -> dict[str, Any]:
    answer = ask(tracker, who, role)
    assert answer.status == 200, answer.json
    found: dict[str, Any] = answer.json
    return found


def component(described: dict[str, Any], name: str) -> Any:
    """A validator of one component."""
    whole = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    return jsonschema_rs.validator_for(whole)


def operations(described: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        operation["operationId"]: (method, path)
        for path, item in described["paths"].items()
        for method, operation in item.items()
    }


class TestDocument:
    @pytest.mark.parametrize("role", ["user", "editor", "anonymous", "member", None])
    def test_it_is_valid_and_every_reference_leads_somewhere(self, tracker: Tracker, role: str | None) -> None:
        found = description(tracker, role)
        assert found["openapi"] == "3.1.0"
        validate_description(found)
        for kind, name in re.findall(r'"#/components/(\w+)/([^"]+)"', json.dumps(found)):
            assert name in found["components"][kind]

    @pytest.mark.exhaustive
    def test_operation_ids_are_unique(self, tracker: Tracker) -> None:
        document = one_table({"a": {"type": "text"}})
        rules = {"user": {"read": {}, "insert": {}, "update": {}, "delete": {}}}
        for name in ("list", "tasks", "tasks_update", "rows", "tasks_rows", "update_rows", "get", "row", "rows_list"):
            document["tables"][name] = {"columns": {"a": {"type": "text"}}, "rules": rules}
        tracker.apply(document)
        found = description(tracker)
        ids = [operation["operationId"] for item in found["paths"].values() for operation in item.values()]
        assert len(ids) == len(set(ids))
        assert len({re.sub(r"(?<=[a-z])([A-Z])", r"_\1", each).lower() for each in ids}) == len(ids)

    def test_document_has_platform_operations_but_not_generic_row_operations(self, tracker: Tracker) -> None:
        platform = tracker.api.get("/v1/openapi.json").json
        found = description(tracker)
        generic = {path for path in platform["paths"] if path.startswith("/v1/rows/{table}")}
        assert len(generic) == 5
        assert {path: found["paths"][path] for path in platform["paths"] if path not in generic} == {
            path: item for path, item in platform["paths"].items() if path not in generic
        }
        assert not generic & found["paths"].keys()

    def test_a_table_has_the_operations_that_the_role_has(self, tracker: Tracker) -> None:
        found = operations(description(tracker))
        reads = {"list", "query", "get", "aggregate", "explain"}
        writes = {"insert", "update", "update_rows", "delete", "delete_rows"}

        def of(table: str) -> set[str]:
            return {each.removeprefix(f"{table}_") for each in found if each.startswith(f"{table}_")}

        assert of("lists") == reads
        assert of("tasks") == reads | writes
        assert of("comments") == reads | {"insert"}
        assert of("letters") == {"insert"}
        assert of("vault") == set()
        assert found["tasks_get"] == ("get", "/v1/rows/tasks/{row_id}")

    def test_no_text_of_a_tenant_changes_its_shape(self, tracker: Tracker) -> None:
        tracker.apply(one_table({"kind": {"type": "enum", "values": HOSTILE, "null": True}}))
        found = description(tracker)
        validate_description(found)
        kind = found["components"]["schemas"]["things_row"]["properties"]["kind"]
        assert kind == {"type": ["string", "null"], "enum": [*HOSTILE, None]}


class TestTruth:
    def test_rows_and_bodies_of_the_service_fit_it(self, tracker: Tracker) -> None:
        described = description(tracker)
        lists = tracker.post(
            "key", "/rows/lists", [{"name": n, "owner_id": tracker.users[n]} for n in ("alice", "bob")]
        )
        mine, other = (each["id"] for each in lists.json["data"])
        body = {"title": "a", "list_id": mine, "price": "1.50", "tags": {"$add": ["x"]}, "meta": {"a": None}}
        component(described, "tasks_new").validate(body)
        made = tracker.post("alice", "/rows/tasks", body)
        component(described, "tasks_created").validate(made.json)
        component(described, "tasks_created").validate(
            tracker.post("alice", "/rows/tasks", [body | {"title": "b"}]).json
        )
        changes = {"price": {"$inc": 1}, "done": True, "internal": None}
        component(described, "tasks_changes").validate(changes)
        changed = tracker.patch("alice", f"/rows/tasks/{made.json['id']}", changes)
        assert changed.status == 200
        component(described, "tasks_row").validate(changed.json)
        tracker.post("key", "/rows/tasks", {"title": "c", "list_id": other, "owner_id": tracker.users["bob"]})
        for query in ("", "?columns=title", "?with=list,comments,children,parent.list&count=exact"):
            page = tracker.get("alice", f"/rows/tasks{query}")
            component(described, "tasks_page").validate(page.json)
        written = tracker.post("alice", "/rows/letters", {"text": "x"})
        component(described, "letters_created").validate(written.json)

    @pytest.mark.parametrize(
        "body",
        [
            {"titel": "a", "list_id": "x"},
            {"title": "a"},
            {"title": 1, "list_id": "x"},
            {"title": "a", "list_id": "x", "stage": "opn"},
            {"title": "a", "list_id": "x", "owner_id": "usr_1"},
            {"title": "a", "list_id": "x", "done": {"$inc": 1}},
            {"title": "a", "list_id": "x", "done": None},
            {"title": "a", "list_id": "x", "id": "chosen"},
            [],
        ],
    )
    def test_what_the_service_refuses_does_not_fit_it(self, tracker: Tracker, body: Any) -> None:
        assert not component(description(tracker), "tasks_new").is_valid(body)
        assert tracker.post("alice", "/rows/tasks", body).status == 422

    @pytest.mark.exhaustive
    def test_a_generated_python_client_knows_the_columns(self, tracker: Tracker, tmp_path: Path) -> None:
        (tmp_path / "described.json").write_bytes(ask(tracker).body)
        command = [str(Path(sys.executable).with_name("openapi-python-client")), "generate", "--meta", "none"]
        done = subprocess.run(
            [*command, "--path", "described.json", "--output-path", "tables_client"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert "Unable" not in done.stdout, done.stdout
        sys.path.insert(0, str(tmp_path))
        try:
            models: Any = importlib.import_module("tables_client.models")
            operation: Any = importlib.import_module("tables_client.api.rows.tasks_insert")
        finally:
            sys.path.remove(str(tmp_path))
        assert callable(operation.sync)
        assert models.TasksRow.from_dict({"id": "row_1", "title": "a", "notes": None}).title == "a"


class TestAttacks:
    def test_what_no_rule_grants_to_the_role_is_not_there(self, tracker: Tracker) -> None:
        text = ask(tracker).body.decode()
        platform = tracker.api.get("/v1/openapi.json").body.decode()
        for name in ("vault", "tasks_internal", "mine", "lists_insert"):
            assert text.count(f'"{name}"') == platform.count(f'"{name}"'), name
        schemas = description(tracker)["components"]["schemas"]
        assert "secret" not in schemas["lists_row"]["properties"]
        assert "internal" not in schemas["tasks_row"]["properties"]
        assert "internal" in schemas["tasks_insert"]["properties"]  # may be written
        editor = description(tracker, "editor")["components"]["schemas"]
        assert set(editor["comments_row"]["properties"]) == {"id", "stars"}

    def test_without_a_role_it_is_that_of_the_caller(self, tracker: Tracker) -> None:
        document = one_table({"a": {"type": "text"}, "b": {"type": "text", "null": True}})
        document["tables"]["things"]["rules"] = {"server": {"read": {"columns": ["a"]}}, "member": {"read": {}}}
        tracker.apply(document)
        for who, columns in (("key", {"id", "a"}), ("owner", {"id", "a", "b", "created_at", "updated_at"})):
            row = description(tracker, None, who)["components"]["schemas"]["things_row"]
            assert set(row["properties"]) == columns, who

    def test_another_tenants_environment_is_not_there(self, tracker: Tracker, make_tracker: Any) -> None:
        other = make_tracker({"tables": {"theirs": {"columns": {"x": {"type": "text"}}}}}, "Other")
        path = f"/v1/openapi.json?environment={other.environment_id}"
        for who in ("owner", "viewer", "key"):
            for header in (None, tracker.environment_id, other.environment_id):
                answer = tracker.api.get(path, token=tracker.tokens[who], environment=header)
                assert (answer.status, answer.error) == (404, "not_found"), (who, header)
                assert b"theirs" not in answer.body
        unknown = f"/v1/openapi.json?environment=env_{'0' * 26}"
        assert tracker.api.get(unknown, token=tracker.tokens["owner"]).status == 404

    def test_it_needs_a_token_and_the_scope_schema_read(self, tracker: Tracker) -> None:
        for who in ("reader", "operator", "alice"):
            assert (ask(tracker, who).status, ask(tracker, who).error) == (403, "forbidden")
        path = f"/v1/openapi.json?environment={tracker.environment_id}"
        for headers in ({}, {"Authorization": "Bearer sk_00000000000000000000000000000000000000"}):
            assert tracker.api.get(path, headers=headers).status == 401
        assert tracker.api.post(path, token=tracker.tokens["owner"]).status == 405

    @pytest.mark.parametrize(
        ("query", "fields"),
        [
            ("environment=", {"environment": "invalid_id"}),
            ("environment=production", {"environment": "invalid_id"}),
            ("environment={0}&environment={0}", {"environment": "repeated"}),
            ("environment={0}&role=nobody", {"role": "unknown"}),
            ("environment={0}&rol=user", {"rol": "unknown_parameter"}),
        ],
    )
    def test_bad_parameters_are_named(self, tracker: Tracker, query: str, fields: dict[str, str]) -> None:
        path = f"/v1/openapi.json?{query.format(tracker.environment_id)}"
        answer = tracker.api.get(path, token=tracker.tokens["owner"])
        assert (answer.status, answer.fields) == (422, fields)

    def test_the_public_description_never_has_a_table(self, tracker: Tracker) -> None:
        ask(tracker)
        public = tracker.api.get("/v1/openapi.json", token=tracker.tokens["owner"], environment=tracker.environment_id)
        assert public.status == 200
        assert "tasks_row" not in public.json["components"]["schemas"]


def test_the_tag_stands_for_the_text(tracker: Tracker) -> None:
    tag = ask(tracker).headers["ETag"]
    again = ask(tracker, headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
    tracker.apply(one_table({"a": {"type": "text"}}))
    assert ask(tracker, headers={"If-None-Match": tag}).status == 200


@pytest.mark.parametrize("path", ["openapi.json?environment={}&role=", "schema/types.ts?role="])
def test_a_text_is_made_once_for_each_version_and_role(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made: list[tuple[str, int]] = []
    make = role_tables.tables_for

    def counted(rules: Any, role_key: str) -> Any:
        made.append((role_key, len(rules.schema.tables)))
        return make(rules, role_key)

    def get(role: str, who: str = "owner") -> Answer:
        at = f"/v1/{path.format(tracker.environment_id)}{role}"
        return tracker.api.get(at, token=tracker.tokens[who], environment=tracker.environment_id)

    monkeypatch.setattr(generated, "tables_for", counted)
    texts = {role: get(role).body for role in ("user", "editor", "anonymous")}
    assert len(set(texts.values())) == 3
    assert {role: get(role, "viewer").body for role in texts} == texts
    assert len(made) == 3
    tracker.apply(one_table({"a": {"type": "text"}}))
    after = get("user").body
    assert after not in texts.values()
    assert (len(made), get("user").body) == (4, after)
    monkeypatch.setattr(generated, "MAX_BYTES", 100)
    tracker.apply(one_table({"b": {"type": "text"}}))
    assert get("user").body == get("user").body
    assert len(made) == 6, "too large to be stored"


def test_texts_are_made_in_the_slots_of_plans(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ask(tracker)
    monkeypatch.setattr(computation_slots._slots, "acquire", lambda *_, **__: None)
    assert ask(tracker).body == made.body
    busy = ask(tracker, role="editor")
    assert (busy.status, busy.error, busy.headers["Retry-After"]) == (503, "unavailable", "1")
    assert busy.json["error"]["message"] == "Other schemas are being described or planned. Try again shortly."


def test_each_column_type_is_described() -> None:
    assert openapi._TYPES.keys() == SQL_TYPES.keys()
