"""Schemas whose environments the control database has forgotten, as after a restore to an earlier moment.

No sweep drops one: somebody's rows are in it, and they are there again once the control database is restored to a later
moment. Operators see them in the console and by `manage.py sweep --check`, and let go of one by name there or by
`sweep --drop`. `projects.provisioning.schemas` says how one is told from a schema in the making.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from django.db import Error

from accounts import audit
from accounts.audit import Actor
from platform_site.fastpath.libpq import session
from platform_site.identity import ids
from projects.provisioning import schemas
from projects.provisioning.schemas import SchemaBusy


class NotForgotten(Exception):
    """The region has no schema of that environment, or the control database knows it (again)."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What can be said of one without the control database: the id tells when it was made."""

    environment_id: str
    made_at: datetime
    tables: int
    size: int
    """Bytes of its tables without their indexes."""


def described(environment_id: str, cluster: str) -> Forgotten:
    """Two queries. Raises DatabaseError."""
    return Forgotten(
        environment_id,
        ids.made_at(environment_id),
        schemas.count_tables(environment_id, cluster),
        schemas.size_of(environment_id, cluster),
    )


def drop(environment_id: str, cluster: str, *, actor: Actor) -> None:
    """Drop such a schema for good, with what the region keeps of its environment.

    The entry in the trail comes first and stays, however far it gets: what is lost is lost by somebody's word, and no
    transaction spans both databases. Of two who ask at the same moment one leaves an entry. Raises NotForgotten (and
    leaves none), SchemaBusy, DatabaseError; what was dropped by then stays dropped, and it can be asked for again.
    """
    with _alone(environment_id, cluster):
        if not schemas.is_forgotten(environment_id, cluster):
            raise NotForgotten
        found = described(environment_id, cluster)
        audit.record(
            "environment.schema_dropped", actor=actor, target_id=environment_id, environment_id=environment_id,
            region=cluster, tables=found.tables,
        )  # fmt: skip
        schemas.drop_orphan(environment_id, cluster)


@contextmanager
def _alone(environment_id: str, cluster: str) -> Generator[None]:
    """Nobody else lets go of it until the end of the block. Raises SchemaBusy if somebody is at it."""
    with session(cluster) as own:
        with own.cursor() as cursor:
            # The session's lock: what comes is many transactions, and whoever dies in them lets go of it.
            cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 6))", [environment_id])
            if not cursor.fetchone()[0]:
                raise SchemaBusy(environment_id)
        try:
            yield
        finally:
            # A connection that broke meanwhile has released it already.
            with suppress(Error), own.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 6))", [environment_id])
