"""Signing in by another provider while the project is suspended."""

import pytest

from accounts import audit
from accounts.models import IdentityProvider, User
from projects import services
from projects.models import Environment
from tests.accounts.oauth.conftest import Browser, told
from tests.support.client import Api
from tests.support.identity_provider import IdentityProvider as Provider
from tests.support.identity_provider import sign_in_at

pytestmark = pytest.mark.django_db(databases="__all__")


def test_disabled_provider_starts_and_completes_no_sign_in(
    api: Api, production: Environment, provider: IdentityProvider, idp: Provider
) -> None:
    idp.person("nia", email="nia@example.com", email_verified=True)
    browser = Browser()
    begun = browser.begin(production)
    returned = sign_in_at(begun["Location"], "nia")
    services.suspend_project(production.project_id, reason="abuse", actor=audit.SYSTEM)
    assert browser.begin(production).status_code == 403
    page = browser.begin(production, accept="text/html")
    assert (page.status_code, "suspended" in page.content.decode()) == (403, True)
    assert api.get(f"/v1/auth/providers?environment={production.pk}").error == "project_suspended"
    assert browser.arrive(returned).status_code == 403
    assert not User.objects.filter(environment_id=production.pk).exists()
    services.resume_project(production.project_id, actor=audit.SYSTEM)
    assert "code" in told(browser.arrive(returned)), "the flow that was begun before can be ended"
