"""The verbs of rows, in several people's names, against real tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from platform_site.http.errors import ApiError, Conflict, NotFound, ValidationFailed
from platform_site.postgres import loop_connections
from platform_site.postgres.prepared import retry_if_lost
from rows import services
from rows.query import context
from rows.query import service as query_service
from rows.query.sql.row_json import MAX_EMBEDDED
from rows.rules.principal import Principal
from rows.schema import column_values, identifiers, values
from rows.schema.column_values import MAX_ROW_BYTES
from rows.schema.model import Column
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, OWNER, REGION, VIEWER, Tenant
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tenant() -> Tenant:
    return Tenant(DOCUMENT).with_users(ALICE, BOB)


@pytest.fixture
def homes(tenant: Tenant) -> tuple[str, str]:
    """Alice's list and Bob's."""
    return (
        tenant.put("lists", name="Home", owner_id=ALICE.user_id),
        tenant.put("lists", name="Bob's", owner_id=BOB.user_id),
    )


def refused(how: Callable[[], Any]) -> dict[str, str]:
    """The fields that a refusal names, with their codes."""
    with pytest.raises(ValidationFailed) as caught:
        how()
    return {field.field: field.code for field in caught.value.fields}


def test_all_environments_of_a_project_share_its_connections(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web process's, for requests on its event loop (`loop_connections`)."""
    owners: list[str] = []
    connection = loop_connections.connection

    def noted(alias: str, owner: str) -> Any:
        owners.append(owner)
        return connection(alias, owner)

    monkeypatch.setattr(loop_connections, "connection", noted)
    environment = replace(tenant.environment, project_id="prj_a")
    services.list_rows(environment, ALICE, "tasks", query_service.ListQuery())
    assert owners == ["prj_a"]


def test_everyone_sees_their_own_rows_and_operators_see_all(tenant: Tenant, homes: tuple[str, str]) -> None:
    mine = tenant.insert(ALICE, "tasks", title="One", list_id=homes[0])["id"]
    assert [row["id"] for row in tenant.rows(ALICE, "tasks")] == [mine]
    assert tenant.rows(BOB, "tasks") == []
    for who in (KEY, OWNER, VIEWER, OPERATOR):
        assert [row["id"] for row in tenant.rows(who, "tasks")] == [mine]
    with pytest.raises(NotFound):
        tenant.get(BOB, "tasks", mine)


def test_a_row_shows_each_type_in_its_one_spelling(tenant: Tenant, homes: tuple[str, str]) -> None:
    made = tenant.put(
        "tasks",
        title='"quoted" \u2028 ü',
        list_id=homes[0],
        owner_id=ALICE.user_id,
        priority=2**63 - 1,
        price="1.5",
        weight=1e20,
        due_on="2026-03-01",
        seen_at="2026-03-01T12:00:00.5+02:00",
        token="6B1F1C1E-3C1C-4D0E-9D6C-0D2B8A7F5E11",
        meta={"b": [1, None], "a": "x"},
        tags=["x", 'y "z"', ""],
    )
    row = tenant.get(ALICE, "tasks", made)
    assert row["title"] == '"quoted" \u2028 ü'
    assert row["priority"] == 2**63 - 1
    assert row["price"] == "1.50"
    assert row["weight"] == 1e20
    assert row["due_on"] == "2026-03-01"
    assert row["seen_at"] == "2026-03-01T10:00:00.500000Z"
    assert row["token"] == "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"
    assert row["meta"] == {"a": "x", "b": [1, None]}
    assert row["tags"] == ["x", 'y "z"', ""]
    assert row["status"] == "open"
    assert "internal" not in row
    assert list(row)[0] == "id"
    assert row["created_at"] == row["updated_at"]


def test_what_a_rule_sets_is_set_and_cannot_be_sent(tenant: Tenant, homes: tuple[str, str]) -> None:
    assert tenant.insert(ALICE, "tasks", title="One", list_id=homes[0])["owner_id"] == ALICE.user_id
    assert refused(lambda: tenant.insert(ALICE, "tasks", title="One", list_id=homes[0], owner_id=BOB.user_id)) == {
        "owner_id": "read_only"
    }


