"""The operations of the OpenAPI document."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import drf_spectacular.validation
import jsonschema_rs

from platform_site.http.openapi.description import _document

METHODS = ("get", "post", "put", "patch", "delete")


OPEN = {
    "POST /v1/auth/token": "signs in",
    "GET /.well-known/jwks.json": "public keys",
    "GET /v1/auth/authorize": "begins a sign-in by another provider",
    "GET /v1/auth/callback/{provider_id}": "where the provider sends the browser back",
    "POST /v1/auth/callback/{provider_id}": "the same, by a form",
    "GET /v1/auth/providers": "shows the sign-in buttons of an application before sign-in",
    "POST /v1/auth/signup": "asks for an account",
    "POST /v1/auth/signup/confirm": "opened by the token of an email",
    "POST /v1/auth/invitation/accept": "opened by the token of an email",
    "POST /v1/auth/member-invitation/accept": "opened by the token of an email",
    "POST /v1/auth/password-reset": "used by people who cannot sign in",
    "POST /v1/auth/password-reset/confirm": "opened by the token of an email",
    "POST /v1/auth/email-verification/confirm": "opened by the token of an email",
    "POST /v1/auth/email-change/confirm": "opened by the token of an email",
    "POST /v1/inbound/{token}": "the URL contains the token: providers send no headers of the platform",
    "GET /v1/inbound/{token}": "as above",
}
"""The operations that need no token, each with its reason. The list only shrinks, but for sign-up, OAuth and inbound
endpoints."""


@cache
def description() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(_document("platform_site.urls")[0])
    return read


@cache
def _openapi_3_1() -> Any:
    file = Path(drf_spectacular.validation.__file__).with_name("openapi_3_1_schema.json")
    return jsonschema_rs.validator_for(json.loads(file.read_text()))


def validate_description(document: dict[str, Any]) -> None:
    """As `validate_schema` of drf-spectacular with the same file; that one takes three seconds for a description."""
    assert document["openapi"].startswith("3.1")
    _openapi_3_1().validate(document)


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, item in description()["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def name(operation: tuple[str, str, dict[str, Any]]) -> str:
    return f"{operation[0]} {operation[1]}"


def filled(path: str, operation: dict[str, Any]) -> str:
    """The path with a value of the right type for each parameter, that names nothing."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            value = "999999" if parameter["schema"]["type"] == "integer" else f"{parameter['name']}_that_is_not_there"
            path = path.replace("{" + parameter["name"] + "}", value)
    return path
