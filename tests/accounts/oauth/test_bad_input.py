"""What goes wrong between leaving and coming back: forged requests, foreign browsers, providers that err, lie or dawdle.

Each refusal leaves nothing behind: no user, no identity, no code. RFC 9700.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit, urlunsplit

import orjson
import pytest
from django.test import override_settings
from joserfc import jws

from accounts import audit
from accounts.models import AuthorizationCode, Identity, RedirectUri, User
from accounts.models import IdentityProvider as ProviderRecord
from accounts.oauth import flows, providers
from accounts.oauth.client import metadata, transport
from accounts.oauth.errors import ProviderUnreachable
from platform_site.outbound import RequestTimedOut
from projects.models import Environment
from tests.accounts.oauth.conftest import APP, HOST, Browser, add, allow, forget_providers, told
from tests.support.identity_provider import (
    CLIENT_SECRET,
    IdentityProvider,
    OctKey,
    Response,
    RSAKey,
    running,
    sign_in_at,
)

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture(autouse=True)
def ada(idp: IdentityProvider) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True, name="Ada")


def nothing_is_left(production: Environment) -> bool:
    return not (
        User.objects.in_pool(production.pk).exists() or Identity.objects.exists() or AuthorizationCode.objects.exists()
    )


def went_nowhere(response: Any) -> bool:
    """An error that is shown to the user and not sent to any application."""
    return response.status_code in (400, 422) and "Location" not in response.headers


def refused(response: Any) -> tuple[str, str]:
    heard = told(response)
    assert "code" not in heard
    assert heard["error_description"].isascii()
    assert heard["iss"] == f"http://{HOST}"
    return heard["error"], heard["error_code"]


# ── The application's request ──


NOT_ON_THE_LIST = [
    APP + "/",
    APP + "/more",
    APP + "?x=1",
    APP + "?",
    APP + "#",
    APP + "#fragment",
    APP.replace("https", "http"),
    APP.replace("https", "HTTPS"),
    APP.replace("app.example.com", "APP.example.com"),
    APP.replace("app.example.com", "app.example.com:443"),
    APP.replace("app.example.com", "app.example.com:8443"),
    APP.replace("app.example.com", "app.example.com."),
    APP.replace("app.example.com", "user@app.example.com"),
    APP.replace("app.example.com", "app.example.com@evil.example"),
    APP.replace("app.example.com", "app.example.com.evil.example"),
    APP.replace("app.example.com", "evil.example\\@app.example.com"),
    APP.replace("/signed-in", "/x/../signed-in"),
    APP.replace("/signed-in", "//signed-in"),
    APP.replace("signed-in", "signed%2Din"),
    APP.replace("e", "е", 1),  # a Cyrillic е
    APP + " ",
    " " + APP,
    APP + "\n",
    APP + "\r\nLocation: https://evil.example/",
    APP + "\t",
    "//app.example.com/signed-in",
    "/signed-in",
    "signed-in",
    "https:app.example.com/signed-in",
    "https:///app.example.com/signed-in",
    "javascript:alert(1)",
    "data:text/html,x",
    "https://evil.example/",
    "x" * 5000,
    "",
]


@pytest.mark.exhaustive
def test_a_redirect_uri_that_is_not_on_the_list_is_never_gone_to(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    browser = Browser()
    for uri in NOT_ON_THE_LIST:
        response = browser.begin(production, redirect_uri=uri)
        assert went_nowhere(response), (uri, response.headers)
        assert response.json()["error"]["fields"][0]["field"] == "redirect_uri", uri
        assert not response.cookies, uri
    assert idp.requests == []


def test_a_redirect_uri_with_a_query_keeps_it(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    uri = "https://app.example.com/cb?tenant=1&x=%2F"
    allow(production.pk, uri)
    back = Browser().sign_in(production, "ada", redirect_uri=uri)
    assert back["Location"].startswith(uri + "&code=oac_")


def test_an_app_s_own_scheme_is_gone_back_to(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    allow(production.pk, "com.example.app:/signed-in")
    back = Browser().sign_in(production, "ada", redirect_uri="com.example.app:/signed-in")
    assert back["Location"].startswith("com.example.app:/signed-in?code=oac_")


def test_another_environment_s_list_does_not_count(
    provider: ProviderRecord, production: Environment, alice: User
) -> None:
    assert went_nowhere(Browser().begin(None))
    assert went_nowhere(Browser().get(f"/v1/auth/authorize?environment=env_nonsense&redirect_uri={APP}"))
    assert went_nowhere(Browser().get(f"/v1/auth/authorize?environment=env_{'0' * 26}&redirect_uri={APP}"))
    assert went_nowhere(Browser().get("/v1/auth/authorize"))
    assert went_nowhere(Browser().get(f"/v1/auth/authorize?environment={production.pk}"))
    twice = urlencode(
        [("environment", production.pk), ("redirect_uri", APP), ("redirect_uri", "https://evil.example/")]
    )
    assert went_nowhere(Browser().get(f"/v1/auth/authorize?{twice}"))


WRONG_REQUESTS: list[tuple[dict[str, str], str, str]] = [
    ({"provider": "nobody"}, "invalid_request", "invalid_request"),
    ({"provider": ""}, "invalid_request", "invalid_request"),
    ({"response_type": "token"}, "unsupported_response_type", "unsupported_response_type"),
    ({"code_challenge": "a" * 43, "code_challenge_method": "plain"}, "invalid_request", "invalid_request"),
    ({"code_challenge": "a" * 43, "code_challenge_method": "s256"}, "invalid_request", "invalid_request"),
    ({"code_challenge_method": "S256"}, "invalid_request", "invalid_request"),
    ({"code_challenge": ""}, "invalid_request", "invalid_request"),
    ({"code_challenge": "a" * 42}, "invalid_request", "invalid_request"),
    ({"code_challenge": "a" * 44}, "invalid_request", "invalid_request"),
    ({"code_challenge": "a" * 42 + "="}, "invalid_request", "invalid_request"),
    ({"code_challenge": "é" * 43}, "invalid_request", "invalid_request"),
]


def test_what_else_is_wrong_the_application_hears(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    browser = Browser()
    for asked, error, code in WRONG_REQUESTS:
        response = browser.begin(production, state="mine", **asked)
        assert response["Location"].startswith(APP + "?"), asked
        assert refused(response) == (error, code), asked
        assert told(response)["state"] == "mine"
        assert told(response)["error_description"] != "Signing in did not work.", "it says what is wrong"
    assert idp.requests == []


@pytest.mark.parametrize("state", ["x" * 1001, "a\0b", "a\r\nSet-Cookie: x=1", "é", "\x7f"])
def test_a_state_that_could_not_be_given_back_is_refused(
    provider: ProviderRecord, production: Environment, state: str
) -> None:
    assert went_nowhere(Browser().begin(production, state=state))


def test_a_provider_that_is_off_or_of_another_environment_is_not_there(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    allow(None, APP)
    assert refused(Browser().begin(None, provider="acme"))[1] == "invalid_request"
    browser = Browser()
    back = sign_in_at(browser.begin(production)["Location"], "ada")
    providers.change(provider, actor=audit.SYSTEM, enabled=False)
    assert refused(Browser().begin(production, provider="acme"))[1] == "invalid_request"
    assert went_nowhere(browser.arrive(back)), "nor is it when the person comes back"
    assert nothing_is_left(production)


# ── Coming back ──


def test_coming_back_needs_the_state_of_this_browser(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    browser = Browser()
    back = sign_in_at(browser.begin(production)["Location"], "ada")
    query = parse_qs(urlsplit(back).query)
    state = query["state"][0]

    def with_state(value: str | None) -> str:
        kept = {name: values[0] for name, values in query.items() if name != "state"}
        return urlunsplit(urlsplit(back)._replace(query=urlencode(kept | ({} if value is None else {"state": value}))))

    for value in (
        None,
        "",
        "x",
        state[:-1],
        state[:-1] + ("A" if state[-1] != "A" else "B"),
        state + "A",
        "é" * 43,
        secrets.token_urlsafe(32),
    ):
        assert went_nowhere(browser.arrive(with_state(value))), value
    # Login CSRF: another person's sign-in, continued in this browser, and this browser's sign-in in another one.
    assert went_nowhere(Browser().arrive(back))
    other = Browser()
    other.begin(production)
    assert went_nowhere(other.arrive(back))
    assert idp.count("/token") == 0
    assert nothing_is_left(production)
    assert "code" in told(browser.arrive(back)), "and the right one still goes through"
    assert went_nowhere(browser.arrive(back)), "once"


def test_the_flow_s_cookie_cannot_be_changed_or_used_for_another_flow(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    browser = Browser()
    back = sign_in_at(browser.begin(production)["Location"], "ada")
    [name] = [name for name in browser.client.cookies if name.startswith("oauth_flow_")]
    cookie = browser.client.cookies[name]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert cookie["path"] == "/v1/auth/"
    assert int(cookie["max-age"]) == 600
    assert APP not in cookie.value
    value = cookie.value
    for changed in ("", "x", value[:-4], value[:-8] + "AAAAAAAA", value[::-1], "é", value + "AAAA"):
        browser.client.cookies[name] = changed
        assert went_nowhere(browser.arrive(back)), changed
    second = Browser()
    second.begin(production)
    [others] = [morsel.value for key, morsel in second.client.cookies.items() if key.startswith("oauth_flow_")]
    browser.client.cookies[name] = others
    assert went_nowhere(browser.arrive(back))
    with override_settings(SECRET_KEY="another"):
        browser.client.cookies[name] = value
        assert went_nowhere(browser.arrive(back))
    assert nothing_is_left(production)


def test_the_cookie_is_for_https_alone_where_the_service_is(
    provider: ProviderRecord, production: Environment, settings: Any
) -> None:
    settings.BASE_URL = "https://127.0.0.1:8000"
    [morsel] = Browser().begin(production).cookies.values()
    assert morsel["secure"]


def test_a_flow_ends_after_ten_minutes(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser()
    monkeypatch.setattr(flows, "LIFETIME", -1)
    [morsel] = browser.begin(production).cookies.values()
    browser.client.cookies[morsel.key] = morsel.value  # a browser that forgets nothing
    browser.client.cookies[morsel.key]["max-age"] = 600
    location = browser.client.get("/v1/auth/authorize", headers={"Host": HOST})
    assert location.status_code == 422
    begun = Browser()
    sent = begun.begin(production)
    for key, morsel in sent.cookies.items():
        begun.client.cookies[key] = morsel.value
    assert went_nowhere(begun.arrive(sign_in_at(sent["Location"], "ada")))
    assert nothing_is_left(production)


@pytest.mark.parametrize("state", ["", "\ud800" * 43, "x" * 100_000])
def test_a_state_of_another_form_opens_no_flow(state: str) -> None:
    assert flows.open_sealed(state, {}) is None


def test_abandoned_flows_do_not_fill_the_cookies(provider: ProviderRecord, production: Environment) -> None:
    browser = Browser()
    seen = set()
    for _ in range(20):
        begun = browser.begin(production, state="s" * 1000)
        assert begun.status_code == 303
        for name in [name for name, morsel in browser.client.cookies.items() if not morsel.value]:
            assert browser.client.cookies[name]["path"] == flows.COOKIE_PATH, "else a browser would not know it"
            del browser.client.cookies[name]  # as a browser forgets what has expired
        open_flows = [morsel for name, morsel in browser.client.cookies.items() if name.startswith("oauth_flow_")]
        seen.add(len(open_flows))
    assert seen == set(range(1, flows.MAX_FLOWS + 1))
    assert all(len(morsel.value) < 3800 for morsel in open_flows), "browsers drop cookies beyond 4 KB"


def test_what_was_allowed_must_still_be_when_the_person_comes_back(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    browser = Browser()
    back = sign_in_at(browser.begin(production)["Location"], "ada")
    RedirectUri.objects.all().delete()
    assert went_nowhere(browser.arrive(back))
    allow(production.pk, APP)
    Environment.objects.filter(pk=production.pk).update(status="deleting")
    assert went_nowhere(browser.arrive(back))
    assert nothing_is_left(production)


def test_people_see_a_page_and_programs_json(provider: ProviderRecord, production: Environment) -> None:
    page = Browser().get("/v1/auth/callback/idp_x?state=<script>alert(1)</script>&code=x", accept="text/html,*/*;q=0.8")
    assert page.status_code == 422
    assert page["Content-Type"].startswith("text/html")
    assert "script-src" not in page["Content-Security-Policy"]
    assert page["Content-Security-Policy"].startswith("default-src 'none'")
    assert page["Cache-Control"] == "no-store"
    assert page["X-Content-Type-Options"] == "nosniff"
    text = page.content.decode()
    assert "not started in this browser" in text
    assert page["X-Request-Id"] in text
    assert "<script" not in text
    assert Browser().get("/v1/auth/callback/idp_x").json()["error"]["code"] == "validation_failed"


def test_anonymous_requests_are_rate_limited(provider: ProviderRecord, production: Environment, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1 / 300  # one a minute
    browser = Browser()
    for method, path in (
        ("GET", "/v1/auth/authorize"),
        ("GET", "/v1/auth/callback/idp_x"),
        ("POST", "/v1/auth/callback/idp_x"),
        ("GET", "/v1/auth/providers"),
    ):
        for _ in range(3):  # the minute may end in between
            response = browser.client.generic(
                method, path, headers={"Host": HOST, "Accept": "text/html"}, REMOTE_ADDR="198.51.100.9"
            )
            if response.status_code == 429:
                break
        assert response.status_code == 429, path
        assert int(response["Retry-After"]) >= 1


# ── A provider that says no, errs, or lies ──


def test_a_person_who_cancels(idp: IdentityProvider, provider: ProviderRecord, production: Environment) -> None:
    response = Browser().sign_in(production, "ada", answer="no", state="mine")
    assert refused(response) == ("access_denied", "provider_refused")
    assert told(response)["state"] == "mine"
    assert nothing_is_left(production)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("access_denied", ("access_denied", "provider_refused")),
        ("login_required", ("access_denied", "provider_refused")),
        ("temporarily_unavailable", ("temporarily_unavailable", "provider_unreachable")),
        ("server_error", ("server_error", "provider_answer_invalid")),
        ("<script>", ("server_error", "provider_answer_invalid")),
        ("", ("server_error", "provider_answer_invalid")),
    ],
)
@pytest.mark.parametrize("with_code", [False, True])
def test_provider_error_is_mapped_to_a_platform_error(
    idp: IdentityProvider,
    provider: ProviderRecord,
    production: Environment,
    error: str,
    expected: tuple[str, str],
    with_code: bool,
) -> None:
    def failing(address: str) -> str:
        parts = urlsplit(address)
        query = {name: values[0] for name, values in parse_qs(parts.query).items() if with_code or name != "code"}
        text = {"error": error, "error_description": "<b>bold</b>", "error_uri": "https://evil.example"}
        return urlunsplit(parts._replace(query=urlencode(query | text)))

    idp.twist_callback = failing
    response = Browser().sign_in(production, "ada")
    assert refused(response) == expected
    assert "bold" not in response["Location"]
    assert "evil" not in response["Location"]


def test_a_code_that_the_provider_does_not_know(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    idp.twist_callback = lambda address: address.replace("code=", "code=X")
    assert refused(Browser().sign_in(production, "ada"))[1] == "provider_refused"
    idp.twist_callback = lambda address: address.replace("code=", "c=")
    assert refused(Browser().sign_in(production, "ada"))[1] == "provider_answer_invalid"
    assert nothing_is_left(production)


def test_a_wrong_client_secret(idp: IdentityProvider, provider: ProviderRecord, production: Environment) -> None:
    providers.change(provider, actor=audit.SYSTEM, client_secret="wrong")
    assert refused(Browser().sign_in(production, "ada"))[1] == "provider_refused"


def test_a_stolen_code_of_the_provider_is_of_no_use_in_another_flow(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    """Code injection: PKCE towards the provider, and the nonce where a provider does not do PKCE (RFC 9700 4.5)."""
    victims = sign_in_at(Browser().begin(production)["Location"], "ada")
    stolen = parse_qs(urlsplit(victims).query)["code"][0]
    idp.person("mallory", email="mallory@example.com", email_verified=True)

    def inject(address: str) -> str:
        parts = urlsplit(address)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return urlunsplit(parts._replace(query=urlencode(query | {"code": stolen})))

    idp.twist_callback = inject
    assert refused(Browser().sign_in(production, "mallory"))[1] == "provider_refused"
    assert nothing_is_left(production)

    for code in idp.codes.values():
        code.code_challenge = (
            None  # a provider that ignores PKCE still complains of the verifier; so let it ignore that, too
        )
    idp.twist_answer["/token"] = lambda: Response(
        200,
        orjson.dumps(
            {
                "access_token": "x",
                "token_type": "Bearer",
                "id_token": idp.signed(
                    {"alg": "ES256", "kid": "first"},
                    {"iss": idp.issuer, "sub": "sub-ada", "aud": "platform-client", "exp": int(time.time()) + 60,
                     "iat": int(time.time()), "nonce": idp.codes[stolen].nonce, "email": "ada@example.com",
                     "email_verified": True},
                ),
            }
        ),
        [],
    )  # fmt: skip
    assert refused(Browser().sign_in(production, "mallory"))[1] == "provider_answer_invalid"
    assert nothing_is_left(production)


def test_another_issuer_answers(idp: IdentityProvider, provider: ProviderRecord, production: Environment) -> None:
    """Mix-up (RFC 9207): the response names another issuer, or none although the provider announces that it does."""
    idp.twist_callback = lambda address: address.replace(
        f"iss={quote(idp.issuer, safe='')}", "iss=https%3A%2F%2Fevil.example"
    )
    assert refused(Browser().sign_in(production, "ada"))[1] == "provider_answer_invalid"
    idp.twist_callback = lambda address: address.replace("iss=", "was=")
    assert refused(Browser().sign_in(production, "ada"))[1] == "provider_answer_invalid"
    assert idp.count("/token") == 0, "the code was not sent"
    idp.twist_callback = None
    assert "code" in told(Browser().sign_in(production, "ada"))


def twisted(**changes: Any) -> Callable[[IdentityProvider], Callable[[dict[str, Any], dict[str, Any]], str]]:
    """The same token, correctly signed, with other claims; None removes one."""

    def twist(idp: IdentityProvider) -> Callable[[dict[str, Any], dict[str, Any]], str]:
        def sign(header: dict[str, Any], claims: dict[str, Any]) -> str:
            merged = {name: value for name, value in {**claims, **changes}.items() if value is not None}
            return idp.signed(header, merged)

        return sign

    return twist


def _unsigned(idp: IdentityProvider) -> Callable[[dict[str, Any], dict[str, Any]], str]:
    def sign(header: dict[str, Any], claims: dict[str, Any]) -> str:
        parts = [json.dumps({"alg": "none"}), json.dumps(claims)]
        return ".".join(_b64(part.encode()) for part in parts) + "."

    return sign


def _b64(value: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(value).decode().rstrip("=")


def _hmac(key: Callable[[IdentityProvider], bytes]) -> Callable[[IdentityProvider], Any]:
    def twist(idp: IdentityProvider) -> Any:
        return lambda header, claims: idp.signed({"alg": "HS256", "kid": "first"}, claims, OctKey.import_key(key(idp)))

    return twist


def _by_another_key(kid: str, **header: Any) -> Callable[[IdentityProvider], Any]:
    def twist(idp: IdentityProvider) -> Any:
        other = type(idp.key).generate_key("P-256")
        named = {name: value(other) if callable(value) else value for name, value in header.items()}
        return lambda _, claims: idp.signed({"alg": "ES256", "kid": kid} | named, claims, other)

    return twist


def _raw(idp: IdentityProvider, old: bytes, new: bytes) -> Any:
    """The same token with other bytes in its payload, well signed."""

    def sign(header: dict[str, Any], claims: dict[str, Any]) -> str:
        payload = orjson.dumps(claims)
        assert old in payload
        return jws.serialize_compact(header, payload.replace(old, new), idp.key, algorithms=["ES256"])

    return sign


NOW = int(time.time())
TOKENS = {
    "another issuer": twisted(iss="https://evil.example"),
    "another issuer, a slash behind": lambda idp: twisted(iss=idp.issuer + "/")(idp),
    "no issuer": twisted(iss=None),
    "a list of issuers": lambda idp: twisted(iss=[idp.issuer, "https://evil.example"])(idp),
    "another audience": twisted(aud="another-client"),
    "another audience that names us": twisted(aud="another-client", azp="platform-client"),
    "no audience": twisted(aud=None),
    "two audiences and no authorized party": twisted(aud=["platform-client", "another-client"]),
    "another authorized party": twisted(azp="another-client"),
    "another nonce": twisted(nonce="another"),
    "no nonce": twisted(nonce=None),
    "a nonce that is a number": twisted(nonce=1),
    "expired": twisted(exp=NOW - 60),
    "no expiry": twisted(exp=None),
    "an expiry that is text": twisted(exp="tomorrow"),
    "not valid yet": twisted(nbf=NOW + 3600),
    "issued in the future": twisted(iat=NOW + 3600),
    "no subject": twisted(sub=None),
    "an empty subject": twisted(sub=""),
    "a subject that is a number": twisted(sub=5),
    "a subject that is too long": twisted(sub="x" * 256),
    "a subject with a NUL": twisted(sub="a\0b"),
    "half a surrogate pair": lambda idp: _raw(idp, b'"sub-ada"', rb'"\ud800"'),
    "another access token": twisted(at_hash="AAAAAAAAAAAAAAAAAAAAAA"),
    "unsigned": _unsigned,
    "signed with the client secret": _hmac(lambda idp: CLIENT_SECRET.encode()),
    "signed with the public key as a secret": _hmac(lambda idp: orjson.dumps(idp.key.as_dict(private=False))),
    "another key under the same id": _by_another_key("first"),
    "another key, named in the header": _by_another_key("other", jwk=lambda key: key.as_dict(private=False)),
    "another key, at an address in the header": _by_another_key("other", jku="https://evil.example/jwks"),
    "text": lambda idp: lambda header, claims: "not.a.token",
    "nothing": lambda idp: lambda header, claims: "",
    "a number": lambda idp: lambda header, claims: 5,
    "very long": lambda idp: lambda header, claims: "a." * 30_000,
}


@pytest.mark.parametrize("lie", TOKENS.values(), ids=TOKENS.keys())
def test_invalid_id_token_is_refused(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, lie: Callable[[IdentityProvider], Any]
) -> None:
    idp.twist_id_token = lie(idp)
    assert refused(Browser().sign_in(production, "ada")) == ("server_error", "provider_answer_invalid")
    assert nothing_is_left(production)


def test_a_token_of_another_provider_s_is_refused(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    """GHSA-9wqv-qhrh-87f4: well signed, by the issuer that it names, which is not the one that was asked."""
    with running() as other:
        foreign = lambda header, claims: other.signed(  # noqa: E731
            {"alg": "ES256", "kid": "first"}, claims | {"iss": other.issuer, "sub": "sub-ada"}
        )
        idp.twist_id_token = foreign
        assert refused(Browser().sign_in(production, "ada"))[1] == "provider_answer_invalid"
        assert other.requests == [], "its keys were not requested"
    assert nothing_is_left(production)


def test_rsa_signatures_are_read_too(idp: IdentityProvider, provider: ProviderRecord, production: Environment) -> None:
    idp.key, idp.algorithm = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}), "RS256"
    assert "code" in told(Browser().sign_in(production, "ada"))


def test_userinfo_of_another_user(idp: IdentityProvider, provider: ProviderRecord, production: Environment) -> None:
    idp.email_only_in_userinfo = True
    told_of_another = {"sub": "sub-eve", "email": "eve@example.com", "email_verified": True}
    idp.twist_answer["/userinfo"] = lambda: Response(200, orjson.dumps(told_of_another), [])
    assert refused(Browser().sign_in(production, "ada"))[1] == "provider_answer_invalid"
    assert nothing_is_left(production)


# ── What a provider says of itself ──


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"token_endpoint": None},
        {"token_endpoint": "ftp://127.0.0.1/token"},
        {"token_endpoint": 5},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "https://user:password@evil.example/"},
        {"jwks_uri": None},
        {"jwks_uri": "file:///etc/passwd"},
    ],
    ids=str,
)
def test_a_discovery_document_that_cannot_be_true(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, change: dict[str, Any]
) -> None:
    idp.twist_discovery = lambda document: {**document, **change}
    assert refused(Browser().begin(production)) == ("server_error", "provider_answer_invalid")


def test_of_a_key_set_only_what_verifies_is_read(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    """A private half without its primes would have them looked for, for as long as its author likes."""
    endless = {"kty": "RSA", "kid": "k", "use": "sig", "n": "A" * 2_000, "e": "AQAB", "d": "B" * 2_000}
    assert metadata._public(endless) == {name: value for name, value in endless.items() if name != "d"}
    with pytest.raises(ValueError, match="length"):
        metadata._public({**endless, "n": "A" * 2_801})
    whole = idp.key.as_dict(private=True)
    idp.twist_answer["/jwks"] = lambda: Response(200, orjson.dumps({"keys": [endless, whole]}), [])
    idp.person("ada", email="ada@example.com", email_verified=True)
    browser = Browser()
    assert browser.arrive(sign_in_at(browser.begin(production)["Location"], "ada")).status_code == 303


BODIES = [b"", b"[]", b"null", b"<html>", b'{"issuer":', b"\xff\xfe", b"[" * 60_000, b"{" + b" " * 70_000 + b"}"]


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/jwks", "/token"])
def test_an_answer_that_is_no_object_or_too_large(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, path: str
) -> None:
    browser = Browser()
    for body in BODIES:
        idp.twist_answer[path] = lambda body=body: Response(200, body, [])
        begun = browser.begin(production)
        if not path.startswith("/.well-known"):
            begun = browser.arrive(sign_in_at(begun["Location"], "ada"))
        assert refused(begun)[1] == "provider_answer_invalid", body[:20]
    assert nothing_is_left(production)


def test_a_provider_that_redirects_us_elsewhere_is_not_followed(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment
) -> None:
    away = [("Location", f"{idp.issuer}/token")]
    idp.twist_answer["/.well-known/openid-configuration"] = lambda: Response(302, b"", away)
    assert refused(Browser().begin(production))[1] == "provider_answer_invalid"
    assert idp.count("/token") == 0


def test_a_provider_inside_our_network_is_not_called(
    idp: IdentityProvider, provider: ProviderRecord, production: Environment, settings: Any
) -> None:
    """T18: a tenant names the issuer, and its document names the rest."""
    settings.OUTBOUND_ALLOWED_NETWORKS = []
    assert refused(Browser().begin(production)) == ("temporarily_unavailable", "provider_unreachable")
    assert idp.requests == []


def test_provider_is_unavailable(production: Environment) -> None:
    with running() as gone:
        address = gone.issuer
    allow(production.pk, APP)
    add(production.pk, "gone", issuer=address)
    assert refused(Browser().begin(production)) == ("temporarily_unavailable", "provider_unreachable")


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/jwks"])
def test_a_slow_provider_costs_a_bounded_time_and_then_rests(
    idp: IdentityProvider,
    provider: ProviderRecord,
    production: Environment,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    asked = threading.Event()

    def dawdle() -> Response:
        asked.set()
        idp.stopping.wait(30)
        return Response(200, b"{}", [])

    browser = Browser()
    way = None if path.startswith("/.well-known") else sign_in_at(browser.begin(production)["Location"], "ada")
    idp.twist_answer[path] = dawdle
    monkeypatch.setattr(transport, "REQUEST_SECONDS", 1.5)
    monkeypatch.setattr(transport, "FIRST_COOLDOWN_SECONDS", 300.0)
    begun = time.monotonic()
    first = browser.begin(production) if way is None else browser.arrive(way)
    assert time.monotonic() - begun < 25, "the provider would have taken thirty seconds"
    assert asked.is_set()
    assert refused(first) == ("temporarily_unavailable", "provider_unreachable")
    before = idp.count(path)
    forget_providers()
    assert refused(Browser().begin(production))[1] == "provider_unreachable"
    assert idp.count(path) == before, "the next one does not wait for it again"
    idp.stopping.set()
    assert nothing_is_left(production)


@pytest.fixture
def slow() -> Iterator[IdentityProvider]:
    """A provider whose answers take until it stops."""
    with running() as provider:

        def dawdle() -> Response:
            provider.stopping.wait(60)
            return Response(200, b"{}", [])

        provider.twist_answer["/.well-known/openid-configuration"] = dawdle
        yield provider


class Strangers:
    """Sign-ins of other applications that wait for a slow provider, each in a thread as in the server."""

    def __init__(self, slow: IdentityProvider) -> None:
        self.slow = slow
        self.ended: list[str] = []
        self._threads: list[threading.Thread] = []

    def sign_in_at(self, environment_id: str) -> None:
        record = ProviderRecord(id=f"idp_of_{environment_id}", environment_id=environment_id)

        def call() -> None:
            try:
                transport.Calls(record).get_object(f"{self.slow.issuer}/.well-known/openid-configuration")
            except ProviderUnreachable as error:
                self.ended.append(error.why)

        self._threads.append(threading.Thread(target=call, daemon=True))
        self._threads[-1].start()

    def under_way(self) -> int:
        return len(transport._semaphore._slots)

    def join(self) -> None:
        self.slow.stopping.set()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def strangers(slow: IdentityProvider) -> Iterator[Strangers]:
    made = Strangers(slow)
    yield made
    made.join()
    assert transport._semaphore._slots == []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_application_with_slow_providers_leaves_room_for_others(
    provider: ProviderRecord, production: Environment, strangers: Strangers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait for a provider serve no other requests, so their number is limited."""
    monkeypatch.setattr(transport, "WAIT_SECONDS", 0.2)
    for _ in range(transport.MAX_REQUESTS):
        strangers.sign_in_at("env_slow")
    until(lambda: len(strangers.ended) == transport.MAX_REQUESTS - transport.MAX_REQUESTS_PER_OWNER)
    assert set(strangers.ended) == {"too many calls to providers at once"}
    assert strangers.under_way() == transport.MAX_REQUESTS_PER_OWNER
    assert Browser().begin(production).status_code == 303


