"""Marks over cached caller records, so that what ended in PostgreSQL ends in every process with the next request.

Two marks stand where a record would: GONE (the credential is dead: 401 without a statement) and ASK (ask PostgreSQL,
cache nothing). A revocation writes ASK before its commit and GONE after it; a process that is killed in between
leaves ASK, and a transaction that rolls back does, too, which is right either way. `platform_site.redis.client` tells
how late writers are kept from reviving a record, and what happens while Redis is away.
"""

from collections.abc import Iterable
from typing import Final

from django.db import DEFAULT_DB_ALIAS, transaction

from platform_site.redis import client as redis_client

GONE: Final = b"-"
ASK: Final = b"?"


def revoke(names: Iterable[str], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """The credentials behind these cache entries end with the transaction at hand in that database."""
    marked = list(names)
    if marked:
        redis_client.mark(dict.fromkeys(marked, ASK))
        transaction.on_commit(lambda: redis_client.mark(dict.fromkeys(marked, GONE)), using=using)


def ask(names: Iterable[str]) -> None:
    """What the records behind these cache entries say changes with the transaction at hand."""
    marked = list(names)
    if marked:
        redis_client.mark(dict.fromkeys(marked, ASK))
