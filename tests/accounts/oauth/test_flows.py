"""Sign-in by other providers, end to end: real redirects, a real provider on loopback, codes exchanged for sessions.

test_in_a_browser.py does it with a real browser.
"""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.models import AuditEntry, AuthorizationCode, Identity, User
from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth import identities, providers
from accounts.oauth.client import metadata
from accounts.oauth.client.claims import Profile
from accounts.registration import email_outbox, invitations, pool_settings
from accounts.staff import roles
from accounts.users import service as user_service
from platform_site import outbound
from platform_site.identity.plans import PLANS
from projects.models import Environment
from tests.accounts.conftest import branch_of, token
from tests.accounts.oauth.conftest import (
    APP,
    HOST,
    Browser,
    add,
    allow,
    code_for,
    exchange,
    in_parallel,
    open_pool,
    s256,
    told,
)
from tests.support.client import Api
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks
from tests.support.identity_provider import CLIENT_SECRET, IdentityProvider, Response, sign_in_at
from tests.support.postbox import Postbox, html_of, text_of

pytestmark = pytest.mark.django_db(databases="__all__")


# ── The way through ──


def test_a_person_signs_in_with_pkce_and_is_a_user_from_then_on(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True, name="Ada Lovelace")
    verifier = secrets.token_urlsafe(48)
    browser = Browser()
    back = browser.sign_in(
        production, "ada", provider="acme", state="xyz 1&2", code_challenge=s256(verifier), code_challenge_method="S256"
    )
    assert [cookie.value for cookie in browser.client.cookies.values()] == [""], "the flow has ended"
    assert back["Location"].startswith(APP + "?")
    assert back["Cache-Control"] == "no-store"
    assert back["Referrer-Policy"] == "no-referrer"
    heard = told(back)
    assert set(heard) == {"code", "state", "iss"}
    assert heard["state"] == "xyz 1&2"
    assert heard["iss"] == f"http://{HOST}"
    assert heard["code"].startswith("oac_")
    assert heard["code"] not in repr(list(AuthorizationCode.objects.values()))

    got = exchange(api, heard["code"], production, code_verifier=verifier, redirect_uri=APP)
    assert got.status == 200
    assert got.headers["Cache-Control"] == "no-store"
    assert set(got.json) == {"access_token", "refresh_token", "expires_in", "user"}
    assert got.json["expires_in"] == 900
    user = User.objects.get(pk=got.json["user"]["id"])
    assert got.json["user"] == {"id": user.pk, "email": "ada@example.com", "name": "Ada Lovelace"}
    assert user.environment_id == production.pk
    assert user.email_verified_at is not None
    assert not user.has_usable_password()
    me = api.get("/v1/auth/me", token=got.json["access_token"])
    assert (me.status, me.json["id"], me.json["environment_id"]) == (200, user.pk, production.pk)
    refreshed = token(api, grant_type="refresh_token", refresh_token=got.json["refresh_token"])
    assert refreshed.status == 200
    # The session records how it began, and the audit log has every step.
    started = AuditEntry.objects.get(action="session.started")
    assert started.detail["method"] == "oauth:acme"
    assert {entry.action for entry in AuditEntry.objects.filter(target_id=user.pk)} >= {
        "user.created",
        "identity.linked",
    }

    # What went to the provider: PKCE, a nonce, the openid scope; and the secret never in a URL.
    [sent_away] = [came for came in idp.requests if came.path.startswith("/authorize")]
    assert sent_away.query["code_challenge_method"] == "S256"
    assert sent_away.query["scope"] == "openid email profile"
    assert len(sent_away.query["nonce"]) >= 43
    assert len(sent_away.query["state"]) == 43
    assert not any(CLIENT_SECRET in came.path for came in idp.requests)
    [exchanged] = [came for came in idp.requests if came.path == "/token"]
    assert exchanged.headers["Authorization"].startswith("Basic ")

    # A second time it is the same user, whatever the email says by then.
    idp.people["ada"].claims = {"email": "else@example.com", "email_verified": False}
    again = exchange(api, code_for(production, "ada"), production)
    assert again.json["user"]["id"] == user.pk
    assert User.objects.in_pool(production.pk).count() == 1
    assert idp.count("/.well-known/openid-configuration") == 1
    assert idp.count("/jwks") == 1


