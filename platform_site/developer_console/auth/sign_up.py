from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console import forms
from platform_site.developer_console.auth.users import render
from platform_site.developer_console.forms import Field
from platform_site.developer_console.frame import Console, page

_LINKS: Final = {
    "sign_up": "confirm a sign-up",
    "invitation": "accept an invitation",
    "verify_email": "verify an email",
    "reset_password": "reset a password",
    "change_email": "change an email",
}
_SETTINGS: Final = (
    Field(
        "sign_up",
        "Who may sign up",
        "select",
        choices=(("off", "Nobody"), ("invited", "Invited people only"), ("open", "Everyone")),
    ),
    Field("app_name", "Name of the application in emails"),
    Field("app_url", "URL of the application in emails", "url", placeholder="https://app.example.com"),
    *(
        Field(f"link_urls.{name}", f"Your page to {title}", placeholder="https://app.example.com/page?token={token}")
        for name, title in _LINKS.items()
    ),
)
_REDIRECTS: Final = (
    Field(
        "redirect_uris",
        "Redirect URIs, one per line",
        "textarea",
        rows=5,
        placeholder="https://app.example.com/signed-in",
        help="Providers send your users back only to these URLs. They are compared exactly.",
    ),
)


def _settings(console: Console) -> dict[str, Any]:
    found = console.api("GET", "/v1/auth/settings")
    return found | {f"link_urls.{name}": url for name, url in found["link_urls"].items()}


def _save(console: Console) -> dict[str, Any]:
    forms.refuse_stale(console, _SETTINGS, _settings(console))
    values = forms.read(_SETTINGS, console.request.POST)
    links = {name: url for name in _LINKS if (url := values.pop(f"link_urls.{name}"))}
    console.api("PATCH", "/v1/auth/settings", values | {"link_urls": links})
    return {"notice": "The sign-up settings are saved."}


def _save_redirects(console: Console) -> dict[str, Any]:
    forms.refuse_stale(console, _REDIRECTS, console.api("GET", "/v1/redirect-uris"))
    console.api("PUT", "/v1/redirect-uris", forms.read(_REDIRECTS, console.request.POST))
    return {"notice": "The redirect URIs are saved."}


@page("auth", {"settings": _save, "redirects": _save_redirects})
def sign_up(console: Console) -> HttpResponse:
    form = forms.edit_form_of(console, "settings", _SETTINGS, _settings(console))
    uris = console.api("GET", "/v1/redirect-uris")
    redirects = forms.edit_form_of(console, "redirects", _REDIRECTS, uris)
    return render(console, "console/sign_up.html", "Sign-up", {"form": form, "redirects": redirects})
