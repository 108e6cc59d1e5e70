"""Removes the schemas of deleted projects and environments, then their records. `services` marks them, which makes them
unreachable. All steps can be interrupted and repeated: the mark is removed last."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from django.conf import settings
from django.db.models.functions import Now

from platform_site.background import dispatch
from platform_site.background.periodic import log_failures
from platform_site.identity import signals
from projects.models import Environment, Project
from projects.provisioning import failpoints, schemas
from projects.provisioning.schemas import SchemaBusy

_PER_LOOK = 100
TABLES_DROPPED_AT_ONCE = 50


def finish_soon(project_id: str) -> None:
    environments = Environment.objects.filter(project_id=project_id).values_list("pk", "project__cluster")
    _finish_soon(project_id, environments, finish, "projects.tasks.finish_deletion")


def finish_environment_soon(environment_id: str, cluster: str) -> None:
    task = "projects.tasks.finish_environment_deletion"
    _finish_soon(environment_id, [(environment_id, cluster)], finish_environment, task)


def _finish_soon(
    deleted_id: str, environments: Iterable[tuple[str, str]], finish: Callable[[str], bool], task: str
) -> None:
    """Finish a small deletion now, otherwise notify a worker. Never raises: a periodic job continues."""
    failpoints.reach("delete.after_mark")
    with log_failures(f"the deletion of {deleted_id}", SchemaBusy):
        if sum(schemas.count_tables(pk, cluster) for pk, cluster in environments) <= TABLES_DROPPED_AT_ONCE:
            finish(deleted_id)
            return
    dispatch.send_now(task, deleted_id)


def finish(project_id: str) -> bool:
    """False if the project is not marked. Raises DatabaseError, SchemaBusy."""
    project = Project.objects.filter(pk=project_id, deleted_at__isnull=False).first()
    if project is None:
        return False
    for environment_id in project.environments.values_list("pk", flat=True):
        remove_environment(environment_id, project.cluster)
    failpoints.reach("delete.before_record")
    # Members are deleted by the cascade. No environment can be left: none can be created in a marked project.
    Project.objects.filter(pk=project_id, deleted_at__isnull=False).delete()
    return True


def finish_environment(environment_id: str) -> bool:
    marked = Environment.objects.filter(pk=environment_id, status=Environment.Status.DELETING)
    cluster = marked.values_list("project__cluster", flat=True).first()
    if cluster is None:
        return False
    remove_environment(environment_id, cluster)
    return True


def remove_environment(environment_id: str, cluster: str) -> None:
    """Drop a marked environment's schema and all apps' data, then its record. Raises DatabaseError, SchemaBusy."""
    schemas.drop_schema(environment_id, cluster)
    # Outside of a transaction: a pool of a million users is deleted in batches, and each must be committed.
    signals.environment_deleted.send(sender=Environment, environment_id=environment_id, cluster=cluster)
    failpoints.reach("delete.before_environment_record")
    Environment.objects.filter(pk=environment_id, status=Environment.Status.DELETING).delete()


def unfinished_environments(after: str) -> list[str]:
    marked = Environment.objects.filter(status=Environment.Status.DELETING, project__deleted_at__isnull=True)
    return list(marked.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:_PER_LOOK])


def unfinished(after: str) -> list[str]:
    """Marked projects that are probably not being finished now."""
    settled = Now() - timedelta(seconds=settings.DELETION_GRACE_SECONDS)
    marked = Project.objects.filter(deleted_at__lte=settled, pk__gt=after).order_by("pk")
    return list(marked.values_list("pk", flat=True)[:_PER_LOOK])
