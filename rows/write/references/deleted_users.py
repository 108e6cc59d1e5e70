"""After an import, restore or branch: apply `on_delete` for users that were deleted while it ran. Deleting a user
changes the rows that name it (`rows.signal_handlers`). Rows that were read or written before that and committed after
it still name the user, so the importing process calls this afterwards with its start time. The audit log has the
deleted users (`accounts.audit`). An import and a restore record that this is due with their rows, so that a periodic
job does it after a crash. docs/reference/schema.md, docs/how-to/operations/backups.md."""

from datetime import datetime

from django.db import DEFAULT_DB_ALIAS, transaction

from accounts import audit
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sql_functions
from projects.provisioning import branching, failpoints
from rows.models import PendingUserReferences
from rows.write.references import referential_actions


def now() -> datetime:
    """The time of the control database, which stamps the audit log. One query."""
    return sql_functions.now(DEFAULT_DB_ALIAS)


def delete_references(environment: EnvironmentRef, since: datetime) -> None:
    """Apply the policies of user columns for all users deleted since, where no other row prevents it."""
    for user_id in audit.users_deleted(environment.pool_id, since):
        referential_actions.apply_user_deletion(environment, user_id, pending=None)


def schedule(environment: EnvironmentRef, since: datetime) -> PendingUserReferences:
    """Record in the region's current transaction, together with the rows, that `settle` must run after the commit."""
    return PendingUserReferences.objects.using(environment.cluster).create(
        environment_id=environment.environment_id, since=since
    )


def settle(environment: EnvironmentRef, due: PendingUserReferences) -> None:
    """`delete_references` after the commit, when a concurrent deletion has either ended or sees the committed rows. May
    run twice."""
    failpoints.reach("deleted_users.before_settle")
    with transaction.atomic():
        branching.block_user_deletion(environment.pool_id)
    delete_references(environment, due.since)
    PendingUserReferences.objects.using(environment.cluster).filter(pk=due.pk).delete()
