from django.db import DEFAULT_DB_ALIAS

from platform_site.background.periodic import periodic_job, periodic_job_per_region
from platform_site.http import idempotency


@periodic_job(every=600)
def purge_idempotency_records() -> None:
    idempotency.purge_expired(using=DEFAULT_DB_ALIAS)


@periodic_job_per_region(every=600)
def purge_idempotency_records_of_a_region(using: str) -> None:
    idempotency.purge_expired(using=using)
