"""Creating a publishable key reports what it makes public: rules that were written for others are not opened by
accident."""

import json
import re
from typing import Any

import pytest
from django.conf import settings
from django.db import connections

from accounts.models import ServerKey
from platform_site.embedded import postgres as embedded_postgres
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer
from tests.support.commands import run
from tests.support.functions import SUM, deploy
from tests.support.site import SITE
from tests.support.unavailable import database_unavailable

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

TABLES = [
    {"table": "authors", "actions": ["read"]},
    {"table": "letters", "actions": ["insert"]},
    {"table": "posts", "actions": ["read"]},
]
EVERYTHING = {"tables": TABLES, "users": ["name"], "functions": ["greet", "sum"]}
NOTHING: dict[str, Any] = {"tables": [], "users": [], "functions": []}


@pytest.fixture
def site(make_tracker: Any) -> Tracker:  # noqa: F811
    """The application of SITE with two public functions; there is no publishable key yet."""
    made: Tracker = make_tracker({**SITE, "users": {"anonymous": ["name"], "user": ["email"]}})
    for name, invoke in (("sum", "public"), ("greet", "public"), ("mine", "key"), ("ours", None)):
        assert deploy(made, name, SUM, invoke=invoke).status == 201
    return made


def issue(site: Tracker, **more: Any) -> Answer:
    return site.post("owner", "/keys", {"name": "page", "publishable": True, **more})


# ── The API ──


def test_the_answer_that_has_the_key_says_what_it_opens_and_so_do_lists(site: Tracker) -> None:
    made = issue(site)
    assert (made.status, made.json["opens"]) == (201, EVERYTHING)
    [listed] = [each for each in site.get("owner", "/keys").json["data"] if each["publishable"]]
    assert listed == {name: value for name, value in made.json.items() if name != "secret"}


@pytest.mark.parametrize(
    ("scopes", "opens"),
    [
        (["rows:read"], {"tables": [TABLES[0], TABLES[2]], "users": ["name"], "functions": []}),
        (["rows:write"], {**NOTHING, "tables": [TABLES[1]]}),
        (["functions:invoke"], {**NOTHING, "functions": ["greet", "sum"]}),
    ],
)
def test_it_names_no_more_than_the_key_reaches(site: Tracker, scopes: list[str], opens: Any) -> None:
    assert issue(site, scopes=scopes).json["opens"] == opens
    assert [each["opens"] for each in site.get("owner", "/keys").json["data"] if each["publishable"]] == [opens]


def test_lists_say_what_is_open_now_and_nothing_of_server_keys(site: Tracker) -> None:
    issue(site)
    made = site.post("owner", "/keys", {"name": "server", "scopes": ["rows:read"]})
    assert made.json["opens"] is None
    site.apply({"tables": {"private": SITE["tables"]["private"]}})
    site.delete("owner", "/functions/greet")
    found = {each["name"]: each["opens"] for each in site.get("owner", "/keys").json["data"]}
    assert (found["page"], found["server"]) == ({**NOTHING, "functions": ["sum"]}, None)


def test_nothing_is_public_without_rules_for_anonymous(make_tracker: Any) -> None:  # noqa: F811
    assert issue(make_tracker({"tables": {}})).json["opens"] == NOTHING
    assert (
        issue(make_tracker({"tables": {"private": SITE["tables"]["private"]}}, name="Other")).json["opens"] == NOTHING
    )


def test_key_with_unknown_access_is_not_created_but_keys_can_be_revoked(site: Tracker) -> None:
    made = issue(site).json
    before = ServerKey.objects.count()
    with embedded_postgres.connect(settings.LAYOUT, "postgres") as superuser:
        superuser.autocommit = True
        with database_unavailable(superuser, str(connections[site.project.cluster].settings_dict["NAME"])):
            assert issue(site).status == 503
            listed = {each["id"]: each["opens"] for each in site.get("owner", "/keys").json["data"]}
            assert listed[made["id"]] is None
            assert site.delete("owner", f"/keys/{made['id']}").status == 204
    connections[site.project.cluster].close()
    assert ServerKey.objects.count() == before


# ── The terminal ──


def test_the_command_says_it_beside_the_secret(site: Tracker) -> None:
    out, err = run("issue_key", "page", "--environment", site.environment_id, "--publishable")
    assert re.fullmatch(r"pk_[0-9A-Za-z]{38}\n", out)
    for sentence in ("table letters: insert", "table posts: read", "fields of users: name", "function sum: invoke"):
        assert f"It allows everyone: {sentence}." in err
    assert "private" not in err
    assert "everyone" not in run("issue_key", "server", "--environment", site.environment_id, "--scopes", "all")[1]
    told = json.loads(run("issue_key", "page", "--environment", site.environment_id, "--publishable", "--json")[0])
    assert told["opens"] == EVERYTHING
