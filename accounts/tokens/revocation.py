"""Marks in the cache of caller records, so that a revocation takes effect in every process with the next request. A
mark is stored in place of a record: REVOKED (the credential is revoked: 401 without a statement) or UNCACHED (ask
PostgreSQL, cache nothing). A revocation writes UNCACHED before its commit and REVOKED after it. A process that dies in
between, or a rollback, leaves UNCACHED, which is correct either way. `platform_site.redis.client` describes how late
writers are prevented from restoring a record, and what happens while Redis is unavailable."""

from collections.abc import Iterable
from typing import Final

from django.db import DEFAULT_DB_ALIAS, transaction

from platform_site.redis import client as redis_client

REVOKED: Final = b"-"
UNCACHED: Final = b"?"


def revoke(names: Iterable[str], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """The credentials behind these cache entries end with the transaction at hand in that database."""
    marked = list(names)
    if marked:
        redis_client.mark(dict.fromkeys(marked, UNCACHED))
        transaction.on_commit(lambda: redis_client.mark(dict.fromkeys(marked, REVOKED)), using=using)


def mark_uncached(names: Iterable[str]) -> None:
    """What the records behind these cache entries say changes with the transaction at hand."""
    marked = list(names)
    if marked:
        redis_client.mark(dict.fromkeys(marked, UNCACHED))
