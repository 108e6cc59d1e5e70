"""The description of the API: valid, complete, and true for an anonymous caller of every operation.

The list of operations is taken from the description, and the description from the URLs, so a new endpoint is
included automatically; one without authentication fails `test_anonymous_callers_are_refused_by_every_operation`.
"""

import re
import subprocess
import sys
from typing import Any
from zlib import crc32

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.drainage import GENERATOR_STATS
from jsonschema import Draft202012Validator

from platform_site.http.openapi.description import _codes, _generated
from platform_site.http.views import ApiViewSet
from tests.support.client import Api
from tests.support.openapi import METHODS, OPEN, description, filled, name, operations, validate_description
from tests.support.response_invariants import CODES
from tests.support.service import ROOT

UNTAGGED_BODY = {"POST", "PUT", "PATCH"}


ALL = pytest.mark.parametrize(("method", "path", "operation"), operations(), ids=map(name, operations()))


def test_it_is_valid_openapi_3_1_and_made_without_a_warning() -> None:
    GENERATOR_STATS.reset()
    _generated.cache_clear()
    description.cache_clear()
    assert description()["openapi"] == "3.1.0"
    validate_description(description())
    assert not GENERATOR_STATS, [dict(GENERATOR_STATS._warn_cache), dict(GENERATOR_STATS._error_cache)]


FIRST_AT_ONCE = """
import sys, django
from concurrent.futures import ThreadPoolExecutor
django.setup(set_prefix=False)
from platform_site.http.openapi.description import _document
sys.setswitchinterval(1e-5)
with ThreadPoolExecutor(8) as pool:
    assert len(set(pool.map(_document, ["platform_site.urls"] * 8))) == 1
"""


@pytest.mark.exhaustive
def test_first_requests_may_come_at_once() -> None:
    """In a process that has made no description yet: drf-spectacular's generator is not safe for threads."""
    subprocess.run([sys.executable, "-c", FIRST_AT_ONCE], cwd=ROOT, check=True, timeout=100)


def test_implemented_contract_endpoints_are_in_the_description() -> None:
    described = {name(operation) for operation in operations()}
    assert described >= {
        "POST /v1/projects",
        "GET /v1/projects",
        "DELETE /v1/projects/{project_id}",
        "GET /v1/projects/{project_id}/environments",
        "POST /v1/auth/token",
    }


def test_every_viewset_address_is_described() -> None:
    def routes(patterns: list[Any], prefix: str) -> list[tuple[str, Any]]:
        found = []
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                found += routes(pattern.url_patterns, route)
            elif isinstance(pattern, URLPattern):
                found.append((route, pattern.callback))
        return found

    for route, view in routes(get_resolver("platform_site.urls").url_patterns, "/"):
        if issubclass(getattr(view, "cls", object), ApiViewSet):
            path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route)
            actions = set(view.actions) - {"head"}
            if path == "/v1/rows/{table}/aggregate":
                actions = {"post"}  # the other methods are those of the row with this id
            assert actions == set(description()["paths"][path]) & set(METHODS), path


def test_operation_ids_are_unique_and_readable() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", one) for one in ids), ids


def test_an_operation_has_all_scopes_that_it_always_needs() -> None:
    found = {name((method, path, each)): each.get("x-required-scope") for method, path, each in operations()}
    assert found["POST /v1/webhooks"] == found["PATCH /v1/webhooks/{webhook_id}"] == "webhooks:write rows:read"
    assert found["POST /v1/functions/{name}/inbound"] == "functions:deploy functions:invoke"


@ALL
def test_an_operation_says_what_it_is(method: str, path: str, operation: dict[str, Any]) -> None:
    assert operation.get("summary"), "the action has no docstring"
    assert len(operation["summary"]) <= 120
    assert operation["summary"].count("`") % 2 == 0, "cut inside code"
    assert operation["tags"]
    if method in UNTAGGED_BODY and "requestBody" in operation:
        [content] = operation["requestBody"]["content"].values()
        assert "$ref" in content["schema"]


