"""Removes references to users that were deleted while an import, restore or branch ran. Deleting a user changes the
rows that name it, but not those that were read or written before and are committed afterwards. So the importing process
calls this with its start time; the audit log has the deleted users. An import and a restore record with their rows that
this is due, so that a periodic job does it after a crash. docs/reference/schema.md."""

from datetime import datetime

from django.db import DEFAULT_DB_ALIAS, transaction

from accounts import audit
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sql_functions
from projects.provisioning import branching, failpoints
from rows.models import PendingUserReferences
from rows.write.references.user_policies import apply_user_deletion


def control_time() -> datetime:
    """Of the control database, which stamps the audit log. One query."""
    return sql_functions.now(DEFAULT_DB_ALIAS)


def remove(environment: EnvironmentRef, since: datetime) -> None:
    """Apply the policies of user columns for all users deleted since, where no other row prevents it."""
    for user_id in audit.users_deleted(environment.pool_id, since):
        apply_user_deletion(environment, user_id, pending=None)


def schedule(environment: EnvironmentRef, since: datetime) -> PendingUserReferences:
    """Record in the transaction of the rows that `remove_scheduled` must run after its commit."""
    return PendingUserReferences.objects.using(environment.cluster).create(
        environment_id=environment.environment_id, since=since
    )


def remove_scheduled(environment: EnvironmentRef, due: PendingUserReferences) -> None:
    """After the commit, when a concurrent deletion has either ended or sees the committed rows. May run twice."""
    failpoints.reach("dangling_references.before_remove")
    with transaction.atomic():
        branching.block_user_deletion(environment.pool_id)
    remove(environment, due.since)
    PendingUserReferences.objects.using(environment.cluster).filter(pk=due.pk).delete()
