"""The two steps of a sign-in by a provider, which make requests to it."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from django.db import transaction

from accounts.models.oauth import IdentityProvider
from accounts.oauth import errors, identities, proofs
from accounts.oauth.client import claims, metadata
from accounts.oauth.client.metadata import Metadata
from accounts.oauth.client.transport import Calls, oauth_client
from accounts.oauth.flows import Flow
from accounts.oauth.proofs import Proof
from accounts.users import exchange_codes

_MAX_CODE_LENGTH: Final = 4096
_USER_REFUSED: Final = frozenset(
    {"access_denied", "login_required", "consent_required", "interaction_required", "account_selection_required"}
)


def begin(provider: IdentityProvider, flow: Flow) -> tuple[str, str]:
    """The flow's `state`, and the provider's URL for the browser. Raises a FlowError."""
    calls = Calls(provider)
    known = metadata.of(calls)
    state = secrets.token_urlsafe(32)
    is_oidc = provider.kind == IdentityProvider.Kind.OIDC
    client = oauth_client(calls, auth_method=known.auth_method(provider))
    url, _ = client.create_authorization_url(
        known.authorization_endpoint,
        state=state,
        code_verifier=flow.code_verifier,
        redirect_uri=provider.callback_url,
        scope=" ".join(provider.scopes) or None,
        **({"nonce": flow.nonce} if is_oidc else {}),
        **({"response_mode": provider.response_mode} if provider.response_mode else {}),
    )
    return state, url


def finish(flow: Flow, provider: IdentityProvider, answer: Mapping[str, str]) -> str:
    """The application's code, or the proof if the flow links. Raises a FlowError."""
    calls = Calls(provider)
    known = metadata.of(calls)
    code = _provider_code(known, answer)
    profile = claims.profile_of_code(calls, known, code, flow)
    if not profile.name and "user" in answer:
        profile = replace(profile, name=claims.name_in_form(answer["user"]))
    if flow.links:
        proof = Proof(
            provider_id=provider.pk,
            subject=profile.subject,
            email=profile.email,
            environment_id=flow.environment_id,
            code_challenge=str(flow.code_challenge),
            issuer=provider.issuer,
        )
        return proofs.seal(proof)
    with transaction.atomic():  # no user is created or linked without a code
        if flow.environment_id != provider.environment_id:  # a preview branch, which must not change its source's users
            user = identities.linked_user(provider, profile)
        else:
            user = identities.find_or_create_user(provider, profile)
        return exchange_codes.issue(
            user,
            environment_id=flow.environment_id,
            redirect_uri=flow.redirect_uri,
            code_challenge=flow.code_challenge,
            method=f"oauth:{provider.name}",
        )


def _provider_code(known: Metadata, answer: Mapping[str, str]) -> str:
    issuer = answer.get("iss")
    is_foreign = known.names_itself if issuer is None else not known.is_issuer(issuer)
    if known.issuer is not None and is_foreign:
        raise errors.ProviderAnswerInvalid("another issuer answered")  # mix-up (RFC 9207 2.4)
    if "error" in answer:
        why = f"it said {answer['error'][:60]!r}"
        if answer["error"] in _USER_REFUSED:
            raise errors.AccessDenied(errors.Denial.PROVIDER_REFUSED, why)
        if answer["error"] == "temporarily_unavailable":
            raise errors.ProviderUnreachable(why)
        raise errors.ProviderAnswerInvalid(why)
    code = answer.get("code")
    if not code or len(code) > _MAX_CODE_LENGTH:
        raise errors.ProviderAnswerInvalid("no code")
    return code