@ALL
def test_an_operation_has_a_typed_answer_for_each_success(method: str, path: str, operation: dict[str, Any]) -> None:
    successes = {status: answer for status, answer in operation["responses"].items() if status < "304"}
    assert successes
    for status, answer in successes.items():
        if status in ("204", "303"):
            assert "content" not in answer
        elif "text/html" in answer["content"]:
            assert name((method, path, operation)) in OPEN, "pages are for browsers on their way"
        elif "text/event-stream" in answer["content"]:
            assert name((method, path, operation)) == "POST /v1/changes"
        elif "application/typescript" in answer["content"]:
            assert answer["content"]["application/typescript"]["schema"] == {"type": "string"}
        else:
            schema = answer["content"]["application/json"]["schema"]
            assert schema != {"type": "object"}, "the answer has no type"


@ALL
def test_an_operation_documents_its_errors_with_the_envelope(method: str, path: str, operation: dict[str, Any]) -> None:
    errors = {int(status): answer for status, answer in operation["responses"].items() if "400" <= status <= "599"}
    expected = {400, 429, 500, 503}
    if operation.get("security") != [] and name((method, path, operation)) not in OPEN:
        expected.add(401)
        if operation.get("x-required-scope"):
            expected.add(403)
        if "{" in path:
            expected.add(404)
        if "requestBody" in operation:
            expected |= {413, 415, 422}
    assert set(errors) >= expected
    for status, answer in errors.items():
        content = answer["content"]["application/json"]
        assert content["schema"] == {"$ref": "#/components/schemas/Error"}
        for code, example in content["examples"].items():
            assert status in CODES[code]
            Draft202012Validator(description()["components"]["schemas"]["Error"]).validate(example["value"])
            assert example["value"]["error"]["code"] == code


@ALL
def test_anonymous_callers_are_refused_by_every_operation(
    api: Api, method: str, path: str, operation: dict[str, Any]
) -> None:
    """Without a token, and with three invalid ones. No query is made: this test has no database."""
    if name((method, path, operation)) in OPEN:
        assert not operation.get("security")
        return
    assert operation["security"] == [{"bearer": []}]
    for headers in (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer sk_00000000000000000000000000000000000000"},
        {"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ1c3JfMSJ9."},
        {"Cookie": "sessionid=0123456789abcdef0123456789abcdef"},
    ):
        answer = api.request(
            method,
            filled(path, operation),
            headers=headers,
            body=b"{" if method in UNTAGGED_BODY else b"",
            remote_addr=f"2001:db8:{crc32(name((method, path, operation)).encode()) % 65536:x}::1",  # a limit for each
        )
        assert (answer.status, answer.error) == (401, "unauthorized"), headers


@ALL
def test_an_examples_value_fits_its_schema(method: str, path: str, operation: dict[str, Any]) -> None:
    bodies = [operation["requestBody"]["content"]] if "requestBody" in operation else []
    bodies += [
        answer["content"] for status, answer in operation["responses"].items() if status < "300" and "content" in answer
    ]
    for content in bodies:
        for media in content.values():
            for example in media.get("examples", {}).values():
                schema = {"components": description()["components"], **media["schema"]}
                Draft202012Validator(schema).validate(example["value"])


def test_every_error_code_is_in_the_description_and_the_invariants() -> None:
    assert set(_codes()) == set(CODES)


def test_it_is_served_to_everybody_once_made_and_again_only_if_changed(api: Api) -> None:
    first = api.get("/v1/openapi.json")
    assert first.status == 200
    assert first.json["info"]["title"]
    for known in (first.headers["ETag"], f"W/{first.headers['ETag']}", '"other", ' + first.headers["ETag"], "*"):
        again = api.get("/v1/openapi.json", headers={"If-None-Match": known})
        assert (again.status, again.body) == (304, b""), known
    assert api.get("/v1/openapi.json", headers={"If-None-Match": '"other"'}).status == 200
    assert api.request("HEAD", "/v1/openapi.json").status == 200
