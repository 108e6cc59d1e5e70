"""CORS; django-cors-headers writes the headers. A preflight has no token: the allowed origins of the host's environment
decide; for another host it is granted, because no cookie gives access to /v1. Responses without a caller's data, such
as a 401, may be read by every origin."""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from corsheaders.middleware import CorsMiddleware
from corsheaders.signals import check_request_enabled
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from platform_site.http.requests import environment_of_host, named_environment
from platform_site.http.views import no_content
from platform_site.identity.callers import Caller

log = logging.getLogger("platform.cors")

OriginsLookup = Callable[[str], Sequence[str] | None]

_PORT: Final = re.compile(r":[0-9]{1,5}\Z")

_lookup: OriginsLookup | None = None


def set_origins_lookup(lookup: OriginsLookup) -> None:
    """`lookup` returns None for an unknown environment."""
    global _lookup
    _lookup = lookup


def _origins_of(environment_id: str) -> Sequence[str]:
    if _lookup is None:
        return ()
    try:
        return _lookup(environment_id) or ()
    except Exception:  # an unavailable database must not turn a finished response into an error
        log.warning("the allowed origins of an environment could not be read", exc_info=True)
        return ()


def _is_permitted(request: HttpRequest, **_: Any) -> bool:
    origin = request.META.get("HTTP_ORIGIN", "")
    facts = request.__dict__
    caller: Caller | None = facts.get("caller")
    allowed: Sequence[str]
    if is_preflight(request):
        environment_id = environment_of_host(request.META.get("HTTP_HOST") or "")
        if environment_id is None:
            return True
        allowed = _origins_of(environment_id)
    elif caller is not None:
        allowed = caller.environment.allowed_origins if caller.environment is not None else ()
        if caller.kind == "account":
            allowed = (*allowed, *settings.PLATFORM_ORIGINS)
    elif facts.get("api_public"):
        environment_id = named_environment(request)
        allowed = settings.PLATFORM_ORIGINS if environment_id is None else _origins_of(environment_id)
    else:
        return True
    return "*" in allowed or origin in allowed or f"{_PORT.sub('', origin)}:*" in allowed


check_request_enabled.connect(_is_permitted, dispatch_uid="platform_site.http.middleware.cors")


def is_preflight(request: HttpRequest) -> bool:
    meta = request.META
    return request.method == "OPTIONS" and "HTTP_ORIGIN" in meta and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in meta


_middleware = CorsMiddleware(lambda request: HttpResponse())


def preflight(request: HttpRequest) -> HttpResponseBase:
    response = no_content()
    permit(request, response)
    response.headers["Vary"] = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
    return response


def permit(request: HttpRequest, response: HttpResponseBase) -> None:
    """Add CORS headers. Call it only for requests with an Origin: it costs 20 µs."""
    _middleware.add_response_headers(request, response)
