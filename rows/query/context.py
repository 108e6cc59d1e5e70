"""One operation of one principal, against one schema version. Each compiled statement tests its version; if that
differs, PostgreSQL reports a missing column, or an error depends on the cached schema, the schema is reloaded and the
operation runs once more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple

from django.conf import settings
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from platform_site.concurrency import loop_requests, server_hints
from platform_site.concurrency.fair_semaphore import FairSemaphore, Full
from platform_site.concurrency.memo import Memo
from platform_site.http.errors import ApiError, NotFound, Unavailable, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import loop_connections, replicas, sqlstates
from platform_site.postgres.libpq import Row
from platform_site.postgres.prepared import (
    read_pipelined,
    retry_if_lost,
    run_in_transaction,
    run_limited,
    run_on,
    run_on_replica,
)
from platform_site.postgres.replicas import Freshness
from rows.query import schema_cache
from rows.query.role_view import CLOCK, RoleView
from rows.query.schema_cache import CompiledSchema
from rows.query.sql.conditions import TooLarge, compile_budget
from rows.query.sql.statement import ENVIRONMENT, VERSION, Statement
from rows.rules.access import Access
from rows.rules.name_resolver import NameResolver
from rows.rules.principal import Principal, RoleKey
from rows.rules.rule_costs import MAX_CONDITIONS
from rows.schema import identifiers
from rows.schema.model import Table

T = TypeVar("T")
Shape = TypeVarTuple("Shape")

MAX_RUNS: Final = 3
_STALE: Final = frozenset({"42703", "42P01", "3F000", "42883", "42804", "42846", "0A000", "26000"})
_UNKNOWN_STATEMENT: Final = "26000"

_MAX_SMALL: Final = 150
"""Conditions of a statement that is compiled on the event loop."""
_TOO_LARGE: Final = (
    f"The request and the rules of the tables that it touches have more than {MAX_CONDITIONS:,} conditions together. "
    "Filter, sort and expand by fewer related rows, or shorten the rules."
)
_large_statements: Final = FairSemaphore(1, per_owner=1, slow_after=0.5, max_waiting=4)

_statements: Final[Memo[tuple[int, Any, Any], Statement]] = Memo(2_048)


class StaleVersion(Exception):
    pass


@dataclass(slots=True, eq=False)
class QueryContext:
    environment: EnvironmentRef
    principal: Principal
    compiled: CompiledSchema
    connection: BaseDatabaseWrapper
    freshness: Freshness | None = None
    """What a replica needs to answer; None for the primary only."""
    users_version: bytes | None = None
    met_deadlock: bool = False
    """An earlier run of the operation ended in a deadlock or serialization failure."""
    is_verified: bool = field(default=False, init=False)
    """The version was confirmed as current, so errors are final."""
    role_key: RoleKey = field(init=False)
    resolver: NameResolver = field(init=False)

    def __post_init__(self) -> None:
        self.role_key = self.compiled.rules.role_key(self.principal)
        self.resolver = self.compiled.rules.resolver(self.role_key)

    def table(self, name: str) -> tuple[Table, Access]:
        table = self.compiled.schema.tables.get(name)
        if table is None:
            raise self._no_table(name)
        access = self.compiled.rules.access(name, self.role_key)
        if access.read is None and access.insert is None:
            raise self._no_table(name)
        return table, access

    def _no_table(self, name: str) -> NotFound:
        """The same for a missing and a forbidden table. Names the environment, which is often the wrong one."""
        rules = self.compiled.rules
        accesses = {known: rules.access(known, self.role_key) for known in self.compiled.schema.tables}
        open_ones = [known for known, access in accesses.items() if access.read or access.insert]
        suggestion = identifiers.did_you_mean(name, open_ones) or "."
        shown = f'Table "{name}"' if identifiers.PATTERN.fullmatch(name) else "This table"
        return NotFound(
            f"{shown} does not exist in {self.compiled.environment_id}, or you have no access to it{suggestion}"
        )

    def readable(self, name: str) -> Table:
        table, access = self.table(name)
        if access.read is None:  # a caller that may insert may know that the table exists
            raise NotFound(f"The rows of {name} can be written but not read in {self.compiled.environment_id}.")
        return table

    def statement(self, compile: Callable[[RoleView, *Shape], Statement], *shape: *Shape) -> Statement:
        """`compile(role_view, *shape)`, cached. `shape` is all of a request but its values."""
        key = (self.resolver.token, compile, shape)
        found = _statements.get(key)
        if found is None:
            try:
                with compile_budget(_MAX_SMALL):
                    found = compile(self.compiled.role_view(self.role_key), *shape)
            except TooLarge:
                found = loop_requests.in_thread(partial(self._compile_large, compile, *shape))
            _statements.put(key, found)
        return found

    def _compile_large(self, compile: Callable[[RoleView, *Shape], Statement], *shape: *Shape) -> Statement:
        """Takes up to seconds of CPU: one at a time, not on the event loop. Raises ValidationFailed, Unavailable."""
        try:
            with (
                _large_statements.slot(self.environment.project_id, wait=settings.WEB_QUEUE_TIMEOUT),
                compile_budget(),
            ):
                return compile(self.compiled.role_view(self.role_key), *shape)
        except TooLarge:
            raise ValidationFailed(_TOO_LARGE) from None
        except Full:
            raise Unavailable("Other large statements are being compiled. Try again shortly.") from None

    def read(
        self,
        statement: Statement,
        named: Mapping[Any, bytes | None],
        filter_values: Sequence[bytes] = (),
        limit_ms: int | None = None,
        *,
        is_short: bool = False,
    ) -> list[Row]:
        """Runs again if the connection was lost. `limit_ms` is the timeout; with `is_short` the statement may share a
        pipeline. If a replica returns no rows, the primary is asked: the replica may be at another schema version."""
        values = self._bound(statement, named, filter_values)
        if self.freshness is not None and CLOCK not in statement.sql:
            found = run_on_replica(self.compiled.alias, self.freshness, statement.sql, values, limit_ms)
            if found:
                return found
        if limit_ms is not None:
            return run_limited(self.connection, statement.sql, values, limit_ms)
        if is_short and loop_requests.current() is not None:
            return read_pipelined(self.connection, statement.sql, values)
        return retry_if_lost(self.connection, statement.sql, values)

    def write(
        self, statement: Statement, named: Mapping[Any, bytes | None], filter_values: Sequence[bytes] = ()
    ) -> list[Row]:
        if settings.REPLICAS:
            loop_requests.require_thread()  # raising the replicas' mark blocks
        loop_requests.will_write()  # what is written is committed, here or later, and a commit waits for the disk
        found = run_on(self.connection, statement.sql, self._bound(statement, named, filter_values))
        if settings.REPLICAS:
            replicas.raise_mark_on_commit(self.compiled.alias, self.compiled.environment_id)
        return found

    def write_all(self, writes: Sequence[tuple[Statement, Mapping[Any, bytes | None]]]) -> list[list[Row]]:
        """In one round trip of a transaction. Raises the first error."""
        server_hints.will_block()
        found = run_in_transaction(
            self.connection, [(statement.sql, self._bound(statement, named, ())) for statement, named in writes]
        )
        if settings.REPLICAS:
            replicas.raise_mark_on_commit(self.compiled.alias, self.compiled.environment_id)
        return found

    def _bound(
        self, statement: Statement, named: Mapping[Any, bytes | None], filter_values: Sequence[bytes]
    ) -> list[bytes | None]:
        compiled = self.compiled
        known = {ENVIRONMENT: compiled.environment_id.encode(), VERSION: b"%d" % compiled.version, **named}
        return statement.bind(known, filter_values, self.principal)

    def verify(self) -> None:
        """Called for an empty result. Raises StaleVersion. At most one query."""
        if not self.is_verified:
            if not schema_cache.is_current(self.compiled):
                raise StaleVersion
            self.is_verified = True


def run(
    environment: EnvironmentRef,
    principal: Principal,
    operation: Callable[[QueryContext], T],
    freshness: Freshness | None = None,
    users_version: bytes | None = None,
) -> T:
    """Runs `operation` again with a newer schema if the cached one was stale, and after a deadlock or serialization
    failure outside a transaction. With `freshness` a replica may answer the first run."""
    compiled, met_deadlock = schema_cache.compiled_schema(environment), False
    for runs_left in reversed(range(MAX_RUNS)):
        connection = loop_connections.connection(compiled.alias, environment.project_id)
        context = QueryContext(environment, principal, compiled, connection, freshness, users_version, met_deadlock)
        try:
            if not connection.in_atomic_block:
                return operation(context)
            # A savepoint, so that an error leaves the caller's transaction intact
            with transaction.atomic(using=compiled.alias):
                return operation(context)
        except StaleVersion:
            pass
        except ApiError:
            if not runs_left or context.is_verified or schema_cache.is_current(compiled):
                raise
        except DatabaseError as error:
            if not _is_worth_another_run(compiled, error):
                raise
            if sqlstates.is_repeatable(error):
                if not runs_left:
                    raise sqlstates.RetriesExhausted from error
                met_deadlock = True
                loop_requests.pause_before_repetition()
        compiled, freshness = loop_connections.in_thread(partial(schema_cache.reload, environment)), None
    raise Unavailable("The schema is changing. Try again shortly.")


def _is_worth_another_run(compiled: CompiledSchema, error: DatabaseError) -> bool:
    connection = connections[compiled.alias]
    state = sqlstates.sqlstate(error)
    if connection.needs_rollback or not connection.is_usable():
        return False
    if sqlstates.is_repeatable(error):
        return not connection.in_atomic_block
    return state == _UNKNOWN_STATEMENT or (state in _STALE and not schema_cache.is_current(compiled))
