"""From a request as Granian has it to Django, and back.

In: RSGI's scope and protocol object. Out: one answer through the protocol object. In between, bodies are awaited
under a deadline and a limit, `/healthz` is answered at once, and Django runs in the lane. So a client that
stalls costs a future and no thread, and `/healthz` tells the truth about this process even while every
thread of the lane waits for a database.

What is refused here never reaches Django, and looks the same as if it had: the one error envelope with a request id.
"""

import asyncio
import contextvars
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import orjson

from platform_site.concurrency import server_hints
from platform_site.http import errors
from platform_site.http.event_streams import EventStreamResponse
from platform_site.http.requests import close_request, current_request_id, open_request
from platform_site.identity import ids
from platform_site.server.body_reader import DISCONNECTED, BodyReader, Then, set_result_now
from platform_site.server.elastic_pool import ElasticThreadPool
from platform_site.server.event_streams import EventStream
from platform_site.server.incoming import Forwarding, Incoming, headers_into, host_of_socket, mark_unreadable
from platform_site.server.outgoing import headers_of, send
from platform_site.server.request_checks import BODY_LIMIT, check_host, check_request, is_too_large

logger = logging.getLogger(__name__)
BODY_SECONDS: Final = 15.0
DRAIN_LIMIT: Final = 8 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
"""An oversized body is read and dropped up to here, so that the client is still listening when the 413 arrives."""
_HEALTHY: Final = b'{"status":"ok"}'


class RequestTimeout(errors.ApiError):
    """The body did not arrive in time."""

    status, code, message = 408, "invalid_request", f"The request body did not arrive within {BODY_SECONDS:g} seconds."


@dataclass(slots=True)
class Exchange:
    """One request in the lane and where its answer goes."""

    request: Incoming
    protocol: Any
    client: str
    """The peer of the connection, `address:port`."""
    finish: Callable[[], None]
    parked: server_hints.Parked | None = None
    """What the request waits for, or was given after a wait."""

    def end(self) -> None:
        """The client has its response: release what the request holds."""
        self.finish()
        if self.parked is not None:
            self.parked.give_up()


