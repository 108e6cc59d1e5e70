"""Event payloads: the subscription's columns that role `server` may read now, if its filter accepts the event."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from django.db import OperationalError, models, transaction
from django.db.models.functions import Cast, Coalesce

from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sql_functions, transaction_settings
from platform_site.postgres.sql_functions import OctetLength
from platform_site.postgres.sqlstates import CANCELLED, sqlstate
from rows.outbox.event_types import select_columns
from rows.outbox.models import OutboxEvent
from rows.query import schema_cache
from rows.rules import grammar
from rows.rules.access import ReadRule
from rows.rules.conditions import Condition, Variable, reads
from rows.rules.evaluator import Effort, Facts, TooCostly, holds
from rows.rules.name_resolver import InvalidCondition
from rows.rules.principal import SERVER, Principal, resolve
from rows.schema.column_values import LONG_TYPES
from rows.schema.model import Hop

RELATED_ROWS: Final = 1000
"""A rule that needs more is not met."""
MAX_EFFORT: Final = 3_000_000
"""Steps of all rules and filters of one event: about a second."""
_RELATION_STEPS: Final = 3_000
"""Of a query: about a millisecond."""
_CACHED_RELATION_STEPS: Final = 2
_RELATED_ROW_STEPS: Final = 30
_BYTES_PER_STEP: Final = 4
"""Of related rows' long cells: 12 MB per event."""
_SIZE: Final = "_size"
_SERVER: Final = Principal("key")
_TIMEOUT_MS: Final = 1000
"""For measuring cells: JSON and arrays have to be unpacked."""


