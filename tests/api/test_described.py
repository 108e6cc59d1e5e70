"""What tests.support.response_schema finds in an answer that the API's description does not have."""

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.support import response_schema

RUN: dict[str, Any] = {"run_id": "run_1", "status": "succeeded", "output": None, "duration_ms": 1}
PATH = "/v1/functions/sum/invoke"


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body", "complaint"),
    [
        ("POST", PATH, 200, {}, RUN, None),
        ("POST", f"{PATH}?x=1", 202, {"Location": "/v1/…"}, {"run_id": "run_1", "status": "running"}, None),
        ("POST", PATH, 203, {}, RUN, "invokeFunction 203 is not described"),
        ("POST", PATH, 200, {"ETag": '"1"'}, RUN, "not described: ['ETag']"),
        ("POST", PATH, 200, {}, RUN | {"status": "queued"}, "at status"),
        ("POST", PATH, 405, {}, None, None),
        ("OPTIONS", PATH, 204, {}, None, None),
        ("GET", "/v1/nothing", 299, {}, None, None),
        ("HEAD", "/v1/functions/sum", 299, {}, None, "getFunction 299"),
        ("POST", "/v1/rows/tasks/query", 200, {}, {"data": []}, "next_cursor"),
    ],
)
def test_an_answer_that_is_not_described_is_named(
    method: str, path: str, status: int, headers: dict[str, str], body: Any, complaint: str | None
) -> None:
    expected: AbstractContextManager[Any] = nullcontext()
    if complaint is not None:
        expected = pytest.raises(AssertionError, match=re.escape(complaint))
    with expected:
        response_schema.check(method, path, status, headers, body)
