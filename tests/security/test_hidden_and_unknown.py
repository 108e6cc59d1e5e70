"""Threat T7 for rows: what is hidden from a caller answers as what does not exist, byte for byte and in the same time.

Parse GHSA-w54v-hf9p-8856, Django CVE-2024-39329: a status, a message or a delay told the two
apart. Time is compared by what makes it: the statements that ran. `-m slow` compares it by the clock, too.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connections

from platform_site.postgres import prepared
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer
from tests.support.timing import are_indistinguishable, medians
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@dataclass(frozen=True)
class Pair:
    """One question about something hidden, and the same about something that does not exist. Names are as long."""

    what: str
    hidden: str
    unknown: str
    ask: Callable[[Tracker, str], Answer]

    def __str__(self) -> str:
        return self.what


def where(of: Any) -> str:
    return quote(json.dumps(of))


def pairs(rows: dict[str, str]) -> list[Pair]:
    """`rows`: ids of alice's `task`, of bob's `list` and `task`, and of a `secret`, in a table that users have no rule
    of."""
    hidden_list, hidden_task, mine = rows["list"], rows["task"], rows["mine"]
    unknown_list, unknown_task = (one[:-6] + "zzzzzz" for one in (hidden_list, hidden_task))
    of_rows = {
        "GET": lambda tracker, row: tracker.get("alice", f"/rows/tasks/{row}"),
        "GET with": lambda tracker, row: tracker.get("alice", f"/rows/tasks/{row}?with=list"),
        "GET columns": lambda tracker, row: tracker.get("alice", f"/rows/tasks/{row}?columns=title"),
        "PATCH": lambda tracker, row: tracker.patch("alice", f"/rows/tasks/{row}", {"title": "x"}),
        "PATCH of nothing": lambda tracker, row: tracker.patch("alice", f"/rows/tasks/{row}", {}),
        "PATCH wrongly": lambda tracker, row: tracker.patch("alice", f"/rows/tasks/{row}", {"title": 5}),
        "PATCH if": lambda tracker, row: tracker.patch(
            "alice", f"/rows/tasks/{row}", {"title": "x"}, headers={"If-Match": '"x"'}
        ),
        "DELETE": lambda tracker, row: tracker.delete("alice", f"/rows/tasks/{row}"),
        "DELETE if": lambda tracker, row: tracker.delete("alice", f"/rows/tasks/{row}", headers={"If-Match": '"x"'}),
    }  # fmt: skip
    of_targets = {
        "INSERT below": lambda tracker, row: tracker.post("alice", "/rows/tasks", {"title": "x", "list_id": row}),
        "INSERT many": lambda tracker, row: tracker.post("alice", "/rows/tasks", [{"title": "x", "list_id": row}] * 2),
        "where it": lambda tracker, row: tracker.get(
            "alice", f"/rows/tasks?where={where({'list_id': row})}&count=exact"
        ),
    }
    of_columns = {
        "where": lambda tracker, name: tracker.get("alice", f"/rows/tasks?where={where({name: 'x'})}"),
        "where through": lambda tracker, name: tracker.get("alice", f"/rows/tasks?where={where({f'parent.{name}': 1})}"),
        "where below": lambda tracker, name: tracker.get(
            "alice", f"/rows/lists?where={where({'tasks': {'$some': {name: {'$null': True}}}})}"
        ),
        "query": lambda tracker, name: tracker.post("alice", "/rows/tasks/query", {"where": {"$or": [{name: 1}, {}]}}),
        "order": lambda tracker, name: tracker.get("alice", f"/rows/tasks?order={name}.desc"),
        "order badly": lambda tracker, name: tracker.get("alice", f"/rows/tasks?order={name}.down"),
        "with": lambda tracker, name: tracker.get("alice", f"/rows/tasks/{mine}?with={name}"),
        "columns": lambda tracker, name: tracker.get("alice", f"/rows/tasks?columns=title,{name}"),
        "columns of one": lambda tracker, name: tracker.get("alice", f"/rows/tasks/{mine}?columns=*,-{name}"),
        "columns of a hidden row": lambda tracker, name: tracker.get("alice", f"/rows/tasks/{hidden_task}?columns={name}"),
        "columns of another": lambda tracker, name: tracker.get("alice", f"/rows/tasks?with=parent&columns=parent.{name}"),
        "columns by query": lambda tracker, name: tracker.post("alice", "/rows/tasks/query", {"columns": f"{name}.id"}),
        "group": lambda tracker, name: tracker.post("alice", "/rows/tasks/aggregate", {"group": [name]}),
        "group by part": lambda tracker, name: tracker.post("alice", "/rows/tasks/aggregate", {"group": [f"{name}.day"]}),
        "sum": lambda tracker, name: tracker.post("alice", "/rows/tasks/aggregate", {"sum": [name]}),
        "where of groups": lambda tracker, name: tracker.post(
            "alice", "/rows/tasks/aggregate", {"count": True, "where": {name: {"$null": True}}}
        ),
        "having": lambda tracker, name: tracker.post(
            "alice", "/rows/tasks/aggregate", {"count": True, "having": {name: {"$null": True}}}
        ),
        "order of groups": lambda tracker, name: tracker.post(
            "alice", "/rows/tasks/aggregate", {"count": True, "order": name}
        ),
        "PATCH column": lambda tracker, name: tracker.patch("alice", f"/rows/tasks/{mine}", {name: "x"}),
        "PATCH column of a hidden row": lambda tracker, name: tracker.patch("alice", f"/rows/tasks/{hidden_task}", {name: 1}),
        "INSERT column": lambda tracker, name: tracker.post("alice", "/rows/tasks", {"title": "x", name: "x"}),
    }  # fmt: skip
    of_relations = {
        "with relation": lambda tracker, name: tracker.get("alice", f"/rows/tasks?with={name}"),
        "with deeper": lambda tracker, name: tracker.get("alice", f"/rows/lists?with=tasks.{name}"),
        "where relation": lambda tracker, name: tracker.get(
            "alice", f"/rows/tasks?where={where({name: {'$some': {}}})}"
        ),
        "group by relation": lambda tracker, name: tracker.post("alice", "/rows/tasks/aggregate", {"group": [name]}),
        "group by path": lambda tracker, name: tracker.post(
            "alice", "/rows/tasks/aggregate", {"group": [f"{name}.body"]}
        ),
        "where path": lambda tracker, name: tracker.get("alice", f"/rows/tasks?where={where({f'{name}.body': 'x'})}"),
        "order path": lambda tracker, name: tracker.get("alice", f"/rows/tasks?order={name}.body"),
        "columns path": lambda tracker, name: tracker.get("alice", f"/rows/tasks?with=list&columns={name}.body"),
        "columns relation": lambda tracker, name: tracker.get("alice", f"/rows/tasks?columns={name}"),
    }
    of_tables = {
        "list": lambda tracker, name: tracker.get("alice", f"/rows/{name}"),
        "list badly": lambda tracker, name: tracker.get("alice", f"/rows/{name}?where=x&limit=5"),
        "retrieve": lambda tracker, name: tracker.get("alice", f"/rows/{name}/{rows['secret']}"),
        "insert": lambda tracker, name: tracker.post("alice", f"/rows/{name}", {"body": "x"}),
        "insert badly": lambda tracker, name: tracker.post("alice", f"/rows/{name}", {"body": 5}),
        "update": lambda tracker, name: tracker.patch("alice", f"/rows/{name}/{rows['secret']}", {"body": "x"}),
        "delete": lambda tracker, name: tracker.delete("alice", f"/rows/{name}/{rows['secret']}"),
        "search": lambda tracker, name: tracker.post("alice", f"/rows/{name}/query", {}),
        "aggregate": lambda tracker, name: tracker.post("alice", f"/rows/{name}/aggregate", {"count": True}),
        "explain": lambda tracker, name: tracker.post("alice", f"/rows/{name}/explain", {"id": "x"}),
    }
    return [
        *(Pair(what, hidden_task, unknown_task, ask) for what, ask in of_rows.items()),
        *(Pair(what, hidden_list, unknown_list, ask) for what, ask in of_targets.items()),
        *(Pair(what, "internal", "internol", ask) for what, ask in of_columns.items()),
        *(Pair(what, "secrets", "sekrets", ask) for what, ask in of_relations.items()),
        *(Pair(f"{what} a table", "secrets", "sekrets", ask) for what, ask in of_tables.items()),
    ]


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:  # noqa: F811
    made: Tracker = make_tracker(DOCUMENT)
    return made


@pytest.fixture
def planted(tracker: Tracker) -> dict[str, str]:
    users = tracker.users

    def put(table: str, **cells: Any) -> str:
        made = tracker.post("operator", f"/rows/{table}", cells)
        assert made.status == 201, made.json
        return str(made.json["id"])

    home = put("lists", name="Home", owner_id=users["alice"])
    mine = put("tasks", title="x", list_id=home, owner_id=users["alice"], internal="x")
    theirs = put("lists", name="Bob's", owner_id=users["bob"])
    task = put("tasks", title="x", list_id=theirs, owner_id=users["bob"])
    return {"mine": mine, "list": theirs, "task": task, "secret": put("secrets", body="x", task_id=mine)}


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The text of every statement that runs within, whichever way it goes to PostgreSQL."""
    seen: list[str] = []
    run = prepared.execute

    def watched(wrapper: Any, sql: bytes, values: Any) -> Any:
        seen.append(sql.decode())
        return run(wrapper, sql, values)

    def wrapper(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        seen.append(str(sql))
        return execute(sql, params, many, context)

    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setattr(prepared, "execute", watched)
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(wrapper))
        yield seen


