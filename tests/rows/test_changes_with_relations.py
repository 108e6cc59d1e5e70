"""Live changes with embedded relations and users (`with` of a subscription)."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_changes import DOCUMENT, READY, App
from tests.support.service import Up

POSTS = {"posts": {"table": "posts", "with": "team,author"}}
RESET = ("reset", {"subscription": "posts"})


def document() -> dict[str, Any]:
    extended = copy.deepcopy(DOCUMENT)
    extended["users"] = {"user": ["id", "email"]}
    extended["tables"]["posts"]["columns"] |= {
        "author": {"type": "user", "null": True},
        "draft": {"type": "text", "null": True},
    }
    extended["tables"]["posts"]["rules"] = {"user": {"read": {"columns": ["*", "-draft"]}}}
    extended["tables"]["comments"] = {
        "columns": {"post": {"type": "reference", "to": "posts", "on_delete": "cascade"}},
        "rules": {"user": {"read": {}}},
    }
    return extended


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    app.ok("owner", "PUT", "/schema", document=document())
    yield app
    app.close()


def listed(app: App, who: str, post: str) -> Any:
    """The row as a list with the same relations shows it."""
    [row] = [
        each for each in app.ok(who, "GET", "/rows/posts?limit=100&with=team,author")["data"] if each["id"] == post
    ]
    return row


def row(data: Any) -> tuple[str, Any]:
    return "row", {"subscription": "posts", "id": data["id"], "row": data}


def test_events_embed_what_a_list_embeds(app: App) -> None:
    team = app.put("teams", name="Red")["id"]
    app.put("members", team_id=team, member_id=app.users["ada"])
    with app.live("ada", POSTS) as member, app.live("bob", POSTS) as outsider:
        assert member.next() == outsider.next() == READY
        post = app.put("posts", team_id=team, author_id=app.users["bob"])["id"]
        seen = listed(app, "ada", post)
        assert (seen["team"]["name"], seen["author"]["id"]) == ("Red", app.users["bob"])
        assert member.next() == row(seen)
        hidden = listed(app, "bob", post)
        assert hidden["team"] is None
        assert outsider.next() == row(hidden)


def test_a_change_of_a_hidden_cell_is_no_event(app: App) -> None:
    post = app.put("posts", team_id=app.put("teams", name="Blue")["id"], draft="one")["id"]
    shown = {"posts": {"table": "posts", "with": "team,author", "columns": "team_id,author_id"}}
    with app.live("ada", shown) as stream:  # `updated_at` changes with each write
        assert stream.next() == READY
        app.change("posts", post, draft="two")
        assert stream.is_silent()


def test_a_change_of_an_embedded_cell_is_a_reset(app: App) -> None:
    team = app.put("teams", name="Green")["id"]
    member = app.put("members", team_id=team, member_id=app.users["ada"])["id"]
    app.put("posts", team_id=team)
    with app.live("ada", POSTS) as stream:
        assert stream.next() == READY
        app.change("teams", team, name="Greener")
        assert stream.next() == RESET
        app.ok("server", "DELETE", f"/rows/members/{member}")
        assert stream.next() == RESET, "the rule of the embedded table"


def test_only_embedded_columns_count(app: App) -> None:
    team = app.put("teams", name="Grey")["id"]
    app.put("members", team_id=team, member_id=app.users["ada"])
    post = app.put("posts", team_id=team)["id"]
    narrow = {"posts": {"table": "posts", "with": "team", "columns": "id,team.name"}}
    with app.live("ada", narrow) as stream:
        assert stream.next() == READY
        app.change("teams", team, note="not embedded")
        assert stream.is_silent()
        app.change("posts", post, author_id=app.users["bob"])
        assert stream.is_silent(), "no column of the row that is shown"
        app.change("teams", team, name="Silver")
        assert stream.next() == RESET


@pytest.mark.parametrize(
    ("subscription", "change"),
    [
        ({"with": "team", "columns": "id,team.name"}, "team_id"),
        ({"with": "author", "columns": "id"}, "author_id"),
        ({"where": {"team.name": "Fresh"}, "columns": "id"}, "team_id"),
        ({"where": {"team.name": "Old", "author_id": {"$ne": None}}, "columns": "id"}, "author_id"),
    ],
)
def test_a_change_of_a_column_that_is_not_shown_but_read(app: App, subscription: dict[str, Any], change: str) -> None:
    old, fresh = (app.put("teams", name=name)["id"] for name in ("Old", "Fresh"))
    for team in (old, fresh):
        app.put("members", team_id=team, member_id=app.users["ada"])
    post = app.put("posts", team_id=old)["id"]
    with app.live("ada", {"posts": {"table": "posts", **subscription}}) as stream:
        assert stream.next() == READY
        app.change("posts", post, **{change: fresh if change == "team_id" else app.users["bob"]})
        kind, data = stream.next()
        assert (kind, data["id"]) == ("row", post)


def test_a_change_of_a_reference_in_an_embedded_row_is_a_reset(app: App) -> None:
    old, new = (app.put("teams", name=name)["id"] for name in ("Old", "New"))
    post = app.put("posts", team_id=old)["id"]
    app.put("comments", post_id=post)
    nested = {"comments": {"table": "comments", "with": "post.team", "columns": "id,post.id,post.team.name"}}
    with app.live("ada", nested) as stream:
        assert stream.next() == READY
        app.change("posts", post, team_id=new)
        assert stream.next() == ("reset", {"subscription": "comments"})


def test_rows_that_come_and_go_in_a_list_of_relations(app: App) -> None:
    team = app.put("teams", name="Gold")["id"]
    app.put("members", team_id=team, member_id=app.users["ada"])
    with app.live("ada", {"teams": {"table": "teams", "with": "posts"}}) as stream:
        assert stream.next() == READY
        app.put("posts", team_id=team)
        assert stream.next() == ("reset", {"subscription": "teams"})
        app.change("teams", team, name="Golden")
        kind, data = stream.next()
        assert (kind, data["row"]["name"], len(data["row"]["posts"])) == ("row", "Golden", 1)
