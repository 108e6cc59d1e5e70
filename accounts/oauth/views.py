"""REST endpoints of sign-in by providers.

`GET /v1/auth/authorize` and `GET /v1/auth/callback/{provider_id}` are visited by a person's browser. Errors are
returned to the application at its redirect URI (RFC 6749 4.1.2.1); only until this URI is known to be allowed they are
shown as a page. No error redirects to a URI that is not on the list. The rest manages providers, redirect URIs and the
caller's identities.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, Final, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from accounts.directory import environments as environment_directory
from accounts.models.oauth import IdentityProvider
from accounts.oauth import (
    claims,
    discovery,
    errors,
    flows,
    identities,
    metadata,
    pages,
    proofs,
    providers,
    redirects,
    serializers,
)
from accounts.oauth.flows import Flow
from accounts.oauth.transport import Calls, oauth_client
from accounts.registration import own_account
from accounts.users import exchange_codes
from platform_site.http import bodies, exception_handler
from platform_site.http.errors import (
    Conflict,
    Forbidden,
    InvalidGrant,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    ProjectSuspended,
    QuotaExceeded,
    UnsupportedMediaType,
    ValidationFailed,
)
from platform_site.http.fields import Serializer
from platform_site.http.idempotency import idempotent
from platform_site.http.openapi.description import ENVIRONMENT, listing
from platform_site.http.requests import named_environment
from platform_site.http.views import ApiViewSet, created, no_content, respond
from platform_site.identity import ids
from platform_site.identity.plans import plan_limits
from platform_site.redis import rate_limits

LONGEST_STATE: Final = 1000
_LONGEST_FORM: Final = 16 * 1024
_CALLBACK_PARAMETERS: Final = ("state", "code", "error", "iss", "user")
_HERE: Final = "canonical"
"""Marks a request that has been sent to BASE_URL's host, so that it is sent there once."""

log = logging.getLogger("platform.oauth")

_USER_REFUSED: Final = frozenset(
    {"access_denied", "login_required", "consent_required", "interaction_required", "account_selection_required"}
)


def _query(name: str, description: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, description=description, required=required)


class _BrowserViewSet(ApiViewSet):
    """Whose errors are pages for those who ask for HTML, and the usual JSON for all others."""

    public = True

    def _refuse(self, error: Exception) -> HttpResponseBase:
        if not pages.is_wanted(self.request):
            return super()._refuse(error)
        meaning = exception_handler.to_api_error(error)
        exception_handler.report(error, meaning)
        return pages.failed(meaning)


@dataclass(frozen=True, slots=True)
class _Application:
    """Where the result of a flow is sent: an allowed redirect URI."""

    redirect_uri: str
    state: str | None

    def told(self, **parameters: str | None) -> HttpResponse:
        """`iss` says who answers, against mix-up on the application's side (RFC 9207)."""
        return _see_other(
            redirects.with_parameters(self.redirect_uri, {**parameters, "state": self.state, "iss": settings.BASE_URL})
        )

    def told_error(self, error: errors.FlowError) -> HttpResponse:
        return self.told(error=error.error, error_description=error.text, error_code=error.code)


