"""Validates a provider's claims about a person. OpenID Connect: the ID token with an asymmetric signature of the
issuer's keys, audience, validity and nonce (OpenID Connect Core 3.1.3.7); joserfc checks the signature, Authlib the
claims. Plain OAuth 2: the profile from the provider's endpoint, read by dotted paths."""

from dataclasses import dataclass
from typing import Any, Final

import orjson
from authlib.oauth2.base import OAuth2Error
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jws import JWSRegistry

from accounts.models.oauth import IdentityProvider
from accounts.oauth.client import metadata
from accounts.oauth.client.metadata import Metadata
from accounts.oauth.client.transport import Calls, oauth_client
from accounts.oauth.errors import AccessDenied, Denial, FlowError, ProviderAnswerInvalid
from accounts.oauth.flows import Flow
from accounts.users import emails
from platform_site.http.errors import ValidationFailed
from platform_site.http.fields import CONTROL_CHARACTERS

LEEWAY: Final = 30
MAX_SUBJECT_LENGTH: Final = 255
MAX_NAME_LENGTH: Final = 200
DEFAULT_FIELDS: Final = {"subject": "id", "email": "email", "name": "name"}
"""Paths of a plain OAuth 2 provider without its own."""


@dataclass(frozen=True, slots=True)
class Profile:
    subject: str
    email: str | None
    """None if missing or invalid here (`accounts.users.emails`)."""
    is_email_verified: bool
    name: str


def profile_of_code(calls: Calls, known: Metadata, code: str, flow: Flow) -> Profile:
    """Exchange the provider's code for the person's profile. Raises AccessDenied, ProviderUnreachable,
    ProviderAnswerInvalid."""
    try:
        token: dict[str, Any] = oauth_client(calls, auth_method=known.auth_method(calls.provider)).fetch_token(
            known.token_endpoint,
            grant_type="authorization_code",
            code=code,
            redirect_uri=calls.provider.callback_url,
            code_verifier=flow.code_verifier,
        )
        if not isinstance(token.get("access_token"), str):
            raise ProviderAnswerInvalid("no access token")
        if calls.provider.kind == IdentityProvider.Kind.OIDC:
            return _profile_of_id_token(calls, known, token, flow.nonce)
        return _profile_of_userinfo(calls, known, str(token["access_token"]))
    except FlowError:
        raise
    except OAuth2Error as error:
        why = f"at its token endpoint: {str(error.error)[:60]!r}"
        raise AccessDenied(Denial.PROVIDER_REFUSED, why) from None
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        # Untrusted input passes through two libraries here: any exception means an invalid response.
        raise ProviderAnswerInvalid(f"{type(error).__name__}: {error}"[:200]) from None


def _profile_of_id_token(calls: Calls, known: Metadata, token: dict[str, Any], nonce: str) -> Profile:
    text = token.get("id_token")
    if not isinstance(text, str):
        raise ProviderAnswerInvalid("no ID token")
    registry = JWSRegistry(algorithms=list(known.algorithms), strict_check_header=False)
    try:
        decoded = jwt.decode(text, metadata.keys(calls, known), registry=registry)
    except InvalidKeyIdError:
        decoded = jwt.decode(text, metadata.keys(calls, known, again=True), registry=registry)
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        {
            "iss": {"essential": True, "value": known.issuer_of(decoded.claims)},
            "aud": {"essential": True, "value": calls.provider.client_id},
        },
        {"nonce": nonce, "client_id": calls.provider.client_id, "access_token": token["access_token"]},
    )
    claims.validate(leeway=LEEWAY)
    person: dict[str, Any] = claims
    if claims.get("email") is None and known.userinfo_endpoint is not None:
        person = calls.get_object(known.userinfo_endpoint, access_token=str(token["access_token"]))
        if person.get("sub") != claims["sub"]:
            raise ProviderAnswerInvalid("userinfo of another person")  # OpenID Connect Core 5.3.2
    return _checked_profile(claims["sub"], person.get("email"), person.get("email_verified"), person.get("name"))


def _profile_of_userinfo(calls: Calls, known: Metadata, access_token: str) -> Profile:
    provider = calls.provider
    answer = calls.get_object(str(known.userinfo_endpoint), access_token=access_token)
    paths = DEFAULT_FIELDS | provider.profile_fields
    value = {name: _at(answer, path) for name, path in paths.items()}
    subject = value["subject"]
    if isinstance(subject, int) and not isinstance(subject, bool):
        subject = str(subject)
    email, verified = value["email"], value.get("email_verified")
    if provider.emails_endpoint:
        listed = calls.get_json(provider.emails_endpoint, access_token=access_token)
        if not isinstance(listed, list):
            raise ProviderAnswerInvalid("no list of emails")
        primary = next((one for one in listed if isinstance(one, dict) and one.get("primary") is True), {})
        email, verified = primary.get("email"), primary.get("verified")
    return _checked_profile(subject, email, verified, value["name"])


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _checked_profile(subject: Any, email: Any, verified: Any, name: Any) -> Profile:
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_LENGTH or "\0" in subject:
        raise ProviderAnswerInvalid("no subject")
    subject.encode()  # half of a surrogate pair cannot be stored
    try:
        address = emails.check(email) if isinstance(email, str) else None
    except ValidationFailed:
        address = None
    # Amazon Cognito and others write the boolean as text.
    is_verified = address is not None and (verified is True or verified == "true")
    return Profile(subject, address, is_verified, _clean_name(name))


def _clean_name(name: Any) -> str:
    shown = name.replace("\0", "").encode(errors="ignore").decode() if isinstance(name, str) else ""
    return CONTROL_CHARACTERS.sub("", shown).strip()[:MAX_NAME_LENGTH]


def name_in_form(user: str) -> str:
    """The name in the parameter `user` (Apple's first sign-in), or empty. It is unsigned, so nothing else is read."""
    try:
        name = orjson.loads(user)["name"]
        parts = (name.get("firstName"), name.get("lastName"))
        return _clean_name(" ".join(part for part in parts if isinstance(part, str)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""
