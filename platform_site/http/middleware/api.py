"""API middleware, around everything: request id, host check, security and CORS headers, one log line and metrics. API
paths (`/v1/…`, `/.well-known/…`, probes) go directly to their view, without sessions and cookies, and always get JSON;
others continue through `settings.MIDDLEWARE`."""

import time
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.exception import response_for_exception
from django.http import HttpRequest
from django.http.response import HttpResponseBase, ResponseHeaders
from django.urls.exceptions import Resolver404

from platform_site.fastpath import routes
from platform_site.http import exception_handler
from platform_site.http.errors import InvalidRequest, NotFound
from platform_site.http.middleware import cors
from platform_site.http.requests import close_request, current_request_id, open_request
from platform_site.identity import call_depth
from platform_site.observability import logs, metrics
from platform_site.request_log import recording

Answer = Callable[[HttpRequest], HttpResponseBase]

PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Requested by IP address, so their host is not checked."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_known_hosts: set[tuple[str, str]] = set()


def is_api_path(path: str) -> bool:
    return path.startswith(("/v1/", "/.well-known/")) or path in PROBES or path == "/v1"


class ApiMiddleware:
    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response
        self.headers = _security_headers()
        seconds = settings.SECURE_HSTS_SECONDS
        self.strict_transport = f"max-age={seconds}; includeSubDomains; preload" if seconds else None

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        began = time.perf_counter()
        meta = request.META
        token = open_request(meta.get("HTTP_X_REQUEST_ID"))
        call_depth.begin_request()
        try:
            path = request.path_info
            if is_api_path(path):
                response = self._api_response(request, path)
            else:
                response = self._page_response(request)
                response.headers["X-Request-Id"] = current_request_id() or ""
            self._record(request, response, time.perf_counter() - began)
            return response
        finally:
            close_request(token)

    def _page_response(self, request: HttpRequest) -> HttpResponseBase:
        try:
            _check_host(request)
        except DisallowedHost as error:
            return response_for_exception(request, error)
        return self.get_response(request)

    def _api_response(self, request: HttpRequest, path: str) -> HttpResponseBase:
        response: HttpResponseBase
        try:
            if path not in PROBES:
                _check_host(request)
                if settings.SECURE_SSL_REDIRECT and request.scheme != "https":
                    # No redirect: the client would go on to send its token over http first.
                    raise InvalidRequest("Use https. Revoke a token that was sent over http: others may have read it.")
            response = cors.preflight(request) if cors.is_preflight(request) else _view(request, path)
        except Exception as error:
            api_error = exception_handler.to_api_error(error)
            exception_handler.report(error, api_error)
            response = exception_handler.respond(api_error)
        headers = response.headers
        # Set in Django's internal form: its setter checks every character, 2 µs for each of nine headers.
        store = self.headers | headers._store
        store["x-request-id"] = ("X-Request-Id", current_request_id() or "")
        if self.strict_transport is not None and request.scheme == "https":
            store["strict-transport-security"] = ("Strict-Transport-Security", self.strict_transport)
        if (more := request.__dict__.get("answer_headers")) is not None:
            store |= more
        headers._store = store
        if "HTTP_ORIGIN" in request.META and request.method != "OPTIONS":
            cors.permit(request, response)
        response._has_been_logged = True  # type: ignore[attr-defined]  # Django's handler would log each 4xx again
        return response

    def _record(self, request: HttpRequest, response: HttpResponseBase, seconds: float) -> None:
        status = response.status_code
        error = response.__dict__.get(exception_handler.ERROR_ATTRIBUTE)
        match = request.resolver_match
        route = f"/{match.route}" if match is not None else "(unknown)"
        method = request.method if request.method in _METHODS else "OTHER"
        caller = request.__dict__.get("caller")
        freshness = request.__dict__.get("freshness")
        metrics.observe_request(method, route, status, seconds)
        is_probe = request.path_info in PROBES
        if is_probe and status == 200:
            return  # every few seconds, from each monitor
        logs.access(
            method=method,
            route=route,
            status=status,
            duration_ms=round(seconds * 1000, 2),
            caller=None if caller is None else caller.id,
            environment=None if caller is None or caller.environment is None else caller.environment.environment_id,
            ip=request.META.get("REMOTE_ADDR"),
            replica=None if freshness is None else freshness.answered_by,
            table=None if match is None else recording.name_in(match.kwargs, "table"),
            error=error,
        )
        if not is_probe:
            recording.record(request, method, status, seconds, error)


def _view(request: HttpRequest, path: str) -> HttpResponseBase:
    try:
        match = routes.resolve(path)
    except Resolver404:
        if path.endswith("/") and len(path) > len("/v1/"):
            raise NotFound("There is no such endpoint. URLs of the API have no slash at their end.") from None
        raise NotFound(
            "There is no such endpoint. All of them are documented at /docs, and for programs at /v1/openapi.json."
        ) from None
    request.resolver_match = match
    response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
    return response


def _check_host(request: HttpRequest) -> None:
    """Raises DisallowedHost. Cached: a check costs 6 µs."""
    meta = request.META
    key = (meta.get("HTTP_HOST") or "", meta.get("SERVER_NAME") or "")
    if key in _known_hosts:
        return
    request.get_host()
    if len(_known_hosts) >= 1000:  # wildcards admit any number of names
        _known_hosts.clear()
    _known_hosts.add(key)


def _security_headers() -> dict[str, tuple[str, str]]:
    """The headers of Django's and django-csp's middleware for JSON, as ResponseHeaders stores them."""
    headers = ResponseHeaders(
        {
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": settings.SECURE_REFERRER_POLICY,
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            "Vary": "Origin",
            # For caches that ignore the Authorization of a request; clients with an ETag may still revalidate.
            "Cache-Control": "private, no-cache",
        }
    )
    kept: dict[str, tuple[str, str]] = headers._store
    return kept
