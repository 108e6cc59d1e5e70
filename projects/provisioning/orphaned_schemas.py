"""Schemas whose environments the control database no longer knows, as after a restore to an earlier time. Only
operators drop them (console, `manage.py cleanup --drop`): a later restore could make their data reachable again."""

from typing import Any

from accounts import audit
from accounts.audit import Actor
from platform_site.identity import ids
from projects.provisioning import schemas


class NotOrphaned(Exception):
    """The region has no such schema, or the control database knows the environment."""


def describe(environment_id: str, cluster: str) -> dict[str, Any]:
    return {
        "environment_id": environment_id,
        "made_at": ids.created_at(environment_id),
        "tables": schemas.count_tables(environment_id, cluster),
        "size": schemas.size_of(environment_id, cluster),  # without indexes
    }


def drop(environment_id: str, cluster: str, *, actor: Actor) -> None:
    """Drop the schema and the region's other data of the environment. The audit entry is committed first, because no
    transaction spans both databases. Can be repeated. Raises NotOrphaned, SchemaBusy, DatabaseError."""
    with schemas.alone(environment_id, cluster):
        if not schemas.is_orphaned(environment_id, cluster):
            raise NotOrphaned
        audit.record(
            "environment.schema_dropped",
            environment_id,
            actor=actor,
            environment_id=environment_id,
            region=cluster,
            tables=schemas.count_tables(environment_id, cluster),
        )
        schemas.drop_orphan(environment_id, cluster)