def test_every_invalid_column_is_named_at_once_and_nothing_is_written(tenant: Tenant, homes: tuple[str, str]) -> None:
    assert refused(
        lambda: tenant.insert(KEY, "tasks", title="x" * 201, done="yes", priority=2**63, due_on="0000-00-00", nothing=1)
    ) == {
        "title": "too_long",
        "done": "wrong_type",
        "priority": "out_of_range",
        "due_on": "invalid",
        "nothing": "unknown",
        "list_id": "required",
        "owner_id": "required",
    }
    assert tenant.rows(OPERATOR, "tasks") == []


def test_users_and_references_are_named_with_all_else_that_is_invalid(tenant: Tenant, homes: tuple[str, str]) -> None:
    nobody, nowhere = "usr_01kcccccccccccccccccccccc0", "lst_missing"
    wrong = {"title": 5, "owner_id": nobody, "list_id": nowhere}
    expected = {"title": "wrong_type", "owner_id": "no_such_user", "list_id": "no_such_row"}
    assert refused(lambda: tenant.insert(KEY, "tasks", **wrong)) == expected
    assert refused(lambda: tenant.insert(KEY, "tasks", **wrong, id="query")) == expected | {"id": "reserved"}
    task = tenant.put("tasks", title="x", list_id=homes[0], owner_id=ALICE.user_id)
    assert refused(lambda: tenant.update(KEY, "tasks", task, **wrong)) == expected
    assert refused(lambda: tenant.update(KEY, "tasks", task, title=5, list_id=homes[0])) == {"title": "wrong_type"}
    assert refused(lambda: tenant.update(KEY, "tasks", task, title=5, parent_id=None)) == {"title": "wrong_type"}


def test_references_of_hidden_rows_are_not_revealed() -> None:
    """A reference may stay what its writer sees it to be; of a hidden row that would tell what it is."""
    changed = {"update": {"where": {"owner_id": "$user.id"}}}
    lists = {**DOCUMENT["tables"]["lists"]}
    tasks = {**DOCUMENT["tables"]["tasks"]}
    tasks["rules"] = {"user": {"read": {"where": {"owner_id": "$user.id"}}, **changed}}
    tenant = Tenant({"tables": {"lists": lists, "tasks": tasks}}).with_users(ALICE, BOB)
    home, other = (tenant.put("lists", name="x", owner_id=BOB.user_id) for _ in range(2))
    hidden = tenant.put("tasks", title="x", list_id=home, owner_id=BOB.user_id)
    mine = tenant.put("tasks", title="x", list_id=home, owner_id=ALICE.user_id)
    for row in (hidden, "tsk_missing"):
        for target in (home, other, "lst_missing"):
            assert refused(lambda: tenant.update(ALICE, "tasks", row, title=5, list_id=target)) == {  # noqa: B023
                "title": "wrong_type"
            }
    assert refused(lambda: tenant.update(ALICE, "tasks", mine, title=5, list_id=home)) == {"title": "wrong_type"}
    assert refused(lambda: tenant.update(ALICE, "tasks", mine, title=5, list_id=other)) == {
        "title": "wrong_type",
        "list_id": "no_such_row",
    }


def test_a_missing_and_an_invisible_reference_are_refused_alike(tenant: Tenant, homes: tuple[str, str]) -> None:
    answers = []
    for target in (homes[1], "lst_missing"):
        with pytest.raises(ValidationFailed) as caught:
            tenant.insert(ALICE, "tasks", title="One", list_id=target)
        answers.append(caught.value.body(None))
    assert answers[0] == answers[1]
    assert tenant.rows(OPERATOR, "tasks") == []


def test_a_user_column_takes_users_of_the_pool_only(tenant: Tenant, homes: tuple[str, str]) -> None:
    stranger = "usr_01kcccccccccccccccccccccc0"
    member = Principal("account", user_id=stranger)
    for who in (KEY, member):
        named = refused(lambda: tenant.insert(who, "tasks", title="x", list_id=homes[0], owner_id=stranger))  # noqa: B023
        assert named == {"owner_id": "no_such_user"}
    assert tenant.insert(KEY, "tasks", title="x", list_id=homes[0], owner_id=BOB.user_id)["owner_id"] == BOB.user_id


