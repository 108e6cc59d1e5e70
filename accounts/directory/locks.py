"""Advisory locks by name, where there is no row to lock: counting before adding, keeping only the newest."""

from django.db import connection

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace


def hold(name: str) -> None:
    """Let one transaction at a time go on under this name, until the end of the transaction at hand."""
    with connection.cursor() as cursor:
        advisory_locks.lock(cursor, LockSpace.NAMED, name)
