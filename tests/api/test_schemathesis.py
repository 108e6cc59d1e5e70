"""The running service against its own description: no 5xx, and no answer that the description does not have.

schemathesis makes the calls, as the demo's owner, with a key and anonymously. Bounded: a fixed seed and few examples, so
that it fits the suite; `-m slow` runs it long.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
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

from platform_site.identity.callers import ENVIRONMENT_SCOPES
from tests.support import response_invariants
from tests.support.service import Up

pytestmark = [pytest.mark.served, pytest.mark.timeout(600)]

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
LEFT_ALONE = {"/v1/auth/revoke", "/v1/auth/sessions/{session_id}", "/v1/changes"}
"""What ends the session that the test itself uses, and a response that has no end."""


@pytest.fixture
def callers(served: Up) -> Iterator[dict[str, dict[str, str]]]:
    """The headers of the demo's owner, of a key, and of an anonymous caller, in a project that may be changed: the description's
    examples bear the names of what the demo has."""
    account = served.facts["account"]
    body = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    with httpx.Client(base_url=f"{served.base_url}/v1", timeout=60) as client:
        token = client.post("/auth/token", json=body).raise_for_status().json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
        project = client.post("/projects", json={"name": "Taken apart"}).raise_for_status().json()
        environments = {each["name"]: each["id"] for each in project["environments"]}
        key = client.post(
            "/keys",
            json={"name": "all", "scopes": sorted(ENVIRONMENT_SCOPES)},
            headers={"X-Environment": environments["production"]},
        ).raise_for_status()
        yield {
            "owner": {"Authorization": f"Bearer {token}", "X-Environment": environments["development"]},
            "key": {"Authorization": f"Bearer {key.json()['secret']}"},
            "nobody": {},
        }
        client.delete(f"/projects/{project['id']}").raise_for_status()


ECHO = "export default (input: any, ctx: any) => { if (input.throw) throw input; return [input, ctx.caller.kind] }"


def things(served: Up, headers: dict[str, str]) -> dict[str, list[str]]:
    """Path parameters that lead somewhere: the names of functions, and the ids of runs of the first."""
    with httpx.Client(base_url=f"{served.base_url}/v1", headers=headers, timeout=60) as client:
        for name in ("echo", "echo-too"):
            assert client.put(f"/functions/{name}", json={"source": ECHO}).status_code in (200, 201)
        bodies = ({"input": {"a": 1}}, {"input": {"throw": True}}, {"async": True})
        runs = [client.post("/functions/echo/invoke", json=body).json()["run_id"] for body in bodies]
    return {"name": ["echo", "echo-too", "echo"], "run_id": runs}


def lead_somewhere(operation: Any, known: dict[str, list[str]], number: int) -> dict[str, str]:
    """For all but every fourth call of a function, what to put into its path. Names that are made up find no function:
    nothing behind the name would ever be called. What deploys and deletes keeps to names that are made up."""
    is_ours = operation.path.startswith("/v1/functions/{name}/") or (
        operation.path == "/v1/functions/{name}" and operation.method == "get"
    )
    if not is_ours or number % 4 == 3:
        return {}
    return {
        "name": known["name"][0 if "{run_id}" in operation.path else number % 3],
        "run_id": known["run_id"][number % 3],
    }


def probe(
    operation: Any, examples: int, headers: dict[str, str], known: dict[str, list[str]], statuses: set[int]
) -> None:
    """So many calls of one operation. Raises what is wrong with an answer; `statuses` takes what came."""
    numbers = count()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        for name, value in lead_somewhere(operation, known, next(numbers)).items():
            if name in case.path_parameters:
                case.path_parameters[name] = value
        response = case.call(headers=headers)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS, headers=headers)
        received = httpx.Headers([(key, value) for key, values in response.headers.items() for value in values])
        is_json = response.content and "json" in received.get("Content-Type", "")
        response_invariants.check(
            response.status_code, received, response.content, response.json() if is_json else None
        )

    one()


def run(served: Up, examples: int, who: str, callers: dict[str, dict[str, str]]) -> None:
    schema = schemathesis.openapi.from_url(f"{served.base_url}/v1/openapi.json")
    headers = callers[who]
    known = things(served, headers or callers["owner"])
    failures: list[Exception] = []
    statuses: dict[str, set[int]] = defaultdict(set)
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in LEFT_ALONE:
            continue

        try:
            probe(operation, examples, headers, known, statuses[operation.path])
        except Exception as failure:
            failure.add_note(f"{operation.method.upper()} {operation.path}")
            failures.append(failure)
    if failures:
        raise ExceptionGroup(f"{len(failures)} operations", failures)
    if who != "nobody":
        assert {200, 404} <= statuses["/v1/functions/{name}/runs"]
        assert statuses["/v1/functions/{name}/invoke"] & {200, 202}
        assert 200 in statuses["/v1/functions/{name}/runs/{run_id}"]


@pytest.mark.parametrize("who", ["owner", "key", "nobody"])
def test_the_service_does_what_its_description_says(served: Up, who: str, callers: dict[str, dict[str, str]]) -> None:
    run(served, 8 if who == "owner" else 4, who, callers)


TABLES: dict[str, Any] = {
    "lists": {"columns": {"name": {"type": "text", "max_length": 20}}},
    "tasks": {
        "columns": {
            "title": {"type": "text", "max_length": 20},
            "stars": {"type": "integer", "null": True},
            "price": {"type": "decimal", "precision": 10, "scale": 2, "default": "0.00"},
            "stage": {"type": "enum", "values": ["open", "won"], "default": "open"},
            "due_on": {"type": "date", "null": True},
            "tags": {"type": "text[]", "default": []},
            "list": {"type": "reference", "to": "lists", "null": True},
        }
    },
}


def test_tables_do_what_the_description_of_their_environment_says(
    served: Up, callers: dict[str, dict[str, str]]
) -> None:
    headers = callers["owner"]
    environment_id = headers["X-Environment"]
    with httpx.Client(base_url=f"{served.base_url}/v1", headers=headers, timeout=60) as client:
        client.put("/schema", json={"document": {"tables": TABLES}}).raise_for_status()
        rows = [{"name": f"List {number}"} for number in range(3)]
        ids = [each["id"] for each in client.post("/rows/lists", json=rows).raise_for_status().json()["data"]]
    url = f"{served.base_url}/v1/openapi.json?environment={environment_id}"
    statuses: dict[str, set[int]] = defaultdict(set)
    for result in schemathesis.openapi.from_url(url, headers=headers).get_all_operations():
        operation = result.ok()
        if operation.path.startswith("/v1/rows/"):
            probe(operation, 8, headers, {"name": ids, "run_id": ids}, statuses[operation.path])
    assert len(statuses) == 2 * 5
    assert 201 in statuses["/v1/rows/lists"]
    assert {200, 201} & statuses["/v1/rows/tasks"]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["owner", "key", "nobody"])
def test_the_service_does_what_its_description_says_for_long(
    served: Up, who: str, callers: dict[str, dict[str, str]]
) -> None:
    run(served, 400, who, callers)
