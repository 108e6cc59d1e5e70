"""Whoever writes something of an environment, and whoever removes that environment: one after the other.

A call finds its environment first and writes later; in between the environment may be marked, dropped and swept, and
what is written then would stay for ever, secrets included. So both meet under a lock of the environment, in the
database that is written: who writes a row that names an environment and hangs on nothing else of it calls `stay` or
`stay_in_region` in the transaction of that row, and looks again there; who marks the environment (control database) or
drops its schema (region) calls `leave` in that transaction. What was written before is there for the removal to find
(`projects.provisioning.deletion`), what comes after is refused. Many may stay at once.

What hangs on a row that was found and locked (a version on its function, a delivery on its webhook) needs none of this.
Neither does what ends by itself within days: events, e-mails, sessions, records of Idempotency-Keys.

The release before does not lock, and a row that it left over is found by `projects.provisioning.orphaned_rows`.
"""

from typing import Final

from django.db import DEFAULT_DB_ALIAS, connections

from projects.errors import NoSuchEnvironment, SchemaLost
from projects.models import Environment

_STAY: Final = "SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 5))"
_LEAVE: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 5))"
# A statement of its own, so that it sees what was committed before the lock was ours; of the table and not
# `to_regnamespace`, which answers from what this session remembers of the catalogue.
_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"


def stay(environment_id: str) -> None:
    """Let the environment not be marked until the control transaction at hand ends. Two queries.

    Raises NoSuchEnvironment if it has been.
    """
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_STAY, [environment_id])
    if not is_live(environment_id):
        raise NoSuchEnvironment


def stay_in_region(environment_id: str, cluster: str) -> None:
    """Let the environment's schema not be dropped until the region's transaction at hand ends. Two queries.

    Raises NoSuchEnvironment if it has been, SchemaLost if the environment lives and has none.
    """
    with connections[cluster].cursor() as cursor:
        cursor.execute(_STAY, [environment_id])
        cursor.execute(_HAS_SCHEMA, [environment_id])
        if cursor.fetchone()[0]:
            return
    raise SchemaLost if is_live(environment_id) else NoSuchEnvironment


def leave(environment_id: str, using: str) -> None:
    """Wait for all who stay, and let nobody stay until the transaction at hand ends: at most its `lock_timeout`."""
    with connections[using].cursor() as cursor:
        cursor.execute(_LEAVE, [environment_id])


def is_live(environment_id: str) -> bool:
    """Whether neither it nor its project is marked. One query."""
    return Environment.objects.live().filter(pk=environment_id).exists()
