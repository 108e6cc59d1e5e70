"""Webhooks of tables that are not there: they are kept, since the table may be created later, and say so."""

import json
from typing import Any

import pytest

from rows.models import CurrentVersion, SchemaVersion
from rows.query import schema_cache
from tests.projects.conftest import key_for
from tests.rows.conftest import Tracker
from tests.support.client import Api
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

HIDDEN = {"columns": {"body": {"type": "text"}}, "rules": {"server": {"insert": {}}}}


def warning(message: str) -> dict[str, str]:
    return {"field": "events", "code": "no_such_table", "message": message}


def test_events_of_tables_that_are_not_there_are_warned_of(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(events=["list.insert", "list.delete", "zebras.*", "lists.insert", "*.update", "*", "webhook.test"])
    expected = [warning('There is no table list; did you mean "lists"?'), warning("There is no table zebras.")]
    assert made["warnings"] == expected
    path = f"/webhooks/{made['id']}"
    assert tracker.get("owner", path).json["warnings"] == expected
    assert tracker.patch("owner", path, {"events": ["zebras.*", "lists.*"]}).json["warnings"] == expected[1:]
    assert tracker.post("owner", f"{path}/rotate-secret", None).json["warnings"] == expected[1:]
    tracker.apply({"tables": {**DOCUMENT["tables"], "zebras": HIDDEN}})
    assert tracker.get("owner", path).json["warnings"] == []


def test_a_webhook_of_known_tables_and_other_events_has_no_warnings(subscribe: Any) -> None:
    for events in (["lists.insert", "tasks.*"], ["*"], ["*.*", "auth.user.created"]):
        assert subscribe(events=events)["warnings"] == []


def test_warnings_name_no_table_that_the_caller_may_not_know(api: Api, tracker: Tracker) -> None:
    """Hidden from role `server` and unknown are the same, and nothing is suggested."""
    tracker.apply({"tables": {**DOCUMENT["tables"], "secrets": HIDDEN}})
    key = key_for(tracker.environment_id, "webhooks:write", "webhooks:read", "rows:read")
    body = {"url": "http://127.0.0.1:9999/hook", "events": ["secrets.insert", "secret.insert", "tasks.insert"]}
    answer = api.post("/v1/webhooks", token=key, json=body)
    assert answer.status == 201
    assert answer.json["warnings"] == [warning(f"There is no table {name}.") for name in ("secrets", "secret")]
    seen = tracker.get("owner", f"/webhooks/{answer.json['id']}").json["warnings"]
    assert seen == [warning('There is no table secret; did you mean "secrets"?')]


@pytest.mark.parametrize(
    "stored",
    [
        {"tables": {"tasks": {"columns": {"title": {"type": "a former type"}}}}},
        {"tables": {"tasks": {"columns": {}, "rules": {"server": {"read": {"where": {"a former column": 1}}}}}}},
    ],
    ids=["columns", "rules"],
)
def test_webhook_is_readable_when_the_stored_schema_is_not(
    api: Api, tracker: Tracker, subscribe: Any, stored: Any
) -> None:
    webhook_id = subscribe(events=["tasks.insert"])["id"]
    key = key_for(tracker.environment_id, "webhooks:read")
    environment = {"environment_id": tracker.environment_id}
    SchemaVersion.objects.using("us-east-1").create(
        **environment, version=99, document_text=json.dumps(stored), source_digest="", author_kind="system"
    )
    CurrentVersion.objects.using("us-east-1").filter(**environment).update(version=99)
    schema_cache.evict(tracker.environment_id)
    seen = api.get(f"/v1/webhooks/{webhook_id}", token=key)
    assert (seen.status, seen.json["warnings"]) == (200, [])
    assert [each["id"] for each in api.get("/v1/webhooks", token=key).json["data"]] == [webhook_id]
