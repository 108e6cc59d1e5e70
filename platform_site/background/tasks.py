"""The kernel's own sweep."""

from django.db import DEFAULT_DB_ALIAS

from platform_site.background.periodic import sweep, sweep_of_each_region
from platform_site.http import idempotency


@sweep(every=600)
def purge_idempotency_records() -> None:
    """Delete expired records in the control database."""
    idempotency.purge_expired(using=DEFAULT_DB_ALIAS)


@sweep_of_each_region(every=600)
def purge_idempotency_records_of_a_region(using: str) -> None:
    """The same in a region."""
    idempotency.purge_expired(using=using)
