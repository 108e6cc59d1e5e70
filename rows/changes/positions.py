"""A position: which transactions a stream has seen, as text that only this service reads or makes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from platform_site.http import cursors, exact_json
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef

_KIND: Final = "changes"
HEADER: Final = "Last-Event-ID"


@dataclass(frozen=True, slots=True)
class Position:
    """`snapshot` is PostgreSQL's `pg_snapshot`. The rest tells whether it still means anything: the timeline of the
    server, and the generations of the watched tables."""

    snapshot: str
    timeline: int
    generations: str


@dataclass(frozen=True, slots=True)
class Seal:
    """Whose positions these are. A position of another environment, caller or list of subscriptions does not open."""

    facts: tuple[cursors.Fact, ...]

    def write(self, position: Position) -> str:
        return _sealed(self.facts, position)

    def read(self, text: str) -> Position:
        """Raises ValidationFailed on the field `Last-Event-ID`."""
        values: Any = cursors.decode_if_of(_KIND, self.facts, text)
        if values is None:
            message = "This is not an id of this stream: the caller or the subscriptions differ. Open it without an id."
            raise ValidationFailed.of(HEADER, "invalid_position", message)
        return Position(*values)


@lru_cache(maxsize=1_024)
def _sealed(facts: tuple[cursors.Fact, ...], position: Position) -> str:
    """Streams of one caller that ask the same have the same."""
    return cursors.encode(_KIND, facts, [position.snapshot, position.timeline, position.generations])


def seal_of(place: EnvironmentRef, caller: Caller, subscriptions: Mapping[str, Any]) -> Seal:
    wanted = hashlib.sha256(exact_json.canonical(subscriptions)).hexdigest()
    return Seal((place.environment_id, caller.kind, caller.id, wanted))


@lru_cache(maxsize=1_024)
def digest(generations: tuple[tuple[str, str], ...]) -> str:
    """Of the generations of tables, in the order of the tables."""
    return hashlib.sha256(exact_json.canonical(generations)).hexdigest()[:16]
