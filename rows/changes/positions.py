"""A position: the events that a stream has received, as sealed text that only this service reads and writes."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final

from platform_site.http import cursors, exact_json
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.rules.principal import Principal

_KIND: Final = "changes"
HEADER: Final = "Last-Event-ID"


@dataclass(frozen=True, slots=True)
class Position:
    """The events of transactions that are visible in `snapshot`, a `pg_snapshot`, have been seen. Within a batch also
    those of the transactions visible in `until`, for rows whose last event is at most `sequence`. Transactions commit
    in another order than their events, so both are needed. The server's `timeline`, and the `generations` of the
    watched tables and the schema, show whether the position is still valid."""

    snapshot: str
    timeline: int
    generations: str
    until: str | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Seal:
    """Binds positions to environment, caller and subscriptions, with which alone they can be read, and to the caller's
    rights, whose change makes a reset due. `rights` is a hash of what rules know of the caller, written at the end of
    `generations`, so that processes of an earlier release, too, find that the position is not theirs."""

    facts: tuple[cursors.Fact, ...]
    rights: str

    def write(self, position: Position) -> str | None:
        """None if it would be too long, because very many transactions are open."""
        return _sealed(self, position)

    def read(self, text: str) -> Position | None:
        """None if the caller's rights were others. Raises ValidationFailed on the field `Last-Event-ID`."""
        values: Any = cursors.decode_if_of(_KIND, self.facts, text)
        if values is None:
            message = (
                "This id belongs to another stream: its caller or its subscriptions differ. Open the stream without "
                "Last-Event-ID."
            )
            raise ValidationFailed.of(HEADER, "invalid_position", message)
        position = Position(*values)
        if not position.generations.endswith(self.rights):
            return None
        return replace(position, generations=position.generations.removesuffix(self.rights))


@lru_cache(maxsize=1_024)
def _sealed(seal: Seal, position: Position) -> str | None:
    values: list[cursors.Value] = [position.snapshot, position.timeline, position.generations + seal.rights]
    if position.until is not None:
        values += [position.until, position.sequence]
    try:
        return cursors.encode(_KIND, seal.facts, values)
    except cursors.CursorTooLong:
        return None


def seal_of(
    environment: EnvironmentRef, caller: Caller, principal: Principal, subscriptions: Mapping[str, Any]
) -> Seal:
    wanted = hashlib.sha256(exact_json.canonical(subscriptions)).hexdigest()
    return Seal((environment.environment_id, caller.kind, caller.id, wanted), rights_of(principal))


def rights_of(principal: Principal) -> str:
    return _short_hash(asdict(principal))


@lru_cache(maxsize=1_024)
def digest(version: int, generations: tuple[tuple[str, str], ...]) -> str:
    return _short_hash([version, generations])


def _short_hash(value: Any) -> str:
    return hashlib.sha256(exact_json.canonical(value)).hexdigest()[:16]
