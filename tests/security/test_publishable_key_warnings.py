"""Creating a publishable key reports what it makes public: rules that were written for others are not opened by
accident."""

import html
import json
import re
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client
from django.urls import reverse

from accounts import audit
from accounts.models import ServerKey
from accounts.users import service as user_service
from platform_site.embedded import postgres as embedded_postgres
from platform_site.identity.callers import PUBLISHABLE_SCOPES
from tests.projects.conftest import publishable_key_for
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer
from tests.support.commands import run
from tests.support.functions import SUM, deploy
from tests.support.html_forms import csrf
from tests.support.site import SITE
from tests.support.unavailable import database_unavailable

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

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
    for sentence in ("table letters: insert", "table posts: read", "users of rows: name", "function sum: invoke"):
        assert f"It allows everyone: {sentence}." in err
    assert "private" not in err
    assert "everyone" not in run("issue_key", "server", "--environment", site.environment_id, "--scopes", "all")[1]
    told = json.loads(run("issue_key", "page", "--environment", site.environment_id, "--publishable", "--json")[0])
    assert told["opens"] == EVERYTHING


# ── The console ──


@pytest.fixture
def console() -> Client:
    client = Client(enforce_csrf_checks=True)
    staff = user_service.create_user(
        pool_id=None, email="staff@example.com", password=None, name="Staff", is_staff=True, actor=audit.SYSTEM
    )
    client.force_login(staff)
    return client


def press(console: Client, environment_id: str, *scopes: str, **more: Any) -> str:
    path = reverse("admin:accounts_serverkey_add")
    body = {"name": "page", "environment_id": environment_id, "scopes": scopes, "publishable": "on"}
    return _page(console.post(path, body | {"csrfmiddlewaretoken": csrf(console, path)} | more))


def agree(console: Client, page: str) -> str:
    """Press the button of the page that asks."""
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    body = {name: [value for each, value in fields if each == name] for name, _ in fields}
    return _page(console.post(reverse("admin:accounts_serverkey_add"), body))


def _page(answer: Any) -> str:
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def publishable() -> int:
    return ServerKey.objects.filter(prefix__startswith="pk_").count()


def test_the_console_asks_before_the_first_key_opens_anything(console: Client, site: Tracker) -> None:
    asks = press(console, site.environment_id, *sorted(PUBLISHABLE_SCOPES))
    assert "Allow this to everyone?" in asks
    for sentence in ("table letters: insert", "table posts: read", "users of rows: name", "function sum: invoke"):
        assert sentence in asks
    assert "pk_" not in asks
    assert publishable() == 0, "nothing is made before the answer"
    issued = agree(console, asks)
    assert re.search(r"pk_[0-9A-Za-z]{38}", issued)
    assert "table posts: read" in issued
    assert ServerKey.objects.get(prefix__startswith="pk_").scopes == sorted(PUBLISHABLE_SCOPES)
    again = press(console, site.environment_id, "rows:read")
    assert "Publishable key issued" in again, "what is already public needs no confirmation"
    assert "table posts: read" in again


def test_it_asks_again_where_something_else_would_be_opened(console: Client, site: Tracker) -> None:
    asks = press(console, site.environment_id, "rows:read", "functions:invoke")
    deploy(site, "late", SUM, invoke="public")
    again = agree(console, asks)
    assert "Allow this to everyone?" in again
    assert "function late: invoke" in again
    assert publishable() == 0
    assert "Publishable key issued" in agree(console, again)
    more = press(console, site.environment_id, "rows:read", "rows:write")
    assert "Allow this to everyone?" in more, "a key that lets anonymous callers write, where they could only read"
    assert "table letters: insert" in more
    assert "table posts" not in more
    assert publishable() == 1


def test_a_revoked_key_opens_nothing_so_the_next_one_asks(console: Client, site: Tracker) -> None:
    publishable_key_for(site.environment_id)
    assert "Publishable key issued" in press(console, site.environment_id, "rows:read")
    for key in ServerKey.objects.filter(prefix__startswith="pk_"):
        user_service.revoke_key(key, actor=audit.SYSTEM)
    assert "Allow this to everyone?" in press(console, site.environment_id, "rows:read")


def test_no_confirmation_without_new_access_or_without_permission(
    console: Client,
    site: Tracker,
    make_tracker: Any,  # noqa: F811
) -> None:
    other: Tracker = make_tracker({"tables": {}}, name="Other")
    assert "Publishable key issued" in press(console, other.environment_id, *sorted(PUBLISHABLE_SCOPES))
    assert "Server key issued" in press(console, site.environment_id, "rows:read", publishable="")
    stranger = Client()
    path = reverse("admin:accounts_serverkey_add")
    body = {"name": "page", "environment_id": site.environment_id, "scopes": ["rows:read"], "publishable": "on"}
    answer = stranger.post(path, body)
    assert answer.status_code == 302
    assert "letters" not in answer.content.decode()
