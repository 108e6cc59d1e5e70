"""A team application: organizations, members, roles, invitations and totals, from an empty project in five calls."""

from typing import Any

import pytest

from accounts.models import User
from tests.projects.conftest import token_of
from tests.support.client import Answer, Api

PASSWORD = "correct horse battery"
IN_ORGANIZATION = {"organization": {"$is": "has_me"}}
BY_OWNER = {"organization.owner_id": "$user.id"}
DOCUMENT: dict[str, Any] = {
    "users": {"user": ["id", "name"]},
    "tables": {
        "organizations": {
            "columns": {
                "name": {"type": "text", "min_length": 2, "max_length": 80},
                "slug": {"type": "text", "format": "slug"},
                "owner": {"type": "user"},
            },
            "unique": [["slug"]],
            # Membership is defined only here.
            "conditions": {
                "has_me": {"$or": [{"owner_id": "$user.id"}, {"members": {"$some": {"user_id": "$user.id"}}}]},
                "invites_me": {"invitations": {"$some": {"email": "$user.email"}}},
            },
            "rules": {
                "user": {
                    "read": {"where": {"$or": [{"$is": "has_me"}, {"$is": "invites_me"}]}},
                    "insert": {"set": {"owner_id": "$user.id"}},
                    "update": {"where": {"owner_id": "$user.id"}, "columns": ["name"]},
                }
            },
        },
        "invitations": {
            "columns": {
                "organization": {"type": "reference", "to": "organizations", "on_delete": "cascade"},
                "email": {"type": "text", "format": "email"},
            },
            "unique": [["organization", "email"]],
            "rules": {
                "user": {
                    "read": {"where": {"$or": [{"email": "$user.email"}, BY_OWNER]}},
                    "insert": {"check": BY_OWNER},
                    "delete": {"where": {"$or": [{"email": "$user.email"}, BY_OWNER]}},
                }
            },
        },
        "members": {
            "columns": {
                "organization": {"type": "reference", "to": "organizations", "on_delete": "cascade"},
                "user": {"type": "user"},
                "role": {"type": "enum", "values": ["member", "admin"], "default": "member"},
            },
            "unique": [["organization", "user"]],
            "rules": {
                "user": {
                    "read": {"where": IN_ORGANIZATION},
                    "insert": {
                        "set": {"user_id": "$user.id", "role": "member"},
                        "check": {"organization": {"$is": "invites_me"}},
                    },
                    "update": {"where": BY_OWNER, "columns": ["role"]},
                    "delete": {"where": {"$or": [{"user_id": "$user.id"}, BY_OWNER]}},
                }
            },
        },
        "deals": {
            "columns": {
                "organization": {"type": "reference", "to": "organizations", "on_delete": "cascade"},
                "title": {"type": "text"},
                "stage": {"type": "enum", "values": ["open", "won", "lost"], "default": "open"},
                "value": {"type": "decimal", "precision": 12, "scale": 2, "min": "0.00"},
                "starts_on": {"type": "date", "null": True},
                "ends_on": {"type": "date", "null": True},
                "owner": {"type": "user"},
            },
            "checks": {
                "ends_later": {"$or": [{"starts_on": None}, {"ends_on": None},
                                       {"ends_on": {"$gte": {"$column": "starts_on"}}}]}
            },
            "rules": {
                "user": {
                    "read": {"where": IN_ORGANIZATION},
                    "insert": {"set": {"owner_id": "$user.id"}, "check": IN_ORGANIZATION},
                    "update": {"where": {"owner_id": "$user.id"}, "check": IN_ORGANIZATION},
                }
            },
        },
    },
}  # fmt: skip


class Application:
    """An empty project after its setup calls, and three people who use it."""

    def __init__(self, api: Api, account: str) -> None:
        self.api = api
        self.environment: str | None = None
        self.setup_calls = 0
        made = self._set_up("POST", "/v1/projects", account, {"name": "Team", "region": "us-east-1"})
        [self.environment] = [each["id"] for each in made["environments"] if each["name"] == "production"]
        self._set_up("PUT", "/v1/schema", account, {"document": DOCUMENT})
        self.tokens: dict[str, str] = {}
        self.users: dict[str, str] = {}
        for name in ("Ada", "Bob", "Eve"):
            user = {"email": f"{name}@team.example", "password": PASSWORD, "name": name}
            self.users[name] = self._set_up("POST", "/v1/users", account, user)["id"]
            grant = {"grant_type": "password", "email": user["email"], "password": PASSWORD}
            signed_in = api.post("/v1/auth/token", json=grant, environment=self.environment)
            self.tokens[name] = signed_in.json["access_token"]

    def _set_up(self, method: str, path: str, token: str, body: Any) -> Any:
        self.setup_calls += 1
        answer = self.api.request(method, path, token=token, json=body, environment=self.environment)
        assert answer.status < 300, answer.json
        return answer.json

    def call(self, who: str, method: str, path: str, body: Any = None) -> Answer:
        return self.api.request(method, f"/v1{path}", token=self.tokens[who], json=body)

    def ok(self, who: str, method: str, path: str, body: Any = None) -> Any:
        answer = self.call(who, method, path, body)
        assert answer.status < 300, answer.json
        return answer.json


