from django.db import connection

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace


def hold(name: str) -> None:
    """Serialize transactions on this name until the current one ends."""
    with connection.cursor() as cursor:
        advisory_locks.lock(cursor, LockSpace.NAMED, name)
