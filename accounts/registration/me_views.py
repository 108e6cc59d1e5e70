from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema

from accounts.api import serializers
from accounts.api.views import person
from accounts.models import User
from accounts.registration import own_account
from platform_site.http.errors import Forbidden
from platform_site.http.idempotency import idempotent
from platform_site.http.views import ApiViewSet, respond
from platform_site.identity.callers import Caller
from platform_site.redis import rate_limits


class MeViewSet(ApiViewSet):
    required_scopes: ClassVar = {"retrieve": None, "partial_update": None}
    also_raises: ClassVar = {"partial_update": (Forbidden,)}
    environment = "optional"
    serializer_class = serializers.MeInput

    @extend_schema(responses=serializers.Me)
    def retrieve(self, request: Any) -> HttpResponse:
        """Who the caller is, and what it may do in the environment that the call means."""
        return respond(_me(self.caller, own_account.of(self.caller) if self.caller.session_id else None))

    @idempotent()
    @extend_schema(request=serializers.MeInput, responses=serializers.Me)
    def partial_update(self, request: Any) -> HttpResponse:
        """Change one's own name or password. A new password needs the current one, and ends all other sessions."""
        caller = person(self.caller)
        values = self.read(serializers.MeInput)
        user = own_account.of(caller)
        if "password" in values:
            rate_limits.count_token_request(request._request, pool_id=user.environment_id, email=user.email)
        return respond(_me(caller, own_account.change(user, actor=caller, **values)))


def _me(caller: Caller, user: User | None) -> dict[str, Any]:
    place = caller.place
    return {
        "kind": caller.kind,
        "id": caller.id,
        "email": user.email if user else None,
        "email_verified": user.email_verified_at is not None if user else None,
        "pending_email": own_account.pending_email(user) if user else None,
        "has_password": user.has_usable_password() if user else None,
        "name": user.name if user else caller.name,
        # What rules call the role: an app user's own, an account's in the project that the call means.
        "role": place.role if caller.kind in ("account", "staff") and place else caller.role,
        "environment_id": place.environment_id if place else None,
        "scopes": sorted(caller.scopes),
    }
