"""Queue lag, delivery results and the last worker heartbeat, for `/metrics` and `/readyz`, as a worker has written them
to the control database. What waited then counts as still waiting: without a worker, the lag grows and alerts fire."""

import math
from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connection
from django.db.models.functions import Now
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from platform_site.http.site import health
from platform_site.observability import metrics
from platform_site.postgres import statements

WORKERS: Final = health.WORKERS
CONTROL: Final = "control"
"""The sample of the control database, which `platform_site.console.rollups` writes."""
SILENT_AFTER: Final = 30.0
"""Seconds without a heartbeat; without beat a worker's scheduler writes one every 15."""

_AGES: Final = """
SELECT name, extract(epoch FROM now() - sample.at)::float8 AS heartbeat_age,
       extract(epoch FROM now() - measured_at)::float8 AS measured, arrived, tried - arrived AS failed,
       (values ->> 'unrelayed_age')::float8 AS event, (values ->> 'due_age')::float8 AS delivery,
       (values ->> 'queued_age')::float8 AS run, (values ->> 'email_age')::float8 AS email
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
    from platform_site.models import Sample

    Sample.objects.update_or_create(name=WORKERS, defaults={"at": Now()})


def ping_workers() -> None:
    """Raises NoWorker, or database errors."""
    try:
        found = statements.column(DEFAULT_DB_ALIAS, _HEARTBEAT_AGE, [WORKERS])
    finally:
        connection.close()  # the thread ends, and would leave it open
    if not found or found[0] > SILENT_AFTER:
        raise NoWorker


class Lag(Collector):
    """One statement per scrape; empty without the control database."""

    def collect(self) -> Iterator[Metric]:
        try:
            samples = {sample["name"]: sample for sample in statements.dicts(DEFAULT_DB_ALIAS, _AGES)}
        except Error:
            return
        is_up = WORKERS in samples and samples[WORKERS]["heartbeat_age"] <= SILENT_AFTER
        yield GaugeMetricFamily(
            "platform_workers_up", f"1 if a worker responded within {SILENT_AFTER:g} seconds, else 0.", value=int(is_up)
        )
        if WORKERS in samples:
            text = "Seconds since a worker was last heard of."
            yield GaugeMetricFamily("platform_worker_heard_seconds", text, value=samples[WORKERS]["heartbeat_age"])
        seen = GaugeMetricFamily(
            "platform_region_measured_seconds",
            "Seconds since a worker saw the queues of a region; infinite if none ever did.",
            labels=["region"],
        )
        oldest = {
            what: GaugeMetricFamily(
                f"platform_oldest_{what}_seconds", f"How long the oldest {that} waits.", labels=["region"]
            )
            for what, that in (("event", "event not yet relayed"), ("delivery", "delivery due"), ("run", "queued run"))
        }
        attempts = GaugeMetricFamily(
            "platform_recent_delivery_attempts",
            "Attempts at deliveries in the last five to ten minutes.",
            labels=["region", "outcome"],
        )
        for region in settings.REGION_DATABASES:
            sample = samples.get(region)
            if sample is None or sample["measured"] is None:
                seen.add_metric([region], math.inf)
                continue
            seen.add_metric([region], sample["measured"])
            attempts.add_metric([region, "succeeded"], sample["arrived"])
            attempts.add_metric([region, "failed"], sample["failed"])
            for what, family in oldest.items():
                family.add_metric([region], _waits(sample, what))
        yield from (seen, attempts, *oldest.values())
        if CONTROL in samples:
            text = "How long the oldest email waits that the mail server did not take."
            yield GaugeMetricFamily("platform_oldest_email_seconds", text, value=_waits(samples[CONTROL], "email"))


def _waits(sample: dict[str, Any], what: str) -> float:
    return 0.0 if sample[what] is None else float(sample[what] + sample["measured"])


def register() -> None:
    metrics.collectors.append(Lag())
    health.register(WORKERS, ping_workers)
