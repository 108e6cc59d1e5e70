"""The dashboard's metrics: counted by web processes and a worker, read from one database, linked to their lists."""

import html
import json
import re
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import AccountEmail
from functions.models import Run
from platform_site.console import rollups
from platform_site.models import EndpointMetric, FunctionMetric, RateLimitedCaller, RegionMetric, Sample
from platform_site.observability import metrics
from platform_site.observability.traffic import Reporter
from platform_site.redis import rate_limits
from platform_site.tasks import measure_control, measure_regions
from platform_site.templatetags.figures import quantile
from tests.console.conftest import REGION, World, minutes_ago
from tests.support.client import Api
from tests.support.metrics import read_metrics
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(databases="__all__")

REGIONS = ("us-east-1", "eu-west-1", "ap-southeast-1")


def shown(console: Client, path: str = "/admin/") -> str:
    answer = console.get(path)
    assert answer.status_code == 200, answer.status_code
    return re.sub(r"\s+", " ", answer.content.decode())


# ── Requests, as web processes count them ──


def test_what_came_since_the_last_time_is_handed_in_once() -> None:
    traffic, route = Reporter(), "/v1/of-this-test"
    traffic.write()
    for status, seconds in ((200, 0.004), (200, 0.3), (404, 0.001), (429, 0.001), (500, 9.0)):
        metrics.observe_request("GET", route, status, seconds)
    assert traffic.write() == 5
    assert traffic.write() == 0
    figure = EndpointMetric.objects.get(route=route)
    assert (figure.requests, figure.client_errors, figure.server_errors, figure.rate_limited) == (5, 2, 1, 1)
    assert sum(figure.buckets) == 5
    metrics.observe_request("GET", route, 200, 0.004)
    assert traffic.write() == 1
    assert sum(EndpointMetric.objects.filter(route=route).values_list("requests", flat=True)) == 6
    assert sum(sum(each.buckets) for each in EndpointMetric.objects.filter(route=route)) == 6


def test_nothing_is_lost_while_the_database_is_unavailable() -> None:
    traffic, route = Reporter(), "/v1/of-an-outage"
    traffic.write()
    metrics.observe_request("GET", route, 200, 0.01)
    rate_limits.record_limited({"usr_x": 2})

    def away(*_: Any) -> None:
        raise OperationalError("unavailable")

    with connection.execute_wrapper(away), pytest.raises(OperationalError):
        traffic.write()
    assert traffic.write() == 1
    assert EndpointMetric.objects.get(route=route).requests == 1
    assert RateLimitedCaller.objects.get(caller_id="usr_x").requests == 2


def test_callers_that_meet_the_limit_are_bounded_in_memory() -> None:
    rate_limits.limited_callers()
    rate_limits.record_limited({f"usr_{n}": 1 for n in range(1500)})
    assert len(rate_limits.limited_callers()) == 1000
    assert rate_limits.limited_callers() == {}


@pytest.mark.parametrize(
    ("buckets", "share", "seconds"),
    [([100] + [0] * 13, 0.5, 0.0005), ([0, 0, 100] + [0] * 11, 0.95, 0.004875), ([0] * 13 + [3], 0.95, 15.0)],
)
def test_the_share_of_answers_below_a_time(buckets: list[int], share: float, seconds: float) -> None:
    assert quantile(share, buckets) == pytest.approx(seconds)
    assert quantile(share, [0] * 14) is None


# ── Regions, as a worker sees them ──