class Subscriber(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def filter(self) -> Mapping[str, Any] | None: ...

    @property
    def columns(self) -> Mapping[str, Any] | None: ...


class Hidden(Exception):
    """Role `server` may read neither version of the row."""


class InvalidFilter(Exception):
    """The subscriber's filter is not valid for the event's table; `path` leads to the node."""

    def __init__(self, table: str, path: str) -> None:
        self.table, self.path = table, path
        super().__init__(f"{table}: {path}")


class _TooManyRelated(Exception):
    pass


_Rows = Sequence[Mapping[str, Any]]


class Payloads:
    """The payloads of one relay batch in the region `using`. `viewer` reads them: role `server` for webhooks. `effort`:
    for all calls of `visible_cells`."""

    def __init__(self, using: str, viewer: Principal = _SERVER, effort: Effort | None = None) -> None:
        self._using = using
        self._viewer = viewer
        self._environments: dict[str, schema_cache.CompiledSchema] = {}
        self._filters: dict[tuple[str, str], Condition | InvalidCondition] = {}
        self._used_columns: dict[tuple[str, str], Mapping[str, set[str]]] = {}
        self._event: int | None = None
        self._effort = effort or Effort(MAX_EFFORT)
        self._known: dict[tuple[Hop, Any], _Rows | None] = {}
        """Related rows of the event by hop and key; None: too many."""
        self._now: datetime | None = None

    def payload_of(
        self, event: OutboxEvent, data: Mapping[str, Any], subscriber: Subscriber | None = None
    ) -> dict[str, Any] | None:
        """None if the subscriber's filter does not match. Without `subscriber`, all that may be read. Raises Hidden,
        InvalidFilter, TooCostly."""
        table = data.get("table")
        if event.subject is None or not isinstance(table, str):
            return dict(data)
        compiled = self._compiled(event.environment_id)
        if table not in compiled.schema.tables:
            raise Hidden
        rule = compiled.rules.access(table, SERVER).read
        if rule is None:
            raise Hidden
        old, new = data.get("old_record"), data.get("record")
        if self._event != event.pk:
            self._event, self._effort, self._known = event.pk, Effort(MAX_EFFORT), {}
        readable_old = self._readable(compiled, table, rule, old)
        readable_new = self._readable(compiled, table, rule, new)
        # After a delete the filter speaks of the row as it was.
        subject = readable_new if readable_new is not None else readable_old
        if subject is None:
            raise Hidden
        facts = Facts(old=readable_old, effort=self._effort)
        if subscriber is not None and not self._is_wanted(compiled, subscriber, table, subject, facts):
            return None
        chosen = None if subscriber is None else subscriber.columns
        columns = None if chosen is None else list(chosen.get(table, []))
        shown_new, shown_old = select_columns(readable_new, columns), select_columns(readable_old, columns)
        shown = {*(shown_new or {}), *(shown_old or {})}
        changed = [name for name in data.get("changed") or [] if name in shown]
        return {"table": table, "id": data["id"], "record": shown_new, "old_record": shown_old, "changed": changed}

    def visible_cells(
        self, compiled: schema_cache.CompiledSchema, table: str, record: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Unreadable cells are null; None if the row is hidden. Raises TooCostly."""
        rule = compiled.rules.access(table, compiled.rules.role_key(self._viewer)).read
        if rule is None:
            return None
        found = self._readable(compiled, table, rule, record, is_exact=True)
        return None if found is None else {name: found.get(name) for name in record if name in rule.columns}

    def _compiled(self, environment_id: str) -> schema_cache.CompiledSchema:
        found = self._environments.get(environment_id)
        if found is None:
            environment = EnvironmentRef(
                environment_id, "", "", region=self._using, cluster=self._using, plan="free", pool_id=environment_id
            )
            found = schema_cache.current(environment)
            self._environments[environment_id] = found
        return found

    def _readable(
        self,
        compiled: schema_cache.CompiledSchema,
        table: str,
        rule: ReadRule,
        record: Mapping[str, Any] | None,
        *,
        is_exact: bool = False,
    ) -> dict[str, Any] | None:
        if record is None:
            return None
        key = compiled.environment_id, table
        if key not in self._used_columns:
            self._used_columns[key] = columns_by_table([grant.where for grant in rule.grants], table)
        used = self._used_columns[key]
        facts = Facts(
            variable=self._resolved,
            related=lambda hop, row: self._related(compiled, hop, row, used),
            effort=self._effort,
        )
        granted: set[str] = set()
        matched = False
        for grant in rule.grants:
            try:
                if holds(grant.where, record, facts):
                    matched = True
                    granted |= grant.columns
            except _TooManyRelated:
                # Among some of the related rows a rule that wants none of a kind could hold by chance.
                if is_exact:
                    raise TooCostly from None
        return {name: value for name, value in record.items() if name in granted} if matched else None

    def _resolved(self, variable: Variable) -> Any:
        """`$now` is fixed per batch. Webhooks have no other variables."""
        if variable.name == "now" and self._now is None:
            self._now = sql_functions.now(self._using)
        return resolve(variable, self._viewer, self._now)

    def _related(
        self, compiled: schema_cache.CompiledSchema, hop: Hop, row: Mapping[str, Any], used: Mapping[str, set[str]]
    ) -> _Rows:
        """Queried once per event. Raises _TooManyRelated, TooCostly."""
        key = row.get("id") if hop.many else row.get(hop.column)
        if key is None:
            return []
        effort, known = self._effort, self._known
        effort.spend(_CACHED_RELATION_STEPS)
        if (hop, key) not in known:
            try:
                # In a savepoint: if this one read fails, it is this event that gets no payload, not all of the batch.
                with transaction.atomic(using=self._using):
                    known[hop, key] = _read(compiled, hop, key, used[hop.table], effort)
            except OperationalError as error:
                if sqlstate(error) != CANCELLED:
                    raise
                effort.spend(MAX_EFFORT + 1)
        found = known[hop, key]
        if found is None:
            raise _TooManyRelated
        return found

    def _is_wanted(
        self,
        compiled: schema_cache.CompiledSchema,
        subscriber: Subscriber,
        table: str,
        record: Mapping[str, Any],
        facts: Facts,
    ) -> bool:
        if subscriber.filter is None:
            return True
        key = (subscriber.id, table)
        if key not in self._filters:
            try:
                self._filters[key] = grammar.read_record(subscriber.filter, table, compiled.rules.resolver(SERVER))
            except InvalidCondition as error:  # a column it names is gone, or not of this table
                self._filters[key] = error.with_traceback(None)  # which would keep the schema in memory
        condition = self._filters[key]
        if isinstance(condition, InvalidCondition):
            raise InvalidFilter(table, condition.path)
        return holds(condition, record, facts)


def columns_by_table(conditions: Iterable[Condition], table: str) -> Mapping[str, set[str]]:
    """The columns that conditions on `table` read, with those that link the tables."""
    used: dict[str, set[str]] = defaultdict(set)
    for condition in conditions:
        for at, step in reads(condition, table):
            if isinstance(step, Hop):
                used[at].add("id" if step.many else step.column)
                used[step.table].add("id")
            else:
                used[at].add(step)
    return used


def _read(compiled: schema_cache.CompiledSchema, hop: Hop, key: Any, used: set[str], effort: Effort) -> _Rows | None:
    """Charged before reading. None: too many. Raises TooCostly."""
    effort.spend(_RELATION_STEPS)
    rows = compiled.models[hop.table].unruled.using(compiled.alias)
    rows = rows.filter((hop.column if hop.many else "id", key))
    columns = compiled.schema.tables[hop.table].columns
    long = [name for name in used if name in columns and columns[name].type in LONG_TYPES and name != "id"]
    if long:
        cells = (Coalesce(OctetLength(Cast(name, models.TextField())), 0) for name in long)
        sized = rows.annotate(**{_SIZE: sum(cells, start=models.Value(0))})
        with transaction_settings.changed(compiled.alias, statement_timeout=f"{_TIMEOUT_MS}"):
            sizes = dict(sized.values_list("id", _SIZE)[: RELATED_ROWS + 1])
        if len(sizes) > RELATED_ROWS:
            return None
        effort.spend(_RELATION_STEPS + sum(sizes.values()) // _BYTES_PER_STEP)
        rows = rows.filter(id__in=list(sizes))
    found = list(rows.values(*used)[: RELATED_ROWS + 1])
    effort.spend(_RELATED_ROW_STEPS * len(found))
    if len(found) > RELATED_ROWS:
        return None
    return [{name: str(cell) if isinstance(cell, UUID) else cell for name, cell in row.items()} for row in found]
