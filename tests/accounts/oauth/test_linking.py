"""Linking another provider while signed in: what it requires, and that no identity is linked to another account."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.models import AuditEntry, AuthorizationCode, Identity, Session, User
from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth import identities, proofs, providers
from accounts.oauth.client.claims import Profile
from accounts.oauth.proofs import Proof
from accounts.registration import email_outbox, own_account
from accounts.users import service as user_service
from accounts.users import sessions
from platform_site.http.errors import Conflict, InvalidGrant
from platform_site.identity.callers import Caller
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, make_environment, session_of
from tests.accounts.oauth.conftest import APP, HOST, Browser, add, allow, code_for, exchange, in_parallel, s256, told
from tests.support.client import Answer, Api
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks
from tests.support.identity_provider import IdentityProvider, running
from tests.support.postbox import Postbox, text_of

pytestmark = pytest.mark.django_db(databases="__all__")

VERIFIER = secrets.token_urlsafe(48)


@pytest.fixture
def una_s(una: User) -> SignedIn:
    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    return session_of(una)


@pytest.fixture
def octo(idp: IdentityProvider, provider: ProviderRecord) -> str:
    """A person at the provider whose email says nothing about una."""
    idp.person("octo", email="octo@elsewhere.example", email_verified=False)
    return "octo"


def brought(environment: Environment | None, login: str, **asked: Any) -> str:
    """What comes back to the application."""
    heard = told(Browser().sign_in(environment, login, intent="link", code_challenge=s256(VERIFIER), **asked))
    assert "error" not in heard, heard
    return heard["code"]


def link(api: Api, who: SignedIn | str, code: str, **given: Any) -> Answer:
    body = {"code": code, "code_verifier": VERIFIER, "current_password": PASSWORD} | given
    token = who if isinstance(who, str) else who.access_token
    return api.post("/v1/auth/identities", token=token, json={k: v for k, v in body.items() if v is not None})


def test_signed_in_user_links_a_second_provider_and_signs_in_with_it(
    api: Api, octo: str, una_s: SignedIn, production: Environment, postbox: Postbox
) -> None:
    code = brought(production, octo, state="s")
    assert not Identity.objects.exists()
    assert not AuthorizationCode.objects.exists()
    made = link(api, una_s, code)
    assert made.status == 201, made.json
    assert (made.json["provider"], made.json["email"]) == ("acme", "octo@elsewhere.example")
    assert made.headers["Location"] == f"/v1/auth/identities/{made.json['id']}"
    assert api.get("/v1/auth/identities", token=una_s.access_token).json["data"] == [made.json]
    assert exchange(api, code_for(production, octo), production).json["user"]["id"] == una_s.user.pk
    assert User.objects.in_pool(production.pk).count() == 1

    linked = AuditEntry.objects.get(action="identity.linked")
    assert (linked.actor_id, linked.target_id) == (una_s.user.pk, una_s.user.pk)
    email_outbox.send_due()
    [message] = postbox.messages
    assert message["To"] == una_s.user.email
    assert "You can now also sign in to your account at" in text_of(message)
    assert "elsewhere" not in str(message), "a provider can send any text"

    again = link(api, una_s, code)
    assert (again.status, again.json["id"]) == (201, made.json["id"]), "to link twice is to link once"
    assert Identity.objects.count() == 1
    assert AuditEntry.objects.filter(action="identity.linked").count() == 1


def test_an_identity_is_one_person_at_one_provider(
    api: Api, idp: IdentityProvider, octo: str, una_s: SignedIn, production: Environment
) -> None:
    """Several people of one provider, and one who has the same name at two."""
    with running() as other:
        other.register(f"http://{HOST}/v1/auth/callback")
        add(production.pk, "beta", issuer=other.issuer)
        for provider, login in ((other, octo), (other, "dog"), (idp, "cat")):
            provider.person(login, email=f"{login}@{provider.issuer[-4:]}.example", email_verified=True)
        first = link(api, una_s, brought(production, octo, provider="acme")).json
        namesake = exchange(api, code_for(production, octo, provider="beta"), production).json["user"]["id"]
        assert namesake != una_s.user.pk
        second = link(api, una_s, brought(production, "cat", provider="acme")).json
        third = link(api, una_s, brought(production, "dog", provider="beta")).json
        assert [each["provider"] for each in (first, second, third)] == ["acme", "acme", "beta"]
        assert link(api, una_s, brought(production, octo, provider="beta")).status == 409
        known = {identity.pk: identity.email for identity in Identity.objects.all()}
        assert len(known) == len(set(known.values())) == 4

        idp.person("cat", email="cat@moved.example", email_verified=True)
        code = code_for(production, "cat", provider="acme")
        assert exchange(api, code, production).json["user"]["id"] == una_s.user.pk
        now = {identity.pk: identity.email for identity in Identity.objects.all()}
        assert now == known | {second["id"]: "cat@moved.example"}


def test_platform_accounts_link_too(api: Api, idp: IdentityProvider, octo: str, alice: User) -> None:
    allow(None, APP)
    add(None, "acme", issuer=idp.issuer)
    assert link(api, session_of(alice), brought(None, octo)).status == 201
    assert Identity.objects.get().user_id == alice.pk


def test_a_branch_links_and_unlinks_nothing(
    api: Api, octo: str, una: User, una_s: SignedIn, production: Environment
) -> None:
    branch = branch_of(production)
    allow(branch.pk, APP)
    refused = told(Browser().begin(branch, intent="link", code_challenge=s256(VERIFIER)))
    assert (refused["error"], "code" in refused) == ("invalid_request", False)
    in_branch = session_of(una, environment=branch.pk)
    code = brought(production, octo)
    assert link(api, in_branch, code).error == "forbidden"
    assert not Identity.objects.exists()
    made = link(api, una_s, code)
    assert api.delete(f"/v1/auth/identities/{made.json['id']}", token=in_branch.access_token).error == "forbidden"
    assert Identity.objects.get().user_id == una.pk


def test_a_stolen_access_token_is_not_enough(api: Api, octo: str, una_s: SignedIn, production: Environment) -> None:
    code = brought(production, octo)
    assert link(api, una_s, code, current_password=None).fields == {"current_password": "required"}
    assert link(api, una_s, code, current_password="wrong").fields == {"current_password": "wrong"}
    User.objects.filter(pk=una_s.user.pk).update(password="!")
    Session.objects.update(created_at=timezone.now() - timedelta(minutes=11))
    assert link(api, una_s, code, current_password=None).status == 403
    assert not Identity.objects.exists()
    fresh = sessions.start(
        User.objects.get(pk=una_s.user.pk),
        environment_id=production.pk,
        device=sessions.Device(),
        method="oauth:acme",
        password_hash="!",
    )
    assert link(api, fresh.access_token, code, current_password=None).status == 201


@pytest.mark.parametrize("change", [{"password": "another horse, another battery"}, {"is_disabled": True}])
def test_who_lost_the_account_at_that_moment_links_nothing(
    api: Api,
    octo: str,
    una_s: SignedIn,
    production: Environment,
    change: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the password's being right and the link the owner takes the account back."""
    code = brought(production, octo)
    prove = own_account.reauthenticate

    def proved_just_before(user: User, **facts: Any) -> None:
        prove(user, **facts)
        user_service.change_user(user, actor=audit.SYSTEM, **change)

    monkeypatch.setattr(own_account, "reauthenticate", proved_just_before)
    assert link(api, una_s, code).error == "conflict"
    assert not Identity.objects.exists()


