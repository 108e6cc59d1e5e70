from typing import Any, Final

from django.http import HttpResponse

from accounts.oauth.providers import PRESETS
from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.auth.users import render
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Console, go_to, operation, page

_OTHER: Final = ""
_APPLE: Final = (
    Field("team_id", "Team id", help="Instead of a client secret, with the next two fields.", types=("apple",)),
    Field("key_id", "Key id", types=("apple",)),
    Field(
        "private_key", "Private key (PEM)", "secret", help="Stored encrypted and never shown again.", types=("apple",)
    ),
)
_NEW: Final = (
    Field(
        "preset",
        "Provider",
        "select",
        choices=(
            *((name, preset["display_name"]) for name, preset in PRESETS.items()),
            (_OTHER, "Another one, with OpenID Connect"),
        ),
        chooses_types=True,
    ),
    Field(
        "name",
        "Name",
        placeholder="google",
        help="Your application names it when it starts a sign-in. Empty: the preset's.",
    ),
    Field("issuer", "Issuer", "url", placeholder="https://login.example.com", types=(_OTHER,)),
    Field("client_id", "Client id", required=True),
    Field("client_secret", "Client secret", "password", help="Stored encrypted and never shown again."),
    *_APPLE,
)
_OPTIONS: Final = (
    Field("sign_up", "Create users for unknown identities, if sign-up is allowed", "checkbox"),
    Field("trusts_email", "Trust emails that it does not mark as verified: only your own directory", "checkbox"),
    Field("enabled", "Enabled", "checkbox"),
)
_WITH_SECRETS: Final = frozenset(
    PRESETS[name].get("issuer") or PRESETS[name]["authorization_endpoint"] for name in ("google", "apple", "github")
)
"""Issuers or endpoints without public clients."""


def _needs_secret(provider: dict[str, Any]) -> bool:
    """Whether sign-ins fail until a client secret is set."""
    if provider["has_client_secret"] or provider["client_auth"] == "none":
        return False
    where = provider["issuer"] or provider["authorization_endpoint"]
    return provider["client_auth"] is not None or where in _WITH_SECRETS


def _fields(provider: dict[str, Any]) -> tuple[Field, ...]:
    issuer = (Field("issuer", "Issuer", "url", help="Changing the issuer removes the client secret."),)
    kept = "Empty: keep the current one." if provider["has_client_secret"] else ""
    return (
        Field("display_name", "Name on buttons"),
        *(issuer if provider["issuer"] else ()),
        Field("client_id", "Client id", required=True),
        Field("client_secret", "Client secret", "password", help=kept),
        *(_APPLE if provider["team_id"] else ()),
        Field("scopes", "Scopes, one per line", "textarea"),
        *_OPTIONS,
    )


def _edit(console: Console, provider_id: str) -> dict[str, Any]:
    """Only differences are sent: a changed issuer is checked and clears the secret."""
    current = console.api("GET", path_to("identity-providers", provider_id))
    fields = _fields(current)
    forms.refuse_stale(console, fields, current)
    values = forms.read(fields, console.request.POST)
    body = {name: value for name, value in values.items() if value not in ("", current.get(name))}
    console.api("PATCH", path_to("identity-providers", provider_id), body)
    return {"notice": "The provider is saved."}


def _add(console: Console) -> HttpResponse:
    body = {name: value for name, value in forms.read(_NEW, console.request.POST).items() if value}
    body.setdefault("name", body.get("preset", ""))
    made = console.api("POST", "/v1/identity-providers", body)
    return go_to(console.request, console.url("provider", made["id"]))


@page("auth", {"new": _add})
def providers(console: Console) -> HttpResponse:
    found = [each | {"needs_secret": _needs_secret(each)} for each in console.listed("/v1/identity-providers")]
    form = forms.form_of(console, "new", _NEW, {"preset": "google"})
    return render(console, "console/providers.html", "Providers", {"providers": found, "form": form})


@page("auth", {"edit": _edit, "delete": operation("DELETE", "identity-providers/:provider_id", next_page="providers")})
def provider(console: Console, provider_id: str) -> HttpResponse:
    current = console.api("GET", path_to("identity-providers", provider_id))
    fields = _fields(current)
    # The page shows every error in its one form.
    submitted = console.request.POST if console.refusal else None
    form = Form("edit", fields, current, console.refusal, submitted, forms.fingerprint_of(fields, current))
    context = {"provider": current, "needs_secret": _needs_secret(current), "form": form}
    return render(console, "console/provider.html", "", context)
