"""Runs Django for the HTTP server: short requests for rows and synchronous function calls on the event loop
(`platform_site.concurrency.loop_requests`), all others in threads. A request arrives complete, and its response is
buffered, so slow clients occupy no thread. Import this after `django.setup`."""

import asyncio
import contextvars
import inspect
import logging
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Final

from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import HttpResponse
from django.urls import get_resolver

from platform_site.concurrency import loop_requests, server_hints
from platform_site.concurrency.loop_requests import LoopRequest
from platform_site.fastpath import connection_cleanup
from platform_site.http import errors, exception_handler
from platform_site.http.bodies import MAX_ON_LOOP
from platform_site.http.event_streams import EventStreamResponse
from platform_site.http.middleware.api import is_api_path
from platform_site.http.requests import close_request, current_request_id, open_request
from platform_site.identity import ids
from platform_site.observability.metrics import open_metrics_file
from platform_site.observability.traffic import Reporter
from platform_site.postgres import availability, loop_connections
from platform_site.request_log.writer import Writer, create_writers
from platform_site.server.elastic_pool import ElasticThreadPool
from platform_site.server.http_message import EventStream, Message
from platform_site.server.incoming import Incoming
from platform_site.server.thread_shares import OverShare, ThreadShare, ThreadShares
from platform_site.server.watchdog import Watchdog

logger = logging.getLogger(__name__)
REPORT_SECONDS: Final = 2.0
"""How long a stopping worker writes its last metrics and entries of the request log."""


class Application:
    _handler: BaseHandler

    def load(self) -> None:
        """Import everything that the first request needs. Opens no connection, so it can run before a fork."""
        if hasattr(self, "_handler"):
            return
        handler = BaseHandler()
        with warnings.catch_warnings():
            # Static files come from the packages themselves when collectstatic was not run.
            warnings.filterwarnings("ignore", message="No directory at")
            handler.load_middleware()
        get_resolver().check()  # imports all URLconfs and their views
        connection_cleanup.disconnect_django_signals()
        # Without Django's exception wrapper: ApiMiddleware makes the error responses for API paths itself.
        self._api_middleware = inspect.unwrap(handler._middleware_chain)  # type: ignore[attr-defined]
        self._handler = handler

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        availability.limit_waiting_threads(settings.WEB_THREADS)
        self._pool = ElasticThreadPool(
            work=self._work,
            refuse=self._refuse,
            on_retire=connections.close_all,
            call_later=loop.call_later,
            client_of=_client_of,
            max_threads=settings.WEB_THREADS,
            max_waiting=min(settings.WEB_THREADS_WAITING, settings.WEB_THREADS - 1),
            stuck_after=settings.WEB_THREAD_STUCK,
            queue_timeout=settings.WEB_QUEUE_TIMEOUT,
        )
        self._shares = ThreadShares(
            settings.WEB_THREADS,
            settings.WEB_QUEUE_TIMEOUT,
            lambda seconds, call: loop.call_soon_threadsafe(loop.call_later, seconds, call),
        )

        def will_block() -> None:
            loop_requests.require_thread()
            self._pool.will_wait()

        server_hints.on_will_block = will_block
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # our database backend has its own check
        loop_connections.install()
        open_metrics_file()
        self._reporters: list[Reporter | Writer] = [Reporter(), *create_writers()]
        for reporter in self._reporters:
            reporter.start()
        self._watchdog = Watchdog(loop)
        self._watchdog.start()

    def stop(self) -> None:
        self._watchdog.stop()  # the loop waits for threads from here on
        self._pool.stop()
        loop_connections.close_all()
        for handler in logging.getLogger("platform.access").handlers:
            handler.flush()  # the worker ends by os._exit, which skips logging.shutdown
        for reporter in self._reporters:
            reporter.stop()
        deadline = time.monotonic() + REPORT_SECONDS
        for reporter in self._reporters:
            reporter.join(max(0.0, deadline - time.monotonic()))

    def handle(self, message: Message) -> None:
        if message.refusal is not None:
            _send_error(message, message.refusal)
            return
        if message.path == "/healthz" and message.meta["REQUEST_METHOD"] in {"GET", "HEAD"}:
            headers = {"Cache-Control": "no-store", "X-Request-Id": ids.new("req")}
            message.respond(HttpResponse(b'{"status":"ok"}', content_type="application/json", headers=headers))
            return
        request = Incoming.from_message(message)
        if _runs_on_loop(message):
            LoopRequest(self._loop, partial(self._work_on_loop, request)).switch()
        else:
            self._run_in_thread(request)

    def _run_in_thread(self, request: Incoming) -> None:
        request.thread_share = ThreadShare(self._shares)
        self._pool.submit(request)

    def _work_on_loop(self, request: Incoming) -> None:
        """Never raises: the error would surface in the callback of another request."""
        here = loop_requests.current()
        try:
            self._answer(request)
        except server_hints.NeedsThread:
            again = Incoming.from_message(request.message)
            if here is not None and here.has_used_redis:
                again.__dict__[server_hints.REPEATED] = True
            self._run_in_thread(again)
        except BaseException:
            logger.exception("a request on the loop failed")
        finally:
            if here is not None and here.connections:
                loop_connections.give_back(here)

    def _refuse(self, request: Incoming) -> None:
        logger.error("no thread became free in time")  # the path is not logged: it may contain a secret
        _send_error(request.message, errors.Unavailable())
        request.end()

    def _work(self, request: Incoming) -> None:
        try:
            self._answer(request)
        except server_hints.Parked as parked:
            if request.thread_share is not None:
                request.thread_share.leave()
            request.release = parked.release or request.release
            request.__dict__[server_hints.REPEATED] = True
            parked.start_wait(lambda: self._call_on_loop(partial(self._resume, request)))
        except BaseException:
            request.end()
            raise
        else:
            request.end()
        connection_cleanup.close_unusable_connections()

    def _resume(self, request: Incoming) -> None:
        share = request.thread_share
        if share is not None and share.has_expired:
            _send_error(request.message, OverShare())
            request.end()
        else:
            self._pool.submit(request, share.since if share is not None and share.is_held else None)

    def _answer(self, request: Incoming) -> None:
        message, response = request.message, None
        try:
            # What Django's handler does around its middleware (URLconf, error log) is for the HTML pages.
            answer = self._api_middleware if is_api_path(request.path) else self._handler.get_response
            response = answer(request)
            if isinstance(response, EventStreamResponse):
                self._call_on_loop(partial(EventStream, message, response))
            else:
                message.respond(response)
        except (server_hints.NeedsThread, server_hints.Parked):
            raise
        except BaseException:
            logger.exception("Django failed to answer a request")
            _send_error(message, errors.Internal())
        if response is not None:
            response.close()  # after the answer was handed over

    def _call_on_loop(self, call: Callable[[], object]) -> None:
        # Without the context of this request: a stream may last for days.
        self._loop.call_soon_threadsafe(call, context=contextvars.Context())


