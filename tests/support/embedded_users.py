"""A board whose rows embed users."""

from collections.abc import Callable
from typing import Any

import pytest

from accounts import audit
from accounts.directory import user_cache
from accounts.models import User
from accounts.users import service as accounts
from platform_site.postgres import prepared
from tests.projects.conftest import publishable_key_for
from tests.rows.conftest import Tracker
from tests.support.client import Answer

MINE = {"owner_id": "$user.id"}


TABLES: dict[str, Any] = {
    "boards": {
        "columns": {"name": {"type": "text"}, "owner": {"type": "user"}},
        "rules": {"user": {"read": {}}, "editor": {"read": {}}, "anonymous": {"read": {"columns": ["name"]}}},
    },
    "cards": {
        "columns": {
            "title": {"type": "text", "null": True},
            "meta": {"type": "json", "null": True},
            "board": {"type": "reference", "to": "boards", "on_delete": "cascade"},
            "owner": {"type": "user"},
            "helper": {"type": "user", "null": True},
        },
        "rules": {
            "user": {"read": [{"columns": ["*", "-helper_id"]}, {"where": MINE}]},
            "anonymous": {"read": {}},
        },
    },
}


USERS = {"user": ["name", "id"], "server": ["id", "email", "name", "role", "created_at"], "anonymous": []}


def document(users: Any = USERS) -> dict[str, Any]:
    return {"tables": TABLES, "users": users}


class App:
    """A board of alice's, with one card of hers that bob helps with, and one of bob's that alice helps with."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker, self.users = tracker, tracker.users
        self.tokens = tracker.tokens
        self.tokens["page"] = publishable_key_for(tracker.environment_id)
        self.board = self.insert("boards", name="Red", owner_id=self.users["alice"])
        self.hers = self.insert("cards", owner_id=self.users["alice"], helper_id=self.users["bob"], board_id=self.board)
        self.his = self.insert("cards", owner_id=self.users["bob"], helper_id=self.users["alice"], board_id=self.board)

    def insert(self, table: str, **row: Any) -> str:
        made = self.tracker.post("operator", f"/rows/{table}", row)
        assert made.status == 201, made.json
        return str(made.json["id"])

    def get(self, who: str, path: str, **how: Any) -> Answer:
        answer = self.tracker.get(who, f"/rows/{path}", **how)
        assert answer.status == 200, answer.json
        return answer

    def refused(self, who: str, path: str) -> tuple[dict[str, str], str]:
        answer = self.tracker.get(who, f"/rows/{path}")
        assert answer.status == 422, answer.json
        return answer.fields, answer.json["error"]["fields"][0]["message"]

    def user(self, who: str, **fields: Any) -> None:
        """Change what rows may show of a user as the service does, anything else in the table."""
        if user_cache.MUTABLE & fields.keys() and fields.keys() <= user_cache.MUTABLE:
            accounts.change_user(User.objects.get(pk=self.users[who]), actor=audit.SYSTEM, **fields)
        else:
            assert User.objects.filter(pk=self.users[who]).update(**fields) == 1

    def databases_read(self, monkeypatch: pytest.MonkeyPatch, who: str, path: str) -> tuple[Answer, list[str]]:
        """The response to a GET, and the database of each statement for it."""
        asked: list[str] = []
        run: Callable[..., Any] = prepared.execute

        def counting(wrapper: Any, *rest: Any) -> Any:
            asked.append(wrapper.alias)
            return run(wrapper, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(prepared, "execute", counting)
            return self.get(who, path), asked

    def keep_users(self, monkeypatch: pytest.MonkeyPatch, who: str, path: str) -> bytes:
        """Have this process keep the users of a GET. Its body."""
        for _ in range(5):  # the pool, a version, the version's users
            answer, asked = self.databases_read(monkeypatch, who, path)
            if "default" not in asked:
                return answer.body
        raise AssertionError("the users are read again each time")
