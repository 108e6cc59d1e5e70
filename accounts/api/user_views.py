"""REST endpoints of an environment's users under /v1/users."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin

from accounts.api import serializers
from accounts.directory import environments as environment_directory
from accounts.models import User
from accounts.users import service as user_service
from platform_site.http.cursors import Fact
from platform_site.http.errors import QuotaExceeded, ValidationFailed
from platform_site.http.generics import ResourceViewSet
from platform_site.http.idempotency import idempotent
from platform_site.http.openapi.description import listing
from platform_site.http.views import created, no_content, respond
from platform_site.identity import ids
from platform_site.identity.plans import plan_limits

EMAIL = OpenApiParameter(
    "email",
    {"type": "string"},
    description="Only the user with this email, ignoring case. A space is read as a plus sign.",
)
MAX_IDS: Final = 100
IDS = OpenApiParameter(
    "ids",
    {"type": "string"},
    description=f"Only the users with these ids, separated by commas, at most {MAX_IDS}. Unknown ids are left out.",
)
MAX_SEARCH: Final = 200
SEARCH = OpenApiParameter(
    "search",
    {"type": "string", "maxLength": MAX_SEARCH},
    description="Only users whose email or name begins with this, ignoring case.",
)


@extend_schema_view(
    list=extend_schema(
        responses=listing(serializers.UserDetail),
        parameters=[EMAIL, IDS, SEARCH],
        description="The users of the environment, the newest first.",
    ),
    retrieve=extend_schema(description="One user of the environment."),
)
class UserViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    required_scopes: ClassVar = dict.fromkeys(
        ("list", "create", "retrieve", "partial_update", "destroy"), "users:manage"
    )
    query_parameters: ClassVar = {"list": frozenset({"limit", "cursor", "email", "ids", "search"})}
    also_raises: ClassVar = {"create": (QuotaExceeded,)}
    serializer_class = serializers.UserDetail
    lookup_url_kwarg, id_prefix = "user_id", "usr"
    cursor_kind, ordering = "users", ("-id",)

    def get_queryset(self) -> QuerySet[User]:
        return User.objects.in_pool(self.environment.pool_id)

    def filter_queryset(self, queryset: Any) -> Any:
        if self.action != "list":
            return queryset
        pool_id, email, search = self.environment.pool_id, self._email(), self.query.get("search")
        if search is not None:
            if email is not None:
                raise ValidationFailed.of("search", "invalid", "Use either email or search.")
            if not search.strip() or len(search) > MAX_SEARCH:
                raise ValidationFailed.of("search", "invalid", f"Must have 1 to {MAX_SEARCH} characters.")
            queryset = User.objects.beginning_with(pool_id, search)
        if email is not None:
            queryset = User.objects.with_email(pool_id, email)
        if "ids" in self.query:
            queryset = queryset.filter(pk__in=_read_ids(self.query["ids"]))
        return queryset

    def _email(self) -> str | None:
        """A plus sign in a URL arrives as a space."""
        email: str | None = self.query.get("email")
        return None if email is None else email.replace(" ", "+")

    def cursor_facts(self) -> Sequence[Fact]:
        facts: list[Fact] = [self.environment.pool_id]
        if (email := self._email()) is not None:
            facts.append(email)
        for name in ("search", "ids"):
            if name in self.query:
                facts += [name, self.query[name]]
        return facts

    @idempotent()
    @extend_schema(request=serializers.UserInput, responses={201: serializers.UserDetail})
    def create(self, request: Any) -> HttpResponse:
        """Create a user of the environment. `role` and `claims` are for the rules of its tables."""
        pool_id = environment_directory.own_pool(self.environment)
        values = self.read(serializers.UserInput)
        most = plan_limits(self.environment.plan).app_users_per_environment
        user = user_service.create_user(pool_id=pool_id, actor=self.caller, most=most, **values)
        return created(f"/v1/users/{user.pk}", self.get_serializer(user).data)

    @idempotent()
    @extend_schema(request=serializers.UserChange)
    def partial_update(self, request: Any, user_id: str) -> HttpResponse:
        """Change a user. A new password, or `"disabled": true`, ends all of the user's sessions at once."""
        user = self._own_user()
        values = self.read(serializers.UserChange, instance=user)
        return respond(self.get_serializer(user_service.change_user(user, actor=self.caller, **values)).data)

    def destroy(self, request: Any, user_id: str) -> HttpResponse:
        """Delete a user for good. What becomes of rows that name the user is said by their schema."""
        user_service.delete_user(self._own_user(), actor=self.caller)
        return no_content()

    def _own_user(self) -> User:
        """Raises if the environment shares the users of another one."""
        environment_directory.own_pool(self.environment)
        user: User = self.get_object()
        return user


def _read_ids(text: str) -> set[str]:
    user_ids = {each.strip() for each in text.split(",")}
    if len(user_ids) > MAX_IDS:
        raise ValidationFailed.of("ids", "too_many", f"At most {MAX_IDS} ids.")
    if not all(ids.matches("usr", each) for each in user_ids):
        raise ValidationFailed.of("ids", "invalid", "Must be ids of users (usr_…), separated by commas.")
    return user_ids