def test_worker_totals_deliveries_and_runs_only_once(world: World) -> None:
    for code in (200, 204, 500):
        world.delivery(world.event(request_id=None), code=code)
    for status, reason in (("succeeded", None), ("failed", "timeout"), ("failed", "user_error")):
        world.run(status=status, error={"reason": reason} if reason else None, duration_ms=100)
    world.attempt(world.delivery(world.event(request_id=None)), 200, at=minutes_ago(25 * 60), number=2)
    for _ in range(2):
        measure_regions()
    sums = {
        column: sum(RegionMetric.objects.filter(region=REGION).values_list(column, flat=True))
        for column in ("attempts", "attempts_succeeded", "runs_succeeded", "runs_failed", "runs_timed_out")
    }
    assert sums == {
        "attempts": 4, "attempts_succeeded": 3, "runs_succeeded": 1, "runs_failed": 2, "runs_timed_out": 1,
    }  # fmt: skip
    function = FunctionMetric.objects.get()
    assert (function.name, function.runs, function.failed, function.longest_ms) == ("sum", 3, 2, 100)
    assert RegionMetric.objects.filter(region="eu-west-1").count() >= 288, "a quiet day is looked at, too"


def test_queues_are_looked_at_with_the_age_of_the_oldest(world: World) -> None:
    event = world.event(request_id=None, relayed_at=None, created_at=minutes_ago(3))
    world.delivery(event, status="pending", next_attempt_at=minutes_ago(10))
    world.delivery(
        world.event(request_id=None), status="pending", next_attempt_at=datetime.now(UTC) + timedelta(hours=1)
    )
    world.delivery(world.event(request_id=None), status="held")
    world.run(phase="queued", status="running", ended_at=None, created_at=minutes_ago(2))
    measure_regions()
    values = Sample.objects.get(name=REGION).values
    assert (values["due"], values["held"], values["unrelayed"], values["queued"]) == (1, 1, 1, 1)
    assert 590 < values["due_age"] < 700
    assert values["queued_age"] > 100


@pytest.mark.parametrize("oldest", ["key", "anonymous"])
def test_the_age_is_of_whoever_is_next_of_visitors_or_of_all_others(world: World, oldest: str) -> None:
    for kind in ("key", "anonymous"):
        at = minutes_ago(9 if kind == oldest else 2)
        run = world.run(phase="queued", status="running", ended_at=None, created_at=at)
        Run.objects.using(REGION).filter(pk=run.pk).update(caller_kind=kind)
    measure_regions()
    assert 530 < Sample.objects.get(name=REGION).values["queued_age"] < 600


def test_backlog_of_a_failing_receiver_is_not_a_lack_of_workers(world: World) -> None:
    world.delivery(world.event(request_id=None), status="pending", next_attempt_at=minutes_ago(10))
    Webhook.objects.using(REGION).filter(pk=world.webhook.pk).update(failing_since=minutes_ago(11))
    measure_regions()
    values = Sample.objects.get(name=REGION).values
    assert (values["due"], values["due_age"]) == (1, None)


def test_figures_are_kept_for_two_days() -> None:
    for days in (1, 3):
        RegionMetric.objects.create(
            at=datetime.now(UTC) - timedelta(days=days), region=REGION, attempts=1, attempts_succeeded=1,
            runs_succeeded=0, runs_failed=0, runs_timed_out=0,
        )  # fmt: skip
    measure_control()
    assert RegionMetric.objects.count() == 1


# ── The page ──


@pytest.fixture
def filled(world: World) -> World:
    traffic = Reporter()
    traffic.write()
    EndpointMetric.objects.all().delete()  # what earlier tests of this process asked for
    for status in (200, 200, 404, 500):
        metrics.observe_request("GET", "/v1/rows/<str:table>", status, 0.02)
    rate_limits.record_limited({"usr_01k60000000000000000000000": 7})
    traffic.write()
    world.delivery(world.event(request_id=None), code=200)
    world.run()
    measure_regions()
    measure_control()
    return world


def test_the_page_shows_the_figures_and_asks_no_region(console: Client, filled: World) -> None:
    with ExitStack() as stack:
        asked = [stack.enter_context(CaptureQueriesContext(connections[region])) for region in REGIONS]
        own = stack.enter_context(CaptureQueriesContext(connection))
        page = shown(console)
    assert [len(queries) for queries in asked] == [0, 0, 0]
    assert len(own) <= 22
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))
    assert "GET /v1/rows/{table} 4 2" in text
    assert "usr_01k60000000000000000000000 7" in text
    assert "of 1 in 24 h" in text
    assert "sum" in text
    assert "us-east-1 1 0 0 1" in text
    for chart in ("Requests by hour", "Delivery attempts by hour", "Function runs by hour"):
        assert f'aria-label="{chart}' in page
    assert "<script>" not in page
    assert "<canvas" not in page


