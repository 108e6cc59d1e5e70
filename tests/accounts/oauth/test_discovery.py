"""An issuer is checked when a provider is added, and can be changed while no user is linked."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accounts.models import AuditEntry, Identity
from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth import identities
from accounts.oauth.client.claims import Profile
from accounts.oauth.errors import ProviderAnswerInvalid
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, session_of
from tests.accounts.oauth.conftest import Browser, code_for, s256, told
from tests.support.client import Answer, Api
from tests.support.discovery import publish_discovery
from tests.support.identity_provider import IdentityProvider, Response, running

pytestmark = pytest.mark.django_db(databases="__all__")

DISCOVERY = "/.well-known/openid-configuration"
CLIENT = {"name": "acme", "client_id": "us", "client_secret": "hush hush"}


@pytest.fixture
def key(make_key: Callable[..., Any], production: Environment) -> str:
    return str(make_key(production)[1])


@pytest.fixture
def other_idp() -> Iterator[IdentityProvider]:
    with running() as provider:
        yield provider


def post(api: Api, key: str, issuer: str, **more: Any) -> Answer:
    return api.post("/v1/identity-providers", token=key, json=CLIENT | {"issuer": issuer} | more)


def message(answer: Answer) -> str:
    [field] = answer.json["error"]["fields"]
    assert (answer.status, field["field"]) == (422, "issuer")
    return str(field["message"])


@pytest.mark.parametrize(("sent", "published"), [("/", ""), ("", "/"), ("", ""), ("/", "/")])
def test_an_issuer_is_stored_as_its_document_spells_it(
    api: Api, key: str, idp: IdentityProvider, sent: str, published: str
) -> None:
    publish_discovery(idp, idp.issuer, idp.issuer + published)
    made = post(api, key, idp.issuer + sent)
    assert (made.status, made.json["issuer"]) == (201, idp.issuer + published)
    assert (idp.count(DISCOVERY), idp.count("/jwks")) == (1, 1)


def test_a_multi_tenant_issuer_is_stored_as_it_is(api: Api, key: str, idp: IdentityProvider) -> None:
    publish_discovery(idp, idp.issuer, f"{idp.issuer}/{{tenantid}}/v2.0", path="/common/v2.0")
    made = post(api, key, f"{idp.issuer}/common/v2.0")
    assert (made.status, made.json["issuer"]) == (201, f"{idp.issuer}/common/v2.0")


@pytest.mark.parametrize(
    ("path", "answer", "code", "says"),
    [
        (DISCOVERY, Response(404, b"", []), "invalid_discovery", "status 404"),
        (DISCOVERY, Response(503, b"", []), "unreachable", "status 503"),
        (DISCOVERY, Response(302, b"", [("Location", "http://169.254.169.254/")]), "invalid_discovery", "status 302"),
        (DISCOVERY, Response(200, b"<html>", []), "invalid_discovery", "no JSON"),
        (
            DISCOVERY,
            Response(200, b'{"issuer": "https://evil.example"}', []),
            "invalid_discovery",
            "https://evil.example",
        ),
        (DISCOVERY, Response(200, b" " * 70_000, []), "invalid_discovery", "more than"),
        ("/jwks", Response(200, b'{"keys": []}', []), "invalid_discovery", "without a signing key"),
        ("/jwks", Response(500, b"", []), "unreachable", "status 500"),
    ],
)
def test_issuer_with_invalid_discovery_is_refused(
    api: Api, key: str, idp: IdentityProvider, path: str, answer: Response, code: str, says: str
) -> None:
    idp.twist_answer[path] = lambda: answer
    refused = post(api, key, idp.issuer)
    assert refused.fields == {"issuer": code}
    assert says in message(refused)
    assert not ProviderRecord.objects.exists()


def test_no_request_goes_into_a_private_network(
    api: Api, key: str, idp: IdentityProvider, provider: ProviderRecord, settings: Any
) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = []
    named = idp.issuer.replace("127.0.0.1", "localhost")
    for answer in (
        post(api, key, named, name="other"),
        api.patch(f"/v1/identity-providers/{provider.pk}", token=key, json={"issuer": named}),
    ):
        assert answer.fields == {"issuer": "unreachable"}
        assert "may not be called" in message(answer)
    assert idp.requests == []


def test_keys_in_a_private_network_are_not_read(api: Api, key: str, idp: IdentityProvider) -> None:
    idp.twist_discovery = lambda document: document | {"jwks_uri": "http://169.254.169.254/latest/meta-data"}
    assert post(api, key, idp.issuer).fields == {"issuer": "unreachable"}


def test_repeated_request_is_answered_without_the_provider(api: Api, key: str, idp: IdentityProvider) -> None:
    headers = {"Idempotency-Key": "once"}
    body = CLIENT | {"issuer": idp.issuer}
    made = api.post("/v1/identity-providers", token=key, json=body, headers=headers)
    idp.twist_answer[DISCOVERY] = lambda: Response(503, b"", [])
    again = api.post("/v1/identity-providers", token=key, json=body, headers=headers)
    assert (made.status, again.status, again.json) == (201, 201, made.json)


# ── Another issuer ──


def test_another_issuer_clears_the_secret_and_is_in_the_audit_log(
    api: Api, key: str, idp: IdentityProvider, other_idp: IdentityProvider, provider: ProviderRecord
) -> None:
    path = f"/v1/identity-providers/{provider.pk}"
    same = api.patch(path, token=key, json={"issuer": idp.issuer + "/"})
    assert (same.json["issuer"], same.json["has_client_secret"]) == (idp.issuer, True), (
        "the spelling alone is no change"
    )
    assert not AuditEntry.objects.filter(action="identity_provider.changed").exists()

    changed = api.patch(path, token=key, json={"issuer": other_idp.issuer + "/"})
    assert (changed.status, changed.json["issuer"]) == (200, other_idp.issuer)
    assert changed.json["has_client_secret"] is False
    provider.refresh_from_db()
    assert provider.client_secret is None
    entry = AuditEntry.objects.get(action="identity_provider.changed")
    assert {*entry.detail["fields"]} == {"issuer", "client_secret"}
    assert (entry.detail["issuer"], entry.detail["previous_issuer"]) == (other_idp.issuer, idp.issuer)

    both = api.patch(path, token=key, json={"issuer": idp.issuer, "client_secret": "next"})
    assert both.json["has_client_secret"] is True
    provider.refresh_from_db()
    assert provider.client_secret == "next"


def test_an_unusable_issuer_changes_nothing(
    api: Api, key: str, idp: IdentityProvider, other_idp: IdentityProvider, provider: ProviderRecord
) -> None:
    other_idp.twist_answer[DISCOVERY] = lambda: Response(404, b"", [])
    path = f"/v1/identity-providers/{provider.pk}"
    before = api.get(path, token=key).json
    refused = api.patch(path, token=key, json={"issuer": other_idp.issuer, "display_name": "X"})
    assert refused.fields == {"issuer": "invalid_discovery"}
    assert api.patch(path, token=key, json={"issuer": "http://127.0.0.1:22/"}).fields == {"issuer": "port_not_allowed"}
    assert api.patch(path, token=key, json={"issuer": None}).status == 422
    assert api.get(path, token=key).json == before


def test_a_provider_of_trusted_emails_gets_no_multi_tenant_issuer(
    api: Api, key: str, other_idp: IdentityProvider, provider: ProviderRecord
) -> None:
    base = other_idp.issuer
    publish_discovery(other_idp, base, f"{base}/{{tenantid}}/v2.0", path="/common/v2.0")
    path = f"/v1/identity-providers/{provider.pk}"
    assert api.patch(path, token=key, json={"trusts_email": True}).status == 200
    refused = api.patch(path, token=key, json={"issuer": f"{base}/common/v2.0"})
    assert refused.fields == {"trusts_email": "multi_tenant"}


def test_plain_oauth_2_gets_no_issuer(api: Api, key: str, idp: IdentityProvider) -> None:
    github = {"name": "github", "preset": "github", "client_id": "us", "client_secret": "x"}
    made = api.post("/v1/identity-providers", token=key, json=github).json
    refused = api.patch(f"/v1/identity-providers/{made['id']}", token=key, json={"issuer": idp.issuer})
    assert refused.fields == {"issuer": "not_with_endpoints"}


def test_the_issuer_stays_while_users_are_linked(
    api: Api,
    key: str,
    idp: IdentityProvider,
    other_idp: IdentityProvider,
    provider: ProviderRecord,
    production: Environment,
) -> None:
    """The same subject at another issuer may be another person."""
    idp.person("ada", email="ada@example.com", email_verified=True)
    code_for(production, "ada")
    path = f"/v1/identity-providers/{provider.pk}"
    refused = api.patch(path, token=key, json={"issuer": other_idp.issuer})
    assert (refused.status, refused.error) == (409, "conflict")
    provider.refresh_from_db()
    assert (provider.issuer, provider.sealed_client_secret is None) == (idp.issuer, False)
    assert api.patch(path, token=key, json={"issuer": idp.issuer, "display_name": "A"}).status == 200


def test_sign_in_begun_before_the_change_links_no_user(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    ProviderRecord.objects.filter(pk=provider.pk).update(issuer="https://id.other.example")
    with pytest.raises(ProviderAnswerInvalid):
        identities.find_or_create_user(provider, Profile("sub-1", "ada@example.com", True, "Ada"))
    assert not Identity.objects.exists()


def test_linking_begun_before_the_change_links_no_user(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, una: Any
) -> None:
    idp.person("una", email="una@example.com", email_verified=True)
    verifier = "v" * 43
    heard = told(Browser().sign_in(production, "una", intent="link", code_challenge=s256(verifier)))
    ProviderRecord.objects.filter(pk=provider.pk).update(issuer="https://id.other.example")
    body = {"code": heard["code"], "code_verifier": verifier, "current_password": PASSWORD}
    answer = api.post("/v1/auth/identities", token=session_of(una).access_token, json=body)
    assert (answer.status, answer.error) == (400, "invalid_grant")
    assert not Identity.objects.exists()
