"""What a function may do outside its sandbox. The code has no token: it sends requests over its channel, and each is
answered here as the run's caller, so it can never read or write more than that caller."""

import base64
import binascii
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import orjson
import psycopg
from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from functions.execution.run_as import restore_caller
from functions.runs import statement_batching
from functions.runtime.calls import HostError
from platform_site import outbound
from platform_site.concurrency import loop_requests
from platform_site.http import bodies
from platform_site.http.errors import ApiError, Forbidden
from platform_site.http.pagination import DEFAULT_LIMIT, MAX_LIMIT
from platform_site.identity import call_depth
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import loop_connections, sqlstates
from rows import services
from rows.api import etags, serializers
from rows.query import service as query_service
from rows.query.aggregates.request import AGGREGATE_FIELDS
from rows.query.service import COUNTS, Count, ListQuery
from rows.rules.principal import Principal
from rows.write import batch, bulk
from rows.write.bulk import MAX_ROWS, BulkQuery

logger = logging.getLogger("platform.functions")

_Answer = bytes | Callable[[], bytes]
"""JSON text, or for a fetch a function that obtains it."""
MAX_HOST_CALLS: Final = 1000
"""Bounds the cost of an endless loop of requests until its timeout."""
MAX_FETCH_BODY: Final = 1024 * 1024
MAX_ARGUMENTS: Final = 2 * MAX_FETCH_BODY
"""A body of 1 MB in base64, with its envelope."""
FETCH_SECONDS: Final = 10.0
CANCEL_SECONDS: Final = 2.0
RIGHTS_SECONDS: Final = 1.0
"""Before a call for rows, a run looks its caller up again if that was longer ago."""
_OPTIONS: Final = {
    "rows.upsert": frozenset({"onConflict"}),
    "rows.update": frozenset({"ifMatch"}),
    "rows.remove": frozenset({"ifMatch"}),
}
_READS: Final = frozenset({"rows.list", "rows.get", "rows.aggregate"})
_GET_FIELDS: Final = frozenset({"with", "columns"})
_WRITES: Final = frozenset(
    {"rows.insert", "rows.upsert", "rows.update", "rows.remove", "rows.update_many", "rows.remove_many", "rows.batch"}
)


