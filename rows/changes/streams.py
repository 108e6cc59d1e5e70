import random
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from platform_site.http import exact_json
from platform_site.http.errors import FieldError, NotFound, ValidationFailed
from platform_site.http.event_streams import MessageQueue, message
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.changes.credentials import SharedCredential
from rows.changes.positions import Position, Seal, rights_of
from rows.events.payloads import columns_by_table
from rows.query import params
from rows.query import where as query_where
from rows.query.context import QueryContext, run
from rows.query.schema_cache import CompiledSchema
from rows.rules.conditions import NO_FILTER, And, Compare, Condition, Filter, Path, Variable, hops_of
from rows.rules.principal import Principal, resolve

MAX_SUBSCRIPTIONS: Final = 20
MAX_WAITING_BYTES: Final = 4 * 2**20
"""Of messages that a client has not read: an import of ten thousand rows may come at once."""
FIELDS: Final = frozenset({"table", "where", "columns", "with"})


@dataclass(slots=True)
class Subscription:
    """As requested, and as compiled for the current rules and caller."""

    name: str
    table: str
    where: Any
    columns: Any
    withs: Any = None
    chosen: tuple[str, ...] | None = None
    filter: Filter = NO_FILTER
    """`where`, if a record alone decides it; NO_FILTER if it depends on other rows."""
    is_decided_by_record: bool = True
    """Whether neither the rule nor `where` nor `with` depends on other rows."""
    related: dict[str, set[str]] = field(default_factory=dict)
    """The columns of other rows that the rule and `where` read or `with` embeds, by table."""
    indirect_columns: set[str] = field(default_factory=set)
    """The columns of its own rows through which `with` reads, and of `where` if that depends on other rows. A row whose
    shown cells are equal may look different, or match now, after a change of these."""
    embedded: frozenset[str] = frozenset()
    """The fields of a row that `with` adds."""
    required_cell: tuple[str, str] | None = None
    """A column, and the text that it has in every row that the caller may read."""
    needs_reset: bool = False
    reset_at: float = 0.0
    key: str = field(init=False)
    """Equal for equal subscriptions."""

    def __post_init__(self) -> None:
        self.key = exact_json.dumps([self.table, self.where, self.columns, self.withs])

    def compile(self, context: QueryContext) -> None:
        """Raises NotFound (no such table for this caller) and ValidationFailed."""
        context.readable(self.table)
        where = query_where.parse_where(self.where, self.table, context.resolver)
        withs = params.parse_with(self.withs, self.table, context.resolver)
        self.chosen, withs = params.parse_columns(self.columns, self.table, context.resolver, withs)
        self.embedded = frozenset(name for one in withs for name in (one.name, f"{one.name}_next"))
        self.related = defaultdict(set)
        self._relate(self.table, [where.shape, *_rule(context, self.table)])
        for hop in hops_of(where.shape):  # a filter sees what the caller may read there
            self._relate(hop.table, _rule(context, hop.table))
        self.indirect_columns = set()
        self._relate_embedded(context, withs, self.indirect_columns)
        self.is_decided_by_record = not self.related and not withs
        self.required_cell = _required_cell(context, self.table)
        has_hops = any(hops_of(where.shape))
        self.filter = NO_FILTER if has_hops else where
        if has_hops:
            self.indirect_columns |= columns_by_table([where.shape], self.table)[self.table]

    def _relate(self, table: str, conditions: Sequence[Condition]) -> None:
        """Add the columns of related tables that conditions on `table` read."""
        used = columns_by_table(conditions, table)
        reached = {hop.table for condition in conditions for hop in hops_of(condition)}
        for name in reached | ({table} & self.related.keys()):
            self.related[name] |= used[name]

    def _relate_embedded(self, context: QueryContext, withs: params.Withs, columns: set[str]) -> None:
        """Add the columns of other rows that `withs` embeds, and those that decide whether they are visible; to
        `columns`, those through which they are found."""
        for one in withs:
            if isinstance(one, params.WithUser):
                columns.add(one.column)
            else:
                hop = one.hop
                columns.add("id" if hop.many else hop.column)
                rule = context.compiled.rules.access(hop.table, context.role_key).read
                shown = one.columns
                if shown is None:
                    shown = rule.columns if rule else ()
                self.related[hop.table] |= {*shown, hop.column if hop.many else "id"}
                self._relate(hop.table, _rule(context, hop.table))
                self._relate_embedded(context, one.inside, self.related[hop.table])


def _rule(context: QueryContext, table: str) -> list[Condition]:
    rule = context.compiled.rules.access(table, context.role_key).read
    return [] if rule is None else [grant.where for grant in rule.grants]


def _required_cell(context: QueryContext, table: str) -> tuple[str, str] | None:
    rule = context.compiled.rules.access(table, context.role_key).read
    if rule is None:
        return None
    for part in rule.where.conditions if isinstance(rule.where, And) else (rule.where,):
        match part:
            case Compare(Path((), column), "eq", Variable(name, form="plain") as variable) if name.startswith("user."):
                value = resolve(variable, context.principal)
                if isinstance(value, str):
                    return column, value
    return None


def read_subscriptions(body: Mapping[str, Any]) -> list[Subscription]:
    """Raises ValidationFailed."""
    requested = body.get("subscriptions")
    if not isinstance(requested, dict) or not 1 <= len(requested) <= MAX_SUBSCRIPTIONS:
        message = f"Must be an object of 1 to {MAX_SUBSCRIPTIONS} subscriptions by name."
        raise ValidationFailed.of("subscriptions", "invalid", message)
    errors, found = [], []
    for name, each in requested.items():
        path = f"subscriptions.{name[:64]}"
        if not name.isascii() or not name.isidentifier() or len(name) > 64:
            errors.append(FieldError(path, "invalid", "A name has at most 64 letters, digits and underscores."))
        elif not isinstance(each, dict) or not isinstance(each.get("table"), str):
            errors.append(FieldError(path, "invalid", 'Must be an object with "table".'))
        elif unknown := each.keys() - FIELDS:
            message = f"There is no such field. The fields are {', '.join(sorted(FIELDS))}."
            errors += [FieldError(f"{path}.{field[:64]}", "unknown_field", message) for field in sorted(unknown)]
        else:
            found.append(Subscription(name, each["table"], each.get("where"), each.get("columns"), each.get("with")))
    if errors:
        raise ValidationFailed(fields=errors)
    return found


def compile_subscriptions(
    environment: EnvironmentRef, principal: Principal, subscriptions: Sequence[Subscription]
) -> CompiledSchema:
    """Returns the schema for which they are compiled now. Raises NotFound, ValidationFailed."""

    def compile_all(context: QueryContext) -> CompiledSchema:
        for each in subscriptions:
            try:
                each.compile(context)
            except ValidationFailed as error:
                path = f"subscriptions.{each.name}"
                fields = [replace(field, field=f"{path}.{field.field}") for field in error.fields]
                raise ValidationFailed(fields=fields) from None
        context.verify()
        return context.compiled

    return run(environment, principal, compile_all)


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
        self.queue.put(message(event, data, self._last_id() if has_id else None))
        self.sent_at = time.monotonic()

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
