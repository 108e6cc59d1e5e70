from django.db import DEFAULT_DB_ALIAS

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace


def hold(name: str) -> None:
    """Serialize transactions on this name until the current one ends."""
    advisory_locks.lock(DEFAULT_DB_ALIAS, LockSpace.NAMED, name)
