"""Orphaned schemas: schemas whose environments the control database does not know any more, as after a restore to an
earlier time.

No periodic job drops one: it may have data, which is reachable again once the control database is restored to a later
time. Operators see them in the console and by `manage.py sweep --check`, and drop one by name there or by `sweep
--drop`. `projects.provisioning.schemas` distinguishes them from schemas that are being created.
"""

from dataclasses import dataclass
from datetime import datetime

from accounts import audit
from accounts.audit import Actor
from platform_site.identity import ids
from projects.provisioning import schemas


class NotOrphaned(Exception):
    """The region has no schema of that environment, or the control database knows it (again)."""


@dataclass(frozen=True, slots=True)
class OrphanedSchema:
    """What can be said of one without the control database: the id tells when it was made."""

    environment_id: str
    made_at: datetime
    tables: int
    size: int
    """Bytes of its tables without their indexes."""


def describe(environment_id: str, cluster: str) -> OrphanedSchema:
    """Two queries. Raises DatabaseError."""
    return OrphanedSchema(
        environment_id,
        ids.created_at(environment_id),
        schemas.count_tables(environment_id, cluster),
        schemas.size_of(environment_id, cluster),
    )


def drop(environment_id: str, cluster: str, *, actor: Actor) -> None:
    """Drop an orphaned schema and the region's other data of its environment. The audit entry is committed first and
    stays in any case, because no transaction spans both databases. Of two concurrent calls one leaves an entry. Raises
    NotOrphaned (and leaves none), SchemaBusy, DatabaseError; what was dropped by then stays dropped, and the call can
    be repeated."""
    with schemas.alone(environment_id, cluster):
        if not schemas.is_orphaned(environment_id, cluster):
            raise NotOrphaned
        found = describe(environment_id, cluster)
        audit.record(
            "environment.schema_dropped", actor=actor, target_id=environment_id, environment_id=environment_id,
            region=cluster, tables=found.tables,
        )  # fmt: skip
        schemas.drop_orphan(environment_id, cluster)
