"""A shared/exclusive advisory lock per environment: writers take it shared, deletion takes it exclusive. A call finds
its environment first and writes later. In between the environment may be deleted, and the write would remain for ever,
secrets included. So a transaction that writes a row that names an environment, and depends on no other row of it, calls
`lock_shared` or `lock_shared_in_region` and checks the environment again. The transaction that marks the environment
(control database) or drops its schema (region) calls `lock_exclusive`. Earlier writes are then visible to the deletion
(`projects.provisioning.deletion`), later ones are refused. Rows that depend on a locked row (a version on its function,
a delivery on its webhook) do not need this. Nor do rows that expire within days: events, emails, sessions, idempotency
records."""

from typing import Final

from django.db import DEFAULT_DB_ALIAS, connections

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from projects.errors import NoSuchEnvironment, SchemaLost
from projects.models import Environment

# A statement of its own, so that it sees what was committed before the lock was ours; of the table and not
# `to_regnamespace`, which answers from what this session remembers of the catalogue.
_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"


def lock_shared(environment_id: str) -> None:
    """Let the environment not be marked until the control transaction at hand ends. Two queries. Raises
    NoSuchEnvironment if it has been."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        advisory_locks.lock_shared(cursor, LockSpace.ENVIRONMENT, environment_id)
    if not is_live(environment_id):
        raise NoSuchEnvironment


def lock_shared_in_region(environment_id: str, cluster: str) -> None:
    """Let the environment's schema not be dropped until the region's transaction at hand ends. Two queries. Raises
    NoSuchEnvironment if it has been, SchemaLost if the environment lives and has none."""
    with connections[cluster].cursor() as cursor:
        advisory_locks.lock_shared(cursor, LockSpace.ENVIRONMENT, environment_id)
        cursor.execute(_HAS_SCHEMA, [environment_id])
        if cursor.fetchone()[0]:
            return
    raise SchemaLost if is_live(environment_id) else NoSuchEnvironment


def lock_exclusive(environment_id: str, using: str) -> None:
    """Wait for all shared holders, and keep the lock until the current transaction ends. Waits at most its
    `lock_timeout`."""
    with connections[using].cursor() as cursor:
        advisory_locks.lock(cursor, LockSpace.ENVIRONMENT, environment_id)


def is_live(environment_id: str) -> bool:
    """Whether neither it nor its project is marked. One query."""
    return Environment.objects.live().filter(pk=environment_id).exists()
