"""Discovery documents and key sets of providers, cached per process and issuer. A document must name its own issuer
(OpenID Connect Discovery 4.3), and keys are only loaded from its URL: with `iss` in each ID token (`claims`) this
rejects a foreign issuer (GHSA-9wqv-qhrh-87f4)."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from authlib.oidc.discovery import get_well_known_url
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from accounts.models.oauth import IdentityProvider
from accounts.oauth.client.transport import Calls, check_endpoint
from accounts.oauth.errors import ProviderAnswerInvalid
from platform_site.concurrency.memo import Memo

CACHE_SECONDS: Final = 600.0
KEYS_RELOAD_SECONDS: Final = 30.0
"""Minimum seconds between reads of a key set for an unknown key id."""
_REMEMBERED: Final = 200
MAX_KEYS: Final = 40
ALGORITHMS: Final = frozenset("RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA Ed25519".split())
"""Asymmetric only: no `none`, and no HMAC, whose key the client shares."""
TENANT: Final = "{tenantid}"
_TENANT: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MULTI_TENANT: Final = ("common", "organizations")


def is_multi_tenant(issuer: str | None) -> bool:
    return issuer is not None and issuer.rstrip("/").removesuffix("/v2.0").rpartition("/")[2] in _MULTI_TENANT


@dataclass(frozen=True, slots=True)
class Metadata:
    """A provider's endpoints and abilities. `issuer` and `jwks_uri` are set for OpenID Connect."""

    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None
    issuer: str | None = None
    jwks_uri: str | None = None
    auth_methods: tuple[str, ...] = ()
    """Empty: unspecified."""
    algorithms: tuple[str, ...] = ("RS256",)
    issuer_template: str | None = None
    """Microsoft Entra's issuer with `{tenantid}`; `issuer` is then the multi-tenant URL (`/common/v2.0`)."""
    names_itself: bool = False
    """Whether it sends `iss` to the redirect URI (RFC 9207)."""

    def issuer_of(self, claims: dict[str, Any]) -> str:
        if self.issuer_template is None:
            return str(self.issuer)
        tenant = claims.get("tid")
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise ProviderAnswerInvalid("no tenant id (tid)")
        return self.issuer_template.replace(TENANT, tenant)

    def is_issuer(self, issuer: str) -> bool:
        """Whether an authorization response may name this issuer (RFC 9207)."""
        if self.issuer_template is None:
            return issuer == self.issuer
        before, _, after = self.issuer_template.partition(TENANT)
        tenant = issuer.removeprefix(before).removesuffix(after)
        return issuer == f"{before}{tenant}{after}" and _TENANT.fullmatch(tenant) is not None

    def auth_method(self, provider: IdentityProvider) -> str:
        methods = IdentityProvider.ClientAuth
        if provider.client_auth:
            return provider.client_auth
        if not provider.has_client_secret:
            return methods.NONE.value
        if provider.kind == IdentityProvider.Kind.OAUTH2:
            return methods.POST.value
        # The default is Basic (OpenID Connect Discovery 3).
        takes_basic = not self.auth_methods or methods.BASIC.value in self.auth_methods
        return methods.BASIC.value if takes_basic else methods.POST.value


CachedValue = TypeVar("CachedValue")

_documents: Final[Memo[str, tuple[float, Metadata]]] = Memo(_REMEMBERED)
_key_sets: Final[Memo[str, tuple[float, KeySet]]] = Memo(_REMEMBERED)
"""By issuer, with the time of their reading."""


def _cached(
    entries: Memo[str, tuple[float, CachedValue]], issuer: str, read: Callable[[], CachedValue], *, older_than: float
) -> CachedValue:
    """The cached value if it is younger than `older_than` seconds, else what `read` returns."""
    found = entries.get(issuer)
    if found is not None and time.monotonic() - found[0] < older_than:
        return found[1]
    value = read()
    entries.put(issuer, (time.monotonic(), value))
    return value


