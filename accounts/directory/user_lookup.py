from collections.abc import Collection, Sequence
from functools import cache
from typing import Final

from django.db import DEFAULT_DB_ALIAS, connections

from platform_site.postgres import prepared

_JSON: Final = {
    "id": "to_json(id)",
    "email": "to_json(email)",
    "name": "to_json(name)",
    "role": "coalesce(to_json(role)::text, 'null')",
    "created_at": """to_json(to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))""",
}
_ONE: Final = "FROM accounts_user WHERE id = $2 AND environment_id = $1"
# Users are found by the primary key and filtered by pool afterwards; the planner might otherwise read a whole pool. The
# ids are one text, of which the planner's estimate is always the same, so that one generic plan serves every call. With
# an array it would plan each call anew, which takes longer than the statement.
_MANY: Final = """
    FROM string_to_table($2, ',') asked
    CROSS JOIN LATERAL (SELECT * FROM accounts_user WHERE accounts_user.id = asked OFFSET 0) found
    WHERE environment_id = $1
"""


def find_users(pool_id: str, ids: Collection[bytes], fields: Sequence[str]) -> dict[bytes, bytes]:
    """The users of one pool with these ids: by id, a JSON object of the `fields`. One query."""
    sql = _statement(tuple(fields), is_one=len(ids) == 1)
    rows = prepared.retry_if_lost(connections[DEFAULT_DB_ALIAS], sql, [pool_id.encode(), b",".join(ids)])
    return {row[0] or b"": row[1] or b"null" for row in rows}


@cache
def _statement(fields: tuple[str, ...], *, is_one: bool) -> bytes:
    members = " || ',' || ".join(f"""'"{name}":' || {_JSON[name]}""" for name in fields)
    return f"SELECT id, '{{' || {members} || '}}' {_ONE if is_one else _MANY}".encode()
