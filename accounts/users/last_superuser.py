"""Keeps the last superuser: every removal of the role or the account calls it."""

from accounts.models import User
from platform_site.http.errors import Conflict


def keep_one(user_id: str) -> None:
    """Lock all active superusers by id, before the account itself. Raises Conflict for the last one."""
    found = User.objects.select_for_update().filter(is_superuser=True, disabled_at__isnull=True).order_by("pk")
    if [each.pk for each in found] == [user_id]:
        raise Conflict("This is the last superuser. Create another one first.")
