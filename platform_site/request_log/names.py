"""Checks the names of failed requests: an entry with an error only has the names of tables and functions that exist,
because a path may contain anything, such as a key."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

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
    doubtful = [each for each in batch if each.status >= ERROR and (each.table or each.function)]
    if not doubtful:
        return batch
    tables = _existing("table", using, {_pair(each, each.table) for each in doubtful})
    functions = _existing("function", using, {_pair(each, each.function) for each in doubtful})
    return [
        each._replace(
            table=each.table if _pair(each, each.table) in tables else None,
            function=each.function if _pair(each, each.function) in functions else None,
        )
        if each.status >= ERROR
        else each
        for each in batch
    ]


def _existing(kind: str, using: str, pairs: set[Pair | None]) -> set[Pair | None]:
    asked = {pair for pair in pairs if pair is not None}
    return {*_lookups[kind](using, asked)} if asked and kind in _lookups else set()


def _pair(entry: Entry, name: str | None) -> Pair | None:
    if name is None or entry.environment is None:
        return None
    return entry.environment.environment_id, name
