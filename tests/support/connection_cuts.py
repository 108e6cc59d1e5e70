"""A proxy between the application and PostgreSQL or Redis that can break the connection at a chosen round trip, and
counts the round trips.

A step is a round trip of any connection: in PostgreSQL a simple query, or an extended query up to its Sync; in Redis
the commands that are sent together. `BreakingProxy` listens on a Unix socket of its own and parses only as much of the
protocols as it needs to tell the steps apart. Nothing of the application is replaced: it sees a connection that ends.
"""

import enum
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from django.conf import settings
from django.db import connections
from django.test import override_settings

_OF_POSTGRES: Final = ".s.PGSQL.5432"
_CANCEL: Final = 80877102
_SHOWN: Final = 200
"""Characters of a statement that a report repeats."""
_PIECE: Final = 1 << 16


class Break(enum.StrEnum):
    """What happens at the step."""

    UNSENT = "unsent"
    """The connection ends before the request is forwarded: nothing of it happens."""
    UNANSWERED = "unanswered"
    """It was executed, and the connection ends before the answer is passed on."""
    UNAVAILABLE = "unavailable"
    """As UNANSWERED, and the database refuses connections until `stop`."""


@dataclass
class Plan:
    """What is to happen, and what has: of the steps since `BreakingProxy.plan`."""

    at: int | None = None
    how: Break = Break.UNSENT
    steps: list[str] = field(default_factory=list)
    """`database: statement` of each, shortened."""
    was_cut: str = ""
    """The step at which it was cut."""
    refused: set[str] = field(default_factory=set)


class BreakingProxy:
    """Between the socket of one server and a client of `socket`. At its end it ends every connection."""

    def __init__(
        self, upstream: Path, connection: "Callable[[BreakingProxy, socket.socket, socket.socket], _ProxiedConnection]"
    ) -> None:
        self._upstream, self._connection = upstream, connection
        self.socket = Path(tempfile.mkdtemp(prefix="cuts-")) / upstream.name
        self._lock = threading.Lock()
        self._plan = Plan()
        self._open: set[socket.socket] = set()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.socket))
        self._listening.listen(64)
        threading.Thread(target=self._accept, name="cuts", daemon=True).start()

    def plan(self, at: int | None = None, how: Break = Break.UNSENT) -> None:
        """Count from now on, and cut at the `at`-th step, once; None: never."""
        with self._lock:
            self._plan = Plan(at, how)

    def stop(self) -> Plan:
        """Break nothing from now on. Returns what has happened since `plan`."""
        with self._lock:
            done, self._plan = self._plan, Plan()
            return done

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept(); closing would not
        self._listening.close()
        with self._lock:
            still_open = list(self._open)
        for each in still_open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="cuts-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(str(self._upstream))
            with self._lock:
                self._open.add(client)
            try:
                self._connection(self, client, server).run()
            finally:
                with self._lock:
                    self._open.discard(client)

    def is_refused(self, database: str) -> bool:
        with self._lock:
            return database in self._plan.refused

    def step(self, database: str, statement: str) -> Break | None:
        """One more step; how to cut at it, or None."""
        with self._lock:
            plan = self._plan
            plan.steps.append(f"{database}: {' '.join(statement.split())[:_SHOWN]}")
            if len(plan.steps) != plan.at:
                return None
            plan.was_cut = plan.steps[-1]
            if plan.how is Break.UNAVAILABLE:
                plan.refused.add(database)
            return plan.how


class _ProxiedConnection:
    """One connection, both directions. What it is made of says where one step ends and the next begins."""

    unanswered = 0
    """Answers that the server owes."""

    def __init__(self, cuts: BreakingProxy, client: socket.socket, server: socket.socket) -> None:
        self.cuts, self.client, self.server = cuts, client, server
        self.is_cut = False
        """The last request was forwarded; nothing is passed back any more."""

    def run(self) -> None:
        poll = select.poll()
        for each in (self.client, self.server):
            poll.register(each, select.POLLIN)
        goes_on = True
        while goes_on and not (self.is_cut and self.unanswered == 0):
            for number, _ in poll.poll():
                goes_on = goes_on and self._take(from_client=number == self.client.fileno())
        # When the client notices, the server has ended the session and released its locks.
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_WR)
            self.server.settimeout(10)
            while self.server.recv(_PIECE):
                pass

    def _take(self, *, from_client: bool) -> bool:
        """Read what is there and pass it on; whether the connection goes on."""
        content = (self.client if from_client else self.server).recv(_PIECE)
        if not content:
            return False
        if from_client:
            return self.is_cut or self.asked(content)
        self.answered(content)
        if not self.is_cut:
            self.client.sendall(content)
        return True

    def asked(self, content: bytes) -> bool:
        """Forward it, step by step; False where the connection ends before one."""
        raise NotImplementedError

    def answered(self, content: bytes) -> None:
        """Count which of what is `unanswered` this answers."""
        raise NotImplementedError

    def forward(self, content: bytes, how: Break | None) -> bool:
        """What a step consists of, or the last piece of it."""
        if how is Break.UNSENT:
            return False
        self.server.sendall(content)
        self.is_cut = how is not None
        return True


