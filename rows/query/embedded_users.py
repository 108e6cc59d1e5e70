"""Embeds users in rows: the second query of a list or a row with `with=owner`.

Users are in the control database. So the statement of the rows only marks the place of each user with its id, masked by
the caller's rules, and the users of all marks are read at once. A mark is a JSON string with a tab in front. PostgreSQL
writes no tab between the tokens of a row's JSON, and escapes it in strings, so no value can imitate a mark.
"""

import re
from typing import Any, Final

from accounts.directory import user_lookup
from platform_site.http.errors import ValidationFailed
from rows.query.sql.expressions import Sql

MAX_USERS: Final = 10_000
"""Different users in one response."""
SIGN: Final = b"\t"
_MARK: Final = re.compile(rb'\t"([^"\\]*(?:\\.[^"\\]*)*)"')


def mark(user_id: Any) -> Sql:
    """The JSON that marks the place of the user whose id is the expression `user_id`; null for none."""
    return Sql(r"(E'\t' || to_json(", user_id, ")::text)::json")


def embed(body: bytes, fields: tuple[str, ...], pool_id: str, max_bytes: int) -> bytes:
    """`body` with each mark replaced by the `fields` of the user, or by null if the pool has no such user. One query.

    Raises ValidationFailed naming `with` if the result would be larger than `max_bytes`, and Django's database errors
    if the control database is unavailable.
    """
    parts: list[bytes] = _MARK.split(body)  # text, id, text, id, …, text
    ids = set(parts[1::2])
    if len(ids) > MAX_USERS:
        raise _too_large(f"The answer would have more than {MAX_USERS:,} different users.")
    users = user_lookup.find_users(pool_id, ids, fields)
    parts[1::2] = [users.get(one, b"null") for one in parts[1::2]]
    if sum(map(len, parts)) > max_bytes:
        raise _too_large(f"The answer would have more than {max_bytes >> 20} MB.")
    return b"".join(parts)


def _too_large(message: str) -> ValidationFailed:
    return ValidationFailed.of("with", "too_large", f"{message} Ask for fewer rows, relations or columns.")
