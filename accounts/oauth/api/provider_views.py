from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin

from accounts.directory import environments as environment_directory
from accounts.models.oauth import Identity, IdentityProvider
from accounts.oauth import discovery, identities, proofs, providers, redirects, serializers
from accounts.registration import own_account
from platform_site.http.errors import Conflict, Forbidden, InvalidGrant, QuotaExceeded
from platform_site.http.generics import ResourceViewSet, UnpagedList
from platform_site.http.idempotency import idempotent
from platform_site.http.openapi.description import listing
from platform_site.http.views import created, no_content, respond
from platform_site.redis import rate_limits


def _discover_issuer(view: "IdentityProviderViewSet") -> None:
    """Checks the body's `issuer`, which makes requests."""
    body = view.request.data
    issuer = body.get("issuer") if isinstance(body, dict) else None
    if isinstance(issuer, str):
        view.checked_issuer = discovery.try_check(issuer, view.environment.pool_id)


@extend_schema_view(
    list=extend_schema(
        responses=listing(serializers.ProviderDetail, paged=False),
        description="The identity providers of the environment, by name, without their client secrets.",
    ),
    retrieve=extend_schema(description="One identity provider."),
)
class IdentityProviderViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    required_scopes: ClassVar = dict.fromkeys(
        ("list", "create", "retrieve", "partial_update", "destroy"), "users:manage"
    )
    """Adding a provider is as powerful as setting every user's password."""
    also_raises: ClassVar = {"create": (QuotaExceeded,), "partial_update": (Conflict,)}
    serializer_class = serializers.ProviderDetail
    lookup_url_kwarg, id_prefix = "provider_id", "idp"
    pagination_class = UnpagedList
    checked_issuer: dict[str, Any] = {}

    def get_queryset(self) -> QuerySet[IdentityProvider]:
        return providers.of_pool(self.environment.pool_id)

    @idempotent(before=_discover_issuer)
    @extend_schema(request=serializers.NewProvider, responses={201: serializers.ProviderDetail})
    def create(self, request: Any) -> HttpResponse:
        """Add an identity provider. By `issuer` (OpenID Connect), by endpoints (plain OAuth 2), or by `preset`.

        Register the `callback_url` of the response at the provider. An `issuer` is checked by its discovery document.
        Endpoints and `profile_fields` cannot be changed later: remove the provider and add another one."""
        pool_id = environment_directory.own_pool(self.environment, "providers")
        values = self.read(serializers.NewProvider) | self.checked_issuer
        made = providers.add(pool_id, actor=self.caller, **values)
        return created(f"/v1/identity-providers/{made.pk}", self.get_serializer(made).data)

    @idempotent(before=_discover_issuer)
    @extend_schema(request=serializers.ProviderChanges)
    def partial_update(self, request: Any, provider_id: str) -> HttpResponse:
        """Change an identity provider. `"enabled": false` turns it off; users stay linked to it.

        Another `issuer` is checked as a new one, clears the client secret unless the request has a new one, and is
        refused (409) while users are linked."""
        provider = self._own_provider()
        values = self.read(serializers.ProviderChanges, instance=provider) | self.checked_issuer
        return respond(self.get_serializer(providers.change(provider, actor=self.caller, **values)).data)

    def destroy(self, request: Any, provider_id: str) -> HttpResponse:
        """Remove an identity provider with the links of users to it. Users and their sessions stay."""
        provider = self._own_provider()
        providers.remove(provider, actor=self.caller)
        return no_content()

    def _own_provider(self) -> IdentityProvider:
        """Raises if the environment shares the providers of another one."""
        environment_directory.own_pool(self.environment, "providers")
        provider: IdentityProvider = self.get_object()
        return provider


class RedirectUriViewSet(ResourceViewSet):
    """`GET|PUT /v1/redirect-uris`: where applications of the environment may be sent back with a code."""

    required_scopes: ClassVar = {"retrieve": "environments:write", "replace": "environments:write"}
    query_parameters: ClassVar = {"retrieve": frozenset()}
    serializer_class = serializers.RedirectUris

    @extend_schema(operation_id="getRedirectUris")
    def retrieve(self, request: Any) -> HttpResponse:
        """The redirect URIs of the environment."""
        return respond(self.get_serializer({"redirect_uris": redirects.of(self.environment.environment_id)}).data)

    @extend_schema(operation_id="replaceRedirectUris", request=serializers.RedirectUrisInput)
    def replace(self, request: Any) -> HttpResponse:
        """Replace the redirect URIs of the environment. They are compared letter by letter: no wildcards, no prefixes.

        `https://`, `http://` on `localhost`, `127.0.0.1` or `[::1]`, or an app's own scheme (`com.example.app:/done`);
        no fragment, no user name, no dot segments, the host in lower case."""
        uris = self.read(serializers.RedirectUrisInput)["redirect_uris"]
        replaced = redirects.replace(self.environment.environment_id, uris, actor=self.caller)
        return respond(self.get_serializer({"redirect_uris": replaced}).data)


@extend_schema_view(
    list=extend_schema(
        responses=listing(serializers.IdentityDetail, paged=False),
        description="The identity providers with which the caller can sign in, the newest first.",
    )
)
class IdentityViewSet(ListModelMixin, ResourceViewSet):
    required_scopes: ClassVar = {"list": None, "create": None, "destroy": None}
    environment_use = "unused"
    also_raises: ClassVar = {
        "list": (Forbidden,),
        "create": (Forbidden, Conflict, InvalidGrant, QuotaExceeded),
        "destroy": (Forbidden, Conflict),
    }
    serializer_class = serializers.IdentityDetail
    pagination_class = UnpagedList

    def get_queryset(self) -> QuerySet[Identity]:
        return identities.of_user(self._person()).order_by("-id")

    @idempotent()
    @extend_schema(
        operation_id="linkIdentity", request=serializers.LinkIdentityInput, responses={201: serializers.IdentityDetail}
    )
    def create(self, request: Any) -> HttpResponse:
        """Link another identity provider to the caller's account. The owner is notified by email.

        Send the browser to `/v1/auth/authorize?intent=link&code_challenge=…`; the returned `code` is valid for 60 s.
        Needs the current password; for an account without one, a session younger than ten minutes."""
        self._person_to_change()
        values = self.read(serializers.LinkIdentityInput)
        caller, user = self.caller, own_account.user_of(self.caller)
        rate_limits.count_token_request(self.http_request, pool_id=user.environment_id, email=user.email)
        environment_id = caller.environment.environment_id if caller.kind == "user" and caller.environment else None
        proof = proofs.read(values["code"], environment_id=environment_id, code_verifier=values["code_verifier"])
        own_account.reauthenticate(user, actor=caller, current_password=values.get("current_password"))
        identity = identities.link(user, proof, actor=caller)
        return created(f"/v1/auth/identities/{identity.pk}", self.get_serializer(identity).data)

    def destroy(self, request: Any, identity_id: str) -> HttpResponse:
        """Unlink an identity provider from the caller's account. Refused (409) if it is the only way to sign in."""
        identities.unlink(self._person_to_change(), identity_id, actor=self.caller)
        return no_content()

    def _person_to_change(self) -> str:
        environment_directory.require_own_pool(self.caller)
        return self._person()

    def _person(self) -> str:
        if self.caller.session_id is None:
            raise Forbidden("Server keys cannot start an OAuth sign-in.")
        return self.caller.id
