"""The periodic jobs of platform_site: the console's statistics, and idempotency records."""

from typing import Final

from django.conf import settings

from platform_site.background.periodic import log_failures, periodic_job, periodic_job_per_region
from platform_site.console import rollups
from platform_site.http import idempotency
from platform_site.observability import lag

HEARTBEAT_EVERY: Final = 5.0
REGIONS_EVERY: Final = 15.0
CONTROL_EVERY: Final = 60.0


@periodic_job(every=HEARTBEAT_EVERY, at_start=True)
def record_worker_heartbeat() -> None:
    """For `/readyz` and `/metrics`: periodic jobs run, sent by beat or by a worker's own clock."""
    lag.record_heartbeat()


@periodic_job(every=REGIONS_EVERY, at_start=True)
def measure_regions() -> None:
    for region in settings.REGION_DATABASES:
        with log_failures(f"the figures of {region}", using=region):
            rollups.measure_region(region)


@periodic_job(every=CONTROL_EVERY)
def measure_control() -> None:
    rollups.measure_control()
    rollups.purge_old()


@periodic_job_per_region(every=60, with_control=True)
def purge_idempotency_records(using: str) -> None:
    idempotency.purge_expired(using=using)