@pytest.mark.django_db(databases="__all__")
def test_a_team_works_together(api: Api, django_user_model: type[User]) -> None:
    app = Application(api, token_of(django_user_model.objects.create(email="owner@team.example")))
    assert app.setup_calls <= 6

    # Ada founds an organization and invites Bob, in one transaction.
    batch = app.ok("Ada", "POST", "/batch", {"operations": [
        {"op": "insert", "table": "organizations", "values": {"name": "Acme", "slug": "acme"}, "name": "org"},
        {"op": "insert", "table": "invitations",
         "values": {"organization_id": {"$ref": "org.id"}, "email": "bob@team.example"}},
    ]})  # fmt: skip
    org = batch["results"][0]["row"]["id"]
    assert app.ok("Eve", "GET", "/rows/organizations")["data"] == []
    refused = app.call("Eve", "POST", "/rows/members", {"organization_id": org})
    assert (refused.status, refused.error) == (422, "validation_failed")

    # Bob accepts: he becomes a member and the invitation goes, or neither.
    [invitation] = app.ok("Bob", "GET", "/rows/invitations")["data"]
    app.ok("Bob", "POST", "/batch", {"operations": [
        {"op": "insert", "table": "members", "values": {"organization_id": org}, "name": "me"},
        {"op": "delete", "table": "invitations", "id": invitation["id"]},
    ]})  # fmt: skip
    assert [each["name"] for each in app.ok("Bob", "GET", "/rows/organizations")["data"]] == ["Acme"]
    members = app.ok("Ada", "GET", "/rows/members?with=user")["data"]
    assert [each["user"] for each in members] == [{"id": app.users["Bob"], "name": "Bob"}]
    app.ok("Ada", "PATCH", f"/rows/members/{members[0]['id']}", {"role": "admin"})
    assert app.call("Bob", "PATCH", f"/rows/members/{members[0]['id']}", {"role": "member"}).status == 404

    # Both have deals, and see the totals of the team.
    for who, stage, value in (("Ada", "won", "10.50"), ("Bob", "won", "2.00"), ("Bob", "open", "7.25")):
        app.ok(who, "POST", "/rows/deals", {"organization_id": org, "title": "D", "stage": stage, "value": value})
    totals = {"group": ["stage"], "count": True, "sum": ["value"], "order": "stage"}
    for who in ("Ada", "Bob"):
        assert app.ok(who, "POST", "/rows/deals/aggregate", totals)["data"] == [
            {"stage": "open", "count": 1, "sum_value": "7.25"},
            {"stage": "won", "count": 2, "sum_value": "12.50"},
        ]
    assert app.ok("Eve", "POST", "/rows/deals/aggregate", totals)["data"] == []
    wrong = {"organization_id": org, "title": "D", "value": "-1.00", "starts_on": "2026-02-01", "ends_on": "2026-01-01"}
    assert app.call("Bob", "POST", "/rows/deals", wrong).fields["value"] == "out_of_range"
    late = app.call("Bob", "POST", "/rows/deals", wrong | {"value": "1.00"})
    assert set(late.fields.values()) == {"check_failed"}

    # A former member of the team sees nothing of it.
    app.ok("Ada", "DELETE", f"/rows/members/{members[0]['id']}")
    assert app.ok("Bob", "GET", "/rows/deals")["data"] == []
    assert app.ok("Bob", "POST", "/rows/deals/aggregate", {"count": True})["data"] == [{"count": 0}]


def test_its_rules_say_once_who_is_a_member() -> None:
    assert str(DOCUMENT).count("{'members': {'$some': {'user_id': '$user.id'}}}") == 1
    assert str(DOCUMENT).count("'members': {'$") == 1
