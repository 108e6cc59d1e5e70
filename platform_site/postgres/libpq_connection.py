"""What `platform_site.postgres.libpq` keeps of psycopg's connection, in an attribute of it: prepared statements, the
tables that its backend caches (20 KB each), and the wait for results, during which other requests on the loop run."""

import re
import select
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq

from platform_site.concurrency import loop_requests
from platform_site.concurrency.loop_requests import LoopRequest, Readiness

MAX_PREPARED: Final = 16 * 1024
"""Bytes of a statement: in the server, a prepared list takes 41 KB, and a long filter 130 times its length."""
PREPARED_PER_CONNECTION: Final = 256
PREPARED_BYTES_PER_CONNECTION: Final = 512 * 1024
_SEEN_PER_CONNECTION: Final = 1024

DONE: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_BAD: Final = pq.ConnStatus.BAD
_POLL_MS: Final = 100
_LOST: Final = "the connection to the database was lost"
_ATTRIBUTE: Final = "_libpq_connection"
_TABLE: Final = re.compile(rb'"env_[0-9a-z]{26}"\."[^"]+"')


class LibpqConnection:
    def __init__(self, libpq: Any) -> None:
        self.libpq = libpq
        self.prepared: OrderedDict[bytes, bytes] = OrderedDict()
        """Names by statement. A name is a digest of the text: behind a pooler it may be unknown or taken, but it never
        means another statement."""
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._tables: set[bytes] = set()
        self.readiness: Readiness | None = None

    def close(self) -> None:
        if self.readiness is not None:
            self.readiness.close()

    def note_tables(self, wrapper: BaseDatabaseWrapper, sql: bytes) -> None:
        self._tables.update(_TABLE.findall(sql))
        if len(self._tables) > settings.TABLES_PER_CONNECTION:
            discard_when_idle(wrapper)

    def should_prepare(self, wrapper: BaseDatabaseWrapper, sql: bytes) -> bool:
        """Whether this is the statement's second use. Remembers the first one."""
        seen = self._seen
        if sql in seen and settings.PREPARED_STATEMENTS:
            del seen[sql]
            return True
        if sql not in seen:
            self.note_tables(wrapper, sql)
        if len(sql) <= MAX_PREPARED:
            seen[sql] = None
            if len(seen) > _SEEN_PER_CONNECTION:
                seen.popitem(last=False)
        return False

    def prepare(self, wrapper: BaseDatabaseWrapper, sql: bytes) -> bytes:
        name = name_of(sql)
        checked(wrapper, self.libpq, self.run(self.libpq.prepare, self.libpq.send_prepare, name, sql))
        self.remember_prepared(wrapper, sql)
        return name

    def remember_prepared(self, wrapper: BaseDatabaseWrapper, sql: bytes) -> None:
        names, libpq = self.prepared, self.libpq
        names[sql] = name_of(sql)
        while len(names) > PREPARED_PER_CONNECTION or sum(map(len, names)) > PREPARED_BYTES_PER_CONNECTION:
            _, oldest = names.popitem(last=False)
            # A protocol message instead of DEALLOCATE: poolers translate it.
            checked(wrapper, libpq, self.run(libpq.close_prepared, libpq.send_close_prepared, oldest))

    def run(self, call: Callable[..., pq.abc.PGresult], send: Callable[..., None], *arguments: Any) -> pq.abc.PGresult:
        """The result of `call`, which blocks, in a thread; of `send` and a wait on the loop."""
        request = loop_requests.current()
        if request is None:
            return call(*arguments)
        send(*arguments)
        try:
            [results] = self.receive(request)
            return results[-1]
        except BaseException:
            self.libpq.finish()  # its result would be taken for the next one's
            raise

    def send(self, name: bytes | None, sql: bytes, values: Sequence[bytes | None]) -> None:
        if name is None:
            self.libpq.send_query_params(sql, values)
        else:
            self.libpq.send_query_prepared(name, values)

    def receive(
        self, request: LoopRequest | None, *, syncs: int = 0, is_silent: Callable[[], bool] | None = None
    ) -> list[list[pq.abc.PGresult]]:
        """Send what is queued, and return the results between the pipeline's `syncs`, or all of one statement. Raises
        OperationalError if the connection is lost or the server `is_silent`."""
        libpq, readiness = self.libpq, None if request is None else self._readiness_on(request.loop)
        seconds = None if is_silent is None else _POLL_MS / 1000
        has_unsent, has_waited = True, False
        received: list[list[pq.abc.PGresult]] = [[]]
        while True:
            has_unsent = has_unsent and bool(libpq.flush())  # more than the socket takes at once
            if has_unsent or libpq.is_busy():
                if libpq.status == _BAD:
                    raise psycopg.OperationalError(_LOST)
                if request is None or readiness is None:
                    is_ready = _poll(libpq.socket, writable=has_unsent)
                else:
                    again = has_waited and not has_unsent
                    is_ready = readiness.wait(request, writable=has_unsent, again=again, seconds=seconds)
                if is_ready:
                    has_waited = True
                    libpq.consume_input()
                elif is_silent is not None and is_silent():
                    raise psycopg.OperationalError("the database does not answer")
            elif (result := libpq.get_result()) is None:  # after a statement, and after the connection's end
                if libpq.status == _BAD:
                    raise psycopg.OperationalError(_LOST)
                if not syncs:
                    return received
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                if len(received) == syncs:
                    return received
                received.append([])
            else:
                received[-1].append(result)

    def _readiness_on(self, loop: Any) -> Readiness:
        if self.readiness is None or not self.readiness.is_open:
            self.readiness = Readiness(loop, self.libpq.socket)
        return self.readiness


def opened(wrapper: Any) -> LibpqConnection:
    if wrapper.connection is None or not wrapper.health_check_done:  # otherwise both calls do nothing
        wrapper.close_if_health_check_failed()
        wrapper.ensure_connection()
    return wrapper.connection.__dict__.get(_ATTRIBUTE) or of(wrapper.connection)


def of(connection: "psycopg.Connection[Any]") -> LibpqConnection:
    found: LibpqConnection | None = connection.__dict__.get(_ATTRIBUTE)
    return connection.__dict__.setdefault(_ATTRIBUTE, LibpqConnection(connection.pgconn)) if found is None else found


def name_of(sql: bytes) -> bytes:
    return b"rows_" + sha256(sql).hexdigest()[:40].encode()


def discard_when_idle(wrapper: BaseDatabaseWrapper) -> None:
    """Close the connection when its request or task ends."""
    wrapper.close_at = 0.0


def checked(wrapper: BaseDatabaseWrapper, libpq: Any, result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status in DONE:
        return result
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        # The error is libpq's: the connection is broken, even if its status does not show that yet.
        libpq.finish()
        wrapper.errors_occurred = True
        raise psycopg.OperationalError(_LOST)
    raise psycopg.errors.error_from_result(result, "utf-8")


def _poll(descriptor: int, *, writable: bool) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))
    return bool(poll.poll(_POLL_MS))
