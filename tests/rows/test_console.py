"""The console's row browser: rows as another user sees them, why they are visible or not, and the effect of rule
changes."""

import html
import json
import re
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.users import service as user_service
from projects.directory.environments import place_of
from rows.migrate import rule_impact
from rows.schema.model import MAX_ERRORS
from tests.rows.conftest import Tracker
from tests.support.tracker import DOCUMENT, OWN

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

ROWS = "/admin/rows/currentversion/"
SECRET = "for our eyes only"


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def staff(name: str, **fields: Any) -> Client:
    client = Client()
    user = user_service.create_user(
        pool_id=None, email=f"{name}@example.com", password=None, name=name, is_staff=True, actor=audit.SYSTEM
    )
    User.objects.filter(pk=user.pk).update(**fields)
    client.force_login(User.objects.get(pk=user.pk))
    return client


@pytest.fixture
def console() -> Client:
    """An operator with every right."""
    return staff("operator", is_superuser=True)


@pytest.fixture
def support() -> Client:
    client = staff("support", is_superuser=False)
    User.objects.get(email="support@example.com").groups.add(Group.objects.get(name="support"))
    return client


def page(client: Client, path: str, status: int = 200) -> str:
    got = client.get(path)
    assert got.status_code == status, (path, got.status_code)
    return html.unescape(got.content.decode())


def browse(tracker: Tracker, table: str = "tasks", **query: str) -> str:
    from urllib.parse import urlencode

    return f"{ROWS}?{urlencode({'environment': tracker.environment_id, 'table': table, **query})}"


def row_page(tracker: Tracker, row_id: str, table: str = "tasks", **query: str) -> str:
    return browse(tracker, table, **query).replace("?", f"{quote(row_id)}/change/?", 1)


@pytest.fixture
def tasks(tracker: Tracker) -> dict[str, str]:
    """A task each of alice and bob, and what is in it that they may not read."""
    made = {}
    for who in ("alice", "bob"):
        owner = tracker.users[who]
        tasks_list = tracker.post("key", "/rows/lists", {"name": f"{who}'s", "owner_id": owner}).json["id"]
        task = {"title": f"{who} <b>works</b>", "list_id": tasks_list, "owner_id": owner, "internal": SECRET}
        made[who] = tracker.post("key", "/rows/tasks", task).json["id"]
    return made


def test_a_table_is_seen_through_the_eyes_of_a_user(console: Client, tracker: Tracker, tasks: dict[str, str]) -> None:
    alice, bob = tasks["alice"], tasks["bob"]
    everybody = page(console, browse(tracker))
    assert alice in everybody
    assert bob in everybody
    assert "<b>works</b>" not in console.get(browse(tracker)).content.decode()
    for eyes in (tracker.users["alice"], "ALICE@tracker.example"):
        hers = page(console, browse(tracker, user=eyes))
        assert alice in hers, eyes
        assert bob not in hers, eyes
        assert SECRET not in hers, eyes
        assert "internal" not in hers, eyes
    nobody = page(console, browse(tracker, **{"as": "role:user"}))
    assert alice not in nobody
    assert "No row that any user of role user may see" in nobody
    assert "does not exist" in page(console, browse(tracker, "secrets", **{"as": "role:user"}))
    assert "does not exist" in page(console, browse(tracker, **{"as": "anonymous"}))
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["anonymous"] = {"read": {"where": {"title": {"$startsWith": "alice"}}}}
    tracker.apply(document)
    anybodys = page(console, browse(tracker, **{"as": "anonymous"}))
    assert (alice in anybodys, bob in anybodys) == (True, False)
    assert "role:anonymous" not in anybodys
    # What is hidden from her is shown beside what she sees, and marked as hidden.
    both = page(console, browse(tracker, user=tracker.users["alice"], hidden="1"))
    assert bob in both
    assert both.count("hidden: why?") == 1
    assert SECRET in both


def test_the_impact_of_rules_for_whoever_has_not_signed_in_is_counted(tracker: Tracker, tasks: dict[str, str]) -> None:
    place = place_of(tracker.environment_id)
    assert place is not None
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["anonymous"] = {"read": {"where": {"title": {"$startsWith": "alice"}}}}
    [told] = [one for one in rule_impact.of_change(place, document) if one.label.startswith("role anonymous")]
    assert told.seen is not None
    assert (told.seen.before, told.seen.after, told.seen.appearing) == (0, 1, 1)
    assert "title" in told.columns_appearing


