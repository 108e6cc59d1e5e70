"""REST endpoints of sign-in by providers: `GET /v1/auth/authorize` and `GET /v1/auth/callback/{provider_id}`, visited
by browsers. Errors go to the application's redirect URI (RFC 6749 4.1.2.1); until that is known to be allowed, to a
page."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from accounts.models.oauth import IdentityProvider
from accounts.oauth import errors, flows, providers, redirects, serializers, sign_in
from accounts.oauth.api import pages
from accounts.oauth.flows import Flow
from accounts.registration import pool_settings
from accounts.registration.pool_settings import Pool
from accounts.users import exchange_codes
from platform_site.http import bodies, exception_handler
from platform_site.http.errors import (
    InvalidRequest,
    PayloadTooLarge,
    ProjectSuspended,
    UnsupportedMediaType,
    ValidationFailed,
    first_or,
)
from platform_site.http.openapi.description import listing
from platform_site.http.requests import named_environment
from platform_site.http.views import ApiViewSet, respond
from platform_site.redis import rate_limits

MAX_STATE_LENGTH: Final = 1000
_MAX_FORM_BYTES: Final = 16 * 1024
_CALLBACK: Final = serializers.CallbackForm().get_fields()
"""The parameters of a provider's answer, in a query or a form."""
_REDIRECTED: Final = "canonical"
"""Marks a request that was redirected to BASE_URL's host, to redirect it once."""

log = logging.getLogger("platform.oauth")


def _query(name: str, description: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, description=description, required=required)


class _BrowserViewSet(ApiViewSet):
    public = True

    def _refuse(self, error: Exception) -> HttpResponseBase:
        if not pages.is_wanted(self.request):
            return super()._refuse(error)
        api_error = exception_handler.to_api_error(error)
        exception_handler.report(error, api_error)
        return pages.failed(api_error)


@dataclass(frozen=True, slots=True)
class _Application:
    redirect_uri: str
    state: str | None

    def redirect(self, **parameters: str | None) -> HttpResponse:
        """With `iss`, against mix-up on the application's side (RFC 9207)."""
        return _see_other(
            redirects.with_parameters(self.redirect_uri, {**parameters, "state": self.state, "iss": settings.BASE_URL})
        )

    def refuse(self, error: errors.FlowError, environment_id: str | None) -> HttpResponse:
        facts = {"code": error.code, "why": error.why, "environment_id": environment_id}
        log.info("sign-in by a provider refused", extra=facts)
        return self.redirect(error=error.error, error_description=error.text, error_code=error.code)


