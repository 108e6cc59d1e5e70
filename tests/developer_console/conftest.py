"""A project with a table and its people, each with a browser that is signed in to `/console`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client

from accounts.models import User
from accounts.users import passwords
from projects.models import Environment, Member, Project
from tests.rows.conftest import Tracker
from tests.rows.conftest import make_tracker as make_tracker  # a fixture

PASSWORD = "correct horse battery"
DOCUMENT: dict[str, Any] = {
    "tables": {
        "tasks": {
            "columns": {
                "title": {"type": "text"},
                "done": {"type": "boolean", "default": False},
                "points": {"type": "integer", "null": True},
                "owner": {"type": "user", "null": True},
            },
            "rules": {"user": {"read": {"where": {"owner_id": "$user.id"}, "columns": ["*", "-points"]}}},
        }
    }
}


@dataclass
class Desk:
    """One person's browser, at one environment."""

    browser: Client
    project_id: str
    environment_id: str

    def url(self, path: str = "") -> str:
        return f"/console/{self.project_id}/{self.environment_id}/{path}"

    def get(self, path: str = "", **more: Any) -> Any:
        return self.browser.get(self.url(path), **more)

    def post(self, path: str, values: dict[str, Any], **more: Any) -> Any:
        return self.browser.post(self.url(path), values, **more)


def give_password(user: User) -> User:
    User.objects.filter(pk=user.pk).update(password=passwords.hashed(PASSWORD))
    user.refresh_from_db()
    return user


def sign_in(user: User, browser: Client | None = None, **more: str) -> Client:
    browser = browser or Client()
    answer = browser.post("/console/sign-in", {"email": user.email, "password": PASSWORD, **more})
    assert answer.status_code == 302, answer.content
    return browser


@pytest.fixture
def tracker(make_tracker: Callable[..., Tracker]) -> Tracker:
    return make_tracker(DOCUMENT)


def member(project: Project, role: str) -> User:
    user = User.objects.get(pk=Member.objects.filter(project=project, role=role).values("user_id")[:1])
    return give_password(user)


@pytest.fixture
def desk_of(tracker: Tracker) -> Callable[[str], Desk]:
    """The desk of the project's `owner` or `viewer`."""

    def make(role: str) -> Desk:
        return desk_at(tracker, role)

    return make


def desk_at(tracker: Tracker, role: str = "owner") -> Desk:
    return Desk(sign_in(member(tracker.project, role)), tracker.project.pk, tracker.environment_id)


def without_token(desk: Desk) -> Desk:
    """The same desk; its forms come without the CSRF token, as those of another site do."""
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = desk.browser.cookies
    return Desk(strict, desk.project_id, desk.environment_id)


@pytest.fixture
def desk(desk_of: Callable[[str], Desk]) -> Desk:
    return desk_of("owner")


def environment_of(project: Project, name: str) -> Environment:
    return project.environments.get(name=name)
