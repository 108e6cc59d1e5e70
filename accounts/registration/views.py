"""REST endpoints of sign-up and email flows. The public ones count by client IP and recipient before anything else, and
respond equally whether or not the email has an account. docs/reference/sign-in.md."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin

from accounts.api.serializers import InvitationInput, Me, MeInput, TokenPair
from accounts.api.views import device_of, person
from accounts.directory import environments as environment_directory
from accounts.models import User
from accounts.models.registration import AccountEmail, PoolSettings
from accounts.registration import (
    email_templates,
    invitations,
    one_time_links,
    own_account,
    password_reset,
    pool_settings,
    serializers,
    sign_up,
)
from accounts.registration.pool_settings import Pool
from accounts.tokens import signing_keys
from accounts.users import service as user_service
from accounts.users import sessions
from platform_site.http.cursors import Fact
from platform_site.http.errors import (
    Conflict,
    Forbidden,
    InvalidGrant,
    NotFound,
    ProjectSuspended,
    QuotaExceeded,
    RateLimited,
    ValidationFailed,
)
from platform_site.http.generics import ResourceViewSet
from platform_site.http.idempotency import idempotent
from platform_site.http.views import ApiViewSet, created, no_content, no_store, respond
from platform_site.redis import rate_limits

Kind = AccountEmail.Kind


def accepted(kind: Kind) -> HttpResponse:
    return respond({"status": "accepted", "expires_in": int(email_templates.LIFETIMES[kind].total_seconds())}, 202)


class LinkViewSet(ApiViewSet):
    """Requests for an email with a link, and the operations of these links. None needs a session."""

    public = True
    environment_use = "optional"
    also_raises: ClassVar = {
        "sign_up": (Forbidden, NotFound, QuotaExceeded),
        "request_password_reset": (Forbidden, NotFound),
        **dict.fromkeys(("confirm_sign_up", "accept_invitation"), (Forbidden, InvalidGrant, NotFound, QuotaExceeded)),
        **dict.fromkeys(("reset_password", "verify_email", "change_email"), (Forbidden, InvalidGrant, NotFound)),
    }

    @cached_property
    def pool(self) -> Pool:
        """Raises NotFound, ProjectSuspended, RateLimited, and Forbidden for a preview branch."""
        try:
            return pool_settings.own_pool_of(self.http_request)
        except (Forbidden, NotFound, ProjectSuspended):
            rate_limits.count_token_request(self.http_request)
            raise

    def count_email(self, kind: Kind, email: str) -> None:
        request, pool = self.http_request, self.pool
        rate_limits.count_email_request(request, kind=kind, pool_id=pool.id, email=email, plan=pool.plan)

    def find_link(self, kind: Kind, token: str) -> AccountEmail:
        """The link of this token. Raises InvalidGrant, and as `pool`."""
        rate_limits.count_token_request(self.http_request)
        return one_time_links.find_in_pool(token, kind, self.pool.id)

    def session_starter(self, method: str) -> Callable[[User], sessions.Grant]:
        signing_keys.current_signing_key()  # creates the first key outside of the transaction
        environment_id, device = self.pool.environment_id, device_of(self.http_request)
        return lambda user: sessions.start(user, environment_id=environment_id, device=device, method=method)

    @idempotent()
    @extend_schema(operation_id="signUp", request=serializers.SignUpInput, responses={202: serializers.Accepted})
    def sign_up(self, request: Any) -> HttpResponse:
        """Request an account. The email gets a link; the account is created when that is confirmed.

        The response is the same if the email has an account: its owner is notified by email. 403 if the environment
        takes no sign-ups (`sign_up` of `PATCH /v1/auth/settings`)."""
        values = self.read(serializers.SignUpInput)
        self.count_email(Kind.SIGN_UP, values["email"])
        request, pool = self.http_request, self.pool
        check_limit = partial(rate_limits.count_pool_email, request, pool_id=pool.id, plan=pool.plan)
        sign_up.request_sign_up(pool, **values, check_limit=check_limit)
        return accepted(Kind.SIGN_UP)

    @extend_schema(operation_id="confirmSignUp", request=serializers.LinkAndPassword, responses={200: TokenPair})
    def confirm_sign_up(self, request: Any) -> HttpResponse:
        """Make the account and sign in. Needs the link's token and the password that was chosen when signing up."""
        values = self.read(serializers.LinkAndPassword)
        link = self.find_link(Kind.SIGN_UP, values["token"])
        grant = sign_up.confirm(link, values["password"], self.session_starter("sign_up"))
        return no_store(respond(TokenPair(grant).data))

    @extend_schema(operation_id="acceptInvitation", request=serializers.AcceptInput, responses={200: TokenPair})
    def accept_invitation(self, request: Any) -> HttpResponse:
        """Accept an invitation: choose a password, get an account, and sign in."""
        values = self.read(serializers.AcceptInput)
        link = self.find_link(Kind.INVITATION, values["token"])
        grant = invitations.accept(
            link, values["password"], self.session_starter("invitation"), name=values.get("name")
        )
        return no_store(respond(TokenPair(grant).data))

    @idempotent()
    @extend_schema(
        operation_id="requestPasswordReset", request=serializers.EmailInput, responses={202: serializers.Accepted}
    )
    def request_password_reset(self, request: Any) -> HttpResponse:
        """Request a link to set a new password. The response is the same whether or not the email has an account."""
        values = self.read(serializers.EmailInput)
        self.count_email(Kind.RESET_PASSWORD, values["email"])
        password_reset.request_reset(self.pool, email=values["email"])
        return accepted(Kind.RESET_PASSWORD)

    @idempotent()
    @extend_schema(operation_id="confirmPasswordReset", request=serializers.ResetInput, responses={204: None})
    def reset_password(self, request: Any) -> HttpResponse:
        """Choose a new password by the link's token. All sessions end. A password that is refused leaves the link."""
        values = self.read(serializers.ResetInput)
        password_reset.reset(self.find_link(Kind.RESET_PASSWORD, values["token"]), values["password"])
        return no_content()

    @idempotent()
    @extend_schema(operation_id="verifyEmail", request=serializers.LinkInput, responses={204: None})
    def verify_email(self, request: Any) -> HttpResponse:
        """Verify an email by the token of the link."""
        own_account.verify(self.find_link(Kind.VERIFY_EMAIL, self.read(serializers.LinkInput)["token"]))
        return no_content()

    @extend_schema(operation_id="confirmEmailChange", request=serializers.LinkAndPassword, responses={204: None})
    def change_email(self, request: Any) -> HttpResponse:
        """Change the email. Needs the token that reached the new email, and the account's password."""
        values = self.read(serializers.LinkAndPassword)
        own_account.change_email(self.find_link(Kind.CHANGE_EMAIL, values["token"]), values["password"])
        return no_content()


