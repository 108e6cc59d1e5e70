import logging
import time
from typing import Final

from celery import shared_task
from django.conf import settings
from django.db import Error, transaction

from platform_site.background import long_tasks
from platform_site.background.periodic import log_failures, periodic_job, periodic_job_per_region
from platform_site.concurrency.fair_semaphore import Full
from platform_site.http.errors import Conflict
from platform_site.postgres import sqlstates
from projects.directory.environments import environment_ref
from projects.models import Environment
from rows.changes import watched_tables
from rows.migrate import concurrent_indexes, concurrent_unique_indexes
from rows.models import CurrentVersion, PendingUserDeletion, PendingUserReferences
from rows.outbox import audit as audit_outbox
from rows.write.references import dangling_references, pending_user_deletions

log = logging.getLogger("platform.rows")


_SKIP_SECONDS: Final = 3600.0
_skipped_until: Final[dict[str, float]] = {}
"""Environments with an index that cannot hold a value: each attempt reads the whole table."""


@shared_task
def make_indexes(environment_id: str) -> None:
    if (environment := environment_ref(environment_id)) is None:
        return
    try:
        with long_tasks.slots.slot(environment.project_id, wait=0):
            concurrent_indexes.make_due(environment)
    except Full:
        log.info("indexes of %s wait for those of others", environment_id)
    except Error as error:
        if sqlstates.sqlstate(error) == sqlstates.TOO_LONG_FOR_AN_INDEX:
            _skipped_until[environment_id] = time.monotonic() + _SKIP_SECONDS
        # The table or the whole schema may be gone again, or the disk full.
        log.warning("indexes of %s are still to be made: %s", environment_id, sqlstates.sqlstate(error) or type(error))


@periodic_job(every=settings.JOB_SECONDS)
def settle() -> None:
    """Build due indexes, and reset the status of environments after schema changes."""
    for cluster in settings.REGION_DATABASES:
        with log_failures(f"indexes in {cluster}", using=cluster):
            due = CurrentVersion.objects.using(cluster).filter(indexes_due=True)
            for environment_id in due.values_list("environment_id", flat=True):
                if time.monotonic() < _skipped_until.get(environment_id, 0.0):
                    continue
                _skipped_until.pop(environment_id, None)
                with log_failures(f"indexes of {environment_id}"):
                    make_indexes(environment_id)
    migrating = Environment.objects.filter(status=Environment.Status.MIGRATING, applying_plan=None)
    for environment_id, cluster in migrating.values_list("pk", "project__cluster"):
        with log_failures(f"resetting the status of {environment_id}", using=cluster):
            if _is_quiet(environment_id, cluster):
                migrating.filter(pk=environment_id).update(status=Environment.Status.READY)


@periodic_job_per_region(every=settings.JOB_SECONDS)
def clear_new_uniques(cluster: str) -> None:
    """Drop leftover unique indexes, in a job of its own: building indexes may take hours."""
    concurrent_unique_indexes.clear_all(cluster)


@periodic_job(every=settings.JOB_SECONDS)
def apply_pending_user_deletions() -> None:
    """Apply `on_delete` for imports and restores that were interrupted before they did (`dangling_references`)."""
    for cluster in settings.REGION_DATABASES:
        with log_failures(f"references to deleted users in {cluster}", using=cluster):
            for due in PendingUserReferences.objects.using(cluster).order_by("pk"):
                with log_failures(f"references to deleted users in {due.environment_id}", using=cluster):
                    environment = environment_ref(due.environment_id)
                    if environment is None:  # the environment is deleted
                        due.delete()
                    else:
                        dangling_references.remove_scheduled(environment, due)


@periodic_job(every=settings.JOB_SECONDS)
def finish_user_deletions() -> None:
    for cluster in settings.REGION_DATABASES:
        with log_failures(f"pending user deletions in {cluster}", using=cluster):
            for each in PendingUserDeletion.objects.using(cluster).order_by("pk"):
                with log_failures(f"{each}", Conflict, using=cluster):
                    pending_user_deletions.complete(cluster, each)


@shared_task
def flush_audit_outbox(using: str) -> None:
    if using in settings.REGION_DATABASES:
        with log_failures(f"audit entries in {using}", using=using):
            while audit_outbox.flush_oldest(using) > 0:
                pass


@periodic_job_per_region(every=60)
def expire_watched_tables(cluster: str) -> None:
    watched_tables.expire(cluster)


@periodic_job(every=30)
def flush_remaining_audit_outbox() -> None:
    for using in settings.REGION_DATABASES:
        flush_audit_outbox(using)


def _is_quiet(environment_id: str, cluster: str) -> bool:
    """Whether no schema change is running, which would build unique indexes or hold the lock of the version."""
    rows = CurrentVersion.objects.using(cluster).filter(pk=environment_id)
    with transaction.atomic(using=cluster):
        if concurrent_unique_indexes.is_building(cluster, environment_id):
            return False
        return len(rows.select_for_update(skip_locked=True)) == rows.count()
