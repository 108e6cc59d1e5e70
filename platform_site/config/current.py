import hashlib
from base64 import b32encode
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.db.models import F, Sum
from django.db.models.functions import Length

from accounts.models.oauth import IdentityProvider
from accounts.oauth import providers, redirects
from accounts.registration import pool_settings
from functions.models import Function, Secret, Version
from platform_site.config import credentials
from platform_site.http import exact_json
from platform_site.http.errors import Forbidden, ValidationFailed
from platform_site.identity.callers import APP_USERS, Caller, EnvironmentRef
from projects.models import Environment
from rows.migrate import versions as schema_versions
from webhooks.models import Webhook

PARTS: Final = ("schema", "functions", "webhooks", "auth", "origins")
IN_REGION: Final = frozenset({"schema", "functions", "webhooks"})
READ_SCOPES: Final[Mapping[str, tuple[str, ...]]] = {
    "schema": ("schema:read",),
    "functions": ("functions:read",),
    "webhooks": ("webhooks:read",),
    "auth": ("users:manage", "environments:write"),
    "origins": ("environments:read",),
}
MAX_SOURCE_CHARACTERS: Final = 8 * 2**20
_FUNCTION_FIELDS: Final = ("timeout_ms", "memory_mb", "invoke", "attempts", "schedule")
_WEBHOOK_FIELDS: Final = ("filter", "columns", "ordering", "description", "enabled")
ENDPOINTS: Final = (
    "issuer", "authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint",
)  # fmt: skip
PROVIDER_FIELDS: Final = (
    "display_name", "profile_fields", "client_id", "client_auth", "trusts_email", "sign_up", "enabled",
)  # fmt: skip


Parts = dict[str, Any]
"""The document, with `source_sha256` in place of sources."""


def version_of(parts: Parts) -> str:
    """Equal for equal parts."""
    digest = hashlib.sha256(exact_json.canonical(parts)).digest()
    return "cfg_" + b32encode(digest[:16]).decode().rstrip("=").lower()


def require_scopes(caller: Caller, needed: Collection[str]) -> None:
    """Raise Forbidden with every missing scope; app users have none."""
    if caller.kind in APP_USERS:
        raise Forbidden("The configuration is for members and server keys.")
    missing = sorted(scope for scope in needed if not caller.may(scope))
    if missing:
        raise Forbidden(f"This needs the scopes {', '.join(missing)}.")


def read(environment: EnvironmentRef, parts: Collection[str]) -> Parts:
    """In the order of PARTS."""
    found: Parts = {}
    if "schema" in parts:
        found["schema"] = schema_versions.current(environment).schema.document
    if "functions" in parts:
        found["functions"] = _functions(environment)
    if "webhooks" in parts:
        found["webhooks"] = _webhooks(environment)
    if "auth" in parts:
        found["auth"] = _auth(environment)
    if "origins" in parts:
        found["origins"] = sorted(Environment.objects.get(pk=environment.environment_id).allowed_origins)
    return found


def with_sources(environment: EnvironmentRef, parts: Parts) -> dict[str, Any]:
    """With the functions' sources. Two queries. Raises ValidationFailed if they are too large."""
    if "functions" not in parts:
        return parts
    active = _active_versions(environment)
    if (active.aggregate(total=Sum(Length("source")))["total"] or 0) > MAX_SOURCE_CHARACTERS:
        raise ValidationFailed.of(
            "parts", "too_large", "The sources of the functions are larger than 8 MB in total. Request other parts."
        )
    sources = dict(active.values_list("function__name", "source"))
    functions = {
        # One that was deployed between the two queries is left out.
        name: {"source": sources[name], **{key: value for key, value in found.items() if key != "source_sha256"}}
        for name, found in parts["functions"].items()
        if name in sources
    }
    return parts | {"functions": functions}


def _active_versions(environment: EnvironmentRef) -> Any:
    versions = Version.objects.using(environment.cluster).filter(function__environment_id=environment.environment_id)
    return versions.filter(number=F("function__active_version"))


def _functions(environment: EnvironmentRef) -> dict[str, Any]:
    hashes = dict(_active_versions(environment).values_list("function_id", "source_hash"))
    return {
        each.name: {
            "source_sha256": hashes.get(each.pk),
            **{name: getattr(each, name) for name in _FUNCTION_FIELDS},
            "allowed_hosts": sorted(each.allowed_hosts),
            "on": sorted(each.events or ()),
            "secret_names": each.secret_names,
        }
        for each in Function.objects.of(environment).order_by("name").prefetch_related("secrets")
    }


def secrets_with_values(environment: EnvironmentRef) -> set[str]:
    """As `function.NAME`."""
    secrets = Secret.objects.using(environment.cluster).filter(
        function__environment_id=environment.environment_id, sealed_value__isnull=False
    )
    return {f"{function}.{name}" for function, name in secrets.values_list("function__name", "name")}


def _webhooks(environment: EnvironmentRef) -> dict[str, Any]:
    return {
        each.name or each.pk: {
            "url": credentials.masked(each.url),
            "events": sorted(each.events),
            **{name: getattr(each, name) for name in _WEBHOOK_FIELDS},
        }
        for each in Webhook.objects.of(environment).lasting().order_by("name", "pk")
    }


def _auth(environment: EnvironmentRef) -> dict[str, Any]:
    """A preview branch has its own redirect URIs; the rest is its source's."""
    found: dict[str, Any] = {"redirect_uris": redirects.of(environment.environment_id)}
    if environment.is_branch:
        return found
    settings = pool_settings.settings_of(environment.pool_id)
    for name in ("sign_up", "app_name", "app_url", "link_urls"):
        found[name] = getattr(settings, name)
    found["providers"] = {
        each.name: _provider(each) for each in providers.of_pool(environment.pool_id).order_by("name")
    }
    return found


def _provider(provider: IdentityProvider) -> dict[str, Any]:
    urls = {name: getattr(provider, name) for name in ENDPOINTS}
    found = {
        **{name: credentials.masked(url) for name, url in urls.items() if url is not None},
        **{name: getattr(provider, name) for name in PROVIDER_FIELDS},
        "scopes": sorted(provider.scopes),
    }
    return {name: value for name, value in found.items() if value is not None}
