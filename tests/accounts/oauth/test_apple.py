"""Sign-in with Apple: a client secret that the platform signs, and a callback by POST."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from django.core.management import CommandError, call_command
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from accounts.models import AuditEntry, User
from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth import client_secrets
from platform_site.security import rotation
from projects.models import Environment
from tests.accounts.oauth.conftest import APP, HOST, Browser, add, allow, exchange, open_pool, told
from tests.support.apple_key import KEY, PEM, SIGNING
from tests.support.client import Api
from tests.support.identity_provider import CLIENT_ID, IdentityProvider, _Client, sign_in_at

pytestmark = pytest.mark.django_db(databases="__all__")

APPLE = {"name": "apple", "preset": "apple", "client_id": "com.example.app"} | SIGNING


@dataclass
class _AppleClient(_Client):
    """Accepts what Apple does: a JWT of the team, signed with its key."""

    issuer: str = ""
    secrets: list[str] = field(default_factory=list)

    def check_client_secret(self, secret: str) -> bool:
        self.secrets.append(secret)
        token = jwt.decode(secret, KEY, algorithms=["ES256"])
        now = int(time.time())
        assert token.header["kid"] == "KEY1234567"
        assert {name: token.claims[name] for name in ("iss", "sub", "aud")} == {
            "iss": "TEAM123456",
            "sub": CLIENT_ID,
            "aud": self.issuer,
        }
        assert now - 60 < token.claims["iat"] <= now < token.claims["exp"] <= now + 180 * 86400
        return True


@pytest.fixture
def client_at_apple(idp: IdentityProvider) -> _AppleClient:
    made = _AppleClient(
        CLIENT_ID, None, {f"http://{HOST}/v1/auth/callback"}, ("client_secret_post",), issuer=idp.issuer
    )
    idp.clients[CLIENT_ID] = made
    return made


@pytest.fixture
def apple(idp: IdentityProvider, client_at_apple: _AppleClient, production: Environment) -> ProviderRecord:
    open_pool(production.pk)
    allow(production.pk, APP)
    idp.person("ada", email="ada@example.com", email_verified="true")
    return add(
        production.pk, "apple", issuer=idp.issuer, client_secret=None, response_mode="form_post",
        client_auth="client_secret_post", **SIGNING,
    )  # fmt: skip


@pytest.fixture
def key(make_key: Callable[..., Any], production: Environment) -> str:
    return str(make_key(production)[1])


def posted(browser: Browser, address: str, /, *, as_other_site: bool = True, **more: str) -> Any:
    """What a browser does with Apple's form: with another site's POST it sends no cookie of SameSite=Lax."""
    parts = urlsplit(address)
    sender = Browser() if as_other_site else browser
    body = urlencode(dict(parse_qsl(parts.query)) | more)
    return sender.client.post(
        parts.path, body, content_type="application/x-www-form-urlencoded", headers={"Host": HOST}
    )


def test_a_person_signs_in_by_a_form_and_a_signed_secret(
    api: Api, apple: ProviderRecord, production: Environment, client_at_apple: _AppleClient
) -> None:
    for number in (1, 2):
        browser = Browser()
        begun = browser.begin(production)
        assert dict(parse_qsl(urlsplit(begun["Location"]).query))["response_mode"] == "form_post"
        user = json.dumps({"name": {"firstName": "Ada", "lastName": "Lovelace"}, "email": "evil@example.com"})
        came = posted(browser, sign_in_at(begun["Location"], "ada"), user=user)
        assert came.status_code == 303, came.content
        assert came["Location"].startswith(f"http://{HOST}/v1/auth/callback/{apple.pk}?")
        assert (came["Cache-Control"], came["Referrer-Policy"]) == ("no-store", "no-referrer")
        tokens = exchange(api, told(browser.arrive(came["Location"]))["code"], production).json
        assert (tokens["user"]["email"], tokens["user"]["name"]) == ("ada@example.com", "Ada Lovelace")
        assert len(client_at_apple.secrets) == number
    assert len(set(client_at_apple.secrets)) == 2, "each request has a secret of its own"


@pytest.mark.parametrize(
    "user", ["", "x", "[]", '{"name": null}', '{"name": "x"}', '{"name": {"firstName": 5}}', "[" * 5000]
)
def test_an_odd_name_is_left_out(api: Api, apple: ProviderRecord, production: Environment, user: str) -> None:
    browser = Browser()
    came = posted(browser, sign_in_at(browser.begin(production)["Location"], "ada"), user=user)
    assert exchange(api, told(browser.arrive(came["Location"]))["code"], production).json["user"]["name"] == ""


def test_form_in_another_browser_does_not_sign_in(apple: ProviderRecord, production: Environment) -> None:
    browser, other = Browser(), Browser()
    came = posted(browser, sign_in_at(browser.begin(production)["Location"], "ada"))
    refused = other.arrive(came["Location"])
    assert (refused.status_code, "Location" in refused) == (422, False)
    assert not User.objects.filter(environment_id=production.pk).exists()


def test_a_refusal_by_a_form_comes_to_the_application(apple: ProviderRecord, production: Environment) -> None:
    browser = Browser()
    came = posted(browser, sign_in_at(browser.begin(production)["Location"], "ada", "no"))
    assert told(browser.arrive(came["Location"]))["error_code"] == "provider_refused"


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b'{"state": "x"}', "application/json", 415),
        (b"state=x", "text/plain", 415),
        (b"state=a&state=b", "application/x-www-form-urlencoded", 400),
        (b"state=%ff", "application/x-www-form-urlencoded", 400),
        (b"\xff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a%d=1" % number for number in range(30)), "application/x-www-form-urlencoded", 400),
        (b"state=" + b"a" * 17_000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_what_is_no_form_is_refused(apple: ProviderRecord, body: bytes, content_type: str, status: int) -> None:
    answer = Browser().client.post(
        f"/v1/auth/callback/{apple.pk}", body, content_type=content_type, headers={"Host": HOST}
    )
    assert answer.status_code == status


@pytest.mark.parametrize("provider_id", ["x", "https:%2F%2Fevil.example", "%2e%2e", "a%3Fb%23c", "%0d%0aX: y"])
def test_a_form_leads_to_no_other_page(provider_id: str) -> None:
    answer = Browser().client.post(
        f"/v1/auth/callback/{provider_id}", b"state=x&evil=1&code=a%0d%0ab",
        content_type="application/x-www-form-urlencoded", headers={"Host": HOST},
    )  # fmt: skip
    if answer.status_code == 303:
        location = answer["Location"]
        assert location == f"http://{HOST}/v1/auth/callback/{location.split('/')[-1]}"
        assert location.endswith("?state=x&code=a%0D%0Ab")
    else:
        assert answer.status_code == 404


# ── Settings ──


def test_the_preset_and_the_key_that_is_in_no_answer(api: Api, key: str) -> None:
    made = api.post("/v1/identity-providers", token=key, json=APPLE)
    assert made.status == 201, made.body
    assert (
        made.json | {"issuer": "https://appleid.apple.com", "team_id": "TEAM123456", "key_id": "KEY1234567"}
        == made.json
    )
    assert (made.json["response_mode"], made.json["client_auth"]) == ("form_post", "client_secret_post")
    assert made.json["has_client_secret"] is True
    assert "private_key" not in made.json
    assert b"PRIVATE" not in made.body
    record = ProviderRecord.objects.get()
    assert record.private_key == PEM.strip()
    assert b"PRIVATE" not in bytes(record.sealed_private_key or b"")
    assert any("sealed_private_key" in str(column) for column in rotation.columns())


def other(kind: Any) -> str:
    return str(kind.as_pem(private=True).decode())


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"team_id": None}, {"team_id": "required"}),
        ({"key_id": None, "team_id": None}, {"key_id": "required", "team_id": "required"}),
        ({"private_key": None}, {"private_key": "required", "client_auth": "no_match"}),
        ({"team_id": "a b"}, {"team_id": "invalid"}),
        ({"client_secret": "x"}, {"client_secret": "contradiction"}),
        ({"private_key": "hush"}, {"private_key": "invalid_key"}),
        ({"private_key": PEM.replace("M", "N", 1)}, {"private_key": "invalid_key"}),
        ({"private_key": KEY.as_pem(private=False).decode()}, {"private_key": "invalid_key"}),
        ({"private_key": other(ECKey.generate_key("P-384"))}, {"private_key": "invalid_key"}),
        ({"private_key": other(RSAKey.generate_key(1024))}, {"private_key": "invalid_key"}),
        ({"private_key": "x" * 2001}, {"private_key": "too_long"}),
        ({"client_auth": "none"}, {"client_auth": "no_match"}),
        ({"response_mode": "fragment"}, {"response_mode": "not_among"}),
    ],
)
def test_a_key_that_cannot_sign_is_refused(api: Api, key: str, changes: dict[str, Any], fields: dict[str, str]) -> None:
    body = {name: value for name, value in (APPLE | changes).items() if value is not None}
    refused = api.post("/v1/identity-providers", token=key, json=body)
    assert refused.fields == fields
    assert b"hush" not in refused.body
    assert not ProviderRecord.objects.exists()


def test_a_key_is_replaced_by_a_key_or_a_secret(api: Api, key: str) -> None:
    path = api.post("/v1/identity-providers", token=key, json=APPLE).headers["Location"]
    assert api.patch(path, token=key, json={"key_id": "KEY2"}).fields == {
        "team_id": "required",
        "private_key": "required",
    }
    newer = other(ECKey.generate_key("P-256"))
    changed = api.patch(path, token=key, json=SIGNING | {"key_id": "KEY2", "private_key": newer})
    assert changed.json["key_id"] == "KEY2"
    assert ProviderRecord.objects.get().private_key == newer.strip()
    plain = api.patch(path, token=key, json={"client_secret": "signed elsewhere"}).json
    assert (plain["team_id"], plain["key_id"], plain["has_client_secret"]) == (None, None, True)
    record = ProviderRecord.objects.get()
    assert (record.private_key, client_secrets.of(record)) == (None, "signed elsewhere")
    back = api.patch(path, token=key, json=SIGNING)
    assert back.json["key_id"] == "KEY1234567"
    assert ProviderRecord.objects.get().client_secret is None
    entries = AuditEntry.objects.filter(action="identity_provider.changed").order_by("at")
    assert [{*entry.detail["fields"]} for entry in entries] == [
        {"client_secret", "team_id", "key_id", "private_key"}
    ] * 3
    assert "PRIVATE" not in json.dumps([entry.detail for entry in entries])


def test_another_issuer_clears_the_key(api: Api, key: str, idp: IdentityProvider, apple: ProviderRecord) -> None:
    ProviderRecord.objects.filter(pk=apple.pk).update(issuer="https://id.other.example")
    changed = api.patch(f"/v1/identity-providers/{apple.pk}", token=key, json={"issuer": idp.issuer})
    assert (changed.json["has_client_secret"], changed.json["key_id"]) == (False, None)
    assert ProviderRecord.objects.get(pk=apple.pk).private_key is None


def test_the_terminal_reads_the_key_from_a_file(production: Environment, tmp_path: Any) -> None:
    file = tmp_path / "AuthKey.p8"
    file.write_text(PEM)
    common = ["add_identity_provider", "apple", "--environment", production.pk, "--preset", "apple", "--client-id", "a"]
    with pytest.raises(CommandError, match="team_id"):
        call_command(*common, "--private-key-file", str(file), "--key-id", "K")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command(*common, "--private-key-file", str(tmp_path / "none"), "--key-id", "K", "--team-id", "T")
    call_command(*common, "--private-key-file", str(file), "--key-id", "K", "--team-id", "T")
    assert ProviderRecord.objects.get().private_key == PEM.strip()