def test_github_s_shape(api: Api, idp: IdentityProvider, production: Environment) -> None:
    """Plain OAuth 2: a numeric id, a profile without a word about the address, and a list of addresses beside it."""
    open_pool(production.pk)
    allow(production.pk, APP)
    record = add(
        production.pk,
        "github",
        authorization_endpoint=f"{idp.issuer}/authorize",
        token_endpoint=f"{idp.issuer}/token",
        userinfo_endpoint=f"{idp.issuer}/user",
        emails_endpoint=f"{idp.issuer}/user/emails",
        profile_fields={"name": "profile.shown"},
        scopes=["read:user", "user:email"],
    )
    assert record.callback_url.endswith(f"/v1/auth/callback/{record.pk}")
    idp.register(record.callback_url)
    idp.person("octo", subject="583231", email="shown@example.com", profile={"shown": "The Octocat"})
    idp.emails["583231"] = [
        {"email": "old@example.com", "primary": False, "verified": True},
        {"email": "octo@example.com", "primary": True, "verified": True},
    ]
    got = exchange(api, code_for(production, "octo"), production)
    assert got.status == 200
    assert got.json["user"]["email"] == "octo@example.com"
    assert got.json["user"]["name"] == "The Octocat"
    assert Identity.objects.get().subject == "583231"
    [exchanged] = [came for came in idp.requests if came.path == "/token"]
    assert exchanged.form["client_secret"] == CLIENT_SECRET
    assert "nonce" not in next(came for came in idp.requests if came.path.startswith("/authorize")).query

    # An address that is not verified is none.
    idp.person("mallory", subject="666")
    idp.emails["666"] = [{"email": "victim@example.com", "primary": True, "verified": False}]
    assert told(Browser().sign_in(production, "mallory"))["error_code"] == "email_unverified"
    assert not User.objects.filter(email="victim@example.com").exists()
    for subject in (b"true", b'""', b"null"):
        idp.twist_answer["/user"] = lambda subject=subject: Response(200, b'{"id":%s}' % subject, [])
        assert told(Browser().sign_in(production, "octo"))["error_code"] == "provider_answer_invalid"


