"""Every invalid request to the endpoints of rows: a clear error below 500, and nothing changed."""

import json
import secrets
import time
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from rows.query import context
from tests.rows.conftest import Tracker
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

LONG = "a" + "b" * 46
LONGEST = "c" * 48
HOSTILE = ["'", '"', "%", "%s", "$1", ";", "--", "\\", "\x00", "' OR '1'='1", '"; DROP TABLE tasks; --', "\U0001f600"]


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(
        {
            "tables": {
                **DOCUMENT["tables"],
                "order": {"columns": {"select": {"type": "text", "null": True}, LONG: {"type": "text", "null": True}}},
                LONGEST: {"columns": {LONGEST: {"type": "text"}}, "unique": [[LONGEST]], "indexes": [[f"-{LONGEST}"]]},
                "user": {"columns": {"table": {"type": "reference", "to": "order", "null": True}}},
            }
        }
    )
    return made


def test_bad_queries(tracker: Tracker) -> None:
    """Each names the parameter. A hidden column and an unknown one get the same bytes."""

    def ask(who: str = "alice", table: str = "tasks", **query: str) -> Any:
        text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
        return tracker.get(who, f"/rows/{table}?{text}")

    deep: Any = {"done": True}
    for _ in range(7):
        deep = {"$and": [deep]}
    bad_where = [
        "", "nonsense", "[]", "1", "null", '"x"', "{", '{"done": true', "{'done': true}", '{"done": NaN}',
        '{"done": true, "done": false}', '{"$where": "1"}', '{"done": {"$regex": "a"}}', '{"nothing": 1}',
        '{"internal": "x"}', '{"done": "true"}', '{"priority": 9223372036854775808}', '{"priority": 1.5}',
        '{"due_on": "2026-13-01"}', '{"seen_at": "2026-01-01"}', '{"status": "other"}', '{"title": {"$gt": 5}}',
        '{"title": {"$in": "x"}}', '{"list": {"name": "x"}}', '{"list.nothing": 1}', '{"secrets": {"$some": {}}}',
        '{"title": "\\u0000"}', '{"title": "\\ud800"}', '{"$or": []}', '{"$not": []}',
        json.dumps(deep), json.dumps({"$or": [{"done": True}] * 101}), json.dumps({"title": "x" * 9_000}),
        json.dumps({"title": {"$in": ["x"] * 10_000}}), "{" * 3_000,
    ]  # fmt: skip
    for where in bad_where:
        answer = ask(where=where)
        assert (answer.status, list(answer.fields)) == (422, ["where"]), where
    for order in ("", "nothing", "internal", "title.up", "title.asc.sideways", "a.b.c.d", "title,done,priority,due_on",
                  "meta", "tags", "comments.body", "title,title", "title;", "1", "id,nothing", "id.desc,", "title,id,internal", "title.desc nulls last", "secrets.body"):  # fmt: skip
        answer = ask(order=order)
        assert (answer.status, list(answer.fields)) == (422, ["order"]), order
    for withs in ("", "nothing", "title", "internal", "secrets", "list.tasks.list", "parent.parent.parent.parent",
                  "comments.task.list.owner", "list,", "owner"):  # fmt: skip
        answer = ask(**{"with": withs})
        assert (answer.status, list(answer.fields)) == (422, ["with"]), withs
    for limit in ("0", "-1", "101", "abc", "1.5", "", "9" * 30, "１"):
        answer = ask(limit=limit)
        assert (answer.status, list(answer.fields)) == (422, ["limit"]), limit
    for count in ("", "yes", "EXACT"):
        assert list(ask(count=count).fields) == ["count"]
    for name in ("nothing", "Where", "filter", "with[]"):
        answer = ask(**{name: "x"})
        assert answer.fields == {name: "unknown_parameter"}
        assert "belongs in where, as JSON" in answer.json["error"]["fields"][0]["message"]
    for hidden, unknown in (("internal", "internel"),):
        for make in (
            lambda name: ask(where=json.dumps({name: "x"})),
            lambda name: ask(where=json.dumps({f"parent.{name}": {"$ne": 1}})),
            lambda name: ask(order=f"{name}.desc"),
            lambda name: ask(**{"with": name}),
            lambda name: tracker.post("alice", "/rows/tasks/query", {"where": {name: 1}}),
        ):
            one, other = make(hidden), make(unknown)
            same = [answer.json["error"] | {"request_id": ""} for answer in (one, other)]
            assert json.dumps(same[0]).replace(hidden, "") == json.dumps(same[1]).replace(unknown, "")


