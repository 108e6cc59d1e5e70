"""The description of the API: valid, complete, and true for a stranger at every door.

The list of operations is taken from the description, and the description from the addresses, so a new endpoint is in
here by itself; a door that forgets its lock fails `test_a_stranger_is_refused_at_every_door`.
"""

import json
import re
from functools import cache
from typing import Any
from zlib import crc32

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.validation import validate_schema
from jsonschema import Draft202012Validator

from platform_site.http.openapi import _codes, _document
from platform_site.http.views import ApiViewSet
from tests.client import Api
from tests.invariants import CODES

METHODS = ("get", "post", "put", "patch", "delete")
OPEN = {
    "POST /v1/auth/token": "signs in",
    "GET /.well-known/jwks.json": "public keys",
    "GET /v1/auth/authorize": "begins a sign-in by another provider",
    "GET /v1/auth/callback/{provider_id}": "where the provider sends the browser back",
    "GET /v1/auth/providers": "what an application draws buttons for before anybody has signed in",
    "POST /v1/auth/signup": "asks for an account",
    "POST /v1/auth/signup/confirm": "opened by the token of an e-mail",
    "POST /v1/auth/invitation/accept": "opened by the token of an e-mail",
    "POST /v1/auth/member-invitation/accept": "opened by the token of an e-mail",
    "POST /v1/auth/password-reset": "asked by who cannot sign in",
    "POST /v1/auth/password-reset/confirm": "opened by the token of an e-mail",
    "POST /v1/auth/email-verification/confirm": "opened by the token of an e-mail",
    "POST /v1/auth/email-change/confirm": "opened by the token of an e-mail",
    "POST /v1/inbound/{token}": "the address is the token: providers send no header of ours",
    "GET /v1/inbound/{token}": "as above",
}
"""The operations that need no token, each with its reason. The list only shrinks, but for sign-up, OAuth and inbound
addresses."""
UNTAGGED_BODY = {"POST", "PUT", "PATCH"}


@cache
def description() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(_document("platform_site.urls")[0])
    return read


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, item in description()["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def name(operation: tuple[str, str, dict[str, Any]]) -> str:
    return f"{operation[0]} {operation[1]}"


ALL = pytest.mark.parametrize(("method", "path", "operation"), operations(), ids=map(name, operations()))


def test_it_is_valid_openapi_3_1_and_made_without_a_warning() -> None:
    GENERATOR_STATS.reset()
    _document.cache_clear()
    description.cache_clear()
    assert description()["openapi"] == "3.1.0"
    validate_schema(description())
    assert not GENERATOR_STATS, [dict(GENERATOR_STATS._warn_cache), dict(GENERATOR_STATS._error_cache)]


def test_the_contracts_twelve_endpoints_are_described_as_far_as_they_are_built() -> None:
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
            assert set(view.actions) - {"head"} == set(description()["paths"][path]) & set(METHODS), path


def test_operation_ids_are_unique_and_readable() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", one) for one in ids), ids


@ALL
def test_an_operation_says_what_it_is(method: str, path: str, operation: dict[str, Any]) -> None:
    assert operation.get("summary"), "the action has no docstring"
    assert len(operation["summary"]) <= 120
    assert operation["tags"]
    if method in UNTAGGED_BODY and "requestBody" in operation:
        assert "$ref" in operation["requestBody"]["content"]["application/json"]["schema"]


@ALL
def test_an_operation_has_a_typed_answer_for_each_success(method: str, path: str, operation: dict[str, Any]) -> None:
    successes = {status: answer for status, answer in operation["responses"].items() if status < "304"}
    assert successes
    for status, answer in successes.items():
        if status in ("204", "303"):
            assert "content" not in answer
        elif "text/html" in answer["content"]:
            assert name((method, path, operation)) in OPEN, "pages are for browsers on their way"
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


def filled(path: str, operation: dict[str, Any]) -> str:
    """The path with a value of the right type for each parameter, that names nothing."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            value = "999999" if parameter["schema"]["type"] == "integer" else f"{parameter['name']}_that_is_not_there"
            path = path.replace("{" + parameter["name"] + "}", value)
    return path


@ALL
def test_a_stranger_is_refused_at_every_door(api: Api, method: str, path: str, operation: dict[str, Any]) -> None:
    """Without a token, and with three that nobody issued. No query is made: the database is not there for this test."""
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


def test_every_code_of_the_house_is_in_the_description_and_in_the_invariants() -> None:
    assert set(_codes()) == set(CODES)


def test_it_is_served_to_everybody_once_made_and_again_only_if_changed(api: Api) -> None:
    first = api.get("/v1/openapi.json")
    assert first.status == 200
    assert first.json["info"]["title"]
    again = api.get("/v1/openapi.json", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert api.request("HEAD", "/v1/openapi.json").status == 200
