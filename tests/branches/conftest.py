"""A project with the task tracker's schema and some rows in production, and hands to branch it with."""

from collections.abc import Callable
from typing import Any

import pytest

from projects.models import Environment
from tests.projects.conftest import _no_schema_is_left, make_account  # noqa: F401 - fixtures
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer
from tests.support.project_crashes import mortal_environment, mortal_process, run  # noqa: F401 - fixtures
from tests.support.tracker import DOCUMENT

Branch = Callable[..., Answer]


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:  # noqa: F811
    """alice and bob are users of production; alice has a list with two tasks, one of which is the other's parent."""
    made: Tracker = make_tracker(DOCUMENT)
    alice = made.users["alice"]
    home = row(made, "lists", name="Home", owner_id=alice)
    parent = row(made, "tasks", title="Cook", list_id=home, owner_id=alice, tags=["a"], meta={"n": 1.5}, price="1.50")
    row(made, "tasks", title="Shop", list_id=home, owner_id=alice, parent_id=parent)
    return made


def row(tracker: Tracker, table: str, *, environment: str | None = None, **cells: Any) -> str:
    """A new row in production or in `environment`, as the project's owner; its id."""
    answer = tracker.api.request(
        "POST",
        f"/v1/rows/{table}",
        token=tracker.tokens["owner"],
        environment=environment or tracker.environment_id,
        json=cells,
    )
    assert answer.status == 201, answer.json
    return str(answer.json["id"])


def rows(tracker: Tracker, table: str, environment: str, who: str = "owner") -> list[dict[str, Any]]:
    """The rows of a table as `who` sees them there, in the order of their ids."""
    answer = tracker.api.get(f"/v1/rows/{table}?limit=100", token=tracker.tokens[who], environment=environment)
    assert answer.status == 200, answer.json
    return list(answer.json["data"])


@pytest.fixture
def branch(tracker: Tracker) -> Branch:
    """`branch("name", data="full", who="owner", **body)`: the answer of POST …/environments."""

    def make(name: str, *, who: str = "owner", headers: dict[str, str] | None = None, **body: Any) -> Answer:
        return tracker.api.post(
            f"/v1/projects/{tracker.project.pk}/environments",
            token=tracker.tokens[who],
            json={"name": name, **body},
            headers=headers,
        )

    return make


def address(tracker: Tracker, environment_id: str) -> str:
    return f"/v1/projects/{tracker.project.pk}/environments/{environment_id}"


def production(tracker: Tracker) -> Environment:
    return Environment.objects.get(pk=tracker.environment_id)
