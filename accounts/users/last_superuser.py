"""Keeps the last superuser: every removal of the role or the account calls it."""

from accounts.models import User
from platform_site.http.errors import Conflict


def keep_one(user_id: str) -> None:
    """Lock all superusers that may sign in until the end of the transaction; Conflict if this one is the last. All are
    locked, because two that act on each other at once would leave none. Before any lock of the account itself, and in
    the order of their ids, to avoid deadlocks. One query."""
    found = User.objects.select_for_update().filter(is_superuser=True, disabled_at__isnull=True).order_by("pk")
    if [each.pk for each in found] == [user_id]:
        raise Conflict("This is the last superuser. Make another one first.")