def _client_of(request: Incoming) -> str:
    """The credential, not checked yet, or the IP address. They take turns, so that none can fill the queue."""
    meta = request.META
    found: str = meta.get("HTTP_AUTHORIZATION") or meta.get("HTTP_COOKIE") or meta["REMOTE_ADDR"]
    return found


def _runs_on_loop(message: Message) -> bool:
    """Whether this is a short request: for rows without a transaction, a refresh of a token, or a synchronous function
    call."""
    meta, path, method = message.meta, message.path, message.meta["REQUEST_METHOD"]
    if len(message.body) > MAX_ON_LOOP:
        return False
    if path.startswith("/v1/rows/"):
        if method in {"GET", "HEAD"}:
            return True
        is_bulk = message.body.startswith(b"[") or (method == "PATCH" and path.count("/") == 3)  # of a table
        is_plain = method != "DELETE" and not is_bulk and "on_conflict" not in meta["QUERY_STRING"]
        return is_plain and not settings.REPLICAS and "HTTP_IDEMPOTENCY_KEY" not in meta
    if path == "/v1/auth/token":
        return method == "POST" and b"refresh_token" in message.body
    is_call = path.startswith("/v1/functions/") and path.endswith("/invoke") and method == "POST"
    return is_call and "HTTP_IDEMPOTENCY_KEY" not in meta and "HTTP_PREFER" not in meta


def _send_error(message: Message, error: errors.ApiError) -> None:
    """Send the error envelope without Django. Ignored if a response was sent."""
    token = open_request(message.meta.get("HTTP_X_REQUEST_ID"))
    response = exception_handler.respond(error)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Request-Id"] = current_request_id() or ""
    message.respond(response)
    logger.info("refused before Django", extra={"status": error.status, "code": error.code})
    close_request(token)


application = Application()