def test_slips_are_told_what_is_meant(tracker: Tracker) -> None:
    """Names and operators as other systems spell them. Only what the caller may see is ever proposed."""

    def told(who: str, where: str) -> str:
        answer = tracker.get(who, f"/rows/tasks?where={quote(where)}")
        assert answer.status == 422
        return str(answer.json["error"]["fields"][0]["message"])

    for where, meant in (
        ('{"titel": "x"}', "title"), ('{"dueOn": null}', "due_on"), ('{"AND": []}', "$and"), ('{"list.nmae": 1}', "name"),
        ('{"title": {"gt": "x"}}', "$gt"), ('{"title": {"_eq": "x"}}', "$eq"), ('{"title": {"starts_with": "x"}}', "$startsWith"),
    ):  # fmt: skip
        assert told("alice", where).endswith(f'; did you mean "{meant}"?'), where
    assert "$contains, " in told("alice", '{"title": {"$regex": "x"}}')
    assert '"list_id"' in told("alice", '{"list": "lst_1"}')
    assert "internal" not in told("alice", '{"internl": "x"}').removeprefix("internl")
    assert '"internal"' in told("key", '{"internl": "x"}')

    for who, table, meant in (("alice", "task", "tasks"), ("key", "Task_s", "tasks"), ("key", "ordre", "order")):
        answer = tracker.get(who, f"/rows/{table}")
        assert answer.status == 404
        assert answer.json["error"]["message"].endswith(
            f'{tracker.environment_id}, or you have no access to it; did you mean "{meant}"?'
        )
    hidden, unknown = (tracker.get("alice", f"/rows/{table}") for table in ("secrets", "secrots"))
    same = [answer.json["error"]["message"] for answer in (hidden, unknown)]
    assert same[0].replace("secrets", "") == same[1].replace("secrots", "")

    answer = tracker.post("key", "/rows/tasks", {"Title": "x", "list": "lst_1"})
    messages = {field["field"]: field["message"] for field in answer.json["error"]["fields"]}
    assert '"title"' in messages["Title"]
    assert '"list_id"' in messages["list"]


def test_cursors_of_orders_that_differ_in_one_word(tracker: Tracker) -> None:
    owner = {"owner_id": tracker.users["alice"]}
    home = tracker.post("key", "/rows/lists", {"name": "x", **owner}).json["id"]
    tracker.post("key", "/rows/tasks", [{"title": "x", "list_id": home, **owner}] * 2)
    for order, another in (
        ("due_on.asc.nullsfirst,title", "due_on.desc.nullsfirst,title"),
        ("due_on.asc.nullsfirst", "due_on.asc.nullslast"),
        ("list.created_at", "parent.created_at"),
    ):
        cursor = tracker.get("key", f"/rows/tasks?limit=1&order={order}").json["next_cursor"]
        assert tracker.get("key", f"/rows/tasks?order={order}&cursor={cursor}").status == 200
        answer = tracker.get("key", f"/rows/tasks?order={another}&cursor={cursor}")
        assert answer.fields == {"cursor": "invalid_cursor"}, another


