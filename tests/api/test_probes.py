"""/healthz, /readyz and /metrics. Faults are real ones: a server that is not there, one that never answers."""

import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import LazySettings
from django.db import connections

from platform_site.http.site import health
from platform_site.observability import metrics
from tests.support.client import Api
from tests.support.metrics import read_metrics
from tests.support.service import ROOT, Up, wait_for
from tests.support.threads import refuse_new_threads
from tests.support.timing import within


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of an earlier test is believed."""
    monkeypatch.setattr(health, "_dependencies", {})
    monkeypatch.setattr(health, "_migrated", set())
    health.register_own()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_process_that_runs_is_healthy(api: Api) -> None:
    answer = api.get("/healthz")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.django_db(databases="__all__")
def test_ready_names_each_dependency(api: Api, fresh: None) -> None:
    answer = api.get("/readyz")
    assert answer.json == {
        "status": "ready",
        "dependencies": dict.fromkeys(["control", "us-east-1", "eu-west-1", "ap-southeast-1", "redis"], "ok"),
    }
    assert answer.status == 200


def test_a_check_that_could_not_start_is_started_by_the_next_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    dependency = health._Dependency(lambda: None)
    with monkeypatch.context() as full:
        refuse_new_threads(full, "readiness")
        with pytest.raises(RuntimeError):
            dependency.start_check()
    assert dependency.start_check().result(within(2))


@pytest.mark.django_db(databases="__all__")
def test_a_shared_dependency_that_is_unavailable_degrades(
    api: Api,
    fresh: None,
    monkeypatch: pytest.MonkeyPatch,
    settings: LazySettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(connections["eu-west-1"].settings_dict, "PORT", "1")
    monkeypatch.setitem(connections["eu-west-1"].settings_dict, "HOST", "127.0.0.1")
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = api.get("/readyz")
    assert (answer.status, answer.json["status"]) == (200, "degraded"), "other regions are served"
    assert {name for name, state in answer.json["dependencies"].items() if state != "ok"} == {"eu-west-1", "redis"}
    assert b"127.0.0.1" not in answer.body
    [logged] = [record.message for record in caplog.records if record.name == "platform.databases"]
    assert logged.startswith("cannot connect to database eu-west-1: ")
    assert "port 1 failed: Connection refused" in logged
    for required in ("redis", "us-east-1,eu-west-1", "all"):
        refused = api.get(f"/readyz?require={required}")
        assert (refused.status, refused.json["status"], refused.headers["Retry-After"]) == (503, "unavailable", "1")
    assert api.get("/readyz?require=us-east-1").status == 200
    unknown = api.get("/readyz?require=worker")
    assert (unknown.status, unknown.fields) == (422, {"require": "unknown"})
    assert api.get("/readyz?requires=redis").status == 422


@pytest.mark.parametrize("lost", [{"control"}, {"us-east-1", "eu-west-1", "ap-southeast-1"}])
def test_a_process_that_can_serve_nothing_is_unavailable(
    api: Api, monkeypatch: pytest.MonkeyPatch, lost: set[str]
) -> None:
    def fail() -> None:
        raise ConnectionError

    monkeypatch.setattr(health, "_dependencies", {})
    for name in ("control", "us-east-1", "eu-west-1", "ap-southeast-1", "redis", "workers"):
        health.register(name, fail if name in lost else lambda: None)
    answer = api.get("/readyz")
    assert (answer.status, answer.json["status"], answer.headers["Retry-After"]) == (503, "unavailable", "1")


def test_missing_workers_degrade_and_are_503_where_required(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_dependencies", {})

    def fail() -> None:
        raise ConnectionError

    health.register("workers", fail)
    answer = api.get("/readyz")
    assert (answer.status, answer.json["status"], answer.json["workers"]) == (200, "degraded", "down")
    required = api.get("/readyz?require=workers")
    assert (required.status, required.json["status"], required.json["workers"]) == (503, "unavailable", "down")


@pytest.mark.django_db(databases="__all__")
def test_readiness_fails_when_the_database_refuses_configured_connections(
    api: Api, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Required connection settings, such as a certificate or one of several hosts, are used."""
    options = connections["eu-west-1"].settings_dict["OPTIONS"] | {"target_session_attrs": "read-only"}
    monkeypatch.setitem(connections["eu-west-1"].settings_dict, "OPTIONS", options)
    answer = api.get("/readyz")
    assert answer.json["status"] == "degraded"
    assert {name for name, state in answer.json["dependencies"].items() if state != "ok"} == {"eu-west-1"}


