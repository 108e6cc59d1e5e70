"""The life of a run in PostgreSQL. `start_run` creates it, executing or queued. A queued run is claimed (`queue`), its
executor holds the lease (`leases`), and it ends (`completion`). Each transition is one statement. `attempts` is the
fencing token and `claimed_until` the lease, in database time. `slot` is the concurrency slot of an executing run,
unique in its environment (`functions.quotas.slots`)."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import orjson
from django.conf import settings
from django.db import Error, IntegrityError, connections

from functions.directory import NAME
from functions.errors import NoSuchFunction, TooManyRuns
from functions.quotas import anonymous_queue, queue_quotas, slots
from functions.quotas.client_networks import AnonymousCall
from functions.runs.statement_batching import StatementBatcher
from functions.runs.storage import stores_input
from platform_site.http.requests import current_request_id
from platform_site.identity import call_depth, ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import prepared, sql_files, sqlstates
from platform_site.postgres.sql_files import PreparedStatement, Value

LEASE_MARGIN: Final = timedelta(seconds=10)
"""Beyond the timeout of a run, unless `FUNCTION_LEASE` is shorter."""


def lease_parameters() -> dict[str, Value]:
    return {"margin": f"{LEASE_MARGIN.total_seconds()} s", "lease": f"{settings.FUNCTION_LEASE.total_seconds()} s"}


@dataclass(frozen=True, slots=True)
class CreatedRun:
    run_id: str
    attempt: int
    environment_id: str
    function_id: str
    version: int
    source_hash: str
    timeout_ms: int
    memory_mb: int
    allowed_hosts: tuple[str, ...]
    sealed_secrets: Mapping[str, bytes]
    input_text: str
    depth: int
    is_async: bool
    caller_kind: str
    caller_id: str
    cluster: str
    trigger: str = "call"
    endpoint_id: str | None = None

    @property
    def program_key(self) -> str:
        return program_key(self.function_id, self.version, self.source_hash, self.memory_mb)


def program_key(function_id: str, version: int, source_hash: str, memory_mb: int) -> str:
    return f"{function_id}:{version}:{source_hash}:{memory_mb}"


_SQL: Final = sql_files.load(__file__, network_check="")
SECRETS: Final = _SQL["secrets"]
"""Of the function `f`, sealed."""
_SQL_OF_ANONYMOUS: Final = sql_files.load(__file__, network_check=_SQL["has_network_share"])
_START, _START_ANONYMOUS = PreparedStatement(_SQL["start"]), PreparedStatement(_SQL_OF_ANONYMOUS["start"])
_FIND, _TIMEOUT, _SOURCE = (PreparedStatement(_SQL[name]) for name in ("find", "timeout", "source"))
# A unique index on the slot enforces the limit: the second of two calls that try the same slot waits for the first's
# commit and tries again. Each starts its search at a random slot, so that this is rare.
SLOT_ATTEMPTS: Final = 50

_start_batcher: Final = StatementBatcher(_START, is_durable=False)
_start_anonymous_batcher: Final = StatementBatcher(_START_ANONYMOUS, is_durable=False)
_queue_batcher: Final = StatementBatcher(_START, is_durable=True)


@dataclass(frozen=True, slots=True)
class NewRun:
    environment: EnvironmentRef
    caller: Caller
    function_name: str
    input_text: str
    """JSON."""
    depth: int = 0
    is_async: bool = False
    anonymous: AnonymousCall | None = None
    endpoint_id: str | None = None
    """The inbound endpoint of the call."""

    @property
    def trigger(self) -> str:
        return "call" if self.endpoint_id is None else "inbound"

    @property
    def plan_slots(self) -> int:
        return plan_limits(self.environment.plan).function_concurrency

    @property
    def kind_slots(self) -> int:
        """Those of the plan's slots that callers of this kind may take."""
        return slots.anonymous_slots(self.plan_slots) if self.caller.kind == "anonymous" else self.plan_slots

    @property
    def may_take(self) -> int:
        """Those that this call may take."""
        is_heavy = not self.is_async and self.anonymous is not None and self.anonymous.is_heavy
        return slots.slots_for_all_networks(self.kind_slots) if is_heavy else self.kind_slots


