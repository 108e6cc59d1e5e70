"""A project whose production environment has something of every part, with secrets in each."""

from typing import Any

import pytest
from django.test import override_settings

from accounts import audit
from accounts.models import User
from accounts.oauth import providers, redirects
from accounts.registration import pool_settings
from projects.models import Environment, Project
from tests.projects.conftest import (  # noqa: F401 - fixtures
    _no_schema_is_left,
    alice,
    bob,
    charlie,
    make_account,
    production,
    project,
    token_of,
)
from tests.support.client import Answer, Api
from tests.support.project_crashes import mortal_environment, mortal_process, run  # noqa: F401 - fixtures

SECRETS = ("F0nct10nS3cret", "Pr0v1d3rS3cret", "B0Tok3nPart", "qu3ryS3cret")
SCHEMA: dict[str, Any] = {
    "tables": {
        "notes": {
            "columns": {"title": {"type": "text"}, "done": {"type": "boolean", "default": False}},
            "rules": {"user": {"read": {}}, "server": {"read": {}}},
        }
    }
}
SOURCE = "export default () => 1;\n"


class Configured:
    """The environment, and calls as its owner."""

    def __init__(self, api: Api, owner: User, environment: Environment) -> None:
        self.api, self.owner, self.id = api, owner, environment.pk
        self.token = token_of(owner)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        given = {} if body is None else {"json": body}
        answer = self.api.request(method, path, token=self.token, environment=self.id, **given)
        assert answer.status in (200, 201), answer.json
        return answer.json

    def config(self, query: str = "") -> Any:
        return self.call("GET", "/v1/config" + query)

    def ask(self, body: Any, token: str | None = None) -> Answer:
        token = token or self.token
        environment = self.id if token == self.token else None
        return self.api.post("/v1/config/plan", token=token, environment=environment, json=body)

    def plan(self, **parts: Any) -> Any:
        answer = self.ask({"config": parts})
        assert answer.status == 200, answer.json
        return answer.json

    def apply(self, plan: Any, token: str | None = None, **more: Any) -> Answer:
        """Apply a plan with all that it wants confirmed."""
        body = {"plan": plan["plan"], "confirm": plan["confirm"], **more}
        token = token or self.token
        environment = self.id if token == self.token else None
        return self.api.post("/v1/config/apply", token=token, environment=environment, json=body)

    def applied(self, **parts: Any) -> Any:
        answer = self.apply(self.plan(**parts))
        assert answer.status == 200, answer.json
        assert answer.json["status"] == "applied"
        return answer.json


READ = ("schema:read", "functions:read", "webhooks:read", "users:manage", "environments:read", "environments:write")
WRITE = ("schema:write", "functions:deploy", "webhooks:write", "rows:read")


@pytest.fixture
def configured(api: Api, alice: User, project: Project, production: Environment) -> Any:  # noqa: F811
    made = Configured(api, alice, production)
    made.call("PUT", "/v1/schema", {"document": SCHEMA})
    function = {
        "source": SOURCE,
        "secrets": {"API_TOKEN": SECRETS[0]},
        "allowed_hosts": ["b.example.com", "a.example.com"],
    }
    made.call("PUT", "/v1/functions/digest", function)
    with override_settings(OUTBOUND_ALLOWED_NETWORKS=["127.0.0.0/8"]):
        url = f"http://127.0.0.1:8080/services/T0/{SECRETS[2]}00000000?key={SECRETS[3]}"
        made.call("POST", "/v1/webhooks", {"url": url, "events": ["notes.update", "notes.insert"]})
    made.call("PATCH", f"/v1/projects/{project.pk}/environments/{made.id}", {"allowed_origins": ["https://a.example"]})
    pool_settings.change_settings(made.id, actor=audit.SYSTEM, sign_up="open", app_name="Notes")
    redirects.replace(made.id, ["https://a.example/done"], actor=audit.SYSTEM)
    providers.add(
        made.id, name="acme", client_id="notes", client_secret=SECRETS[1], actor=audit.SYSTEM,
        **{name: f"https://id.example/{name}" for name in ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")},
        profile_fields={"subject": "id"},
    )  # fmt: skip
    return made


@pytest.fixture
def receivers_here(settings: Any) -> None:
    """Webhooks may have URLs of this machine."""
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]


def name_webhook_and_add_row(environment: Configured) -> None:
    [webhook] = environment.config("?parts=webhooks")["config"]["webhooks"]
    environment.call("PATCH", f"/v1/webhooks/{webhook}", {"name": "crm"})
    environment.call("POST", "/v1/rows/notes", {"title": "Tea"})


class Pair:
    """Production, and a branch of it or development."""

    def __init__(self, production: Configured, branch: Configured) -> None:  # noqa: F811
        self.production, self.branch = production, branch

    def ask(self, into: Configured, source: Configured, **more: Any) -> Answer:
        body = {"from": source.id, **more}
        return into.api.post("/v1/config/plan", token=into.token, environment=into.id, json=body)

    def plan(self, *include: str, **more: Any) -> Any:
        answer = self.ask(self.production, self.branch, include=[*include], **more)
        assert answer.status == 200, answer.json
        return answer.json

    def back(self, *include: str) -> Any:
        answer = self.ask(self.branch, self.production, include=[*include])
        assert answer.status == 200, answer.json
        return answer.json

    def merge(self, *include: str, **more: Any) -> Any:
        plan = self.plan(*include)
        answer = self.production.apply(plan, **more)
        assert answer.status == 200, answer.json
        return plan


def change_schema(environment: Configured, change: Any, **more: Any) -> None:
    document = environment.config("?parts=schema")["config"]["schema"]
    change(document["tables"])
    environment.call("PUT", "/v1/schema", {"document": document, **more})


def schema_of(environment: Configured) -> Any:
    return environment.config("?parts=schema")["config"]["schema"]["tables"]


def rename_title(tables: Any) -> None:
    columns = tables["notes"]["columns"]
    tables["notes"]["columns"] = {"heading": {**columns["title"], "renamed_from": "title"}, "done": columns["done"]}


def paths(plan: Any) -> set[str]:
    return {change["operation"] or change["path"] for change in plan["changes"]}
