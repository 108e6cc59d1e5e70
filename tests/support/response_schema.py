"""Checks every successful response of every test against the OpenAPI description: status, body and headers.

A generated client knows the description alone: an undescribed response is a crash, or a lost value, in another
program. tests/support/client.py checks each call; tests/api/test_schemathesis.py checks generated calls.
Errors have one envelope, which tests/support/response_invariants.py knows.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema_rs
from django.conf import settings

from platform_site.http.openapi.description import _document

URLCONF = "platform_site.urls"
TOLD = ("ETag", "Idempotency-Replayed", "Location", "X-Request-Id")
"""Headers that a client reads, and so has to know of."""


@cache
def _description() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(_document(URLCONF)[0])
    return read


@cache
def _addresses() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """Literal paths before those with a parameter in the same place."""
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), item)
        for path, item in sorted(_description()["paths"].items(), key=lambda each: each[0].replace("{", "~"))
    ]


@cache
def _operation(method: str, path: str) -> dict[str, Any] | None:
    for pattern, item in _addresses():
        if pattern.fullmatch(path):
            found: dict[str, Any] | None = item.get(method.lower())
            return found
    return None


@cache
def _validator(schema: str) -> Any:
    whole = json.loads(schema) | {"components": _description()["components"]}
    return jsonschema_rs.validator_for(whole)


def check(method: str, path: str, status: int, headers: Mapping[str, str], body: Any) -> None:
    """Fail unless the description has this answer. `body` is the parsed JSON, None where there is none."""
    if status >= 400 or settings.ROOT_URLCONF != URLCONF:
        return
    operation = _operation("GET" if method == "HEAD" else method, path.partition("?")[0])
    if operation is None:
        return
    name = f"{operation['operationId']} {status}"
    described = operation["responses"].get(str(status), operation["responses"].get("default"))
    assert described is not None, f"{name} is not described"
    missing = [header for header in TOLD if header in headers and header not in described.get("headers", {})]
    assert not missing, f"{name} has headers that are not described: {missing}"
    content = described.get("content", {}).get("application/json")
    if body is None or content is None:
        return
    wrong = next(_validator(json.dumps(content["schema"], sort_keys=True)).iter_errors(body), None)
    assert wrong is None, f"{name}: {wrong.message} at {'.'.join(map(str, wrong.instance_path))}"