def test_an_update_changes_what_was_sent_and_nothing_else(tenant: Tenant, homes: tuple[str, str]) -> None:
    before = tenant.insert(ALICE, "tasks", title="One", list_id=homes[0])
    after = tenant.update(ALICE, "tasks", before["id"], done=True)
    assert after.pop("updated_at") >= before.pop("updated_at")
    assert after == {**before, "done": True}


def test_a_row_that_may_not_be_updated_is_not_there(tenant: Tenant, homes: tuple[str, str]) -> None:
    made = tenant.insert(ALICE, "tasks", title="One", list_id=homes[0])["id"]
    for who, row_id in ((BOB, made), (ALICE, "tsk_missing"), (VIEWER, made), (ALICE, "\0"), (ALICE, "x" * 65)):
        with pytest.raises(NotFound):
            tenant.update(who, "tasks", row_id, title="Two")
    with pytest.raises(NotFound):  # alice sees her list, and no rule lets her change it
        tenant.update(ALICE, "lists", homes[0], name="Other")
    assert tenant.get(ALICE, "tasks", made)["title"] == "One"


def test_unwritable_columns_are_refused_as_unknown_or_read_only(tenant: Tenant, homes: tuple[str, str]) -> None:
    made = tenant.insert(ALICE, "tasks", title="One", list_id=homes[0])["id"]
    assert refused(
        lambda: tenant.update(ALICE, "tasks", made, id="x", created_at="x", priority=1, internal="x", nothing="x")
    ) == {
        "id": "read_only",
        "created_at": "read_only",
        "priority": "read_only",
        "internal": "unknown",
        "nothing": "unknown",
    }


def test_deletion_cascades_only_to_children(tenant: Tenant, homes: tuple[str, str]) -> None:
    for home in homes:
        task = tenant.put("tasks", title="x", list_id=home, owner_id=ALICE.user_id)
        tenant.put("comments", body="x", task_id=task)
        child = tenant.put("tasks", title="x", list_id=home, owner_id=ALICE.user_id, parent_id=task)
        tenant.put("secrets", body="x", task_id=child)
    with pytest.raises(NotFound):
        tenant.delete(ALICE, "lists", homes[0])
    tenant.delete(KEY, "lists", homes[0])
    for table, left in (("lists", 1), ("tasks", 2), ("comments", 1), ("secrets", 1)):
        assert len(tenant.rows(OPERATOR, table)) == left
    with pytest.raises(NotFound):
        tenant.delete(KEY, "lists", homes[0])


def test_rows_that_refer_to_each_other_in_a_circle_go_together(tenant: Tenant, homes: tuple[str, str]) -> None:
    one = tenant.put("tasks", title="1", list_id=homes[0], owner_id=ALICE.user_id)
    two = tenant.put("tasks", title="2", list_id=homes[0], owner_id=ALICE.user_id, parent_id=one)
    tenant.update(OPERATOR, "tasks", one, parent_id=two)
    tenant.delete(ALICE, "tasks", one)
    assert tenant.rows(OPERATOR, "tasks") == []


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("nulls", ["nullsfirst", "nullslast"])
@pytest.mark.parametrize("second", ["", ",title.asc", ",title.desc", ",due_on.desc.nullslast"])
def test_pages_of_any_order_are_the_whole_list_in_that_order(
    tenant: Tenant, homes: tuple[str, str], direction: str, nulls: str, second: str
) -> None:
    for number in range(13):
        tenant.put(
            "tasks",
            title="ab"[number % 2],
            list_id=homes[0],
            owner_id=ALICE.user_id,
            priority=None if number % 4 == 0 else number % 3,
            due_on=None if number % 5 == 0 else f"2026-01-0{1 + number % 2}",
        )
    order = f"priority.{direction}.{nulls}{second}"
    whole = tenant.page(ALICE, "tasks", order=order, limit=100)
    assert whole["next_cursor"] is None
    assert len(whole["data"]) == 13
    for limit in (1, 2, 5, 13):
        assert tenant.pages(ALICE, "tasks", order=order, limit=limit) == whole["data"]