def test_a_provider_is_met_at_its_own_callback_only(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    """A tenant could name another provider's endpoints as its own; its callback is not registered there (mix-up)."""
    hostile = add(
        production.pk,
        "hostile",
        authorization_endpoint=f"{idp.issuer}/authorize",
        token_endpoint="https://collector.example/token",
        userinfo_endpoint="https://collector.example/user",
    )
    idp.person("ada", email="ada@example.com", email_verified=True)
    idp.register(provider.callback_url)
    begun = Browser().begin(production, provider="hostile")
    refused = httpx.post(begun["Location"], data={"login": "ada", "answer": "yes"})
    assert refused.status_code == 400, "the provider knows no such redirect URI"
    assert idp.codes == {}
    idp.register(f"http://{HOST}/v1/auth/callback")

    # And a flow of one provider does not end at the callback of another.
    browser = Browser()
    back = sign_in_at(browser.begin(production, provider="acme")["Location"], "ada")
    for other in (back.replace(provider.pk, hostile.pk), back.replace(provider.pk, "idp_x")):
        assert browser.arrive(other).status_code == 422
    assert browser.arrive(back.replace(f"/{provider.pk}", "")).status_code == 404, "there is none for all"
    assert idp.count("/token") == 0
    assert AuthorizationCode.objects.count() == 0


def test_a_public_client_and_a_provider_that_takes_its_secret_in_the_body(
    api: Api, idp: IdentityProvider, production: Environment
) -> None:
    open_pool(production.pk)
    allow(production.pk, APP)
    idp.person("ada", email="ada@example.com", email_verified=True)
    idp.register(f"http://{HOST}/v1/auth/callback", client_id="public", secret=None)
    add(production.pk, "public", issuer=idp.issuer, client_id="public", client_secret=None)
    idp.register(f"http://{HOST}/v1/auth/callback", client_id="posting", auth_methods=("client_secret_post",))
    add(production.pk, "posting", issuer=idp.issuer, client_id="posting", client_auth="client_secret_post")
    for name in ("public", "posting"):
        assert exchange(api, code_for(production, "ada", provider=name), production).status == 200
    # The second one found the first one's user: both had verified the address.
    assert User.objects.in_pool(production.pk).count() == 1
    assert Identity.objects.count() == 2


def olga_of_the_platform(
    idp: IdentityProvider, make_user: Any, *, email: str = "olga@example.com", is_staff: bool = False, **provider: Any
) -> User:
    """A platform account with a verified email, and the same person at a provider of the platform's own pool."""
    idp.register(f"http://{HOST}/v1/auth/callback")
    add(None, "acme", issuer=idp.issuer, **provider)
    allow(None, APP)
    olga: User = make_user("olga")
    User.objects.filter(pk=olga.pk).update(email_verified_at=timezone.now(), is_staff=is_staff)
    idp.person("olga", email=email, email_verified=True)
    return olga


def test_platform_accounts_have_providers_of_their_own(api: Api, idp: IdentityProvider, make_user: Any) -> None:
    olga = olga_of_the_platform(idp, make_user, email="OLGA@example.com")
    got = exchange(api, code_for(None, "olga"))
    assert (got.status, got.json["user"]["id"]) == (200, olga.pk)
    # Unknown people are not admitted: the platform's pool is closed unless its operator opens it.
    idp.person("stranger", email="stranger@example.com", email_verified=True)
    assert told(Browser().sign_in(None, "stranger"))["error_code"] == "sign_up_closed"


def test_no_provider_s_word_for_an_email_makes_anybody_one_of_the_staff(
    api: Api, idp: IdentityProvider, make_user: Any
) -> None:
    """A provider that trusts emails could otherwise name those of superusers."""
    olga = olga_of_the_platform(idp, make_user, is_staff=True, trusts_email=True)
    assert told(Browser().sign_in(None, "olga"))["error_code"] == "link_required"
    assert not Identity.objects.exists()
    # An identity that the user linked signs that user in.
    identity = Identity.objects.create(
        user=olga, provider=ProviderRecord.objects.get(), subject=idp.people["olga"].subject, email="olga@example.com"
    )
    assert exchange(api, code_for(None, "olga"), None).json["user"]["id"] == identity.user_id


def test_an_identity_from_before_an_account_became_staff_is_unlinked(
    api: Api, idp: IdentityProvider, make_user: Any
) -> None:
    olga = olga_of_the_platform(idp, make_user)
    opened = exchange(api, code_for(None, "olga"), None).json["access_token"]
    roles.set_role(olga, roles.StaffRole.SUPPORT, actor=audit.SYSTEM)
    assert api.get("/v1/auth/me", token=opened).status == 401
    assert AuditEntry.objects.filter(action="identity.unlinked", target_id=olga.pk).count() == 1
    assert told(Browser().sign_in(None, "olga"))["error_code"] == "link_required"


def test_a_branch_signs_in_its_parents_users_by_its_parents_providers(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    branch = branch_of(production)
    idp.person("ada", email="ada@example.com", email_verified=True)
    refused = Browser().begin(branch)
    assert refused.status_code == 422, "its redirect URIs are its own"
    allow(branch.pk, "https://preview.example.com/")
    exchange(api, code_for(production, "ada"), production)
    code = code_for(branch, "ada", redirect_uri="https://preview.example.com/")
    assert exchange(api, code, production).status == 400
    got = exchange(api, code, branch)
    assert got.status == 200
    assert User.objects.get(pk=got.json["user"]["id"]).environment_id == production.pk
    assert api.get("/v1/auth/me", token=got.json["access_token"]).json["environment_id"] == branch.pk


def test_a_branch_makes_nobody_a_user_and_links_nobody(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, make_user: Any
) -> None:
    """Users of a branch are those of its source, which a preview must not change."""
    branch = branch_of(production)
    allow(branch.pk, APP)
    idp.person("ada", email="ada@example.com", email_verified=True)
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
    assert told(Browser().sign_in(branch, "ada"))["error_code"] == "sign_up_closed"
    assert not User.objects.in_pool(production.pk).exists()
    una = make_user("una", pool_id=production.pk)
    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    idp.person("una", email=una.email, email_verified=False)
    assert told(Browser().sign_in(branch, "una"))["error_code"] == "sign_up_closed", (
        "it does not say who has an account"
    )
    idp.person("una", email=una.email, email_verified=True)
    assert told(Browser().sign_in(branch, "una"))["error_code"] == "link_required"
    assert not Identity.objects.exists()
    assert "code" in told(Browser().sign_in(production, "una"))
    before = Identity.objects.values().get()
    idp.person("una", email="una@moved.example", email_verified=True)
    assert "code" in told(Browser().sign_in(branch, "una"))
    assert Identity.objects.values().get() == before


def test_an_email_that_only_userinfo_has(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.email_only_in_userinfo = True
    idp.person("ada", email="ada@example.com", email_verified="true", name="Ada")
    assert exchange(api, code_for(production, "ada"), production).json["user"]["email"] == "ada@example.com"


def test_keys_are_read_again_when_the_provider_rotates_them(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    assert exchange(api, code_for(production, "ada"), production).status == 200
    idp.new_key()
    # Not for each unknown key id: those who make them up would make us ask for as long as they like.
    assert told(Browser().sign_in(production, "ada"))["error_code"] == "provider_answer_invalid"
    assert idp.count("/jwks") == 1
    monkeypatch.setattr(metadata, "KEYS_RELOAD_SECONDS", 0.0)
    assert exchange(api, code_for(production, "ada"), production).status == 200
    assert idp.count("/jwks") == 2


def test_connections_to_a_provider_are_its_applications_own(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, request = set(), outbound.Client.request

    def noted(self: outbound.Client, *call: Any, owner: str, **how: Any) -> outbound.Response:
        owners.add(owner)
        return request(self, *call, owner=owner, **how)

    monkeypatch.setattr(outbound.Client, "request", noted)
    idp.person("ada", email="ada@example.com", email_verified=True)
    code_for(production, "ada")
    assert owners == {production.pk}


# ── Whose account it is ──


def test_an_email_links_only_if_both_sides_verified_it(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, una: User
) -> None:
    idp.person("una", email="Una@Example.com", email_verified=True)

    heard = told(Browser().sign_in(production, "una", state="s"))
    assert (heard["error"], heard["error_code"], heard["state"]) == ("access_denied", "email_taken", "s")
    assert not Identity.objects.exists()

    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    idp.people["una"].claims["email_verified"] = False
    assert told(Browser().sign_in(production, "una"))["error_code"] == "email_unverified"
    idp.people["una"].claims["email_verified"] = "false"
    assert told(Browser().sign_in(production, "una"))["error_code"] == "email_unverified"
    del idp.people["una"].claims["email_verified"]
    assert told(Browser().sign_in(production, "una"))["error_code"] == "email_unverified"
    assert not Identity.objects.exists()

    idp.people["una"].claims["email_verified"] = True
    assert exchange(api, code_for(production, "una"), production).json["user"]["id"] == una.pk
    una.refresh_from_db()
    assert una.has_usable_password(), "what was there stays"


def test_who_was_a_user_already_is_told_that_there_is_another_way_in(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, una: User, postbox: Postbox
) -> None:
    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    providers.change(provider, actor=audit.SYSTEM, display_name="Acme <b>& Sons</b>")
    for login in ("una", "new"):
        idp.person(login, email=f"{login}@example.com", email_verified=True)
        code_for(production, login)
        code_for(production, login)
    email_outbox.send_due()
    [told_una] = postbox.messages
    assert told_una["To"] == "una@example.com"
    assert "with Acme <b>& Sons</b>." in text_of(told_una)
    assert "Acme &lt;b&gt;&amp; Sons&lt;/b&gt;" in html_of(told_una)
    assert "lnk_" not in str(told_una)


def test_unverified_email_reveals_no_accounts(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, una: User
) -> None:
    """A provider that lets people claim any email address must not reveal which of them have accounts."""
    idp.person("prober", email="una@example.com", email_verified=False)
    known = told(Browser().sign_in(production, "prober"))
    idp.people["prober"].claims["email"] = "nobody@example.com"
    unknown = told(Browser().sign_in(production, "prober"))
    assert known == unknown


def test_no_email_no_user(idp: IdentityProvider, provider: ProviderRecord, production: Environment) -> None:
    for claims in (
        {},
        {"email": None},
        {"email": 5},
        {"email": "nonsense"},
        {"email": "ıi@example.com"},
        {"email": ""},
    ):
        idp.person("nobody", email_verified=True, **claims)
        assert told(Browser().sign_in(production, "nobody"))["error_code"] == "email_missing", claims
    assert not User.objects.in_pool(production.pk).exists()


def test_a_directory_of_one_s_own_may_be_trusted_with_addresses(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.person("ada", email="ada@example.com")
    assert told(Browser().sign_in(production, "ada"))["error_code"] == "email_unverified"
    providers.change(provider, actor=audit.SYSTEM, trusts_email=True)
    assert exchange(api, code_for(production, "ada"), production).status == 200


@pytest.mark.parametrize("mode", ["off", "invited"])
def test_a_closed_pool_makes_no_users_but_knows_its_own(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, una: User, mode: str
) -> None:
    open_pool(production.pk, mode)
    idp.person("new", email="new@example.com", email_verified=True)
    assert told(Browser().sign_in(production, "new"))["error_code"] == "sign_up_closed"
    assert not User.objects.filter(email="new@example.com").exists()
    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    idp.person("una", email="una@example.com", email_verified=True)
    assert exchange(api, code_for(production, "una"), production).json["user"]["id"] == una.pk


def test_a_provider_can_be_for_those_who_are_users_already(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    providers.change(provider, actor=audit.SYSTEM, sign_up=False)
    idp.person("new", email="new@example.com", email_verified=True)
    assert told(Browser().sign_in(production, "new"))["error_code"] == "sign_up_closed"


def test_who_is_invited_comes_in_with_the_role_of_the_invitation(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    open_pool(production.pk, "invited")
    invitations.invite(
        pool_id=production.pk, email="Eve@example.com", role="editor", claims={"team": "a"}, actor=audit.SYSTEM
    )
    idp.person("eve", email="eve@example.com", email_verified=True, name="Eve")
    got = exchange(api, code_for(production, "eve"), production)
    user = User.objects.get(pk=got.json["user"]["id"])
    assert (user.role, user.claims, user.name) == ("editor", {"team": "a"}, "Eve")
    assert not invitations.pending(production.pk).exists(), "an invitation is used once"


def test_an_invitation_whose_sender_may_invite_no_longer_lets_nobody_in(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, make_key: Callable[..., Any]
) -> None:
    open_pool(production.pk, "invited")
    key, secret = make_key(production, "users:manage")
    body = {"email": "eve@example.com", "role": "editor"}
    assert api.post("/v1/invitations", token=secret, json=body).status == 201
    user_service.revoke_key(key, actor=audit.SYSTEM)
    idp.person("eve", email="eve@example.com", email_verified=True)
    assert told(Browser().sign_in(production, "eve"))["error_code"] == "sign_up_closed"
    assert not User.objects.with_email(production.pk, "eve@example.com").exists()


def test_a_disabled_user_stays_outside(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    user_id = exchange(api, code_for(production, "ada"), production).json["user"]["id"]
    waiting = code_for(production, "ada")
    User.objects.filter(pk=user_id).update(disabled_at=timezone.now())
    assert exchange(api, waiting, production).status == 400, "also with a code from before"
    assert told(Browser().sign_in(production, "ada"))["error_code"] == "user_disabled"


def test_provider_sign_up_respects_the_user_limit(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, monkeypatch: pytest.MonkeyPatch, una: User
) -> None:
    monkeypatch.setattr(pool_settings, "plan_limits", lambda plan: replace(PLANS[plan], app_users_per_environment=1))
    idp.person("new", email="new@example.com", email_verified=True)
    assert told(Browser().sign_in(production, "new"))["error_code"] == "quota_exceeded"


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_the_same_person_in_several_tabs_is_one_user(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    browsers = [Browser() for _ in range(6)]
    ways = [(browser, sign_in_at(browser.begin(production)["Location"], "ada")) for browser in browsers]
    results = in_parallel(*[lambda browser=browser, way=way: told(browser.arrive(way)) for browser, way in ways])
    assert User.objects.in_pool(production.pk).count() == 1
    assert Identity.objects.count() == 1
    # A process makes a few calls to one provider at a time; further callers are asked to try again.
    assert any("code" in heard for heard in results)
    assert {heard.get("error_code") for heard in results} <= {None, "provider_unreachable"}


def test_nobody_links_a_disabled_user_to_themselves_by_an_address(
    idp: IdentityProvider, provider: ProviderRecord, una: User, production: Environment
) -> None:
    User.objects.filter(pk=una.pk).update(disabled_at=timezone.now(), email_verified_at=timezone.now())
    idp.person("una", email=una.email, email_verified=True)
    assert told(Browser().sign_in(production, "una"))["error_code"] == "user_disabled"
    assert not Identity.objects.exists()


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_an_email_whose_verification_ends_at_that_moment_links_nobody(una: User, production: Environment) -> None:
    provider = add(production.pk, "acme", issuer="https://acme.example")
    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    profile = Profile("una", una.email, is_email_verified=True, name="")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            User.objects.filter(pk=una.pk).update(email_verified_at=None)
            linking = pool.submit(in_thread, lambda: identities.find_or_create_user(provider, profile))
            wait_until(lambda: linking.done() or waiting_for_locks("default") > 0)
        assert linking.result(30).code == "email_taken"
    assert not Identity.objects.exists()


def test_an_identity_says_when_it_was_last_used_and_its_address_of_now(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    code_for(production, "ada")
    first = Identity.objects.get()
    idp.person("ada", email="ada@new.example", email_verified=True)
    who = exchange(api, code_for(production, "ada"), production).json
    again = Identity.objects.get()
    assert (first.email, again.email, who["user"]["email"]) == ("ada@example.com", "ada@new.example", "ada@example.com")
    assert first.last_used_at < again.last_used_at
