"""`GET /v1/schema/types.ts`, checked by the TypeScript compiler of Deno."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from functions.runtime.launch import deno
from rows.codegen.role_tables import RoleTables, tables_for
from rows.codegen.typescript import types_module
from rows.models import CurrentVersion, SchemaVersion
from rows.rules.operators import OPERATORS
from rows.rules.rules import Ruleset
from rows.schema.parser import parse
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.timing import within
from tests.support.typescript import DOCUMENT, HOSTILE, TYPES, one_table

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]

PATH = "/schema/types.ts"

Check = Callable[..., str]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Runs the compiler on modules (name → text), and returns what it complains about."""

    def check(**modules: str) -> str:
        for name, text in modules.items():
            (tmp_path / f"{name}.ts").write_text(text)
        environ = {"PATH": os.environ["PATH"], "DENO_DIR": str(tmp_path / "deno"), "NO_COLOR": "1"}
        command = [deno(), "check", "--no-config", "--no-remote", *(f"{name}.ts" for name in modules)]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ)
        complaints = found.stderr if found.returncode else ""
        assert bool(found.returncode) == bool(re.search(r"TS\d+ \[ERROR\]", complaints)), found.stderr
        return complaints

    return check


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def types(tracker: Tracker, role: str | None = "user", who: str = "owner", **how: Any) -> Answer:
    return tracker.get(who, f"{PATH}?role={role}" if role else PATH, **how)


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.json
    assert answer.headers["Content-Type"] == "application/typescript"
    return answer.body.decode("ascii")


def store(tracker: Tracker, document: dict[str, Any]) -> None:
    """Make `document` the current version without its tables in PostgreSQL, which take a minute for a large one."""
    region, environment_id = tracker.project.region, tracker.environment_id
    SchemaVersion.objects.using(region).create(
        environment_id=environment_id,
        version=2,
        document_text=json.dumps(document),
        source_digest="",
        author_kind="key",
    )
    CurrentVersion.objects.using(region).filter(environment_id=environment_id).update(version=2)


def test_files_that_must_and_that_must_not_compile(tracker: Tracker, check: Check) -> None:
    complaints = check(
        types=text_of(types(tracker)),
        good=(TYPES / "must_compile.ts").read_text(),
        bad=(TYPES / "must_not_compile.ts").read_text(),
    )
    assert complaints == ""


def test_a_misspelled_table_is_an_error_that_names_it(tracker: Tracker, check: Check) -> None:
    wrong = 'import type { Row } from "./types.ts";\nexport type Found = Row<"tsaks">;\n'
    assert '"tsaks"' in check(types=text_of(types(tracker)), wrong=wrong)


def test_rows_of_the_service_have_their_types(tracker: Tracker, check: Check) -> None:
    def created(who: str, table: str, **values: Any) -> Any:
        answer = tracker.post(who, f"/rows/{table}", values)
        assert answer.status == 201, answer.json
        return answer.json

    mine = created("key", "lists", name="A", owner_id=tracker.users["alice"])
    other = created("key", "lists", name="B", owner_id=tracker.users["bob"])
    task = created("alice", "tasks", title="a", list_id=mine["id"], meta={"a": [1, None]}, tags=["x"], price=1.5)
    created("alice", "comments", body="b", task_id=task["id"])
    created("key", "tasks", title="b", list_id=other["id"], owner_id=tracker.users["bob"], parent_id=task["id"])
    found = tracker.get("alice", "/rows/tasks?with=list,comments,children.list,parent").json["data"]
    # Unreadable list and cell are null, as the types say.
    assert [(row["list"] is None, row["notes"] is None) for row in found] == [(False, False), (True, True)]
    program = f"""
        import type {{ Row, RowWith }} from "./types.ts";
        type Found = RowWith<"tasks", "list" | "comments" | "children.list" | "parent">;
        export const rows: Found[] = {json.dumps(found)};
        export const whole: Row<"tasks"> = {json.dumps(task)};
        export const answer: keyof Row<"tasks"> extends {" | ".join(json.dumps(name) for name in task)} ? true : never = true;
    """
    assert check(types=text_of(types(tracker)), program=program) == ""


