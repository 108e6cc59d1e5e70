"""A real project with a schema, and the tokens of those who work in it."""

from dataclasses import dataclass
from typing import Any

import pytest

from accounts.models import User
from projects.models import Project
from tests.projects.conftest import environment_of, key_for, make_project, token_of
from tests.support.client import Answer, Api


@dataclass(frozen=True)
class Tracker:
    """The production environment of a project, used over the API by a given user."""

    api: Api
    project: Project
    environment_id: str
    tokens: dict[str, str]
    users: dict[str, str]
    """The ids of alice, bob (app users) by name."""

    def call(self, who: str, method: str, path: str, **how: Any) -> Answer:
        return self.api.request(method, f"/v1{path}", token=self.tokens[who], environment=self.environment_id, **how)

    def get(self, who: str, path: str, **how: Any) -> Answer:
        return self.call(who, "GET", path, **how)

    def post(self, who: str, path: str, json: Any, **how: Any) -> Answer:
        return self.call(who, "POST", path, json=json, **how)

    def patch(self, who: str, path: str, json: Any, **how: Any) -> Answer:
        return self.call(who, "PATCH", path, json=json, **how)

    def delete(self, who: str, path: str, **how: Any) -> Answer:
        return self.call(who, "DELETE", path, **how)

    def apply(self, document: dict[str, Any], **more: Any) -> Answer:
        """Make `document` the schema, losing whatever it loses."""
        body: dict[str, Any] = {"document": document, **more}
        answer = self.call("owner", "PUT", "/schema", json=body)
        if answer.status == 422 and answer.fields == {"confirm": "unconfirmed"}:
            body["confirm"] = [field["message"] for field in answer.json["error"]["fields"]]
            answer = self.call("owner", "PUT", "/schema", json=body)
        assert answer.status == 200, answer.json
        return answer


@pytest.fixture
def make_tracker(api: Api, settings: Any) -> Any:
    """Makes a project and its cast: `owner` and `viewer` (accounts), `alice` and `bob` (app users), `key`, `reader`
    (a key that may only read rows), `operator` (a key that no rule binds). Rate limits are out of reach."""
    settings.RATE_LIMIT_FACTOR = 1000

    def make(document: dict[str, Any], name: str = "Tracker", *, users: tuple[str, ...] = ("alice", "bob")) -> Tracker:
        from accounts import audit
        from accounts.users import service as user_service
        from projects.directory.environments import environment_ref
        from projects.models import Member
        from rows.migrate import service as schema_service

        def account(who: str, pool_id: str | None = None) -> User:
            return user_service.create_user(
                pool_id=pool_id, email=f"{who}@{name.lower()}.example", password=None, name=who, actor=audit.SYSTEM
            )

        owner, viewer = account("owner"), account("viewer")
        project = make_project(owner, name)
        Member.objects.create(project=project, user=viewer, role=Member.Role.VIEWER)
        environment_id = environment_of(project).pk
        people = {who: account(who, environment_id) for who in users}
        tracker = Tracker(
            api,
            project,
            environment_id,
            {
                "owner": token_of(owner),
                "viewer": token_of(viewer),
                "key": key_for(environment_id, "rows:read", "rows:write", "schema:read"),
                "reader": key_for(environment_id, "rows:read"),
                "operator": key_for(environment_id, "rows:read", "rows:write", "rows:bypass_rules"),
                **{who: token_of(user, environment_id) for who, user in people.items()},
            },
            {who: user.pk for who, user in people.items()},
        )
        environment = environment_ref(environment_id)
        assert environment is not None
        schema_service.change(environment, document, actor=audit.Actor.of(owner))
        return tracker

    return make
