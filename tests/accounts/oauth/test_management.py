"""Managing providers, redirect URIs and one's own identities: by the API, the terminal and the console."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from joserfc.jwk import ECKey

from accounts import audit
from accounts.console.base import url_of
from accounts.models import AuditEntry, Identity, RedirectUri, ServerKey, User
from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth import providers, redirects
from accounts.oauth.client import transport
from accounts.oauth.errors import ProviderAnswerInvalid
from accounts.signal_handlers import delete_pool
from accounts.staff import roles
from accounts.users import service as user_service
from platform_site.security import keyring, rotation
from projects.models import Environment
from tests.accounts.conftest import branch_of, make_environment, session_of
from tests.accounts.oauth.conftest import APP, HOST, Browser, add, allow, code_for, exchange, told
from tests.support.apple_key import PEM, SIGNING
from tests.support.client import Api
from tests.support.html_forms import form_values
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider

pytestmark = pytest.mark.django_db(databases="__all__")

OIDC = {"name": "acme", "issuer": "https://accounts.google.com", "client_id": "us", "client_secret": "hush hush"}
PLAIN = {
    "name": "hub",
    "authorization_endpoint": "https://hub.example/authorize",
    "token_endpoint": "https://hub.example/token",
    "userinfo_endpoint": "https://api.hub.example/user",
    "client_id": "us",
    "client_secret": "hush hush",
}


@pytest.fixture
def key(make_key: Callable[..., tuple[ServerKey, str]], production: Environment) -> str:
    return make_key(production)[1]


# ── The API ──


def test_a_provider_is_added_shown_changed_and_removed(api: Api, key: str, production: Environment) -> None:
    made = api.post("/v1/identity-providers", token=key, json=OIDC)
    assert made.status == 201, made.body
    assert made.headers["Location"] == f"/v1/identity-providers/{made.json['id']}"
    assert made.json["kind"] == "oidc"
    assert made.json["display_name"] == "Acme"
    assert made.json["scopes"] == ["openid", "email", "profile"]
    assert made.json["callback_url"] == f"http://127.0.0.1:8000/v1/auth/callback/{made.json['id']}"
    assert b"hush" not in made.body
    assert "client_secret" not in made.json

    page = made.headers["Location"]
    assert api.get(page, token=key).json == made.json
    assert api.get("/v1/identity-providers", token=key).json["data"] == [made.json]
    changed = api.patch(page, token=key, json={"display_name": "ACME", "client_secret": "new", "enabled": False})
    assert (changed.status, changed.json["display_name"], changed.json["enabled"]) == (200, "ACME", False)
    record = ProviderRecord.objects.get()
    assert record.client_secret == "new"
    assert api.patch(page, token=key, json={}).json == changed.json
    for fixed in ("name", "token_endpoint", "profile_fields", "kind"):
        assert api.patch(page, token=key, json={fixed: "x"}).status == 422, fixed
    assert api.get("/v1/auth/providers", environment=production.pk).json == {"data": []}
    assert api.delete(page, token=key).status == 204
    assert api.get(page, token=key).status == 404
    assert api.delete(page, token=key).status == 404

    entries = list(AuditEntry.objects.filter(action__startswith="identity_provider.").order_by("at"))
    assert [entry.action.partition(".")[2] for entry in entries] == ["added", "changed", "removed"]
    assert "client_secret" in entries[1].detail["fields"]
    assert "new" not in json.dumps([entry.detail for entry in entries])


def test_plain_oauth_2_and_presets(api: Api, key: str) -> None:
    plain = api.post("/v1/identity-providers", token=key, json=PLAIN | {"profile_fields": {"subject": "data.id"}})
    assert (plain.status, plain.json["kind"]) == (201, "oauth2")
    assert plain.json["callback_url"].endswith(f"/v1/auth/callback/{plain.json['id']}")
    github = api.post(
        "/v1/identity-providers",
        token=key,
        json={"name": "github", "preset": "github", "client_id": "us", "client_secret": "x", "scopes": ["user:email"]},
    )
    assert github.status == 201
    assert github.json["emails_endpoint"] == "https://api.github.com/user/emails"
    assert github.json["scopes"] == ["user:email"], "what is given counts more"
    google = api.post(
        "/v1/identity-providers",
        token=key,
        json={"name": "google", "preset": "google", "client_id": "us", "client_secret": "x"},
    )
    assert google.json["issuer"] == "https://accounts.google.com"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"name": "required", "client_id": "required"}),
        ({"name": "a", "client_id": "us"}, {"authorization_endpoint": "required", "token_endpoint": "required", "userinfo_endpoint": "required"}),
        (OIDC | {"name": "Upper"}, {"name": "invalid_name"}),
        (OIDC | {"name": "a/b"}, {"name": "invalid_name"}),
        (OIDC | {"issuer": "id.acme.example"}, {"issuer": "invalid_scheme"}),
        (OIDC | {"issuer": "https://id.acme.example?x=1"}, {"issuer": "invalid_url"}),
        (OIDC | {"issuer": "https://user@id.acme.example"}, {"issuer": "credentials"}),
        (OIDC | {"issuer": "https://127.0.0.1/"}, {"issuer": "address_not_allowed"}),
        (OIDC | {"issuer": "https://169.254.169.254/"}, {"issuer": "address_not_allowed"}),
        (OIDC | {"issuer": "https://[::1]:8443/"}, {"issuer": "address_not_allowed"}),
        (OIDC | {"issuer": "https://id.acme.example:22/"}, {"issuer": "port_not_allowed"}),
        (OIDC | {"issuer": "javascript:alert(1)"}, {"issuer": "invalid_scheme"}),
        (OIDC | {"token_endpoint": "https://hub.example/token"}, {"token_endpoint": "not_with_issuer"}),
        (OIDC | {"profile_fields": {"subject": "id"}}, {"profile_fields": "not_with_issuer"}),
        (PLAIN | {"profile_fields": {"password": "x"}}, {"profile_fields.password": "unknown_field"}),
        (PLAIN | {"profile_fields": {"subject": "a..b"}}, {"profile_fields.subject": "invalid_path"}),
        (PLAIN | {"profile_fields": {"subject": 5}}, {"profile_fields.subject": "invalid_path"}),
        *[
            (PLAIN | {"profile_fields": {"subject": path}}, {"profile_fields.subject": "reassignable"})
            for path in ("login", "email", "preferred_username", "name", "data.Login", "user.UPN")
        ],
        (OIDC | {"issuer": "https://login.invalid/common/v2.0", "trusts_email": True, "name": "A"}, {"issuer": "unreachable", "trusts_email": "multi_tenant", "name": "invalid_name"}),
        (OIDC | {"issuer": "https://id.invalid"}, {"issuer": "unreachable"}),
        (OIDC | {"scopes": ["a b"]}, {"scopes": "invalid_scope"}),
        (OIDC | {"scopes": ['a"']}, {"scopes": "invalid_scope"}),
        (OIDC | {"client_id": "a\nb"}, {"client_id": "invalid"}),
        (OIDC | {"client_secret": "é"}, {"client_secret": "invalid"}),
        (OIDC | {"client_auth": "none"}, {"client_auth": "no_match"}),
        (OIDC | {"client_auth": "private_key_jwt"}, {"client_auth": "not_among"}),
        (OIDC | {"preset": "nowhere"}, {"preset": "not_among"}),
        (OIDC | {"environment_id": None}, {"environment_id": "unknown_field"}),
        (OIDC | {"trusts_email": "yes"}, {"trusts_email": "invalid"}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_provider_is_named_and_nothing_is_stored(
    api: Api, key: str, body: dict[str, Any], fields: dict[str, str], settings: Any
) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = []
    answer = api.post("/v1/identity-providers", token=key, json=body)
    assert (answer.status, answer.error) == (422, "validation_failed")
    assert answer.fields == fields
    assert not ProviderRecord.objects.exists()
    assert not AuditEntry.objects.filter(action="identity_provider.added").exists()


def test_a_name_is_taken_once_and_there_are_not_many(api: Api, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.post("/v1/identity-providers", token=key, json=OIDC).status == 201
    assert api.post("/v1/identity-providers", token=key, json=OIDC).fields == {"name": "taken"}
    monkeypatch.setattr(providers, "MAX_PROVIDERS", 1)
    refused = api.post("/v1/identity-providers", token=key, json=OIDC | {"name": "other"})
    assert (refused.status, refused.error) == (422, "quota_exceeded")


def test_http_is_for_development(api: Api, key: str, settings: Any) -> None:
    plain_http = OIDC | {"issuer": "http://id.acme.example"}
    settings.PRODUCTION = True
    assert api.post("/v1/identity-providers", token=key, json=plain_http).fields == {"issuer": "not_https"}
    with pytest.raises(ProviderAnswerInvalid, match="without TLS"):
        transport.check_endpoint("http://id.acme.example/token")


def test_who_may(
    api: Api,
    make_key: Callable[..., tuple[ServerKey, str]],
    production: Environment,
    alice: User,
    charlie: User,
    una: User,
) -> None:
    """Adding a provider decides how users are identified, which is as sensitive as setting all passwords."""
    weak = make_key(production, "rows:read", "environments:write", "environments:read")[1]
    assert api.get("/v1/identity-providers", token=weak).status == 403
    assert api.post("/v1/identity-providers", token=weak, json=OIDC).status == 403
    assert api.post("/v1/identity-providers", token=session_of(una).access_token, json=OIDC).status == 403
    assert api.get("/v1/redirect-uris", token=session_of(una).access_token).status == 403
    owner = session_of(alice).access_token
    assert api.post("/v1/identity-providers", token=owner, environment=production.pk, json=OIDC).status == 201
    stranger = session_of(charlie).access_token
    assert api.get("/v1/identity-providers", token=stranger, environment=production.pk).status == 404
    assert (
        api.put("/v1/redirect-uris", token=stranger, environment=production.pk, json={"redirect_uris": []}).status
        == 404
    )

    elsewhere = make_environment(alice)
    other = make_key(elsewhere)[1]
    mine = ProviderRecord.objects.get()
    for method in ("GET", "PATCH", "DELETE"):
        assert api.request(method, f"/v1/identity-providers/{mine.pk}", token=other, json={}).status == 404
    for nonsense in ("idp_x", "idp_" + "0" * 26, "..", "%00"):
        assert api.get(f"/v1/identity-providers/{nonsense}", token=other).status == 404

    branch = branch_of(production)
    of_branch = make_key(branch)[1]
    assert [each["id"] for each in api.get("/v1/identity-providers", token=of_branch).json["data"]] == [mine.pk]
    for method, path in (("POST", ""), ("PATCH", f"/{mine.pk}"), ("DELETE", f"/{mine.pk}")):
        assert api.request(method, f"/v1/identity-providers{path}", token=of_branch, json=OIDC).status == 403


def test_secrets_are_sealed_and_rotate(api: Api, key: str) -> None:
    api.post("/v1/identity-providers", token=key, json=OIDC)
    stored = bytes(ProviderRecord.objects.values_list("sealed_client_secret", flat=True).get() or b"")
    assert b"hush" not in stored
    assert keyring.unseal(stored, purpose="accounts.identity_provider") == b"hush hush"
    assert any(column.model is ProviderRecord for column in rotation.columns())


def test_redirect_uris_are_replaced_as_a_whole(api: Api, key: str, production: Environment, alice: User) -> None:
    allow(make_environment(alice).pk, "https://other.example/")
    assert api.get("/v1/redirect-uris", token=key).json == {"redirect_uris": []}
    both = ["https://b.example/", "https://a.example/cb"]
    assert api.put("/v1/redirect-uris", token=key, json={"redirect_uris": [*both, both[0]]}).json == {
        "redirect_uris": sorted(both)
    }
    refused = api.put("/v1/redirect-uris", token=key, json={"redirect_uris": [both[0], "http://evil.example", "x"]})
    assert refused.status == 422
    assert refused.fields == {"redirect_uris.1": "not_https", "redirect_uris.2": "invalid_scheme"}
    assert api.get("/v1/redirect-uris", token=key).json == {"redirect_uris": sorted(both)}, "nothing was changed"
    assert api.put("/v1/redirect-uris", token=key, json={"redirect_uris": ["https://x.example/"] * 51}).status == 422
    assert api.put("/v1/redirect-uris", token=key, json={}).fields == {"redirect_uris": "required"}
    before = AuditEntry.objects.count()
    api.put("/v1/redirect-uris", token=key, json={"redirect_uris": both})
    assert AuditEntry.objects.count() == before, "nothing differed"
    assert api.put("/v1/redirect-uris", token=key, json={"redirect_uris": []}).json == {"redirect_uris": []}
    assert RedirectUri.objects.count() == 1


def test_an_application_learns_which_buttons_to_draw(api: Api, production: Environment) -> None:
    add(production.pk, "acme", issuer="https://id.acme.example", display_name="Acme <b>")
    add(production.pk, "off", issuer="https://id.off.example", enabled=False)
    add(None, "staff", issuer="https://id.staff.example")
    seen = {"data": [{"name": "acme", "display_name": "Acme <b>"}]}
    assert api.get("/v1/auth/providers", environment=production.pk).json == seen
    assert api.get(f"/v1/auth/providers?environment={production.pk}").json == seen
    assert [each["name"] for each in api.get("/v1/auth/providers").json["data"]] == ["staff"]
    assert api.get("/v1/auth/providers?environment=env_x").fields == {"environment": "unknown"}


def test_one_provider_is_taken_several_are_chosen_from(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    assert Browser().begin(production, accept="text/html").status_code == 303
    add(production.pk, "evil", issuer="https://id.evil.example", display_name='"><script>alert(1)</script>')
    browser = Browser()
    page = browser.begin(production, accept="text/html", state="a&b")
    assert page.status_code == 200
    text = page.content.decode()
    assert "Continue with Acme" in text
    assert "<script>alert" not in text
    assert page["Content-Security-Policy"].startswith("default-src 'none'")
    [link] = re.findall(r'href="(\?[^"]*provider=acme)"', text)
    gone_on = browser.get("/v1/auth/authorize" + link.replace("&amp;", "&"))
    assert gone_on["Location"].startswith(idp.issuer)
    assert "Name a provider" in browser.begin(production)["Location"].replace("+", " "), "a program gets no page"


def test_other_platform_host_redirects_to_the_callback_host(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, alice: User, settings: Any
) -> None:
    settings.PLATFORM_DOMAIN = "localhost"
    host = production.pk.replace("_", "-") + ".localhost"
    away = Browser().get(f"/v1/auth/authorize?redirect_uri={APP}", host=host)
    assert away.status_code == 303
    assert away["Location"].startswith(f"http://127.0.0.1:8000/v1/auth/authorize?environment={production.pk}&")
    there = Browser().get(away["Location"].partition(":8000")[2])
    assert there["Location"].startswith(idp.issuer)
    assert Browser().get(away["Location"].partition(":8000")[2], host="localhost").status_code == 303, "once, no loop"
    other = make_environment(alice)
    allow(other.pk, APP)
    add(other.pk, "acme", issuer=idp.issuer)
    query = f"redirect_uri={APP}&canonical=1&environment={other.pk}"
    contradiction = Browser().get(f"/v1/auth/authorize?{query}", host=host)
    assert (contradiction.status_code, "Location" in contradiction) == (422, False)
    assert Browser().get(f"/v1/auth/authorize?{query}").status_code == 303, "its own host says nothing"


def test_platform_accounts_are_led_to_the_host_of_the_callback_too(idp: IdentityProvider) -> None:
    idp.register(f"http://{HOST}/v1/auth/callback")
    allow(None, APP)
    add(None, "acme", issuer=idp.issuer)
    away = Browser().get(f"/v1/auth/authorize?redirect_uri={APP}", host="localhost")
    assert away["Location"].startswith(f"http://{HOST}/v1/auth/authorize?redirect_uri=")
    assert Browser().get(away["Location"].partition(":8000")[2])["Location"].startswith(idp.issuer)


@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_unknown_provider_is_reported_to_the_application(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, accept: str
) -> None:
    add(production.pk, "other", issuer="https://id.other.example")
    heard = told(Browser().begin(production, accept=accept, provider="acne"))
    assert (heard["error"], heard["error_description"]) == ("invalid_request", "There is no such identity provider.")


# ── One's own identities ──


def test_people_see_and_unlink_their_providers(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, una: User, key: str
) -> None:
    User.objects.filter(pk=una.pk).update(email_verified_at=timezone.now())
    idp.person("una", email="una@example.com", email_verified=True)
    una_s = exchange(api, code_for(production, "una"), production).json["access_token"]
    idp.person("new", email="new@example.com", email_verified=True)
    new_s = exchange(api, code_for(production, "new"), production).json["access_token"]

    [mine] = api.get("/v1/auth/identities", token=una_s).json["data"]
    assert (mine["provider"], mine["display_name"], mine["email"]) == ("acme", "Acme", "una@example.com")
    assert api.delete(f"/v1/auth/identities/{mine['id']}", token=new_s).status == 404, "another's does not exist"
    assert api.delete("/v1/auth/identities/idn_x", token=una_s).status == 404
    assert api.get("/v1/auth/identities", token=key).status == 403

    [only] = api.get("/v1/auth/identities", token=new_s).json["data"]
    refused = api.delete(f"/v1/auth/identities/{only['id']}", token=new_s)
    assert (refused.status, refused.error) == (409, "conflict"), "it is the only way in"
    assert Identity.objects.count() == 2

    late_code = code_for(production, "una")
    other_s = exchange(api, code_for(production, "una"), production).json["access_token"]
    assert api.delete(f"/v1/auth/identities/{mine['id']}", token=una_s).status == 204
    assert api.get("/v1/auth/me", token=una_s).status == 200, "the current session goes on"
    assert api.get("/v1/auth/me", token=new_s).status == 200
    assert api.get("/v1/auth/me", token=other_s).status == 401, "the identity may have opened it"
    assert exchange(api, late_code, production).error == "invalid_grant"
    [ended] = api.get("/v1/auth/sessions?state=ended", token=una_s).json["data"]
    assert ended["end_reason"] == "identity_unlinked"
    assert api.get("/v1/auth/identities", token=una_s).json == {"data": []}
    assert AuditEntry.objects.filter(action="identity.unlinked", target_id=una.pk).exists()


def test_what_goes_with_a_provider_a_user_and_an_environment(
    api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment, alice: User
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    signed_in = exchange(api, code_for(production, "ada"), production).json
    user_id = signed_in["user"]["id"]
    providers.change(provider, actor=audit.SYSTEM, enabled=False)
    assert api.get("/v1/auth/me", token=signed_in["access_token"]).status == 200
    providers.remove(provider, actor=audit.SYSTEM)
    assert api.get("/v1/auth/me", token=signed_in["access_token"]).status == 200
    assert not Identity.objects.exists()
    again = add(production.pk, "acme", issuer=idp.issuer)
    assert exchange(api, code_for(production, "ada"), production).json["user"]["id"] == user_id, (
        "both sides verified it"
    )
    user_service.delete_user(User.objects.get(pk=user_id), actor=audit.SYSTEM)
    assert not Identity.objects.exists()
    assert exchange(api, code_for(production, "ada"), production).json["user"]["id"] != user_id
    code_for(production, "ada")
    elsewhere = make_environment(alice)
    add(elsewhere.pk, "acme", issuer=idp.issuer)
    allow(elsewhere.pk, APP)
    delete_pool(environment_id=production.pk)
    assert not ProviderRecord.objects.filter(pk=again.pk).exists()
    assert list(RedirectUri.objects.values_list("environment_id", flat=True)) == [elsewhere.pk]
    assert ProviderRecord.objects.count() == 1


# ── The terminal ──


def run(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_terminal_adds_lists_and_removes(
    idp: IdentityProvider, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hush hush\n"))
    out, err = run(
        "add_identity_provider", "acme", "--environment", production.pk, "--issuer", idp.issuer,
        "--client-id", "us", "--client-secret-stdin",
    )  # fmt: skip
    assert out == ""
    assert "http://127.0.0.1:8000/v1/auth/callback" in err
    assert "it does not create new ones" in err
    assert ProviderRecord.objects.get().client_secret == "hush hush"
    out, err = run(
        "add_identity_provider", "hub", "--platform", "--preset", "github", "--client-id", "us", "--client-secret", "x",
        "--field", "name=login", "--json",
    )  # fmt: skip
    assert json.loads(out)["profile_fields"] == {"name": "login"}
    assert "hush" not in out + err

    run("set_redirect_uris", "--environment", production.pk, "--uris", APP, "http://localhost:5173/cb")
    assert redirects.of(production.pk) == ["http://localhost:5173/cb", APP]
    out, _ = run("list_identity_providers", "--environment", production.pk)
    assert "acme  oidc" in out
    assert f"codes may go to {APP}" in out
    listed = json.loads(run("list_identity_providers", "--environment", production.pk, "--json")[0])
    assert listed["redirect_uris"] == redirects.of(production.pk)
    with pytest.raises(CommandError, match="no identity provider acme"):
        run("remove_identity_provider", "acme", "--platform")
    _, err = run("remove_identity_provider", "acme", "--environment", production.pk)
    assert "Removed acme" in err
    assert list(ProviderRecord.objects.values_list("name", flat=True)) == ["hub"]


def test_the_terminal_says_what_is_wrong(
    idp: IdentityProvider, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--client-id", "us", "--client-secret", "x"]
    with pytest.raises(CommandError, match="There is no environment"):
        run("add_identity_provider", "acme", "--environment", "env_x", "--issuer", "https://a.example", *common)
    with pytest.raises(CommandError, match="issuer: A URL must start with"):
        run("add_identity_provider", "acme", "--platform", "--issuer", "nonsense", *common)
    with pytest.raises(CommandError, match="from which"):
        run("add_identity_provider", "a", "--environment", branch_of(production).pk, "--preset", "google", *common)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(CommandError, match="No terminal"):
        run("add_identity_provider", "acme", "--platform", "--preset", "google", "--client-id", "us")
    with pytest.raises(CommandError, match=r"redirect_uris\.0"):
        run("set_redirect_uris", "--platform", "--uris", "http://evil.example")
    assert not ProviderRecord.objects.exists()
    assert not RedirectUri.objects.exists()
    idp.twist_discovery = lambda document: document | {"issuer": "https://evil.example"}
    with pytest.raises(CommandError, match=r"issuer: .*another issuer's: 'https://evil.example'"):
        run("add_identity_provider", "acme", "--platform", "--issuer", idp.issuer, *common)
    assert not ProviderRecord.objects.exists()


# ── The console ──


@pytest.fixture
def console(make_user: Callable[..., User]) -> Client:
    sam = make_user("sam", is_staff=True)
    browser = Client()
    browser.force_login(sam)
    return browser


@pytest.mark.exhaustive
def test_the_console_adds_changes_and_removes_a_provider(console: Client, production: Environment) -> None:
    adding = reverse("admin:accounts_identityprovider_add")
    assert console.get(adding).status_code == 200
    form = {"environment_id": production.pk, "name": "google", "preset": "google", "client_id": "us",
            "client_secret": "hush hush", "sign_up": "on", "enabled": "on", "profile_fields": "{}"}  # fmt: skip
    wrong = console.post(adding, form | {"preset": "", "issuer": "nonsense"})
    assert "A URL must start with" in wrong.content.decode()
    assert "hush" not in wrong.content.decode()
    assert "There is no such environment" in console.post(adding, form | {"environment_id": "env_x"}).content.decode()
    assert not ProviderRecord.objects.exists()
    made = console.post(adding, form)
    assert made.status_code == 302, made.content.decode()
    record = ProviderRecord.objects.get()
    assert (record.environment_id, record.issuer) == (production.pk, "https://accounts.google.com")
    assert record.client_secret == "hush hush"

    page = url_of("accounts_identityprovider", record.pk)
    shown = console.get(page).content.decode()
    assert "/v1/auth/callback" in shown
    assert "hush" not in shown
    changed = console.post(
        page, {"display_name": "G", "client_id": "us2", "client_secret": "", "scopes": "openid", "sign_up": "on"}
    )
    assert changed.status_code == 302, changed.content.decode()
    record.refresh_from_db()
    assert (record.display_name, record.client_id, record.scopes, record.enabled) == ("G", "us2", ["openid"], False)
    assert record.client_secret == "hush hush", "left empty, it stays"
    console.post(page, {"display_name": "G", "client_id": "us2", "client_secret": "next", "scopes": "openid"})
    assert ProviderRecord.objects.get().client_secret == "next"
    entry = AuditEntry.objects.filter(action="identity_provider.changed").latest("at")
    assert entry.actor_kind == "staff"

    assert console.get(reverse("admin:accounts_identityprovider_changelist")).status_code == 200
    delete = reverse("admin:accounts_identityprovider_delete", args=[record.pk.replace("_", "_5F")])
    assert "google: 0 linked identities" in console.get(delete).content.decode()
    assert console.post(delete, {"post": "yes"}).status_code == 302
    assert not ProviderRecord.objects.exists()


@pytest.mark.exhaustive
def test_the_console_enters_and_replaces_the_key_of_apple(console: Client, production: Environment) -> None:
    adding = reverse("admin:accounts_identityprovider_add")
    form = {"environment_id": production.pk, "name": "apple", "preset": "apple", "client_id": "com.example.app",
            "sign_up": "on", "enabled": "on", "profile_fields": "{}"}  # fmt: skip
    for wrong, message in (
        (SIGNING | {"key_id": ""}, "Needed to sign client secrets"),
        (SIGNING | {"private_key": "no key"}, "Must be an unencrypted P-256 private key as PEM"),
        (SIGNING | {"client_secret": "hush"}, "client_secret"),
    ):
        answer = console.post(adding, form | wrong)
        assert (answer.status_code, message in answer.content.decode()) == (200, True)
    assert not ProviderRecord.objects.exists()
    made = console.post(adding, form | SIGNING)
    assert made.status_code == 302, made.content.decode()
    record = ProviderRecord.objects.get()
    assert (record.team_id, record.key_id, record.private_key.strip()) == ("TEAM123456", "KEY1234567", PEM.strip())
    assert (record.client_auth, record.response_mode) == ("client_secret_post", "form_post")

    page = url_of("accounts_identityprovider", record.pk)
    shown = console.get(page).content.decode()
    assert ("PRIVATE KEY" in shown, "TEAM123456" in shown) == (False, True)
    opened = form_values(shown, "display_name")
    assert console.post(page, opened | {"display_name": "A"}).status_code == 302
    record.refresh_from_db()
    assert (record.display_name, record.key_id, record.private_key.strip()) == ("A", "KEY1234567", PEM.strip())
    opened = form_values(console.get(page).content.decode(), "display_name")
    assert "Needed to sign client secrets" in console.post(page, opened | {"key_id": "NEXT"}).content.decode()
    next_key = ECKey.generate_key("P-256").as_pem(private=True).decode()
    opened = form_values(console.get(page).content.decode(), "display_name")
    assert console.post(page, opened | {"key_id": "NEXT", "private_key": next_key}).status_code == 302
    record.refresh_from_db()
    assert (record.team_id, record.key_id, record.private_key.strip()) == ("TEAM123456", "NEXT", next_key.strip())
    opened = form_values(console.get(page).content.decode(), "display_name")
    assert console.post(page, opened | {"client_secret": "hush"}).status_code == 302
    record.refresh_from_db()
    assert (record.client_secret, record.team_id, record.key_id, record.private_key) == ("hush", None, None, None)
    assert PEM not in json.dumps([entry.detail for entry in AuditEntry.objects.all()])


@pytest.mark.exhaustive
def test_the_console_changes_an_issuer_while_no_user_is_linked(
    console: Client, api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    page = url_of("accounts_identityprovider", provider.pk)
    opened = form_values(console.get(page).content.decode(), "display_name")
    assert opened["issuer"] == idp.issuer
    for wrong, message in (
        ("nonsense", "A URL must start with"),
        (f"{idp.issuer}/nobody", "Nobody could sign in with this issuer"),
    ):
        refused = console.post(page, opened | {"issuer": wrong})
        assert (refused.status_code, message in refused.content.decode()) == (200, True), wrong
    provider.refresh_from_db()
    assert (provider.issuer, provider.client_secret) == (idp.issuer, CLIENT_SECRET)
    ProviderRecord.objects.update(issuer="https://old.example.com")
    opened = form_values(console.get(page).content.decode(), "display_name")
    changed = console.post(page, opened | {"issuer": idp.issuer + "/", "client_secret": "next"})
    assert changed.status_code == 302, changed.content.decode()
    provider.refresh_from_db()
    assert (provider.issuer, provider.client_secret) == (idp.issuer, "next"), "spelled as its document does"
    entry = AuditEntry.objects.filter(action="identity_provider.changed").latest("at")
    assert entry.detail["previous_issuer"] == "https://old.example.com"

    ProviderRecord.objects.update(issuer="https://old.example.com")
    user = user_service.create_user(pool_id=production.pk, email="linked@example.com", actor=audit.SYSTEM)
    Identity.objects.create(user=user, provider=provider, subject="sub-linked")
    opened = form_values(console.get(page).content.decode(), "display_name")
    refused = console.post(page, opened | {"issuer": idp.issuer})
    assert "Users are linked by this issuer." in refused.content.decode()
    assert ProviderRecord.objects.get().issuer == "https://old.example.com"


def test_a_page_opened_long_ago_does_not_turn_a_provider_on_again(
    console: Client, provider: ProviderRecord, production: Environment
) -> None:
    page = url_of("accounts_identityprovider", provider.pk)
    opened = form_values(console.get(page).content.decode(), "display_name")
    assert opened["enabled"] == "on"
    providers.change(provider, actor=audit.SYSTEM, enabled=False)
    answer = console.post(page, opened | {"display_name": "Old page"})
    assert answer.status_code == 200
    shown = answer.content.decode()
    assert "Someone else changed this since you opened the page, from on to off." in shown
    provider.refresh_from_db()
    assert (provider.enabled, provider.display_name == "Old page") == (False, False)
    # The page has come back with what is there by now, and with what was typed; sending it is meant.
    again = form_values(shown, "display_name")
    assert ("enabled" in again, again["display_name"]) == (False, "Old page")
    assert console.post(page, again).status_code == 302
    provider.refresh_from_db()
    assert (provider.enabled, provider.display_name) == (False, "Old page")
    assert provider.client_secret == CLIENT_SECRET
    entry = AuditEntry.objects.filter(action="identity_provider.changed").latest("at")
    assert entry.detail["fields"] == ["display_name"]


def test_the_console_keeps_the_list_of_redirect_uris(console: Client, production: Environment) -> None:
    adding = reverse("admin:accounts_redirecturi_add")
    wrong = console.post(adding, {"environment_id": production.pk, "uri": "http://evil.example/"})
    assert "only for localhost" in wrong.content.decode()
    for environment_id in (production.pk, ""):
        assert console.post(adding, {"environment_id": environment_id, "uri": APP}).status_code == 302
    assert redirects.of(production.pk) == redirects.of(None) == [APP]
    listed = console.get(reverse("admin:accounts_redirecturi_changelist")).content.decode()
    assert APP in listed
    [record] = RedirectUri.objects.filter(environment_id=production.pk)
    delete = reverse("admin:accounts_redirecturi_delete", args=[record.pk.replace("_", "_5F")])
    assert console.post(delete, {"post": "yes"}).status_code == 302
    assert (redirects.of(production.pk), redirects.of(None)) == ([], [APP])


def test_console_shows_identities_of_users(
    console: Client, api: Api, idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    exchange(api, code_for(production, "ada"), production)
    identity = Identity.objects.get()
    assert "sub-ada" in console.get(reverse("admin:accounts_identity_changelist")).content.decode()
    assert "ada@example.com" in console.get(url_of("accounts_identity", identity.pk)).content.decode()
    assert console.get(reverse("admin:accounts_identity_add")).status_code == 403


def test_support_looks_and_operators_act(
    make_user: Callable[..., User], provider: ProviderRecord, production: Environment
) -> None:
    from django.contrib.auth.models import Group

    roles.sync_groups()
    vera = make_user("vera", is_staff=True)
    User.objects.filter(pk=vera.pk).update(is_superuser=False)
    vera.groups.set(Group.objects.filter(name="support"))
    browser = Client()
    browser.force_login(User.objects.get(pk=vera.pk))
    page = url_of("accounts_identityprovider", provider.pk)
    assert browser.get(page).status_code == 200
    assert browser.get(reverse("admin:accounts_identityprovider_add")).status_code == 403
    assert browser.post(page, {"client_id": "mine", "client_secret": "x"}).status_code == 403
    provider.refresh_from_db()
    assert provider.client_secret == CLIENT_SECRET


def test_only_superusers_manage_sign_in_to_platform_accounts(make_user: Callable[..., User]) -> None:
    roles.sync_groups()
    make_user("boss", is_staff=True)
    vera = make_user("vera")
    roles.set_role(vera, roles.StaffRole.OPERATOR, actor=audit.SYSTEM)
    browser = Client()
    browser.force_login(User.objects.get(pk=vera.pk))
    form = {"environment_id": "", "name": "evil", "preset": "google", "client_id": "us",
            "client_secret": "hush hush", "sign_up": "on", "enabled": "on", "profile_fields": "{}"}  # fmt: skip
    refused = browser.post(reverse("admin:accounts_identityprovider_add"), form)
    only = "Only superusers leave this empty: it means platform accounts."
    assert only in refused.content.decode()
    refused = browser.post(reverse("admin:accounts_redirecturi_add"), {"environment_id": "", "uri": APP})
    assert only in refused.content.decode()
    assert not RedirectUri.objects.exists()
    assert not ProviderRecord.objects.exists()
    own = add(None, "google", preset="google")
    page = url_of("accounts_identityprovider", own.pk)
    assert browser.get(page).status_code == 200
    assert browser.post(page, {"display_name": "G", "client_id": "mine", "trusts_email": "on"}).status_code == 403
    delete = reverse("admin:accounts_identityprovider_delete", args=[own.pk.replace("_", "_5F")])
    assert browser.post(delete, {"post": "yes"}).status_code == 403
    own.refresh_from_db()
    assert (own.client_id, own.trusts_email) == (CLIENT_ID, False)
    redirects.add(None, APP, actor=audit.SYSTEM)
    delete = reverse("admin:accounts_redirecturi_delete", args=[RedirectUri.objects.get().pk.replace("_", "_5F")])
    assert browser.post(delete, {"post": "yes"}).status_code == 403
    assert redirects.of(None) == [APP]
    browser.force_login(User.objects.get(email="boss@example.com"))
    assert browser.post(page, {"display_name": "G", "client_id": "us2", "scopes": "openid"}).status_code == 302
    assert browser.post(reverse("admin:accounts_identityprovider_add"), form).status_code == 302
