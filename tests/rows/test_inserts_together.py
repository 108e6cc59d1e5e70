"""Inserts of one request that share a statement give what they would one after the other. docs/reference/rows.md."""

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rows.outbox.models import OutboxEvent
from rows.write import insert_pipeline
from tests.rows.conftest import Tracker
from tests.support.batches import batch, failed, insert, ref

MINE = {"where": {"owner_id": "$user.id"}}
CLUB = {"type": "reference", "to": "clubs", "on_delete": "cascade"}
COLUMNS: dict[str, Any] = {
    "label": {"type": "text", "null": True},
    "tags": {"type": "text[]", "null": True},
    "data": {"type": "json", "null": True},
    "count": {"type": "integer", "default": 7},
    "amount": {"type": "decimal", "precision": 10, "scale": 2, "null": True},
    "on": {"type": "date", "null": True},
    "at": {"type": "timestamp", "default": "$now"},
    "code": {"type": "uuid", "null": True},
    "is_done": {"type": "boolean", "null": True},
}
DOCUMENT: dict[str, Any] = {
    "tables": {
        "clubs": {
            "columns": {"name": {"type": "text"}, "owner": {"type": "user", "null": True}},
            "rules": {"user": {"read": MINE, "insert": {"set": {"owner_id": "$user.id"}, "columns": ["name"]}}},
        },
        "closures": {
            "columns": {"club": CLUB, "reason": {"type": "text", "null": True}},
            "rules": {"user": {"read": {}, "insert": {}}},
        },
        "visits": {
            "columns": {"club": CLUB, "seen_at": {"type": "timestamp", "default": "$now"}},
            "rules": {
                "user": {
                    "read": {"where": {"seen_at": {"$lte": "$now"}}},
                    "insert": {"check": {"club.closures": {"$none": {}}}},
                }
            },
        },
        "folders": {
            "columns": {"name": {"type": "text"}, "parent": {"type": "reference", "to": "folders", "null": True}},
            "rules": {"user": {"read": {}, "insert": {}}},
        },
        "things": {"columns": COLUMNS, "rules": {"user": {"read": {}, "insert": {}}}},
    }
}

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def app(make_tracker: Any) -> Tracker:
    tracker: Tracker = make_tracker(DOCUMENT, "Together")
    return tracker


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of each pipeline, the tables of its statements."""
    sent: list[list[str]] = []
    groups = insert_pipeline._groups

    def noted(context: Any, attempts: Any) -> Any:
        found = groups(context, attempts)
        sent.append([group[0].table.name for group in found])
        return found

    monkeypatch.setattr(insert_pipeline, "_groups", noted)
    return sent


def labels(app: Tracker, table: str, column: str) -> list[Any]:
    rows = app.get("alice", f"/rows/{table}?order=created_at.asc&limit=100").json["data"]
    return [row[column] for row in rows]


def test_rows_of_one_statement_are_listed_in_their_order(app: Tracker, statements: list[list[str]]) -> None:
    names = [f"{number}" for number in range(30)]
    answer = batch(app, *(insert("things", label=name) for name in names))
    assert answer.status == 200, answer.json
    assert statements == [["things"]]
    assert [each["row"]["label"] for each in answer.json["results"]] == names
    assert labels(app, "things", "label") == names


def test_a_timestamp_of_one_statement_is_never_in_the_future(app: Tracker) -> None:
    """The rule shows rows with `seen_at` up to now."""
    club = app.post("alice", "/rows/clubs", {"name": "Chess"}).json["id"]
    answer = batch(app, *(insert("visits", club_id=club) for _ in range(5)))
    assert all("seen_at" in each["row"] for each in answer.json["results"])


def test_rows_follow_those_that_they_refer_to(app: Tracker, statements: list[list[str]]) -> None:
    club = app.post("alice", "/rows/clubs", {"name": "Chess"}).json["id"]
    statements.clear()
    answer = batch(
        app,
        insert("closures", club_id=club),
        insert("clubs", "go", name="Go"),
        insert("closures", club_id=ref("go.id")),
        insert("clubs", name="Bridge"),
        insert("closures", club_id=club),
    )
    assert answer.status == 200, answer.json
    assert statements == [["closures", "clubs", "closures"]]
    assert labels(app, "clubs", "name") == ["Chess", "Go", "Bridge"]


def test_a_tree_of_rows_is_inserted(app: Tracker) -> None:
    root, leaf = (
        insert("folders", "root", name="Root"),
        insert("folders", "leaf", name="Leaf", parent_id=ref("root.id")),
    )
    answer = batch(app, root, leaf, insert("folders", name="Deep", parent_id=ref("leaf.id")))
    assert answer.status == 200, answer.json
    assert answer.json["results"][2]["row"]["parent_id"] == answer.json["results"][1]["row"]["id"]


def test_a_row_may_not_refer_to_a_later_one(app: Tracker) -> None:
    first, last = insert("clubs", id="first", name="First"), insert("clubs", id="last", name="Last")
    answer = batch(app, first, insert("closures", club_id="last"), last, who="operator")
    failed(answer, 1, 422, "validation_failed", club_id="no_such_row")
    assert app.get("operator", "/rows/clubs").json["data"] == []
    assert batch(app, first, last, insert("closures", club_id="last"), who="operator").status == 200


def test_a_rule_that_looks_at_other_rows_sees_those_before(app: Tracker, statements: list[list[str]]) -> None:
    """Whether a club is closed is asked of all its closures."""
    club = app.post("alice", "/rows/clubs", {"name": "Chess"}).json["id"]
    visit, closure = insert("visits", club_id=club), insert("closures", club_id=club)
    assert batch(app, visit, visit).status == 200
    assert batch(app, visit, closure, visit).json["error"]["operation"] == 2
    assert labels(app, "closures", "reason") == []
    assert batch(app, visit, visit, closure).status == 200


def test_each_row_of_one_statement_has_its_event(app: Tracker) -> None:
    webhook = {"url": "https://hooks.example.com/in", "events": ["things.insert"]}
    assert app.post("owner", "/webhooks", webhook).status == 201
    for _ in range(2):  # the first finds out that there are subscribers
        answer = batch(app, *(insert("things", label=f"{number}") for number in range(3)))
        ids = [each["row"]["id"] for each in answer.json["results"]]
        events = OutboxEvent.objects.using(app.project.cluster).order_by("-sequence")[:3]
        assert [event.subject for event in reversed(events)] == [f"things/{row_id}" for row_id in ids]
        assert [orjson.loads(event.data)["record"]["label"] for event in reversed(events)] == ["0", "1", "2"]
        assert len({event.event_id for event in events}) == 3


def test_a_null_among_others_and_a_refused_value(app: Tracker) -> None:
    answer = batch(app, insert("things", count=None), insert("things", count=1))
    failed(answer, 0, 422, "validation_failed", count="null")
    assert batch(app, insert("things", label="x"), insert("things", label=None), insert("things")).status == 200
    assert labels(app, "things", "label") == ["x", None, None]


TEXT = st.one_of(
    st.sampled_from(
        ["", "NULL", "null", '"', "\\", '\\"', "{", "}", ",", "a,b", "\n", "'", '"}', '","', "é\U0001f600"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "label": st.none() | TEXT,
        "tags": st.none() | st.lists(TEXT, max_size=3),
        "data": st.none() | st.dictionaries(TEXT, TEXT | st.integers(-5, 5), max_size=2) | st.lists(TEXT, max_size=2),
        "count": st.integers(-(2**63), 2**63 - 1),
        "amount": st.none() | st.sampled_from(["0.00", "-1.50", "99999999.99"]),
        "on": st.none() | st.dates().map(str),
        "code": st.none() | st.uuids().map(str),
        "is_done": st.none() | st.booleans(),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(VALUES, min_size=2, max_size=5))
def test_rows_of_one_statement_have_the_cells_of_single_ones(app: Tracker, rows: list[dict[str, Any]]) -> None:
    own = {"id", "created_at", "updated_at", "at"}
    together = batch(app, *(insert("things", **row) for row in rows))
    assert together.status == 200, together.json
    for result, row in zip(together.json["results"], rows, strict=True):
        alone = app.post("alice", "/rows/things", row)
        assert alone.status == 201, alone.json
        cells = [{name: cell for name, cell in each.items() if name not in own} for each in (result["row"], alone.json)]
        assert cells[0] == cells[1]
