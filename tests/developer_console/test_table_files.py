"""NDJSON files of a table, and files in parts, as the scripts of the page ask for them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from platform_site.developer_console.tables import files
from tests.developer_console.conftest import Desk, desk_at, without_token
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def send(desk: Desk, name: str, content: bytes, table: str = "tasks", **fields: str) -> Any:
    values = {"file": SimpleUploadedFile(name, content), **fields}
    return desk.post(f"tables/{table}/import", values, headers={"Accept": "application/json"})


def titles(tracker: Tracker) -> list[str]:
    return sorted(row["title"] for row in tracker.get("owner", "/rows/tasks").json["data"])


def test_an_ndjson_file_comes_back_as_it_was(tracker: Tracker, desk: Desk) -> None:
    for title, points in (("a,b", 1), ('say "x"', None), ("two\nlines", -2)):
        tracker.post("owner", "/rows/tasks", {"title": title, "points": points})
    before = tracker.get("owner", "/rows/tasks").json["data"]
    file = desk.get("tables/tasks/export.ndjson")
    assert file["Content-Disposition"] == 'attachment; filename="tasks.ndjson"'
    assert [json.loads(line) for line in file.content.splitlines()] == before
    for row in before:
        tracker.delete("owner", f"/rows/tasks/{row['id']}")
    report = send(desk, "tasks.ndjson", b"\xef\xbb\xbf" + file.content).json()  # as Windows' editors save it
    assert (report["inserted"], report["rejected"]) == (3, [])
    assert report["skipped"] == ["created_at", "updated_at"]
    after = tracker.get("owner", "/rows/tasks").json["data"]
    kept = ("id", "title", "points")
    assert [[row[key] for key in kept] for row in after] == [[row[key] for key in kept] for row in before]


def test_an_import_that_meets_the_rate_limit_says_where_it_goes_on(tracker: Tracker, desk: Desk, settings: Any) -> None:
    head = b"\xef\xbb\xbftitle,points\r\n"
    lines = [b'"row\r%d",1\r\n' % number for number in range(800)]
    lines[7] = lines[790] = b"bad,many\r\n"
    content = head + b"".join(lines)
    settings.RATE_LIMIT_FACTOR = 200 / 600  # requests of a minute
    report = send(desk, "x.csv", content).json()
    assert (report["retry_after"] > 0, "Too many requests" in report["stopped"]) == (True, True)
    assert 0 < report["inserted"] < 798
    assert [line for line, _ in report["rejected"]] == [2 + 7], "the last one is in the rest"
    rest = content[report["resume_at"] :]
    assert rest == b"".join(lines[report["inserted"] + 1 :])
    settings.RATE_LIMIT_FACTOR = 10
    again = send(desk, "x.csv", head + rest).json()
    assert (report["inserted"] + again["inserted"], len(again["rejected"])) == (798, 1)
    assert (again["retry_after"], again["stopped"]) == (0, None)


def test_bad_lines_are_reported_and_the_others_stay(tracker: Tracker, desk: Desk) -> None:
    lines = [b'{"title": "good"}', b"", b'{"title"', b"[1]", b'{"title": "x", "points": "many"}', b'{"title": "too"}']
    report = send(desk, "x.jsonl", b"\n".join(lines)).json()
    assert report["inserted"] == 2
    assert [line for line, _ in report["rejected"]] == [3, 4, 5]
    assert report["rejected"][0][1].startswith("is not JSON: ")
    assert report["rejected"][1][1] == "is not a JSON object"
    assert report["rejected"][2][1].startswith("points:")
    assert titles(tracker) == ["good", "too"]


def test_a_check_reports_bad_lines_and_imports_nothing(tracker: Tracker, desk: Desk) -> None:
    taken = tracker.post("owner", "/rows/tasks", {"title": "one"}).json["id"]
    file = f"id,title,points\n,two,1\n{taken},three,1\nfour,four,1\nfour,five,1\n,six,many\n".encode()
    for _ in range(2):
        report = send(desk, "x.csv", file, check="1").json()
        assert (report["inserted"], [line for line, _ in report["rejected"]]) == (2, [3, 5, 6])
        assert titles(tracker) == ["one"]
    assert send(desk, "x.csv", file).json() == report
    assert titles(tracker) == ["four", "one", "two"]


def test_a_check_takes_references_within_a_table_as_valid(make_tracker: Callable[..., Tracker]) -> None:
    columns = {"title": {"type": "text"}, "parent": {"type": "reference", "to": "nodes", "null": True}}
    tracker = make_tracker({"tables": {"nodes": {"columns": columns}}})
    desk = desk_at(tracker)
    rows = [{"id": f"n{number}", "title": "", "parent_id": f"n{number - 1}"} for number in range(1, 130)]
    lines = [json.dumps(row).encode() for row in [{"id": "n0", "title": ""}, *rows, {"title": 1, "parent_id": "x"}]]
    report = send(desk, "x.ndjson", b"\n".join(lines), "nodes", check="1").json()
    assert (report["inserted"], [line for line, _ in report["rejected"]]) == (130, [131])
    assert send(desk, "x.ndjson", b"\n".join(lines), "nodes").json() == report


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"\n\n", b"[" * 5000])
def test_a_file_that_is_none_imports_nothing(tracker: Tracker, desk: Desk, content: bytes) -> None:
    assert send(desk, "x.ndjson", content).json()["inserted"] == 0
    assert titles(tracker) == []


def test_a_csv_header_may_name_a_reference_as_the_schema_does(tracker: Tracker, desk: Desk) -> None:
    alice = tracker.users["alice"]
    assert send(desk, "x.csv", f"title,owner\nTea,{alice}\n".encode()).json()["inserted"] == 1
    [row] = tracker.get("owner", "/rows/tasks").json["data"]
    assert row["owner_id"] == alice
    stopped = send(desk, "x.csv", b"title,ownr\nTea,x\n").json()["stopped"]
    assert stopped.startswith('The header names a column "ownr" that tasks does not have')
    twice = send(desk, "x.csv", b"title,owner,owner_id\nTea,,\n").json()["stopped"]
    assert twice == 'The header names the column "owner_id" twice.'


def test_numbers_of_a_file_keep_their_digits(make_tracker: Callable[..., Tracker]) -> None:
    columns = {"total": {"type": "decimal", "precision": 30, "scale": 10}, "ratio": {"type": "float", "null": True}}
    tracker = make_tracker({"tables": {"sales": {"columns": columns}}})
    desk = desk_at(tracker)
    lines = [
        b'{"total": 12345678901234567.0123456789, "ratio": 0.12345678901234567}',
        b'{"total": 123456789012345678901234567890}',
        b'{"total": 12345678901234567890}',
    ]
    report = send(desk, "x.ndjson", b"\n".join(lines), "sales").json()
    assert (report["inserted"], [line for line, _ in report["rejected"]]) == (2, [2]), report
    [whole, exact] = tracker.get("owner", "/rows/sales?order=total.desc").json["data"]
    assert (exact["total"], exact["ratio"]) == ("12345678901234567.0123456789", 0.12345678901234567)
    assert whole["total"] == "12345678901234567890.0000000000"


def test_an_empty_cell_is_null_also_in_a_column_with_a_default(make_tracker: Callable[..., Tracker]) -> None:
    columns = {"name": {"type": "text"}, "rank": {"type": "integer", "null": True, "default": 7}}
    tracker = make_tracker({"tables": {"teams": {"columns": columns}}})
    desk = desk_at(tracker)
    tracker.post("owner", "/rows/teams", {"name": "a", "rank": None})
    file = desk.get("tables/teams/export.csv").content.replace(b'"row_', b'"copy_').replace(b'"a"', b'"b"')
    assert send(desk, "x.csv", file, "teams").json()["inserted"] == 1
    rows = tracker.get("owner", "/rows/teams").json["data"]
    assert {(row["name"], row["rank"]) for row in rows} == {("a", None), ("b", None)}


def test_json_of_a_csv_file_comes_back_as_it_was(make_tracker: Callable[..., Tracker]) -> None:
    tracker = make_tracker({"tables": {"notes": {"columns": {"value": {"type": "json", "null": True}}}}})
    desk = desk_at(tracker)
    values: list[Any] = ["text", "5", "", 5, {"a": ['"']}, None]
    tracker.post("owner", "/rows/notes", [{"value": value} for value in values])
    file = desk.get("tables/notes/export.csv?order=id").content.replace(b'"row_', b'"copy_')
    assert send(desk, "x.csv", file, "notes").json()["inserted"] == len(values)
    rows = tracker.get("owner", "/rows/notes?order=id").json["data"]
    assert [row["value"] for row in rows if row["id"].startswith("copy_")] == values
    bad = send(desk, "x.csv", b"value\ntext\n", "notes").json()
    assert bad["rejected"] == [[2, "has a cell of value that is not JSON"]]


def test_rows_are_exported_in_parts(tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform_site.developer_console.tables.files._OF_A_PART", 100)
    rows = [{"title": f"task {index:03}"} for index in range(150)]
    for at in (0, 100):
        assert tracker.post("owner", "/rows/tasks", rows[at : at + 100]).status in (200, 201)
    first = desk.get("tables/tasks/export.csv", data={"part": "1", "order": "title"})
    assert first["X-Rows"] == "100"
    asked = {"part": "1", "order": "title", "cursor": first["X-Next-Cursor"]}
    second = desk.get("tables/tasks/export.csv", data=asked)
    assert (second["X-Rows"], second["X-Next-Cursor"]) == ("50", "")
    whole = desk.get("tables/tasks/export.csv", data={"order": "title"})
    assert first.content + second.content == whole.content


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_a_part_ends_by_its_size_and_a_whole_file_is_refused(
    tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = f"tables/tasks/export.{form}"
    for at in (0, 100, 200):
        tracker.post("owner", "/rows/tasks", [{"title": f"task {at + index:03}"} for index in range(100)])
    whole = desk.get(path, data={"order": "title"}).content
    monkeypatch.setattr(files, "_BYTES_OF_A_PART", len(whole) // 2)
    first = desk.get(path, data={"part": "1", "order": "title"})
    assert first["X-Rows"] == "200"
    second = desk.get(path, data={"part": "1", "order": "title", "cursor": first["X-Next-Cursor"]})
    assert (second["X-Rows"], second["X-Next-Cursor"]) == ("100", "")
    assert first.content + second.content == whole
    monkeypatch.setattr(files, "MAX_BYTES", len(whole) // 2)
    refused = desk.get(path)
    assert (refused.status_code, b"Narrow the filter" in refused.content) == (422, True)


def test_a_request_ends_by_its_time(tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = "tables/tasks/export.csv", [{"title": f"task {index:03}"} for index in range(100)]
    for _ in range(2):
        tracker.post("owner", "/rows/tasks", rows)
    whole = desk.get(path).content
    monkeypatch.setattr(files, "MAX_SECONDS", 0)
    first = desk.get(path, data={"part": "1"})
    assert first["X-Rows"] == "100"
    second = desk.get(path, data={"part": "1", "cursor": first["X-Next-Cursor"]})
    assert (second["X-Rows"], second["X-Next-Cursor"]) == ("100", "")
    assert first.content + second.content == whole
    refused = desk.get(path)
    assert (refused.status_code, b"or 0 s. Narrow the filter" in refused.content) == (422, True)
    late = send(desk, "x.csv", b"title\nTea\n").json()
    assert (late["inserted"], late["stopped"]) == (0, "Stopped at line 2: the import takes longer than 0 s.")


def test_a_viewer_exports_and_imports_nothing(tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]) -> None:
    tracker.post("owner", "/rows/tasks", {"title": "one"})
    viewer = desk_of("viewer")
    assert b'"title":"one"' in viewer.get("tables/tasks/export.ndjson").content
    report = send(viewer, "x.ndjson", b'{"title": "two"}').json()
    assert report["inserted"] == 0
    assert report["stopped"].startswith("Stopped at line 1")
    assert send(without_token(desk), "x.ndjson", b'{"title": "two"}').status_code == 403
    assert titles(tracker) == ["one"]
