"""Deploying a function that runs by itself reports at once every permission that its run-as identity lacks."""

import pytest

from accounts.models import AuditEntry
from functions.models import Version
from platform_site.identity.callers import EnvironmentRef
from tests.rows.conftest import Tracker
from tests.support.functions import deploy, own_key
from tests.support.inbound import create_endpoint, listed, send

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

RETURNS = "export default () => 1"
ALL = ["functions:invoke", "rows:read", "webhooks:read"]


@pytest.fixture
def path(tracker: Tracker) -> str:
    """Of an endpoint of `busy`, which also runs by a schedule and on events."""
    deploy(tracker, "busy", RETURNS, schedule="@daily", on=["*"])
    return create_endpoint(tracker, "busy")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("held", "missing", "ways"),
    [
        ([], ALL, ["by a schedule", "on events", "by inbound endpoints"]),
        (["rows:read"], ["functions:invoke", "webhooks:read"], ["by a schedule", "on events", "by inbound endpoints"]),
        (["functions:invoke"], ["rows:read", "webhooks:read"], ["on events"]),
        (["functions:invoke", "webhooks:read"], ["rows:read"], ["on events"]),
    ],
)
def test_one_refusal_lists_everything_missing(
    tracker: Tracker, environment: EnvironmentRef, path: str, held: list[str], missing: list[str], ways: list[str]
) -> None:
    own_key(tracker, "deployer", "functions:deploy", *held)
    before = tracker.get("owner", "/functions/busy").json, listed(tracker, "busy"), AuditEntry.objects.count()
    remedies = {
        "by a schedule": '"schedule": null',
        "on events": '"on": null',
        "by inbound endpoints": "revoke its inbound endpoints",
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
    assert Version.objects.using(environment.cluster).count() == 1
    assert send(tracker, path).status == 202


@pytest.mark.exhaustive
def test_a_new_function_is_told_so_too_and_who_has_all_of_it_deploys(
    tracker: Tracker, environment: EnvironmentRef, path: str
) -> None:
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


@pytest.mark.exhaustive
def test_what_is_taken_away_in_the_same_deployment_needs_nothing(tracker: Tracker) -> None:
    deploy(tracker, "busy", RETURNS, schedule="@daily", on=["*"])
    own_key(tracker, "deployer", "functions:deploy")
    half = tracker.call("deployer", "PUT", "/functions/busy", json={"source": RETURNS, "on": None})
    assert (half.status, "on events" in half.json["error"]["message"]) == (403, False)
    both = {"source": RETURNS, "on": None, "schedule": None}
    assert tracker.call("deployer", "PUT", "/functions/busy", json=both).status == 200
