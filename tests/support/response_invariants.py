"""Invariants of every response under /v1. The `api` fixture checks them for each request of every test.

An error response (400 or more) has the common envelope with a known code and the request's id, and reveals no
internals: no traceback, no SQL, no names of tables or constraints, no text of PostgreSQL or a library.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson
from django.apps import apps

from functions.execution.custom_response import CONTENT_POLICY

CODES = {
    "invalid_request": {400, 408, 431},
    "invalid_grant": {400},
    "unauthorized": {401},
    "forbidden": {403},
    "project_suspended": {403},
    "not_found": {404},
    "method_not_allowed": {405},
    "conflict": {409},
    "precondition_failed": {412},
    "payload_too_large": {413},
    "unsupported_media_type": {415},
    "validation_failed": {422},
    "quota_exceeded": {422},
    "rate_limited": {429},
    "internal": {500},
    "unavailable": {503},
    "function_failed": {502},
    "function_timeout": {504},
}
WITH_FIELDS = {"validation_failed", "invalid_grant"}
ADDITIVE = {"run_id", "hint", "operation"}

_LEAKS = re.compile(
    r"""Traceback | File\ "|\.py\b | line\ \d+,\ in
    | \bpsycopg | \bdjango\b | rest_framework | \bcelery\b | \bredis\b(?!\.) | \bvalkey | site-packages | \borjson
    | \bSELECT\b.+\bFROM\b | \bINSERT\ INTO\b | \bUPDATE\b.+\bSET\b | \bDELETE\ FROM\b | \bLINE\ \d+:
    | DETAIL: | HINT: | CONTEXT: | SQLSTATE | duplicate\ key | violates\ | relation\ " | column\ " | syntax\ error\ at
    | object\ at\ 0x | <class\ ' | NoneType | Exception\b | \bKeyError | \bTypeError
    """,
    re.VERBOSE,
)


@cache
def _names_of_the_house() -> re.Pattern[str]:
    names = set()
    for model in apps.get_models():
        names.add(model._meta.db_table)
        names.update(constraint.name for constraint in model._meta.constraints)
        names.update(index.name for index in model._meta.indexes)
    return re.compile(r"\b(?:" + "|".join(sorted(re.escape(name) for name in names if "_" in name)) + r")\b")


def check(status: int, headers: Mapping[str, str], body: bytes, json: Any) -> None:
    """Fail unless this answer keeps the invariants. `headers` compare without regard to case."""
    request_id = headers.get("X-Request-Id")
    assert {"no-store", "no-cache", "public"} & set(re.split(r",\s*", headers.get("Cache-Control", ""))), (
        "not said who may keep it"
    )
    assert request_id, "an answer without X-Request-Id"
    assert headers.get("X-Content-Type-Options") == "nosniff", "an answer without nosniff"
    if status == 204:
        assert body == b"", "204 with a body"
        return
    if status < 400 or headers.get("Content-Security-Policy") == CONTENT_POLICY:  # the words of a tenant's function
        return
    assert headers["Content-Type"] == "application/json", f"{status} as {headers['Content-Type']}"
    assert isinstance(json, dict), f"{status} is no object: {body[:200]!r}"
    assert set(json) == {"error"}, f"{status} has {sorted(json)} beside the error"
    error = json["error"]
    assert set(error) - ADDITIVE - {"fields"} == {"code", "message", "request_id"}, error
    assert status in CODES[error["code"]], f"{error['code']} answered with {status}"
    assert error["request_id"] == request_id
    assert isinstance(error["message"], str)
    assert error["message"].endswith((".", "?")), "a message is a sentence"
    if "fields" in error:
        assert error["code"] in WITH_FIELDS
        assert error["fields"], "fields without a field"
    for field in error.get("fields", ()):
        assert set(field) == {"field", "code", "message"}
        assert all(isinstance(value, str) and value for value in field.values()), field
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field["code"]), field
    if error["code"] == "validation_failed":
        assert "fields" in error, "validation_failed names no field"
    if status == 401:
        assert headers["WWW-Authenticate"].startswith("Bearer")
    if status == 405:
        assert headers["Allow"]
    if status in (429, 503):
        assert int(headers["Retry-After"]) >= 1
    # The name of a field that does not exist is the client's own word.
    echoed = {
        field["field"] for field in error.get("fields", ()) if field["code"] in ("unknown_field", "unknown_parameter")
    }
    text = body.decode()
    for word in echoed:
        text = text.replace(orjson.dumps(word).decode(), '"…"')
    leak = _LEAKS.search(text) or _names_of_the_house().search(text)
    assert leak is None, f"the answer tells {leak[0]!r}: {text}"