def test_cursors_of_other_lists(tracker: Tracker, make_tracker: Any) -> None:
    bodies = [{"name": str(number), "owner_id": tracker.users["alice"]} for number in range(3)]
    assert tracker.post("key", "/rows/lists", bodies).status == 201

    def first(who: str = "alice", table: str = "lists", **query: str) -> Any:
        text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
        return tracker.get(who, f"/rows/{table}?{text}")

    where = '{"name": {"$gte": "0"}}'
    cursor = first(limit="1", where=where, order="name").json["next_cursor"]
    assert (
        first(limit="1", where='{"name":{"$gte":"0"}}', order="name.asc", cursor=cursor).status == 200
    )  # the same list
    assert first(who="key", limit="2", where=where, order="name", cursor=cursor).status == 200  # by another caller
    for other in (
        {"where": '{"name": {"$gte": "1"}}', "order": "name"},
        {"where": '{"name": {"$gt": "0"}}', "order": "name"},
        {"order": "name"},
        {"where": where},
        {"where": where, "order": "name.desc"},
        {"where": where, "order": "name,created_at"},
        {"where": where, "order": "owner_id"},
    ):
        answer = first(limit="1", cursor=cursor, **other)
        assert answer.fields == {"cursor": "invalid_cursor"}, other
    for cut in (cursor[:-1], cursor + "A", cursor[::-1], "", "x", "A" * 9_000, cursor.swapcase(), "%00", "ä"):
        answer = first(limit="1", where=where, order="name", cursor=cut)
        assert (answer.status, list(answer.fields)) == (422, ["cursor"]), cut
    assert first(table="tasks", cursor=cursor).fields == {"cursor": "invalid_cursor"}
    # Nor by the same list of another environment.
    other: Tracker = make_tracker(DOCUMENT, "Other")
    asked = f"/rows/lists?limit=1&where={quote(where)}&order=name&cursor={quote(cursor)}"
    assert tracker.get("key", asked).status == 200
    assert other.get("key", asked).fields == {"cursor": "invalid_cursor"}


def test_a_decimal_as_a_number_is_refused_rather_than_rounded(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "x", "owner_id": tracker.users["alice"]}).json["id"]
    given = {"title": "x", "list_id": home, "owner_id": tracker.users["alice"]}
    task = tracker.post("key", "/rows/tasks", given).json["id"]
    for long in (b"12.500000000000000001", b"1e-400", b"1e-99999999999999999999"):
        answer = tracker.call("key", "PATCH", f"/rows/tasks/{task}", body=b'{"price": %s}' % long)
        assert (answer.status, answer.fields) == (422, {"price": "invalid"}), "a float would round it"
        body = b'{"operations": [{"op": "update", "table": "tasks", "id": "%s", "values": {"price": %s}}]}'
        assert tracker.call("key", "POST", "/batch", body=body % (task.encode(), long)).status == 422
        assert tracker.call("key", "POST", "/rows/tasks/query", body=b'{"where": {"price": %s}}' % long).status == 422
        assert tracker.get("key", f'/rows/tasks?where={{"price": {long.decode()}}}').status == 422
    kept = b'{"price": 12.50000000000000000000, "weight": 0.1000000000000000055511151, "meta": [0.30000000000000004]}'
    row = tracker.call("key", "PATCH", f"/rows/tasks/{task}", body=kept).json
    assert (row["price"], row["weight"], row["meta"]) == ("12.50", 0.1, [0.30000000000000004])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/schema"),
        ("POST", "/config/plan"),
        ("POST", "/webhooks"),
        ("PUT", "/functions/digest"),
        ("POST", "/changes"),
    ],
)
def test_numbers_that_would_be_rounded_are_refused(tracker: Tracker, method: str, path: str) -> None:
    """Rules, defaults, backfills and filters may compare them with decimals."""
    for long in (b"12.500000000000000001", b"1e-400", b"-0.1000000000000000055"):
        answer = tracker.call("owner", method, path, body=b'{"x": [%s]}' % long)
        assert (answer.status, answer.error) == (400, "invalid_request")
        assert long.decode() in answer.json["error"]["message"]
    for exact in (b"0.30000000000000004", b"12.50000000000000000000", b"1e3"):
        assert tracker.call("owner", method, path, body=b'{"x": [%s]}' % exact).status == 422


