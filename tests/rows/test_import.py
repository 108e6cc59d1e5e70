"""`import_rows` and `export_rows`: everything or nothing, bad lines by their number, and the same rows back."""

import gzip
import io
import json
import os
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounts import audit
from accounts.models import User
from accounts.users import service as accounts
from platform_site.cli import errors as command_errors
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import transaction_settings
from projects.directory.environments import environment_ref
from projects.provisioning import schemas as provisioning_schemas
from rows import tasks as rows_tasks
from rows.changes import watched_tables
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.models import PendingUserReferences
from rows.outbox.models import EventInterest, OutboxEvent, WatchedTable
from rows.schema.column_values import MAX_ROW_BYTES
from rows.schema.parser import parse
from rows.schema.values import InvalidValue
from rows.transfer import copy_lines, csv_reader, import_report, importer
from rows.transfer.csv_reader import EndlessRecord, InvalidRecord
from rows.transfer.file_formats import RecordFile
from rows.write.references import dangling_references
from tests.projects.conftest import environment_of, make_project, schemas_in
from tests.projects.conftest import make_account as make_account
from tests.support import catalog
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks
from tests.support.project_crashes import Run, mortal_environment, mortal_process  # noqa: F401 - fixtures
from tests.support.project_crashes import run as run_and_kill  # noqa: F401 - a fixture

REGION = catalog.REGION

DOCUMENT: dict[str, Any] = {
    "tables": {
        "lists": {"id_prefix": "lst_", "columns": {"name": {"type": "text", "max_length": 20}}, "unique": [["name"]]},
        "tasks": {
            "id_prefix": "tsk_",
            "columns": {
                "title": {"type": "text", "max_length": 50},
                "list": {"type": "reference", "to": "lists", "on_delete": "cascade"},
                "parent": {"type": "reference", "to": "tasks", "null": True, "related_name": "children"},
                "owner": {"type": "user", "null": True},
                "done": {"type": "boolean", "default": False},
                "note": {"type": "text", "null": True},
                "rank": {"type": "integer", "null": True},
                "price": {"type": "decimal", "precision": 8, "scale": 2, "null": True},
                "ratio": {"type": "float", "null": True},
                "due_on": {"type": "date", "null": True},
                "at": {"type": "timestamp", "default": "$now"},
                "token": {"type": "uuid", "default": "$uuid"},
                "extra": {"type": "json", "default": {"a": [1]}},
                "tags": {"type": "text[]", "default": []},
                "state": {"type": "enum", "values": ["open", "shut"], "default": "open"},
            },
            "unique": [["list", "title"]],
        },
    }
}


@pytest.fixture
def environment(make_account: Any) -> Iterator[EnvironmentRef]:
    found = environment_ref(environment_of(make_project(make_account("alice"))).pk)
    assert found is not None
    schema_service.change(found, DOCUMENT, actor=audit.SYSTEM)
    query(found, "INSERT INTO lists (id, name) VALUES ('l1', 'Home'), ('l2', 'Work')")
    yield found
    for environment_id in schemas_in(REGION):
        provisioning_schemas.drop_schema(environment_id, REGION)


def query(environment: EnvironmentRef, statement: str) -> list[tuple[Any, ...]]:
    return catalog.run(environment.environment_id, statement)


def tasks(environment: EnvironmentRef) -> list[tuple[Any, ...]]:
    return query(environment, "SELECT id, title FROM tasks ORDER BY title")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def to_file(text: str | bytes, name: str = "rows.csv") -> str:
        path = tmp_path / name
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return to_file