class RsgiApplication:
    """Granian on one side, Django's handler on the other. One for each process, loaded once, started in each worker."""

    def __init__(self) -> None:
        self._lane: ElasticThreadPool[Exchange]
        self._arrivals: BodyReader
        self._handler: Any
        self._front: Callable[[Any], Any]
        self._is_for_machines: Callable[[str], bool]
        self._look_after: Callable[[], None]
        self._loop: asyncio.AbstractEventLoop
        self._forwarding = Forwarding(())
        self.leaving = False
        """This process ends soon: every answer asks its client to come again by another connection."""

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────────
    def load(self) -> None:
        """Import Django and everything a first request would import. Safe before a fork: opens no connection."""
        if hasattr(self, "_handler"):
            return
        import django
        from django.conf import settings
        from django.core.handlers.base import BaseHandler
        from django.urls import get_resolver

        django.setup(set_prefix=False)

        # These import models.
        from platform_site.fastpath import connection_cleanup
        from platform_site.http.middleware.api import is_api_path

        handler = BaseHandler()
        with warnings.catch_warnings():
            # Static files come from the packages themselves when collectstatic was not run.
            warnings.filterwarnings("ignore", message="No directory at")
            handler.load_middleware()
        _walk(get_resolver())
        self._forwarding = Forwarding(settings.TRUSTED_PROXIES)
        connection_cleanup.take_over()
        self._look_after = connection_cleanup.watch_connection
        self._is_for_machines = is_api_path
        # Without the wrapper that makes answers of exceptions: the front does so itself for machines.
        self._front = inspect.unwrap(handler._middleware_chain)  # type: ignore[attr-defined]
        self._handler = handler

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be ready for `begin`. Called in the thread of `loop`, which is the clock of the lane and of the bodies."""
        from django.conf import settings
        from django.db import connections

        from platform_site.postgres import availability

        of_the_loop = threading.get_ident()

        def later(delay: float, call: Callable[[], None]) -> None:
            if threading.get_ident() == of_the_loop:  # a timer that sets itself again need not wake the loop
                loop.call_later(delay, call)
            else:
                loop.call_soon_threadsafe(loop.call_later, delay, call)

        self._loop = loop
        availability.serve_by(settings.LANE_THREADS)
        set_result_now(loop)
        self._arrivals = BodyReader(later, BODY_SECONDS, RequestTimeout())
        self._lane = ElasticThreadPool(
            work=self._work,
            refuse=self._refuse,
            leave=connections.close_all,
            later=later,
            most=settings.LANE_THREADS,
            most_aside=min(settings.LANE_ASIDE, settings.LANE_THREADS - 1),
            patience=settings.LANE_PATIENCE,
            longest_wait=settings.LANE_LONGEST_WAIT,
        )
        server_hints.set_server = self._lane.step_aside

    def stop(self) -> None:
        """End the threads, and with them their database connections. No request is in hand any more."""
        self._lane.stop()
        for handler in logging.getLogger("platform.access").handlers:
            handler.flush()  # a process of multiprocessing ends without logging's own farewell

    # ── on Granian's threads ─────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, scope: Any, protocol: Any, finish: Callable[[], None]) -> Coroutine[Any, Any, None] | None:
        """Do everything up to the thread pool; a body with a Content-Length is awaited on the way. On any thread.

        Returns the work left for the loop: to read a body of unknown length or one that is too large. `finish` is
        called once, from any thread, when Granian has the response."""
        path = scope.path
        if path == "/healthz" and scope.method in {"GET", "HEAD"}:
            _send_health(protocol)
            finish()
            return None
        headers = scope.headers
        items = headers.items()
        meta: dict[str, Any] = {
            "REQUEST_METHOD": scope.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": scope.query_string,
            "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        }
        repeated = headers_into(meta, items)
        unreadable: frozenset[str] = frozenset()
        if repeated or len(headers) != len(items):  # there are as many headers as names
            unreadable = mark_unreadable(meta, headers.keys(), items)
        client = scope.client
        meta["REMOTE_ADDR"], scheme = self._forwarding.client(host_of_socket(client), scope.scheme, items)
        named = meta.get("HTTP_HOST")
        if (authority := scope.authority) is not None:  # named in the first line: that one counts (RFC 9112, 3.2.2)
            meta["HTTP_HOST"] = authority
        server = scope.server
        meta["SERVER_NAME"] = host_of_socket(server) or "localhost"
        meta["SERVER_PORT"] = server.rpartition(":")[2] or "80"
        try:
            if "x-forwarded-for" in unreadable and self._forwarding.trusts(host_of_socket(client)):
                raise errors.InvalidRequest("X-Forwarded-For has bytes outside ASCII.")  # whose client is it?
            check_host(named, meta)
            check_request(meta, path, repeated)
        except errors.ApiError as error:
            _send_error(protocol, error, meta.get("HTTP_X_REQUEST_ID"), close=True)
            finish()
            return None

        def go_on(body: bytes | errors.ApiError) -> None:
            try:
                if isinstance(body, errors.ApiError):
                    _send_error(protocol, body, meta.get("HTTP_X_REQUEST_ID"), close=True)
                    finish()
                else:
                    self._lane.submit(Exchange(Incoming(path, meta, body, scheme, repeated), protocol, client, finish))
            except BaseException:
                logger.exception("a request could not be begun")
                finish()  # without a response of ours Granian sends its own 500

        stated = meta.get("CONTENT_LENGTH")
        if "HTTP_TRANSFER_ENCODING" in meta or (stated is not None and is_too_large(stated)):
            return _read(protocol, meta, go_on)
        if stated is None or stated == "0":
            go_on(b"")
        else:
            self._arrivals.expect(protocol(), go_on)
        return None

    def _refuse(self, exchange: Exchange) -> None:
        """The lane is stuck and the line too long: say so rather than let the client wait."""
        logger.error("no thread became free in time")  # and not for whom: a path may hold a secret
        _send_error(exchange.protocol, errors.Unavailable(), exchange.request.META.get("HTTP_X_REQUEST_ID"))
        exchange.end()

    # ── in the lane ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _work(self, exchange: Exchange) -> None:
        request = exchange.request
        request.__dict__[server_hints.REPEATABLE] = True
        try:
            self._answer(exchange, request)
        except server_hints.Parked as parked:
            exchange.parked = parked
            request.__dict__[server_hints.REPEATED] = True
            parked.then(lambda: self._lane.submit(exchange))
        self._look_after()

    def _answer(self, exchange: Exchange, request: Incoming) -> None:
        """Send the response. Raises Parked for a request that is to be repeated."""
        response = None
        goes_on = False
        try:
            # What Django's handler does around its middleware (URLconf, error log) is for the HTML pages.
            answer = self._front if self._is_for_machines(request.path) else self._handler.get_response
            response = answer(request)
            if isinstance(response, EventStreamResponse):
                self._begin_stream(exchange, response)
                goes_on = True
            else:
                send(exchange.protocol, response, last=self.leaving)
        except server_hints.Parked:
            goes_on = True
            raise
        except BaseException:
            logger.exception("a request was not answered by Django")
            # If the answer has begun, this is ignored; else the client gets the envelope rather than an empty 500.
            _send_error(exchange.protocol, errors.Internal(), request.META.get("HTTP_X_REQUEST_ID"))
        finally:
            if not goes_on:
                exchange.end()
                # After the client has its answer.
                if response is not None:
                    response.close()

    def _begin_stream(self, exchange: Exchange, response: EventStreamResponse) -> None:
        """Let the loop send it. The request and what belongs to it go now: the stream may last for days."""
        head = (response.status_code, headers_of(response))
        queue = response.detach()
        protocol, client, finish, parked = exchange.protocol, exchange.client, exchange.finish, exchange.parked
        if parked is not None:
            parked.give_up()

        begin = EventStream(self._loop, client, queue, finish).begin
        self._loop.call_soon_threadsafe(begin, protocol, head, context=contextvars.Context())


def _walk(resolver: Any) -> None:
    """Import every URL module, so that the first request does not."""
    for pattern in resolver.url_patterns:
        if hasattr(pattern, "url_patterns"):
            _walk(pattern)


async def _read(protocol: Any, meta: dict[str, Any], then: Then) -> None:
    """On the loop: read a body of unknown length, or refuse one that is too large."""
    body: bytes | errors.ApiError
    try:
        if "CONTENT_LENGTH" in meta:
            if "HTTP_EXPECT" not in meta:
                await _drain(protocol)
            raise errors.PayloadTooLarge
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read_chunked(protocol)
        del meta["HTTP_TRANSFER_ENCODING"]
        meta["CONTENT_LENGTH"] = str(len(body))
    except TimeoutError:
        body = RequestTimeout()
    except errors.ApiError as error:
        body = error
    except Exception:  # RSGI raises its own for a connection that broke
        body = errors.InvalidRequest(DISCONNECTED)
    then(body)


async def _read_chunked(protocol: Any) -> bytes:
    """A body of unknown length. Granian ends the iteration with one empty piece; an error or trailers give one more."""
    pieces: list[bytes] = []
    size = empty = 0
    async for piece in protocol:
        size += len(piece)
        empty += not piece
        if size > DRAIN_LIMIT:
            break
        if size > BODY_LIMIT:
            pieces.clear()  # read on, keep nothing: the client hears an answer only after it has spoken
        else:
            pieces.append(piece)
    if size > BODY_LIMIT:
        raise errors.PayloadTooLarge
    if empty > 1:
        raise errors.InvalidRequest("The request body broke off, or has trailers.")
    return b"".join(pieces)


async def _drain(protocol: Any) -> None:
    read = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for piece in protocol:
                read += len(piece)
                if read > DRAIN_LIMIT or not piece:
                    return
    except Exception:
        logger.debug("an oversized body was not read to its end", exc_info=True)


def _send_health(protocol: Any) -> None:
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("X-Request-Id", ids.new("req"))]
    protocol.response_bytes(200, headers, _HEALTHY)


def _send_error(protocol: Any, error: errors.ApiError, offered_id: str | None, *, close: bool = False) -> None:
    """The envelope, without Django. Ignored by the protocol object if an answer was sent before."""
    token = open_request(offered_id)
    request_id = current_request_id()
    headers = [
        ("Content-Type", "application/json"),
        ("Cache-Control", "no-store"),
        ("X-Request-Id", str(request_id)),
        *error.headers.items(),
    ]
    if close:
        headers.append(("Connection", "close"))
    protocol.response_bytes(error.status, headers, orjson.dumps(error.body(request_id)))
    logger.info("refused before Django", extra={"status": error.status, "code": error.code})
    close_request(token)


application = RsgiApplication()
"""The process's own."""
