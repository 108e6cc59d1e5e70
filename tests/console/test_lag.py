"""The ages of queues and the workers' heartbeat, as `/metrics` and `/readyz` tell them (fault F24)."""

import math
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import F
from django.utils import timezone

from platform_site.console import rollups
from platform_site.http.site import health
from platform_site.models import RegionMetric, Sample
from platform_site.observability import lag
from platform_site.tasks import measure_control
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Api
from tests.support.metrics import read_metrics
from tests.support.service import ROOT
from tests.webhooks.conftest import tracker  # noqa: F401 - a fixture

pytestmark = pytest.mark.exhaustive


def pass_by(seconds: float, *names: str) -> None:
    """As if the latest looks had been made so long ago."""
    ago = timedelta(seconds=seconds)
    Sample.objects.filter(name__in=names).update(at=F("at") - ago, measured_at=F("measured_at") - ago)


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_age_of_an_undelivered_event_grows(api: Api, tracker: Tracker) -> None:  # noqa: F811
    made = tracker.post("owner", "/webhooks", {"url": "https://example.com/hook", "events": ["lists.insert"]})
    assert made.status == 201, made.json
    rollups.measure_region("us-east-1")
    region = '{region="us-east-1"}'
    assert read_metrics(api)[f"platform_oldest_event_seconds{region}"] == 0
    written = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]})
    assert written.status == 201, written.json
    rollups.measure_region("us-east-1")
    pass_by(90, "us-east-1")
    found = read_metrics(api)
    assert found[f"platform_oldest_event_seconds{region}"] >= 90
    assert found[f"platform_region_measured_seconds{region}"] >= 90
    assert found[f"platform_oldest_run_seconds{region}"] == 0


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_region_that_no_worker_ever_measured(api: Api) -> None:
    Sample.objects.filter(name="us-east-1").delete()
    rollups.measure_region("eu-west-1")
    found = read_metrics(api)
    assert found['platform_region_measured_seconds{region="us-east-1"}'] == math.inf
    assert found['platform_region_measured_seconds{region="eu-west-1"}'] < 60
    assert 'platform_oldest_event_seconds{region="us-east-1"}' not in found


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_what_became_of_the_last_attempts(api: Api) -> None:
    RegionMetric.objects.all().delete()
    rollups.measure_region("eu-west-1")
    now, bucket = timezone.now(), timedelta(minutes=5)
    nothing = dict.fromkeys(("runs_succeeded", "runs_failed", "runs_timed_out"), 0)
    for region, ago, attempts, arrived in (
        ("eu-west-1", timedelta(seconds=1), 20, 0),
        ("eu-west-1", timedelta(seconds=1) + bucket, 10, 3),
        ("eu-west-1", timedelta(seconds=1) + 2 * bucket, 500, 500),
        ("us-east-1", timedelta(seconds=1), 40, 40),
    ):
        RegionMetric.objects.create(
            region=region, at=now - ago, attempts=attempts, attempts_succeeded=arrived, **nothing
        )
    found = read_metrics(api)
    assert found['platform_recent_delivery_attempts{outcome="succeeded",region="eu-west-1"}'] == 3
    assert found['platform_recent_delivery_attempts{outcome="failed",region="eu-west-1"}'] == 27


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_workers_without_heartbeat_are_down(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_dependencies", {})
    health.register(lag.WORKERS, lag.ping_workers)
    monkeypatch.setattr(health, "CACHED_SECONDS", 0)
    Sample.objects.filter(name=lag.WORKERS).delete()
    assert api.get("/readyz").json == {"status": "degraded", "workers": "down", "dependencies": {"workers": "down"}}
    assert read_metrics(api)["platform_workers_up"] == 0, "also if there never was one"
    lag.record_heartbeat()
    answer = api.get("/readyz")
    assert (answer.status, answer.json["dependencies"]) == (200, {"workers": "ok"})
    assert read_metrics(api)["platform_worker_heard_seconds"] < lag.SILENT_AFTER
    measure_control()
    assert read_metrics(api)["platform_workers_up"] == 1
    assert api.get("/readyz?require=workers").status == 200, "what tidies up leaves it there"
    pass_by(31, lag.WORKERS)
    assert api.get("/readyz").json["dependencies"] == {"workers": "down"}
    assert (api.get("/readyz").status, api.get("/readyz?require=workers").status) == (200, 503)
    assert read_metrics(api)["platform_workers_up"] == 0
    assert read_metrics(api)["platform_worker_heard_seconds"] > 31


def test_a_command_leaves_no_figures_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "manage.py"), "check", "--tag", "urls"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert list(tmp_path.iterdir()) == []
