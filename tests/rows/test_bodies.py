"""Bodies of writes: what becomes of whole objects, and that everything wrong with one is named at once."""

from typing import Any

import pytest

from platform_site.http.errors import ValidationFailed
from rows.schema.model import Column, IndexKey, IndexSpec, Table
from rows.write import body_parsing

TASKS = Table(
    name="tasks",
    columns={
        c.name: c
        for c in (
            Column("title", "title", "text", max_length=5),
            Column("notes", "notes", "text", null=True),
            Column("done", "done", "boolean", default=False),
            Column("priority", "priority", "integer", null=True),
            Column("list_id", "list", "reference", references="lists"),
            Column("internal", "internal", "text", null=True),
        )
    },
    indexes=(IndexSpec((IndexKey("notes"), IndexKey("id"))),),
)
SEEN = {"id", "title", "notes", "done", "priority", "list_id", "created_at", "updated_at"}
SENT = {"title", "notes", "done", "list_id"}


def read_insert(*args: Any, **may: Any) -> Any:
    cells, errors = body_parsing.read_insert(*args, **may)
    if errors:
        raise ValidationFailed(fields=errors)
    return cells


def read_update(*args: Any, **may: Any) -> Any:
    cells, changes, errors = body_parsing.read_update(*args, **may)
    if errors:
        raise ValidationFailed(fields=errors)
    return cells, changes


def refusal(call: Any, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationFailed) as refused:
        call(*args, **kwargs)
    return [(error.field, error.code) for error in refused.value.fields]


def test_an_insert_gives_wire_text_by_column() -> None:
    body = {"list_id": "lst_1", "title": "Tea", "done": True, "notes": None}
    cells = read_insert(TASKS, body, writable=SENT, readable=SEEN)
    assert cells == {"list_id": b"lst_1", "title": b"Tea", "done": b"true", "notes": None}
    assert list(cells) == list(body)


def test_every_invalid_field_is_named_at_once() -> None:
    body = {
        "title": "too long",
        "done": "yes",
        "notes": 7,
        "nope": 1,
        "priority": 3,
        "id": "tsk_9",
        "created_at": "now",
    }
    assert refusal(read_insert, TASKS, body, writable=SENT, readable=SEEN) == [
        ("title", "too_long"),
        ("done", "wrong_type"),
        ("notes", "wrong_type"),
        ("nope", "unknown"),
        ("priority", "read_only"),
        ("id", "read_only"),
        ("created_at", "read_only"),
        ("list_id", "required"),
    ]


def test_a_hidden_column_is_refused_like_an_unknown_one() -> None:
    with pytest.raises(ValidationFailed) as hidden:
        read_update(TASKS, {"internal": 5}, writable=SENT, readable=SEEN)
    with pytest.raises(ValidationFailed) as unknown:
        read_update(TASKS, {"xnternal": 5}, writable=SENT, readable=SEEN)
    hidden_body, unknown_body = hidden.value.body("req_1"), unknown.value.body("req_1")
    assert str(hidden_body).replace("internal", "xnternal") == str(unknown_body)


def test_who_keeps_a_column_from_being_written_is_told() -> None:
    for name, why in (("priority", "the table's rules do not let you"), ("created_at", "the platform sets it")):
        with pytest.raises(ValidationFailed) as refused:
            read_update(TASKS, {name: 1}, writable=SENT, readable=SEEN)
        assert refused.value.fields[0].message == f"Cannot be set: {why}."


def test_a_column_that_may_be_written_and_not_read_is_taken() -> None:
    assert read_update(TASKS, {"internal": "x"}, writable={"internal"}, readable={"id"}) == ({"internal": b"x"}, {})


def test_of_a_body_with_nothing_but_strange_members_a_hundred_are_named() -> None:
    body = {f"strange_{number}": 1 for number in range(5_000)}
    found = refusal(read_insert, TASKS, body, writable=SENT, readable=SEEN)
    assert len(found) == 100
    assert {code for _, code in found} == {"unknown"}


def test_an_id_is_chosen_by_those_who_may() -> None:
    body = {"id": "my-own_ID", "title": "Tea", "list_id": "l"}
    assert read_insert(TASKS, body, writable={*SENT, "id"}, readable=SEEN)["id"] == b"my-own_ID"
    for wrong in ("", "a" * 65, "a b", "ä", None, 5, "a\n"):
        assert refusal(read_insert, TASKS, body | {"id": wrong}, writable={*SENT, "id"}, readable=SEEN) == [
            ("id", "invalid")
        ]
    assert refusal(read_update, TASKS, {"id": "x"}, writable={*SENT, "id"}, readable=SEEN) == [("id", "read_only")]
    assert refusal(read_insert, TASKS, body, writable=SENT, readable=()) == [("id", "read_only")]


def test_what_a_rule_forces_is_not_required() -> None:
    """It may not be sent either."""
    may = {"writable": SENT - {"list_id"}, "readable": SEEN}
    assert read_insert(TASKS, {"title": "Tea"}, **may) == {"title": b"Tea"}
    assert refusal(read_insert, TASKS, {"title": "Tea", "list_id": "l"}, **may) == [("list_id", "read_only")]


def test_an_update_of_nothing_is_nothing() -> None:
    assert read_update(TASKS, {}, writable=SENT, readable=SEEN) == ({}, {})


@pytest.mark.parametrize("body", [[], [{}], "text", 5, None, True])
def test_a_body_that_is_no_object(body: Any) -> None:
    assert refusal(read_update, TASKS, body, writable=SENT, readable=SEEN) == [("$body", "wrong_type")]


def test_null_for_a_column_without_nulls() -> None:
    assert refusal(read_update, TASKS, {"title": None, "notes": None}, writable=SENT, readable=SEEN) == [
        ("title", "null")
    ]


def test_a_text_too_long_for_its_index() -> None:
    # 54000 is what PostgreSQL would say, as an error of the platform.
    longest = "é" * 1_300
    assert read_update(TASKS, {"notes": longest}, writable=SENT, readable=SEEN) == (
        {"notes": longest.encode()},
        {},
    )
    for longer in (longest + "x", "x" * 300_000):
        assert refusal(read_update, TASKS, {"notes": longer}, writable=SENT, readable=SEEN) == [("notes", "too_long")]
    assert (
        read_update(TASKS, {"internal": "x" * 300_000}, writable={"internal"}, readable=SEEN)[0]["internal"] is not None
    )


def test_names_are_repeated_only_as_far_as_they_could_be_names() -> None:
    for name in ("x" * 5_000, "a\ud800b", 'a";drop table', "%s"):
        ((field, code),) = refusal(read_update, TASKS, {name: 1}, writable=SENT, readable=SEEN)
        assert code == "unknown"
        assert len(field) <= 600
        field.encode()
