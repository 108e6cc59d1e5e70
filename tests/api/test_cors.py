"""Which pages may read which answers. `platform_site.http.middleware.cors` says why."""

from collections.abc import Iterator, Sequence

import pytest
from django.conf import LazySettings

from platform_site.http.middleware import cors
from platform_site.identity.callers import Caller
from tests.api.urls import CALLERS, environment
from tests.support.client import Answer, Api

ENVIRONMENT = "env_01k6zv3c5jf6q8m0h2w4x7y9ab"
HOST = f"{ENVIRONMENT.replace('_', '-')}.localhost"


@pytest.fixture(autouse=True)
def origins(things: str, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was looked up. One environment is known; it allows https://a.test."""
    looked_up: list[str] = []

    def lookup(environment_id: str) -> Sequence[str] | None:
        looked_up.append(environment_id)
        if environment_id == "env_broken":
            raise RuntimeError("the database is unavailable")
        return ("https://a.test",) if environment_id == ENVIRONMENT else None

    monkeypatch.setattr(cors, "_lookup", lookup)
    settings.PLATFORM_ORIGINS = ["https://console.test"]
    return looked_up  # type: ignore[return-value]


def preflight(api: Api, origin: str, **headers: str) -> Answer:
    return api.request(
        "OPTIONS",
        "/v1/test/things",
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        | headers,
    )


def allowed(answer: Answer) -> str | None:
    found: str | None = answer.headers.get("Access-Control-Allow-Origin")
    return found


def test_a_preflight_that_names_no_environment_is_granted(api: Api, origins: list[str]) -> None:
    answer = preflight(api, "https://anybody.test")
    assert (answer.status, allowed(answer)) == (204, "https://anybody.test")
    assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
    for header in ("authorization", "content-type", "idempotency-key", "if-match", "x-environment"):
        assert header in answer.headers["Access-Control-Allow-Headers"]
    assert answer.headers["Access-Control-Max-Age"] == "7200"
    assert "Origin" in answer.headers["Vary"]
    assert "Access-Control-Allow-Credentials" not in answer.headers
    assert origins == [], "nothing is looked up"


def test_a_preflight_to_an_environments_host_follows_its_list(api: Api) -> None:
    assert allowed(preflight(api, "https://a.test", Host=HOST)) == "https://a.test"
    refused = preflight(api, "https://b.test", Host=HOST)
    assert (refused.status, allowed(refused)) == (204, None)
    assert "Access-Control-Allow-Methods" not in refused.headers


def test_a_preflight_needs_no_address(api: Api) -> None:
    """It says what pages may ask, not what there is."""
    answer = api.request(
        "OPTIONS", "/v1/nothing", headers={"Origin": "https://a.test", "Access-Control-Request-Method": "GET"}
    )
    assert answer.status == 204


@pytest.mark.parametrize(
    ("listed", "origin", "may"),
    [
        (("*",), "https://anybody.test", True),
        ((), "https://a.test", False),
        (("https://a.test",), "https://a.test", True),
        (("https://a.test",), "http://a.test", False),
        (("https://a.test",), "https://a.test:8443", False),
        (("https://a.test",), "https://a.test.evil.test", False),
        (("https://a.test",), "https://sub.a.test", False),
        (("https://a.test",), "null", False),
        (("https://a.test",), "https://A.test", False),
        (("https://a.test", "http://localhost:3000"), "http://localhost:3000", True),
        (("*",), "https://[broken", False),
        (("http://localhost:*",), "http://localhost:5173", True),
        (("http://localhost:*",), "http://localhost", True),
        (("http://localhost:*",), "https://localhost:5173", False),
        (("http://localhost:*",), "http://127.0.0.1:5173", False),
        (("http://localhost:*",), "http://localhost.evil.test", False),
        (("http://localhost:*",), "http://localhost:5173.evil.test", False),
        (("http://localhost:*",), "http://evil.test:5173", False),
        (("http://localhost:*",), "http://localhost:", False),
        (("http://localhost:*",), "http://user@localhost:5173", False),
        (("http://localhost:*",), "http://localhost:5173:80", False),
    ],
)
def test_an_answer_to_a_caller_follows_its_environments_list(
    api: Api, listed: tuple[str, ...], origin: str, may: bool
) -> None:
    CALLERS["of"] = Caller(kind="user", id="usr_1", scopes=frozenset(), environment=environment(allowed_origins=listed))
    answer = api.get("/v1/test/things", token="of", headers={"Origin": origin})
    assert answer.status == 200
    assert allowed(answer) == (origin if may else None)
    assert "Access-Control-Allow-Credentials" not in answer.headers
    if may:
        exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
        assert set(exposed) >= {"ETag", "Location", "Retry-After", "RateLimit", "RateLimit-Policy", "X-Request-Id"}


def test_errors_of_a_caller_follow_it_too(api: Api) -> None:
    for method, path, status in (("POST", "/v1/test/things", 400), ("POST", "/v1/test/things/1", 405)):
        answer = api.request(method, path, token="good", headers={"Origin": "https://b.test"})
        assert answer.status == status
        assert allowed(answer) == (None if status == 400 else "https://b.test")


def test_an_accounts_own_pages_are_the_platforms_and_its_environments(api: Api) -> None:
    def asked_from(origin: str, token: str) -> str | None:
        return allowed(api.get("/v1/test/things", token=token, headers={"Origin": origin}))

    assert asked_from("https://console.test", "owner") == "https://console.test"
    assert asked_from("https://a.test", "owner") is None
    assert asked_from("https://console.test", "good") is None, "a key is no account"
    CALLERS["owner there"] = Caller(
        kind="account", id="usr_2", scopes=frozenset(), environment=environment(allowed_origins=("https://a.test",))
    )
    assert asked_from("https://a.test", "owner there") == "https://a.test"
    assert asked_from("https://console.test", "owner there") == "https://console.test"


def test_a_page_may_see_that_its_token_has_expired(api: Api, origins: list[str]) -> None:
    answer = api.get("/v1/test/things", token="expired", headers={"Origin": "https://b.test"})
    assert (answer.status, allowed(answer)) == (401, "https://b.test")
    assert origins == []


@pytest.mark.parametrize(
    ("headers", "origin", "may"),
    [
        ({}, "https://console.test", True),
        ({}, "https://a.test", False),
        ({"X-Environment": ENVIRONMENT}, "https://a.test", True),
        ({"X-Environment": ENVIRONMENT}, "https://console.test", False),
        ({"Host": HOST}, "https://a.test", True),
        ({"X-Environment": "env_unknown"}, "https://a.test", False),
        ({"X-Environment": "env_broken"}, "https://a.test", False),
    ],
)
@pytest.mark.parametrize("body", [b'{"name": "x"}', b"{"])
def test_a_public_address_follows_the_environment_that_is_named(
    api: Api, headers: dict[str, str], origin: str, may: bool, body: bytes
) -> None:
    answer = api.post("/v1/test/granting", body=body, headers={"Origin": origin} | headers)
    assert answer.status in (200, 400)
    assert allowed(answer) == (origin if may else None)


def test_without_an_origin_nothing_is_looked_up(api: Api, origins: list[str]) -> None:
    answer = api.post("/v1/test/granting", json={"name": "x"}, headers={"X-Environment": ENVIRONMENT})
    assert allowed(answer) is None
    assert origins == []


def test_the_description_may_be_read_from_everywhere(api: Api) -> None:
    assert allowed(api.get("/v1/openapi.json", headers={"Origin": "https://b.test"})) == "https://b.test"


def test_pages_of_users_are_private(api: Api) -> None:
    assert allowed(api.get("/admin/login/", headers={"Origin": "https://a.test"})) is None
