"""Discovery documents and key sets of providers, cached per process and issuer. An issuer's document must name that
issuer itself (OpenID Connect Discovery 4.3), and keys are only loaded from the URL in that document: two thirds of
rejecting a foreign issuer (GHSA-9wqv-qhrh-87f4). The last is `iss` in each ID token (`claims`)."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from authlib.oidc.discovery import get_well_known_url
from cachetools import LRUCache
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from accounts.models.oauth import IdentityProvider
from accounts.oauth.client.transport import Calls, check_endpoint
from accounts.oauth.errors import ProviderAnswerInvalid

CACHE_SECONDS: Final = 600.0
"""Seconds."""
KEYS_RELOAD_SECONDS: Final = 30.0
"""Seconds after which an unknown key id makes the key set be read again."""
MAX_ENTRIES: Final = 200
"""Issuers remembered in a process."""
MOST_KEYS: Final = 40
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""Signatures by a key of the provider's alone. No `none`; no HMAC, whose key the client shares."""
TENANT: Final = "{tenantid}"
_TENANT: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_MULTI_TENANT: Final = ("common", "organizations")


def is_multi_tenant(issuer: str | None) -> bool:
    """Whether this is a Microsoft Entra URL for the users of all tenants."""
    return issuer is not None and issuer.rstrip("/").removesuffix("/v2.0").rpartition("/")[2] in _MULTI_TENANT


@dataclass(frozen=True, slots=True)
class Metadata:
    """Where a provider is and what it can. `issuer` and `jwks_uri` are there for OpenID Connect."""

    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str | None
    issuer: str | None = None
    jwks_uri: str | None = None
    auth_methods: tuple[str, ...] = ()
    """How clients may authenticate; empty: it does not say."""
    algorithms: tuple[str, ...] = ("RS256",)
    issuer_template: str | None = None
    """The issuer with `{tenantid}` where Microsoft Entra names the tenant that issued a token; then `issuer` is the
    multi-tenant URL (`/common/v2.0`), which no token carries."""
    names_itself: bool = False
    """Whether it says who it is when it sends the browser back (RFC 9207)."""

    def issuer_of(self, claims: dict[str, Any]) -> str:
        """The exact `iss` that an ID token with these claims must have."""
        if self.issuer_template is None:
            return str(self.issuer)
        tenant = claims.get("tid")
        if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
            raise ProviderAnswerInvalid("no tenant id (tid)")
        return self.issuer_template.replace(TENANT, tenant)

    def is_issuer(self, issuer: str) -> bool:
        """Whether an authorization response may name this issuer (RFC 9207); of a template, its shape."""
        if self.issuer_template is None:
            return issuer == self.issuer
        before, _, after = self.issuer_template.partition(TENANT)
        tenant = issuer.removeprefix(before).removesuffix(after)
        return issuer == f"{before}{tenant}{after}" and _TENANT.fullmatch(tenant) is not None

    def auth_method(self, provider: IdentityProvider) -> str:
        """How our client proves itself: as configured, else as the provider likes it best."""
        methods = IdentityProvider.ClientAuth
        if provider.client_auth:
            return provider.client_auth
        if not provider.has_client_secret:
            return methods.NONE.value
        if provider.kind == IdentityProvider.Kind.OAUTH2:
            return methods.POST.value
        # Without a word it is Basic (OpenID Connect Discovery 3).
        takes_basic = not self.auth_methods or methods.BASIC.value in self.auth_methods
        return methods.BASIC.value if takes_basic else methods.POST.value


CachedValue = TypeVar("CachedValue")


class _Cache(Generic[CachedValue]):
    """The last MOST things by name, each for REMEMBERED seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: LRUCache[str, tuple[float, CachedValue]] = LRUCache(MAX_ENTRIES)

    def get(self, name: str, make: Callable[[], CachedValue], *, older_than: float = CACHE_SECONDS) -> CachedValue:
        """What is kept under `name` if it is younger than `older_than` seconds, else what `make` makes."""
        with self._lock:
            found = self._kept.get(name)
        if found is not None and time.monotonic() - found[0] < older_than:
            return found[1]
        made = make()
        with self._lock:
            self._kept[name] = (time.monotonic(), made)
        return made

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


_documents: _Cache[Metadata] = _Cache()
_key_sets: _Cache[KeySet] = _Cache()


def evict() -> None:
    """Forget everything (tests)."""
    _documents.clear()
    _key_sets.clear()


def of(calls: Calls, *, fresh: bool = False) -> Metadata:
    """The metadata of a provider; a call where it is discovered and not remembered. `fresh`: read it again. Raises
    ProviderUnreachable, ProviderAnswerInvalid."""
    provider = calls.provider
    if provider.kind == IdentityProvider.Kind.OIDC:
        issuer = str(provider.issuer)
        return _documents.get(issuer, lambda: _discover(calls, issuer), older_than=0 if fresh else CACHE_SECONDS)
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
    """The keys by which the issuer signs. `again`: one was missing, so what is remembered may be out of date."""
    older_than = KEYS_RELOAD_SECONDS if again else CACHE_SECONDS
    return _key_sets.get(str(metadata.issuer), lambda: _read_keys(calls, metadata), older_than=older_than)


_PUBLIC: Final = frozenset({"kty", "kid", "use", "alg", "n", "e", "crv", "x", "y"})
_LONGEST: Final = 2_800
"""Characters of one member: an RSA modulus of 16,384 bits."""


def _public(key: dict[str, Any]) -> dict[str, Any]:
    """What verifies of a key. With a private half beside it the library would look for its primes, which takes seconds
    to minutes of this process's time, as its author likes. Raises ValueError for members that no key needs so long."""
    public = {name: value for name, value in key.items() if name in _PUBLIC}
    if any(isinstance(value, str) and len(value) > _LONGEST for value in public.values()):
        raise ValueError("a key of this length is not read")
    return public


def _read_keys(calls: Calls, metadata: Metadata) -> KeySet:
    listed = calls.get_object(str(metadata.jwks_uri)).get("keys")
    if not isinstance(listed, list):
        raise ProviderAnswerInvalid("no key set")
    usable = []
    for key in listed[:MOST_KEYS]:
        # Kinds we do not know stand beside the ones we do. A symmetric key in public is no key.
        if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig":
            try:
                usable += KeySet.import_key_set({"keys": [_public(key)]}).keys
            except (JoseError, ValueError, TypeError, KeyError):
                continue
    if not usable:
        raise ProviderAnswerInvalid("a key set without a key that signs")
    return KeySet(usable)
