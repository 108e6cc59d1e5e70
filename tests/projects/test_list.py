"""Listing projects (contract section 4.2): one's own, the newest first, pages that hold still while others come and
go."""

import re
from typing import Any

import pytest

from accounts import audit
from accounts.models import User
from platform_site.http import cursors
from projects import services
from projects.models import Project
from tests.projects.conftest import RoundTrips, environment_of, key_for, make_project, token_of
from tests.support.client import Answer, Api
from tests.support.flush import flush_redis

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def names(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [project["name"] for project in answer.json["data"]]


def bare_projects(owner: User, count: int) -> None:
    """Projects as the list sees them, without schemas: it does not look at those."""
    for number in range(count):
        project = Project.objects.create(name=f"P{number:03}", region="us-east-1", cluster="us-east-1")
        project.memberships.create(user=owner, role="owner")


def all_pages(api: Api, token: str, limit: int) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = api.get(f"/v1/projects?limit={limit}" + (f"&cursor={cursor}" if cursor else ""), token=token)
        found += names(page)
        assert len(page.json["data"]) <= limit
        cursor = page.json["next_cursor"]
        if cursor is None:
            return found


def test_the_newest_comes_first_with_four_members_each(api: Api, alice: User) -> None:
    for name in ("One", "Two", "Three"):
        make_project(alice, name)
    answer = api.get("/v1/projects", token=token_of(alice))
    assert set(answer.json) == {"data", "next_cursor"}
    assert names(answer) == ["Three", "Two", "One"]
    assert answer.json["next_cursor"] is None
    assert all(set(project) == {"id", "name", "region", "created_at"} for project in answer.json["data"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", answer.json["data"][0]["created_at"])


def test_the_list_of_environments_takes_no_parameters(api: Api, alice: User, project: Project) -> None:
    path, token = f"/v1/projects/{project.pk}/environments", token_of(alice)
    assert len(api.get(path, token=token).json["data"]) == 2
    got = api.get(path + "?limit=1&cursor=x", token=token)
    assert (got.status, set(got.fields.values())) == (422, {"unknown_parameter"})


def test_account_without_projects_has_an_empty_list(api: Api, charlie: User) -> None:
    assert api.get("/v1/projects", token=token_of(charlie)).json == {"data": [], "next_cursor": None}


def test_a_page_has_twenty_unless_told(api: Api, alice: User) -> None:
    bare_projects(alice, 45)
    token = token_of(alice)
    assert len(names(api.get("/v1/projects", token=token))) == 20
    newest_first = [f"P{number:03}" for number in reversed(range(45))]
    for limit in (1, 7, 20, 44, 45, 46, 100):
        assert all_pages(api, token, limit) == newest_first


def test_pages_hold_still_while_projects_come_and_go(api: Api, alice: User) -> None:
    bare_projects(alice, 10)
    token = token_of(alice)
    first = api.get("/v1/projects?limit=4", token=token)
    assert names(first) == ["P009", "P008", "P007", "P006"]
    bare_projects(alice, 3)  # newer ones
    Project.objects.filter(name__in=["P006", "P005"]).update(
        deleted_at="2026-01-01T00:00:00Z"
    )  # the cursor's own, and the next
    rest = api.get(f"/v1/projects?limit=4&cursor={first.json['next_cursor']}", token=token)
    assert names(rest) == ["P004", "P003", "P002", "P001"]


def test_only_projects_that_the_caller_belongs_to(api: Api, alice: User, bob: User, charlie: User) -> None:
    shared = make_project(alice, "Shared")
    make_project(alice, "Private")
    make_project(charlie, "Other")
    services.add_member(shared.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    assert names(api.get("/v1/projects", token=token_of(bob))) == ["Shared"]
    assert names(api.get("/v1/projects", token=token_of(alice))) == ["Private", "Shared"]


def test_keys_and_app_users_see_their_own_project(api: Api, alice: User, make_account: Any) -> None:
    production = environment_of(make_project(alice, "First"))
    make_project(alice, "Second")
    user = make_account("uma", pool_id=production.pk)
    for token in (key_for(production.pk, "projects:read"), token_of(user, production.pk)):
        assert names(api.get("/v1/projects", token=token)) == ["First"]
    assert names(api.get("/v1/projects", token=key_for(None, "projects:read", account=alice))) == ["Second", "First"]
    refused = api.get("/v1/projects", token=key_for(production.pk, "rows:read"))
    assert (refused.status, refused.error) == (403, "forbidden")


@pytest.mark.parametrize(
    "limit", ["0", "101", "-1", "abc", "", "1e1", "5.0", "+5", " 5", "٥", "9" * 30, "%00", "5,6", "null"]
)
def test_a_bad_limit_is_named(api: Api, alice: User, limit: str) -> None:
    answer = api.get(f"/v1/projects?limit={limit}", token=token_of(alice))
    assert (answer.status, answer.error, list(answer.fields)) == (422, "validation_failed", ["limit"])


@pytest.mark.parametrize(
    "query", ["limit=5&limit=6", "cursor=&limit=5", "offset=1", "limt=5", "cursor=%FF", "cursor=%00"]
)
def test_other_bad_parameters_are_named_too(api: Api, alice: User, query: str) -> None:
    assert api.get(f"/v1/projects?{query}", token=token_of(alice)).status == 422


def test_a_cursor_that_was_touched_or_belongs_elsewhere_is_422(api: Api, alice: User, bob: User) -> None:
    bare_projects(alice, 3)
    token = token_of(alice)
    good = api.get("/v1/projects?limit=1", token=token).json["next_cursor"]
    flipped = good[:5] + ("A" if good[5] != "A" else "B") + good[6:]
    members = cursors.encode("members", [["created_at", "id"], "prj_x"], ["2026", "mem_x"])
    for cursor in ("x", good[:-1], good + "A", good[1:], flipped, good * 2, "e30", "null", members, "A" * 8000):
        answer = api.get(f"/v1/projects?cursor={cursor}", token=token)
        assert (answer.status, list(answer.fields)) == (422, ["cursor"])
    # It names a place in an order, not a right to see: bob's list from there is bob's.
    assert names(api.get(f"/v1/projects?cursor={good}", token=token_of(bob))) == []
    assert names(api.get(f"/v1/projects?limit=2&cursor={good}", token=token)) == ["P001", "P000"]


def test_a_known_caller_costs_one_trip_and_one_statement(api: Api, alice: User, trips: RoundTrips) -> None:
    bare_projects(alice, 30)
    token = token_of(alice)
    flush_redis()
    api.get("/v1/projects", token=token)
    trips.reset()
    api.get("/v1/projects", token=token)
    assert trips.counts == (1, 1)


def test_after_its_share_of_requests_a_caller_is_429_for_a_while(
    api: Api, alice: User, bob: User, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01  # six a minute
    token = token_of(alice)
    answers = [api.get("/v1/projects", token=token) for _ in range(8)]
    assert [answer.status for answer in answers].count(429) >= 2
    limited = answers[-1]
    assert (limited.status, limited.error) == (429, "rate_limited")
    assert 1 <= int(limited.headers["Retry-After"]) <= 60
    assert limited.headers["RateLimit-Policy"] == '"caller";q=6;w=60'
    assert api.get("/v1/projects", token=token_of(bob)).status == 200