def test_bad_bodies(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "x", "owner_id": tracker.users["alice"]}).json["id"]
    task = tracker.post("key", "/rows/tasks", {"title": "x", "list_id": home, "owner_id": tracker.users["alice"]}).json[
        "id"
    ]
    before = tracker.get("operator", f"/rows/tasks/{task}").body
    bad: list[tuple[Any, dict[str, str]]] = [
        ({"id": "other"}, {"id": "read_only"}),
        ({"created_at": "2026-01-01T00:00:00Z"}, {"created_at": "read_only"}),
        ({"updated_at": None}, {"updated_at": "read_only"}),
        ({"nothing": 1}, {"nothing": "unknown"}),
        ({"list": home}, {"list": "unknown"}),
        ({"title": None}, {"title": "null"}),
        ({"title": 5}, {"title": "wrong_type"}),
        ({"title": "x" * 201}, {"title": "too_long"}),
        ({"done": 1}, {"done": "wrong_type"}),
        ({"done": "true"}, {"done": "wrong_type"}),
        ({"priority": 2**63}, {"priority": "out_of_range"}),
        ({"priority": -(2**63) - 1}, {"priority": "out_of_range"}),
        ({"priority": 1.0}, {"priority": "wrong_type"}),
        ({"priority": True}, {"priority": "wrong_type"}),
        ({"price": "1.234"}, {"price": "too_precise"}),
        ({"price": "123456789.00"}, {"price": "out_of_range"}),
        ({"price": "NaN"}, {"price": "wrong_type"}),
        ({"weight": "1"}, {"weight": "wrong_type"}),
        ({"due_on": "0000-00-00"}, {"due_on": "invalid"}),
        ({"due_on": "2026-02-30"}, {"due_on": "invalid"}),
        ({"due_on": "infinity"}, {"due_on": "wrong_type"}),
        ({"seen_at": "2026-01-01T00:00:00"}, {"seen_at": "no_time_zone"}),
        ({"seen_at": "infinity"}, {"seen_at": "wrong_type"}),
        ({"token": "not-a-uuid"}, {"token": "wrong_type"}),
        ({"tags": "x"}, {"tags": "wrong_type"}),
        ({"tags": [None]}, {"tags": "wrong_type"}),
        ({"status": "other"}, {"status": "not_among"}),
        ({"list_id": "lst_missing"}, {"list_id": "no_such_row"}),
        ({"list_id": "a b"}, {"list_id": "no_such_row"}),
        ({"owner_id": "usr_x"}, {"owner_id": "no_such_user"}),
    ]
    for body, fields in bad:
        # By the standard library: integers of more than 64 bits are among them.
        answer = tracker.call("key", "PATCH", f"/rows/tasks/{task}", body=json.dumps(body).encode())
        assert (answer.status, answer.fields) == (422, fields), body
    for body in ([], [{}], "x", 1, None, True):
        assert tracker.patch("key", f"/rows/tasks/{task}", body).status == 422, body
    for nul in ({"title": "\x00"}, {"meta": {"a": "x\x00y"}}, {"tags": ["\x00"]}, {"\x00": 1}):
        assert tracker.patch("key", f"/rows/tasks/{task}", nul).status in (400, 422), nul
    for raw, status in ((b"", 400), (b"{", 400), (b'{"a":1,"a":2}', 400), (b"\xff", 400), (b"NaN", 400)):
        answer = tracker.call("key", "PATCH", f"/rows/tasks/{task}", body=raw, content_type="application/json")
        assert answer.status == status, raw
    huge = tracker.patch("key", f"/rows/tasks/{task}", {"notes": "x" * 300_000})
    assert huge.status == 200  # a text without a length holds what a body holds
    assert tracker.patch("key", f"/rows/tasks/{task}", {"notes": None}).status == 200
    assert tracker.patch("key", f"/rows/tasks/{task}", {"notes": "x" * 1_100_000}).status == 413
    for body in ({}, [], [{}] * 101, "x", [5], {"title": "x"}):
        assert tracker.post("key", "/rows/tasks", body).status == 422, body
    assert tracker.call("key", "PATCH", f"/rows/tasks/{task}", body=b"a=1", content_type="text/plain").status == 415
    after = json.loads(tracker.get("operator", f"/rows/tasks/{task}").body)
    assert after | {"updated_at": 0} == json.loads(before) | {"updated_at": 0}
    assert tracker.get("operator", "/rows/tasks?count=exact").json["count"] == 1


