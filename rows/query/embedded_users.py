"""Embeds users in rows (`with=owner`), which are in the control database: the rows' statement returns masked ids, then
one query reads the users. Ids of the rows' own users are cells beside the JSON (`append`), others a marker in the JSON
(`embed`): a string that starts with a raw tab, which PostgreSQL never writes."""

import re
from collections.abc import Collection, Sequence
from typing import Final

from accounts.directory import user_cache
from platform_site.http.errors import ValidationFailed
from platform_site.postgres.libpq import Row
from rows.query.context import QueryContext
from rows.query.sql.row_json import MAX_ANSWER_BYTES

MAX_USERS: Final = 10_000
SIGN: Final = b"\t"
_MARK: Final = re.compile(rb'\t"([^"\\]*(?:\\.[^"\\]*)*)"')


def embed(context: QueryContext, body: bytes) -> bytes:
    """`body` with the visible fields of the user, or null, for each marker. At most one query. Raises ValidationFailed
    naming `with` beyond MAX_ANSWER_BYTES, and Django's database errors."""
    parts: list[bytes] = _MARK.split(body)  # text, id, text, id, …, text
    users = _find(context, set(parts[1::2]))
    parts[1::2] = [users.get(one, b"null") for one in parts[1::2]]
    return b"".join(_bounded(parts))


def append(context: QueryContext, rows: Sequence[Row], names: Sequence[str]) -> list[bytes]:
    """Each row's JSON with its users under `names`, whose ids are the cells after the JSON. As `embed`."""
    end = 1 + len(names)
    ids_of_rows = {row[1:end] for row in rows}
    user_ids = {one for ids in ids_of_rows for one in ids if one is not None}
    users = _find(context, user_ids) if user_ids else {}
    keys = [b',"%b":' % name.encode() for name in names]
    members = {
        ids: b"".join([key + users.get(one or b"", b"null") for key, one in zip(keys, ids, strict=True)]) + b"}"
        for ids in ids_of_rows
    }
    return _bounded([(row[0] or b"")[:-1] + members[row[1:end]] for row in rows])


def _find(context: QueryContext, ids: Collection[bytes]) -> dict[bytes, bytes]:
    if len(ids) > MAX_USERS:
        raise _too_large(f"The response would have more than {MAX_USERS:,} different users.")
    fields, pool_id = context.resolver.user_fields, context.environment.pool_id
    return user_cache.find_cached_users(pool_id, ids, fields, context.users_version)


def _bounded(parts: list[bytes]) -> list[bytes]:
    if sum(map(len, parts)) > MAX_ANSWER_BYTES:
        raise _too_large(f"The response would be larger than {MAX_ANSWER_BYTES >> 20} MB.")
    return parts


def _too_large(message: str) -> ValidationFailed:
    return ValidationFailed.of("with", "too_large", f"{message} Ask for fewer rows, relations or columns.")
