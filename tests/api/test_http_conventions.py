"""What the front guarantees on every path: request ids, hosts, methods, headers, and two separate ways."""

import pytest
from django.conf import LazySettings
from django.core.handlers.base import BaseHandler
from django.test import RequestFactory

from platform_site.http.middleware import api as middleware
from platform_site.http.requests import current_request_id, environment_of_host
from platform_site.identity import ids
from tests.support.client import Api

pytestmark = pytest.mark.usefixtures("things")


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/test/things/",
        "/v1/test/things/1/2",
        "/v1/%00",
        "/v1/projects%00",
        "/v1/../admin/",
        "/v1/%2e%2e/admin/",
        "/v1//test/things",
        "/v1/test/things%2f",
        "/v1/" + "a" * 4000,
        "/v1/%ff",
        "/v1/%ed%a0%80",
        "/v1/.env",
        "/v1/test/things;x=1",
        "/v1/TEST/things",
        "/.well-known/nothing",
        "/v1/openapi.yaml",
        "/v1/{id}",
        "/v1/<script>",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "PROPFIND"])
def test_an_unknown_address_under_v1_is_404_as_json(api: Api, method: str, path: str) -> None:
    answer = api.request(method, path)
    assert (answer.status, answer.error) == (404, "not_found")
    assert b"script" not in answer.body


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "CONNECT", "PROPFIND", "X" * 50])
def test_a_wrong_method_is_405_and_says_which_there_are(api: Api, method: str) -> None:
    answer = api.request(method, "/v1/test/things")
    assert (answer.status, answer.error) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, POST, OPTIONS"


def test_options_answers_the_methods_and_no_metadata(api: Api) -> None:
    answer = api.request("OPTIONS", "/v1/test/things/1")
    assert (answer.status, answer.body, answer.headers["Allow"]) == (204, b"", "DELETE, GET, HEAD, OPTIONS")


def test_head_is_get_without_a_body(api: Api) -> None:
    got, head = (api.request(method, "/v1/test/things", token="good") for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Type"] == got.headers["Content-Type"]


def test_a_method_override_header_overrides_nothing(api: Api) -> None:
    assert (
        api.post("/v1/test/things", token="poor", json={"name": "x"}, headers={"X-HTTP-Method-Override": "GET"}).status
        == 403
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "localhost.evil.test",
        "evil.test:80",
        "127.0.0.1.evil.test",
        "a b",
        "localhost@evil.test",
        "",
        "[::1",
        "xn--",
        "evil.test#localhost",
        ".",
    ],
)
@pytest.mark.parametrize("path", ["/v1/test/things", "/v1/nothing", "/.well-known/x"])
def test_an_unknown_host_is_400_as_json(api: Api, host: str, path: str) -> None:
    answer = api.get(path, token="good", headers={"Host": host})
    assert (answer.status, answer.error) == (400, "invalid_request")


def test_a_forwarded_host_is_not_believed(api: Api) -> None:
    assert api.get("/v1/test/things", token="good", headers={"X-Forwarded-Host": "evil.test"}).status == 200


@pytest.mark.parametrize("path", ["/admin/", "/static/platform_site/favicon.svg"])
def test_an_unknown_host_is_a_page_for_people(api: Api, path: str) -> None:
    answer = api.get(path, headers={"Host": "evil.test"})
    assert answer.status == 400
    assert answer.headers["Content-Type"].startswith("text/html")


def test_a_bounded_number_of_host_names_is_remembered(api: Api) -> None:
    for number in range(1002):
        assert api.get("/v1/nothing", headers={"Host": f"n{number}.localhost"}).status == 404
    assert len(middleware._known_hosts) <= 1000


def test_probes_answer_whatever_they_call_us(api: Api) -> None:
    assert api.get("/healthz", headers={"Host": "10.1.2.3:8000"}).json == {"status": "ok"}


@pytest.mark.parametrize("offered", ["abc", "A-1.b_c:d", "0" * 64, "2026-01-01T00:00:00.000"])
def test_a_wellformed_request_id_is_kept(api: Api, offered: str) -> None:
    for path in ("/v1/nothing", "/v1/openapi.json", "/admin/login/", "/nothing", "/healthz"):
        assert api.get(path, headers={"X-Request-Id": offered}).headers["X-Request-Id"] == offered


@pytest.mark.parametrize(
    "offered",
    [
        "",
        " ",
        "a b",
        "a\tb",
        "é",
        "0" * 65,
        "-a",
        ".",
        "a,b",
        'a"b',
        "<x>",
        "a\nb",
        "sk_live_0123456789",
        "rt_abcdefgh",
        "whsec_x",
        "oal_x",
        "eyJhbGciOi",
    ],
)
def test_another_request_id_is_replaced(api: Api, offered: str) -> None:
    given = api.get("/v1/nothing", headers={"X-Request-Id": offered}).headers["X-Request-Id"]
    assert ids.matches("req", given)


