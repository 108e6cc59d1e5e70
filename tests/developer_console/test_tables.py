"""Tables: what the grid shows and saves, as the API has it; files; rows hidden from a user; and attacks on all of it."""

import gzip
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils.html import escape

from accounts import audit
from accounts.models import User
from platform_site.developer_console.tables import files
from platform_site.developer_console.tables.pages import ROWS
from platform_site.http.errors import RateLimited
from projects import services
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at, member
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def add(tracker: Tracker, **values: Any) -> dict[str, Any]:
    answer = tracker.post("owner", "/rows/tasks", values)
    assert answer.status == 201
    return dict(answer.json)


def etags(page: Any) -> dict[str, str]:
    found = re.findall(r'<tr data-id="([^"]+)" data-etag="([^"]+)"', page.content.decode())
    return {row_id: unescape(etag) for row_id, etag in found}


def patch(desk: Desk, row_id: str, body: dict[str, Any], etag: str | None = None) -> Any:
    headers = {"If-Match": etag} if etag else {}
    return desk.browser.patch(
        desk.url(f"tables/tasks/rows/{row_id}"), json.dumps(body), "application/json", headers=headers
    )


def test_the_tags_of_the_grid_are_those_of_the_rows(tracker: Tracker, desk: Desk) -> None:
    texts = ["plain", 'quo"te', "é\u2028\U0001f600", "<b>", "]}, {[", "back\\slash"]
    rows = [add(tracker, title=text, points=index) for index, text in enumerate(texts)]
    found = etags(desk.get("tables/tasks"))
    for row in rows:
        assert found[row["id"]] == tracker.get("owner", f"/rows/tasks/{row['id']}").headers["etag"]


def test_pages_are_compressed_and_rows_keep_their_tags(tracker: Tracker, desk: Desk) -> None:
    rows = [add(tracker, title=f"{number} of them") for number in range(ROWS)]
    plain = desk.get("tables/tasks")
    assert len(plain.content) < 100_000
    page = desk.get("tables/tasks", headers={"Accept-Encoding": "gzip"})
    assert page["Content-Encoding"] == "gzip"
    assert len(page.content) < len(plain.content) / 4
    assert rows[0]["id"] in gzip.decompress(page.content).decode()
    row = desk.get(f"tables/tasks/rows/{rows[0]['id']}", headers={"Accept-Encoding": "gzip"})
    assert row["ETag"] == etags(plain)[rows[0]["id"]]
    assert not row.has_header("Content-Encoding")


def test_a_cell_is_saved_and_audited_as_the_member(tracker: Tracker, desk: Desk) -> None:
    row = add(tracker, title="before")
    answer = patch(desk, row["id"], {"title": "after"}, etags(desk.get("tables/tasks"))[row["id"]])
    assert answer.status_code == 200
    assert answer.json()["title"] == "after"
    assert answer["ETag"] == etags(desk.get("tables/tasks"))[row["id"]]


def test_the_second_of_two_tabs_overwrites_nothing(tracker: Tracker, desk: Desk) -> None:
    row = add(tracker, title="before")
    seen = etags(desk.get("tables/tasks"))[row["id"]]
    assert patch(desk, row["id"], {"title": "first"}, seen).status_code == 200
    refused = patch(desk, row["id"], {"title": "second"}, seen)
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "precondition_failed")
    current = desk.get(f"tables/tasks/rows/{row['id']}")
    assert current.json()["title"] == "first"
    assert patch(desk, row["id"], {"title": "second"}, current["ETag"]).status_code == 200


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"points": "x"}, "points", "wrong_type"),
        ({"title": None}, "title", "null"),
        ({"nothing": 1}, "nothing", "unknown_field"),
        ({"owner_id": "usr_nobody"}, "owner_id", None),
    ],
)
def test_the_errors_of_a_cell_are_those_of_the_api(
    tracker: Tracker, desk: Desk, body: dict[str, Any], field: str, code: str | None
) -> None:
    row = add(tracker, title="before")
    refused = patch(desk, row["id"], body)
    direct = tracker.patch("owner", f"/rows/tasks/{row['id']}", body)
    assert refused.status_code == direct.status == 422
    assert refused.json()["error"]["fields"] == direct.json["error"]["fields"]
    assert direct.json["error"]["fields"][0]["field"] == field