def _see_other(address: str) -> HttpResponse:
    """303, so that no method or body travels along (RFC 9700 4.12). Not Django's redirect: it knows no app's scheme."""
    headers = {"Location": address, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return HttpResponse(status=303, headers=headers)


class ProviderSignInViewSet(_BrowserViewSet):
    """`GET /v1/auth/authorize`: where an application sends the browser of a person who wants to sign in."""

    also_raises: ClassVar = {"begin": (ProjectSuspended,)}

    @extend_schema(
        parameters=[
            _query("redirect_uri", "Where the code goes: one of the environment's redirect URIs.", required=True),
            _query("environment", "`env_…` whose users are meant; the host can name it, too. None: platform accounts."),
            _query("provider", "The name of an identity provider. None: the only one, or a page to choose from."),
            _query("state", f"Given back as it is; at most {LONGEST_STATE} characters."),
            _query("code_challenge", "PKCE (RFC 7636): the S256 of a verifier that the exchange will need."),
            _query("code_challenge_method", "`S256`, the only one."),
            _query("response_type", "`code`, the only one."),
            _query("intent", "`link`: no sign-in; the code is for `POST /v1/auth/identities`. Needs PKCE."),
        ],
        responses={(200, "text/html"): OpenApiTypes.STR, 303: None},
    )
    def begin(self, request: Any) -> HttpResponse:
        """Send a person to an identity provider. They come back to `redirect_uri` with `code` and `state`.

        Or with `error` (RFC 6749 4.1.2.1), `error_description` and `error_code`. A redirect URI that is not on the
        list, letter by letter, is an error here. The whole flow:

            PUT   /v1/redirect-uris       {"redirect_uris": ["https://app.example.com/signed-in"]}
            POST  /v1/identity-providers  {"name": "google", "preset": "google", "client_id": …, "client_secret": …}
            PATCH /v1/auth/settings       {"sign_up": "open"}

            verifier  = 43-128 random characters, kept by the application
            challenge = base64url(sha256(verifier))
            browser to  /v1/auth/authorize?environment=env_…&redirect_uri=…&state=…&code_challenge=…
            comes back  https://app.example.com/signed-in?code=oac_…&state=…&iss=…

            POST  /v1/auth/token  X-Environment: env_…
                  {"grant_type": "authorization_code", "code": "oac_…", "code_verifier": verifier}   within 60 s, once
        """
        raw: HttpRequest = request._request
        rate_limits.count_anonymous(raw)
        if (there := _on_platform_host(raw, self.query)) is not None:
            return there
        environment_id, pool_id = _environment(raw, self.query.get("environment"))
        application = _application(environment_id, self.query)
        try:
            provider = _provider(pool_id, self.query.get("provider"))
            challenge = _challenge(self.query)
            links = _links(self.query, challenge)
            if provider is None:
                if not pages.is_wanted(request):
                    raise errors.InvalidFlowRequest("Name a provider: there are several.")
                return pages.choice(providers.of_pool(pool_id).filter(enabled=True), self.query, pool_id)
            return _sent_to(provider, raw, application, environment_id, challenge, links=links)
        except errors.FlowError as error:
            return _logged(application, error, environment_id)


def _on_platform_host(request: HttpRequest, query: Mapping[str, str]) -> HttpResponse | None:
    """A redirect to BASE_URL's host where another was asked: the flow's cookie must be met again at the callback."""
    if request.get_host().lower() == urlsplit(settings.BASE_URL).netloc.lower() or _HERE in query:
        return None
    environment = named_environment(request)
    again = {**({"environment": environment} if environment else {}), **query, _HERE: "1"}
    return _see_other(f"{settings.BASE_URL}{request.path}?{urlencode(again)}")


def _environment(request: HttpRequest, asked: str | None) -> tuple[str | None, str | None]:
    """The environment that is meant and the pool that signs in there. Raises ValidationFailed, ProjectSuspended."""
    by_host = named_environment(request)
    if asked is not None and by_host is not None and asked != by_host:
        raise ValidationFailed.of("environment", "contradiction", "The host names another environment.")
    environment_id = asked or by_host
    if environment_id is None:
        return None, None
    place = environment_directory.active_place(environment_id)
    if place is None:
        raise ValidationFailed.of("environment", "unknown", "There is no such environment.")
    return environment_id, place.pool_id


def _application(environment_id: str | None, query: Mapping[str, str]) -> _Application:
    """Raises ValidationFailed: from a URI that is not on the list nothing is ever redirected."""
    uri = query.get("redirect_uri")
    if not uri:
        raise ValidationFailed.of("redirect_uri", "required", "The application must say where to come back to.")
    if not redirects.is_allowed(environment_id, uri):
        raise ValidationFailed.of("redirect_uri", "not_allowed", "This URI is not on the application's list.")
    state = query.get("state")
    if state is not None and (len(state) > LONGEST_STATE or not state.isascii() or not state.isprintable()):
        # It could not be given back as it is.
        raise ValidationFailed.of("state", "invalid", f"At most {LONGEST_STATE} visible ASCII characters.")
    return _Application(uri, state)


def _provider(pool_id: str | None, name: str | None) -> IdentityProvider | None:
    """The provider that is meant; None if there are several to choose from. Raises InvalidFlowRequest."""
    enabled = providers.of_pool(pool_id).filter(enabled=True)
    if name is not None:
        found = enabled.filter(name=name).first()
        if found is None:
            raise errors.InvalidFlowRequest("There is no such identity provider.")
        return found
    first_two = list(enabled[:2])
    if not first_two:
        raise errors.InvalidFlowRequest("There is no identity provider here.")
    return first_two[0] if len(first_two) == 1 else None


def _challenge(query: Mapping[str, str]) -> str | None:
    """The PKCE challenge, None if the application uses none. Raises InvalidFlowRequest, also for `plain`."""
    if query.get("response_type", "code") != "code":
        raise errors.UnsupportedResponseType
    challenge, method = query.get("code_challenge"), query.get("code_challenge_method", "S256")
    if method != "S256":
        raise errors.InvalidFlowRequest("code_challenge_method must be S256.")
    if challenge is None:
        if "code_challenge_method" in query:
            raise errors.InvalidFlowRequest("code_challenge_method needs a code_challenge.")
        return None
    if not exchange_codes.is_challenge(challenge):
        raise errors.InvalidFlowRequest("code_challenge must be 43 characters of base64url: a SHA-256.")
    return challenge


def _links(query: Mapping[str, str], challenge: str | None) -> bool:
    """Whether the application wants to link, and not to sign in. Raises InvalidFlowRequest."""
    intent = query.get("intent")
    if intent not in (None, "link"):
        raise errors.InvalidFlowRequest("intent must be link, or left out to sign in.")
    if intent == "link" and challenge is None:
        # Otherwise another person's code, injected into the application, would link that person to its user.
        raise errors.InvalidFlowRequest("Linking needs a code_challenge.")
    return intent == "link"


def _sent_to(
    provider: IdentityProvider,
    request: HttpRequest,
    application: _Application,
    environment_id: str | None,
    challenge: str | None,
    *,
    links: bool,
) -> HttpResponse:
    """The redirect to the provider, with the flow's cookie."""
    calls = Calls(provider)
    known = metadata.of(calls)
    flow, state = flows.begin(
        provider_id=provider.pk,
        environment_id=environment_id,
        redirect_uri=application.redirect_uri,
        client_state=application.state,
        code_challenge=challenge,
        links=links,
    )
    is_oidc = provider.kind == IdentityProvider.Kind.OIDC
    client = oauth_client(calls, auth_method=known.auth_method(provider))
    address, _ = client.create_authorization_url(
        known.authorization_endpoint,
        state=state,
        code_verifier=flow.code_verifier,
        redirect_uri=providers.callback_url(provider),
        scope=" ".join(provider.scopes) or None,
        **({"nonce": flow.nonce} if is_oidc else {}),
        **({"response_mode": provider.response_mode} if provider.response_mode else {}),
    )
    response = _see_other(address)
    for name in flows.surplus(request.COOKIES):
        response.delete_cookie(name, path=flows.COOKIE_PATH)
    response.set_cookie(
        flows.cookie_name(state),
        flows.seal(flow, state),
        max_age=flows.LIFETIME,
        path=flows.COOKIE_PATH,
        secure=settings.BASE_URL.startswith("https://"),
        httponly=True,
        samesite="Lax",  # it must come along when the provider sends the browser back
    )
    return response


def _logged(application: _Application, error: errors.FlowError, environment_id: str | None) -> HttpResponse:
    log.info(
        "sign-in by a provider refused",
        extra={"code": error.code, "why": error.why, "environment_id": environment_id},
    )
    return application.told_error(error)


class SignInCallbackViewSet(_BrowserViewSet):
    """`GET|POST /v1/auth/callback/{provider_id}`: where a provider sends the browser. No platform page shows a code."""

    also_raises: ClassVar = {"receive": (ProjectSuspended,)}
    unsafe_reads = frozenset({"receive"})
    """The provider takes its code once: asked again, it would seem to refuse the person."""

    @extend_schema(
        parameters=[
            _query("state", "The state of the authorization request.", required=True),
            _query("code", "The provider's code."),
            _query("error", "Or why there is none."),
            _query("iss", "Who answers (RFC 9207)."),
            _query("user", "The name as JSON, which Apple sends once."),
        ],
        responses={303: None},
    )
    def receive(self, request: Any, provider_id: str) -> HttpResponse:
        """Come back from an identity provider. For browsers on their way to the application's redirect URI."""
        http: HttpRequest = request._request
        rate_limits.count_anonymous(http)
        state = self.query.get("state", "")
        flow, provider, pool_plan = _resumed(http, state, provider_id)
        application = _Application(flow.redirect_uri, flow.client_state)
        try:
            response = application.told(code=_code_of(flow, provider, self.query, pool_plan))
        except errors.FlowError as error:
            response = _logged(application, error, flow.environment_id)
        response.delete_cookie(flows.cookie_name(state), path=flows.COOKIE_PATH)
        return response

    @extend_schema(
        operation_id="receiveSignInCallbackForm",
        request={"application/x-www-form-urlencoded": serializers.CallbackForm},
        responses={303: None},
    )
    def receive_form(self, request: Any, provider_id: str) -> HttpResponse:
        """Come back from an identity provider by a form (`response_mode=form_post`), as from Apple.

        Browsers send no cookie of the flow with another site's form. So this redirects to the same URL with GET, to
        which they do; there everything is checked.
        """
        http: HttpRequest = request._request
        rate_limits.count_anonymous(http)
        form = _form(http)
        query = urlencode([(name, form[name]) for name in _CALLBACK_PARAMETERS if name in form])
        return _see_other(f"{settings.BASE_URL}/v1/auth/callback/{quote(provider_id, safe='')}?{query}")


def _form(request: HttpRequest) -> dict[str, str]:
    """The fields of an HTML form. Raises PayloadTooLarge, UnsupportedMediaType and InvalidRequest."""
    if request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise UnsupportedMediaType("The body must be a form (application/x-www-form-urlencoded).")
    if bodies.declared_length(request.META) > _LONGEST_FORM or len(request.body) > _LONGEST_FORM:
        raise PayloadTooLarge
    try:
        pairs = parse_qsl(request.body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise InvalidRequest("The body is not a form of at most 20 fields in UTF-8.") from None
    names = [name for name, _ in pairs]
    if len(names) > len(set(names)):
        raise InvalidRequest("The form has a field twice.")
    return dict(pairs)


def _resumed(request: HttpRequest, state: str, provider_id: str) -> tuple[Flow, IdentityProvider, str | None]:
    """The flow that comes back here, its provider, and the plan that bounds the pool (None for platform accounts).

    Raises ValidationFailed where nothing is sure enough to tell the application anything: what was true when the flow
    began must still be. Raises ProjectSuspended.
    """
    try:
        flow = flows.open_sealed(state, request.COOKIES)
    except flows.UnknownFlow:
        raise ValidationFailed.of(
            "state", "unknown", "This sign-in was not begun in this browser, or too long ago. Begin again."
        ) from None
    pool_id, plan = None, None
    if flow.environment_id is not None:
        place = environment_directory.active_place(flow.environment_id)
        if place is None:
            raise ValidationFailed.of("state", "environment_gone", "The application is not there any more.")
        pool_id, plan = place.pool_id, place.plan
    provider = providers.of_pool(pool_id).filter(pk=flow.provider_id, enabled=True).first()
    if provider is None or provider.pk != provider_id:
        raise ValidationFailed.of("state", "provider_gone", "This identity provider is not there any more.")
    if not redirects.is_allowed(flow.environment_id, flow.redirect_uri):
        raise ValidationFailed.of("redirect_uri", "not_allowed", "This URI is not on the application's list.")
    return flow, provider, plan


def _code_of(flow: Flow, provider: IdentityProvider, query: Mapping[str, str], plan: str | None) -> str:
    """Our code for the person whom the provider sent back. Raises a FlowError."""
    calls = Calls(provider)
    known = metadata.of(calls)
    said = query.get("iss")
    if known.issuer is not None and (not known.is_issuer(said) if said is not None else known.names_itself):
        raise errors.ProviderAnswerInvalid("another issuer answered")  # mix-up (RFC 9207 2.4)
    if "error" in query:
        why = f"it said {query['error'][:60]!r}"
        if query["error"] in _USER_REFUSED:
            raise errors.ProviderRefused(why)
        if query["error"] == "temporarily_unavailable":
            raise errors.ProviderUnreachable(why)
        raise errors.ProviderAnswerInvalid(why)
    code = query.get("code")
    if not code or len(code) > 4096:
        raise errors.ProviderAnswerInvalid("no code")
    profile = claims.of_person(
        calls,
        known,
        code=code,
        redirect_uri=providers.callback_url(provider),
        code_verifier=flow.code_verifier,
        nonce=flow.nonce,
    )
    if not profile.name and "user" in query:
        profile = replace(profile, name=claims.name_in_form(query["user"]))
    if flow.links:
        return proofs.make(
            provider_id=provider.pk,
            subject=profile.subject,
            email=profile.email,
            environment_id=flow.environment_id,
            code_challenge=str(flow.code_challenge),
            issuer=provider.issuer,
        )
    most = plan_limits(plan).app_users_per_environment if plan is not None else None
    with transaction.atomic():  # no user is created or linked without a code
        return exchange_codes.issue(
            identities.find_or_create_user(provider, profile, most=most),
            environment_id=flow.environment_id,
            redirect_uri=flow.redirect_uri,
            code_challenge=flow.code_challenge,
            method=f"oauth:{provider.name}",
        )


class SignInProviderViewSet(ApiViewSet):
    """`GET /v1/auth/providers`: for applications that draw their own buttons."""

    public = True
    query_parameters: ClassVar = {"list": frozenset({"environment"})}

    @extend_schema(responses=listing(serializers.PublicProvider, paged=False), parameters=[ENVIRONMENT])
    def list(self, request: Any) -> HttpResponse:
        """By which providers people sign in here. The environment is named as at `/v1/auth/authorize`, or by header."""
        rate_limits.count_anonymous(request._request)
        _, pool_id = _environment(request._request, self.query.get("environment"))
        found = providers.of_pool(pool_id).filter(enabled=True).values("name", "display_name")
        return respond({"data": [*found]})


# ── Management ──

Action = TypeVar("Action", bound=Callable[..., HttpResponse])


def _discovered_before(action: Action) -> Action:
    """Checks the body's `issuer` before the transaction of an idempotent action begins, since that makes requests.

    The action gets the result by `_issuer`: a repeated request is answered without it, whatever the provider says now.
    """

    @wraps(action)
    def checked(view: "IdentityProviderViewSet", *args: Any, **kwargs: Any) -> HttpResponse:
        body = view.request.data
        issuer = body.get("issuer") if isinstance(body, dict) else None
        if isinstance(issuer, str):
            try:
                view.checked_issuer = discovery.check(issuer, view.place.pool_id)
            except ValidationFailed as error:
                view.checked_issuer = error
        return action(view, *args, **kwargs)

    return cast(Action, checked)


class IdentityProviderViewSet(ApiViewSet):
    """`/v1/identity-providers`: the identity providers of the environment."""

    required_scopes: ClassVar = dict.fromkeys(
        ("list", "create", "retrieve", "partial_update", "destroy"), "users:manage"
    )
    """Adding a provider determines identities, which is as powerful as setting every user's password."""
    query_parameters: ClassVar = {"list": frozenset()}
    also_raises: ClassVar = {"create": (QuotaExceeded,), "partial_update": (Conflict,)}
    serializer_class = serializers.NewProvider
    checked_issuer: str | ValidationFailed | None = None
    """What `_discovered_before` found."""

    @extend_schema(responses=listing(serializers.ProviderDetail, paged=False))
    def list(self, request: Any) -> HttpResponse:
        """The identity providers of the environment, by name. Secrets are in no answer."""
        return respond({"data": [serializers.provider(each) for each in providers.of_pool(self.place.pool_id)]})

    @_discovered_before
    @idempotent()
    @extend_schema(request=serializers.NewProvider, responses={201: serializers.ProviderDetail})
    def create(self, request: Any) -> HttpResponse:
        """Add an identity provider. By `issuer` (OpenID Connect), by endpoints (plain OAuth 2), or by `preset`.

        Register the `callback_url` of the response at the provider. An `issuer` is checked by its discovery document.
        Endpoints and `profile_fields` cannot be changed later: remove the provider and add another one.
        """
        pool_id = environment_directory.own_pool(self.place, "providers")
        values = serializers.filled_in(self._read(serializers.NewProvider))
        values.setdefault("client_secret", None)
        made = providers.add(pool_id, actor=self.caller, **values)
        return created(f"/v1/identity-providers/{made.pk}", serializers.provider(made))

    @extend_schema(responses=serializers.ProviderDetail)
    def retrieve(self, request: Any, provider_id: str) -> HttpResponse:
        """One identity provider."""
        return respond(serializers.provider(self._provider(self.place.pool_id, provider_id)))

    @_discovered_before
    @idempotent()
    @extend_schema(request=serializers.ProviderChanges, responses=serializers.ProviderDetail)
    def partial_update(self, request: Any, provider_id: str) -> HttpResponse:
        """Change an identity provider. `"enabled": false` turns it off and keeps who is linked.

        Another `issuer` is checked as a new one, clears the client secret unless the request has a new one, and is
        refused (409) while users are linked.
        """
        provider = self._provider(environment_directory.own_pool(self.place, "providers"), provider_id)
        values = self._read(serializers.ProviderChanges)
        return respond(serializers.provider(providers.change(provider, actor=self.caller, **values)))

    @extend_schema(responses={204: None})
    def destroy(self, request: Any, provider_id: str) -> HttpResponse:
        """Remove an identity provider and forget whom it recognised. Users and their sessions stay."""
        provider = self._provider(environment_directory.own_pool(self.place, "providers"), provider_id)
        providers.remove(provider, actor=self.caller)
        return no_content()

    def _read(self, serializer: type[Serializer]) -> dict[str, Any]:
        """The body's values, with the issuer as its discovery document spells it, or what is wrong with it."""
        values = self.read(serializer)
        if isinstance(self.checked_issuer, ValidationFailed):
            return {**values, "issuer_errors": self.checked_issuer.fields}
        return values if self.checked_issuer is None else {**values, "issuer": self.checked_issuer}

    def _provider(self, pool_id: str, provider_id: str) -> IdentityProvider:
        known = ids.matches("idp", provider_id)
        found = providers.of_pool(pool_id).filter(pk=provider_id).first() if known else None
        if found is None:
            raise NotFound
        return found


class RedirectUriViewSet(ApiViewSet):
    """`GET|PUT /v1/redirect-uris`: where applications of the environment may be sent back with a code."""

    required_scopes: ClassVar = {"list": "environments:write", "replace": "environments:write"}
    query_parameters: ClassVar = {"list": frozenset()}
    serializer_class = serializers.RedirectUrisInput

    @extend_schema(operation_id="getRedirectUris", responses=serializers.RedirectUris)
    def list(self, request: Any) -> HttpResponse:
        """The redirect URIs of the environment."""
        return respond({"redirect_uris": redirects.of(self.place.environment_id)})

    @extend_schema(
        operation_id="replaceRedirectUris", request=serializers.RedirectUrisInput, responses=serializers.RedirectUris
    )
    def replace(self, request: Any) -> HttpResponse:
        """Replace the redirect URIs of the environment. They are compared letter by letter: no wildcards, no prefixes.

        `https://`, `http://` on `localhost`, `127.0.0.1` or `[::1]`, or an app's own scheme (`com.example.app:/done`);
        no fragment, no user name, no dot segments, the host in lower case.
        """
        uris = self.read(serializers.RedirectUrisInput)["redirect_uris"]
        return respond({"redirect_uris": redirects.replace(self.place.environment_id, uris, actor=self.caller)})


class IdentityViewSet(ApiViewSet):
    """`GET|POST /v1/auth/identities`, `DELETE /v1/auth/identities/{id}`: by which providers the caller signs in."""

    required_scopes: ClassVar = {"list": None, "create": None, "destroy": None}
    environment = "unused"
    query_parameters: ClassVar = {"list": frozenset()}
    also_raises: ClassVar = {
        "list": (Forbidden,),
        "create": (Forbidden, Conflict, InvalidGrant, QuotaExceeded),
        "destroy": (Forbidden, Conflict),
    }
    serializer_class = serializers.LinkIdentityInput

    @extend_schema(responses=listing(serializers.IdentityDetail, paged=False))
    def list(self, request: Any) -> HttpResponse:
        """By which identity providers the caller signs in, the newest first."""
        found = identities.of_user(self._person()).order_by("-id")
        return respond({"data": [serializers.identity(each) for each in found]})

    @idempotent()
    @extend_schema(
        operation_id="linkIdentity",
        request=serializers.LinkIdentityInput,
        responses={201: serializers.IdentityDetail},
    )
    def create(self, request: Any) -> HttpResponse:
        """Link another identity provider to the caller's account. The owner is notified by email.

        Send the browser to `/v1/auth/authorize?intent=link&code_challenge=…`; the returned `code` is valid for 60 s.
        Needs the current password; for an account without one, a session younger than ten minutes.
        """
        self._person()
        values = self.read(serializers.LinkIdentityInput)
        caller, user = self.caller, own_account.of(self.caller)
        rate_limits.count_token_request(request._request, pool_id=user.environment_id, email=user.email)
        environment_id = caller.place.environment_id if caller.kind == "user" and caller.place else None
        proof = proofs.read(values["code"], environment_id=environment_id, code_verifier=values["code_verifier"])
        own_account.reauthenticate(user, actor=caller, current_password=values.get("current_password"))
        identity = identities.link(user, proof, actor=caller)
        return created(f"/v1/auth/identities/{identity.pk}", serializers.identity(identity))

    @extend_schema(responses={204: None})
    def destroy(self, request: Any, identity_id: str) -> HttpResponse:
        """Unlink an identity provider from the caller's account. Refused (409) if it is the only way to sign in."""
        identities.unlink(self._person(), identity_id, actor=self.caller)
        return no_content()

    def _person(self) -> str:
        if self.caller.session_id is None:
            raise Forbidden("A server key signs in by no provider.")
        return self.caller.id
