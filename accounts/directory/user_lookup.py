"""Users by their ids, as far as rows may embed them. Called by `rows.query.embedded_users`."""

from collections.abc import Collection, Mapping
from typing import Final

from django.db import DEFAULT_DB_ALIAS, connections

from platform_site.postgres import prepared

_FIELDS: Final = ("id", "email", "name", "role", "created_at")
# Users are found by the primary key and filtered by pool afterwards; the planner might otherwise read a whole pool. The
# ids are one text, of which the planner's estimate is always the same, so that one generic plan serves every call. With
# an array it would plan each call anew, which takes longer than the statement.
_USERS: Final = b"""
    SELECT id, to_json(id), to_json(email), to_json(name), to_json(role),
        to_json(to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    FROM string_to_table($2, ',') asked
    CROSS JOIN LATERAL (SELECT * FROM accounts_user WHERE accounts_user.id = asked OFFSET 0) found
    WHERE environment_id = $1
"""


def find_users(pool_id: str, ids: Collection[str]) -> dict[str, Mapping[str, bytes]]:
    """The users of one pool that have one of `ids`, by id: field → JSON. One query.

    Never a user of another pool or a platform account, whatever the ids.
    """
    values = [pool_id.encode(), ",".join(ids).encode()]
    rows = prepared.retry_if_lost(connections[DEFAULT_DB_ALIAS], _USERS, values)
    return {
        (row[0] or b"").decode(): {name: cell or b"null" for name, cell in zip(_FIELDS, row[1:], strict=True)}
        for row in rows
    }