def test_rows_are_inserted_and_deleted(tracker: Tracker, desk: Desk) -> None:
    made = desk.browser.post(desk.url("tables/tasks/rows"), '{"title": "new"}', "application/json")
    assert made.status_code == 201
    row_id = made.json()["id"]
    url = desk.url(f"tables/tasks/rows/{row_id}")
    assert desk.browser.delete(url, headers={"If-Match": '"other"'}).status_code == 412
    assert desk.browser.delete(url, headers={"If-Match": made["ETag"]}).status_code == 204
    assert desk.browser.delete(url).status_code == 404


def test_filter_order_and_pages(tracker: Tracker, desk: Desk) -> None:
    for index in range(53):
        add(tracker, title=f"task {index:02}", points=index)
    page = desk.get("tables/tasks", data={"order": "title.desc"}).content.decode()
    assert page.index("task 52") < page.index("task 03")
    assert "task 02" not in page
    following = re.search(r'href="(\?[^"]*cursor=[^"]+)"', page)
    assert following is not None
    rest = desk.get("tables/tasks" + unescape(following[1])).content.decode()
    assert "task 02" in rest
    assert "task 03" not in rest
    assert "No row matches this filter" in desk.get("tables/tasks", data={"where": '{"title": "x"}'}).content.decode()


def test_each_order_that_a_column_offers_works(make_tracker: Callable[..., Tracker]) -> None:
    columns = {"name": {"type": "text", "max_length": 9}, "meta": {"type": "json"}, "tags": {"type": "text[]"}}
    desk = desk_at(make_tracker({"tables": {"things": {"columns": columns}}}))
    orders = re.findall(r'href="\?order=([a-z_]+)"', desk.get("tables/things").content.decode())
    assert orders == ["id", "name", "created_at", "updated_at"]
    for order in orders:
        assert desk.get("tables/things", data={"order": order}).status_code == 200, order


@pytest.mark.parametrize(
    ("where", "said"),
    [('{"title"', "JSON"), ('{"titel": "x"}', "titel"), ('{"points": {"$like": 1}}', "points")],
)
def test_a_wrong_filter_is_explained_and_kept(desk: Desk, where: str, said: str) -> None:
    answer = desk.get("tables/tasks", data={"where": where})
    page = unescape(answer.content.decode())
    assert answer.status_code in (400, 422)
    assert said in page
    assert f'value="{where}"' in page
    assert 'role="alert"' in page


@pytest.mark.parametrize("path", ["tables/nothing", "tables/..", "tables/%27%3B--", "tables/tasks%00"])
def test_a_table_that_is_none_is_not_found(desk: Desk, path: str) -> None:
    assert desk.get(path).status_code == 404


def test_cells_are_text(tracker: Tracker, desk: Desk) -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202egpj.exe'
    add(tracker, title=evil)
    page = desk.get("tables/tasks").content.decode()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert f"<bdi>{escape(evil)}</bdi>" in page


