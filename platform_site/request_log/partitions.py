"""Partitions of the request log, per retention period and day, created days ahead by a periodic job, or by a writer.
And the deletion of old entries, and of a deleted environment's."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models.functions import Now
from psycopg import sql

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.identity.plans import PLANS
from platform_site.postgres import statements
from platform_site.request_log.models import OmittedRequests

KEEP_DAYS: Final = sorted({plan.request_log_days for plan in PLANS.values()})
WITHOUT_ENVIRONMENT_KEEP_DAYS: Final = 7
"""Only operators read these."""
DAYS_AHEAD: Final = 7
_BATCH: Final = 5_000

_EXISTING: Final = """
SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
 WHERE inhparent = ANY (%s::regclass[])
"""
_DELETE_OF_ENVIRONMENT: Final = """
DELETE FROM request_log_entry WHERE environment_id = %(environment_id)s AND at >= coalesce(
    (SELECT at FROM request_log_entry WHERE environment_id = %(environment_id)s
      ORDER BY at DESC, id DESC OFFSET %(batch)s - 1 LIMIT 1), '-infinity')
"""
# ATTACH locks the parent less than CREATE TABLE ... PARTITION OF, which would wait for all readers and writers.
_CREATE: Final = sql.SQL("CREATE TABLE {partition} (LIKE {parent} INCLUDING DEFAULTS)")
_ATTACH: Final = sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {partition} FOR VALUES FROM ({begin}) TO ({end})")


def create(using: str) -> None:
    with transaction.atomic(using=using):
        advisory_locks.lock(using, LockSpace.NAMED, "request_log partitions")
        today = _today(using)
        existing = set(_existing(using))
        for keep_days in KEEP_DAYS:
            for day in (today + timedelta(days=offset) for offset in range(-1, DAYS_AHEAD + 1)):
                if _name(keep_days, day) not in existing:
                    _create(using, keep_days, day)


def drop_old(using: str) -> None:
    """Each in a transaction, since that locks the parent."""
    today = _today(using)
    for name in [name for name in _existing(using) if _is_old(name, today)]:
        statements.execute(using, sql.SQL("DROP TABLE {}").format(sql.Identifier(name)).as_string(None))


def purge(using: str) -> None:
    drop_old(using)
    oldest = Now() - timedelta(days=max(KEEP_DAYS))
    OmittedRequests.objects.using(using).filter(minute__lt=oldest).delete()


def forget_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    """In batches; idempotent."""
    statements.execute_in_batches(cluster, _DELETE_OF_ENVIRONMENT, {"environment_id": environment_id}, batch=_BATCH)
    OmittedRequests.objects.using(cluster).filter(environment_id=environment_id).delete()


def _today(using: str) -> date:
    today: date = statements.value(using, "SELECT (now() AT TIME ZONE 'UTC')::date")
    return today


def _is_old(name: str, today: date) -> bool:
    _, _, keep, day = name.split("_")
    ended = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date() + timedelta(days=1)
    return ended + timedelta(days=int(keep.removesuffix("d"))) <= today


def _existing(using: str) -> list[str]:
    return statements.column(using, _EXISTING, [[_parent(keep_days) for keep_days in KEEP_DAYS]])


def _create(using: str, keep_days: int, day: date) -> None:
    names = {
        "parent": sql.Identifier(_parent(keep_days)),
        "partition": sql.Identifier(_name(keep_days, day)),
        "begin": sql.Literal(f"{day} 00:00Z"),
        "end": sql.Literal(f"{day + timedelta(days=1)} 00:00Z"),
    }
    for statement in (_CREATE, _ATTACH):
        statements.execute(using, statement.format(**names).as_string(None))


def _parent(keep_days: int) -> str:
    return f"request_log_{keep_days}d"


def _name(keep_days: int, day: date) -> str:
    return f"{_parent(keep_days)}_{day:%Y%m%d}"