def test_what_no_rule_grants_to_the_role_is_not_there(tracker: Tracker) -> None:
    seen = text_of(types(tracker, "user"))
    for name in ("secret", "vault", "code", "mine", "hidden"):
        assert not re.search(rf"\b{name}\b", seen), name
    assert re.search(r"^      internal\?: string \| null;$", seen, re.MULTILINE)  # may be written, not read
    assert not re.search(r"^      internal: ", seen, re.MULTILINE)
    editor = text_of(types(tracker, "editor"))  # other tables do not name it: there it is a user
    assert re.search(
        r"comments: \{\n    row: \{\n      id: string;\n      stars: number;\n    \};\n    insert: never;", editor
    )
    nobody = text_of(types(tracker, "anonymous"))
    assert "export interface Tables {\n}" in nobody
    assert all(f"  {table}: {{" in text_of(types(tracker, "server")) for table in DOCUMENT["tables"])


def test_without_a_role_it_is_that_of_the_caller(tracker: Tracker) -> None:
    document = one_table({"a": {"type": "text"}, "b": {"type": "text", "null": True}})
    document["tables"]["things"]["rules"] = {"server": {"read": {"columns": ["a"]}}, "member": {"read": {}}}
    tracker.apply(document)
    for who, role, columns in (
        ("key", "server", {"a"}),
        ("owner", "member", {"a", "b"}),
        ("viewer", "viewer", {"a", "b"}),
    ):
        seen = text_of(types(tracker, None, who))
        assert f'as the role "{role}"' in seen
        assert set(re.findall(r"^      ([ab]): string", seen, re.MULTILINE)) == columns
        assert "insert: never" in seen


def test_an_environment_without_tables_has_types(tracker: Tracker, check: Check) -> None:
    tracker.apply({"tables": {}})
    program = 'import type { TableName } from "./types.ts";\nexport const name = (found: TableName): never => found;\n'
    assert check(types=text_of(types(tracker)), program=program) == ""


def test_a_column_that_every_object_inherits(check: Check) -> None:
    document = one_table({"constructor": {"type": "text", "null": True}, "n": {"type": "integer", "default": 0}})
    document["tables"]["things"]["rules"]["user"]["update"] = {}
    rules = Ruleset(parse(document))
    program = """
        import type { Filter, Insert, Row, Update } from "./types.ts";
        export const filters: Filter<"things">[] = [{}, { n: 1 }, { constructor: "a" }, { constructor: { $ne: null } }];
        export const values: Insert<"things">[] = [{}, { n: 1 }, { constructor: "a" }, { constructor: null }];
        export const changes: Update<"things">[] = [{}, { n: 1 }, { constructor: "a" }];
        export const cell = (row: Row<"things">): string | null => row.constructor;
        // @ts-expect-error a number
        export const wrong: Filter<"things"> = { constructor: 1 };
        // @ts-expect-error a number
        export const wrongToo: Insert<"things"> = { constructor: 1 };
    """
    found = types_module(RoleTables("env_1", 1, "user", tables_for(rules, "user")))
    assert check(types=found, program=program) == ""