def test_hostile_names_and_values(tracker: Tracker) -> None:
    """Threat T8: SQL's own characters in every name and value."""
    home = tracker.post("key", "/rows/lists", {"name": "x", "owner_id": tracker.users["alice"]}).json["id"]
    for text in HOSTILE:
        there = quote(text, safe="")
        assert tracker.get("key", f"/rows/{there}").status == 404, text
        assert tracker.get("key", f"/rows/lists/{there}").status == 404, text
        assert tracker.get("key", f"/rows/lists?order={there}").status == 422, text
        assert tracker.get("key", f"/rows/lists?with={there}").status == 422, text
        assert tracker.get("key", f"/rows/lists?where={quote(json.dumps({text: 1}))}").status == 422, text
        assert tracker.patch("key", f"/rows/lists/{home}", {text: "x"}).status in (400, 422), text
        chosen = {"id": f"{text} ", "name": "x", "owner_id": tracker.users["alice"]}
        assert tracker.post("key", "/rows/lists", chosen).status in (400, 422), text
        if "\x00" not in text:
            changed = tracker.patch("key", f"/rows/lists/{home}", {"name": text})
            assert (changed.status, changed.json["name"]) == (200, text)
            for operator in ("$eq", "$contains", "$startsWith", "$iendsWith"):
                where = quote(json.dumps({"name": {operator: text}}))
                assert len(tracker.get("key", f"/rows/lists?where={where}").json["data"]) == 1, (operator, text)
    assert tracker.get("key", "/rows/lists?count=exact").json["count"] == 1


def test_reserved_words_and_long_names_are_names_like_others(tracker: Tracker) -> None:
    made = tracker.post("key", "/rows/order", {"select": "from", LONG: "x"})
    assert (made.status, made.json["select"], made.json[LONG]) == (201, "from", "x")
    row = made.json["id"]
    assert tracker.patch("key", f"/rows/order/{row}", {"select": "group by"}).json["select"] == "group by"
    assert (
        tracker.get("key", f"/rows/order?where={quote(json.dumps({'select': 'group by'}))}&order={LONG}.desc").status
        == 200
    )
    assert tracker.post("key", f"/rows/{LONGEST}", {LONGEST: "x"}).status == 201
    assert tracker.post("key", f"/rows/{LONGEST}", {LONGEST: "x"}).fields == {LONGEST: "taken"}
    assert tracker.get("key", f"/rows/{LONGEST}?order={LONGEST}.desc").json["data"][0][LONGEST] == "x"
    assert tracker.get("key", f"/rows/{LONGEST}c").status == 404
    for table, column in (("c" * 49, "a"), ("a", "c" * 49)):
        document = {"tables": {table: {"columns": {column: {"type": "text"}}}}}
        assert tracker.call("owner", "PUT", "/schema", json={"document": document}).status == 422
    child = tracker.post("key", "/rows/user", {"table_id": row}).json["id"]
    assert tracker.get("key", f"/rows/user/{child}?with=table").json["table"]["id"] == row
    assert tracker.get("key", f"/rows/order/{row}?with=user").json["user"][0]["id"] == child
    assert tracker.delete("key", f"/rows/user/{child}").status == 204


def test_methods_and_addresses_that_are_not_there(tracker: Tracker) -> None:
    assert tracker.call("key", "PUT", "/rows/tasks", json={}).status == 405
    assert tracker.call("key", "POST", "/rows/tasks/x", json={}).status == 405
    assert tracker.call("key", "GET", "/rows/tasks/query").status == 405
    assert tracker.get("key", "/rows/tasks/x/y").status == 404
    assert tracker.get("key", "/rows/").status == 404
    for word in ("query", "explain"):
        body = {"id": word, "name": "x", "owner_id": tracker.users["alice"]}
        assert tracker.post("key", "/rows/lists", body).fields == {"id": "reserved"}


