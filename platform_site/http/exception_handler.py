"""Turns every exception into an error response. Apps `register` their errors. An unexpected exception is `internal`
with a request id; only the log has the rest. Contract section 7."""

import logging
from collections.abc import Callable
from typing import Any, Final

import orjson
from django.core import exceptions as django_exceptions
from django.http import Http404, HttpResponse
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions as drf
from rest_framework.fields import get_error_detail

from platform_site.http import errors, fields
from platform_site.http.errors import ApiError
from platform_site.http.requests import current_request_id
from platform_site.observability.metrics import DATABASE_ERRORS
from platform_site.postgres import sqlstates

log = logging.getLogger("platform.errors")

ERROR_ATTRIBUTE: Final = "api_error"
"""The response's attribute with its ApiError, for logs."""


_converters: Final[dict[type, Callable[[Any], ApiError]]] = {
    drf.ValidationError: lambda error: fields.failed(error.detail),
    drf.ParseError: lambda error: errors.InvalidRequest(),
    drf.NotAuthenticated: lambda error: errors.Unauthorized(),
    drf.AuthenticationFailed: lambda error: errors.Unauthorized(),
    drf.PermissionDenied: lambda error: errors.Forbidden(),
    drf.NotFound: lambda error: errors.NotFound(),
    drf.MethodNotAllowed: lambda error: errors.MethodNotAllowed(),
    drf.UnsupportedMediaType: lambda error: errors.UnsupportedMediaType(),
    drf.Throttled: lambda error: errors.RateLimited(int(error.wait or 1)),
    Http404: lambda error: errors.NotFound(),
    django_exceptions.PermissionDenied: lambda error: errors.Forbidden(),
    django_exceptions.RequestDataTooBig: lambda error: errors.PayloadTooLarge(),
    django_exceptions.DisallowedHost: lambda error: errors.InvalidRequest("Unknown host."),
    django_exceptions.SuspiciousOperation: lambda error: errors.InvalidRequest(),
    django_exceptions.BadRequest: lambda error: errors.InvalidRequest(),
    django_exceptions.ValidationError: lambda error: fields.failed(get_error_detail(error)),
    MultiPartParserError: lambda error: errors.InvalidRequest(),
}


def register(error: type[Exception], api_error: Callable[[Any], ApiError]) -> None:
    _converters[error] = api_error


def to_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    for kind in type(error).__mro__:
        if kind in _converters:
            return _converters[kind](error)
    if sqlstates.is_database_error(error):
        return sqlstates.error_for(error)
    return errors.Internal()


def report(error: Exception, answer: ApiError) -> None:
    if isinstance(error, ApiError) and answer.status != 500:
        return
    state = None
    if sqlstates.is_database_error(error):
        state = sqlstates.sqlstate(error)
        DATABASE_ERRORS.labels(state or "none").inc()
    if answer.status == 500:
        log.error("unexpected %s", type(error).__name__, exc_info=error, extra={"sqlstate": state})
    elif sqlstates.is_database_error(error):
        log.warning("answered %d for %s", answer.status, type(error).__name__, extra={"sqlstate": state})


def respond(answer: ApiError) -> HttpResponse:
    response = HttpResponse(
        orjson.dumps(answer.body(current_request_id())),
        status=answer.status,
        content_type="application/json",
        headers=answer.headers,
    )
    response.__dict__[ERROR_ATTRIBUTE] = answer
    response._has_been_logged = True  # type: ignore[attr-defined]  # the access log has it; Django would log it twice
    return response
