"""Users who are gone, and the rows that came from a file while they went: an import, a restore, a branch.

Deleting a user changes the rows that name it (`rows.signal_handlers`). Rows that were read or written before that and
committed after it still name that user; whoever commits such rows calls here afterwards, with the moment at which it
began. The trail knows who went (`accounts.audit`). An import and a restore put down with their rows that this is due,
so that a sweep does it where they were cut off. docs/reference/schema.md, docs/how-to/operations/backups.md.
"""

from datetime import datetime

from django.db import DEFAULT_DB_ALIAS, transaction

from accounts import audit
from platform_site.identity.callers import Place
from platform_site.postgres import clock
from projects.provisioning import branching, failpoints
from rows.models import DepartureDue
from rows.write import referential_actions


def now() -> datetime:
    """The moment by the clock of the control database, which stamps the trail. One query."""
    return clock.now(DEFAULT_DB_ALIAS)


def let_go(place: Place, since: datetime) -> None:
    """Apply the policies of user columns for all who went at `since` or later, as far as other rows allow."""
    for user_id in audit.users_deleted(place.pool_id, since):
        referential_actions.let_go_of_user(place, user_id, leaving=None)


def put_down(place: Place, since: datetime) -> DepartureDue:
    """Note in the region's transaction at hand, with the rows, that `settle` is due once they are committed."""
    return DepartureDue.objects.using(place.cluster).create(environment_id=place.environment_id, since=since)


def settle(place: Place, due: DepartureDue) -> None:
    """`let_go` after the commit: whoever was deleting a user then has ended, or sees the rows that were committed. May
    run twice."""
    failpoints.reach("departures.before_letting_go")
    with transaction.atomic():
        branching.keep_users(place.pool_id)
    let_go(place, due.since)
    DepartureDue.objects.using(place.cluster).filter(pk=due.pk).delete()