class MeViewSet(ResourceViewSet):
    required_scopes: ClassVar = {"retrieve": None, "partial_update": None}
    also_raises: ClassVar = {"partial_update": (Forbidden,)}
    environment_use = "optional"
    serializer_class = Me

    def retrieve(self, request: Any) -> HttpResponse:
        """The caller, with its role and scopes in the environment of the request."""
        return self._shown(own_account.user_of(self.caller) if self.caller.session_id else None)

    @idempotent()
    @extend_schema(request=MeInput)
    def partial_update(self, request: Any) -> HttpResponse:
        """Change one's own name or password. A new password needs the current one, and ends all other sessions."""
        caller = person(self.caller)
        user = own_account.user_to_change(caller)
        values = self.read(MeInput, instance=user)
        if "password" in values:
            rate_limits.count_token_request(self.http_request, pool_id=user.environment_id, email=user.email)
        return self._shown(own_account.change(user, actor=caller, **values))

    def _shown(self, user: User | None) -> HttpResponse:
        caller, environment = self.caller, self.caller.environment
        values = {
            "kind": caller.kind,
            "id": caller.id,
            "email": user.email if user else None,
            "email_verified": user.email_verified_at is not None if user else None,
            "pending_email": own_account.pending_email(user) if user else None,
            "has_password": user.has_usable_password() if user else None,
            "name": user.name if user else caller.name,
            # As in rules: an app user's own role, an account's role in the project of the environment.
            "role": environment.role if caller.kind in ("account", "staff") and environment else caller.role,
            "environment_id": environment.environment_id if environment else None,
            "scopes": sorted(caller.scopes),
        }
        return respond(self.get_serializer(values).data)