class _PostgresConnection(_ProxiedConnection):
    """Version 3 of the protocol, without TLS."""

    unanswered = 1  # to the start

    def __init__(self, cuts: BreakingProxy, client: socket.socket, server: socket.socket) -> None:
        super().__init__(cuts, client, server)
        self._from_client, self._from_server = bytearray(), bytearray()
        self._database: str | None = None
        self._statement = ""
        self._prepared: dict[bytes, str] = {}

    def asked(self, content: bytes) -> bool:
        self._from_client += content
        if self._database is None:
            packet = _message(self._from_client, 0)
            if packet is None:
                return True
            self.server.sendall(packet)
            if int.from_bytes(packet[4:8]) == _CANCEL:
                return True
            words = packet[8:].split(b"\0")
            self._database = dict(zip(words[::2], words[1::2], strict=False))[b"database"].decode()
            if self.cuts.is_refused(self._database):
                return False
        while not self.is_cut and (message := _message(self._from_client, 1)) is not None:
            if not self.forward(message, self._step(self._database, message)):
                return False
        return True

    def _step(self, database: str, message: bytes) -> Break | None:
        kind, content = message[:1], message[5:]
        if kind == b"P":  # Parse
            name, text, _ = content.split(b"\0", 2)
            self._statement = self._prepared[name] = text.decode()
        elif kind == b"B":  # Bind
            self._statement = self._prepared.get(content.split(b"\0", 2)[1], "")
        elif kind == b"Q":  # Query
            self._statement = content[:-1].decode()
        if kind not in (b"Q", b"S"):  # Sync
            return None
        self.unanswered += 1
        return self.cuts.step(database, self._statement)

    def answered(self, content: bytes) -> None:
        self._from_server += content
        while (message := _message(self._from_server, 1)) is not None:
            self.unanswered -= message[:1] == b"Z"  # ReadyForQuery


def _message(buffer: bytearray, head: int) -> bytes | None:
    """Take the first whole message out of `buffer`: its type of `head` bytes, then the length of what follows with
    its own four bytes. None: it has not come yet."""
    if len(buffer) < head + 4:
        return None
    length = head + int.from_bytes(buffer[head : head + 4])
    if len(buffer) < length:
        return None
    message = bytes(buffer[:length])
    del buffer[:length]
    return message


class _RedisConnection(_ProxiedConnection):
    """What arrives in one piece is a step, and what comes back answers it: requests are small, and one at a time."""

    def asked(self, content: bytes) -> bool:
        if self.cuts.is_refused("redis"):
            return False
        self.unanswered = 1
        return self.forward(content, self.cuts.step("redis", content.decode(errors="replace")))

    def answered(self, content: bytes) -> None:
        self.unanswered = 0


@contextmanager
def postgres_behind() -> Iterator[BreakingProxy]:
    """Until the end of the block every database of this process is reached, by all threads, through a proxy."""
    with ExitStack() as after:
        cuts = BreakingProxy(
            Path(str(connections["default"].settings_dict["HOST"])) / _OF_POSTGRES, _PostgresConnection
        )
        after.callback(cuts.close)
        for alias in settings.DATABASES:
            of_all_threads: dict[str, Any] = connections.settings[alias]
            for each in (of_all_threads, connections[alias].settings_dict):
                after.callback(each.__setitem__, "HOST", each["HOST"])
                each["HOST"] = str(cuts.socket.parent)
        after.callback(connections.close_all)
        connections.close_all()
        yield cuts


@contextmanager
def redis_behind() -> Iterator[BreakingProxy]:
    """Until the end of the block Redis is reached through a proxy, but not for Celery's notifications."""
    upstream = settings.LAYOUT.valkey_socket
    with ExitStack() as after:
        cuts = BreakingProxy(upstream, _RedisConnection)
        after.callback(cuts.close)
        url = settings.REDIS_URL.replace(quote(str(upstream)), quote(str(cuts.socket)))
        assert url != settings.REDIS_URL
        after.enter_context(override_settings(REDIS_URL=url))
        yield cuts