def said(answer: Answer, name: str) -> tuple[int, str, dict[str, str]]:
    """All of an answer but what is its own: request id, time, and the name that the client sent."""
    own = ("x-request-id", "date", "ratelimit")
    body = answer.body.decode()
    if answer.json and "error" in answer.json:
        body = body.replace(answer.json["error"]["request_id"], "req")
    headers = {key: value for key, value in answer.headers.items() if key.lower() not in own}
    return answer.status, body.replace(name, "…"), headers


def test_hidden_and_unknown_get_the_same_bytes_after_the_same_statements(
    tracker: Tracker, planted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {table: tracker.get("operator", f"/rows/{table}").body for table in ("lists", "tasks", "secrets")}
    refused = ran = 0
    for pair in pairs(planted):
        for name in (pair.hidden, pair.unknown):  # what is compiled and prepared once is so for both
            pair.ask(tracker, name)
        with statements(monkeypatch) as of_hidden:
            hidden = pair.ask(tracker, pair.hidden)
        with statements(monkeypatch) as of_unknown:
            unknown = pair.ask(tracker, pair.unknown)
        assert said(hidden, pair.hidden) == said(unknown, pair.unknown), pair
        assert of_hidden == of_unknown, pair
        refused += hidden.status >= 400
        ran += len(of_hidden)
    assert refused >= 30
    assert ran >= 30
    assert {table: tracker.get("operator", f"/rows/{table}").body for table in before} == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hidden_and_unknown_take_the_same_time(tracker: Tracker, planted: dict[str, str]) -> None:
    apart = []
    for pair in pairs(planted):
        took = medians({name: partial(pair.ask, tracker, name) for name in (pair.hidden, pair.unknown)})
        if not are_indistinguishable(took):
            apart.append((str(pair), took))
    assert apart == []
