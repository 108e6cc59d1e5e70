"""The responses of every operation are those that were recorded, but for ids, times and secrets.

Each operation is called with success, with the same request again, without a token, and by a stranger; those with a body
also with an unknown field. After an intended change, record them again and review the difference:

    RECORD=1 .venv/bin/python -m pytest tests/api/test_recorded_responses.py
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.accounts.conftest import _mail_server, postbox  # noqa: F401 - fixtures
from tests.accounts.oauth.conftest import loopback as loopback
from tests.faults.lost_connections import world as world
from tests.faults.operations import CALLS, TAKES_KEY, Call, World
from tests.support.client import Answer

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.timeout(600),
]

RECORDED: Final = Path(__file__).parent / "recorded_responses.json"
HEADERS: Final = (
    "Allow",
    "Cache-Control",
    "Content-Disposition",
    "Content-Type",
    "ETag",
    "Idempotency-Replayed",
    "Location",
    "Retry-After",
    "WWW-Authenticate",
)
UNSTABLE: Final = {"duration_ms", "prefix", "secret"}
"""Fields that differ each time."""
LATER: Final = {"listLogEntries", "listDeliveries"}
"""Lists to which a background process adds; only the first entry's fields are compared."""
PATTERNS: Final = (
    (r"eyJ[\w-]+\.[\w-]+\.[\w-]+", "<token>"),
    # 256 bits in base64url, of which one in 1,500 has no digit, and some contain what looks like an id or a date.
    (r"(?<![\w-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{43}(?![\w-])", "<secret>"),
    (r"\bcfg_[a-z2-7]{26}\b", "<secret>"),  # a hash, which now and then has an id's letters alone
    (r"\b([a-z]{2,5}_)[0-9a-hjkmnp-tv-z]{26}\b", r"<\1>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "<time>"),
    (r"\d{4}-\d\d-\d\d", "<date>"),
    (r"(?i)(?<=-)[0-9a-f]{10}\b", "<hex>"),
    (r"\bt[0-9a-f]{10}\b", "t<hex>"),
    (r'; did you mean "[a-z-]*<hex>"\?', "."),  # names that differ in random digits resemble each other now and then
    (r"(127\.0\.0\.1|localhost|\[::1\]):\d+", "<host>"),
    (r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])[\w-]{20,}={0,2}", "<secret>"),
)


def normalised(value: Any, field: str = "") -> Any:
    match value:
        case dict():
            return {normalised(key): normalised(each, key) for key, each in sorted(value.items())}
        case list():
            return [normalised(each) for each in value]
        case str() | int() if field in UNSTABLE:
            return f"<{field}>"
        case str():
            for pattern, name in PATTERNS:
                value = re.sub(pattern, name, value)
            return value
    return value


@pytest.mark.parametrize(
    "value",
    [
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ",
        "ABCDEFGHIJKLM-0123456789-nopqrstuvwxyz-ABCD",
        "ABCDEFGHIJ-2026-11-29-abcdefghijklmnopqrstu",
    ],
)
def test_each_random_value_is_recorded_alike(value: str) -> None:
    assert normalised(value) == "<secret>"


def cases(world: World, stranger: str, operation: str) -> Iterator[tuple[str, Call]]:
    """Requests that are refused come first: they change nothing."""
    call = CALLS[operation](world)
    if call.token is not None:
        yield "without a token", replace(call, token=None)
        yield "by a stranger", replace(call, token=stranger)
    if isinstance(call.body, dict):
        keyed = {"Idempotency-Key": "of another request"} if operation in TAKES_KEY else {}
        yield "unknown field", replace(call, body={**call.body, "unknown": 1}, headers={**call.headers, **keyed})
    yield "done", call
    yield "done again", call


def recorded(operation: str, answer: Answer) -> dict[str, Any]:
    headers = {name: normalised(answer.headers[name]) for name in HEADERS if name in answer.headers}
    if answer.json is None:
        body = normalised(answer.body.decode())
    elif operation in LATER and "data" in answer.json:
        body = sorted(answer.json["data"][0]) if answer.json["data"] else []
    else:
        body = normalised(answer.json)
    return {"status": answer.status, "headers": headers, "body": body}


def test_responses_are_those_that_were_recorded(world: World) -> None:
    stranger = world.member()[1]
    found: dict[str, Any] = {}
    for operation in CALLS:
        for case, call in cases(world, stranger, operation):
            found[f"{operation}: {case}"] = recorded(operation, call.send(world.api))
            if case == "done again" and found[f"{operation}: done again"] == found[f"{operation}: done"]:
                found[f"{operation}: done again"] = "the same"
    if os.environ.get("RECORD"):
        lines = (f"{json.dumps(name)}: {json.dumps(found[name], ensure_ascii=False)}" for name in sorted(found))
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    expected = json.loads(RECORDED.read_text())
    changed = {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)}
    assert {name: found.get(name) for name in changed} == {name: expected.get(name) for name in changed}
