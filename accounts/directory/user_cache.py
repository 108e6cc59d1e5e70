"""Caches users in this process, to embed them in rows, under a random version of their pool in Redis that changes of
users overwrite inside their transaction (`accounts.tokens.revocation`). Without a version users come from PostgreSQL.
Missing users are not cached: they may be created."""

import secrets
from collections.abc import Collection
from typing import Final

from accounts.directory import user_lookup
from platform_site.concurrency.memo import Memo

MUTABLE: Final = frozenset({"email", "name", "role"})
"""Fields whose change ends a version."""
_VERSION_BYTES: Final = 16

_cache: Final[Memo[tuple[bytes, str, tuple[str, ...], bytes], bytes]] = Memo(10_000)
embedding: Final[Memo[str, bool]] = Memo(2_500)
"""Pools whose users rows embedded recently: only their versions are read."""


def version_name(pool_id: str) -> str:
    return f"users:{pool_id}"


def new_version() -> bytes:
    return secrets.token_bytes(_VERSION_BYTES)


def is_version(value: bytes) -> bool:
    return len(value) == _VERSION_BYTES


def find_cached_users(
    pool_id: str, ids: Collection[bytes], fields: tuple[str, ...], version: bytes | None
) -> dict[bytes, bytes]:  # fmt: skip
    """As `user_lookup.find_users`, without a query if all users are cached under `version`."""
    if version is None:
        embedding.put(pool_id, True)
        return user_lookup.find_users(pool_id, ids, fields)
    known = {one: user for one in ids if (user := _cache.get((version, pool_id, fields, one))) is not None}
    if len(known) < len(ids):
        read = user_lookup.find_users(pool_id, [one for one in ids if one not in known], fields)
        for one, user in read.items():
            known[one] = user
            _cache.put((version, pool_id, fields, one), user)
    return known
