"""Checks the names of failed requests: an entry with an error only has the names of tables and functions that exist,
because a path may contain anything, such as a key."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from platform_site.request_log.models import ERROR
from platform_site.request_log.recording import Entry

Pair = tuple[str, str]
Lookup = Callable[[str, Collection[Pair]], set[Pair]]
"""The existing ones among pairs in a database. Raises DatabaseError."""

_lookups: Final[dict[str, Lookup]] = {}


def register(kind: str, lookup: Lookup) -> None:
    _lookups[kind] = lookup


def without_unknown(using: str, batch: Sequence[Entry]) -> Sequence[Entry]:
    """At most one query per kind."""
    failed = [entry for entry in batch if entry.status >= ERROR]
    known: dict[str, set[Pair]] = {}
    for kind in ("table", "function"):
        named = {pair for entry in failed if (pair := _pair(entry, kind)) is not None}
        known[kind] = _lookups[kind](using, named) if named and kind in _lookups else set()

    def checked(entry: Entry) -> Entry:
        unknown: Any = {kind: None for kind in known if _pair(entry, kind) not in known[kind]}
        return entry._replace(**unknown)

    return [checked(entry) if entry.status >= ERROR else entry for entry in batch]


def _pair(entry: Entry, kind: str) -> Pair | None:
    name = getattr(entry, kind)
    return None if name is None or entry.environment is None else (entry.environment.environment_id, name)