def test_a_key_has_no_identities(api: Api, octo: str, production: Environment, make_key: Callable[..., Any]) -> None:
    _, secret = make_key(production)
    assert link(api, secret, brought(production, octo)).status == 403


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda code: {"code_verifier": secrets.token_urlsafe(48)}, id="of another application"),
        pytest.param(lambda code: {"code_verifier": ""}, id="without its verifier"),
        pytest.param(lambda code: {"code": code[:-2] + "xx"}, id="changed"),
        pytest.param(lambda code: {"code": code.removeprefix("oal_")}, id="without its prefix"),
        pytest.param(lambda code: {"code": "oal_é"}, id="no base64"),
        pytest.param(lambda code: {"code": "oal_"}, id="empty"),
    ],
)
def test_what_was_not_brought_by_whoever_asked_links_nothing(
    api: Api, octo: str, una_s: SignedIn, production: Environment, spoil: Callable[[str], dict[str, str]]
) -> None:
    refused = link(api, una_s, **{"code": (code := brought(production, octo))} | spoil(code))
    assert refused.status in (400, 422), refused.json
    assert set(refused.fields or {}) <= {"code", "code_verifier"}
    assert not Identity.objects.exists()


def test_link_code_is_valid_for_one_minute_in_its_environment(
    api: Api, octo: str, una_s: SignedIn, production: Environment, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = brought(production, octo)
    other = make_environment(alice)
    stranger = User.objects.create(environment_id=other.pk, email="x@example.com", password=una_s.user.password)
    elsewhere = link(api, session_of(stranger), code)
    assert (elsewhere.status, elsewhere.error, elsewhere.fields) == (400, "invalid_grant", {"code": "unknown"})
    assert link(api, session_of(alice), code).status == 400
    provider = ProviderRecord.objects.get()
    providers.change(provider, actor=audit.SYSTEM, enabled=False)
    assert link(api, una_s, code).status == 400
    providers.change(provider, actor=audit.SYSTEM, enabled=True)
    monkeypatch.setattr(proofs, "LIFETIME", -1)
    assert link(api, una_s, brought(production, octo)).status == 400
    assert not Identity.objects.exists()
    assert link(api, una_s, code).status == 201


def test_it_signs_nobody_in(api: Api, octo: str, production: Environment) -> None:
    refused = exchange(api, brought(production, octo), production, code_verifier=VERIFIER)
    assert (refused.status, refused.error) == (400, "invalid_grant")
    assert not Session.objects.exists()


def test_identity_of_another_user_is_not_linked(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, una_s: SignedIn, production: Environment
) -> None:
    idp.person("new", email="new@example.com", email_verified=True)
    theirs = exchange(api, code_for(production, "new"), production).json["user"]["id"]
    refused = link(api, una_s, brought(production, "new"))
    assert (refused.status, refused.error) == (409, "conflict")
    assert Identity.objects.get().user_id == theirs


def test_an_account_has_so_many_identities_and_no_more(
    api: Api, octo: str, una_s: SignedIn, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "MAX_IDENTITIES", 0)
    refused = link(api, una_s, brought(production, octo))
    assert (refused.status, refused.error) == (422, "quota_exceeded")


def test_a_provider_of_another_pool_is_not_linked(una: User, production: Environment) -> None:
    other = add(None, "acme", issuer="https://acme.example")
    proof = Proof(
        provider_id=other.pk,
        subject="una",
        email=None,
        environment_id=production.pk,
        code_challenge=s256(VERIFIER),
        issuer=other.issuer,
    )
    with pytest.raises(InvalidGrant):
        identities.link(una, proof, actor=Caller("user", una.pk, frozenset()))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"intent": "link"}, id="without PKCE"),
        pytest.param({"intent": "sign-in", "code_challenge": s256(VERIFIER)}, id="another intent"),
    ],
)
def test_what_is_wrong_with_the_intent_the_application_hears(
    provider: ProviderRecord, production: Environment, asked: dict[str, str]
) -> None:
    heard = told(Browser().begin(production, **asked))
    assert (heard["error"], heard["error_code"]) == ("invalid_request", "invalid_request")


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_the_only_two_identities_are_not_both_unlinked_at_once(una: User, production: Environment) -> None:
    User.objects.filter(pk=una.pk).update(password="!")
    first, second = (
        Identity.objects.create(user=una, provider=add(production.pk, name, issuer=f"https://{name}.example"))
        for name in ("acme", "hub")
    )
    caller = Caller("user", una.pk, frozenset())
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            identities.unlink(una.pk, first.pk, actor=caller)
            other = pool.submit(in_thread, lambda: identities.unlink(una.pk, second.pk, actor=caller))
            wait_until(lambda: other.done() or waiting_for_locks("default") > 0)
        assert isinstance(other.result(30), Conflict)
    assert Identity.objects.get() == second