def test_with_embeds_to_one_and_to_many_and_hides_rows_that_cannot_be_seen(
    tenant: Tenant, homes: tuple[str, str]
) -> None:
    task = tenant.put("tasks", title="x", list_id=homes[1], owner_id=ALICE.user_id)
    comment = tenant.put("comments", body="hello", task_id=task)
    row = tenant.get(ALICE, "tasks", task, "list,comments,parent")
    assert row["list_id"] == homes[1]
    assert row["list"] is None  # it is Bob's
    assert row["parent"] is None
    assert [found["id"] for found in row["comments"]] == [comment]
    nested = tenant.get(KEY, "comments", comment, "task.list")
    assert nested["task"]["list"]["name"] == "Bob's"
    assert tenant.rows(ALICE, "comments", withs="task.list")[0]["task"]["list"] is None


def test_hundred_related_rows_are_embedded_with_a_cursor_for_the_rest(tenant: Tenant, homes: tuple[str, str]) -> None:
    """As docs/reference/filters.md says."""
    task = tenant.put("tasks", title="x", list_id=homes[0], owner_id=ALICE.user_id)
    other = tenant.put("tasks", title="\t[1]\t]", list_id=homes[0], owner_id=ALICE.user_id)
    tenant.put("comments", body=',\t["comments"]\t]', task_id=other)
    made = sorted(tenant.put("comments", body="c", task_id=task) for _ in range(MAX_EMBEDDED))
    assert [each["id"] for each in tenant.get(ALICE, "tasks", task, "comments")["comments"]] == made
    assert "comments_next" not in tenant.get(ALICE, "tasks", task, "comments")

    made = sorted([*made, *(tenant.put("comments", body="c", task_id=task) for _ in range(3))])
    row = tenant.get(ALICE, "tasks", task, "comments")
    assert [each["id"] for each in row["comments"]] == made[:MAX_EMBEDDED]
    assert list(row)[-2:] == ["comments", "comments_next"]
    page = tenant.page(ALICE, "comments", cursor=row["comments_next"], limit=2)
    assert [each["id"] for each in page["data"]] == made[MAX_EMBEDDED : MAX_EMBEDDED + 2]
    last = tenant.page(ALICE, "comments", cursor=page["next_cursor"], limit=2, withs="task", count="exact")
    assert [each["id"] for each in last["data"]] == made[MAX_EMBEDDED + 2 :]
    assert (last["next_cursor"], last["count"]) == (None, len(made))

    listed = {each["id"]: each for each in tenant.rows(ALICE, "tasks", withs="comments", columns="title")}
    assert listed[task]["comments_next"] == row["comments_next"]
    assert listed[other]["comments"][0]["body"] == ',\t["comments"]\t]'
    assert "comments_next" not in listed[other]
    inside = tenant.get(ALICE, "lists", homes[0], "tasks.comments")
    assert {each["id"]: each for each in inside["tasks"]}[task]["comments_next"] == row["comments_next"]


def test_a_cursor_of_a_relation_shows_no_one_more_than_a_filter_would(tenant: Tenant, homes: tuple[str, str]) -> None:
    task = tenant.put("tasks", title="x", list_id=homes[0], owner_id=ALICE.user_id)
    for _ in range(MAX_EMBEDDED + 1):
        tenant.put("comments", body="c", task_id=task)
    cursor = tenant.get(ALICE, "tasks", task, "comments")["comments_next"]
    assert tenant.rows(BOB, "comments", cursor=cursor) == tenant.rows(BOB, "comments", where={"task_id": task}) == []
    for table, query in (
        ("tasks", {}), ("comments", {"where": {"task_id": task}}), ("comments", {"order": "id"}),
        ("comments", {"cursor": cursor[:-2] + "AA"}),
    ):  # fmt: skip
        with pytest.raises(ValidationFailed) as refused:
            tenant.rows(ALICE, table, **{"cursor": cursor, **query})
        assert [(each.field, each.code) for each in refused.value.fields] == [("cursor", "invalid_cursor")]


def test_an_answer_has_a_largest_size_and_a_row_by_itself_has_none(
    tenant: Tenant, homes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_service, "MAX_ANSWER_BYTES", 20_000)
    for number in range(3):
        tenant.put("tasks", id=f"t{number}", title="x", notes="x" * 9_000, list_id=homes[0], owner_id=ALICE.user_id)
    assert len(tenant.rows(ALICE, "tasks", limit=2)) == 2
    assert refused(lambda: tenant.rows(ALICE, "tasks", limit=3)) == {"limit": "too_large"}
    assert refused(lambda: tenant.get(ALICE, "lists", homes[0], "tasks")) == {"with": "too_large"}
    assert refused(lambda: tenant.rows(ALICE, "lists", limit=1, withs="tasks")) == {"with": "too_large"}
    long = tenant.put("tasks", title="x", notes="x" * 30_000, list_id=homes[1], owner_id=BOB.user_id)
    assert tenant.get(BOB, "tasks", long)["notes"] == "x" * 30_000
    assert [row["id"] for row in tenant.rows(BOB, "tasks", limit=1)] == [long]


