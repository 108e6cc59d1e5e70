"""REST endpoints of tokens, sessions, API keys and the public keys. Contract 4.5."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from django.db import Error
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from accounts.api import serializers
from accounts.directory import environments as environment_directory
from accounts.keys import permissions, publishable_key_exposure
from accounts.models import ServerKey, Session, User
from accounts.tokens import signing_keys
from accounts.users import exchange_codes, sessions
from accounts.users import service as user_service
from accounts.users.sessions import Device
from platform_site.http.cursors import Fact
from platform_site.http.errors import (
    ApiError,
    FieldError,
    Forbidden,
    InvalidGrant,
    NotFound,
    QuotaExceeded,
    ValidationFailed,
)
from platform_site.http.generics import ResourceViewSet
from platform_site.http.idempotency import idempotent
from platform_site.http.openapi.description import listing
from platform_site.http.requests import client_address, named_environment
from platform_site.http.views import ApiViewSet, created, no_content, no_store, respond
from platform_site.identity import ids
from platform_site.identity.callers import PUBLISHABLE_SCOPES, Caller
from platform_site.redis import rate_limits

JWKS_MAX_AGE = int(signing_keys.PUBLISHED_AHEAD.total_seconds()) // 2

SESSION_PAGE = listing(serializers.SessionDetail)
SESSION_STATE = OpenApiParameter(
    "state",
    {"type": "string", "enum": list(sessions.STATES), "default": "live"},
    description="Which sessions: live ones, ended ones, or all.",
)


def device_of(request: HttpRequest) -> Device:
    return Device(user_agent=request.META.get("HTTP_USER_AGENT", ""), ip_address=client_address(request))


_NO_ENVIRONMENT: Final = (
    "The credentials are wrong. No environment is named, so they were checked as those of a platform account: an "
    "application's users sign in with the header X-Environment (the client's option `environment`)."
)


class TokenViewSet(ApiViewSet):
    """`POST /v1/auth/token`. Client errors are 400 `invalid_grant`, 403 `project_suspended`, 405, 413 or 429."""

    public = True
    environment_use = "optional"
    client_errors_as: ClassVar[type[ApiError] | None] = InvalidGrant

    @extend_schema(request=serializers.TokenInput, responses={200: serializers.TokenPair})
    def create(self, request: Any) -> HttpResponse:
        """Sign a user in. With email and password, with a refresh token, or with an OAuth code.

        The environment whose users are meant is named by `X-Environment` or the host; none means platform accounts. A
        refresh token is good for one successor: until that one is used, the old token returns it again; any other
        reuse ends the session. A code comes from `GET /v1/auth/authorize`, is good for 60 s and one exchange, in the
        environment that it was asked for, and with the `code_verifier` of its `code_challenge`."""
        values = self.read(serializers.TokenInput)
        device = device_of(self.http_request)
        match values["grant_type"]:
            case "password":
                grant = self._sign_in(self.http_request, values["email"], values["password"], device)
            case "refresh_token":
                rate_limits.count_token_request(self.http_request)
                grant = sessions.refresh(values["refresh_token"], device=device)
            case _:
                rate_limits.count_token_request(self.http_request)
                grant = exchange_codes.exchange(
                    values["code"],
                    environment_id=named_environment(self.http_request),
                    redirect_uri=values.get("redirect_uri"),
                    code_verifier=values.get("code_verifier"),
                    device=device,
                )
        return no_store(respond(serializers.TokenPair(grant).data))

    def _sign_in(self, request: HttpRequest, email: str, password: str, device: Device) -> sessions.Grant:
        environment_id = named_environment(request)
        environment, pool_id = None, None
        if environment_id is not None:
            environment = environment_directory.directory().environment_ref(environment_id)
            if environment is None:
                rate_limits.count_token_request(request)
                raise InvalidGrant(fields=[FieldError("X-Environment", "unknown", "There is no such environment.")])
            pool_id = environment.pool_id
        rate_limits.count_token_request(request, pool_id=pool_id, email=email)
        if environment is not None:
            environment.require_active()
        try:
            return sessions.sign_in(
                pool_id=pool_id, environment_id=environment_id, email=email, password=password, device=device
            )
        except InvalidGrant:
            if environment_id is not None:
                raise
            raise InvalidGrant(_NO_ENVIRONMENT) from None


@extend_schema_view(
    list=extend_schema(
        responses=SESSION_PAGE,
        parameters=[SESSION_STATE],
        description="The caller's sessions, the newest first. Those that have not ended, unless `state` says otherwise."
        "\n\nEnded ones are kept for 30 days and say when and why: `refresh_token_reused` means that a copy of the "
        "refresh token was used, and that the session was ended for it.",
    )
)
class SessionViewSet(ListModelMixin, ResourceViewSet):
    required_scopes: ClassVar = {"list": None, "destroy": None, "revoke": None}
    also_raises: ClassVar = dict.fromkeys(("list", "destroy", "revoke"), (Forbidden,))
    environment_use = "unused"
    query_parameters: ClassVar = {"list": frozenset({"limit", "cursor", "state"})}
    serializer_class = serializers.SessionDetail
    cursor_kind, ordering = "sessions", ("-id",)
    reason: ClassVar[sessions.Reason] = "signed_out"

    def get_queryset(self) -> QuerySet[Session]:
        user_id, within = self._of_user
        state = self._state()
        if state not in sessions.STATES:
            raise ValidationFailed.of("state", "not_among", f"Must be one of {', '.join(sessions.STATES)}.")
        return sessions.of_user(user_id, state).filter(within)

    @cached_property
    def _of_user(self) -> tuple[str, Q]:
        """Whose sessions, and which of them the caller lists and ends: in a preview branch only those of the branch."""
        caller = person(self.caller)
        environment = caller.environment if caller.kind == "user" else None
        return caller.id, Q(environment_id=environment.environment_id) if environment and environment.is_branch else Q()

    def cursor_facts(self) -> Sequence[Fact]:
        user_id, _ = self._of_user
        return [user_id, self._state()]

    def _state(self) -> str:
        return self.query.get("state", "live")

    def destroy(self, request: Any, session_id: str) -> HttpResponse:
        """End one of the caller's sessions. Its tokens are refused from the next request on."""
        return self._end(session_id)

    def _end(self, session_id: str) -> HttpResponse:
        user_id, within = self._of_user
        if not ids.matches("ses", session_id) or not sessions.revoke(
            within & Q(pk=session_id), actor=self.caller, user_id=user_id, reason=self.reason
        ):
            raise NotFound
        return no_content()

    @idempotent()
    @extend_schema(request=serializers.RevokeInput, responses={204: None})
    def revoke(self, request: Any) -> HttpResponse:
        """Sign out. Of this session, of all others, or of all."""
        user_id, within = self._of_user
        scope = self.read(serializers.RevokeInput)["scope"]
        current = self.caller.session_id
        if scope == "current":
            sessions.revoke(within & Q(pk=current), actor=self.caller, user_id=user_id, scope=scope)
        else:
            kept = current if scope == "others" else None
            exchange_codes.end_sessions(
                user_id, within=within, kept_session_id=kept, actor=self.caller, reason=self.reason, scope=scope
            )
        return no_content()


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
        exchange_codes.end_sessions(owner, within=within, actor=self.caller, reason=self.reason, scope="all")
        return no_content()


