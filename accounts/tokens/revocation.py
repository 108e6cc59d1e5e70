"""Marks in the cache of caller records, for revocation in every process with the next request. REVOKED is 401 without a
statement, UNCACHED means: ask PostgreSQL, cache nothing. A revocation writes UNCACHED before its commit and REVOKED
after it, so a crash or rollback in between is safe. See `platform_site.redis.client` for late writers and outages."""

from collections.abc import Iterable
from typing import Final

from django.db import DEFAULT_DB_ALIAS, transaction

from platform_site.redis import client as redis_client

REVOKED: Final = b"-"
UNCACHED: Final = b"?"


def revoke(names: Iterable[str], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Revoke the credentials of these entries when that database's transaction commits."""
    marked = list(names)
    if marked:
        redis_client.current().mark(dict.fromkeys(marked, UNCACHED))
        transaction.on_commit(lambda: redis_client.current().mark(dict.fromkeys(marked, REVOKED)), using=using)


def mark_uncached(names: Iterable[str]) -> None:
    marked = list(names)
    if marked:
        redis_client.current().mark(dict.fromkeys(marked, UNCACHED))
