from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from accounts.directory import environments as environment_directory
from accounts.models.oauth import Identity
from accounts.oauth import identities, proofs, serializers
from accounts.registration import own_account
from platform_site.http.errors import Conflict, Forbidden, InvalidGrant, QuotaExceeded
from platform_site.http.generics import ResourceViewSet, UnpagedList
from platform_site.http.idempotency import idempotent
from platform_site.http.openapi.description import listing
from platform_site.http.views import created, no_content
from platform_site.redis import rate_limits


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
