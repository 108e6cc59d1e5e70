"""The verbs of identity providers: add, change, remove. Each in one transaction with its audit entry.

What says who somebody is (kind, issuer, endpoints, paths of fields) is fixed when a provider is added: a provider that
moved would hand its users' accounts to whoever answers at the new place. Remove it and add another one instead.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from accounts import audit
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.directory import locks as account_locks
from accounts.models.oauth import IdentityProvider
from accounts.oauth import metadata
from accounts.users.service import UNSET, Unset
from platform_site.http.errors import FieldError, NotFound, QuotaExceeded, ValidationFailed
from platform_site.identity.callers import Caller
from platform_site.outbound import BadUrl, parse_url
from platform_site.outbound.ssrf import is_allowed, networks

MOST: Final = 20
"""Providers of a pool."""
NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,47}", re.ASCII)
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}", re.ASCII)
_PATH: Final = re.compile(r"[A-Za-z0-9_-]{1,50}(?:\.[A-Za-z0-9_-]{1,50}){0,4}", re.ASCII)
_SECRET: Final = re.compile(r"[\x20-\x7e]{1,2000}", re.ASCII)
_REASSIGNABLE: Final = frozenset(
    ("login", "username", "user_name", "preferred_username", "nickname", "nick", "handle", "slug", "screen_name")
    + (
        "name",
        "display_name",
        "displayname",
        "full_name",
        "email",
        "email_address",
        "mail",
        "upn",
        "unique_name",
        "phone",
    )
)
"""Last names of paths, in lower case, whose value a provider may later give to another person."""
FIELDS: Final = ("subject", "email", "email_verified", "name")
OIDC_SCOPES: Final = ("openid", "email", "profile")
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint")

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "google": {"display_name": "Google", "issuer": "https://accounts.google.com"},
    "gitlab": {"display_name": "GitLab", "issuer": "https://gitlab.com"},
    "github": {
        "display_name": "GitHub",
        "authorization_endpoint": "https://github.com/login/oauth/authorize",
        "token_endpoint": "https://github.com/login/oauth/access_token",
        "userinfo_endpoint": "https://api.github.com/user",
        "emails_endpoint": "https://api.github.com/user/emails",
        "profile_fields": {"subject": "id", "email": "email", "name": "name"},
        "scopes": ["read:user", "user:email"],
    },
}
"""What `--preset` and `preset` fill in. Everything given beside it counts more."""


def add(
    pool_id: str | None,
    *,
    name: str,
    client_id: str,
    client_secret: str | None,
    actor: Caller | Actor,
    display_name: str = "",
    issuer: str | None = None,
    authorization_endpoint: str | None = None,
    token_endpoint: str | None = None,
    userinfo_endpoint: str | None = None,
    emails_endpoint: str | None = None,
    profile_fields: Mapping[str, str] | None = None,
    scopes: Sequence[str] = (),
    client_auth: str | None = None,
    trusts_email: bool = False,
    sign_up: bool = True,
    enabled: bool = True,
) -> IdentityProvider:
    """A provider of the pool `pool_id` (None: platform accounts): OpenID Connect if it has an issuer, else OAuth 2.

    Raises ValidationFailed naming each field that will not do, QuotaExceeded.
    """
    endpoints = {
        "authorization_endpoint": authorization_endpoint,
        "token_endpoint": token_endpoint,
        "userinfo_endpoint": userinfo_endpoint,
        "emails_endpoint": emails_endpoint,
    }
    fields = dict(profile_fields or {})
    wrong = _wrong_trust(issuer, trusts_email) + problems(
        name=name,
        client_id=client_id,
        client_secret=client_secret,
        issuer=issuer,
        endpoints=endpoints,
        profile_fields=fields,
        scopes=scopes,
        client_auth=client_auth,
    )
    if wrong:
        raise ValidationFailed(fields=wrong)
    provider = IdentityProvider(
        environment_id=pool_id,
        name=name,
        display_name=display_name or name.title(),
        profile_fields=fields,
        client_id=client_id,
        client_auth=client_auth,
        trusts_email=trusts_email,
        sign_up=sign_up,
        enabled=enabled,
        **(_of_issuer(issuer, scopes) if issuer is not None else _of_endpoints(endpoints, scopes)),
    )
    provider.client_secret = client_secret
    _store(provider, actor)
    return provider


def _of_issuer(issuer: str, scopes: Sequence[str]) -> dict[str, Any]:
    return {"kind": IdentityProvider.Kind.OIDC, "issuer": issuer, "scopes": list(scopes or OIDC_SCOPES)}


def _of_endpoints(endpoints: Mapping[str, str | None], scopes: Sequence[str]) -> dict[str, Any]:
    return {"kind": IdentityProvider.Kind.OAUTH2, "scopes": list(scopes), **endpoints}


def _store(provider: IdentityProvider, actor: Caller | Actor) -> None:
    """Write a new one down, with its audit entry. Raises QuotaExceeded, ValidationFailed where its name is taken."""
    pool_id = provider.environment_id
    with transaction.atomic():
        environment_directory.stay(pool_id)
        account_locks.hold(f"identity providers of {pool_id}")
        if of_pool(pool_id).count() >= MOST:
            raise QuotaExceeded(f"An environment has at most {MOST} identity providers.")
        _save_with_free_name(provider)
        audit.record(
            "identity_provider.added",
            actor=actor,
            target_id=provider.pk,
            environment_id=pool_id,
            name=provider.name,
            kind=provider.kind,
            issuer=provider.issuer,
        )


def _save_with_free_name(provider: IdentityProvider) -> None:
    try:
        with transaction.atomic():
            provider.save(force_insert=True)
    except IntegrityError as error:
        if "provider_name_unique_in_pool" not in str(error):
            raise
        raise ValidationFailed.of("name", "taken", "Another provider has this name.") from None


def change(
    provider: IdentityProvider,
    *,
    actor: Caller | Actor,
    display_name: str | Unset = UNSET,
    client_id: str | Unset = UNSET,
    client_secret: str | Unset = UNSET,
    scopes: Sequence[str] | Unset = UNSET,
    trusts_email: bool | Unset = UNSET,
    sign_up: bool | Unset = UNSET,
    enabled: bool | Unset = UNSET,
) -> IdentityProvider:
    """Change what is given. Raises ValidationFailed, and NotFound if the provider is gone by now."""
    wrong = _wrong_names(
        provider.name,
        () if isinstance(scopes, Unset) else scopes,
        provider.client_id if isinstance(client_id, Unset) else client_id,
        None if isinstance(client_secret, Unset) else client_secret,
    ) + _wrong_trust(provider.issuer, trusts_email is True)
    if wrong:
        raise ValidationFailed(fields=wrong)
    with transaction.atomic():
        locked = IdentityProvider.objects.select_for_update().filter(pk=provider.pk).first()
        if locked is None:
            raise NotFound
        changed = []
        given = {
            "display_name": display_name,
            "client_id": client_id,
            "scopes": scopes,
            "trusts_email": trusts_email,
            "sign_up": sign_up,
            "enabled": enabled,
        }
        for field, value in given.items():
            if not isinstance(value, Unset) and getattr(locked, field) != value:
                setattr(locked, field, value)
                changed.append(field)
        if not isinstance(client_secret, Unset):
            locked.client_secret = client_secret
            changed.append("sealed_client_secret")
        if changed:
            locked.save(update_fields=changed)
            audit.record(
                "identity_provider.changed",
                actor=actor,
                target_id=locked.pk,
                environment_id=locked.environment_id,
                fields=[field.removeprefix("sealed_") for field in changed],
            )
    return locked


def remove(provider: IdentityProvider, *, actor: Caller | Actor) -> int:
    """Delete a provider and its identities; how many of these. Their users stay, and so do sessions.

    Raises NotFound if another call was first.
    """
    with transaction.atomic():
        locked = IdentityProvider.objects.select_for_update().filter(pk=provider.pk).first()
        if locked is None:
            raise NotFound
        count = locked.identities.count()
        locked.delete()
        audit.record(
            "identity_provider.removed",
            actor=actor,
            target_id=provider.pk,
            environment_id=provider.environment_id,
            name=provider.name,
            identities=count,
        )
    return count


def of_pool(pool_id: str | None) -> "QuerySet[IdentityProvider]":
    """The providers by which users of a pool sign in (None: platform accounts), in the order of their names."""
    return IdentityProvider.objects.filter(environment_id=pool_id).order_by("name")


def callback_url(provider: IdentityProvider) -> str:
    """The redirect URI to register at the provider: each has one of its own.

    With one for all a hostile tenant could lead somebody to another's provider and have the code brought to its own
    token endpoint (mix-up, RFC 9700 4.4.2). The nonce does not help: who does that puts the one of a flow of their own
    there, and ends that flow with the code.
    """
    return f"{settings.BASE_URL}/v1/auth/callback/{provider.pk}"


def problems(
    *,
    name: str,
    client_id: str,
    client_secret: str | None,
    issuer: str | None,
    endpoints: Mapping[str, str | None],
    profile_fields: Mapping[str, str],
    scopes: Sequence[str],
    client_auth: str | None,
) -> list[FieldError]:
    """What is wrong with a provider that somebody wants to add; empty if nothing is. Asks nobody."""
    wrong = [
        *_wrong_names(name, scopes, client_id, client_secret),
        *_wrong_addresses(issuer, endpoints),
        *_wrong_fields(profile_fields, is_oidc=issuer is not None),
    ]
    if client_auth is not None and (client_auth == "none") != (client_secret is None):
        wrong.append(FieldError("client_auth", "no_match", "`none` is for a client without a secret, and only for it."))
    return wrong


def _wrong_names(name: str, scopes: Sequence[str], client_id: str, client_secret: str | None) -> list[FieldError]:
    wrong = []
    if not NAME.fullmatch(name):
        wrong.append(FieldError("name", "invalid_name", "1-48 of a-z, 0-9, - and _, beginning with a letter."))
    if len(scopes) > 30 or not all(_SCOPE.fullmatch(scope) for scope in scopes):
        wrong.append(FieldError("scopes", "invalid_scope", "At most 30 scopes of visible ASCII (RFC 6749 3.3)."))
    if not _SECRET.fullmatch(client_id) or len(client_id) > 300:
        wrong.append(FieldError("client_id", "invalid", "1-300 characters of ASCII."))
    if client_secret is not None and not _SECRET.fullmatch(client_secret):
        wrong.append(FieldError("client_secret", "invalid", "1-2000 characters of ASCII."))
    return wrong


def _wrong_addresses(issuer: str | None, endpoints: Mapping[str, str | None]) -> list[FieldError]:
    wrong = []
    named = {field: url for field, url in endpoints.items() if url is not None}
    if issuer is not None:
        wrong += [
            FieldError(field, "not_with_issuer", "An issuer's endpoints are in its discovery document.")
            for field in named
        ]
        if "?" in issuer:
            wrong.append(FieldError("issuer", "invalid_url", "An issuer has no query."))
        named = {"issuer": issuer}
    else:
        wrong += [
            FieldError(field, "required", "Needed where there is no issuer.")
            for field in _ENDPOINTS[:3]
            if field not in named
        ]
    for field, url in named.items():
        if len(url) > 500:
            wrong.append(FieldError(field, "too_long", "At most 500 characters."))
            continue
        # No name is resolved here: each call checks what its name means by then.
        try:
            target = parse_url(url)
        except BadUrl as error:
            wrong.append(FieldError(field, error.code, str(error)))
            continue
        opened = networks(tuple(settings.OUTBOUND_ALLOWED_NETWORKS))
        if target.address is not None and not is_allowed(target.address, opened):
            wrong.append(FieldError(field, "address_not_allowed", "The host is not on the public internet."))
        elif target.scheme != "https" and settings.PRODUCTION:
            wrong.append(FieldError(field, "not_https", "The address must start with https://."))
    return wrong


def _wrong_trust(issuer: str | None, trusts_email: bool) -> list[FieldError]:
    if not trusts_email or not metadata.is_multi_tenant(issuer):
        return []
    reason = "Any tenant of this issuer can claim any email. Use the issuer of one tenant."
    return [FieldError("trusts_email", "multi_tenant", reason)]


def _wrong_fields(fields: Mapping[str, str], *, is_oidc: bool) -> list[FieldError]:
    if fields and is_oidc:
        return [
            FieldError("profile_fields", "not_with_issuer", "The claims of OpenID Connect have names of their own.")
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
