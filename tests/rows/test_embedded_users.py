"""Users embedded in rows by `with`: which callers see which fields, and that nothing else of a user can be found
out."""

from typing import Any

import pytest

from accounts import audit
from accounts.models import User
from accounts.users import service as accounts
from platform_site.http.errors import ValidationFailed
from rows.query.params import With, WithUser, parse_with
from rows.rules.rules import Ruleset
from rows.schema.model import Hop
from rows.schema.parser import parse
from tests.rows.conftest import Tracker
from tests.support import tracker
from tests.support.embedded_users import TABLES, USERS, App, document

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def app(make_tracker: Any) -> App:
    return App(make_tracker(document()))


def test_a_list_and_a_row_embed_exactly_the_open_fields(app: App) -> None:
    alice = {"id": app.users["alice"], "name": "alice"}
    page = app.get("alice", "cards?with=owner").json["data"]
    assert [row["owner"] for row in page] == [alice, {"id": app.users["bob"], "name": "bob"}]
    row = app.get("alice", f"cards/{app.hers}?with=owner")
    assert row.json["owner"] == alice
    assert list(row.json)[-1] == "owner"
    assert list(row.json["owner"]) == ["id", "name"], "in the order of the reference, not of the document"
    asked = app.tracker.post("alice", "/rows/cards/query", {"with": "owner"})
    assert asked.json["data"] == page
    full = app.get("key", f"cards/{app.hers}?with=owner").json["owner"]
    assert list(full) == USERS["server"]
    assert (full["email"], full["role"]) == ("alice@tracker.example", None)
    assert full["created_at"].endswith("Z")
    assert "owner" not in app.get("alice", f"cards/{app.hers}").json


def test_users_of_related_rows_are_embedded(app: App) -> None:
    alice, bob = ({"id": app.users[who], "name": who} for who in ("alice", "bob"))
    row = app.get("alice", f"cards/{app.his}?with=board.owner,owner").json
    assert (row["board"]["owner"], row["owner"]) == (alice, bob)
    board = app.get("alice", f"boards/{app.board}?with=cards.owner,owner").json
    assert board["owner"] == alice
    assert [card["owner"] for card in board["cards"]] == [alice, bob]


def test_the_column_must_be_readable_in_that_row(app: App) -> None:
    rows = app.get("alice", "cards?with=helper").json["data"]
    assert [row["helper"] for row in rows] == [{"id": app.users["bob"], "name": "bob"}, None]
    assert rows[1]["helper_id"] is None
    cards = app.get("alice", f"boards/{app.board}?with=cards.helper").json["cards"]
    assert [card["helper"] for card in cards] == [{"id": app.users["bob"], "name": "bob"}, None]


def test_columns_may_leave_the_id_out(app: App) -> None:
    row = app.get("alice", f"cards/{app.hers}?with=owner&columns=title").json
    assert row == {"id": app.hers, "title": None, "owner": {"id": app.users["alice"], "name": "alice"}}
    embedded = app.get("alice", f"cards/{app.hers}?with=board.owner&columns=board.name").json["board"]
    assert embedded == {"id": app.board, "name": "Red", "owner": {"id": app.users["alice"], "name": "alice"}}


def test_without_an_open_field_there_is_nothing_to_embed(app: App) -> None:
    closed = 'owner: your role may not read any field of users. "users" in the schema document allows fields.'
    for who in ("page", "owner", "viewer"):
        assert app.refused(who, "cards?with=owner") == ({"with": "unknown"}, closed), who
    app.tracker.apply({"tables": TABLES})
    for who in ("alice", "key", "operator"):
        assert app.refused(who, f"cards/{app.hers}?with=owner") == ({"with": "unknown"}, closed), who