def test_numbers_are_shown_with_all_their_digits(console: Client, tracker: Tracker, tasks: dict[str, str]) -> None:
    changes = f'{{"meta": {{"beyond": {2**64 + 1}}}}}'.encode()
    assert tracker.call("key", "PATCH", f"/rows/tasks/{tasks['alice']}", body=changes).status == 200
    assert str(2**64 + 1) in page(console, browse(tracker))
    assert str(2**64 + 1) in page(console, row_page(tracker, tasks["alice"]))


def test_filters_orders_and_cursors_are_those_of_the_api(console: Client, tracker: Tracker) -> None:
    for number in range(30):
        body = {"name": f"list {number:02}", "owner_id": tracker.users["alice"]}
        assert tracker.post("key", "/rows/lists", body).status == 201
    first = page(console, browse(tracker, "lists", order="name.desc"))
    names = re.findall(r"list \d\d", first)
    assert names == [f"list {number:02}" for number in range(29, 4, -1)]
    following = re.search(r'rel="next" href="\?([^"]+)"', first)
    assert following is not None
    second = page(console, f"{ROWS}?{following[1]}")
    assert re.findall(r"list \d\d", second) == [f"list {number:02}" for number in range(4, -1, -1)]
    assert "First page" in second
    some = page(console, browse(tracker, "lists", where='{"name": {"$endsWith": "7"}}'))
    assert set(re.findall(r"list \d\d", some)) == {"list 07", "list 17", "list 27"}
    assert "30 rows" in page(console, browse(tracker, "lists", count="1"))
    for bad in ({"where": "{oops"}, {"where": '{"nonsense": 1}'}, {"order": "name.sideways"}, {"cursor": "x"},
                {"where": '{"name": "\'; DROP TABLE lists; --", "x": 1}'}):  # fmt: skip
        shown = page(console, browse(tracker, "lists", **bad))
        assert re.search(r'role="alert">\s*<li>(where|order|cursor)', shown), bad
        assert "list 07" not in shown
    # A filter over a column that a user may not read does not even exist for her.
    hidden = page(console, browse(tracker, where='{"internal": "x"}', user=tracker.users["alice"]))
    assert re.search(r'role="alert">\s*<li>where', hidden)


def test_a_hidden_row_is_explained_clause_by_clause(console: Client, tracker: Tracker, tasks: dict[str, str]) -> None:
    shown = page(console, row_page(tracker, tasks["bob"], user=tracker.users["alice"]))
    assert "Hidden from alice@tracker.example" in shown
    assert '{"owner_id": "$user.id"}' in shown
    assert f'owner_id is "{tracker.users["bob"]}"' in shown
    assert f'$user.id is "{tracker.users["alice"]}"' in shown
    assert "fails" in shown
    own = row_page(tracker, tasks["alice"], user=tracker.users["alice"])
    assert "Why is it visible?" in page(console, own)
    explained = page(console, own + "&explain=1")
    assert "holds" in explained
    assert "No read rule of this role shows the column" in explained
    assert page(console, own).count(SECRET) == 1  # the operator sees it, marked as hidden from her
    # A row's page leads to those that belong to it.
    assert 'comments"' in page(console, own) or ">comments</a>" in page(console, own)


def test_support_sees_what_members_see_and_leaves_a_trail(
    support: Client, console: Client, tracker: Tracker, tasks: dict[str, str]
) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["member"] = {"read": {"where": OWN}}
    tracker.apply(document)
    assert tasks["bob"] not in page(support, browse(tracker))
    assert "Nobody in this environment is called all" in page(support, browse(tracker, **{"as": "all"}))
    assert "everything, rules aside" not in page(support, browse(tracker))
    page(support, row_page(tracker, tasks["bob"]), 404)
    page(support, row_page(tracker, tasks["bob"], **{"as": "all"}), 404)
    assert tasks["bob"] in page(console, browse(tracker, **{"as": "all"}))
    # As bob, support sees what bob sees.
    assert tasks["bob"] in page(support, browse(tracker, user=tracker.users["bob"]))
    assert SECRET not in page(support, browse(tracker, user=tracker.users["bob"]))
    entry = AuditEntry.objects.filter(action="rows.viewed").latest("at")
    assert entry.actor_id == User.objects.get(email="support@example.com").pk
    assert (entry.target_id, entry.environment_id) == ("tasks", tracker.environment_id)
    assert entry.detail == {"seen_as": tracker.users["bob"], "rows": 1, "with_hidden": False}
    # And it changes nothing.
    path = f"/admin/rows/schemaversion/?environment={tracker.environment_id}"
    assert support.post(path, {"expected": 2, "document": "{}", "apply": 1}).status_code == 403
    assert "Change the schema" not in page(support, path)


