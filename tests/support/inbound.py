"""Inbound endpoints of functions."""

from typing import Any

from django.conf import settings as configured

from functions.models import Run
from tests.rows.conftest import Tracker
from tests.support.client import Answer


def make(tracker: Tracker, name: str, who: str = "owner", **body: Any) -> Answer:
    return tracker.post(who, f"/functions/{name}/inbound", body)


def create_endpoint(tracker: Tracker, name: str, who: str = "owner", **body: Any) -> str:
    """The path of a new inbound endpoint of the function."""
    made = make(tracker, name, who, **body)
    assert made.status == 201, made.json
    return str(made.json["url"]).removeprefix(configured.BASE_URL)


def listed(tracker: Tracker, name: str) -> list[dict[str, Any]]:
    return list(tracker.get("owner", f"/functions/{name}/inbound").json["data"])


def send(tracker: Tracker, path: str, body: bytes = b"{}", **how: Any) -> Answer:
    """As a provider does: without a token and without headers of the platform."""
    return tracker.api.request("POST", path, body=body, **how)


def inbound_runs(tracker: Tracker) -> list[Run]:
    return list(Run.objects.using(tracker.project.cluster).filter(trigger="inbound").order_by("created_at", "id"))
