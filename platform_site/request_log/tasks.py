from typing import Final

from django.db import DEFAULT_DB_ALIAS

from platform_site.background.periodic import periodic_job, periodic_job_per_region
from platform_site.request_log import partitions, retention

EVERY: Final = 3600.0


@periodic_job(every=EVERY)
def maintain_partitions() -> None:
    _maintain(DEFAULT_DB_ALIAS)


@periodic_job_per_region(every=EVERY)
def maintain_partitions_of_region(using: str) -> None:
    _maintain(using)


def _maintain(using: str) -> None:
    partitions.create(using)
    retention.purge(using)