def test_strangers_other_environments_and_bad_ids_find_nothing(
    console: Client, tracker: Tracker, make_tracker: Any, tasks: dict[str, str]
) -> None:
    owner = Client()
    owner.force_login(tracker.project.memberships.get(role="owner").user)
    for client in (Client(), owner):
        assert client.get(browse(tracker)).status_code == 302
        assert client.get(row_page(tracker, tasks["alice"])).status_code == 302
    other = make_tracker(DOCUMENT, "Other")
    assert tasks["alice"] not in page(console, browse(other))
    page(console, row_page(other, tasks["alice"]), 404)
    # A user of another environment is unknown here.
    for stranger in (other.users["alice"], "alice@other.example", "usr_", "'; --", "role:nobody"):
        shown = page(console, browse(tracker, user=stranger))
        assert "Nobody in this environment is called" in shown, stranger
        assert tasks["alice"] not in shown, stranger
    page(console, browse(tracker, "nonsense"), 404)
    page(console, browse(tracker, 'tasks"; DROP TABLE x'), 404)
    for row_id in ("nonsense", "a" * 65, "tsk_'"):
        page(console, row_page(tracker, row_id), 404)
    assert console.post(browse(tracker)).status_code in (200, 403, 405)
    assert console.post(row_page(tracker, tasks["alice"])).status_code == 403


def test_a_page_of_rows_costs_the_same_whatever_is_in_it(console: Client, tracker: Tracker) -> None:
    def statements() -> int:
        page(console, browse(tracker, "lists"))  # by now the schema is known here
        with CaptureQueriesContext(connections[tracker.project.cluster]) as captured:
            page(console, browse(tracker, "lists"))
        return len(captured)

    tracker.post("key", "/rows/lists", {"name": "first", "owner_id": tracker.users["alice"]})
    before = statements()
    for number in range(26):
        tracker.post("key", "/rows/lists", {"name": f"list {number}", "owner_id": tracker.users["alice"]})
    assert statements() == before <= 3


# ── What a change of rules does ─────────────────────────────────────────────────────────────────────────────────────


def changed(**rules: Any) -> dict[str, Any]:
    """DOCUMENT with other rules of tasks."""
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    document["tables"]["tasks"]["rules"]["user"].update(rules)
    return document


def told(tracker: Tracker, document: dict[str, Any], **how: Any) -> dict[str, rule_impact.Impact]:
    place = place_of(tracker.environment_id)
    assert place is not None
    return {each.label: each for each in rule_impact.of_change(place, document, **how)}


def test_the_impact_of_a_rule_agrees_with_what_it_then_does(tracker: Tracker, tasks: dict[str, str]) -> None:
    for number in range(4):
        own = {"title": f"task {number}", "list_id": _list_of(tracker, "alice"), "owner_id": tracker.users["alice"]}
        assert tracker.post("key", "/rows/tasks", {**own, "done": number % 2 == 0}).status == 201
    document = changed(read={"where": {"done": False}})
    document["tables"]["tasks"]["rules"]["user"]["insert"]["columns"] = ["title", "list_id"]
    found = told(tracker, document)
    alice = found["alice@tracker.example (role user)"].seen
    assert alice is not None
    assert (alice.before, alice.after, alice.appearing, alice.vanishing, alice.is_sample) == (5, 4, 1, 2, False)
    anybody = found["role user, whoever it is"]
    assert anybody.seen is not None
    assert (anybody.seen.before, anybody.seen.after) == (0, 4)
    assert anybody.columns_appearing == ("internal",)

    def seen() -> set[str]:
        return {row["id"] for row in tracker.get("alice", "/rows/tasks?limit=100").json["data"]}

    before = seen()
    assert len(before) == alice.before
    tracker.apply(document)
    after = seen()
    assert (len(after), len(after - before), len(before - after)) == (alice.after, alice.appearing, alice.vanishing)
    assert told(tracker, document) == {}


