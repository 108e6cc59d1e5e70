"""Server-rendered pages, without scripts, to choose a provider and for errors that cannot be sent to an application."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpResponse
from django.template.loader import render_to_string

from accounts.models.oauth import IdentityProvider
from accounts.registration import pool_settings
from platform_site.http.errors import ApiError
from platform_site.http.requests import current_request_id

POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def is_wanted(request: Any) -> bool:
    accepted: str = request._request.META.get("HTTP_ACCEPT", "")
    return "text/html" in accepted


def choice(providers: Iterable[IdentityProvider], query: Mapping[str, str], pool_id: str | None) -> HttpResponse:
    links = [
        {"name": each.display_name, "address": "?" + urlencode({**query, "provider": each.name})} for each in providers
    ]
    title = f"Sign in to {pool_settings.app_name(pool_settings.settings_of(pool_id))}"
    return _page("accounts/choose_provider.html", 200, {"links": links, "title": title})


def failed(error: ApiError) -> HttpResponse:
    context = {
        "title": "Signing in did not work",
        "sentences": [field.message for field in error.fields] or [error.text],
        "request_id": current_request_id(),
    }
    return _page("accounts/sign_in_failed.html", error.status, context, error.headers)


def _page(template: str, status: int, context: dict[str, Any], more: Mapping[str, str] | None = None) -> HttpResponse:
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",  # the URL has the application's state
        "X-Frame-Options": "DENY",
        **(more or {}),
    }
    return HttpResponse(render_to_string(template, context), status=status, headers=headers)
