"""Embeds users in rows (`with=owner`), which are in the control database: the rows' statement returns masked ids, then
one query reads the users. Ids of the rows' own users are cells beside the JSON (`append`), others a marker in the JSON
(`embed`): a string that starts with a raw tab, which PostgreSQL never writes."""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from accounts.directory import user_cache
from platform_site.http.errors import ValidationFailed
from platform_site.postgres.libpq import Row
from rows.query.sql.expressions import Sql

MAX_USERS: Final = 10_000
SIGN: Final = b"\t"
_MARK: Final = re.compile(rb'\t"([^"\\]*(?:\\.[^"\\]*)*)"')


def mark(user_id: Any) -> Sql:
    return Sql(r"(E'\t' || to_json(", user_id, ")::text)::json")


def embed(body: bytes, fields: tuple[str, ...], pool_id: str, version: bytes | None, max_bytes: int) -> bytes:
    """`body` with each marker replaced by the user's `fields`, or null. At most one query. Raises ValidationFailed
    naming `with` beyond `max_bytes`, and Django's database errors."""
    parts: list[bytes] = _MARK.split(body)  # text, id, text, id, …, text
    users = _find(set(parts[1::2]), fields, pool_id, version)
    parts[1::2] = [users.get(one, b"null") for one in parts[1::2]]
    return b"".join(_bounded(parts, max_bytes))


def append(
    rows: Sequence[Row],
    names: Sequence[str],
    fields: tuple[str, ...],
    pool_id: str,
    version: bytes | None,
    max_bytes: int,
) -> list[bytes]:
    """Each row's JSON with its users under `names`, whose ids are the cells after the JSON. As `embed`."""
    end = 1 + len(names)
    asked = {row[1:end] for row in rows}
    ids = {one for each in asked for one in each if one is not None}
    users = _find(ids, fields, pool_id, version) if ids else {}
    keys = [b',"%b":' % name.encode() for name in names]
    members = {
        each: b"".join([key + users.get(one or b"", b"null") for key, one in zip(keys, each, strict=True)]) + b"}"
        for each in asked
    }
    return _bounded([(row[0] or b"")[:-1] + members[row[1:end]] for row in rows], max_bytes)


def _find(
    ids: Collection[bytes], fields: tuple[str, ...], pool_id: str, version: bytes | None
) -> dict[bytes, bytes]:  # fmt: skip
    if len(ids) > MAX_USERS:
        raise _too_large(f"The answer would have more than {MAX_USERS:,} different users.")
    return user_cache.find_cached_users(pool_id, ids, fields, version)


def _bounded(parts: list[bytes], max_bytes: int) -> list[bytes]:
    if sum(map(len, parts)) > max_bytes:
        raise _too_large(f"The answer would have more than {max_bytes >> 20} MB.")
    return parts


def _too_large(message: str) -> ValidationFailed:
    return ValidationFailed.of("with", "too_large", f"{message} Ask for fewer rows, relations or columns.")