def test_each_request_has_its_own_id_and_none_stays(api: Api) -> None:
    seen = {api.get("/v1/nothing").headers["X-Request-Id"] for _ in range(50)}
    assert len(seen) == 50
    assert current_request_id() is None


def test_machines_are_told_to_trust_nothing(api: Api) -> None:
    headers = api.get("/v1/test/things", token="good").headers
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Vary"] == "Origin"
    assert "Set-Cookie" not in headers
    assert "Server" not in headers


def test_production_refuses_tokens_over_http_and_sets_hsts(settings: LazySettings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_HSTS_SECONDS = 31_536_000
    handler = BaseHandler()
    handler.load_middleware()
    plain = handler.get_response(RequestFactory().get("/v1/openapi.json"))
    assert plain.status_code == 400
    assert "Strict-Transport-Security" not in plain
    safe = handler.get_response(RequestFactory().get("/v1/openapi.json", secure=True))
    assert safe.status_code == 200
    assert safe["Strict-Transport-Security"] == "max-age=31536000; includeSubDomains; preload"
    assert handler.get_response(RequestFactory().get("/healthz")).status_code == 200
    page = handler.get_response(RequestFactory().get("/docs"))
    assert (page.status_code, page["Location"]) == (301, "https://testserver/docs")


def test_console_middleware_is_not_paid_for_under_v1(api: Api) -> None:
    """No session is looked for and no CSRF token is asked for, whatever cookies come along."""
    answer = api.post(
        "/v1/test/things", token="good", json={"name": "x"}, headers={"Cookie": "sessionid=x; csrftoken=y"}
    )
    assert answer.status == 201
    assert "Set-Cookie" not in answer.headers
    assert "Cookie" not in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("host", "environment"),
    [
        ("env-01k6zv3c5jf6q8m0h2w4x7y9ab.localhost", "env_01k6zv3c5jf6q8m0h2w4x7y9ab"),
        ("ENV-01K6ZV3C5JF6Q8M0H2W4X7Y9AB.localhost:8000", "env_01k6zv3c5jf6q8m0h2w4x7y9ab"),
        ("env-01k6zv3c5jf6q8m0h2w4x7y9ab.evil.test", None),
        ("env-01k6zv3c5jf6q8m0h2w4x7y9ab", None),
        ("env-short.localhost", None),
        ("www.localhost", None),
        ("localhost", None),
        ("", None),
    ],
)
def test_a_host_may_name_an_environment(host: str, environment: str | None) -> None:
    assert environment_of_host(host) == environment


# ── Query parameters, scopes ──


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("limit=1&limit=2", {"limit": "repeated"}),
        ("limit=1&status=x&cursor=", None),
        ("staus=failed", {"staus": "unknown_parameter"}),
        ("Limit=1", {"Limit": "unknown_parameter"}),
        ("limit[]=1", {"limit[]": "unknown_parameter"}),
        ("status=%00", {"status": "invalid_characters"}),
        ("a=1&b=2&limit=1&limit=1", {"a": "unknown_parameter", "b": "unknown_parameter", "limit": "repeated"}),
        ("_=1700000000", None),
        ("status=%ff", {"status": "not_utf8"}),
        ("%ff=1", {"?": "not_utf8"}),
        ("status=%ED%A0%80", {"status": "not_utf8"}),
        ("&".join(f"x{n}=1" for n in range(101)), {"query": "too_many"}),
        ("&&&", None),
        ("status=%F0%9F%98%80", None),
        ("%00=1", {"(empty)": "unknown_parameter"}),
        ("=1", {"(empty)": "unknown_parameter"}),
        ("limit", None),
    ],
)
def test_query_parameters_of_a_list_are_read_strictly(api: Api, query: str, wrong: dict[str, str] | None) -> None:
    answer = api.get(f"/v1/test/things?{query}", token="good")
    if wrong is None:
        assert answer.status == 200
    else:
        assert (answer.status, answer.fields) == (422, wrong)


def test_parameters_of_one_thing_are_ignored(api: Api) -> None:
    assert api.get("/v1/test/things/1?anything=1&anything=2", token="good").status == 422, "but not said twice"
    assert api.get("/v1/test/things/1?anything=1", token="good").status == 200


def test_a_missing_scope_is_403_and_no_token_is_401(api: Api) -> None:
    assert api.post("/v1/test/things", json={"name": "x"}).error == "unauthorized"
    answer = api.post("/v1/test/things", token="poor", json={"name": "x"})
    assert (answer.status, answer.error) == (403, "forbidden")
    assert "rows:write" in answer.json["error"]["message"]


def test_who_asks_is_settled_before_what_is_asked(api: Api) -> None:
    """An anonymous caller learns nothing about bodies and parameters."""
    assert api.post("/v1/test/things", body=b"{").status == 401
    assert api.get("/v1/test/things?x=1").status == 401
