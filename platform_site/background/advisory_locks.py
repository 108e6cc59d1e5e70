from enum import IntEnum
from typing import Any

from platform_site.postgres import statements


class LockSpace(IntEnum):
    """Processes of two versions share the numbers: never change one."""

    NAMED = 0
    """Prefixed keys (`functions:env_…`), and environments to be created."""
    SCHEMA = 1
    INDEXES = 2
    UNIQUE_INDEXES = 3
    POOL = 4
    """Shared: delete a user. Exclusive: show a new branch of the pool."""
    ENVIRONMENT = 5
    """Shared: write rows that name the environment. Exclusive: mark it as deleted, or drop its schema."""
    ORPHANED_SCHEMA = 6
    REPEATED_WRITES = 7
    """Run a batch, or a request with an Idempotency-Key, again after a deadlock."""


def lock(using: str, space: LockSpace, key: str) -> None:
    """Take the lock until the transaction ends, as `lock_shared` and `try_lock` do."""
    statements.execute(using, "SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", [key, space.value])


def lock_shared(using: str, space: LockSpace, key: str) -> None:
    statements.execute(using, "SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, %s))", [key, space.value])


def try_lock(using: str, space: LockSpace, key: str) -> bool:
    statement = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, %s))"
    return bool(statements.value(using, statement, [key, space.value]))


def try_lock_session(cursor: Any, space: LockSpace, key: str) -> bool:
    """Lock until `unlock_session` or the connection's end; False if another session has it."""
    cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, %s))", [key, space.value])
    return bool(cursor.fetchone()[0])


def unlock_session(cursor: Any, space: LockSpace, key: str) -> None:
    cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, %s))", [key, space.value])
