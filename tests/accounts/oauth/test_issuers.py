"""Issuers as people copy them: with or without a last slash, and Microsoft Entra's URLs for all tenants."""

from typing import Any

import pytest

from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth.client.metadata import of as metadata_of
from accounts.oauth.client.transport import Calls
from projects.models import Environment
from tests.accounts.oauth.conftest import Browser, told
from tests.support.discovery import publish_discovery
from tests.support.identity_provider import IdentityProvider

pytestmark = pytest.mark.django_db(databases="__all__")
TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
OTHER_TENANT = "9188040d-6c67-4c5b-b112-36a304b66dad"


@pytest.fixture(autouse=True)
def ada(idp: IdentityProvider) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True, name="Ada")


def set_issuer(provider: ProviderRecord, issuer: str) -> None:
    ProviderRecord.objects.filter(pk=provider.pk).update(issuer=issuer)


@pytest.mark.parametrize(("stored", "published"), [("/", ""), ("", "/"), ("/", "/")])
def test_the_last_slash_of_an_issuer_does_not_matter(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, stored: str, published: str
) -> None:
    base = idp.issuer
    publish_discovery(idp, base, base + published)
    idp.issuer = base + published
    set_issuer(provider, base + stored)
    assert "code" in told(Browser().sign_in(production, "ada"))


def entra(idp: IdentityProvider, provider: ProviderRecord, tenant_url: str = "common") -> str:
    """Make the provider a multi-tenant one whose tokens come from TENANT; returns the host's base URL."""
    base = idp.issuer
    publish_discovery(idp, base, f"{base}/{{tenantid}}/v2.0", path=f"/{tenant_url}/v2.0")
    idp.issuer = f"{base}/{TENANT}/v2.0"
    set_issuer(provider, f"{base}/{tenant_url}/v2.0")
    return base


def claiming(idp: IdentityProvider, **changes: Any) -> None:
    idp.twist_id_token = lambda header, claims: idp.signed(header, claims | changes)


@pytest.mark.parametrize("tenant_url", ["common", "organizations"])
def test_a_multi_tenant_issuer_signs_users_in(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, tenant_url: str
) -> None:
    entra(idp, provider, tenant_url)
    claiming(idp, tid=TENANT)
    assert "code" in told(Browser().sign_in(production, "ada"))


@pytest.mark.parametrize("tid", [None, 5, "", "common", "{tenantid}", OTHER_TENANT, f"{TENANT}/v2.0"])
def test_a_token_whose_issuer_is_not_its_tenant_is_refused(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, tid: Any
) -> None:
    entra(idp, provider)
    claiming(idp, tid=tid)
    assert told(Browser().sign_in(production, "ada"))["error_code"] == "provider_answer_invalid"


@pytest.mark.parametrize("tid", [TENANT, "common"])
def test_a_token_that_carries_the_multi_tenant_url_is_refused(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, tid: str
) -> None:
    base = entra(idp, provider)
    claiming(idp, tid=tid, iss=f"{base}/common/v2.0")
    assert told(Browser().sign_in(production, "ada"))["error_code"] == "provider_answer_invalid"


def test_an_authorization_response_of_another_host_is_refused(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    entra(idp, provider)
    claiming(idp, tid=TENANT)
    idp.issuer = f"https://evil.example/{TENANT}/v2.0"
    assert told(Browser().sign_in(production, "ada"))["error_code"] == "provider_answer_invalid"


@pytest.mark.parametrize("named", ["common", "", f"{TENANT}/evil"])
def test_an_authorization_response_names_one_tenant(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, named: str
) -> None:
    base = entra(idp, provider)
    metadata = metadata_of(Calls(ProviderRecord.objects.get(pk=provider.pk)))
    assert metadata.is_issuer(f"{base}/{TENANT}/v2.0")
    assert not metadata.is_issuer(f"{base}/{named}/v2.0")


def test_a_template_is_accepted_only_for_the_multi_tenant_urls(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    publish_discovery(idp, idp.issuer, f"{idp.issuer}/{{tenantid}}/v2.0")
    assert told(Browser().begin(production))["error_code"] == "provider_answer_invalid"
