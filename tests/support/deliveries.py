"""Rows that trigger webhooks, and the deliveries."""

from collections.abc import Callable
from typing import Any

from tests.rows.conftest import Tracker

Dispatch = Callable[[], int]


def write_list(tracker: Tracker, name: str = "Home", owner: str = "alice") -> str:
    made = tracker.post("key", "/rows/lists", {"name": name, "owner_id": tracker.users[owner]})
    assert made.status == 201, made.json
    return str(made.json["id"])


def deliveries(tracker: Tracker, webhook: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    got = tracker.get("owner", f"/webhooks/{webhook['id']}/deliveries{query}")
    assert got.status == 200, got.json
    found: list[dict[str, Any]] = got.json["data"]
    return found
