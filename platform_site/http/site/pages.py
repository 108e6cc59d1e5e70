import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from platform_site.http import exception_handler
from platform_site.http.errors import NotFound
from platform_site.http.requests import current_request_id

_COLOURS: Final = b'<style id="unfold-theme-colors">'
_COLOURS_WITHIN: Final = 10_000


class ContentSecurityPolicy(CSPMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if isinstance(response, HttpResponse) and _COLOURS in response.content[:_COLOURS_WITHIN]:
            # unfold does not support nonces. Other style elements, such as injected ones, stay refused.
            nonce = str(request.csp_nonce).encode()  # type: ignore[attr-defined]  # django-csp's
            response.content = response.content.replace(_COLOURS, b'<style nonce="%s"%s' % (nonce, _COLOURS[6:]), 1)
            if "Content-Length" in response.headers:  # CommonMiddleware has counted already
                response.headers["Content-Length"] = str(len(response.content))
        answered: HttpResponseBase = super().process_response(request, response)
        return answered

    def get_policy_parts(self, request: HttpRequest, response: Any, report_only: bool = False) -> PolicyParts:
        parts = super().get_policy_parts(request=request, response=response, report_only=report_only)
        if not report_only and request.path_info.startswith("/admin/"):
            parts.replace = {**settings.CONSOLE_CONTENT_SECURITY_POLICY, **(parts.replace or {})}
        return parts


def _page(status: int, title: str, sentence: str) -> HttpResponse:
    """Rendered without the request: session or database may be broken."""
    facts = {"status": status, "title": title, "sentence": sentence, "request_id": current_request_id()}
    return HttpResponse(render_to_string("error.html", facts), status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(400, "Bad request", "The URL, the host or the form could not be read.")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(403, "You have no permission to open this page", "Sign in with an account that has this permission.")


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if "text/html" not in request.headers.get("Accept", ""):  # not a browser
        return exception_handler.respond(
            NotFound("There is no such endpoint. Those of the API begin with /v1; /docs has them all.")
        )
    return _page(404, "Page not found", "The URL may be mistyped, or the page no longer exists.")


def server_error(request: HttpRequest) -> HttpResponse:
    error = sys.exception()
    if isinstance(error, Exception):
        api_error = exception_handler.to_api_error(error)
        if api_error.status == 503:
            exception_handler.report(error, api_error)
            page = _page(503, "Not available at the moment", api_error.text)
            for name, value in api_error.headers.items():
                page.headers[name] = value
            page._has_been_logged = True  # type: ignore[attr-defined]  # Django would log a trace for each
            return page
    return _page(500, "Something went wrong on our side", "The error was logged. Trying again may help.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _page(403, "The form is too old", "Go back, reload the page and send it again.")


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    """For pages without an icon. Others link the SVG (`templates/icon.html`)."""
    return HttpResponse(_icon(), content_type="image/x-icon", headers={"Cache-Control": "public, max-age=86400"})


@cache
def _icon() -> bytes:
    return (Path(settings.BASE_DIR) / "platform_site/static/platform_site/favicon.ico").read_bytes()