def test_a_viewer_reads_and_changes_nothing(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    row = add(tracker, title="before")
    viewer = desk_of("viewer")
    page = viewer.get("tables/tasks").content.decode()
    assert "before" in page
    assert "data-editable" not in page
    assert "New row" not in page
    assert patch(viewer, row["id"], {"title": "after"}).status_code == 403
    assert viewer.browser.delete(viewer.url(f"tables/tasks/rows/{row['id']}")).status_code == 403
    assert viewer.browser.post(viewer.url("tables/tasks/rows"), "{}", "application/json").status_code == 403
    upload = SimpleUploadedFile("x.csv", b"title\nnew\n")
    assert "0 rows imported" in viewer.post("tables/tasks/import", {"file": upload}).content.decode()
    assert [each["title"] for each in tracker.get("owner", "/rows/tasks").json["data"]] == ["before"]


def test_a_removed_member_with_an_open_grid_saves_nothing(tracker: Tracker, desk: Desk) -> None:
    row = add(tracker, title="before")
    token = tracker.tokens["key"]
    owner = member(tracker.project, "owner")
    services.add_member(
        tracker.project.pk, email=member(tracker.project, "viewer").email, role="owner", actor=audit.SYSTEM
    ) if False else None
    viewer = member(tracker.project, "viewer")
    services.change_member(tracker.project.pk, viewer.pk, role="owner", actor=audit.SYSTEM)
    services.remove_member(tracker.project.pk, owner.pk, actor=audit.SYSTEM)
    assert patch(desk, row["id"], {"title": "after"}).status_code == 404
    assert tracker.api.get(f"/v1/rows/tasks/{row['id']}", token=token).json["title"] == "before"


def test_a_suspended_project_keeps_its_rows(tracker: Tracker, desk: Desk) -> None:
    row = add(tracker, title="before")
    services.suspend_project(tracker.project.pk, reason="The bill", actor=audit.SYSTEM)
    assert desk.get("tables/tasks").status_code == 403
    refused = patch(desk, row["id"], {"title": "after"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "project_suspended")


def test_saving_needs_the_csrf_token(tracker: Tracker, desk: Desk) -> None:
    row = add(tracker, title="before")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies["console_session"] = desk.browser.cookies["console_session"].value
    url = desk.url(f"tables/tasks/rows/{row['id']}")
    assert strict.patch(url, '{"title": "after"}', "application/json").status_code == 403
    token = re.search(r'X-CSRFToken": "([^"]+)"', unescape(strict.get(desk.url("tables/tasks")).content.decode()))
    assert token is not None
    sent = strict.patch(url, '{"title": "after"}', "application/json", headers={"X-CSRFToken": token[1]})
    assert sent.status_code == 200


def test_the_tables_of_a_user_are_one_link_away(tracker: Tracker, desk: Desk) -> None:
    alice = tracker.users["alice"]
    link = desk.url(f"tables?as={alice}").replace("tables?", "tables/?")
    assert link in desk.get(f"auth/users/{alice}").content.decode()
    first = desk.get("tables/", data={"as": alice})
    assert first["Location"] == desk.url(f"tables/tasks?as={alice}")


def test_rows_hidden_from_a_user_are_marked_and_explained(
    tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]
) -> None:
    hers = add(tracker, title="hers", owner_id=tracker.users["alice"], points=3)
    his = add(tracker, title="his", owner_id=tracker.users["bob"])
    for name in (tracker.users["alice"], "alice@tracker.example"):
        page = desk.get("tables/tasks", data={"as": name}).content.decode()
        assert re.search(rf'data-id="{his["id"]}"[^>]*class="unseen"', page)
        assert not re.search(rf'data-id="{hers["id"]}"[^>]*class="unseen"', page)
        assert "1 of 2 rows" in page
        assert '<td class="unseen" data-key="points"' in page, "a hidden column is marked"
    told = desk.get(f"tables/tasks/rows/{his['id']}/why", data={"as": tracker.users["alice"]})
    assert told.status_code == 200
    text = unescape(told.content.decode())
    assert "Hidden from" in text
    assert '{"owner_id":"$user.id"}' in text.replace(" ", "")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))
    assert "Read: refused rule of role user" in text
    assert "Delete: refused No rule of tasks lets the role user delete." in text, "the role has other rules"
    assert "2 of 2 rows" in desk.get("tables/tasks", data={"as": "anonymous"}).content.decode()
    why = desk.get(f"tables/tasks/rows/{his['id']}/why", data={"as": "anonymous"}).content.decode()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", why))
    assert "No rule of tasks lets the role anonymous read. Add one" in text
    assert f'href="{desk.url("schema")}?table=tasks"' in why
    User.objects.filter(pk=tracker.users["alice"]).update(role="editor")
    for reader, role in ((desk, "editor"), (desk_of("viewer"), "user")):
        told = reader.get(f"tables/tasks/rows/{his['id']}/why", data={"as": tracker.users["alice"]})
        assert told.context["role"] == role, "a user's role is shown to those who may manage users"
    for nobody in ("usr_nobody", "nobody\0"):
        unknown = desk.get("tables/tasks", data={"as": nobody})
        assert unknown.status_code == 422
        assert "View as: <bdi>Must be a user of this environment" in unknown.content.decode()
        assert "Correct the filter" not in unknown.content.decode()


