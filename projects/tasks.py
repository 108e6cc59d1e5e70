"""Celery tasks and periodic jobs of `projects`, which work from PostgreSQL alone."""

import logging
import time
from contextlib import suppress
from typing import Final

from celery import shared_task
from django.conf import settings
from django.db.models.functions import Now

from accounts import audit
from accounts.signal_handlers import delete_pool
from platform_site.background.periodic import log_failures, periodic_job
from platform_site.identity import signals
from projects import services
from projects.errors import NoSuchEnvironment, NoSuchProject
from projects.models import Environment
from projects.provisioning import branching, orphaned_rows, schemas
from projects.provisioning import deletion as project_deletion
from projects.provisioning.schemas import SchemaBusy

MAX_RUN_SECONDS: Final = 45.0
ORPHANED_ROWS_EVERY: Final = 3600
"""Seconds. They are rare, and the search covers every environment."""

log = logging.getLogger("platform.projects")


@shared_task
def finish_deletion(project_id: str) -> None:
    with log_failures(f"the deletion of {project_id}", SchemaBusy):
        project_deletion.finish(project_id)


@shared_task
def finish_environment_deletion(environment_id: str) -> None:
    with log_failures(f"the deletion of {environment_id}", SchemaBusy):
        project_deletion.finish_environment(environment_id)


@shared_task
def fill_branch(environment_id: str) -> None:
    if branching.finish(environment_id):
        finish_branches()  # those that had to wait for a slot


@periodic_job(every=settings.JOB_SECONDS)
def finish_branches() -> None:
    """A separate job, because a copy may take long."""
    after = ""
    while batch := branching.unfinished(after):
        for after in batch:
            with log_failures(f"the branch {after}", SchemaBusy):
                if branching.finish(after):
                    log.info("settled the branch %s", after)


@periodic_job(every=settings.JOB_SECONDS)
def finish_and_clean() -> None:
    """Finish deletions, and drop schemas of environments that were never committed."""
    deadline = time.monotonic() + MAX_RUN_SECONDS
    for unfinished, finish in (
        (project_deletion.unfinished, project_deletion.finish),
        (project_deletion.unfinished_environments, project_deletion.finish_environment),
    ):
        after = ""
        while time.monotonic() < deadline and (batch := unfinished(after)):
            for after in batch:
                with log_failures(f"the deletion of {after}", SchemaBusy):
                    if time.monotonic() < deadline and finish(after):
                        log.info("finished the deletion of %s", after)
    for cluster in settings.REGION_DATABASES:
        with log_failures(f"orphans in {cluster}", using=cluster):
            for environment_id in schemas.drop_orphans(cluster, deadline):
                log.info("dropped the schema of an environment that was never created: %s", environment_id)


@periodic_job(every=settings.JOB_SECONDS)
def delete_expired_branches() -> None:
    expired = Environment.objects.live().branches().filter(expires_at__lte=Now()).order_by("expires_at", "pk")
    for environment_id, project_id in list(expired.values_list("pk", "project_id")[:1000]):
        with log_failures(f"the deletion of the expired branch {environment_id}"):
            with suppress(NoSuchEnvironment, NoSuchProject):  # deleted meanwhile
                services.delete_environment(project_id, environment_id, actor=audit.SYSTEM)
                log.info("the branch %s has expired", environment_id)


@periodic_job(every=ORPHANED_ROWS_EVERY)
def remove_orphaned_rows() -> None:
    for cluster in settings.REGION_DATABASES:
        with log_failures(f"what environments that are gone left in {cluster}", using=cluster):
            for environment_id in orphaned_rows.find(cluster):
                signals.environment_deleted.send(sender=Environment, environment_id=environment_id, cluster=cluster)
                log.warning("removed what %s had left in %s", environment_id, cluster)
            for environment_id in schemas.orphaned(cluster):
                log.error(
                    "the control database does not know %s, but %s has its schema: was it restored to an earlier"
                    " time? The schema is kept until an operator drops it (manage.py cleanup)",
                    environment_id, cluster,
                )  # fmt: skip
    with log_failures("what environments that are gone left in the control database"):
        for environment_id in orphaned_rows.find_in_control():
            delete_pool(environment_id=environment_id)
            log.warning("removed what %s had left in the control database", environment_id)
