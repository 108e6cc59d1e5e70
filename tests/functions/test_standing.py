"""Whoever deploys a function that runs by itself is told at once of everything that they lack for it."""

import pytest

from accounts.models import AuditEntry
from functions.models import Version
from platform_site.identity.callers import Place
from tests.functions.test_api import deploy
from tests.functions.test_inbound import address, listed, send
from tests.functions.test_schedules import own_key
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

RETURNS = "export default () => 1"
ALL = ["functions:invoke", "rows:read", "webhooks:read"]


@pytest.fixture
def path(tracker: Tracker) -> str:
    """Of an address of `busy`, which runs by a schedule and on events, too."""
    deploy(tracker, "busy", RETURNS, schedule="@daily", on=["*"])
    return address(tracker, "busy")


@pytest.mark.parametrize(
    ("held", "missing", "ways"),
    [
        ([], ALL, ["by a schedule", "on events", "by inbound addresses"]),
        (["rows:read"], ["functions:invoke", "webhooks:read"], ["by a schedule", "on events", "by inbound addresses"]),
        (["functions:invoke"], ["rows:read", "webhooks:read"], ["on events"]),
        (["functions:invoke", "webhooks:read"], ["rows:read"], ["on events"]),
    ],
)
def test_all_that_is_missing_stands_in_one_refusal(
    tracker: Tracker, place: Place, path: str, held: list[str], missing: list[str], ways: list[str]
) -> None:
    own_key(tracker, "deployer", "functions:deploy", *held)
    before = tracker.get("owner", "/functions/busy").json, listed(tracker, "busy"), AuditEntry.objects.count()
    remedies = {
        "by a schedule": '"schedule": null',
        "on events": '"on": null',
        "by inbound addresses": "revoke its inbound addresses",
    }
    for refused in (
        tracker.call("deployer", "PUT", "/functions/busy", json={"source": RETURNS}),
        tracker.call(
            "deployer", "PUT", "/functions/busy", json={"source": RETURNS, "schedule": "@hourly", "on": ["*"]}
        ),
        tracker.patch("deployer", "/functions/busy", {"attempts": 2}),
        tracker.post("deployer", "/functions/busy/activate", {"version": 1}),
    ):
        assert (refused.status, refused.error) == (403, "forbidden")
        told = refused.json["error"]["message"]
        assert f"that needs {', '.join(missing)}, too" in told
        assert f"The function runs {' and '.join(ways)}, and" in told
        assert [remedy for way, remedy in remedies.items() if remedy in told] == [remedies[way] for way in ways]
    assert (tracker.get("owner", "/functions/busy").json, listed(tracker, "busy"), AuditEntry.objects.count()) == before
    assert Version.objects.using(place.cluster).count() == 1
    assert send(tracker, path).status == 202


def test_a_new_function_is_told_so_too_and_who_has_all_of_it_deploys(tracker: Tracker, place: Place, path: str) -> None:
    own_key(tracker, "deployer", "functions:deploy")
    body = {"source": RETURNS, "schedule": "@daily", "on": ["tasks.insert"]}
    refused = tracker.call("deployer", "PUT", "/functions/new", json=body)
    assert (refused.status, "functions:invoke, rows:read, too" in refused.json["error"]["message"]) == (403, True)
    assert "inbound" not in refused.json["error"]["message"], "it has none"
    assert tracker.get("owner", "/functions/new").status == 404
    able = own_key(tracker, "able", "functions:deploy", *ALL)
    made = tracker.call("able", "PUT", "/functions/busy", json={"source": RETURNS}).json
    assert (made["scheduled_as"], made["on_as"], listed(tracker, "busy")[0]["runs_as"]) == (able, able, able)
    assert send(tracker, path).status == 202


def test_what_is_taken_away_in_the_same_deployment_needs_nothing(tracker: Tracker) -> None:
    deploy(tracker, "busy", RETURNS, schedule="@daily", on=["*"])
    own_key(tracker, "deployer", "functions:deploy")
    half = tracker.call("deployer", "PUT", "/functions/busy", json={"source": RETURNS, "on": None})
    assert (half.status, "on events" in half.json["error"]["message"]) == (403, False)
    both = {"source": RETURNS, "on": None, "schedule": None}
    assert tracker.call("deployer", "PUT", "/functions/busy", json=both).status == 200
