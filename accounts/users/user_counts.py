"""The number of users of a pool, without counting: one row for each pool, maintained by database triggers. The triggers
(migration 0009) change the row in the transaction that makes or deletes users, whoever does it: this release, the one
before, a shell. So whoever holds the row knows that no other transaction has made or deleted users of the pool and not
ended. That is how a pool is counted once, at the first question after the upgrade: what is added up before is right
from then on, too. Platform accounts have no quota, and no row."""

from django.db import transaction

from accounts.models import PoolSize, User


def users_of(pool_id: str) -> int:
    """How many users the pool has, those of the transaction at hand among them. One query; once in a pool's life a
    count of all."""
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