def test_an_identity_of_a_disabled_provider_is_no_way_to_sign_in(una: User, production: Environment) -> None:
    User.objects.filter(pk=una.pk).update(password="!")
    only, _ = (
        Identity.objects.create(
            user=una, provider=add(production.pk, name, issuer="https://a.example", enabled=enabled)
        )
        for name, enabled in (("acme", True), ("hub", False))
    )
    with pytest.raises(Conflict):
        identities.unlink(una.pk, only.pk, actor=Caller("user", una.pk, frozenset()))


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_an_identity_that_is_unlinked_at_that_moment_signs_nobody_in(una: User, production: Environment) -> None:
    provider = add(production.pk, "acme", issuer="https://acme.example")
    identity = Identity.objects.create(user=una, provider=provider, subject="una")
    profile = Profile("una", None, is_email_verified=False, name="")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            identities.unlink(una.pk, identity.pk, actor=Caller("user", una.pk, frozenset()))
            branch = pool.submit(in_thread, transaction.atomic(lambda: identities.linked_user(provider, profile)))
            wait_until(lambda: branch.done() or waiting_for_locks("default") > 0)
        assert branch.result(30).code == "sign_up_closed"


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_two_tabs_link_once(octo: str, una_s: SignedIn, production: Environment) -> None:
    code = brought(production, octo)
    answers = in_parallel(*[lambda: link(Api(), una_s, code)] * 4)
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["id"] for answer in answers}) == 1
