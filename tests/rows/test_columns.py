"""`columns`: the cells that were asked for, from PostgreSQL on, and nothing else of the answer changed by it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, permutations
from typing import Any
from urllib.parse import quote

import pytest

from platform_site.concurrency.memo import Memo
from platform_site.http.errors import ValidationFailed
from platform_site.postgres.prepared import retry_if_lost
from rows import services
from rows.query import context, params
from rows.query import service as query_service
from tests.rows.conftest import Tracker
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, Tenant
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tenant() -> Tenant:
    return Tenant(DOCUMENT).with_users(ALICE, BOB)


@pytest.fixture
def task(tenant: Tenant) -> str:
    """A task of alice's on a list of hers, with two comments."""
    home = tenant.put("lists", name="Home", owner_id=ALICE.user_id)
    made = tenant.put("tasks", title="Tea", notes="x", priority=3, internal="y", list_id=home, owner_id=ALICE.user_id)
    for stars in (1, 2):
        tenant.put("comments", body="hello", stars=stars, task_id=made)
    return made


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts of the reading statements that run within."""
    seen: list[str] = []

    def watched(connection: Any, sql: bytes, values: Any) -> Any:
        seen.append(sql.decode())
        return retry_if_lost(connection, sql, values)

    with monkeypatch.context() as patch:
        patch.setattr(context, "retry_if_lost", watched)
        yield seen


def refused(how: Callable[[], Any]) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        how()
    return {field.field: field.code for field in caught.value.fields}


def test_row_has_requested_columns_in_table_order_and_its_id(tenant: Tenant, task: str) -> None:
    for spelled in ("title,done", "done,title", "id,done,title", " done , title,done "):
        assert list(tenant.get(ALICE, "tasks", task, columns=spelled).items()) == [
            ("id", task), ("title", "Tea"), ("done", False)
        ]  # fmt: skip
        assert tenant.rows(ALICE, "tasks", columns=spelled) == [{"id": task, "title": "Tea", "done": False}]
    assert tenant.get(ALICE, "tasks", task, columns="id") == {"id": task}
    whole = tenant.get(ALICE, "tasks", task)
    assert tenant.get(ALICE, "tasks", task, columns="*") == whole
    assert tenant.get(ALICE, "tasks", task, columns="*,title") == whole
    fewer = tenant.get(ALICE, "tasks", task, columns="*,-notes,-title")
    assert list(fewer) == [name for name in whole if name not in ("notes", "title")]
    # Each cell as it is spelled in the whole row.
    assert all(fewer[name] == whole[name] for name in fewer)


def test_what_is_hidden_is_in_no_choice(tenant: Tenant, task: str) -> None:
    assert "internal" not in tenant.get(ALICE, "tasks", task, columns="*,-notes")
    assert tenant.get(KEY, "tasks", task, columns="internal") == {"id": task, "internal": "y"}
    for pattern in ("internal", "*,-internal", "title,internal"):
        assert refused(lambda: tenant.get(ALICE, "tasks", task, columns=pattern)) == {"columns": "unknown"}  # noqa: B023
        assert refused(lambda: tenant.rows(ALICE, "tasks", columns=pattern)) == {"columns": "unknown"}  # noqa: B023


def test_a_relation_that_with_embeds_is_narrowed_and_the_others_are_whole(tenant: Tenant, task: str) -> None:
    whole = tenant.get(ALICE, "tasks", task, "list,comments")
    narrow = tenant.get(ALICE, "tasks", task, "list,comments", columns="title,list.name")
    assert narrow == {
        "id": task,
        "title": "Tea",
        "list": {"id": whole["list"]["id"], "name": "Home"},
        "comments": whole["comments"],
    }
    assert tenant.rows(ALICE, "tasks", withs="list,comments", columns="title,list.name") == [narrow]
    # Of the row itself nothing was chosen, so it is whole.
    stars = tenant.get(ALICE, "tasks", task, "comments", columns="comments.*,-comments.body,-comments.task_id")
    assert [list(row) for row in stars.pop("comments")] == [["id", "stars", "created_at", "updated_at"]] * 2
    assert stars == tenant.get(ALICE, "tasks", task)
    deeper = tenant.rows(ALICE, "comments", withs="task.list", columns="id,task.title,task.list.name", limit=1)[0]
    assert deeper["task"] == {"id": task, "title": "Tea", "list": {"id": whole["list"]["id"], "name": "Home"}}
    assert list(deeper) == ["id", "task"]
    # It needs the column that links, and does not show it.
    assert tenant.get(ALICE, "tasks", task, "list,parent", columns="title,list.id") == {
        "id": task, "title": "Tea", "list": {"id": whole["list"]["id"]}, "parent": None
    }  # fmt: skip
    for withs in (None, "comments", "parent.list"):
        assert refused(lambda: tenant.get(ALICE, "tasks", task, withs, columns="list.name")) == {  # noqa: B023
            "columns": "invalid"
        }


def test_postgresql_is_not_asked_for_the_rest(
    tenant: Tenant, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for number in range(3):
        home = tenant.put("lists", name=f"L{number}", owner_id=ALICE.user_id)
        tenant.put("tasks", title="x", notes="x", list_id=home, owner_id=ALICE.user_id)
    with statements(monkeypatch) as seen:
        tenant.get(ALICE, "tasks", task, columns="title")
        tenant.get(ALICE, "tasks", task, "list,comments", columns="title,list.id,comments.stars")
        for order in (None, "done.desc", "title", "list.name.desc,due_on"):
            tenant.pages(ALICE, "tasks", columns="title", order=order, limit=1)
    assert len(seen) == 18
    for sql in seen:
        for unwanted in ("notes", "weight", "tags", "meta", "created_at", "body"):
            assert f'"{unwanted}"' not in sql, sql
    assert not any("due_on" in sql for sql in seen[:-4])


def test_a_page_goes_on_with_another_choice_of_columns(tenant: Tenant, task: str) -> None:
    [row] = tenant.rows(ALICE, "tasks")
    ids = {task, *(tenant.put("tasks", title="x", list_id=row["list_id"], owner_id=ALICE.user_id) for _ in range(5))}
    seen: list[str] = []
    cursor = None
    choices = iter(["title", None, "priority,done", "*,-title", "id", "due_on"])
    while True:
        chosen = next(choices)
        page = tenant.page(ALICE, "tasks", order="priority.desc,due_on", limit=1, cursor=cursor, columns=chosen)
        seen += [row["id"] for row in page["data"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert len(seen) == len(ids)
    assert set(seen) == ids


def test_a_count_is_of_the_list_whatever_is_shown_of_it(tenant: Tenant, task: str) -> None:
    page = tenant.page(ALICE, "tasks", where={"priority": 3}, columns="id", count="exact")
    assert (page["data"], page["count"]) == ([{"id": task}], 1)


def test_a_cell_is_masked_whether_what_it_leans_on_is_asked_for_or_not() -> None:
    lists = {
        "columns": {"name": {"type": "text"}, "note": {"type": "text"}, "owner": {"type": "user"}},
        "rules": {"user": {"read": [{"where": {"owner_id": "$user.id"}}, {"columns": ["name"]}]}},
    }
    tenant = Tenant({"tables": {"lists": lists}}).with_users(ALICE, BOB)
    mine, other = (tenant.put("lists", name="x", note="n", owner_id=who.user_id) for who in (ALICE, BOB))
    assert tenant.get(ALICE, "lists", mine, columns="note") == {"id": mine, "note": "n"}
    assert tenant.get(ALICE, "lists", other, columns="note") == {"id": other, "note": None}
    listed = tenant.pages(ALICE, "lists", columns="note", order="note.desc", limit=1)
    assert sorted(listed, key=str) == sorted(
        [{"id": mine, "note": "n"}, {"id": other, "note": None}], key=str
    )  # fmt: skip


def test_every_spelling_of_a_choice_is_one_statement(
    tenant: Tenant, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_statements", kept := Memo(50))
    for names in permutations(["title", "notes", "done", "id"]):
        tenant.rows(ALICE, "tasks", columns=",".join(names))
    assert len(kept) == 1


def test_whatever_is_chosen_as_much_is_remembered_as_ever(
    tenant: Tenant, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_statements", statements_kept := Memo(8))
    monkeypatch.setattr(params, "_parsed", choices_kept := Memo(8))
    names = [name for name in tenant.get(ALICE, "tasks", task) if name != "id"]
    for some in list(combinations(names, 3))[:60]:
        assert list(tenant.get(ALICE, "tasks", task, columns=",".join(some))) == ["id", *some]
    assert len(statements_kept) <= 16
    assert len(choices_kept) <= 16


def test_the_choice_follows_the_schema(tenant: Tenant, task: str) -> None:
    assert tenant.get(OPERATOR, "tasks", task, columns="notes") == {"id": task, "notes": "x"}
    changed = {**DOCUMENT["tables"]["tasks"], "columns": {**DOCUMENT["tables"]["tasks"]["columns"]}}
    del changed["columns"]["notes"]
    changed["columns"]["colour"] = {"type": "text", "default": "red"}
    tenant.apply({"tables": {**DOCUMENT["tables"], "tasks": changed}})
    assert tenant.get(OPERATOR, "tasks", task, columns="colour") == {"id": task, "colour": "red"}
    assert refused(lambda: tenant.get(OPERATOR, "tasks", task, columns="notes")) == {"columns": "unknown"}


def test_a_list_too_large_as_a_whole_can_be_asked_for_in_part(
    tenant: Tenant, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_service, "MAX_ANSWER_BYTES", 20_000)
    home = tenant.get(ALICE, "tasks", task)["list_id"]
    for _ in range(3):
        tenant.put("tasks", title="x", notes="x" * 9_000, list_id=home, owner_id=ALICE.user_id)
    assert refused(lambda: tenant.rows(ALICE, "tasks")) == {"limit": "too_large"}
    assert len(tenant.rows(ALICE, "tasks", columns="title")) == 4


def test_only_a_whole_row_has_a_tag(tenant: Tenant, task: str) -> None:
    def etag(withs: str | None = None, columns: str | None = None) -> str | None:
        return services.retrieve_row(tenant.environment, ALICE, "tasks", task, withs, columns).etag

    whole = etag()
    assert whole is not None
    assert etag("list") == etag("list", "list.name") == etag(columns="*") == whole
    assert etag(columns="title") is etag("list", "title,list.name") is etag(columns="*,-title") is None


def test_over_http(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker(DOCUMENT)
    home = tracker.post("operator", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    task = tracker.post("alice", "/rows/tasks", {"title": "Tea", "list_id": home}).json["id"]
    row = tracker.get("alice", f"/rows/tasks/{task}")
    tag = row.headers["ETag"]

    some = tracker.get("alice", f"/rows/tasks/{task}?columns=title")
    assert (some.json, some.headers.get("ETag")) == ({"id": task, "title": "Tea"}, None)
    # What the client has is the whole row, and this is none: never 304, nor as if there were nothing.
    for known in (tag, "*"):
        again = tracker.get("alice", f"/rows/tasks/{task}?columns=title", headers={"If-None-Match": known})
        assert (again.status, again.json) == (200, {"id": task, "title": "Tea"})
    assert tracker.get("alice", f"/rows/tasks/{task}", headers={"If-None-Match": tag}).status == 304

    expected = {"data": [{"id": task, "title": "Tea", "list": {"id": home, "name": "Home"}}], "next_cursor": None}
    asked = {"with": "list", "columns": "title,list.name"}
    assert tracker.get("alice", "/rows/tasks?" + "&".join(f"{k}={quote(v)}" for k, v in asked.items())).json == expected
    assert tracker.post("alice", "/rows/tasks/query", asked).json == expected

    for bad in (
        "",
        "nothing",
        "internal",
        "list",
        "-title",
        "*,-id",
        "list.name",
        "title,",
        "*.title",
        "list.owner.x",
        "**",
    ):
        answer = tracker.get("alice", f"/rows/tasks?columns={quote(bad)}")
        assert (answer.status, list(answer.fields)) == (422, ["columns"]), bad
    for body in (["title"], 5, {"title": True}, True):
        assert tracker.post("alice", "/rows/tasks/query", {"columns": body}).fields == {"columns": "wrong_type"}
    # Writes return the whole row; a selection there was meant for another endpoint.
    assert tracker.patch("alice", f"/rows/tasks/{task}?columns=title", {}).fields == {"columns": "unknown_parameter"}