@pytest.mark.parametrize("asked", ["where={}", "with=list", "limit=1", "done=true"])
def test_condition_in_a_url_without_conditions_is_refused(tracker: Tracker, asked: str) -> None:
    """Ignoring it would be dangerous: a query without its filter returns more, and a deletion without its condition deletes."""
    name = asked.split("=")[0]
    one = tracker.post("key", "/rows/lists", {"name": "x", "owner_id": tracker.users["alice"]}).json["id"]
    before = tracker.get("key", "/rows/lists?count=exact").body
    for method, path, body in (
        ("POST", "/rows/tasks/query", {}),
        ("POST", "/rows/lists", {"name": "y", "owner_id": tracker.users["alice"]}),
        ("PATCH", f"/rows/lists/{one}", {"name": "y"}),
        ("DELETE", f"/rows/lists/{one}", None),
        ("POST", "/rows/tasks/explain", {"id": one}),
    ):
        answer = tracker.call("key", method, f"{path}?{asked}", json=body)
        assert (answer.status, answer.fields) == (422, {name: "unknown_parameter"}), (method, path)
    assert tracker.get("key", "/rows/lists?count=exact").body == before
    assert tracker.call("key", "POST", "/rows/tasks/query?_=1", json={}).status == 200  # to get past a cache


@pytest.mark.parametrize("declared", [{"unique": [["n", "a", "b"]]}, {"indexes": [["n", "-a", "b"]]}])
def test_values_that_are_together_too_long_for_an_index(make_tracker: Any, declared: dict[str, Any]) -> None:
    """Each fits its own index; only PostgreSQL finds that both do not fit one (54000)."""
    columns = {"n": {"type": "integer", "default": 1}, "a": {"type": "text"}, "b": {"type": "text"}}
    tracker: Tracker = make_tracker({"tables": {"pairs": {"columns": columns, **declared}}})
    long, other = (secrets.token_hex(1000) for _ in range(2))  # random, or PostgreSQL would compress it
    answer = tracker.post("key", "/rows/pairs", {"a": long, "b": other})
    assert (answer.status, answer.fields) == (422, {"a": "too_long", "b": "too_long"})
    answer = tracker.post("key", "/rows/pairs", [{"a": "x", "b": "x"}, {"a": long, "b": other}])
    assert (answer.status, answer.fields) == (422, {"1.a": "too_long", "1.b": "too_long"})
    row = tracker.post("key", "/rows/pairs", {"a": long, "b": "x"})
    assert row.status == 201
    answer = tracker.call("key", "PATCH", f"/rows/pairs/{row.json['id']}", json={"b": other})
    assert (answer.status, answer.fields) == (422, {"a": "too_long", "b": "too_long"})
    assert tracker.get("key", "/rows/pairs").json["data"] == [row.json]


def test_what_is_too_long_for_an_index_of_hidden_columns_names_none(make_tracker: Any) -> None:
    text = {"type": "text"}
    rules = {"read": {"columns": ["a"]}, "insert": {"columns": ["a"]}, "update": {"columns": ["a"]}}
    columns = {"a": text, "b": {**text, "default": secrets.token_hex(1000)}}
    tracker: Tracker = make_tracker(
        {"tables": {"pairs": {"columns": columns, "unique": [["a", "b"]], "rules": {"user": rules}}}}
    )
    answer = tracker.post("alice", "/rows/pairs", {"a": secrets.token_hex(1000)})
    assert (answer.status, answer.fields) == (422, {"$body": "too_long"})


def test_an_entry_of_more_than_a_page_names_its_columns_too(make_tracker: Any) -> None:
    """PostgreSQL does not say which index it was (8,191 bytes)."""
    columns = {name: {"type": "text"} for name in "abcde"}
    tracker: Tracker = make_tracker(
        {"tables": {"many": {"columns": columns, "indexes": [["a", "b"], ["b", "c", "d", "e"]]}}}
    )
    answer = tracker.post("key", "/rows/many", {name: secrets.token_hex(1290) for name in "bcde"} | {"a": "x"})
    assert (answer.status, answer.fields) == (422, dict.fromkeys("bcde", "too_long"))