def test_a_chosen_user_is_counted_and_roles_that_end_see_nothing(tracker: Tracker, tasks: dict[str, str]) -> None:
    bob = User.objects.get(pk=tracker.users["bob"])
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    del document["tables"]["tasks"]["rules"]["user"]
    found = told(tracker, document, users=[bob])
    seen = found["bob@tracker.example (chosen)"].seen
    assert seen is not None
    assert (seen.before, seen.after, seen.vanishing) == (1, 0, 1)
    assert "bob@tracker.example (role user)" not in found


def test_what_the_change_itself_makes_is_told_only_after_it(tracker: Tracker) -> None:
    document = changed(read={"where": {"fresh": True}})
    document["tables"]["tasks"]["columns"]["fresh"] = {"type": "boolean", "default": False}
    document["tables"]["lists"]["rules"]["user"]["read"] = {}
    place = place_of(tracker.environment_id)
    assert place is not None
    found = rule_impact.of_change(place, document)
    [unknown] = [each for each in found if each.table == "tasks"]
    assert unknown.seen is None
    assert "use what the change creates" in unknown.why_not
    assert any(each.table == "lists" and each.seen is not None for each in found)


def test_unknown_rules_of_one_table_hide_no_other_tables(tracker: Tracker) -> None:
    """A document's first hundred errors may all be of one table."""
    document = changed(read={"where": {"fresh": True}})
    for name in ("lists", "tasks"):
        document["tables"][name]["columns"]["fresh"] = {"type": "boolean", "default": False}
    many = {"read": [{"where": {"fresh": True}}] * 4}
    document["tables"]["lists"]["rules"] = {f"role{number}": many for number in range(MAX_ERRORS // 4 + 1)}
    document["tables"]["comments"]["rules"]["user"]["read"] = {}
    place = place_of(tracker.environment_id)
    assert place is not None
    found = rule_impact.of_change(place, document)
    assert {each.table for each in found if each.seen is None} == {"lists", "tasks"}
    assert any(each.table == "comments" and each.seen is not None for each in found)


def test_other_fields_of_embedded_users_are_told_by_role(tracker: Tracker) -> None:
    document: dict[str, Any] = {**DOCUMENT, "users": {"user": ["id", "name"], "anonymous": ["name"]}}
    tracker.apply(document)
    found = told(tracker, {**document, "users": {"user": ["id", "email"]}})
    assert {label: (each.table, each.columns_appearing, each.columns_vanishing) for label, each in found.items()} == {
        "role anonymous": (None, (), ("name",)),
        "role user": (None, ("email",), ("name",)),
    }


def test_a_sample_says_that_there_are_more(
    tracker: Tracker, tasks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_impact, "SAMPLES", (1,))
    seen = told(tracker, changed(read={}))["role user, whoever it is"].seen
    assert seen is not None
    assert (seen.looked_at, seen.is_sample, seen.before) == (1, True, 0)
    assert seen.after >= 1
    monkeypatch.setattr(rule_impact, "TOTAL_SECONDS", -1.0)
    late = told(tracker, changed(read={}))["role user, whoever it is"]
    assert (late.seen, late.why_not) == (None, "Not counted: there was no time left for it.")


def test_the_schema_page_shows_the_impact_before_anything_is_applied(
    console: Client, tracker: Tracker, tasks: dict[str, str]
) -> None:
    path = f"/admin/rows/schemaversion/?environment={tracker.environment_id}"
    posted = {"expected": 1, "document": json.dumps(changed(read={})), "watched": "bob@tracker.example", "plan": 1}
    shown = html.unescape(console.post(path, posted).content.decode())
    assert "Who will see what" in shown
    assert "bob@tracker.example (chosen)" in shown
    assert "change rules of tasks" in shown
    assert "may overwrite" not in shown
    unseen = {**posted, "document": json.dumps(changed(read={"columns": ["title"]}, update={"columns": ["done"]}))}
    warned = html.unescape(console.post(path, unseen).content.decode())
    assert "<code>tables.tasks.rules.user.update</code>: user may overwrite done and not read" in warned
    assert "No user of this environment" in html.unescape(
        console.post(path, {**posted, "watched": "nobody"}).content.decode()
    )
    assert tracker.get("alice", f"/rows/tasks/{tasks['bob']}").status == 404


def _list_of(tracker: Tracker, who: str) -> str:
    [found] = tracker.get(who, "/rows/lists").json["data"]
    return str(found["id"])