def _see_other(address: str) -> HttpResponse:
    """303 drops method and body (RFC 9700 4.12). Django's redirect refuses apps' schemes."""
    headers = {"Location": address, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return HttpResponse(status=303, headers=headers)


class ProviderSignInViewSet(_BrowserViewSet):
    also_raises: ClassVar = {"begin": (ProjectSuspended,)}

    @extend_schema(
        parameters=[
            _query("redirect_uri", "Where the code goes: one of the environment's redirect URIs.", required=True),
            _query("environment", "`env_…` whose users sign in; or the host names it. Default: platform accounts."),
            _query("provider", "The name of an identity provider. Without it: the only one, or a page to choose from."),
            _query("state", f"Returned unchanged; at most {MAX_STATE_LENGTH} characters."),
            _query("code_challenge", "PKCE (RFC 7636): the S256 hash of the verifier that the exchange sends."),
            _query("code_challenge_method", "Must be `S256`."),
            _query("response_type", "Must be `code`."),
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
        rate_limits.count_anonymous(self.http_request)
        if (elsewhere := _redirect_to_platform_host(self.http_request, self.query)) is not None:
            return elsewhere
        pool = _pool(self.http_request, self.query.get("environment"))
        application = _application(pool.environment_id, self.query.get("redirect_uri"), self.query.get("state"))
        try:
            provider = _provider(pool.id, self.query.get("provider"))
            challenge = _challenge(self.query)
            links = _is_linking(self.query, challenge, pool)
            if provider is None:
                if not pages.is_wanted(request):
                    raise errors.InvalidFlowRequest("Name a provider: there are several.")
                return pages.choice(providers.of_pool(pool.id).filter(enabled=True), self.query, pool.id)
            flow = Flow(
                provider_id=provider.pk,
                environment_id=pool.environment_id,
                redirect_uri=application.redirect_uri,
                client_state=application.state,
                code_challenge=challenge,
                links=links,
            )
            state, url = sign_in.begin(provider, flow)
        except errors.FlowError as error:
            return application.refuse(error, pool.environment_id)
        response = _see_other(url)
        _set_cookie(response, self.http_request, flow, state)
        return response


def _redirect_to_platform_host(request: HttpRequest, query: Mapping[str, str]) -> HttpResponse | None:
    """A redirect to BASE_URL's host, where the callback will find the flow's cookie; None if it is this one."""
    if request.get_host().lower() == urlsplit(settings.BASE_URL).netloc.lower() or _REDIRECTED in query:
        return None
    environment = named_environment(request)
    again = {**({"environment": environment} if environment else {}), **query, _REDIRECTED: "1"}
    return _see_other(f"{settings.BASE_URL}{request.path}?{urlencode(again)}")


def _pool(request: HttpRequest, environment_id: str | None) -> Pool:
    by_host = named_environment(request)
    if environment_id is not None and by_host is not None and environment_id != by_host:
        raise ValidationFailed.of("environment", "contradiction", "The host names another environment.")
    pool = pool_settings.pool_of(environment_id or by_host)
    if pool is None:
        raise ValidationFailed.of("environment", "unknown", "There is no such environment.")
    return pool


def _application(environment_id: str | None, uri: str | None, state: str | None) -> _Application:
    """Raises ValidationFailed: never redirect to a URI that is not on the list."""
    if not uri:
        raise ValidationFailed.of("redirect_uri", "required", "The redirect URI is missing.")
    if not redirects.is_allowed(environment_id, uri):
        raise ValidationFailed.of(
            "redirect_uri", "not_allowed", "The URI is not one of the application's redirect URIs."
        )
    if state is not None and (len(state) > MAX_STATE_LENGTH or not state.isascii() or not state.isprintable()):
        # Other text could not be returned unchanged.
        raise ValidationFailed.of("state", "invalid", f"At most {MAX_STATE_LENGTH} visible ASCII characters.")
    return _Application(uri, state)


def _provider(pool_id: str | None, name: str | None) -> IdentityProvider | None:
    enabled = providers.of_pool(pool_id).filter(enabled=True)
    if name is not None:
        return first_or(enabled.filter(name=name), errors.InvalidFlowRequest("There is no such identity provider."))
    first_two = list(enabled[:2])
    if not first_two:
        raise errors.InvalidFlowRequest("There is no identity provider here.")
    return first_two[0] if len(first_two) == 1 else None


def _challenge(query: Mapping[str, str]) -> str | None:
    """The PKCE challenge or None. Raises InvalidFlowRequest, also for `plain`."""
    if query.get("response_type", "code") != "code":
        raise errors.InvalidFlowRequest("response_type must be code.", "unsupported_response_type")
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


def _is_linking(query: Mapping[str, str], challenge: str | None, pool: Pool) -> bool:
    intent = query.get("intent")
    if intent not in (None, "link"):
        raise errors.InvalidFlowRequest("intent must be link, or left out to sign in.")
    if intent == "link" and challenge is None:
        # Otherwise another person's code, injected into the application, would link that person to its user.
        raise errors.InvalidFlowRequest("Linking needs a code_challenge.")
    if intent == "link" and pool.is_branch:
        raise errors.InvalidFlowRequest("Users of a preview branch belong to another environment. Link them there.")
    return intent == "link"


def _set_cookie(response: HttpResponse, request: HttpRequest, flow: Flow, state: str) -> None:
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


class SignInCallbackViewSet(_BrowserViewSet):
    """`GET|POST /v1/auth/callback/{provider_id}`: where a provider sends the browser. No platform page shows a code."""

    also_raises: ClassVar = {"receive": (ProjectSuspended,)}
    unsafe_reads = frozenset({"receive"})
    """The provider takes its code once: a repeated request would fail."""

    @extend_schema(
        parameters=[_query(name, str(field.help_text), required=field.required) for name, field in _CALLBACK.items()],
        responses={303: None},
    )
    def receive(self, request: Any, provider_id: str) -> HttpResponse:
        """The callback of identity providers. Redirects the browser to the application's redirect URI."""
        rate_limits.count_anonymous(self.http_request)
        state = self.query.get("state", "")
        flow, provider = _resume(self.http_request, state, provider_id)
        application = _application(flow.environment_id, flow.redirect_uri, flow.client_state)
        try:
            response = application.redirect(code=sign_in.finish(flow, provider, self.query))
        except errors.FlowError as error:
            response = application.refuse(error, flow.environment_id)
        response.delete_cookie(flows.cookie_name(state), path=flows.COOKIE_PATH)
        return response

    @extend_schema(
        operation_id="receiveSignInCallbackForm",
        request={"application/x-www-form-urlencoded": serializers.CallbackForm},
        responses={303: None},
    )
    def receive_form(self, request: Any, provider_id: str) -> HttpResponse:
        """The callback of identity providers that send a form (`response_mode=form_post`), such as Apple.

        With a form of another site, browsers do not send the sign-in's cookie. So this redirects to the same URL with
        GET, where they do, and where everything is checked."""
        rate_limits.count_anonymous(self.http_request)
        form = _form(self.http_request)
        query = urlencode([(name, form[name]) for name in _CALLBACK if name in form])
        return _see_other(f"{settings.BASE_URL}/v1/auth/callback/{quote(provider_id, safe='')}?{query}")


def _form(request: HttpRequest) -> dict[str, str]:
    if request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise UnsupportedMediaType("The body must be a form (application/x-www-form-urlencoded).")
    if bodies.declared_length(request.META) > _MAX_FORM_BYTES or len(request.body) > _MAX_FORM_BYTES:
        raise PayloadTooLarge
    try:
        pairs = parse_qsl(request.body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise InvalidRequest("The body is not a form of at most 20 fields in UTF-8.") from None
    names = [name for name, _ in pairs]
    if len(names) > len(set(names)):
        raise InvalidRequest("The form has a field twice.")
    return dict(pairs)


def _resume(request: HttpRequest, state: str, provider_id: str) -> tuple[Flow, IdentityProvider]:
    """The returning flow and its provider. Raises ProjectSuspended and ValidationFailed."""
    flow = flows.open_sealed(state, request.COOKIES)
    if flow is None:
        raise ValidationFailed.of(
            "state", "unknown", "This sign-in was not started in this browser, or too long ago. Start again."
        )
    pool = pool_settings.pool_of(flow.environment_id)
    if pool is None:
        raise ValidationFailed.of("state", "environment_gone", "The application no longer exists.")
    provider = providers.of_pool(pool.id).filter(pk=flow.provider_id, enabled=True).first()
    if provider is None or provider.pk != provider_id:
        raise ValidationFailed.of("state", "provider_gone", "The identity provider no longer exists or is disabled.")
    return flow, provider


class SignInProviderViewSet(ApiViewSet):
    public = True
    environment_use = "optional"
    query_parameters: ClassVar = {"list": frozenset({"environment"})}

    @extend_schema(responses=listing(serializers.PublicProvider, paged=False))
    def list(self, request: Any) -> HttpResponse:
        """The identity providers that users can sign in with.

        The environment is named as at `/v1/auth/authorize`, or by header."""
        rate_limits.count_anonymous(self.http_request)
        pool = _pool(self.http_request, self.query.get("environment"))
        found = providers.of_pool(pool.id).filter(enabled=True).values("name", "display_name")
        return respond({"data": [*found]})