@pytest.mark.exhaustive
def test_every_number_leads_to_the_list_behind_it(console: Client, filled: World) -> None:
    page = shown(console)
    main = page[page.index('id="content"') :]
    links = {html.unescape(link) for link in re.findall(r'href="(/admin/[^"]+)"', main)}
    assert len(links) > 20
    for link in links:
        assert console.get(link).status_code == 200, link
    assert any("endpointmetric" in link and "route__exact" in link for link in links)
    assert any("waiting/us-east-1" in link for link in links)
    assert any("region__exact=us-east-1&plan__exact=free" in link for link in links)


def test_an_empty_platform_says_what_to_do_next(console: Client) -> None:
    page = shown(console)
    for sentence in ("No request has been counted yet", "manage.py work", "POST /v1/webhooks", "PUT /v1/functions"):
        assert sentence in page, sentence


def test_page_opens_and_reports_an_unavailable_region(console: Client, filled: World) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    with connections[REGION].execute_wrapper(away):
        measure_regions()
        page = shown(console)
        waits = shown(console, f"/admin/waiting/{REGION}/")
    assert "us-east-1: the database is unavailable" in page
    assert "These are the last known values" in page
    assert "of 1 in 24 h" in page, "the last values stay"
    assert "does not answer" in waits
    assert "Each list shows its first 50 entries." in shown(console, f"/admin/waiting/{REGION}/")
    assert Sample.objects.get(name="eu-west-1").is_away is False
    measure_regions()
    assert "the database is unavailable" not in shown(console)


def test_a_mail_server_that_takes_nothing_is_noticed(console: Client, filled: World, api: Api) -> None:
    measure_control()
    assert read_metrics(api)["platform_oldest_email_seconds"] == 0
    assert "Emails cannot be sent" not in shown(console)
    AccountEmail.objects.create(
        kind=AccountEmail.Kind.SIGN_UP, subject="a@example.com", recipient="a@example.com", attempts=3,
        last_error="ConnectionRefusedError", created_at=minutes_ago(20), expires_at=minutes_ago(-60),
    )  # fmt: skip
    measure_control()
    page = shown(console)
    assert "Emails cannot be sent <span>the oldest for " in page
    assert "/admin/accounts/accountemail/?state=waiting" in page
    assert 900 < read_metrics(api)["platform_oldest_email_seconds"] < 1300


def test_a_worker_that_is_gone_is_noticed(console: Client, filled: World) -> None:
    Sample.objects.update(at=minutes_ago(10))
    page = shown(console)
    assert "us-east-1: not measured for 10 min" in page


# ── No scan, however much there is ──


def _plan(using: str, statement: str, parameters: Any) -> str:
    with connections[using].cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        return json.dumps(cursor.fetchone()[0])


def _scanned(plan: str) -> set[str]:
    """The tables that a plan reads from end to end."""
    found = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("Node Type") == "Seq Scan":
                found.add(node["Relation Name"])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(json.loads(plan))
    return found


def test_no_look_reads_a_large_table_from_end_to_end(world: World) -> None:
    """The planner is configured to avoid scans, as it does for a table of a million rows: what still scans has no
    index."""
    large = {"webhooks_delivery", "webhooks_attempt", "functions_run", "rows_outboxevent"}
    span = {"since": minutes_ago(10), "until": datetime.now(UTC)}
    with connections[REGION].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for name, parameters in (
            ("queues", {"most": 10_001, "suspended": []}), ("attempts", span), ("runs", span),
        ):  # fmt: skip
            assert not _scanned(_plan(REGION, rollups.SQL[name], parameters)) & large, name