def person(caller: Caller) -> Caller:
    if caller.session_id is None:
        raise Forbidden("A key has no sessions; revoke it with DELETE /v1/keys/{id}.")
    return caller


@extend_schema_view(
    list=extend_schema(
        responses=listing(serializers.KeyDetail),
        description="The keys of an environment, or of the account itself, the newest first. Revoked ones are not "
        "listed.\n\nThe environment is named by `environment_id` or `X-Environment`. Owners see all of them, "
        "developers their own. An environment's keys need `keys:manage`.",
    )
)
class KeyViewSet(ListModelMixin, ResourceViewSet):
    """`POST|GET /v1/keys`, `DELETE /v1/keys/{id}`. Only the response that creates a key has its secret."""

    required_scopes: ClassVar = {"list": None, "create": None, "destroy": None}
    """`accounts.keys.permissions` decides: the scopes follow from the environment that the body or the key names."""
    environment_use = "unused"
    query_parameters: ClassVar = {"list": frozenset({"limit", "cursor", "environment_id"})}
    also_raises: ClassVar = {
        "list": (Forbidden, NotFound),
        "create": (Forbidden, NotFound, QuotaExceeded),
        "destroy": (Forbidden,),
    }
    serializer_class = serializers.KeyDetail
    cursor_kind, ordering = "keys", ("-id",)

    def get_queryset(self) -> QuerySet[ServerKey]:
        named = self.query.get("environment_id") or named_environment(self.http_request)
        self.authority = permissions.over_keys(self.caller, named)
        return self.authority.visible()

    def cursor_facts(self) -> Sequence[Fact]:
        return [self.authority.environment_id, self.authority.account_id]

    def paginate_queryset(self, queryset: Any) -> Any:
        """Adds what each key allows everyone. If the region is unavailable, keys can still be listed and revoked."""
        keys: Any = super().paginate_queryset(queryset)
        if any(key.is_publishable for key in keys):
            with suppress(Error):
                exposure = publishable_key_exposure.by_key(self.authority.environment_id, PUBLISHABLE_SCOPES)
                for key in keys:
                    key.opens = exposure.within(key.scopes) if key.is_publishable else None
        return keys

    @idempotent()
    @extend_schema(request=serializers.KeyInput, responses={201: serializers.NewKey})
    def create(self, request: Any) -> HttpResponse:
        """Issue a server key or a publishable one. The response has its secret, which is shown once.

        For the environment that is named; for the account itself if an account names none. A key grants no scope that
        its creator lacks. With `"publishable": true` the key may be public; `opens` says what it allows everyone to do.
        A key of an environment needs `keys:manage`."""
        values = self.read(serializers.KeyInput)
        named = values.pop("environment_id", None) or named_environment(self.http_request)
        authority = permissions.over_keys(self.caller, named)
        authority.require_active()
        is_publishable = values.get("is_publishable")
        opens = publishable_key_exposure.by_key(authority.environment_id, values["scopes"]) if is_publishable else None
        creator_id = self.caller.id if self.caller.kind == "account" else None
        key, secret = user_service.issue_key(**values, authority=authority, actor=self.caller, created_by_id=creator_id)
        key.opens = opens
        return no_store(created(f"/v1/keys/{key.pk}", self.get_serializer(key).data | {"secret": secret}))

    def destroy(self, request: Any, key_id: str) -> HttpResponse:
        """Revoke a key. It is refused from the next request on. A key of an environment needs `keys:manage`."""
        key, authority = permissions.key_for(self.caller, key_id)
        user_service.revoke_key(key, actor=self.caller, project_id=authority.project_id)
        return no_content()


class PublicKeysViewSet(ApiViewSet):
    public = True

    @extend_schema(responses=serializers.PublicKeys)
    def retrieve(self, request: Any) -> HttpResponse:
        """The keys that verify access tokens, those that will sign soon among them."""
        rate_limits.count_anonymous(self.http_request)
        signing_keys.current_signing_key()  # creates the first key: clients would cache an empty list
        headers = {"Cache-Control": f"public, max-age={JWKS_MAX_AGE}"}
        return respond({"keys": signing_keys.current().public}, headers=headers)
