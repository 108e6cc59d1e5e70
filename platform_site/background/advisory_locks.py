"""PostgreSQL's advisory locks: one key space for each purpose, so that equal keys of two purposes never meet. A
transaction's lock is released at its end, a session's by `unlock_session` or when the connection closes."""

from enum import IntEnum
from typing import Any


class LockSpace(IntEnum):
    """What a lock is for. Running processes of two versions share the numbers: never change one."""

    NAMED = 0
    """Keys with a prefix of their own (`functions:env_…`), and environments about to be made."""
    SCHEMA = 1
    """Fill or drop an environment's PostgreSQL schema, in one transaction."""
    INDEXES = 2
    """Make the indexes of an environment that are due."""
    UNIQUE_INDEXES = 3
    """Make the unique indexes that a change of the schema takes over."""
    POOL = 4
    """Shared: delete a user. Exclusive: show a new branch of the pool."""
    ENVIRONMENT = 5
    """Shared: write rows that name the environment. Exclusive: mark it as deleted, or drop its schema."""
    ORPHANED_SCHEMA = 6
    """Drop or reset an environment's PostgreSQL schema, in many transactions."""


def lock(cursor: Any, space: LockSpace, key: str) -> None:
    """Wait for the lock, and hold it until the end of the transaction."""
    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", [key, space.value])


def lock_shared(cursor: Any, space: LockSpace, key: str) -> None:
    """As `lock`, together with others that share it."""
    cursor.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, %s))", [key, space.value])


def try_lock(cursor: Any, space: LockSpace, key: str) -> bool:
    """Hold the lock until the end of the transaction; False if another session has it."""
    cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, %s))", [key, space.value])
    return bool(cursor.fetchone()[0])


def try_lock_session(cursor: Any, space: LockSpace, key: str) -> bool:
    """Hold the lock until `unlock_session` or the end of the connection; False if another session has it."""
    cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, %s))", [key, space.value])
    return bool(cursor.fetchone()[0])


def unlock_session(cursor: Any, space: LockSpace, key: str) -> None:
    cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, %s))", [key, space.value])
