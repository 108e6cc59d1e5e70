"""What workers do for `rows`: indexes of large tables, and what a crash in a schema change left behind."""

import logging

from celery import shared_task
from django.conf import settings
from django.db import DatabaseError, transaction

from platform_site.api import sqlstates
from platform_site.api.callers import Place
from platform_site.api.sweeps import sweep
from projects.environments import place_of
from projects.models import Environment
from rows import indexing, uniques
from rows.models import CurrentVersion

log = logging.getLogger("platform.rows")


@shared_task
def make_indexes(environment_id: str) -> None:
    """Make the indexes that the environment's schema still waits for. What goes wrong is left to the sweep."""
    place = place_of(environment_id)
    if place is not None:
        _make_indexes(place)


def _make_indexes(place: Place) -> None:
    try:
        indexing.make_due(place)
    except DatabaseError as error:
        # The table or the whole schema may be gone again, or the disk full.
        log.warning(
            "indexes of %s are still to be made: %s", place.environment_id, sqlstates.sqlstate(error) or type(error)
        )


@sweep(every=settings.SWEEP_SECONDS)
def settle() -> None:
    """Make all indexes that are due, and call environments ready whose schema change is over."""
    for cluster in settings.REGION_DATABASES:
        try:
            due = CurrentVersion.objects.using(cluster).filter(indexes_due=True)
            for environment_id in due.values_list("environment_id", flat=True):
                make_indexes(environment_id)
        except DatabaseError as error:
            log.warning("region %s could not be swept: %s", cluster, type(error).__name__)
    migrating = Environment.objects.filter(status=Environment.Status.MIGRATING)
    for environment_id, cluster in migrating.values_list("pk", "project__cluster"):
        try:
            if _is_quiet(environment_id, cluster):
                migrating.filter(pk=environment_id).update(status=Environment.Status.READY)
        except DatabaseError as error:
            log.warning("environment %s is still called migrating: %s", environment_id, type(error).__name__)


@sweep(every=settings.SWEEP_SECONDS)
def clear_new_uniques() -> None:
    """Take away the indexes of uniques whose schema change died: they hold writers to what nobody declared. A sweep of
    its own, since making indexes may take hours."""
    for cluster in settings.REGION_DATABASES:
        try:
            uniques.clear_all(cluster)
        except DatabaseError as error:
            log.warning("region %s could not be swept: %s", cluster, type(error).__name__)


def _is_quiet(environment_id: str, cluster: str) -> bool:
    """Whether no change of its schema is under way: whoever changes it holds the row of its version, and before that
    may be making uniques."""
    rows = CurrentVersion.objects.using(cluster).filter(pk=environment_id)
    with transaction.atomic(using=cluster):
        if uniques.are_being_made(cluster, environment_id):
            return False
        return len(rows.select_for_update(skip_locked=True)) == rows.count()