class OwnAccountViewSet(ApiViewSet):
    """`POST /v1/auth/email-verification`, `/v1/auth/email-change`, `/v1/auth/delete-account`: for signed-in users."""

    required_scopes: ClassVar = {"request_verification": None, "request_email_change": None, "remove": None}
    also_raises: ClassVar = {
        "request_verification": (Forbidden,),
        "request_email_change": (Forbidden, ValidationFailed, RateLimited),
        "remove": (Forbidden, Conflict, ValidationFailed),
    }
    environment_use = "unused"
    optional_bodies: ClassVar = frozenset({"remove"})

    def _oneself(self) -> User:
        return own_account.user_to_change(person(self.caller))

    def _count(self, user: User, kind: Kind, email: str) -> Callable[[], None]:
        """Counts a request for an email; the result counts the email itself."""
        request, pool_id = self.http_request, user.environment_id
        plan = self.caller.plan if pool_id else pool_settings.PLATFORM_PLAN
        rate_limits.count_email_request(request, kind=kind, pool_id=pool_id, email=email, plan=plan)
        return partial(rate_limits.count_pool_email, request, pool_id=pool_id, plan=plan)

    @idempotent()
    @extend_schema(operation_id="requestEmailVerification", request=None, responses={202: serializers.Accepted})
    def request_verification(self, request: Any) -> HttpResponse:
        """Request a link that verifies the own email. Nothing is sent if it is verified."""
        user = self._oneself()
        check_limit = self._count(user, Kind.VERIFY_EMAIL, user.email)
        own_account.request_verification(user, check_limit=check_limit)
        return accepted(Kind.VERIFY_EMAIL)

    @idempotent()
    @extend_schema(
        operation_id="requestEmailChange", request=serializers.EmailChangeInput, responses={202: serializers.Accepted}
    )
    def request_email_change(self, request: Any) -> HttpResponse:
        """Request a change of the email. It changes when the link sent to the new one is confirmed.

        Needs the current password. The response is the same if another user has that email."""
        user = self._oneself()
        values = self.read(serializers.EmailChangeInput)
        rate_limits.count_token_request(self.http_request, pool_id=user.environment_id, email=user.email)
        check_limit = self._count(user, Kind.CHANGE_EMAIL, values["email"])
        own_account.request_email_change(user, **values, check_limit=check_limit)
        return accepted(Kind.CHANGE_EMAIL)

    @idempotent()
    @extend_schema(operation_id="deleteMe", request=serializers.DeleteAccountInput, responses={204: None})
    def remove(self, request: Any) -> HttpResponse:
        """Delete one's own account for good. Rows that name the user follow the policies of their columns.

        Needs the current password; of an account without one, a session that is younger than ten minutes. The only
        owner of a project gets 409."""
        user = self._oneself()
        values = self.read(serializers.DeleteAccountInput)
        rate_limits.count_token_request(self.http_request, pool_id=user.environment_id, email=user.email)
        own_account.reauthenticate(user, actor=self.caller, current_password=values.get("current_password"))
        user_service.delete_user(user, actor=self.caller)
        return no_content()


@extend_schema_view(
    list=extend_schema(description="The open invitations, newest first, without accepted and expired ones.")
)
class InvitationViewSet(ListModelMixin, ResourceViewSet):
    required_scopes: ClassVar = dict.fromkeys(("list", "create", "destroy"), "users:manage")
    also_raises: ClassVar = {"create": (QuotaExceeded, RateLimited)}
    serializer_class = serializers.Invitation
    cursor_kind, ordering = "invitations", ("-id",)

    def get_queryset(self) -> QuerySet[AccountEmail]:
        return invitations.pending(self.environment.pool_id)

    def cursor_facts(self) -> Sequence[Fact]:
        return [self.environment.pool_id]

    @idempotent()
    @extend_schema(request=InvitationInput, responses={201: serializers.Invitation})
    def create(self, request: Any) -> HttpResponse:
        """Invite a person by email, with a role and claims for rules. A second invitation replaces the first.

        Works in every `sign_up` mode. The link works for seven days."""
        pool_id = environment_directory.own_pool(self.environment)
        values = self.read(InvitationInput)
        rate_limits.count_invitation(self.http_request, pool_id=pool_id, plan=self.environment.plan)
        made = invitations.invite(pool_id=pool_id, actor=self.caller, **values)
        return created(f"/v1/invitations/{made.pk}", self.get_serializer(made).data)

    def destroy(self, request: Any, invitation_id: str) -> HttpResponse:
        """Withdraw an invitation. Its link stops working."""
        invitations.withdraw(environment_directory.own_pool(self.environment), invitation_id, actor=self.caller)
        return no_content()


@extend_schema_view(retrieve=extend_schema(description="Who may sign up, and where the links of emails lead."))
class SettingsViewSet(RetrieveModelMixin, ResourceViewSet):
    """`GET|PATCH /v1/auth/settings`: how people come into the environment's pool, and what its emails say."""

    required_scopes: ClassVar = dict.fromkeys(("retrieve", "partial_update"), "users:manage")
    serializer_class = serializers.Settings

    def get_object(self) -> PoolSettings:
        return pool_settings.settings_of(self.environment.pool_id)

    @idempotent()
    @extend_schema(request=serializers.SettingsInput)
    def partial_update(self, request: Any) -> HttpResponse:
        """Change who may sign up (`off`, `open`, `invited`), the name of the application in emails, where links lead.

        `link_urls` replaces what was there. A kind that it leaves out leads to the platform's own page."""
        pool_id = environment_directory.own_pool(self.environment)
        values = self.read(serializers.SettingsInput)
        changed = pool_settings.change_settings(pool_id, actor=self.caller, **values)
        return respond(self.get_serializer(changed).data)
