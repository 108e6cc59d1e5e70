"""Patterns, payloads."""

from datetime import UTC, datetime

import orjson
import pytest

from rows.outbox import event_types
from rows.outbox.models import OutboxEvent


@pytest.mark.parametrize(
    ("pattern", "event", "covered"),
    [
        ("tasks.insert", "tasks.insert", True),
        ("tasks.insert", "tasks.update", False),
        ("tasks.*", "tasks.delete", True),
        ("tasks.*", "lists.delete", False),
        ("*.insert", "lists.insert", True),
        ("*.insert", "lists.update", False),
        ("*.*", "lists.update", True),
        ("*", "lists.update", True),
        ("*", "function.run.failed", True),
        ("*", "webhook.test", False),
        ("webhook.test", "webhook.test", True),
        ("*.*", "schema.migrated", False),
        ("*.insert", "auth.user.created", False),
        ("schema.*", "schema.migrated", False),
        ("schema.*", "schema.insert", True),
        ("schema.migrated", "schema.insert", False),
        ("environment.*", "environment.ready", False),
        ("function.run.failed", "function.run.failed", True),
        ("function.run.failed", "function.run.succeeded", False),
    ],
)
def test_a_pattern_covers_what_it_says(pattern: str, event: str, covered: bool) -> None:
    assert event_types.problem_with(pattern) is None
    assert event_types.matches([pattern], event) is covered


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "tasks",
        "tasks.",
        ".insert",
        "tasks.upsert",
        "Tasks.insert",
        "**",
        "*.insert ",
        "tasks.insert\n",
        "a" * 49 + ".insert",
        "tasks;drop.insert",
        "function.run.*",
        "täsks.insert",
    ],
)
def test_what_is_no_pattern_is_refused_with_a_reason(pattern: str) -> None:
    reason = event_types.problem_with(pattern)
    assert reason is not None
    assert "is not an event" in reason


def test_the_outbox_is_asked_for_exactly_what_is_wanted() -> None:
    assert event_types.interests(["tasks.insert", "*.delete", "lists.*", "schema.migrated"]) == {
        ("tasks", "insert"),
        ("*", "delete"),
        ("lists", "*"),
        ("schema", "*"),
    }
    assert event_types.interests(["*"]) == {("*", "*")}
    assert event_types.interests(["*.*"]) == {("*", "insert"), ("*", "update"), ("*", "delete")}, (
        "the end of a run is no row"
    )
    assert event_types.interests(["function.run.failed"]) == {("function.run", "*")}


def test_a_delivery_carries_no_column_that_was_not_asked_for() -> None:
    record = {"id": "tsk_1", "title": "a", "internal": "secret"}
    assert event_types.select_columns(record, ["title"]) == {"id": "tsk_1", "title": "a"}
    assert event_types.select_columns(record, []) == {"id": "tsk_1"}
    assert event_types.select_columns(record, None) == record
    assert event_types.select_columns(None, ["title"]) is None


def test_the_body_has_the_shape_of_the_design() -> None:
    event = OutboxEvent(
        event_id="evt_1",
        type="tasks.insert",
        created_at=datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        environment_id="env_1",
        schema_version=3,
        request_id="req_1",
    )
    data = {"table": "tasks", "id": "tsk_1", "record": {"id": "tsk_1"}, "old_record": None, "changed": []}
    text = event_types.body(event, data)
    assert orjson.loads(text) == {
        "id": "evt_1",
        "type": "tasks.insert",
        "timestamp": "2026-01-02T03:04:05.000006Z",
        "environment_id": "env_1",
        "schema_version": 3,
        "request_id": "req_1",
        "data": {"table": "tasks", "id": "tsk_1", "record": {"id": "tsk_1"}, "old_record": None, "changed": []},
    }