def test_a_hidden_column_is_no_user(app: App) -> None:
    app.tracker.apply(document({"anonymous": ["name"]}))
    assert [row["owner"] for row in app.get("page", "cards?with=owner").json["data"]] == [
        {"name": "alice"},
        {"name": "bob"},
    ]
    for path in ("boards?with=owner", "cards?with=board.owner", "boards?with=stranger"):
        fields, message = app.refused("page", path)
        assert fields == {"with": "unknown"}
        assert message.endswith(": there is no such relation."), "as for a name that does not exist"


def test_a_misspelled_name_gets_a_suggestion_where_users_are_open(app: App) -> None:
    assert app.refused("alice", "cards?with=ownr")[1] == 'ownr: there is no such relation; did you mean "owner"?'
    assert app.refused("page", "cards?with=ownr")[1] == "ownr: there is no such relation."


def test_roles(app: App) -> None:
    app.user("bob", role="editor")
    users = {"user": ["id"], "member": ["name"]}
    app.tracker.apply(document(users))
    path = f"boards/{app.board}?with=owner"
    assert app.get("bob", path).json["owner"] == {"id": app.users["alice"]}, "as user, which the document names"
    assert app.get("owner", path).json["owner"] == app.get("viewer", path).json["owner"] == {"name": "alice"}
    app.tracker.apply(document({**users, "editor": ["email"]}))
    assert app.get("bob", path).json["owner"] == {"email": "alice@tracker.example"}
    assert app.get("alice", path).json["owner"] == {"id": app.users["alice"]}
    app.tracker.apply(document({**users, "editor": []}))
    assert app.refused("bob", path)[0] == {"with": "unknown"}


def test_a_role_that_only_users_names_keeps_the_rules_of_user(app: App) -> None:
    app.user("bob", role="clerk")
    before = app.get("bob", "cards").body
    app.tracker.apply(document({"clerk": ["name"]}))
    assert app.get("bob", "cards").body == before
    assert [row["owner"] for row in app.get("bob", "cards?with=owner").json["data"]] == [
        {"name": "alice"},
        {"name": "bob"},
    ]


def test_users_of_other_projects_and_accounts_are_null(app: App, make_tracker: Any) -> None:
    other: Tracker = make_tracker(document(), "Other")
    account = User.objects.get(environment_id=None, email="owner@tracker.example")
    strangers = (other.users["alice"], account.pk, "usr_01kxxxxxxxxxxxxxxxxxxxxxxx", f"x,{app.users['bob']}", '"', "")
    column, rules = {"type": "text"}, {"user": {"read": {}}}
    app.tracker.apply({"tables": {"notes": {"columns": {"author": column}, "rules": rules}}})
    notes = [app.insert("notes", author=user_id) for user_id in strangers]
    column = {"type": "user", "renamed_from": "author"}
    app.tracker.apply(
        {"tables": {"notes": {"columns": {"author": column}, "rules": rules}}, "users": {"user": ["name"]}}
    )
    for note, user_id in zip(notes, strangers, strict=True):
        row = app.get("alice", f"notes/{note}?with=author").json
        assert (row["author_id"], row["author"]) == (user_id, None)


def test_a_deleted_user_is_null(app: App) -> None:
    accounts.delete_user(User.objects.get(pk=app.users["bob"]), actor=audit.SYSTEM)
    row = app.get("alice", f"cards/{app.his}?with=owner").json
    assert (row["owner_id"], row["owner"]) == (app.users["bob"], None)


def test_no_value_of_a_row_becomes_a_user(app: App) -> None:
    bob = app.users["bob"]
    for text in (f'\t"{bob}"', f'{{"a":\t"{bob}"}}', f'","owner":\t"{bob}', f'\\t"{bob}\\"', "\\"):
        card = app.insert(
            "cards", title=text, meta={text: [text, bob]}, owner_id=app.users["alice"], board_id=app.board
        )
        row = app.get("alice", f"cards/{card}?with=owner,board").json
        assert (row["title"], row["meta"], row["owner"]["name"]) == (text, {text: [text, bob]}, "alice")
        alone = app.get("alice", f"cards/{card}").json
        assert {name: cell for name, cell in row.items() if name not in ("owner", "board")} == alone