def test_the_whole_body_is_never_mistaken_for_a_column_of_that_name(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker({"tables": {"notes": {"columns": {"body": {"type": "text"}}}}})
    assert tracker.post("key", "/rows/notes", 5).fields == {"$body": "wrong_type"}
    assert tracker.post("key", "/rows/notes", []).fields == {"$body": "out_of_range"}
    assert tracker.post("key", "/rows/notes", {"body": 5}).fields == {"body": "wrong_type"}
    assert tracker.post("key", "/rows/notes", [{"body": "x"}, {"body": 5}, 5]).fields == {
        "1.body": "wrong_type",
        "2.$body": "wrong_type",
    }


def test_an_empty_list_finds_nothing_and_its_opposite_everything(tracker: Tracker) -> None:
    tracker.post("key", "/rows/lists", [{"name": str(n), "owner_id": tracker.users["alice"]} for n in range(2)])
    for where, found in (({"$in": []}, 0), ({"$nin": []}, 2), ({"$in": [str(n) for n in range(400)]}, 2)):
        answer = tracker.get("key", f"/rows/lists?where={quote(json.dumps({'name': where}))}")
        assert (answer.status, len(answer.json["data"])) == (200, found), where
    too_many = {"where": {"name": {"$in": [str(n) for n in range(10_000)]}}}
    answer = tracker.post("key", "/rows/lists/query", too_many)
    assert (answer.status, list(answer.fields)) == (422, ["where"])


@pytest.mark.exhaustive
def test_a_hostile_filter_costs_little_time_and_memory(tracker: Tracker) -> None:
    """Threat T10: the processor's time of this process, not the clock's, since the machine is not ours alone."""
    deep: Any = {"parent.title": "x"}
    for _ in range(4):
        deep = {"parent": {"$some": deep}} if len(json.dumps(deep)) < 60 else {"$not": deep}
    hostile: list[Any] = [
        {"$or": [{"parent.parent.title": {"$in": [str(n)]}} for n in range(45)]},
        {"$and": [{"$or": [{"$not": {"title": str(a + b)}} for b in range(9)]} for a in range(9)]},
        {"title": {"$in": ["x" * 30] * 1_000}},
        {"title": {"$like": "%a" * 1_000}},
        {"title": {"$like": "%" * 7_000}},
        {"$search": "a " * 3_000},
        {"$or": [{"$search": "b" * 60}] * 90},
        {"x" * 60_000: 1},
        {"title": {"$" + "x" * 60_000: 1}},
        {"a." * 30_000: 1},
        deep,
        [[[[[[]]]]]] * 5_000,
    ]
    for where in hostile:  # what it costs to import and to connect is not theirs
        tracker.post("key", "/rows/tasks/query", {"where": where})
    memory = psutil.Process().memory_info().rss
    for where in hostile:
        context._statements.clear()  # compiled anew each time
        began = time.thread_time()
        answer = tracker.post("key", "/rows/tasks/query", {"where": where})
        spent = time.thread_time() - began
        assert answer.status in (200, 422), answer.json
        assert spent < 1, (str(where)[:80], spent)
    assert psutil.Process().memory_info().rss - memory < 50e6


def test_a_plus_that_a_url_turned_into_a_space_is_explained(tracker: Tracker) -> None:
    refused = tracker.get("alice", '/rows/tasks?where={"created_at":{"$gte":"2026-03-01T12:00:00+02:00"}}')
    assert (refused.status, refused.fields) == (422, {"where": "wrong_type"})
    assert 'In a URL, "+" means a space: write "%2B".' in refused.json["error"]["fields"][0]["message"]
    escaped = tracker.get("alice", '/rows/tasks?where={"created_at":{"$gte":"2026-03-01T12:00:00%2B02:00"}}')
    assert escaped.status == 200
