"""What workers do for `rows`: indexes of large tables, what a crash in a schema change left behind, and the trail."""

import logging
import time
from typing import Final

from celery import shared_task
from django.conf import settings
from django.db import Error, transaction

from platform_site.background.periodic import apart, sweep, sweep_of_each_region
from platform_site.http.errors import Conflict
from platform_site.identity.callers import Place
from platform_site.postgres import sqlstates
from projects.directory.environments import place_of
from projects.models import Environment
from rows.migrate import concurrent_indexes, concurrent_unique_indexes
from rows.models import CurrentVersion, DepartureDue, LeavingUser
from rows.outbox import audit as audit_outbox
from rows.write import deleted_users, user_deletion

log = logging.getLogger("platform.rows")


_HOPELESS_SECONDS: Final = 3600.0
_hopeless: Final[dict[str, float]] = {}
"""Until when the sweeps of this process leave an environment alone: its rows have values too long for an index. To find
that out PostgreSQL reads the whole of a large table, for which all others would wait at each sweep."""


@shared_task
def make_indexes(environment_id: str) -> None:
    """Make the indexes that the environment's schema still waits for. What goes wrong is left to the sweep."""
    place = place_of(environment_id)
    if place is not None:
        _make_indexes(place)


def _make_indexes(place: Place) -> None:
    try:
        concurrent_indexes.make_due(place)
    except Error as error:
        if sqlstates.sqlstate(error) == sqlstates.TOO_LONG_FOR_AN_INDEX:
            _hopeless[place.environment_id] = time.monotonic() + _HOPELESS_SECONDS
        # The table or the whole schema may be gone again, or the disk full.
        log.warning(
            "indexes of %s are still to be made: %s", place.environment_id, sqlstates.sqlstate(error) or type(error)
        )


@sweep(every=settings.SWEEP_SECONDS)
def settle() -> None:
    """Make all indexes that are due, and call environments ready whose schema change is over."""
    for cluster in settings.REGION_DATABASES:
        with apart(f"indexes in {cluster}", using=cluster):
            due = CurrentVersion.objects.using(cluster).filter(indexes_due=True)
            for environment_id in due.values_list("environment_id", flat=True):
                if time.monotonic() < _hopeless.get(environment_id, 0.0):
                    continue
                _hopeless.pop(environment_id, None)
                with apart(f"indexes of {environment_id}"):
                    make_indexes(environment_id)
    migrating = Environment.objects.filter(status=Environment.Status.MIGRATING)
    for environment_id, cluster in migrating.values_list("pk", "project__cluster"):
        with apart(f"{environment_id}, still called migrating", using=cluster):
            if _is_quiet(environment_id, cluster):
                migrating.filter(pk=environment_id).update(status=Environment.Status.READY)


@sweep_of_each_region(every=settings.SWEEP_SECONDS)
def clear_new_uniques(cluster: str) -> None:
    """Take away the indexes of uniques whose schema change died: they hold writers to what nobody declared. A sweep of
    its own, since making indexes may take hours."""
    concurrent_unique_indexes.clear_all(cluster)


@sweep(every=settings.SWEEP_SECONDS)
def let_go_of_the_departed() -> None:
    """Let go of users whom rows of a file still name: an import or a restore died before it looked who had gone."""
    for cluster in settings.REGION_DATABASES:
        with apart(f"users who are gone, in {cluster}", using=cluster):
            for due in DepartureDue.objects.using(cluster).order_by("pk"):
                with apart(f"users who are gone, in {due.environment_id}", using=cluster):
                    place = place_of(due.environment_id)
                    if place is None:  # nobody reaches it any more
                        due.delete()
                    else:
                        deleted_users.settle(place, due)


@sweep(every=settings.SWEEP_SECONDS)
def delete_users_who_are_leaving() -> None:
    """Users of whom rows have gone, whose deletion was cut off before the control database had committed."""
    for cluster in settings.REGION_DATABASES:
        with apart(f"users who are leaving, in {cluster}", using=cluster):
            for each in LeavingUser.objects.using(cluster).order_by("pk"):
                with apart(f"{each}", Conflict, using=cluster):
                    user_deletion.finish(cluster, each)


@shared_task
def bring_trail(using: str) -> None:
    """Bring what was written down in a region to the trail. What cannot be brought now is left to the sweep."""
    if using in settings.REGION_DATABASES:
        with apart(f"entries of the trail in {using}", using=using):
            while audit_outbox.bring_oldest(using) > 0:
                pass


@sweep(every=30)
def bring_trail_that_is_left() -> None:
    """Entries of the trail that whoever made the change could not bring."""
    for using in settings.REGION_DATABASES:
        bring_trail(using)


def _is_quiet(environment_id: str, cluster: str) -> bool:
    """Whether no change of its schema is under way: whoever changes it holds the row of its version, and before that
    may be making uniques."""
    rows = CurrentVersion.objects.using(cluster).filter(pk=environment_id)
    with transaction.atomic(using=cluster):
        if concurrent_unique_indexes.are_being_made(cluster, environment_id):
            return False
        return len(rows.select_for_update(skip_locked=True)) == rows.count()