def test_names_are_sent_as_they_are(app: App) -> None:
    name = 'Zoë "\\1" \t\n\u2028 </script> \U0001f600'
    app.user("alice", name=name)
    assert app.get("alice", f"cards/{app.hers}?with=owner").json["owner"]["name"] == name


def test_an_unreadable_change_of_a_user_alters_no_byte(app: App) -> None:
    paths = [
        "cards?with=owner,helper,board.owner",
        f"cards/{app.hers}?with=owner",
        f"boards/{app.board}?with=cards.helper",
    ]
    callers = ("alice", "bob")
    before = [app.get(who, path).body for who in callers for path in paths]
    for who in callers:
        app.user(who, email=f"{who}@elsewhere.example", claims={"a": 1}, disabled_at="2026-01-01T00:00Z", password="x")
    for who in callers:
        app.user(who, disabled_at=None)
    assert [app.get(who, path).body for who in callers for path in paths] == before
    before_masked = app.get("alice", f"cards/{app.his}?with=helper").body
    app.user("alice", name="Alice II")
    assert app.get("alice", f"cards/{app.his}?with=helper").body == before_masked


def test_a_tag_is_of_the_row_alone(app: App) -> None:
    path = f"cards/{app.hers}"
    tag = app.get("alice", path).headers["ETag"]
    assert app.get("alice", f"{path}?with=owner").headers["ETag"] == tag
    app.user("alice", name="Alice II")
    answer = app.get("alice", f"{path}?with=owner", headers={"If-None-Match": tag})
    assert (answer.status, answer.json["owner"]["name"]) == (200, "Alice II"), "never 304 with an old name"
    assert app.tracker.get("alice", f"/rows/{path}", headers={"If-None-Match": tag}).status == 304


def test_users_cannot_be_filtered_ordered_grouped_or_narrowed(app: App) -> None:
    only = "owner is a user: conditions can only use owner_id."
    for where in ('{"owner.email":{"$like":"a%"}}', '{"owner":{"$some":{"name":"alice"}}}', '{"owner":null}'):
        assert app.refused("key", f"cards?where={where}")[1].endswith(f": {only}")
    far = app.refused("key", 'cards?where={"board.owner.name":"alice"}')
    assert far[1] == f"board.owner.name: {only}"
    ordered = app.refused("key", "cards?order=owner.name.desc")
    assert ordered == (
        {"order": "unknown"},
        "owner.name.desc: rows cannot be ordered by fields of users, only by owner_id.",
    )
    chosen = app.refused("key", "cards?with=owner&columns=owner.name")
    assert chosen == (
        {"columns": "invalid"},
        'owner.name: the fields of a user are chosen by "users" of the schema document.',
    )
    assert app.refused("key", "cards?columns=owner")[0] == {"columns": "invalid"}
    assert app.refused("key", "cards?with=owner.board") == (
        {"with": "unknown"},
        "owner.board: owner is a user, which has no relations.",
    )
    grouped = app.tracker.post("key", "/rows/cards/aggregate", {"group": ["owner.name"]})
    assert (grouped.status, list(grouped.fields)) == (422, ["group"])


def test_a_user_counts_as_a_relation() -> None:
    schema = parse({**tracker.DOCUMENT, "users": {"user": ["id"]}})
    resolver = Ruleset(schema).resolver("user")
    parent, owner = Hop("parent", "tasks", "parent_id", many=False), WithUser("owner", "owner_id")
    assert parse_with("owner,parent.parent.owner", "tasks", resolver) == (
        owner,
        With(parent, (With(parent, (owner,)),)),
    )
    for text, code in (
        ("parent.parent.parent.owner", "too_deep"),
        ("owner,parent.owner,parent.parent.owner,parent.list.owner,list.owner,list.tasks.owner", "cyclic"),
        ("owner,parent.owner,parent.parent.owner,parent.list.owner,list.owner,comments,parent.comments", "too_many"),
    ):
        with pytest.raises(ValidationFailed) as refused:
            parse_with(text, "tasks", resolver)
        assert [(error.field, error.code) for error in refused.value.fields] == [("with", code)], text


