"""The kernel's own sweep."""

import logging

from django.db import Error, connections

from platform_site.api import idempotency
from platform_site.api.sweeps import sweep

logger = logging.getLogger(__name__)


@sweep(every=600)
def purge_idempotency_records() -> None:
    """Delete expired records in every database. One that is away keeps its own for the next time."""
    for alias in connections:
        try:
            idempotency.purge_expired(using=alias)
        except Error:
            logger.exception("expired idempotency records could not be purged", extra={"database": alias})