def start_run(new: NewRun) -> CreatedRun:
    """Create the run, executing (with a lease of this process) or queued. An executing run is committed when this
    returns, and on disk before it can have any effect: its row writes and its end come later in the same log, and
    `wait_until_durable` precedes everything that leaves the database. So a synchronous call waits for the disk once. If
    PostgreSQL crashes in between, `record_end` writes the whole run. Raises NoSuchFunction (also if this kind of caller
    may not invoke it), Conflict (a loop of calls), TooManyRuns, TooManyQueued."""
    if not NAME.fullmatch(new.function_name):
        raise NoSuchFunction
    call_depth.refuse_loop(new.depth)
    delay = timedelta()
    if new.is_async:
        input_size = len(new.input_text.encode())
        if new.caller.kind == "anonymous":
            delay = anonymous_queue.admit(new.environment, new.anonymous, input_size)
        else:
            queue_quotas.admit(new.environment, new.caller, input_size, endpoint_id=new.endpoint_id)
    run_id = ids.new("run")
    function = _insert(new, _parameters(new, run_id, delay))
    if function is None:
        raise TooManyRuns(new.kind_slots, of_anonymous=new.caller.kind == "anonymous")
    return CreatedRun(
        **function_facts(function),
        run_id=run_id,
        attempt=1,
        environment_id=new.environment.environment_id,
        input_text=new.input_text,
        depth=new.depth,
        is_async=new.is_async,
        caller_kind=new.caller.kind,
        caller_id=new.caller.id,
        cluster=new.environment.cluster,
        trigger=new.trigger,
        endpoint_id=new.endpoint_id,
    )


def _invoker(caller: Caller) -> str:
    return caller.kind if caller.kind in ("user", "anonymous") else "key"


def _parameters(new: NewRun, run_id: str, delay: timedelta) -> dict[str, Value]:
    input_bytes = new.input_text.encode()
    # A queued run needs its input until it ends.
    is_kept = new.is_async or stores_input(new.caller.kind, new.trigger, input_bytes)
    return {
        "environment_id": new.environment.environment_id,
        "function_name": new.function_name,
        "invoker": _invoker(new.caller),
        "phase": "queued" if new.is_async else "executing",
        "run_id": run_id,
        "input": input_bytes if is_kept else "",
        "not_stored": None if is_kept else "{input}",
        "caller_kind": new.caller.kind,
        "caller_id": new.caller.id,
        "request_id": current_request_id(),
        "depth": new.depth,
        **lease_parameters(),
        "network": None if new.anonymous is None else new.anonymous.network,
        "delay": f"{delay.total_seconds()} s" if delay else None,
        "may_take": new.may_take,
        "anonymous_slots": new.kind_slots,
        "trigger": new.trigger,
        "endpoint_id": new.endpoint_id,
    }


def _insert(new: NewRun, parameters: dict[str, Value]) -> Sequence[bytes | None] | None:
    """The columns of the function; None if all of its slots are taken. Raises NoSuchFunction."""
    using, was_lost = new.environment.cluster, False
    plan_slots, may_take = new.plan_slots, new.may_take
    starting = _start_batcher if new.anonymous is None else _start_anonymous_batcher
    batcher = _queue_batcher if new.is_async else starting
    for _ in range(SLOT_ATTEMPTS):
        start = int(random.random() * plan_slots)  # noqa: S311 - not a secret
        parameters["slots"] = slots.in_order(plan_slots, may_take, start)
        try:
            found = prepared.run(using, *_FIND.bind(parameters)) if was_lost else []
            found = found or batcher.run(using, parameters)
        except IntegrityError:  # the slot was taken or the function deleted by a concurrent commit: try again
            if connections[using].in_atomic_block:
                raise
            continue
        except Error as error:
            if was_lost or connections[using].in_atomic_block or not sqlstates.lost_connection(error):
                raise
            was_lost = True  # the run may exist, and no one else would execute it
            continue
        if not found:
            raise NoSuchFunction
        *function, had_slot, was_made, _ = found[0]
        if was_made == b"t":
            return function
        if had_slot != b"t":
            break
    return None


def function_facts(row: Sequence[bytes | None]) -> dict[str, Any]:
    function_id, version, source_hash, timeout_ms, memory_mb, hosts, secrets = row
    return {
        "function_id": text_of(function_id),
        "version": number_of(version),
        "source_hash": text_of(source_hash),
        "timeout_ms": number_of(timeout_ms),
        "memory_mb": number_of(memory_mb),
        "allowed_hosts": tuple(orjson.loads(hosts or b"[]")),
        "sealed_secrets": {key: bytes.fromhex(text) for key, text in orjson.loads(secrets or b"{}").items()},
    }


def timeout_of(new: NewRun) -> float:
    """In seconds. Raises NoSuchFunction as `start_run`."""
    if not NAME.fullmatch(new.function_name):
        raise NoSuchFunction
    parameters: dict[str, Value] = {
        "environment_id": new.environment.environment_id,
        "function_name": new.function_name,
        "invoker": _invoker(new.caller),
    }
    found = prepared.retry_if_lost(connections[new.environment.cluster], *_TIMEOUT.bind(parameters))
    if not found:
        raise NoSuchFunction
    return number_of(found[0][0]) / 1000


def text_of(value: bytes | None) -> str:
    return (value or b"").decode()


def number_of(value: bytes | None) -> int:
    return int(value or 0)


def source_of(started: CreatedRun) -> bytes:
    """Raises NoSuchFunction for a deleted function."""
    parameters: dict[str, Value] = {"function_id": started.function_id, "version": started.version}
    found = prepared.retry_if_lost(connections[started.cluster], *_SOURCE.bind(parameters))
    if not found:
        raise NoSuchFunction
    [(source,)] = found
    return source or b""