def run(command: str, *arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command(command, *arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def refused(environment: EnvironmentRef, file: str, *options: str, table: str = "tasks") -> str:
    """The complaints of an import that must fail, and leave nothing."""
    before = tasks(environment)
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(
            "import_rows", environment.environment_id, table, file, *options, stdout=out, stderr=err, no_color=True
        )
    assert (
        "othing was imported" in str(caught.value)
        or "no table" in str(caught.value)
        or "Pass --format" in str(caught.value)
    )
    assert tasks(environment) == before
    return err.getvalue() + str(caught.value)


@pytest.mark.django_db(databases="__all__")
class TestImport:
    def test_csv_with_quotes_lines_nulls_and_defaults(self, environment: EnvironmentRef, write: Any) -> None:
        file = write(
            '\ufefftitle,list,note,rank,price,done,tags,extra,due_on,at\r\n'
            'Milk,l1,,,,,,,,\r\n'
            '"Say ""hi"", twice",l1,"",-5,1.50,true,"[""a,b""]","{""k"": null}",2026-01-31,2026-01-31 12:00:00+02\r\n'
            '"Two\nlines",list_is_not_this,x,,,f,,,,\r\n'.replace("list_is_not_this", "l2")
        )  # fmt: skip
        assert run("import_rows", environment.environment_id, "tasks", file)[0] == "3 rows imported.\n"
        found = query(
            environment,
            "SELECT title, list_id, note, rank, price::text, done, tags, extra::text, due_on::text, state,"
            " at = '2026-01-31T10:00:00Z', length(token::text), id ~ '^tsk_[0-9a-z]{26}$', created_at = updated_at"
            " FROM tasks ORDER BY title",
        )
        today = (None, "open", False, 36, True, True)
        assert found == [
            ("Milk", "l1", None, None, None, False, [], '{"a": [1]}', *today),
            ('Say "hi", twice', "l1", "", -5, "1.50", True, ["a,b"], '{"k": null}', "2026-01-31", "open", True, 36, True, True),
            ("Two\nlines", "l2", "x", None, None, False, [], '{"a": [1]}', *today),
        ]  # fmt: skip

    def test_ndjson_plain_and_gzipped_with_ids_and_times_of_their_own(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        lines = [
            {"id": "mine-1", "title": "A", "list_id": "l1", "extra": [0.30000000000000004],
             "created_at": "2020-01-01T00:00:00Z"},
            {"title": "B \\ \t tab", "list_id": "l2", "note": "\\N", "token": "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"},
        ]  # fmt: skip
        text = "\n\n".join(json.dumps(line) for line in lines)
        run("import_rows", environment.environment_id, "tasks", write(text, "rows.ndjson.gz"))
        found = query(environment, "SELECT id, title, note, extra::text, created_at::text FROM tasks ORDER BY title")
        assert found[0] == ("mine-1", "A", None, "[0.30000000000000004]", "2020-01-01 00:00:00+00")
        assert found[1][1:4] == ("B \\ \t tab", "\\N", '{"a": [1]}')

    @pytest.mark.parametrize("name", ["rows.ndjson", "rows.jsonl", "rows.ndjson.gz"])
    def test_a_byte_order_mark_is_ignored_at_the_beginning_of_ndjson_only(
        self, environment: EnvironmentRef, write: Any, name: str
    ) -> None:
        line = json.dumps({"title": "A", "list_id": "l1"})
        message = refused(environment, write(f"\ufeff{line}\n\ufeff{line}\n", name))
        assert "line 2: is not JSON" in message
        assert "line 1:" not in message
        assert (
            run("import_rows", environment.environment_id, "tasks", write(f"\ufeff{line}\n", name))[0]
            == "1 rows imported.\n"
        )
        blank_first = f"\ufeff\n{line.replace('A', 'B')}\n"
        run("import_rows", environment.environment_id, "tasks", write(blank_first, name))
        assert query(environment, "SELECT title FROM tasks ORDER BY title") == [("A",), ("B",)]

    def test_a_key_that_is_twice_in_an_object_is_an_error_of_its_line(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        lines = [
            '{"title": "A", "title": "B", "list_id": "l1"}',
            '{"title" :"C", "title" : "C", "list_id": "l1", "rank": 1}',
            '{"title": "D", "list_id": "l1", "extra": {"a": [{"b": 1, "b": 2}]}}',
            r'{"title": "E", "list_id": "l1", "note": "\": :", "extra": {"a": {"b": 1}, "b": [{"b": 2}, "\": \":"]}}',
        ]
        said = refused(environment, write("\n".join(lines), "rows.ndjson")).splitlines()
        assert said[:-1] == [f"line {number}: has a key twice in a JSON object" for number in (1, 2, 3)]
        text = 'title,list,extra\nA,l1,"{""a"": 1, ""a"": 2}"\nB,l1,"{""a"": {""a"": 1}}"\nC,l1,"[{""a"":1,""a"":1}]"\n'
        said = refused(environment, write(text)).splitlines()
        assert said[:-1] == [f"line {number}: has a key twice in a JSON object of extra" for number in (2, 4)]
        run("import_rows", environment.environment_id, "tasks", write(lines[3], "rows.ndjson"))
        assert query(environment, "SELECT title, note FROM tasks") == [("E", '": :')]

    def test_rows_of_one_file_may_point_to_each_other_in_any_order(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        run("import_rows", environment.environment_id, "tasks", write("id,title,list,parent\nc,C,l1,p\np,P,l1,\n"))
        assert query(environment, "SELECT id, parent_id FROM tasks ORDER BY id") == [("c", "p"), ("p", None)]

    def test_every_bad_line_is_named_and_nothing_is_imported(
        self, environment: EnvironmentRef, write: Any, make_account: Any
    ) -> None:
        query(environment, "INSERT INTO tasks (id, title, list_id) VALUES ('t0', 'There', 'l1')")
        eve: User = make_account("eve", pool_id=environment.pool_id)
        stranger: User = make_account("mallory")
        file = write("\n".join([
            "id,title,list,rank,owner,parent",
            "a,Good,l1,1,,",
            "b,Number,l1,x,,",
            "c,Nowhere,l9,1,,",
            "a,Again,l1,1,,",
            "t0,Taken,l1,1,,",
            "d,There,l1,1,,",
            "e,Good,l1,1,,",
            f"f,Eve,l1,1,{eve.pk},",
            f"g,Mallory,l1,1,{stranger.pk},",
            "h,Short,l1",
            "i," + "x" * 51 + ",l1,99999999999999999999,,",
            "j,,,,,",
            "query,Reserved,l1,1,,",
            "k,Orphan,l1,1,,zz",
            'l,Qu"ote,l1,1,,',
        ]))  # fmt: skip
        said = refused(environment, file).splitlines()
        assert said == [
            "line 3: rank: Must be an integer.",
            "line 4: list_id: refers to a row that does not exist",
            "line 5: id: is in this file twice",
            "line 6: id: is taken by a row of the table",
            "line 7: list_id, title: is taken by a row of the table",
            "line 8: list_id, title: is in this file twice",
            "line 10: owner_id: is not a user of the environment",
            "line 11: has 3 cells, the header has 6",
            "line 12: title: Must have at most 50 characters.",
            "line 12: rank: Must be a 64-bit integer.",
            "line 13: list_id: Must not be null.",
            "line 14: id: Is reserved.",
            "line 15: parent_id: refers to a row that does not exist",
            "line 16: has a quote inside cell 2: quote the cell and double it",
            "13 lines bad. Nothing was imported.",
        ]  # fmt: skip

    def test_skip_bad_imports_the_others_and_drops_what_leans_on_bad_ones(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        file = write("id,title,list,parent\na,A,l1,\nb,B,l9,\nc,C,l1,b\nd,D,l1,c\ne,E,l1,a\nf,A,l1,\n")
        out, err = run("import_rows", environment.environment_id, "tasks", file, "--skip-bad")
        assert out == "2 rows imported, 4 lines skipped.\n"
        assert [line.split(":")[0] for line in err.splitlines()] == ["line 3", "line 4", "line 5", "line 7"]
        assert [row[0] for row in tasks(environment)] == ["a", "e"]

    def test_a_number_is_written_as_elsewhere_and_not_as_python_would(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        file = write("title,list,ratio\nA,l1,1_000\nB,l1,\N{ARABIC-INDIC DIGIT ONE}\nC,l1,1e3\n")
        out, err = run("import_rows", environment.environment_id, "tasks", file, "--skip-bad")
        assert out == "1 rows imported, 2 lines skipped.\n"
        assert err.splitlines() == [f"line {number}: ratio: Must be a number." for number in (2, 3)]
        assert query(environment, "SELECT title, ratio FROM tasks") == [("C", 1000.0)]

    def test_a_dry_run_checks_everything_and_imports_nothing(self, environment: EnvironmentRef, write: Any) -> None:
        out, _ = run("import_rows", environment.environment_id, "tasks", write("title,list\nA,l1\n"), "--dry-run")
        assert out == "1 rows would be imported.\n"
        assert tasks(environment) == []
        assert "line 2: list_id" in refused(environment, write("title,list\nA,l9\n"), "--dry-run")

    def test_events_are_recorded_as_writes_record_them_and_only_where_wanted(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        file = write("id,title,list,price\na,A,l1,1.5\n")
        assert "events" not in run("import_rows", environment.environment_id, "tasks", file, "--events")[0]
        EventInterest.objects.using(REGION).create(
            environment_id=environment.environment_id, table_name="tasks", action="insert"
        )
        run("import_rows", environment.environment_id, "tasks", write("id,title,list\nb,B,l1\n"))
        assert not OutboxEvent.objects.using(REGION).exists()
        out, _ = run(
            "import_rows", environment.environment_id, "tasks", write("id,title,list,price\nc,C,l1,1.5\n"), "--events"
        )
        assert out == "1 rows imported, 1 events.\n"
        event = OutboxEvent.objects.using(REGION).get()
        assert (event.type, event.subject, event.schema_version) == ("tasks.insert", "tasks/c", 1)
        data = json.loads(event.data)
        assert (data["table"], data["id"], data["old_record"], data["changed"]) == ("tasks", "c", None, [])
        assert (data["record"]["title"], data["record"]["price"]) == ("C", "1.50")
        assert data["record"]["created_at"].endswith("Z")

    @pytest.mark.parametrize(
        ("interest", "events"),
        [
            ({"table_name": "tasks", "action": "*"}, 1),
            ({"table_name": "*", "action": "insert"}, 1),
            ({"table_name": "*", "action": "*"}, 1),
            ({"table_name": "tasks", "action": "update"}, 0),
            ({"table_name": "lists", "action": "insert"}, 0),
            ({"table_name": "*", "action": "*", "environment_id": ids.new("env")}, 0),
        ],
    )
    def test_events_are_recorded_for_who_wants_these(
        self, environment: EnvironmentRef, write: Any, interest: dict[str, str], events: int
    ) -> None:
        EventInterest.objects.using(REGION).create(**{"environment_id": environment.environment_id} | interest)
        run("import_rows", environment.environment_id, "tasks", write("title,list\nA,l1\n"), "--events")
        assert OutboxEvent.objects.using(REGION).count() == events

    def test_streams_list_their_rows_again_after_an_import_without_events(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        watched_tables.watch(environment, ["tasks"])
        before = WatchedTable.objects.using(REGION).get().generation
        run("import_rows", environment.environment_id, "tasks", write("id,title,list\na,A,l1\n"))
        assert WatchedTable.objects.using(REGION).get().generation != before

    def test_what_a_line_leaves_out_is_the_default_whatever_it_says(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        document = json.loads(json.dumps(DOCUMENT))
        columns = document["tables"]["tasks"]["columns"]
        columns |= {
            "literal": {"type": "text", "default": "\\N\t$now\n"},
            "word": {"type": "text", "default": "$uuid"},
            "empty": {"type": "text", "default": ""},
            "on": {"type": "date", "default": "$now"},
            "day": {"type": "date", "default": "2026-01-31"},
            "moment": {"type": "timestamp", "default": "2026-01-31T12:00:00+02:00"},
            "uuid": {"type": "uuid", "default": "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"},
        }
        schema_service.change(environment, document, actor=audit.SYSTEM)
        run("import_rows", environment.environment_id, "tasks", write("title,list\nA,l1\nB,l1\n"))
        found = query(
            environment,
            "SELECT literal, word, empty, \"on\" = (created_at AT TIME ZONE 'UTC')::date, day::text,"
            " moment = '2026-01-31T10:00:00Z', uuid::text, at = created_at FROM tasks",
        )
        expected = ("\\N\t$now\n", "$uuid", "", True, "2026-01-31", True, "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11", True)
        assert found == [expected, expected]
        assert query(environment, "SELECT count(DISTINCT id), count(DISTINCT token) FROM tasks") == [(2, 2)]

    def test_users_are_looked_for_some_at_a_time(
        self, environment: EnvironmentRef, write: Any, make_account: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importer, "_USERS_AT_ONCE", 2)
        known = [make_account(f"user{number}", pool_id=environment.pool_id).pk for number in range(3)]
        strange = [ids.new("usr") for _ in range(3)]
        lines = "".join(f"{number},l1,{owner}\n" for number, owner in enumerate([*strange, *known]))
        out, err = run(
            "import_rows", environment.environment_id, "tasks", write(f"title,list,owner\n{lines}"), "--skip-bad"
        )
        assert out == "3 rows imported, 3 lines skipped.\n"
        assert err.splitlines()[:3] == [f"line {n}: owner_id: is not a user of the environment" for n in (2, 3, 4)]
        assert query(environment, "SELECT owner_id FROM tasks ORDER BY title") == [(one,) for one in known]

    @pytest.mark.parametrize(
        ("text", "name", "message"),
        [
            ("", "rows.csv", "The file is empty"),
            ("titel,list\n", "rows.csv", 'a column "titel" that tasks does not have; did you mean "title"?'),
            ("title;list\n", "rows.csv", "a CSV file by commas. The command also takes --delimiter."),
            ("title\tlist\n", "rows.csv", "Separate the cells of a CSV file by commas."),
            ("title,list,list_id\n", "rows.csv", 'the column "list_id" twice'),
            ("title,,list\n", "rows.csv", 'a column "" that'),
            ('title,list\n"never closed,l1\nmore,l1\n', "rows.csv", "a quote is opened here and never closed"),
            ("title,list\nA,l1\n", "rows.txt", "Pass --format"),
            (b"title,list\n\xff\xfe,l1\n", "rows.csv", "line 2: is not UTF-8"),
            ('{"title": "A"}\n[1]\nnull\n{"x": 1}\n{"title": NaN}\n', "rows.ndjson", "line 2: is not a JSON object"),
            ('{"title": "A", "list_id": "l1", "owner": "x"}', "rows.ndjson", "line 1: owner: There is no such column."),
            ('{"title": "a\\u0000b", "list_id": "l1"}', "rows.ndjson", "line 1: title: Must not contain NUL"),
            ('{"title": "A", "list_id": "l1", "due_on": "0000-00-00"}', "rows.ndjson", "line 1: due_on:"),
            ('{"title": "A", "list_id": "l1", "price": 12.500000000000000001}', "rows.ndjson", "line 1: price: Has too many"),
            ('{"title": "A", "list_id": "l1", "done": "yes"}', "rows.ndjson", "line 1: done: Must be true or false."),
        ],
    )  # fmt: skip
    def test_files_that_cannot_be_imported_say_why(
        self, environment: EnvironmentRef, write: Any, text: Any, name: str, message: str
    ) -> None:
        assert message in refused(environment, write(text, name))

    def test_a_file_that_is_gzipped_only_by_name_is_refused(self, environment: EnvironmentRef, tmp_path: Path) -> None:
        (tmp_path / "rows.csv.gz").write_text("title,list\n")
        assert "not gzipped" in refused(environment, str(tmp_path / "rows.csv.gz"))
        (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"title,list\n" + b"A,l1\n" * 1000)[:-20])
        assert "cut off" in refused(environment, str(tmp_path / "cut.csv.gz"))

        (broken := bytearray(gzip.compress(b"title,list\n" + b"A,l1\n" * 1000)))[12] ^= 0xFF
        (tmp_path / "broken.csv.gz").write_bytes(broken)
        assert "not gzipped" in refused(environment, str(tmp_path / "broken.csv.gz"))

    @pytest.mark.exhaustive
    def test_a_row_larger_than_the_api_takes_is_a_bad_line(self, environment: EnvironmentRef, write: Any) -> None:
        """As text, and as JSON whose numbers PostgreSQL writes out: a line of 1 MB, a row of fifty."""
        good = {"title": "A", "list_id": "l1", "note": "x" * 1_000_000, "tags": ["y" * 1_000_000]}
        wide = {**good, "title": "B", "note": "x" * 4_200_000, "tags": ["y" * 4_200_000]}
        deep = '{"title": "C", "list_id": "l1", "extra": [' + ", ".join(["1e308"] * 150_000) + "]}"
        file = write("\n".join([json.dumps(good), json.dumps(wide), deep]), "rows.ndjson")
        said = refused(environment, file).splitlines()
        assert said[:2] == ["line 2: holds more than 8 MB", "line 3: holds more than 8 MB"]
        assert (
            "1 rows imported, 2 lines skipped"
            in run("import_rows", environment.environment_id, "tasks", file, "--skip-bad")[0]
        )

    def test_values_that_are_too_long_together_for_an_index_are_refused(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        document = json.loads(json.dumps(DOCUMENT))
        document["tables"]["tasks"]["columns"] |= {name: {"type": "text", "null": True} for name in ("a", "b")}
        document["tables"]["tasks"]["unique"].append(["a", "b"])
        schema_service.change(environment, document, actor=audit.SYSTEM)
        chance = random.Random(3)
        long = ["".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(800)) for _ in "ab"]
        row = {"title": "A", "list_id": "l1", "a": long[0], "b": long[1]}
        assert "values of a, b are together too long" in refused(environment, write(json.dumps(row), "rows.ndjson"))

    def test_a_chain_that_hangs_on_a_bad_line_is_taken_out_at_once(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        chain = [{"id": "c0", "title": "0", "list_id": "l1", "parent_id": "nowhere"}]
        chain += [
            {"id": f"c{n}", "title": str(n), "list_id": "l9" if n == 7 else "l1", "parent_id": f"c{n - 1}"}
            for n in range(1, 400)
        ]
        file = write("\n".join(map(json.dumps, [*chain, {"title": "good", "list_id": "l1"}])), "rows.ndjson")
        asked: list[str] = []

        def listen(execute: Any, sql: str, *rest: Any) -> Any:
            asked.append(str(sql))
            return execute(sql, *rest)

        with connections[REGION].execute_wrapper(listen):
            said = run("import_rows", environment.environment_id, "tasks", file, "--skip-bad", "--show", "1000")
        assert "1 rows imported, 400 lines skipped" in said[0]
        assert "line 400: parent_id: refers to a row that does not exist" in said[1]
        assert [title for _, title in tasks(environment)] == ["good"]
        assert len([one for one in asked if "DELETE" in one]) < 10

    def test_an_unknown_table_is_refused(self, environment: EnvironmentRef, write: Any) -> None:
        assert "no table" in refused(environment, write("title\n"), table='tasks"; DROP TABLE tasks; --')
        assert refused(environment, write("title\n"), table="task") == (
            'The environment has no table task; did you mean "tasks"?'
        )

    def test_only_so_many_bad_lines_are_shown_and_all_are_counted(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        file = write("title,list\n" + "A,l9\n" * 3000)
        said = refused(environment, file, "--show", "3").splitlines()
        assert len(said) == 5
        assert said[3].startswith("… and more, 3000 lines bad in all")

    def test_what_is_exported_comes_back_as_it_was(
        self, environment: EnvironmentRef, write: Any, tmp_path: Path
    ) -> None:
        nasty = {
            "title": 'a,"b"\n\r\t\\ ; é😀', "list_id": "l1", "note": "", "rank": -(2**63), "price": "1.50", "ratio": 1e-7,
            "due_on": "0001-01-01", "at": "9999-12-31T23:59:59.999999Z",
            "extra": {"x": ["\u2028", "\x01\x02", None], "n": [2**64, -(2**63) - 1, 10**40]},
            "tags": ["", "a,b", '"', "null"], "state": "shut", "done": True, "id": "Z-_9",
        }  # fmt: skip
        plain = {"title": "plain", "list_id": "l2", "id": "a", "extra": 0}
        run(
            "import_rows",
            environment.environment_id,
            "tasks",
            write(f"{json.dumps(nasty)}\n{json.dumps(plain)}", "rows.ndjson"),
        )
        [[extra]] = query(environment, "SELECT extra::text FROM tasks WHERE id = 'Z-_9'")
        assert json.loads(extra) == nasty["extra"], "with all its digits"
        whole = query(environment, "SELECT * FROM tasks ORDER BY id")
        for name in ("out.csv", "out.ndjson", "out.csv.gz", "out.jsonl.gz"):
            file = str(tmp_path / name)
            assert (
                run("export_rows", environment.environment_id, "tasks", "--no-progress", file)[1]
                == "2 rows exported.\n"
            )
            assert sorted(path.name for path in tmp_path.glob("*.part")) == []
            query(environment, "DELETE FROM tasks")
            assert run("import_rows", environment.environment_id, "tasks", file)[0] == "2 rows imported.\n"
            assert query(environment, "SELECT * FROM tasks ORDER BY id") == whole

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", ["out.csv", "out.ndjson"])
    def test_the_largest_row_comes_back_though_its_line_is_six_times_as_long(
        self, environment: EnvironmentRef, tmp_path: Path, name: str
    ) -> None:
        largest = f"ARRAY[repeat(chr(1), {MAX_ROW_BYTES - 100})]"
        query(environment, f"INSERT INTO tasks (id, title, list_id, tags) VALUES ('1', 'A', 'l1', {largest})")
        file = str(tmp_path / name)
        run("export_rows", environment.environment_id, "tasks", file)
        query(environment, "DELETE FROM tasks")
        assert run("import_rows", environment.environment_id, "tasks", file)[0] == "1 rows imported.\n"
        assert query(environment, f"SELECT tags = {largest} FROM tasks") == [(True,)]

    @pytest.mark.parametrize("name", ["out.csv", "out.ndjson.gz"])
    def test_an_export_is_for_its_owner_alone(self, environment: EnvironmentRef, tmp_path: Path, name: str) -> None:
        cut_off = (f"{name}.part", f"{name}.{os.getpid()}.part")  # the second by a process of the same number
        for before in (name, *cut_off):
            (tmp_path / before).touch(0o644)
        umask = os.umask(0)
        try:
            run("export_rows", environment.environment_id, "lists", str(tmp_path / name))
        finally:
            os.umask(umask)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert sorted(path.name for path in tmp_path.glob("*.part")) == sorted(cut_off)

    def test_an_export_has_the_columns_that_were_asked_for(self, environment: EnvironmentRef, tmp_path: Path) -> None:
        query(
            environment,
            "INSERT INTO tasks (id, title, list_id, note) VALUES ('1', 'A', 'l1', NULL), ('2', 'B', 'l1', '')",
        )
        file = str(tmp_path / "out.csv")
        run("export_rows", environment.environment_id, "tasks", file, "--columns", "list,note", "title")
        assert Path(file).read_text() == 'list_id,note,title\nl1,,A\nl1,"",B\n'
        with pytest.raises(CommandError, match="has no column nothing"):
            run("export_rows", environment.environment_id, "tasks", file, "--columns", "nothing")
        with pytest.raises(CommandError, match='no table lists_; did you mean "lists"'):
            run("export_rows", environment.environment_id, "lists_", file)
        assert Path(file).exists()


def another(environment: EnvironmentRef, alias: str = REGION) -> "psycopg.Connection[Any]":
    """A session beside ours."""
    facts = connections[alias].get_connection_params()
    known = {key: facts[key] for key in ("dbname", "user", "password", "host", "port") if facts.get(key)}
    return psycopg.connect(**known, options=f'-c search_path="{environment.environment_id}"')


def another_who_writes(environment: EnvironmentRef) -> "psycopg.Connection[Any]":
    """A session beside ours that has written a row, and has not committed."""
    other = another(environment)
    other.execute("INSERT INTO tasks (id, title, list_id) VALUES ('b', 'Mine', 'l1')")
    return other


def an_insert_waits() -> bool:
    """Whether somebody's INSERT waits for a lock."""
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT FROM pg_stat_activity WHERE query LIKE 'INSERT INTO %' AND wait_event_type = 'Lock'")
        return cursor.rowcount == 1


def owners_whose_tasks_go_with_them(environment: EnvironmentRef) -> list[User]:
    """Two users, `gone` and `stays`, of a schema in which deleting a user deletes their tasks."""
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["columns"]["owner"]["on_delete"] = "delete"
    schema_service.change(environment, document, actor=audit.SYSTEM)
    return [
        accounts.create_user(
            pool_id=environment.pool_id, email=f"{who}@x.example", password=None, name=who, actor=audit.SYSTEM
        )
        for who in ("gone", "stays")
    ]


@pytest.mark.django_db(transaction=True, databases="__all__")
class TestAmongOthers:
    def test_a_row_that_somebody_writes_meanwhile_stops_the_import_whole(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        file = RecordFile(io.BytesIO(b"id,title,list\na,A,l1\nb,B,l1\n"), "csv")
        checked = threading.Event()

        class Slow:
            def records(self, table: Any) -> Iterator[Any]:
                yield from file.records(table)
                self.other = another_who_writes(environment)
                threading.Timer(0.3, self.commit).start()

            def commit(self) -> None:
                self.other.commit()
                self.other.close()
                checked.set()

        with pytest.raises(import_report.ChangedDuringImport):
            importer.import_rows(environment, "tasks", Slow())
        assert checked.wait(5)
        assert tasks(environment) == [("b", "Mine")]

    def test_a_key_that_somebody_goes_on_holding_ends_the_import_in_a_sentence(
        self, environment: EnvironmentRef, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transaction_settings, "LOCK_TIMEOUT_MS", 200)
        file = write("id,title,list\na,A,l1\nb,B,l1\n")
        other = another_who_writes(environment)
        assert "at the same time. Nothing was imported; try again" in refused(environment, file)
        other.rollback()
        other.close()
        assert run("import_rows", environment.environment_id, "tasks", file)[0] == "2 rows imported.\n"

    def test_connection_lost_while_reading_the_file_is_a_database_error(self, environment: EnvironmentRef) -> None:
        class Cut:
            def records(self, table: Any) -> Iterator[Any]:
                yield 2, {"title": "A", "list_id": "l1", "note": "x" * 2**20}
                raw: Any = connections[REGION].connection
                with another(environment) as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])
                for number in range(3, 99):
                    yield number, {"title": f"{number}", "list_id": "l1", "note": "x" * 2**20}

        with pytest.raises(Error):
            importer.import_rows(environment, "tasks", Cut())
        assert tasks(environment) == []

    def test_what_is_left_to_do_after_an_import_takes_nothing_back(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        """Another session deletes a user of the environment, slowly."""
        file = write("id,title,list\na,A,l1\n")
        with another(environment, "default") as other:
            other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 4))", [environment.pool_id])
            assert run("import_rows", environment.environment_id, "tasks", file)[0] == "1 rows imported.\n"
            assert PendingUserReferences.objects.using(REGION).get().environment_id == environment.environment_id
        assert tasks(environment) == [("a", "A")]
        rows_tasks.apply_pending_user_deletions()
        assert not PendingUserReferences.objects.using(REGION).exists()

    def test_a_table_that_somebody_holds_ends_an_export_in_a_sentence(
        self, environment: EnvironmentRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transaction_settings, "LOCK_TIMEOUT_MS", 200)
        with another(environment) as other:
            other.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Error) as caught:
                run("export_rows", environment.environment_id, "tasks", str(tmp_path / "out.csv"))
        assert "Another session holds a lock" in str(command_errors.error_text(caught.value))
        assert os.listdir(tmp_path) == []

    def test_a_user_deleted_meanwhile_is_not_referenced(self, environment: EnvironmentRef) -> None:
        """After the lines were checked, and before other sessions can see them: no one else could."""
        gone, stays = owners_whose_tasks_go_with_them(environment)
        lines = f"id,title,list,owner\na,A,l1,{gone.pk}\nb,B,l1,{stays.pk}\n"
        file = RecordFile(io.BytesIO(lines.encode()), "csv")
        failed: list[BaseException] = []

        class Held:
            """The import waits for another's row of the same id, which then goes."""

            def records(self, table: Any) -> Iterator[Any]:
                yield from file.records(table)
                self.other = another_who_writes(environment)
                self.thread = threading.Thread(target=self.delete)
                self.thread.start()

            def delete(self) -> None:
                try:
                    wait_until(an_insert_waits)
                    accounts.delete_user(User.objects.get(pk=gone.pk), actor=audit.SYSTEM)
                except BaseException as error:
                    failed.append(error)
                finally:
                    self.other.rollback()
                    self.other.close()
                    connections.close_all()

        held = Held()
        report = importer.import_rows(environment, "tasks", held)
        held.thread.join()
        assert not failed
        assert report.rows == 2
        assert tasks(environment) == [("b", "B")]

    def test_a_user_whose_deletion_is_under_way_is_not_referenced(self, environment: EnvironmentRef) -> None:
        """It has found no row of the import, and commits after it."""
        gone, _ = owners_whose_tasks_go_with_them(environment)
        file = RecordFile(io.BytesIO(f"id,title,list,owner\na,A,l1,{gone.pk}\n".encode()), "csv")
        is_deleted = threading.Event()

        def delete() -> None:
            with transaction.atomic():
                accounts.delete_user(User.objects.get(pk=gone.pk), actor=audit.SYSTEM)
                is_deleted.set()
                wait_until(lambda: waiting_for_locks(DEFAULT_DB_ALIAS))

        class Held:
            def records(self, table: Any) -> Iterator[Any]:
                yield from file.records(table)
                assert is_deleted.wait(10)

        with ThreadPoolExecutor(1) as pool:
            deleting = pool.submit(in_thread, delete)
            assert importer.import_rows(environment, "tasks", Held()).rows == 1
            assert deleting.result() is None
        assert tasks(environment) == []

    def test_a_user_deleted_before_an_import_died_is_not_referenced(
        self,
        environment: EnvironmentRef,
        write: Any,
        run_and_kill: Run,  # noqa: F811
    ) -> None:
        gone, stays = owners_whose_tasks_go_with_them(environment)
        file = write(f"id,title,list,owner\na,A,l1,{gone.pk}\nb,B,l1,{stays.pk}\n")
        order = {"do": "import", "environment": environment.environment_id, "table": "tasks", "file": file}
        other = another_who_writes(environment)
        with ThreadPoolExecutor(1) as pool:
            dying = pool.submit(run_and_kill, **order, failpoint="dangling_references.before_remove")
            wait_until(an_insert_waits)
            accounts.delete_user(User.objects.get(pk=gone.pk), actor=audit.SYSTEM)
            other.rollback()
            other.close()
            assert dying.result()["signal"] == 9
        assert tasks(environment) == [("a", "A"), ("b", "B")]
        rows_tasks.apply_pending_user_deletions()
        assert tasks(environment) == [("b", "B")]
        assert not PendingUserReferences.objects.using(REGION).exists()

    def test_a_restore_that_died_at_its_end_is_finished_as_well(
        self,
        environment: EnvironmentRef,
        tmp_path: Path,
        run_and_kill: Run,  # noqa: F811
    ) -> None:
        file = str(tmp_path / "backup.zip")
        run("backup", environment.environment_id, "--to", file, "--no-progress")
        order = {"do": "restore into", "environment": environment.environment_id, "file": file}
        began = dangling_references.control_time()
        assert run_and_kill(**order, failpoint="dangling_references.before_remove")["signal"] == 9
        due = PendingUserReferences.objects.using(REGION).get(environment_id=environment.environment_id)
        assert began <= due.since <= dangling_references.control_time()

    def test_nothing_is_due_after_an_import_or_a_rehearsal_of_one(
        self, environment: EnvironmentRef, write: Any
    ) -> None:
        file = write("id,title,list\na,A,l1\n")
        run("import_rows", environment.environment_id, "tasks", file, "--dry-run")
        run("import_rows", environment.environment_id, "tasks", file)
        assert not PendingUserReferences.objects.using(REGION).exists()

    def test_what_is_due_to_an_environment_that_is_gone_is_dropped(self, environment: EnvironmentRef) -> None:
        PendingUserReferences.objects.using(REGION).create(
            environment_id=environment.environment_id, since=dangling_references.control_time()
        )
        PendingUserReferences.objects.using(REGION).create(
            environment_id=ids.new("env"), since=dangling_references.control_time()
        )
        rows_tasks.apply_pending_user_deletions()
        assert not PendingUserReferences.objects.using(REGION).exists()

    def test_a_schema_that_changes_meanwhile_stops_the_import_whole(self, environment: EnvironmentRef) -> None:
        changed = json.loads(json.dumps(DOCUMENT))
        changed["tables"]["tasks"]["columns"]["more"] = {"type": "text", "default": ""}

        class Meanwhile:
            def records(self, table: Any) -> Iterator[Any]:
                yield 2, {"title": "A", "list_id": "l1"}
                thread = threading.Thread(target=self.change)
                thread.start()
                thread.join(15)

            def change(self) -> None:
                schema_service.change(environment, changed, actor=audit.SYSTEM)
                connections.close_all()

        with pytest.raises(import_report.ChangedDuringImport):
            importer.import_rows(environment, "tasks", Meanwhile())
        assert tasks(environment) == []
        assert schema_versions.current(environment).version == 2

    @pytest.mark.exhaustive
    def test_standard_input_and_output_are_a_pipe(self, environment: EnvironmentRef) -> None:
        from tests.support.databases import database_variables

        def command(*arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
            import os

            return subprocess.run(
                [sys.executable, "manage.py", *arguments], input=given, capture_output=True,
                env=os.environ | database_variables(),
            )  # fmt: skip

        lines = b"".join(b'{"title": "T%d", "list_id": "l1"}\n' % n for n in range(500))
        done = command("import_rows", environment.environment_id, "tasks", "-", "--format", "ndjson", given=lines)
        assert (done.returncode, done.stdout) == (0, b"500 rows imported.\n"), done.stderr
        done = command("export_rows", environment.environment_id, "tasks", "--columns", "title")
        assert sorted(done.stdout.splitlines()) == sorted(b'{"title":"T%d"}' % n for n in range(500))

    @pytest.mark.exhaustive
    def test_fifty_thousand_rows_in_little_memory(self, environment: EnvironmentRef, write: Any) -> None:
        import resource

        lines = "".join(f"Task {n},l{n % 2 + 1},{n},{n}.25,2026-01-{n % 28 + 1:02}\n" for n in range(50_000))
        file = write("title,list,rank,price,due_on\n" + lines)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert run("import_rows", environment.environment_id, "tasks", file)[0] == "50000 rows imported.\n"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KB


# ── CSV itself ──────────────────────────────────────────────────────────────────────────────────────────────────────

cells = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8))


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(cells, min_size=2, max_size=4), max_size=6), st.sampled_from([",", ";", "\t", "|"]), st.booleans()
)
def test_csv_round_trip_distinguishes_null_from_empty_text(
    table: list[list[str | None]], delimiter: str, carefully: bool
) -> None:
    def quoted(cell: str | None) -> str:
        if cell is None:
            return ""
        plain = (
            cell and not carefully and not set(cell) & {'"', delimiter, "\r", "\n"} and not cell.startswith("\ufeff")
        )
        return cell if plain else '"' + cell.replace('"', '""') + '"'

    text = "".join(delimiter.join(map(quoted, row)) + "\r\n" for row in table)
    found = csv_reader.records(io.BytesIO(text.encode()), delimiter)
    assert [csv_reader.cells(record, delimiter) for _, record in found] == table


SOME_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12), st.lists(st.text(max_size=4)),
    st.sampled_from(["", "\\", "a\\b", "\t", "a\nb", "\0", "\ud800", "\u2028", "\xa0", "é" * 700, "a" * 2601, "2026-01-31", "2026-02-30",
                     "0000-00-00", "query", "explain", "lst_1", "a b", "usr_01kaaaaaaaaaaaaaaaaaaaaaaa", "open", "draft"]),
)  # fmt: skip
EVERY_COLUMN = parse(
    {
        "tables": {
            "lists": {"columns": {"name": {"type": "text"}}},
            "all": {
                "columns": {
                    "short": {"type": "text", "max_length": 3, "null": True},
                    "keyed": {"type": "text"},
                    "open": {"type": "text"},
                    "whole": {"type": "integer", "null": True},
                    "grade": {"type": "integer", "null": True, "min": 1, "max": 5},
                    "later": {"type": "date", "min": "2026-01-31", "null": True},
                    "long": {"type": "text", "min_length": 2},
                    "slug": {"type": "text", "format": "slug"},
                    "truth": {"type": "boolean"},
                    "day": {"type": "date", "null": True},
                    "state": {"type": "enum", "values": ["open", "draft", "a\tb"]},
                    "list": {"type": "reference", "to": "lists", "null": True},
                    "owner": {"type": "user"},
                    "tags": {"type": "text[]", "null": True},
                    "meta": {"type": "json", "null": True},
                    "price": {"type": "decimal", "precision": 8, "scale": 2},
                },
                "unique": [["keyed"]],
            },
        }
    }
).tables["all"]


@pytest.mark.exhaustive
@settings(max_examples=400, deadline=None)
@given(st.lists(SOME_VALUES, min_size=1, max_size=3))
@example([-(2**63) - 1, -(2**63), 2**63 - 1, 2**63])
def test_the_quick_spelling_of_a_cell_is_the_careful_one(several: list[Any]) -> None:
    for column in EVERY_COLUMN.all_columns.values():
        quick = copy_lines._quick(EVERY_COLUMN, column)
        for value in [*several, *several]:  # a second time from memory
            try:
                careful: bytes | str = copy_lines._cell(EVERY_COLUMN, column, value)
            except InvalidValue as error:
                careful = error.code
            try:
                cell: bytes | str | None = quick(value)
            except InvalidValue as error:
                cell = error.code
            assert not cell or cell == careful, (column.name, value)


def test_json_with_more_values_than_a_row_holds_is_not_read() -> None:
    many = MAX_ROW_BYTES // 2
    lines = [
        b'{"meta":[0' + b",[]" * many + b"]}",
        b'{"meta":[0' + b",1" * (many - 100) + b"]}",
        b'{"meta":[0' + b", 1" * (many - 100) + b"]}",
        b'{"open":"' + b"[]," * many + b'"}',
        b'{"open":"' + rb"\"," * many,
        b'{"meta":[0' + b",\t\t1" * (many - 100) + b"]}",
        b'{"tags":["a"' + b',"a"' * (many - 100) + b"]}",
    ]
    source = RecordFile(io.BytesIO(b"\n".join(lines)), "ndjson")
    records = [record for _, record in source.records(EVERY_COLUMN)]
    unread = records.pop(4)
    assert isinstance(unread, str)
    assert "is not JSON" in unread
    assert [record if isinstance(record, str) else set(record) for record in records] == [
        "holds more than 8 MB", {"meta"}, {"meta"}, {"open"}, {"meta"}, {"tags"}
    ]  # fmt: skip
    csv = b'meta\n"[0' + b",[]" * many + b']"\n'
    assert list(RecordFile(io.BytesIO(csv), "csv").records(EVERY_COLUMN)) == [(2, "holds more than 8 MB")]


def test_an_array_of_many_texts_is_as_large_as_it_is_stored() -> None:
    tags, most = EVERY_COLUMN.columns["tags"], MAX_ROW_BYTES // 2 - 1
    assert copy_lines._cell(EVERY_COLUMN, tags, ["a"] * most)
    with pytest.raises(InvalidValue, match="8 MB"):
        copy_lines._cell(EVERY_COLUMN, tags, ["a"] * (most + 2))


def test_a_line_of_unknown_columns_is_reported_with_some_of_them() -> None:
    encoder = copy_lines.LineEncoder(EVERY_COLUMN, [], datetime.now(UTC), events=False)
    found = encoder.line(1, {f"column{number}": 1 for number in range(5000)})
    assert [str(bad) for bad in found[:1]] == ["line 1: column0: There is no such column."]
    assert len(found) == import_report.SHOWN


def cells_of(record: bytes) -> list[str | None] | None:
    """None for a bad record."""
    try:
        return csv_reader.cells(record)
    except InvalidRecord:
        return None


def test_csv_names_the_line_on_which_a_bad_record_begins() -> None:
    text = b'a,b\n"two\nlines",x\nba"d,x\n\n"also" bad,x\nfine,x\n'
    found = list(csv_reader.records(io.BytesIO(text)))
    assert [number for number, _ in found] == [1, 2, 4, 6, 7]
    assert [cells_of(record) is None for _, record in found] == [False, False, True, True, False]
    with pytest.raises(EndlessRecord, match="Line 3:"):
        list(csv_reader.records(io.BytesIO(b'a,b\n1,2\n"open,x\n' + b"more,x\n" * 10)))


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('"two\nlines",b\n', [["two\nlines", "b"]]),
        ("a,b\n\n\ufeffx,y\r\n\r\n\ufeffz", [["a", "b"], ["\ufeffx", "y"], ["\ufeffz"]]),
        ("," * 999 + "\n" + "," * 1000 + '\n"a"' + ',"a"' * 1000, [[None] * 1000, None, None]),
        ('"x"y"z,1\nfine,2\n', [None, ["fine", "2"]]),
        ('one\n"x"y"z\n"fine"\n', [["one"], None, ["fine"]]),
    ],
)
def test_csv_loses_no_line_to_a_bad_one(text: str, records: list[Any]) -> None:
    assert [cells_of(record) for _, record in csv_reader.records(io.BytesIO(text.encode()))] == records


def test_csv_reads_the_largest_row_with_line_breaks_and_quotes() -> None:
    text = ('"' * 50 + "x" * 49 + "\n") * (MAX_ROW_BYTES // 100)
    file = io.BytesIO(f'title\n"{text.replace(chr(34), chr(34) * 2)}"\n'.encode())
    assert [cells_of(record) for _, record in csv_reader.records(file)] == [["title"], [text]]


@pytest.mark.exhaustive
def test_csv_puts_no_more_of_a_file_together_than_one_record_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "MAX_RECORD_BYTES", 30)
    lines = iter([b'a,"open\n', *[b"123456789\n"] * 100])
    with pytest.raises(EndlessRecord):
        list(csv_reader.records(lines))
    assert len(list(lines)) == 97
    fits = b'a,"open\n123456789\n12345678",b\n'
    assert [len(csv_reader.cells(record)) for _, record in csv_reader.records(io.BytesIO(fits))] == [3]
