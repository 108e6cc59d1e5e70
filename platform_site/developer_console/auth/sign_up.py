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
)
_PAGES: Final = tuple(
    Field(f"link_urls.{name}", f"Your page to {title}", placeholder="https://app.example.com/page?token={token}")
    for name, title in _LINKS.items()
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


def _shown(console: Console) -> dict[str, Any]:
    found = console.api("GET", "/v1/auth/settings")
    links = {f"link_urls.{name}": found["link_urls"].get(name, "") for name in _LINKS}
    return {name: found[name] for name in ("sign_up", "app_name", "app_url")} | links


def _redirect_uris(console: Console) -> list[str]:
    return list(console.api("GET", "/v1/redirect-uris")["redirect_uris"])


def _save(console: Console) -> dict[str, Any]:
    asked = console.request.POST
    forms.refuse_stale(console, forms.fingerprint(_shown(console)))
    links = {name: asked.get(f"link_urls.{name}", "").strip() for name in _LINKS}
    body = {name: asked.get(name, "").strip() for name in ("sign_up", "app_name", "app_url")}
    console.api("PATCH", "/v1/auth/settings", body | {"link_urls": {name: url for name, url in links.items() if url}})
    return {"notice": "The sign-up settings are saved."}


def _save_redirects(console: Console) -> dict[str, Any]:
    forms.refuse_stale(console, forms.fingerprint(_redirect_uris(console)))
    console.api("PUT", "/v1/redirect-uris", forms.read(_REDIRECTS, console.request.POST))
    return {"notice": "The redirect URIs are saved."}


@page("auth", {"settings": _save, "redirects": _save_redirects})
def sign_up(console: Console) -> HttpResponse:
    settings = _shown(console)
    uris = _redirect_uris(console)
    # One form in two parts: its errors without a field are shown in the first.
    fields = (*_SETTINGS, *_PAGES)
    form = forms.form_of(console, "settings", fields, settings, seen=forms.fingerprint(settings))
    shown = {"redirect_uris": uris}
    redirects = forms.form_of(console, "redirects", _REDIRECTS, shown, seen=forms.fingerprint(uris))
    return render(console, "console/sign_up.html", "Sign-up", {"form": form, "redirects": redirects})
