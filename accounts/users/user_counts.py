"""The number of users of each pool, maintained by triggers in the transaction that changes it. A pool
is counted once, with its row locked, when first asked. Platform accounts have no row."""

from django.db import transaction

from accounts.models import PoolSize, User


def users_of(pool_id: str) -> int:
    """The number of users of the pool, including uncommitted ones of this transaction. One query."""
    known = PoolSize.objects.filter(pk=pool_id, is_counted=True).values_list("users", flat=True).first()
    return _count(pool_id) if known is None else known


@transaction.atomic
def _count(pool_id: str) -> int:
    PoolSize.objects.bulk_create([PoolSize(environment_id=pool_id)], ignore_conflicts=True)
    size = PoolSize.objects.select_for_update().get(pk=pool_id)
    if not size.is_counted:
        size.users, size.is_counted = User.objects.in_pool(pool_id).count(), True
        size.save(update_fields=["users", "is_counted"])
    return size.users