def test_users_are_embedded_with_the_fields_that_are_open_to_the_role(check: Check) -> None:
    rules = Ruleset(parse(DOCUMENT))
    rules.resolver("user").user_fields = ("id", "name")
    found = types_module(RoleTables("env_1", 1, "user", tables_for(rules, "user")))
    program = """
        import type { Filter, RelationPath, RowWith } from "./types.ts";
        declare const row: RowWith<"tasks", "owner" | "list.owner" | "comments">;
        export const names: (string | undefined)[] = [row.owner?.name, row.list?.owner?.id];
        export const next: string | undefined = row.comments_next;
        // @ts-expect-error a deleted user is null
        export const name: string = row.owner.name;
        // @ts-expect-error not open to the role
        export const email = row.owner?.email;
        // @ts-expect-error rows have no cells of users
        export const filter: Filter<"tasks"> = { "owner.name": "Ada" };
        // @ts-expect-error users have no relations
        export const path: RelationPath<"tasks"> = "owner.list";
        // @ts-expect-error only to-many relations have a rest
        export const rest = row.list_next;
    """
    assert check(types=found, program=program) == ""
    closed = types_module(RoleTables("env_1", 1, "user", tables_for(Ruleset(parse(DOCUMENT)), "user")))
    wrong = 'import type { RelationPath } from "./types.ts";\nexport const path: RelationPath<"tasks"> = "owner";\n'
    assert "TS2322" in check(types=closed, program=wrong)


def test_no_text_of_a_tenant_leaves_its_place(tracker: Tracker, check: Check) -> None:
    names = ("prototype", "delete", "class", "never", "row", "types", "hasownproperty")
    document = one_table(
        {name: {"type": "text", "null": True} for name in names}
        | {"kind": {"type": "enum", "values": HOSTILE, "null": True}},
        conditions={"is": {"kind": HOSTILE[0]}},
    )
    document["tables"] |= {name: {"columns": {}, "rules": {"user": {"read": {}}}} for name in ("row", "string", "json")}
    tracker.apply(document)
    found = text_of(types(tracker))
    without_texts = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', found)
    assert "stolen" not in without_texts
    accepted = "\n".join(f"  {json.dumps(text)}," for text in HOSTILE)
    program = f"""
        import * as everything from "./types.ts";
        export const values: everything.Row<"things">["kind"][] = [
        {accepted}
        ];
        // @ts-expect-error not one of them
        export const other: everything.Row<"things">["kind"] = "stolen";
        export const name: everything.Row<"things">["prototype"] = null;
        export const filter: everything.Filter<"things"> = {{ $is: "is", class: {{ $ne: "x" }}, kind: values[0] }};
        // The module has no values at run time.
        export const nothing: keyof typeof everything extends never ? true : false = true;
    """
    assert check(types=found, program=program) == ""


def test_each_type_takes_the_operators_that_fit(tracker: Tracker, check: Check) -> None:
    kinds = [kind for kind in OPERATORS if kind != "reference"]
    more = {"decimal": {"precision": 9, "scale": 2}, "enum": {"values": ["a"]}}
    columns = {f"c{number}": {"type": kind, **more.get(kind, {})} for number, kind in enumerate(kinds)}
    columns["up"] = {"type": "reference", "to": "things", "null": True}
    tracker.apply(one_table(columns))
    names = {kind: f"c{number}" for number, kind in enumerate(kinds)} | {"user": f"c{kinds.index('user')}_id"}
    names["reference"] = "up_id"
    lines = [
        'import type { Filter } from "./types.ts";',
        'type Cell<C extends keyof Filter<"things">> = Extract<Filter<"things">[C], { $null?: boolean }>;',
    ]
    for number, (kind, fitting) in enumerate(OPERATORS.items()):
        keys = f'keyof Cell<"{names[kind]}"> & `${{string}}`'
        lines.append(f"export const fits{number}: ({keys})[] = {json.dumps(sorted(fitting))};")
        for operator in sorted(frozenset().union(*OPERATORS.values()) - fitting):
            lines.append("// @ts-expect-error does not fit")
            lines.append(
                f'export const {operator}{number}: Filter<"things"> = {{ {names[kind]}: {{ {operator}: "x" }} }};'
            )
    assert check(types=text_of(types(tracker)), program="\n".join(lines)) == ""