def test_what_no_answer_holds_does_not_leave_postgresql(
    tenant: Tenant, homes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long row that many refer to is in each of theirs: a megabyte would be gigabytes, in our memory."""
    sent: list[int] = []

    def watched(*arguments: Any) -> Any:
        rows = retry_if_lost(*arguments)
        sent.append(sum(len(cell or b"") for row in rows for cell in row))
        return rows

    monkeypatch.setattr(context, "retry_if_lost", watched)
    long = tenant.put("tasks", title="x", notes="x" * 1_000_000, list_id=homes[0], owner_id=ALICE.user_id)
    for number in range(40):
        tenant.put("tasks", title=str(number), list_id=homes[0], owner_id=ALICE.user_id, parent_id=long)
    assert refused(lambda: tenant.rows(ALICE, "tasks", limit=41, withs="parent")) == {"limit": "too_large"}
    assert refused(lambda: tenant.rows(ALICE, "lists", limit=2, withs="tasks.parent")) == {"with": "too_large"}
    assert refused(lambda: tenant.get(ALICE, "lists", homes[0], "tasks.parent")) == {"with": "too_large"}
    assert max(sent) < 20_000_000
    assert len(tenant.rows(ALICE, "tasks", limit=10, withs="parent")) == 10
    sent.clear()
    assert len(tenant.rows(ALICE, "tasks", limit=41, order="parent.notes.asc", where={"title": {"$ne": "x"}})) == 40
    assert refused(lambda: tenant.rows(ALICE, "tasks", limit=20, order="parent.notes.asc")) == {"order": "too_long"}
    assert max(sent) < 2_000_000
    for _ in range(20):
        tenant.put("tasks", title="x", notes="x" * 1_000_000, list_id=homes[0], owner_id=ALICE.user_id)
    assert refused(lambda: tenant.rows(ALICE, "tasks", limit=100)) == {"limit": "too_large"}
    assert max(sent) < 20_000_000


def test_a_statement_takes_postgresql_little_memory_to_plan(
    tenant: Tenant, homes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session keeps the plans of its statements; a constant of megabytes would be worked out in each."""
    planned: list[int] = []

    def explained(connection: Any, sql: bytes, values: Any) -> Any:
        [[told]] = retry_if_lost(connection, b"EXPLAIN (MEMORY, FORMAT JSON) " + sql, values)
        planned.append(orjson.loads(told or b"")[0]["Planning"]["Memory Used"])
        return retry_if_lost(connection, sql, values)

    monkeypatch.setattr(context, "retry_if_lost", explained)
    for who in (ALICE, OPERATOR):
        tenant.rows(who, "tasks", order="due_on.desc", where={"title": "x"}, count="exact")
        tenant.rows(who, "lists", withs="tasks.comments")
        tenant.get(who, "lists", homes[0], "tasks,tasks.parent,tasks.comments")
    assert len(planned) == 8
    assert max(planned) < 2_048, "kB"


def test_a_row_does_not_grow_for_ever() -> None:
    columns = {f"t{number}": {"type": "text", "null": True} for number in range(9)}
    columns |= {"j": {"type": "json", "null": True}, "a": {"type": "text[]", "null": True}, "n": {"type": "integer"}}
    tenant = Tenant({"tables": {"notes": {"columns": columns, "rules": {}}}})
    row = tenant.put("notes", n=1)
    megabyte = "x" * 2**20
    for number in range(7):
        tenant.update(OPERATOR, "notes", row, **{f"t{number}": megabyte})
    tenant.update(OPERATOR, "notes", row, j=[megabyte[:-4]])
    tenant.update(OPERATOR, "notes", row, t0=megabyte)
    for more in ({"t7": "x" * 20_000}, {"a": [megabyte]}, {"j": {"a": megabyte}}, {"t8": megabyte, "n": 2}):
        assert refused(lambda more=more: tenant.update(OPERATOR, "notes", row, **more)) == {"$body": "too_large"}
    assert tenant.get(OPERATOR, "notes", row)["n"] == 1
    # What makes a row smaller is taken, also of one that came in larger (by an import).
    tenant.raw("UPDATE {}.notes SET t8 = repeat('x', %s)", 2**20)
    tenant.update(OPERATOR, "notes", row, t0="x" * 20_000)
    tenant.update(OPERATOR, "notes", row, t7="small", n=3)


@pytest.mark.exhaustive
def test_a_body_does_not_unfold_into_a_row_of_any_size() -> None:
    """PostgreSQL writes out the numbers of JSON, and a body need not send what a column's default brings in."""
    long = {"type": "text", "default": "x" * 10_000}
    columns = {"j": {"type": "json", "null": True}, "k": {"type": "json", "null": True}}
    tenant = Tenant(
        {"tables": {"notes": {"columns": columns}, "forms": {"columns": {f"t{number}": long for number in range(40)}}}}
    )
    unfolded = [[1e308, 1e-300]] * 13_000  # 180 KB to send, 8 MB to store
    row = tenant.put("notes", j=unfolded)
    assert tenant.get(OPERATOR, "notes", row)["j"] == unfolded
    size = "SELECT octet_length(j::text) FROM {}.notes WHERE id = %s"
    held = tenant.raw(size, row)[0][0]
    assert 7_000_000 < held < MAX_ROW_BYTES
    assert refused(lambda: tenant.put("notes", j=unfolded, k=unfolded)) == {"$body": "too_large"}
    small = unfolded[:500]  # 7 KB
    for _ in range(3):
        tenant.update(OPERATOR, "notes", row, k=small)
    assert refused(lambda: tenant.update(OPERATOR, "notes", row, k=unfolded[:900])) == {"$body": "too_large"}
    assert tenant.raw(size, row)[0][0] == held
    many = [{"j": unfolded}] * 3
    environment = tenant.environment
    assert refused(lambda: services.insert_rows(environment, OPERATOR, "notes", many)) == {"$body": "too_large"}
    assert refused(lambda: services.insert_rows(environment, OPERATOR, "forms", [{}] * 100)) == {"$body": "too_large"}
    assert len(services.insert_rows(environment, OPERATOR, "forms", [{}] * 30)) == 30
    assert tenant.raw("SELECT count(*) FROM {}.notes") == [(1,)]


def test_an_error_about_no_field_refuses_all_rows(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValidationFailed("The rules have too many conditions.")

    monkeypatch.setattr("rows.write.inserts.unseen_references", refuse)
    wrong = {"title": 1}
    with pytest.raises(ValidationFailed, match="too many conditions"):
        services.insert_row(tenant.environment, KEY, "tasks", wrong)
    with pytest.raises(ValidationFailed, match="too many conditions"):
        services.insert_rows(tenant.environment, KEY, "tasks", [wrong, wrong])


@given(st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0))  # no sign before a zero
def test_the_size_of_a_number_in_json_is_what_postgresql_makes_of_it(number: float) -> None:
    cell = values.wire("jsonb", {"a": [number, "1e+30"]})
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT octet_length(%s::jsonb::text)", [cell.decode()])
        stored = cursor.fetchone()[0]
    blanks = 2  # after the colon and the comma
    assert column_values.stored_size(Column("a", "a", "json"), cell) + blanks == stored


def test_counts_are_opt_in(tenant: Tenant, homes: tuple[str, str]) -> None:
    for number in range(3):
        tenant.put("tasks", title=str(number), list_id=homes[0], owner_id=ALICE.user_id)
    assert "count" not in tenant.page(ALICE, "tasks", limit=1)
    assert tenant.page(ALICE, "tasks", limit=1, count="exact")["count"] == 3
    assert tenant.page(BOB, "tasks", limit=1, count="exact")["count"] == 0
    page = tenant.page(ALICE, "tasks", limit=1, count="estimated", where='{"title": {"$gt": "0"}}')
    assert (page["count"], page["count_is"]) == (2, "exact")


@pytest.mark.parametrize("verb", ["get", "update", "delete", "insert", "rows"])
@pytest.mark.parametrize("table", ["nothing", "secrets", "secret", "pg_class", "tasks; DROP TABLE lists", '"', "%s"])
def test_a_table_that_is_not_there_and_one_without_rules_are_alike(tenant: Tenant, verb: str, table: str) -> None:
    """And the one is not suggested for the other."""
    row_id = [] if verb in ("insert", "rows") else ["x"]
    with pytest.raises(NotFound) as caught:
        getattr(tenant, verb)(ALICE, table, *row_id)
    called = f'Table "{table}"' if identifiers.PATTERN.fullmatch(table) else "This table"
    environment = tenant.environment.environment_id
    assert caught.value.text == f"{called} does not exist in {environment}, or you have no access to it."


def test_a_table_that_can_only_be_written_to_is_not_suggested_for_itself() -> None:
    tenant = Tenant({"tables": {"drops": {"columns": {"body": {"type": "text"}}, "rules": {"user": {"insert": {}}}}}})
    assert tenant.insert(ALICE, "drops", body="x").keys() == {"id"}
    with pytest.raises(NotFound) as caught:
        tenant.rows(ALICE, "drops")
    assert caught.value.text == f"The rows of drops can be written but not read in {tenant.environment.environment_id}."
    with pytest.raises(NotFound, match='did you mean "drops"'):
        tenant.rows(ALICE, "drop")


def test_an_id_can_be_chosen_by_keys_and_members_and_is_taken_once(tenant: Tenant) -> None:
    cells = {"name": "x", "owner_id": ALICE.user_id}
    assert tenant.insert(KEY, "lists", id="mine", **cells)["id"] == "mine"
    assert tenant.insert(OWNER, "lists", id="yours", **cells)["id"] == "yours"
    with pytest.raises(Conflict):
        tenant.insert(KEY, "lists", id="mine", **cells)
    assert refused(lambda: tenant.insert(KEY, "lists", id="a b", **cells)) == {"id": "invalid"}


def test_a_refused_row_of_a_batch_refuses_the_batch(tenant: Tenant, homes: tuple[str, str]) -> None:
    from rows import services

    good = {"title": "x", "list_id": homes[0]}

    def send(*bodies: dict[str, Any]) -> Any:
        return services.insert_rows(tenant.environment, ALICE, "tasks", bodies)

    assert refused(lambda: send(good, {**good, "title": 5}, {"list_id": 7})) == {
        "1.title": "wrong_type",
        "2.title": "required",
        "2.list_id": "wrong_type",
    }
    assert refused(lambda: send(good, {**good, "list_id": homes[1]})) == {"1.list_id": "no_such_row"}
    for bodies in ([], [good] * 101):
        with pytest.raises(ApiError):
            send(*bodies)
    assert tenant.rows(OPERATOR, "tasks") == []
    assert len(send(*[good] * 100)) == 100
    assert tenant.page(ALICE, "tasks", count="exact")["count"] == 100


def test_estimates_above_the_limit_are_only_for_callers_who_see_all_rows(
    tenant: Tenant, homes: tuple[str, str]
) -> None:
    tenant.raw(
        "INSERT INTO {}.tasks (id, title, list_id, owner_id) SELECT 't' || n, 'x', %s, %s FROM generate_series(1, 10001) n",
        homes[0],
        ALICE.user_id,
    )
    tenant.raw("ANALYZE {}.tasks")
    for _ in range(3):  # by text, at its preparation, and prepared
        mine = tenant.page(ALICE, "tasks", limit=1, count="estimated")
        assert (mine["count"], mine["count_is"]) == (10_000, "at_least")
        whole = tenant.page(OPERATOR, "tasks", limit=1, count="estimated")
        assert (whole["count"], whole["count_is"]) == (10_001, "estimated")
    walked = tenant.page(OPERATOR, "tasks", limit=1, count="estimated", where={"list.name": "Home"})
    assert (walked["count"], walked["count_is"]) == (10_000, "at_least")


@pytest.mark.parametrize(
    ("read", "count_is"),
    [
        ({}, "estimated"),
        ({"where": {"owner_id": "$user.id"}}, "at_least"),
        ({"columns": ["*", "-secret"]}, "at_least"),
        ([{"where": {"owner_id": "$user.id"}}, {"columns": ["*", "-secret"]}], "at_least"),
    ],
)
def test_who_does_not_see_each_cell_of_each_row_is_told_no_estimate(
    monkeypatch: pytest.MonkeyPatch, read: Any, count_is: str
) -> None:
    """Threat T1: the planner's statistics are of all rows and cells."""
    monkeypatch.setattr(query_service, "COUNT_CEILING", 2)
    columns = {"secret": {"type": "text", "null": True}, "owner": {"type": "user"}}
    tenant = Tenant({"tables": {"notes": {"columns": columns, "rules": {"user": {"read": read}}}}})
    tenant.with_users(ALICE)
    for _ in range(4):
        tenant.put("notes", owner_id=ALICE.user_id)
    assert tenant.page(ALICE, "notes", limit=1, count="estimated")["count_is"] == count_is


def test_a_row_that_would_hold_fast_but_goes_along_is_no_hindrance() -> None:
    """Notes keep their list from going, but they belong to a task of it, and go with that."""
    reference = {"type": "reference", "on_delete": "cascade"}
    tenant = Tenant(
        {
            "tables": {
                "lists": {"columns": {"name": {"type": "text"}}},
                "tasks": {"columns": {"list": {**reference, "to": "lists"}}},
                "notes": {
                    "columns": {
                        "task": {**reference, "to": "tasks", "null": True},
                        "list": {**reference, "to": "lists", "on_delete": "restrict"},
                    }
                },
            }
        }
    )
    home = tenant.put("lists", name="x")
    task = tenant.put("tasks", list_id=home)
    tenant.put("notes", task_id=task, list_id=home)
    loose = tenant.put("notes", list_id=home)
    with pytest.raises(Conflict, match="deleted: 1 of notes."):
        tenant.delete(KEY, "lists", home)
    assert len(tenant.rows(KEY, "notes")) == 2
    tenant.delete(KEY, "notes", loose)
    tenant.delete(KEY, "lists", home)
    assert tenant.rows(KEY, "notes") == tenant.rows(KEY, "tasks") == tenant.rows(KEY, "lists") == []


def test_row_referenced_only_by_hidden_rows_is_refused_like_any_other() -> None:
    """That there is such a row cannot be hidden from the refused caller; which table it is in can, if there is anything
    in it that the caller does not see."""
    own = {"owner_id": "$user.id"}
    held = {"type": "reference", "to": "lists", "on_delete": "restrict"}
    tenant = Tenant(
        {
            "tables": {
                "lists": {
                    "columns": {"owner": {"type": "user"}},
                    "rules": {"user": {"read": {"where": own}, "delete": {}}},
                },
                "shown": {"columns": {"list": held}, "rules": {"user": {"read": {}}}},
                "hidden": {"columns": {"list": held}},
                "partly": {"columns": {"list": held}, "rules": {"user": {"read": {"where": {"id": "other"}}}}},
                "masked": {"columns": {"list": held}, "rules": {"user": {"read": {"columns": ["id"]}}}},
                "items": {"columns": {"list": {**held, "on_delete": "cascade"}}},
                "notes": {"columns": {"item": {**held, "to": "items"}}, "rules": {"user": {"read": {}}}},
            }
        }
    ).with_users(ALICE, BOB)
    told = []
    for table in ("shown", "hidden", "partly", "masked"):
        home = tenant.put("lists", owner_id=ALICE.user_id)
        tenant.put(table, list_id=home)
        with pytest.raises(Conflict) as refused:
            tenant.delete(ALICE, "lists", home)
        told.append(refused.value.text)
        with pytest.raises(NotFound):  # who does not see the list learns nothing of what holds it
            tenant.delete(BOB, "lists", home)
        with pytest.raises(Conflict, match=f"deleted: 1 of {table}."):
            tenant.delete(KEY, "lists", home)
    home = tenant.put("lists", owner_id=ALICE.user_id)
    tenant.put("notes", item_id=tenant.put("items", list_id=home))
    with pytest.raises(Conflict) as refused:
        tenant.delete(ALICE, "lists", home)
    text = "Other rows refer to this one and keep it from being deleted"
    assert refused.value.text == f"{text}.", "the number of notes would be that of hidden items"
    with pytest.raises(Conflict, match="deleted: 1 of notes."):
        tenant.delete(KEY, "lists", home)
    assert told == [f"{text}: 1 of shown.", *[f"{text}."] * 3]
