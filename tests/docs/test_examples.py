"""Every example of the API's description does something when it is sent to the demo."""

import datetime as dt
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from platform_site import demo
from platform_site.embedded.data_dir import Layout
from platform_site.http.openapi import description
from tests.support.client import Api
from tests.support.openapi import operations

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

BODIES = description.examples()["bodies"]
NEED_A_LINK = {
    "confirmSignUp", "verifyEmail", "confirmPasswordReset", "confirmEmailChange", "acceptInvitation",
    "acceptMemberInvitation",
}  # fmt: skip
"""What their token came with was sent by email."""
STREAMS = {"streamChanges"}
"""Have no single response: tests/rows/test_changes.py."""
NEED_A_PROVIDER = {"linkIdentity"}
"""What their code stands for is a person at an identity provider."""
OF_A_USER = {
    "linkIdentity",
    "updateMe",
    "revokeSession",
    "requestEmailChange",
    "insertRows",
    "writeBatch",
    "updateRow",
    "deleteMe",
}
SAMPLE = "01k2m4c8e0f1a9b7r5t3v6w8x2"


def test_each_operation_with_a_body_has_an_example_and_no_other_has_one() -> None:
    with_body = {
        operation["operationId"]
        for _, _, operation in operations()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert set(BODIES) == with_body


@pytest.mark.exhaustive
def test_every_example_works_on_the_demo(api: Api, tmp_path: Path, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1000
    facts = demo.complete(Layout(tmp_path), base_url="http://testserver")
    production, [ada, _] = facts["environments"]["production"], facts["app_users"]

    def token(person: dict[str, Any], environment: str | None = None) -> str:
        grant = {"grant_type": "password", "email": person["email"], "password": person["password"]}
        return str(api.post("/v1/auth/token", json=grant, environment=environment).json["access_token"])

    tokens = {"account": token(facts["account"]), "user": token(ada, production)}
    [task] = api.get("/v1/rows/tasks?limit=1", token=tokens["user"]).json["data"]
    real = {
        f"tsk_{SAMPLE}": task["id"],
        f"lst_{SAMPLE}": task["list_id"],
        f"usr_{SAMPLE}": ada["id"],
        f"env_{SAMPLE}": production,
        "correct horse battery staple": ada["password"],
        "2026-11-01T00:00:00Z": (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).isoformat(),
    }
    known = {"table": "tasks", "row_id": task["id"], "name": "sum", "environment_id": production}
    known |= {"project_id": facts["project_id"]}
    branches: dict[str, dict[str, str]] = {}
    places = {operation["operationId"]: (method, path, operation) for method, path, operation in operations()}

    for name, body in BODIES.items():
        if name in STREAMS:
            continue
        method, path, operation = places[name]
        needed = [each for each in operation.get("parameters", ()) if each["in"] == "query" and each.get("required")]
        query = urlencode({each["name"]: each["example"] for each in needed})
        text = json.dumps(body)
        for sample, value in real.items():
            text = text.replace(sample, value)
        answer = api.request(
            method.upper(),
            f"{path.format(**{**known, **branches.get(name, {})})}?{query}",
            json=json.loads(text),
            token=None
            if name in ("createToken", "signUp", *NEED_A_LINK)
            else tokens["user" if name in OF_A_USER else "account"],
            environment=production,
        )
        if name in NEED_A_LINK:
            assert answer.fields == {"token": "unknown"}, (name, answer.json)
            continue
        if name in NEED_A_PROVIDER:
            assert answer.fields == {"code": "unknown"}, (name, answer.json)
            continue
        assert 200 <= answer.status < 300, (name, answer.status, answer.json)
        made = answer.json.get("id") if isinstance(answer.json, dict) and method.upper() == "POST" else None
        if name == "planConfig":
            real[f"pln_{SAMPLE}"] = answer.json["plan"]
        match name:
            case "createBranch":
                branches["resetBranch"] = {"environment_id": answer.json["id"]}
            case "createWebhook":
                known["webhook_id"] = made
            case "createIdentityProvider":
                known["provider_id"] = made
            case "createUser" | "createMember":
                known["user_id"] = answer.json.get("user_id") or made
