"""Queue lag, delivery results and the last worker heartbeat, for `/metrics` and `/readyz`. A worker writes them to the
control database every few seconds. Items that waited then count as still waiting: without a worker, the lag grows and
alerts fire."""

from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.db import Error, connection
from django.db.models.functions import Now
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from platform_site.http.site import health
from platform_site.observability import metrics

WORKERS: Final = health.WORKERS
CONTROL: Final = "control"
"""The sample of the control database, which `platform_site.console.rollups` writes."""
SILENT_AFTER: Final = 30.0
"""Seconds without a heartbeat; without beat a worker's scheduler writes one every 15."""

_AGES: Final = """
SELECT name, extract(epoch FROM now() - sample.at)::float8, extract(epoch FROM now() - measured_at)::float8,
       arrived, tried - arrived,
       (values ->> 'unrelayed_age')::float8, (values ->> 'due_age')::float8, (values ->> 'queued_age')::float8,
       (values ->> 'email_age')::float8
  FROM platform_site_sample sample,
       LATERAL (SELECT coalesce(sum(attempts), 0)::float8 AS tried,
                       coalesce(sum(attempts_succeeded), 0)::float8 AS arrived
                  FROM platform_site_regionmetric lately
                 WHERE lately.region = sample.name AND lately.at > now() - interval '10 minutes') AS buckets
"""
_HEARTBEAT_AGE: Final = "SELECT extract(epoch FROM now() - at)::float8 FROM platform_site_sample WHERE name = %s"


class NoWorker(Exception):
    pass


def record_heartbeat() -> None:
    """A periodic job: one of many workers writes it."""
    from platform_site.models import Sample

    Sample.objects.update_or_create(name=WORKERS, defaults={"at": Now()})


def ping_workers() -> None:
    """The check of `/readyz`. Raises NoWorker, or database errors."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_HEARTBEAT_AGE, [WORKERS])
            found = cursor.fetchone()
    finally:
        connection.close()  # the thread ends, and would leave it open
    if found is None or found[0] > SILENT_AFTER:
        raise NoWorker


class Lag(Collector):
    """One statement per scrape; empty without the control database."""

    def collect(self) -> Iterator[Metric]:
        try:
            with connection.cursor() as cursor:
                cursor.execute(_AGES)
                samples = {name: sample for name, *sample in cursor.fetchall()}
        except Error:
            return
        is_up = WORKERS in samples and samples[WORKERS][0] <= SILENT_AFTER
        yield GaugeMetricFamily(
            "platform_workers_up", f"1 if a worker responded within {SILENT_AFTER:g} seconds, else 0.", value=int(is_up)
        )
        if WORKERS in samples:
            text = "Seconds since a worker was last heard of."
            yield GaugeMetricFamily("platform_worker_heard_seconds", text, value=samples[WORKERS][0])
        seen = GaugeMetricFamily(
            "platform_region_measured_seconds", "Seconds since a worker saw the queues of a region.", labels=["region"]
        )
        oldest = [
            GaugeMetricFamily(
                f"platform_oldest_{what}_seconds", f"How long the oldest {that} waits.", labels=["region"]
            )
            for what, that in (("event", "event not yet relayed"), ("delivery", "delivery due"), ("run", "queued run"))
        ]
        attempts = GaugeMetricFamily(
            "platform_recent_delivery_attempts",
            "Attempts at deliveries in the last five to ten minutes.",
            labels=["region", "outcome"],
        )
        for region in settings.REGION_DATABASES:
            _, measured, arrived, failed, *ages, _ = samples.get(region, (None,) * 8)
            if measured is None:
                continue
            seen.add_metric([region], measured)
            attempts.add_metric([region, "succeeded"], arrived)
            attempts.add_metric([region, "failed"], failed)
            for family, age in zip(oldest, ages, strict=True):
                family.add_metric([region], 0.0 if age is None else age + measured)
        yield from (seen, attempts, *oldest)
        if CONTROL in samples:
            _, measured, *_, age = samples[CONTROL]
            text = "How long the oldest email waits that the mail server did not take."
            yield GaugeMetricFamily("platform_oldest_email_seconds", text, value=0.0 if age is None else age + measured)


def register() -> None:
    metrics.add_collector(Lag())
    health.register(WORKERS, ping_workers)
