"""Service of identity providers: add, change, remove. What determines identities (kind, endpoints, field paths) is
fixed: a changed provider could take over its users' accounts. The issuer can change while no user is linked. Makes no
requests: `accounts.oauth.discovery` checks an issuer before."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet

from accounts import audit, changes
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models.oauth import IdentityProvider
from accounts.oauth import checks, client_secrets
from platform_site.http.errors import Conflict, FieldError, NotFound, QuotaExceeded, ValidationFailed, first_or
from platform_site.identity.callers import Caller

MAX_PROVIDERS: Final = 20
OIDC_SCOPES: Final = ("openid", "email", "profile")
_CREDENTIALS: Final = ("client_secret", *client_secrets.SIGNING_KEY)

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "google": {"display_name": "Google", "issuer": "https://accounts.google.com"},
    "apple": {
        "display_name": "Apple",
        "issuer": "https://appleid.apple.com",
        "scopes": ["openid", "name", "email"],
        "client_auth": "client_secret_post",
        "response_mode": "form_post",
    },
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
"""What a preset fills in; explicit values take precedence."""


def check_count(count: int) -> None:
    """Raises QuotaExceeded if an environment may not have so many."""
    if count > MAX_PROVIDERS:
        raise QuotaExceeded(f"An environment has at most {MAX_PROVIDERS} identity providers.")


def add(
    pool_id: str | None,
    *,
    actor: Caller | Actor,
    issuer_errors: Sequence[FieldError] = (),
    **values: Any,
) -> IdentityProvider:
    """Add a provider to the pool `pool_id` (None: platform accounts), with the values of `draft`. `issuer_errors` come
    from `accounts.oauth.discovery`. Raises ValidationFailed naming all wrong fields, QuotaExceeded."""
    provider, problems = draft(pool_id, **values)
    if wrong := [*issuer_errors, *problems]:
        raise ValidationFailed(fields=wrong)
    with transaction.atomic():
        hold(pool_id)
        check_count(of_pool(pool_id).count() + 1)
        if of_pool(pool_id).filter(name=provider.name).exists():
            raise ValidationFailed.of("name", "taken", "Another provider has this name.")
        provider.save(force_insert=True)
        audit.record(
            "identity_provider.added",
            provider,
            actor=actor,
            name=provider.name,
            kind=provider.kind,
            issuer=provider.issuer,
        )
    return provider


def draft(
    pool_id: str | None,
    *,
    client_secret: str | None = None,
    private_key: str | None = None,
    preset: str | None = None,
    secret_follows: bool = False,
    **columns: Any,
) -> tuple[IdentityProvider, list[FieldError]]:
    """A new provider, and the errors of its fields: OpenID Connect if it has an issuer, else OAuth 2. `columns` are
    those of `IdentityProvider`; with `secret_follows` a secret may be missing."""
    provider = IdentityProvider(
        environment_id=pool_id, kind=IdentityProvider.Kind.OAUTH2, **{**PRESETS.get(preset or "", {}), **columns}
    )
    provider.display_name = provider.display_name or provider.name.title()
    if provider.issuer is not None:
        provider.kind = IdentityProvider.Kind.OIDC
        provider.scopes = provider.scopes or list(OIDC_SCOPES)
    problems = checks.problems(provider, client_secret, private_key, secret_follows=secret_follows)
    if not problems:
        provider.client_secret = client_secret
        provider.private_key = private_key
    return provider, problems


def change(
    provider: IdentityProvider,
    *,
    actor: Caller | Actor,
    issuer_errors: Sequence[FieldError] = (),
    **values: Any,
) -> IdentityProvider:
    """Change the given values, those of `serializers.ProviderChanges`. A client secret replaces a signing key and vice
    versa; another issuer clears both, unless new ones are given. Raises ValidationFailed, NotFound, and Conflict for
    another issuer while users are linked."""
    if wrong := problems_of_change(provider, issuer_errors=issuer_errors, **values):
        raise ValidationFailed(fields=wrong)
    with transaction.atomic():
        locked = _locked(provider)
        issuers: dict[str, str | None] = {}
        if values.get("issuer", locked.issuer) != locked.issuer:
            if locked.identities.exists():
                raise Conflict("Users are linked by this issuer. Remove the provider and add another one.")
            issuers = {"issuer": values["issuer"], "previous_issuer": locked.issuer}
        columns = {name: value for name, value in values.items() if name not in _CREDENTIALS}
        changed = changes.apply(locked, columns)
        if issuers or values.get("client_secret") is not None or values.get("private_key") is not None:
            changed += _replace_credentials(locked, values)
        if changed:
            locked.save(update_fields=changed)
            fields = [field.removeprefix("sealed_") for field in changed]
            audit.record("identity_provider.changed", locked, actor=actor, fields=fields, **issuers)
    return locked


def problems_of_change(
    provider: IdentityProvider, *, issuer_errors: Sequence[FieldError] = (), **values: Any
) -> list[FieldError]:
    """The errors of `change`, but for Conflict and NotFound."""
    secret, key = values.get("client_secret"), [values.get(name) for name in client_secrets.SIGNING_KEY]
    client_id, scopes = values.get("client_id", provider.client_id), values.get("scopes", ())
    wrong = checks.problems_of_names(provider.name, scopes, client_id, secret)
    if "issuer" in values and provider.kind != IdentityProvider.Kind.OIDC:
        message = "A plain OAuth 2 provider must not have an issuer."
        wrong.append(FieldError("issuer", "not_with_endpoints", message))
    elif "issuer" in values:
        wrong += checks.problems_of_urls(values["issuer"], {}) or issuer_errors
    wrong += client_secrets.problems(*key, issuer=provider.issuer, has_secret=secret is not None)
    wrong += checks.problems_of_trust(
        values.get("issuer", provider.issuer), values.get("trusts_email", provider.trusts_email)
    )
    return wrong


def _locked(provider: IdentityProvider) -> IdentityProvider:
    hold(provider.environment_id)
    return first_or(IdentityProvider.objects.select_for_update().filter(pk=provider.pk), NotFound)


def _replace_credentials(provider: IdentityProvider, values: Mapping[str, Any]) -> list[str]:
    had_key = provider.sealed_private_key is not None
    for name in _CREDENTIALS:
        setattr(provider, name, values.get(name))
    has_changed_key = had_key or values.get("private_key") is not None
    return ["sealed_client_secret", *(["team_id", "key_id", "sealed_private_key"] if has_changed_key else [])]


def remove(provider: IdentityProvider, *, actor: Caller | Actor) -> int:
    """Returns the number of identities that went with it. Raises NotFound."""
    with transaction.atomic():
        locked = _locked(provider)
        count = locked.identities.count()
        locked.delete()
        audit.record("identity_provider.removed", provider, actor=actor, name=provider.name, identities=count)
    return count


def hold(pool_id: str | None) -> None:
    environment_directory.lock_settings(pool_id, "identity providers")


def of_pool(pool_id: str | None) -> "QuerySet[IdentityProvider]":
    return IdentityProvider.objects.filter(environment_id=pool_id).order_by("name")