@pytest.mark.django_db(databases="__all__")
def test_databases_that_only_serve_reads_degrade(api: Api, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failover, if a URL names the old primary or a standby."""
    for alias in ("default", "us-east-1", "eu-west-1", "ap-southeast-1"):
        options = connections[alias].settings_dict["OPTIONS"]
        read_only = options | {"options": f"{options['options']} -c default_transaction_read_only=on"}
        monkeypatch.setitem(connections[alias].settings_dict, "OPTIONS", read_only)
    answer = api.get("/readyz")
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert answer.json["dependencies"] == {
        **dict.fromkeys(["control", "us-east-1", "eu-west-1", "ap-southeast-1"], "read_only"),
        "redis": "ok",
    }
    assert api.get("/readyz?require=control").status == 503


@pytest.mark.django_db(databases="__all__")
def test_a_database_without_tables_is_not_migrated(api: Api, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when `migrate` was forgotten: a roll-out must not go on."""
    options = connections["us-east-1"].settings_dict["OPTIONS"]
    elsewhere = options | {"options": f"{options['options']} -c search_path=pg_catalog"}
    monkeypatch.setitem(connections["us-east-1"].settings_dict, "OPTIONS", elsewhere)
    answer = api.get("/readyz")
    assert (answer.status, answer.json["status"]) == (200, "degraded")
    assert answer.json["dependencies"]["us-east-1"] == "not_migrated"
    assert api.get("/readyz?require=all").status == 503


@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize("alias", ["default", "eu-west-1"])
def test_a_database_that_lacks_a_migration_is_not_migrated(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        assert health._has_migrations(connections[alias].connection)
        cursor.execute("DELETE FROM django_migrations WHERE app = 'rows' AND name = '0001_initial'")
        assert not health._has_migrations(connections[alias].connection)


@pytest.mark.django_db(databases="__all__")
def test_a_dependency_that_hangs_costs_two_seconds_and_one_thread(
    api: Api, fresh: None, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    started = threading.Semaphore(0)
    go_on = threading.Event()

    def hang() -> None:
        started.release()
        go_on.wait(30)

    health.register("stuck", hang)
    monkeypatch.setitem(connections["eu-west-1"].settings_dict, "PORT", str(silent_port))
    monkeypatch.setitem(connections["eu-west-1"].settings_dict, "HOST", "127.0.0.1")
    began = time.monotonic()
    first = api.get("/readyz")
    assert time.monotonic() - began < health.LIMIT + within(0.5)
    assert first.json["status"] == "degraded"
    assert first.json["dependencies"]["stuck"] == "slow"
    assert first.json["dependencies"]["eu-west-1"] in ("slow", "down")
    assert first.json["dependencies"]["control"] == "ok"
    api.get("/readyz")
    assert started.acquire(timeout=30)
    assert not started.acquire(timeout=0.1), "it was not asked again while it hangs"
    go_on.set()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/openapi.json"])
def test_probes_are_for_reading(api: Api, path: str) -> None:
    answer = api.post(path)
    assert (answer.status, answer.error, answer.headers["Allow"]) == (405, "method_not_allowed", "GET, HEAD")


# ── Metrics: a scrape asks the control database for the ages of the queues ──


@pytest.mark.django_db
def test_requests_are_counted_by_route_and_status_not_by_path(api: Api, things: str) -> None:
    key = 'platform_requests_total{method="GET",route="/v1/test/things/<str:thing_id>",status="200"}'
    before = read_metrics(api).get(key, 0)
    for number in range(3):
        api.get(f"/v1/test/things/{number}", token="good")
    api.get("/v1/made-up-address")
    api.request("MADEUP", "/v1/test/things")
    after = read_metrics(api)
    assert after[key] == before + 3
    assert 'platform_requests_total{method="GET",route="(unknown)",status="404"}' in after
    assert 'platform_requests_total{method="OTHER",route="/v1/test/things",status="405"}' in after
    assert not any("made-up" in name or "MADEUP" in name for name in after)
    assert after['platform_request_seconds_count{method="GET",route="/v1/test/things/<str:thing_id>"}'] >= 3


@pytest.mark.django_db
def test_errors_of_postgresql_are_counted_by_their_sqlstate(api: Api, things: str) -> None:
    before = read_metrics(api).get('platform_database_errors_total{sqlstate="55P03"}', 0)
    api.post("/v1/test/faults/55P03")
    assert read_metrics(api)['platform_database_errors_total{sqlstate="55P03"}'] == before + 1


def _count_one(route: str) -> None:
    metrics.observe_request("GET", route, 200, 0.01)
    metrics.count_now()  # as a process that ends in order does


@pytest.mark.django_db
def test_processes_add_up_and_a_dead_ones_share_stays(api: Api) -> None:
    route = f"/of-{os.getpid()}"
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        process = context.Process(target=_count_one, args=(route,))
        process.start()
        process.join(10)
        assert process.exitcode == 0
    assert read_metrics(api)[f'platform_requests_total{{method="GET",route="{route}",status="200"}}'] == 3


@pytest.mark.django_db
def test_gauge_of_a_dead_process_is_deleted(api: Api) -> None:
    def trip() -> None:
        metrics.BREAKER_OPEN.set(1)

    before = read_metrics(api)["platform_redis_breaker_open"]
    process = multiprocessing.get_context("fork").Process(target=trip)
    process.start()
    process.join(10)
    assert read_metrics(api)["platform_redis_breaker_open"] == before


@pytest.mark.django_db
def test_starting_afresh_forgets_the_dead_and_keeps_the_living(api: Api) -> None:
    route = f"/before-{os.getpid()}"
    process = multiprocessing.get_context("fork").Process(target=_count_one, args=(route,))
    process.start()
    process.join(10)
    _count_one(f"{route}-alive")
    assert f'platform_requests_total{{method="GET",route="{route}",status="200"}}' in read_metrics(api)
    metrics.reset()
    after = read_metrics(api)
    assert f'platform_requests_total{{method="GET",route="{route}",status="200"}}' not in after
    assert after[f'platform_requests_total{{method="GET",route="{route}-alive",status="200"}}'] == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("token", "production", "address", "sent", "status"),
    [
        (None, False, "127.0.0.1", None, 200),
        (None, False, "::1", None, 200),
        (None, False, "192.0.2.1", None, 404),
        (None, False, "", None, 404),
        (None, True, "127.0.0.1", None, 404),
        ("secret-token", False, "127.0.0.1", None, 404),
        ("secret-token", True, "192.0.2.1", "Bearer secret-token", 200),
        ("secret-token", True, "192.0.2.1", "Bearer wrong", 404),
        ("secret-token", True, "192.0.2.1", "Bearer \u00e9", 404),
        ("secret-token", True, "127.0.0.1", "secret-token", 404),
    ],
)
def test_metrics_are_for_this_machine_or_the_token(
    api: Api, settings: LazySettings, token: str | None, production: bool, address: str, sent: str | None, status: int
) -> None:
    settings.METRICS_TOKEN, settings.PRODUCTION = token, production
    headers = {} if sent is None else {"Authorization": sent}
    assert api.get("/metrics", headers=headers, remote_addr=address).status == status


@pytest.mark.django_db
def test_without_a_token_metrics_are_closed_to_names_of_others(api: Api, settings: LazySettings) -> None:
    """A page whose name is made to resolve to this machine would read them in a developer's browser."""
    settings.METRICS_TOKEN, settings.ALLOWED_HOSTS = None, ["127.0.0.1"]
    assert api.get("/metrics", headers={"Host": "127.0.0.1:8000"}).status == 200
    assert api.get("/metrics", headers={"Host": "attacker.example:8000"}).status == 404
    settings.METRICS_TOKEN = "secret-token"
    headers = {"Host": "10.0.0.11:8000", "Authorization": "Bearer secret-token"}
    assert api.get("/metrics", headers=headers).status == 200


@pytest.mark.django_db
def test_metric_names_and_labels_stay_few(api: Api) -> None:
    """Cardinality is routes × methods × statuses; ids, IP addresses and users may not become labels."""
    names = set(re.findall(r'(\w+)="', api.get("/metrics").body.decode()))
    assert names <= {
        "method",
        "route",
        "status",
        "le",
        "sqlstate",
        "pid",
        "reason",
        "queue",
        "kind",
        "outcome",
        "scope",
        "region",
    }


@pytest.mark.served
def test_a_scrape_adds_up_all_web_processes(served: Up) -> None:
    """Each connection may meet another worker; the sum does not care. What the others counted last comes a moment
    later."""
    key = 'platform_requests_total{method="GET",route="/v1/openapi.json",status="200"}'

    def counted() -> float:
        lines = httpx.get(f"{served.base_url}/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(key))

    before = counted()
    for _ in range(24):
        assert httpx.get(f"{served.base_url}/v1/openapi.json").status_code == 200
    wait_for("all are counted", lambda: counted() >= before + 24, 5)
    time.sleep(0.2)
    assert counted() == before + 24


_ON_A_FULL_DISK = """
import contextlib, os, django
directory = os.environ["PROMETHEUS_MULTIPROC_DIR"]
def fill():
    with contextlib.suppress(OSError), open(directory + "/ballast", "ab", buffering=0) as ballast:
        while ballast.write(b"." * 4096):
            pass
if os.environ["FULL"] == "before":
    fill()
django.setup()
from platform_site.observability import metrics
metrics.observe_request("GET", "/first", 200, 0.01)
metrics.count_now()
fill()
for number in range(2000):
    metrics.observe_request("GET", f"/{number}", 200, 0.01)
if os.fork() == 0:
    metrics.observe_request("GET", "/child", 200, 0.01)
    metrics.count_now()
    os._exit(0)
assert os.wait()[1] == 0
print(len(metrics.own_counts()), sum(statuses[200] for statuses, _ in metrics.own_counts().values()))
registry = metrics.CollectorRegistry()
metrics.MultiProcessCollector(registry, path=directory)
metrics.generate_latest(registry)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk in a namespace of its own")
@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_a_full_disk_under_the_figures_ends_no_process(tmp_path: Path, full: str) -> None:
    mounted = f'mount -t tmpfs -o size=512k tmpfs "{tmp_path}" && exec "{sys.executable}" -c "$PROGRAM"'
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "platform_site.settings",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PROGRAM": _ON_A_FULL_DISK,
        "FULL": full,
    }
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted]
    if subprocess.run([*command[:3], "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine gives no namespaces")
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2001", "2001"]