def test_pages_go_on_with_users(app: App) -> None:
    first = app.get("alice", "cards?with=owner&limit=1&order=owner_id&count=exact").json
    assert (first["count"], first["data"][0]["owner"]["name"]) == (2, "alice")
    second = app.get("alice", f"cards?with=owner&limit=1&order=owner_id&cursor={first['next_cursor']}").json
    assert (second["next_cursor"], second["data"][0]["owner"]["name"]) == (None, "bob")
    assert app.get("alice", 'cards?with=owner&where={"id":"none"}').json == {"data": [], "next_cursor": None}


def test_users_alone_are_the_same_as_users_beside_relations(app: App) -> None:
    app.insert("cards", owner_id=app.users["bob"], board_id=app.board, title='\t"\\usr')  # without a helper
    for users in ("owner", "helper,owner", "owner,helper"):
        beside = app.get("alice", f"cards?with={users},board&order=owner_id,id").json["data"]
        for row in beside:
            del row["board"]
        alone = app.get("alice", f"cards?with={users}&order=owner_id,id").json["data"]
        assert [list(row.items()) for row in alone] == [list(row.items()) for row in beside]
        for row in alone:
            assert app.get("alice", f"cards/{row['id']}?with={users}").json == row


def test_a_response_that_users_make_too_large_is_refused(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from rows.query import embedded_users, service

    for path in ("cards?with=owner", "cards?with=board.owner"):
        rows = app.get("alice", path).body.removeprefix(b'{"data":[').removesuffix(b'],"next_cursor":null}')
        for module in (service, embedded_users):
            monkeypatch.setattr(module, "MAX_ANSWER_BYTES", len(rows))
        app.get("alice", path)
        monkeypatch.setattr(embedded_users, "MAX_ANSWER_BYTES", len(rows) - 2)  # there is a comma between the two rows
        assert app.refused("alice", path)[0] == {"with": "too_large"}
        monkeypatch.undo()
    monkeypatch.setattr(embedded_users, "MAX_USERS", 1)
    assert app.refused("alice", "cards?with=owner")[0] == {"with": "too_large"}


def test_a_change_of_users_is_a_version_with_a_plan_and_a_way_back(app: App) -> None:
    tracker = app.tracker
    version = tracker.call("owner", "GET", "/schema").json["version"]
    wider = document({**USERS, "anonymous": ["email"]})
    dry = tracker.call("owner", "PUT", "/schema", json={"document": wider, "dry_run": True}).json
    assert dry["operations"] == [{"operation": "widen users.anonymous: email", "sql": [], "destructive": False}]
    assert [(each["field"], each["code"]) for each in dry["warnings"]] == [("document.users.anonymous", "public_email")]
    assert app.refused("page", "cards?with=owner")[0] == {"with": "unknown"}, "nothing has changed"
    applied = tracker.apply(wider).json
    assert applied["version"] == version + 1
    assert app.get("page", "cards?with=owner").json["data"][0]["owner"] == {"email": "alice@tracker.example"}
    shown = tracker.call("owner", "GET", "/schema").json["document"]
    assert shown["users"] == wider["users"]
    back = tracker.call("owner", "POST", "/schema/revert", json={"version": version}).json
    assert [each["operation"] for each in back["operations"]] == ["narrow users.anonymous: email"]
    assert app.refused("page", "cards?with=owner")[0] == {"with": "unknown"}
    again = tracker.call("owner", "PUT", "/schema", json={"document": document()})
    assert (again.json["operations"], again.json["version"]) == ([], version + 2)
    refused = tracker.call("owner", "PUT", "/schema", json={"document": document({"user": ["phone"]})})
    assert (refused.status, len(refused.fields)) == (422, 1)
    assert next(iter(refused.fields)).endswith("users.user.0")
