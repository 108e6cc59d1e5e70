"""Users who are gone, and the rows that came from a file while they went: an import, a restore, a branch.

Deleting a user changes the rows that name it (`rows.receivers`). Rows that were read or written before that and
committed after it still name that user; whoever commits such rows calls here afterwards, with the moment at which it
began. The trail knows who went (`accounts.audit`). docs/schema.md, docs/backups.md.
"""

from datetime import datetime

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from accounts import audit
from platform_site.api.callers import Place
from projects import branching
from rows import writes


def now() -> datetime:
    """The moment by the clock of the control database, which stamps the trail. One query."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


def let_go(place: Place, since: datetime) -> None:
    """Apply the policies of user columns for all who went at `since` or later, as far as other rows allow."""
    for user_id in audit.users_deleted(place.pool_id, since):
        writes.let_go_of_user(place, user_id, entirely=False)


def let_go_of_all(place: Place, since: datetime) -> None:
    """`let_go` after a commit: whoever was deleting a user then has ended, or sees the rows that were committed."""
    with transaction.atomic():
        branching.keep_users(place.pool_id)
    let_go(place, since)