def test_a_viewer_finds_no_user_by_email(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    add(tracker, title="hers", owner_id=tracker.users["alice"])
    viewer = desk_of("viewer")
    assert viewer.get("tables/tasks", data={"as": "alice@tracker.example"}).status_code == 403
    seen_as = {"as": tracker.users["alice"]}
    seen = [each.get("tables/tasks", data=seen_as).content.decode() for each in (viewer, desk_of("owner"))]
    assert ["with your own permissions" in page for page in seen] == [False, True]


def test_a_csv_file_comes_back_as_it_was(tracker: Tracker, desk: Desk) -> None:
    rows = [
        add(tracker, title=title, points=points)
        for title, points in (("a,b", 1), ('say "x"', None), ("two\nlines", -2))
    ]
    file = desk.get("tables/tasks/export.csv")
    assert file["Content-Disposition"] == 'attachment; filename="tasks.csv"'
    for row in rows:
        assert tracker.delete("owner", f"/rows/tasks/{row['id']}").status == 204
    answer = desk.post("tables/tasks/import", {"file": SimpleUploadedFile("tasks.csv", file.content)})
    page = " ".join(answer.content.decode().split())
    assert "3 rows imported, 0 rejected" in page
    assert "Columns that were skipped, because the platform sets them: created_at, updated_at." in page
    again = tracker.get("owner", "/rows/tasks").json["data"]
    kept = ("id", "title", "points")
    assert [{key: row[key] for key in kept} for row in again] == [{key: row[key] for key in kept} for row in rows]


def test_a_file_with_bad_lines_is_not_imported_without_the_script(tracker: Tracker, desk: Desk) -> None:
    file = b'title,points\ngood,1\nbad,many\nshort\n"open ""quote""",2\n'
    answer = desk.post("tables/tasks/import", {"file": SimpleUploadedFile("x.csv", file)})
    page = " ".join(unescape(answer.content.decode()).split())
    assert "0 rows imported, 2 rejected" in page
    assert "Line 3: <bdi>points:" in page
    assert "Line 4: <bdi>has 1 cells, the header has 2" in page
    assert tracker.get("owner", "/rows/tasks").json["data"] == []


def test_an_import_whose_page_is_refused_says_what_was_imported(
    tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RateLimited(9)

    monkeypatch.setattr(files, "grid", refuse)
    answer = desk.post("tables/tasks/import", {"file": SimpleUploadedFile("x.csv", b"title\na\nb\n")})
    page = answer.content.decode()
    assert "2 rows of the file are imported. Do not send it again. Too many requests." in page
    assert "Reload this page" not in page
    assert len(tracker.get("owner", "/rows/tasks").json["data"]) == 2
    assert desk.post("tables/tasks/import", {}).status_code == 429, "nothing was imported"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"nothing,here\n1,2\n", b'"open\n'])
def test_a_file_that_is_none_imports_nothing(tracker: Tracker, desk: Desk, content: bytes) -> None:
    answer = desk.post("tables/tasks/import", {"file": SimpleUploadedFile("x.csv", content)} if content else {})
    assert answer.status_code == 200
    assert "0 rows imported" in answer.content.decode()
    assert tracker.get("owner", "/rows/tasks").json["data"] == []


def test_many_tables_are_searched(make_tracker: Callable[..., Tracker]) -> None:
    tables = {f"t{number}": {"columns": {"title": {"type": "text"}}} for number in range(13)}
    desk = desk_at(make_tracker({"tables": tables}))
    few = desk_at(make_tracker(DOCUMENT, "Few"))
    for path in ("tables/t7", "schema?table=t7"):
        page = desk.get(path).content.decode()
        assert 'aria-label="Find a table"' in page
        assert 'class="tabs many"' in page
        assert "Find a table" not in few.get(path.replace("t7", "tasks")).content.decode()
