"""Texts about an environment's tables as one role may use them. Those made last are stored in this process by schema
version, because making one of a large schema takes about a second of CPU."""

import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from cachetools import LRUCache

from platform_site.http.errors import Unavailable
from platform_site.identity.callers import EnvironmentRef
from rows.codegen.role_tables import RoleTables, role_named, tables_for
from rows.migrate.computation_slots import SchemasBusy, in_slot
from rows.query import schema_cache
from rows.query.schema_cache import CompiledSchema
from rows.rules.principal import Principal, RoleKey

MAX_BYTES: Final = 32 * 2**20
"""Of all stored texts, compressed to about a twentieth. One may have a quarter."""
Make = Callable[[RoleTables], bytes]
_Key = tuple[str, int, RoleKey, str, Make]
"""Environment, version, role by key and name, and what makes the text."""


@dataclass(frozen=True, slots=True)
class Generated:
    compressed: bytes
    etag: str

    @property
    def text(self) -> bytes:
        return zlib.decompress(self.compressed)


_lock = threading.Lock()
_stored: LRUCache[_Key, Generated] = LRUCache(MAX_BYTES, getsizeof=lambda found: len(found.compressed))


def generated(environment: EnvironmentRef, principal: Principal, role: str | None, make: Make) -> Generated:
    """Of the current tables, as `role` or `principal` sees them. Raises ValidationFailed on `role`, and Unavailable."""
    known = schema_cache.current(environment)
    role_key, name = role_named(known.rules, principal, role)
    key = (environment.environment_id, known.version, role_key, name, make)
    try:
        return _find(key) or _generate(environment, key, known)
    except SchemasBusy:
        raise Unavailable("Other schemas are being described or planned. Try again shortly.") from None


@in_slot
def _generate(environment: EnvironmentRef, key: _Key, known: CompiledSchema) -> Generated:
    if found := _find(key):  # made by another request while this one waited
        return found
    environment_id, version, role_key, name, make = key
    text = make(RoleTables(environment_id, version, name, tables_for(known.rules, role_key)))
    made = Generated(zlib.compress(text, 1), f'"{sha256(text).hexdigest()}"')
    if len(made.compressed) <= MAX_BYTES // 4:
        with _lock:
            _stored[key] = made
    return made


def _find(key: _Key) -> Generated | None:
    with _lock:
        found: Generated | None = _stored.get(key)
    return found
