"""Every document of the cookbook is applied, and every request of its tables made and answered as it says."""

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pytest

from accounts.audit import SYSTEM
from accounts.models import User
from accounts.users import service as user_service
from tests.projects.conftest import publishable_key_for
from tests.rows.conftest import Tracker, make_tracker
from tests.support.client import Answer
from tests.support.service import ROOT

__all__ = ["make_tracker"]

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

CAST: dict[str, dict[str, Any]] = {
    "Ada": {"claims": {"teams": ["red"]}},
    "Bob": {"claims": {"teams": ["blue"]}},
    "Eve": {"role": "editor"},
}


@dataclass(frozen=True)
class Recipe:
    name: str
    document: dict[str, Any]
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """The caller, the request, the response."""


def recipes() -> list[Recipe]:
    found = []
    for section in (ROOT / "docs" / "how-to" / "rules-cookbook.md").read_text().split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        document = re.search(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert document, name
        calls = re.findall(r"^\| (\w+) \| `(.+)` \| (.+) \|$", text, re.MULTILINE)
        found.append(Recipe(name, json.loads(document[1]), calls))
    return found


class Kitchen:
    """A tracker, and the rows made in it by their place in the recipe."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.made: dict[str, list[str]] = {}

    def ask(self, who: str, request: str) -> Answer:
        method, _, rest = request.partition(" ")
        address, _, body = rest.partition(" ") if "?" not in rest else (rest, "", "")
        path, _, query = address.partition("?")
        table, _, number = path.partition("/")
        url = f"/rows/{table}" + (f"/{self.made[table][int(number) - 1]}" if number else "")
        if query:
            name, _, value = query.partition("=")
            url += f"?{urlencode({name: value})}"
        how = {"json": json.loads(self._ids(body))} if body else {}
        answer = self.tracker.call(who if who == "key" else who.lower(), method, url, **how)
        if answer.status == 201:
            made = answer.json.get("data", [answer.json])
            self.made.setdefault(table, []).extend(row["id"] for row in made)
        return answer

    def _ids(self, body: str) -> str:
        def found(name: str) -> str:
            table, _, number = name.partition("/")
            return self.made[table][int(number) - 1] if number else self.tracker.users[name.lower()]

        return re.sub(r"<([\w/]+)>", lambda match: found(match[1]), body)


def test_the_page_has_its_recipes() -> None:
    assert len(recipes()) >= 9
    assert all(len(recipe.calls) >= 4 for recipe in recipes())


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.name)
def test_a_recipe_does_what_its_table_says(make_tracker: Any, recipe: Recipe) -> None:
    tracker: Tracker = make_tracker(recipe.document, users=tuple(name.lower() for name in CAST))
    for name, facts in CAST.items():
        user_service.change_user(User.objects.get(pk=tracker.users[name.lower()]), actor=SYSTEM, **facts)
    tracker.tokens["page"] = publishable_key_for(tracker.environment_id)
    kitchen = Kitchen(tracker)
    for who, request, expected in recipe.calls:
        answer = kitchen.ask(who, request)
        if rows := re.fullmatch(r"(\d+) rows?", expected):
            assert (answer.status, len(answer.json["data"])) == (200, int(rows[1])), (who, request, answer.json)
        else:
            status, _, columns = expected.partition(" ")
            assert answer.status == int(status), (who, request, answer.json)
            assert not columns or set(answer.fields) == set(columns.split(", ")), (who, request, answer.json)
