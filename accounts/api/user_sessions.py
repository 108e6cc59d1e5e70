"""REST endpoints of the sessions of an environment's users, for those who manage the users."""

from typing import Any, ClassVar

from django.db.models import Q
from django.http import HttpResponse
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema, extend_schema_view

from accounts.api.views import SESSION_PAGE, SESSION_STATE, SessionViewSet
from accounts.models import User
from accounts.users import sessions
from platform_site.http.errors import NotFound
from platform_site.http.views import no_content
from platform_site.identity import ids


@extend_schema_view(
    list=extend_schema(
        operation_id="listUserSessions",
        responses=SESSION_PAGE,
        parameters=[SESSION_STATE],
        description="A user's sessions, as the user's own list has them; in a preview branch those of the branch.",
    ),
)
class UserSessionViewSet(SessionViewSet):
    required_scopes: ClassVar = dict.fromkeys(("list", "destroy", "destroy_all"), "users:manage")
    also_raises: ClassVar = {}
    environment_use = "required"
    reason: ClassVar = "revoked_by_manager"

    @cached_property
    def _of_user(self) -> tuple[str, Q]:
        user_id = self.kwargs["user_id"]
        users = User.objects.in_pool(self.environment.pool_id)
        if not ids.matches("usr", user_id) or not users.filter(pk=user_id).exists():
            raise NotFound
        within = Q(environment_id=self.environment.environment_id) if self.environment.is_branch else Q()
        return user_id, within

    @extend_schema(operation_id="deleteUserSession")
    def destroy(self, request: Any, user_id: str, session_id: str) -> HttpResponse:  # type: ignore[override]
        """End one session of a user, in a preview branch one of the branch. Its tokens are refused from the next
        request on."""
        return self._end(session_id)

    @extend_schema(operation_id="deleteUserSessions")
    def destroy_all(self, request: Any, user_id: str) -> HttpResponse:
        """End all sessions of a user, in a preview branch those of the branch. Their tokens are refused from the next
        request on."""
        owner, within = self._of_user
        sessions.revoke(within, actor=self.caller, user_id=owner, reason=self.reason, scope="all")
        return no_content()
