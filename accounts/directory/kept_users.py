"""Users that this process has read, kept to embed them in rows again. They are kept under the version of their pool, a
random value in Redis. A change of what rows may show of a user, or the user's end, overwrites the version inside of its
transaction (`accounts.tokens.revocation`), and no version comes twice. So what a request finds under the version that
it has read was read after that version began, and any change since had not been answered when the request began.
Without a version (a change in the last minutes, Redis emptied or unavailable) users come from PostgreSQL. Users that do
not exist are not kept: they may be created."""

import secrets
from collections.abc import Collection
from typing import Final

from accounts.directory import user_lookup
from platform_site.concurrency.memo import Memo

MUTABLE: Final = frozenset({"email", "name", "role"})
"""The fields whose change ends a version."""
_VERSION_BYTES: Final = 16

_kept: Final[Memo[tuple[bytes, str, tuple[str, ...], bytes], bytes]] = Memo(10_000)
"""By version, pool, fields and id."""
embedding: Final[Memo[str, bool]] = Memo(2_500)
"""Pools of which rows have embedded users lately: only their versions are worth a question."""


def version_name(pool_id: str) -> str:
    """The key of the pool's version in Redis."""
    return f"users:{pool_id}"


def new_version() -> bytes:
    return secrets.token_bytes(_VERSION_BYTES)


def is_version(value: bytes) -> bool:
    """Whether it is a version, and not the mark of a change."""
    return len(value) == _VERSION_BYTES


def find_users(
    pool_id: str, ids: Collection[bytes], fields: tuple[str, ...], version: bytes | None
) -> dict[bytes, bytes]:  # fmt: skip
    """As `user_lookup.find_users`, without a query if all are kept under the `version` that this request has read."""
    if version is None:
        embedding.put(pool_id, True)
        return user_lookup.find_users(pool_id, ids, fields)
    known = {one: user for one in ids if (user := _kept.get((version, pool_id, fields, one))) is not None}
    if len(known) < len(ids):
        read = user_lookup.find_users(pool_id, [one for one in ids if one not in known], fields)
        for one, user in read.items():
            known[one] = user
            _kept.put((version, pool_id, fields, one), user)
    return known
