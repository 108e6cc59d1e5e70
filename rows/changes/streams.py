import random
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Final

from platform_site.http import exact_json
from platform_site.http.errors import NotFound
from platform_site.http.event_streams import MessageQueue, message
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.changes.credentials import SharedCredential
from rows.changes.positions import Position, Seal, rights_of
from rows.changes.subscriptions import Subscription, compile_subscriptions
from rows.query.schema_cache import CompiledSchema
from rows.rules.principal import Principal

MAX_WAITING_BYTES: Final = 4 * 2**20
"""Of messages that a client has not read: an import of ten thousand rows may come at once."""


@dataclass(slots=True, eq=False)
class Stream:
    """Only one thread at a time changes a stream: the feed's thread, or the worker that serves its environment."""

    environment: EnvironmentRef
    caller: Caller
    principal: Principal
    subscriptions: list[Subscription]
    compiled: CompiledSchema | None
    """For which the subscriptions are compiled; None if the caller has changed since."""
    credential: SharedCredential
    seal: Seal
    position: Position | None
    """The events sent so far; None before it is ready."""
    network: str | None = None
    """Of an anonymous caller."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    queue: MessageQueue = field(default_factory=lambda: MessageQueue(MAX_WAITING_BYTES))
    must_relist: bool = False
    """It has missed events, so that its client must list the rows again."""
    opened_at: float = field(default_factory=time.monotonic)
    sent_at: float = field(default_factory=time.monotonic)
    failing_since: float = 0.0
    """0 if reading and sending work."""

    tables: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._update_tables()

    def compile(self) -> None:
        """Raises as `compile_subscriptions`."""
        self.compiled = compile_subscriptions(self.environment, self.principal, self.subscriptions)
        self._update_tables()

    def set_caller(self, caller: Caller) -> None:
        """After a change of role, claims or email a reset follows. Raises Forbidden if `caller` may not read rows,
        NotFound if its request would now mean another environment."""
        if caller != self.caller:
            caller.need("rows:read")
            named = caller.environment
            if named is None or named.environment_id != self.environment.environment_id:
                raise NotFound("The request now means another environment.")
        self.caller, principal = caller, Principal.of(caller)
        rights = rights_of(principal)
        if rights != self.seal.rights:
            self.principal, self.compiled = principal, None
            self.seal = replace(self.seal, rights=rights)

    def _update_tables(self) -> None:
        self.tables = frozenset(table for each in self.subscriptions for table in (each.table, *each.related))

    # ── Messages ──

    def send(self, event: str, data: str = "{}", *, has_id: bool = False) -> None:
        """With `has_id` a client that reconnects continues after this message."""
        self.put(message(event, data, self._last_id() if has_id else None))

    def encode_resets(self) -> tuple[bytes, int]:
        """The due resets and their number: at most one a second for each subscription, since each makes the client list
        its rows. Only the last one has an id."""
        now, due = time.monotonic(), []
        for each in self.subscriptions:
            if each.needs_reset and now - each.reset_at >= 1:
                each.needs_reset, each.reset_at = False, now
                due.append(exact_json.dumps({"subscription": each.name}))
        last_id = None if self.is_reset_due else self._last_id()
        ids = [*[None] * (len(due) - 1), last_id]
        return b"".join(message("reset", data, each) for data, each in zip(due, ids, strict=False)), len(due)

    def put(self, encoded: bytes) -> None:
        self.queue.put(encoded)
        self.sent_at = time.monotonic()

    def _last_id(self) -> str | None:
        return self.seal.write(self.position) if self.position else None

    @property
    def is_reset_due(self) -> bool:
        for each in self.subscriptions:  # `any` with a generator takes twice as long, and every pass asks each stream
            if each.needs_reset:
                return True
        return False

    def clear_position(self) -> None:
        """Start again at the next pass, with a `reset` of each subscription."""
        self.position, self.must_relist, self.opened_at = None, True, time.monotonic()

    def reset_all(self, *, is_needed: bool = True) -> None:
        for each in self.subscriptions:
            each.needs_reset = is_needed

    def end(self, reason: str) -> None:
        """Send `bye` and close. The random delay keeps clients from reconnecting all at once."""
        self.queue.put(message("bye", exact_json.dumps({"reason": reason, "retry_ms": random.randint(200, 3_000)})))  # noqa: S311
        self.queue.close()
