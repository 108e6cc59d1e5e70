"""Validates the settings of an identity provider, without requests (`discovery` makes those)."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from django.conf import settings

from accounts.models.oauth import IdentityProvider
from accounts.oauth import client_secrets
from accounts.oauth.client import metadata
from platform_site.http.errors import FieldError
from platform_site.outbound import BadUrl, parse_url
from platform_site.outbound.ssrf import is_allowed, networks

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,47}", re.ASCII)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}", re.ASCII)
_PATH: Final = re.compile(r"[A-Za-z0-9_-]{1,50}(?:\.[A-Za-z0-9_-]{1,50}){0,4}", re.ASCII)
_SECRET: Final = re.compile(r"[\x20-\x7e]{1,2000}", re.ASCII)
_REASSIGNABLE: Final = frozenset(
    "login username user_name preferred_username nickname nick handle slug screen_name name display_name displayname "
    "full_name email email_address mail upn unique_name phone".split()
)
"""Path endings, in lower case, whose value a provider may reassign to another person."""
FIELDS: Final = ("subject", "email", "email_verified", "name")
ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint")


def problems(
    provider: IdentityProvider, client_secret: str | None, private_key: str | None, *, secret_follows: bool = False
) -> list[FieldError]:
    """The errors of a new provider with this secret or key; with `secret_follows` both may be missing."""
    wrong = [
        *problems_of_trust(provider.issuer, provider.trusts_email),
        *problems_of_names(provider.name, provider.scopes, provider.client_id, client_secret),
        *problems_of_urls(provider.issuer, {name: getattr(provider, name) for name in ENDPOINTS}),
        *_problems_of_fields(provider.profile_fields, is_oidc=provider.issuer is not None),
    ]
    auth = provider.client_auth
    has_secret = client_secret is not None or private_key is not None or (secret_follows and auth != "none")
    if auth is not None and has_secret == (auth == "none"):
        wrong.append(FieldError("client_auth", "no_match", "Use `none` for a client without a secret, and only then."))
    return wrong + client_secrets.problems(
        provider.team_id, provider.key_id, private_key, issuer=provider.issuer, has_secret=client_secret is not None
    )


def problems_of_names(name: str, scopes: Sequence[str], client_id: str, client_secret: str | None) -> list[FieldError]:
    wrong = []
    if not NAME.fullmatch(name):
        wrong.append(FieldError("name", "invalid_name", "Must be 1-48 of a-z, 0-9, - and _, beginning with a letter."))
    if len(scopes) > 30 or not all(_SCOPE.fullmatch(scope) for scope in scopes):
        wrong.append(FieldError("scopes", "invalid_scope", "Must be at most 30 scopes of visible ASCII (RFC 6749)."))
    if not _SECRET.fullmatch(client_id) or len(client_id) > 300:
        wrong.append(FieldError("client_id", "invalid", "Must be 1-300 ASCII characters."))
    if client_secret is not None and not _SECRET.fullmatch(client_secret):
        wrong.append(FieldError("client_secret", "invalid", "Must be 1-2000 ASCII characters."))
    return wrong


def problems_of_urls(issuer: str | None, endpoints: Mapping[str, str | None]) -> list[FieldError]:
    wrong = []
    named = {field: url for field, url in endpoints.items() if url is not None}
    if issuer is not None:
        wrong += [
            FieldError(field, "not_with_issuer", "An issuer's endpoints are in its discovery document.")
            for field in named
        ]
        if "?" in issuer:
            wrong.append(FieldError("issuer", "invalid_url", "An issuer must not have a query."))
        named = {"issuer": issuer}
    else:
        wrong += [
            FieldError(field, "required", "Required without an issuer.")
            for field in ENDPOINTS[:3]
            if field not in named
        ]
    for field, url in named.items():
        if len(url) > 500:
            wrong.append(FieldError(field, "too_long", "Must have at most 500 characters."))
            continue
        # Names are not resolved here: each request checks the address that its name has then.
        try:
            target = parse_url(url)
        except BadUrl as error:
            wrong.append(FieldError(field, error.code, str(error)))
            continue
        opened = networks(tuple(settings.OUTBOUND_ALLOWED_NETWORKS))
        if target.address is not None and not is_allowed(target.address, opened):
            wrong.append(FieldError(field, "address_not_allowed", "The host is not on the public internet."))
        elif target.scheme != "https" and settings.PRODUCTION:
            wrong.append(FieldError(field, "not_https", "The URL must start with https://."))
    return wrong


def problems_of_trust(issuer: str | None, trusts_email: bool) -> list[FieldError]:
    if not trusts_email or not metadata.is_multi_tenant(issuer):
        return []
    reason = "Any tenant of this issuer can claim any email. Use the issuer of one tenant."
    return [FieldError("trusts_email", "multi_tenant", reason)]


def _problems_of_fields(fields: Mapping[str, str], *, is_oidc: bool) -> list[FieldError]:
    if fields and is_oidc:
        return [
            FieldError("profile_fields", "not_with_issuer", "OpenID Connect defines its claim names: leave this out.")
        ]
    wrong = []
    for field, path in fields.items():
        if field not in FIELDS:
            wrong.append(FieldError(f"profile_fields.{field}"[:100], "unknown_field", f"One of {', '.join(FIELDS)}."))
        elif not isinstance(path, str) or not _PATH.fullmatch(path):
            wrong.append(
                FieldError(f"profile_fields.{field}", "invalid_path", "Names joined by dots, such as data.id.")
            )
        elif field == "subject" and path.rpartition(".")[2].lower() in _REASSIGNABLE:
            wrong.append(
                FieldError(
                    "profile_fields.subject",
                    "reassignable",
                    "A provider can give this value to another person, who would then own the account. "
                    "Use a permanent identifier such as id or sub.",
                )
            )
    return wrong