class TestRefusals:
    def test_an_unknown_role_is_named_and_a_near_one_proposed(self, tracker: Tracker) -> None:
        for role, told in (
            ("edtor", 'did you mean "editor"?'),
            ("nobody", "anonymous, user, member, server, editor"),
            ("", ""),
        ):
            answer = types(tracker, role) if role else tracker.get("owner", f"{PATH}?role=")
            assert (answer.status, answer.fields) == (422, {"role": "unknown"})
            assert told in answer.json["error"]["fields"][0]["message"]

    def test_an_unknown_parameter_is_refused(self, tracker: Tracker) -> None:
        assert tracker.get("owner", f"{PATH}?rol=user").fields == {"rol": "unknown_parameter"}

    def test_it_needs_the_scope_schema_read(self, tracker: Tracker) -> None:
        for who in ("reader", "operator", "alice"):
            assert (types(tracker, who=who).status, types(tracker, who=who).error) == (403, "forbidden"), who

    def test_another_tenants_environment_is_not_there(self, tracker: Tracker, make_tracker: Any) -> None:
        other = make_tracker({"tables": {"theirs": {"columns": {"x": {"type": "text"}}}}}, "Other")
        for who in ("owner", "viewer", "key"):
            answer = tracker.api.get(f"/v1{PATH}", token=tracker.tokens[who], environment=other.environment_id)
            assert answer.status == 404
            assert b"theirs" not in answer.body


def test_the_tag_stands_for_the_text(tracker: Tracker) -> None:
    tag = types(tracker).headers["ETag"]
    again = types(tracker, headers={"If-None-Match": tag})
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    assert types(tracker, "editor", headers={"If-None-Match": tag}).status == 200
    tracker.apply(one_table({"a": {"type": "text"}}))
    assert types(tracker, headers={"If-None-Match": tag}).status == 200


def test_a_hundred_tables_take_200_ms_and_compile(tracker: Tracker, check: Check) -> None:
    store(tracker, {"tables": {f"t{number}": wide_table(number) for number in range(100)}})
    types(tracker)
    began = time.perf_counter()
    found = text_of(types(tracker))
    took = time.perf_counter() - began
    assert took < within(0.2)
    program = """
        import type { Filter, OrderKey, RowWith } from "./types.ts";
        export const filter: Filter<"t5"> = { "r1.r2.r3.c4": { $gt: 3 } };
        export const order: OrderKey<"t5"> = "r1.r2.r3.c1.desc";
        export const read = (row: RowWith<"t5", "r1.r2">): string | null | undefined => row.r1?.r2?.c0;
        // @ts-expect-error misspelled at the end of a path
        export const wrong: Filter<"t5"> = { "r1.r2.r3.c44": { $gt: 3 } };
    """
    assert check(types=found, program=program) == ""


def wide_table(number: int) -> dict[str, Any]:
    kinds = ("text", "integer", "date", "json", "float")
    columns: dict[str, Any] = {f"c{each}": {"type": kinds[each % 5], "null": True} for each in range(20)}
    for each in range(5):
        far = f"t{(number * 7 + each * 13 + 1) % 100}"
        columns[f"r{each}"] = {"type": "reference", "to": far, "null": True, "related_name": f"back{number}_{each}"}
    return {"columns": columns, "rules": {"user": {"read": {}, "insert": {}}}}


def test_tables_that_all_refer_to_each_other_list_shorter_paths(tracker: Tracker, check: Check) -> None:
    names = [f"t{number}" for number in range(30)]

    def table(own: str) -> dict[str, Any]:
        references = {
            f"to_{far}": {"type": "reference", "to": far, "null": True, "related_name": f"from_{own}"} for far in names
        }
        return {"columns": references, "rules": {"user": {"read": {}}}}

    store(tracker, {"tables": {own: table(own) for own in names}})
    found = text_of(types(tracker))
    assert set(re.findall(r"depth: (\d);$", found, re.MULTILINE)) == {"1"}
    program = """
        import type { Filter, RelationPath } from "./types.ts";
        export const filter: Filter<"t5"> = { "to_t7.to_t8_id": null, to_t7: { $some: { "to_t8.to_t9_id": null } } };
        export const path: RelationPath<"t5"> = "to_t7";
    """
    assert check(types=found, program=program) == ""
