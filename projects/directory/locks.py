"""A shared/exclusive advisory lock per environment. A transaction that writes a row that names an environment takes it
shared, and checks the environment again; deletion takes it exclusive (`projects.provisioning.deletion`), so no row
remains. Not needed for rows that depend on a locked row (a version, a delivery) or expire within days."""

from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.http.errors import first_or
from platform_site.postgres import statements
from projects.errors import NoSuchEnvironment, NoSuchProject, SchemaLost
from projects.models import Environment, Project

# A separate statement, so that it sees what was committed before the lock was taken. It reads the table, because
# `to_regnamespace` uses the session's catalog cache.
_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"


def lock_project(project_id: str) -> Project:
    """Lock a live project until the control transaction ends. Raises NoSuchProject."""
    return first_or(Project.objects.live().select_for_update(no_key=True).filter(pk=project_id), NoSuchProject)


def lock_environment(environment_id: str, **conditions: Any) -> Environment:
    """Lock a live environment until the control transaction ends. Raises NoSuchEnvironment."""
    live = Environment.objects.live().select_related("project", "parent").select_for_update(no_key=True, of=("self",))
    return first_or(live.filter(pk=environment_id, **conditions), NoSuchEnvironment)


def lock_shared(environment_id: str) -> None:
    """Prevent deletion of the environment until the control transaction ends. Raises NoSuchEnvironment."""
    advisory_locks.lock_shared(DEFAULT_DB_ALIAS, LockSpace.ENVIRONMENT, environment_id)
    if not is_live(environment_id):
        raise NoSuchEnvironment


def lock_shared_in_region(environment_id: str, cluster: str) -> None:
    """Prevent dropping the schema until the region's transaction ends. Raises NoSuchEnvironment if the environment is
    deleted, SchemaLost if it lives without a schema."""
    advisory_locks.lock_shared(cluster, LockSpace.ENVIRONMENT, environment_id)
    if not statements.value(cluster, _HAS_SCHEMA, [environment_id]):
        raise SchemaLost if is_live(environment_id) else NoSuchEnvironment


def lock_exclusive(environment_id: str, using: str) -> None:
    """Wait for all shared holders, at most `lock_timeout`, and lock until the transaction ends."""
    advisory_locks.lock(using, LockSpace.ENVIRONMENT, environment_id)


def is_live(environment_id: str) -> bool:
    return Environment.objects.live().filter(pk=environment_id).exists()