def test_known_fast_provider_is_served_beside_many_slow_providers(
    provider: ProviderRecord, production: Environment, strangers: Strangers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Browser().begin(production).status_code == 303
    forget_providers()
    monkeypatch.setattr(transport, "WAIT_SECONDS", 0.2)
    for number in range(4 * transport.MAX_REQUESTS):
        strangers.sign_in_at(f"env_slow{number}")
    until(lambda: strangers.under_way() + len(strangers.ended) == 4 * transport.MAX_REQUESTS)
    assert strangers.under_way() == transport.MAX_REQUESTS * 3 // 4
    assert Browser().begin(production).status_code == 303


def test_slow_providers_give_way_to_new_applications_and_are_paused(
    provider: ProviderRecord,
    production: Environment,
    slow: IdentityProvider,
    strangers: Strangers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(transport, "FIRST_COOLDOWN_SECONDS", 300.0)
    monkeypatch.setattr(transport._semaphore, "slow_after", 0.5)
    most = transport.MAX_REQUESTS * 3 // 4
    for number in range(most):
        strangers.sign_in_at(f"env_slow{number}")
    until(lambda: strangers.under_way() == most)
    assert Browser().begin(production).status_code == 303
    until(lambda: len(strangers.ended) == 1)
    assert strangers.under_way() == most - 1, "one of them, and no other"
    asked = len(slow.requests)
    for number in range(most):
        strangers.sign_in_at(f"env_slow{number}")
    until(lambda: "it was too slow a moment ago" in strangers.ended)
    until(lambda: len(slow.requests) == asked + 1 or len(strangers.ended) > 2)
    assert strangers.under_way() <= most


def test_pause_of_a_slow_provider_grows_and_ends_after_a_fast_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(transport.time, "monotonic", lambda: now)
    provider = ProviderRecord(id="idp_slow", environment_id="env_slow")

    def time_out() -> None:
        with pytest.raises(RequestTimedOut), transport._slot(provider, 1):
            raise RequestTimedOut("no answer")

    for rest in (3, 6, 12, 24, 48, 96, 192, 300, 300):
        time_out()
        now += rest - 0.1
        with pytest.raises(ProviderUnreachable, match="too slow"), transport._slot(provider, 1):
            pass
        now += 0.2
    with transport._slot(provider, 1):
        pass
    time_out()
    now += 3.1
    time_out()