def of(calls: Calls, *, fresh: bool = False) -> Metadata:
    """The metadata of a provider, cached unless `fresh`. Raises ProviderUnreachable, ProviderAnswerInvalid."""
    provider = calls.provider
    if provider.kind == IdentityProvider.Kind.OIDC:
        issuer = str(provider.issuer)
        older_than = 0 if fresh else CACHE_SECONDS
        return _cached(_documents, issuer, lambda: _discover(calls, issuer), older_than=older_than)
    return Metadata(
        authorization_endpoint=str(provider.authorization_endpoint),
        token_endpoint=str(provider.token_endpoint),
        userinfo_endpoint=provider.userinfo_endpoint,
    )


def _discover(calls: Calls, issuer: str) -> Metadata:
    document = calls.get_object(get_well_known_url(issuer.rstrip("/"), external=True))
    named = document.get("issuer")
    if not isinstance(named, str):
        raise ProviderAnswerInvalid("the discovery document names no issuer")
    is_template = TENANT in named
    # People copy an issuer with or without its last slash. Tokens are compared with the document's spelling.
    accepted = (
        {named.replace(TENANT, tenant).rstrip("/") for tenant in _MULTI_TENANT} if is_template else {named.rstrip("/")}
    )
    if issuer.rstrip("/") not in accepted:
        raise ProviderAnswerInvalid(f"the discovery document is another issuer's: {named[:200]!a}")
    userinfo = document.get("userinfo_endpoint")
    offered = _words(document.get("id_token_signing_alg_values_supported")) or ("RS256",)
    return Metadata(
        issuer=issuer if is_template else named,
        issuer_template=named if is_template else None,
        authorization_endpoint=check_endpoint(document.get("authorization_endpoint")),
        token_endpoint=check_endpoint(document.get("token_endpoint")),
        userinfo_endpoint=None if userinfo is None else check_endpoint(userinfo),
        jwks_uri=check_endpoint(document.get("jwks_uri")),
        auth_methods=_words(document.get("token_endpoint_auth_methods_supported")),
        algorithms=tuple(name for name in offered if name in ALGORITHMS),
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value[:50] if isinstance(one, str)) if isinstance(value, list) else ()


def keys(calls: Calls, metadata: Metadata, *, again: bool = False) -> KeySet:
    """The issuer's keys. `again`: one was missing, so the cache may be outdated."""
    older_than = KEYS_RELOAD_SECONDS if again else CACHE_SECONDS
    return _cached(_key_sets, str(metadata.issuer), lambda: _read_keys(calls, metadata), older_than=older_than)


_PUBLIC: Final = frozenset({"kty", "kid", "use", "alg", "n", "e", "crv", "x", "y"})
_MAX_LENGTH: Final = 2_800
"""Characters of one field: an RSA modulus of 16,384 bits."""


def _public(key: dict[str, Any]) -> dict[str, Any]:
    """The public half of a key: the library would factor a private half, for seconds to minutes. Raises ValueError for
    fields that are too long."""
    public = {name: value for name, value in key.items() if name in _PUBLIC}
    if any(isinstance(value, str) and len(value) > _MAX_LENGTH for value in public.values()):
        raise ValueError("the key has an unsupported length")
    return public


def _read_keys(calls: Calls, metadata: Metadata) -> KeySet:
    listed = calls.get_object(str(metadata.jwks_uri)).get("keys")
    if not isinstance(listed, list):
        raise ProviderAnswerInvalid("no key set")
    usable = []
    for key in listed[:MAX_KEYS]:
        # Unknown kinds may be among the known ones, and are skipped, and symmetric keys, whose value `_public` drops.
        if isinstance(key, dict) and key.get("use", "sig") == "sig":
            try:
                usable += KeySet.import_key_set({"keys": [_public(key)]}).keys
            except (JoseError, ValueError, TypeError, KeyError):
                continue
    if not usable:
        raise ProviderAnswerInvalid("a key set without a signing key")
    return KeySet(usable)
