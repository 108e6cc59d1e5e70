"""The connection to PostgreSQL is lost during the provider's callback: a user is signed in completely or not at all."""

from typing import Any

import pytest
from django.db import connection

from accounts.models import AuditEntry, AuthorizationCode, Identity, User
from accounts.models import IdentityProvider as ProviderRecord
from projects.models import Environment
from tests.accounts.oauth.conftest import Browser, told
from tests.support.connection_cuts import BreakingProxy, Plan, postgres_behind
from tests.support.identity_provider import IdentityProvider, sign_in_at

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

CODE = 'INSERT INTO "accounts_authorizationcode"'


def come_back(production: Environment, login: str, cuts: BreakingProxy, at: int | None = None) -> tuple[Any, Plan]:
    """The answer to the way back from the provider, and what was planned: cut off before step `at`."""
    browser = Browser()
    address = sign_in_at(browser.begin(production, provider="acme")["Location"], login)
    cuts.plan(at)
    answer = browser.arrive(address)
    return answer, cuts.stop()


def everything() -> list[int]:
    connection.close()
    return [model.objects.count() for model in (User, Identity, AuditEntry, AuthorizationCode)]


@pytest.mark.exhaustive
def test_refusal_creates_no_user_and_no_code(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    def person(login: str) -> str:
        idp.person(login, email=f"{login}@example.com", email_verified=True, name=login)
        return login

    with postgres_behind() as cuts:
        steps = come_back(production, person("eve"), cuts)[1].steps
        for at in range(len(steps), 0, -1):  # what a process has learned makes the way shorter
            login, before = person(f"ada-{at}"), everything()
            refused, plan = come_back(production, login, cuts, at)
            if CODE in plan.was_cut:
                break
            assert not plan.was_cut or (refused.status_code, everything()) == (503, before)
        assert (refused.status_code, everything()) == (503, before)
        assert told(come_back(production, login, cuts)[0])["code"].startswith("oac_")
    assert User.objects.filter(email=f"{login}@example.com").count() == 1
