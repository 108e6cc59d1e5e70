"""The running service against its own description: no 5xx, and no answer that the description does not have.

schemathesis makes the calls, as the demo's owner, with its key and as nobody. Bounded: a fixed seed and few examples, so
that it fits the suite; `-m slow` runs it long.
"""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests import invariants
from tests.serving import Up

pytestmark = [pytest.mark.served, pytest.mark.timeout(600)]

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
LEFT_ALONE = {"/v1/auth/revoke", "/v1/auth/sessions/{session_id}"}
"""What ends the session that the test itself uses."""


def owner(served: Up) -> dict[str, str]:
    account = served.facts["account"]
    body = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    answer = httpx.post(f"{served.base_url}/v1/auth/token", json=body)
    answer.raise_for_status()
    return {
        "Authorization": f"Bearer {answer.json()['access_token']}",
        "X-Environment": served.facts["environments"]["development"],
    }


def callers(served: Up) -> dict[str, dict[str, str]]:
    return {"owner": owner(served), "key": {"Authorization": f"Bearer {served.facts['server_key']}"}, "nobody": {}}


def run(served: Up, examples: int, who: str) -> None:
    schema = schemathesis.openapi.from_url(f"{served.base_url}/v1/openapi.json")
    headers = callers(served)[who]
    failures: list[Exception] = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in LEFT_ALONE:
            continue

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def probe(case: Any) -> None:
            response = case.call(headers=headers)
            case.validate_response(response, checks=CHECKS, headers=headers)
            received = httpx.Headers([(key, value) for key, values in response.headers.items() for value in values])
            is_json = response.content and "json" in received.get("Content-Type", "")
            invariants.check(response.status_code, received, response.content, response.json() if is_json else None)

        try:
            probe()
        except Exception as failure:
            failure.add_note(f"{operation.method.upper()} {operation.path}")
            failures.append(failure)
    if failures:
        raise ExceptionGroup(f"{len(failures)} operations", failures)


@pytest.mark.parametrize("who", ["owner", "key", "nobody"])
def test_the_service_does_what_its_description_says(served: Up, who: str) -> None:
    run(served, 12 if who == "owner" else 5, who)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["owner", "key", "nobody"])
def test_the_service_does_what_its_description_says_for_long(served: Up, who: str) -> None:
    run(served, 400, who)