class RunHost:
    """The `Host` of one run. Used by the thread that executes it, except for `interrupt` and fetches."""

    def __init__(
        self, caller: Caller, environment: EnvironmentRef, *, allowed_hosts: tuple[str, ...], depth: int
    ) -> None:
        self._caller = caller
        self._environment = environment
        self._principal = Principal.of(caller)
        self._looked_up_at = time.monotonic()
        self._allowed = frozenset(allowed_hosts)
        self._depth = depth
        self._call_count = 0
        self._lock = threading.Lock()
        self._connection: BaseDatabaseWrapper | None = None
        """The connection of the answering thread while it may execute a statement."""
        self._fetching: set[outbound.Interruption] = set()
        self._is_over = False
        self._is_durable = False

    def answer(self, operation: str, arguments: bytes, *, seconds: float) -> _Answer:
        """As `Host.answer`. The HostError has the API's own code, message and fields. `arguments` is parsed as strictly
        as the body of an API request."""
        self._call_count += 1
        if self._call_count > MAX_HOST_CALLS:
            raise HostError(
                f"a run may make at most {MAX_HOST_CALLS} calls to the platform",
                code="quota_exceeded",
                name="QuotaExceeded",
            )
        if len(arguments) > MAX_ARGUMENTS:
            raise HostError("the arguments have more than 2 MB", code="payload_too_large", name="RangeError")
        with self._as_host_errors(operation):
            if operation != "fetch":
                self._look_up_caller()
            answer = partial(self._answer, operation, arguments, seconds)
            answer_in_thread = partial(loop_connections.call_and_release, answer)
            try:
                if len(arguments) > bodies.MAX_ON_LOOP:
                    found = loop_requests.in_thread(answer_in_thread)
                else:
                    found = loop_requests.run_or_repeat_in_thread(answer, answer_in_thread)
            finally:
                loop_connections.release()
        if callable(found):  # a fetch, which another thread makes
            return self._as_host_errors(operation)(found)  # as a decorator: the errors are those of its own call
        return found

    def _look_up_caller(self) -> None:
        """A long run must not keep rights that its caller has lost. Raises Forbidden."""
        now = time.monotonic()
        if now - self._looked_up_at < RIGHTS_SECONDS:
            return
        caller, environment_id = self._caller, self._environment.environment_id
        with contextlib.suppress(Error):  # runs go on while the control database is unavailable
            restored = loop_connections.in_thread(partial(restore_caller, caller.kind, caller.id, environment_id))
            if restored is None:
                raise Forbidden("The caller of this run may no longer act here.")
            self._caller, self._principal = restored.caller, Principal.of(restored.caller)
        self._looked_up_at = now

    @contextlib.contextmanager
    def _as_host_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except HostError:
            raise
        except ApiError as error:
            raise _host_error(error) from error
        except Error as error:
            raise _host_error(sqlstates.error_for(error)) from error
        except Exception as error:  # an error of the platform, which must not end the run
            logger.exception("a host call of a function failed", extra={"operation": operation})
            raise HostError("something went wrong on our side", code="internal", name="InternalError") from error

    def interrupt(self) -> None:
        with self._lock:
            self._is_over = True
            for fetching in self._fetching:
                fetching.interrupt()
            opened: Any = None if self._connection is None else self._connection.connection
            if opened is not None:
                with contextlib.suppress(psycopg.Error):
                    opened.cancel_safe(timeout=CANCEL_SECONDS)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The connection of an interrupted statement is closed, because the cancel request may reach PostgreSQL after
        the statement and must not cancel another one."""
        connection = loop_connections.connection(self._environment.cluster, self._environment.project_id)
        with self._lock:
            self._require_running()
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None
                is_interrupted = self._is_over
            if is_interrupted and not connection.in_atomic_block:
                connection.close()

    def _require_running(self) -> None:
        if self._is_over:
            raise HostError("the run is over", code="refused", name="Error")

    def _answer(self, operation: str, body: bytes, seconds: float) -> _Answer:
        arguments = bodies.read(body)
        if not isinstance(arguments, dict):
            raise HostError("the arguments are not an object", code="validation_failed", name="TypeError")
        if operation == "fetch":
            return self._fetch(arguments, seconds)
        if operation in _READS:
            self._caller.need("rows:read")
            with self._interruptible():
                return self._read(operation, arguments)
        if operation not in _WRITES:
            raise HostError("there is no such operation", code="not_found", name="NotFound")
        self._caller.need("rows:write")
        if operation not in ("rows.insert", "rows.batch"):
            self._caller.need("rows:read")
        with self._interruptible(), call_depth.at(self._depth + 1):
            return self._write(operation, arguments)

    def _read(self, operation: str, arguments: dict[str, Any]) -> bytes:
        table = _text(arguments, "table")
        if operation == "rows.aggregate":
            query = _query(arguments, AGGREGATE_FIELDS)
            return services.aggregate_rows(self._environment, self._principal, table, query).body
        if operation == "rows.get":
            query, row_id = _query(arguments, _GET_FIELDS), _text(arguments, "id")
            withs, columns = query.get("with"), query.get("columns")
            return services.retrieve_row(self._environment, self._principal, table, row_id, withs, columns).body
        query = _query(arguments, query_service.QUERY_FIELDS)
        count: Count | None = query.get("count")
        if count is not None and count not in COUNTS:
            raise HostError("count must be exact or estimated", code="validation_failed", name="TypeError")
        asked = ListQuery(
            where=query.get("where"),
            order=query.get("order"),
            limit=_limit(query.get("limit", DEFAULT_LIMIT), MAX_LIMIT),
            cursor=query.get("cursor"),
            withs=query.get("with"),
            columns=query.get("columns"),
            count=count,
        )
        return services.list_rows(self._environment, self._principal, table, asked).body

    def _write(self, operation: str, arguments: dict[str, Any]) -> bytes:
        environment, principal = self._environment, self._principal
        options = _fields(arguments, "options", _OPTIONS.get(operation, frozenset()))
        if operation == "rows.batch":
            operations = batch.read_operations(arguments.get("operations"), etags.read_if_match)
            batch.require_scopes(self._caller, operations)
            return batch.as_json(batch.execute(environment, principal, operations))
        table, row, changes = _text(arguments, "table"), arguments.get("row"), arguments.get("changes")
        matches = etags.read_if_match(_text(options, "ifMatch")) if "ifMatch" in options else None
        match operation:
            case "rows.insert":
                return services.insert_row(environment, principal, table, row).body
            case "rows.upsert":
                _join_names(options, "onConflict")
                key = _text({"onConflict": "id"} | options, "onConflict")
                return services.upsert_row(environment, principal, table, row, key).row.body
            case "rows.update":
                row_id = _text(arguments, "id")
                return services.update_row(environment, principal, table, row_id, changes, matches=matches).body
            case "rows.remove":
                services.delete_row(environment, principal, table, _text(arguments, "id"), matches=matches)
                return b"null"
            case "rows.update_many":
                changed = services.update_rows(environment, principal, table, _bulk_query(arguments), changes)
            case _:
                changed = services.delete_rows(environment, principal, table, _bulk_query(arguments))
        return orjson.dumps({"ids": changed.ids, "next_cursor": changed.next_cursor})

    def _fetch(self, arguments: dict[str, Any], seconds: float) -> Callable[[], bytes]:
        """Redirects are returned, not followed."""
        method = _text(arguments, "method").upper()
        try:
            target = outbound.parse_url(_text(arguments, "url"))
        except outbound.BadUrl as error:
            raise HostError(str(error), code="refused", name="TypeError") from error
        if not {target.host, f"{target.host}:{target.port}"} & self._allowed:
            raise HostError(f"{target.host} is not among the allowed_hosts", code="refused", name="NotAllowed")
        headers = arguments.get("headers") or {}
        if not isinstance(headers, dict):
            raise HostError("headers is not an object", code="refused", name="TypeError")
        # Not to be set by the code: the platform's API derives the length of a call chain from it.
        sent = {str(name): str(value) for name, value in headers.items() if name.lower() != call_depth.HEADER.lower()}
        sent[call_depth.HEADER.lower()] = call_depth.sign(self._depth + 1, self._environment.environment_id)
        try:
            body = base64.b64decode(arguments.get("body") or "", validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise HostError("the body cannot be read", code="refused", name="TypeError") from error
        if len(body) > MAX_FETCH_BODY:
            raise HostError("the body has more than 1 MB", code="payload_too_large", name="RangeError")
        timeout_ms = arguments.get("timeout_ms")
        if timeout_ms is not None:
            if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
                raise HostError("timeout_ms is not a number", code="refused", name="TypeError")
            seconds = min(seconds, timeout_ms / 1000)
        if not self._is_durable:  # a sent request cannot be undone, so its run must survive a crash
            statement_batching.wait_until_durable(self._environment.cluster)
            self._is_durable = True
        return partial(self._request, method, target.url, sent, body, min(FETCH_SECONDS, max(0.01, seconds)))

    def _request(self, method: str, url: str, headers: dict[str, str], body: bytes, seconds: float) -> bytes:
        interruption = outbound.Interruption()
        with self._lock:
            self._require_running()
            self._fetching.add(interruption)
        try:
            got = outbound.client().request(
                method,
                url,
                owner=self._environment.environment_id,
                headers=headers,
                body=body,
                limit=MAX_FETCH_BODY,
                total=seconds,
                interruption=interruption,
            )
        except outbound.OutboundError as error:
            raise HostError(error.reason, code="fetch_failed", name=type(error).__name__) from error
        except ValueError as error:
            raise HostError(str(error), code="refused", name="TypeError") from error
        finally:
            with self._lock:
                self._fetching.discard(interruption)
        if got.is_cut:
            raise HostError("the response has more than 1 MB", code="payload_too_large", name="RangeError")
        headers_shown = [pair for pair in got.headers.items() if pair[0] != "set-cookie"]
        headers_shown += [("set-cookie", cookie) for cookie in got.cookies]
        shown = {"status": got.status, "headers": headers_shown, "body": base64.b64encode(got.body).decode()}
        return orjson.dumps(shown)


def _host_error(error: ApiError) -> HostError:
    operation = error.extra.get("operation")
    text = error.text if operation is None else f"operation {operation}: {error.text}"
    fields = [field.as_dict() for field in error.fields] or None
    return HostError(text, code=error.code, name=type(error).__name__, fields=fields, operation=operation)


def _query(arguments: dict[str, Any], fields: frozenset[str]) -> dict[str, Any]:
    query = _fields(arguments, "query", fields)
    _join_names(query, "order", "with", "columns")
    for name in ("order", "cursor", "with", "columns"):
        if query.get(name) is not None:
            _text(query, name)
    return query


def _fields(arguments: dict[str, Any], name: str, known: frozenset[str]) -> dict[str, Any]:
    found = arguments.get(name) or {}
    if not isinstance(found, dict):
        raise HostError(f"{name} must be an object", code="validation_failed", name="TypeError")
    shown = ", ".join(sorted(known)) or "none"
    serializers.refuse_unknown_fields(found, known, f"There is no such field in {name}. Known: {shown}.")
    return found


def _join_names(found: dict[str, Any], *parameters: str) -> None:
    """Names may be a list, as in the JavaScript client."""
    for parameter in parameters:
        names = found.get(parameter)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[parameter] = ",".join(names) or None


def _bulk_query(arguments: dict[str, Any]) -> BulkQuery:
    query = _query(arguments, bulk.QUERY_FIELDS)
    limit = None if query.get("limit") is None else _limit(query["limit"], MAX_ROWS)
    return BulkQuery(query.get("where"), limit, query.get("cursor"))


def _limit(limit: Any, maximum: int) -> int:
    if type(limit) is not int or not 1 <= limit <= maximum:
        message = f"limit must be a whole number from 1 to {maximum}"
        raise HostError(message, code="validation_failed", name="RangeError")
    return int(limit)


def _text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise HostError(f"{name} must be a string", code="validation_failed", name="TypeError")
    return value
