"""What rules do to rows that are asked for and written: each role and action, cells, checks, old values, far tables."""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from django.utils import timezone

from platform_site.http.errors import ApiError, Conflict, NotFound
from rows import services
from rows.rules.principal import Principal
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, OWNER, VIEWER, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")

CHARLIE = Principal("user", user_id="usr_01kcccccccccccccccccccccca", email="charlie@example.com")
EDITOR = Principal("user", user_id="usr_01kedddddddddddddddddddddd", email="editor@example.com", role="editor")
OWN = {"owner_id": "$user.id"}


def notes(**rules: Any) -> dict[str, Any]:
    """One table of notes under these rules."""
    columns = {
        "body": {"type": "text"},
        "state": {"type": "enum", "values": ["draft", "done"], "default": "draft"},
        "score": {"type": "integer", "null": True},
        "secret": {"type": "text", "null": True},
        "owner": {"type": "user"},
        "parent": {"type": "reference", "to": "notes", "on_delete": "cascade", "null": True},
    }
    return {"tables": {"notes": {"columns": columns, "rules": rules}}}


def tenant_of(**rules: Any) -> Tenant:
    return Tenant(notes(**rules)).with_users(ALICE, BOB, CHARLIE, EDITOR)


def refused(how: Callable[[], Any]) -> tuple[int, dict[str, str]]:
    with pytest.raises(ApiError) as caught:
        how()
    return caught.value.status, {field.field: field.code for field in caught.value.fields}


EVERYTHING = {"read": {}, "insert": {}, "update": {}, "delete": {}}
ROLES = {
    "user": (ALICE, CHARLIE),
    "editor": (EDITOR, CHARLIE),
    "member": (OWNER, CHARLIE),
    "server": (KEY, CHARLIE),
}
ACTIONS: dict[str, Callable[[Tenant, Principal, str], Any]] = {
    "read": lambda tenant, who, note: tenant.get(who, "notes", note),
    "insert": lambda tenant, who, note: tenant.insert(who, "notes", body="new", owner_id=ALICE.user_id),
    "update": lambda tenant, who, note: tenant.update(who, "notes", note, body="changed"),
    "delete": lambda tenant, who, note: tenant.delete(who, "notes", note),
}


def table(tenant: Tenant) -> list[Any]:
    return tenant.pages(OPERATOR, "notes")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_role_permits_its_actions_and_others_are_refused_unchanged(role: str, action: str) -> None:
    who, stranger = ROLES[role]
    only = {name: rule for name, rule in EVERYTHING.items() if name in ("read", action)}
    # The third user has a role without a rule; with the role `user` there is always one, so there it is the rows they
    # own.
    if role == "user":
        only = {name: ({} if name == "insert" else {"where": OWN}) for name in only}
        only |= {"insert": {"check": OWN}} if action == "insert" else {}
    tenant = tenant_of(**{role: only})
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    before = table(tenant)
    status, _ = refused(lambda: ACTIONS[action](tenant, stranger, note))
    assert status == (422 if (role, action) == ("user", "insert") else 404)
    assert table(tenant) == before
    ACTIONS[action](tenant, who, note)
    assert (table(tenant) == before) == (action == "read")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_named_role_may_not_do_what_it_is_not_given(role: str, action: str) -> None:
    who, _ = ROLES[role]
    tenant = tenant_of(
        **{role: {name: {} for name in EVERYTHING if name not in ({action} if action != "read" else EVERYTHING)}}
    )
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    before = table(tenant)
    assert refused(lambda: ACTIONS[action](tenant, who, note)) == (404, {})
    assert table(tenant) == before


@pytest.mark.parametrize("action", ACTIONS)
def test_a_viewer_only_reads(action: str) -> None:
    tenant = tenant_of()
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    if action == "read":
        assert tenant.get(VIEWER, "notes", note)["body"] == "x"
    else:
        assert refused(lambda: ACTIONS[action](tenant, VIEWER, note))[0] == 404
    assert len(table(tenant)) == 1


def test_nothing_is_given_to_app_users_by_default() -> None:
    tenant = tenant_of()
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    for action in ACTIONS.values():
        assert refused(lambda: action(tenant, ALICE, note)) == (404, {})  # noqa: B023


def test_ownership_cannot_be_given_away_or_stolen() -> None:
    """Threat T3: the rule is asked of the row before and, unless a check says otherwise, of the row after."""
    tenant = tenant_of(user={"read": {}, "update": {"where": OWN}})
    mine = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    theirs = tenant.put("notes", body="y", owner_id=BOB.user_id)
    before = table(tenant)
    assert refused(lambda: tenant.update(ALICE, "notes", theirs, owner_id=ALICE.user_id)) == (404, {})
    assert refused(lambda: tenant.update(ALICE, "notes", mine, owner_id=BOB.user_id)) == (
        422,
        {"owner_id": "not_allowed"},
    )
    assert table(tenant) == before
    assert tenant.update(ALICE, "notes", mine, body="z")["body"] == "z"


@pytest.mark.parametrize("shape", ["alone", "referred to", "looking back"])
def test_writable_row_exposes_no_other_row_and_no_values(shape: str) -> None:
    """Rows to which others may refer, and rules that walk back into the table, lock the row in a statement of its
    own."""
    more = {"notes": {"$none": {"body": "nobody's"}}} if shape == "looking back" else {}
    rules = {"read": {}, "update": {"where": OWN, "check": {"score": {"$gt": "$old.score"}, **more}}}
    document = notes(user={**rules, "delete": {"where": OWN}})
    if shape == "alone":
        del document["tables"]["notes"]["columns"]["parent"]
    tenant = Tenant(document).with_users(ALICE, BOB)
    low, high = (tenant.put("notes", body="mine", owner_id=ALICE.user_id, score=score) for score in (1, 5))
    theirs = tenant.put("notes", body="theirs", owner_id=BOB.user_id, score=1)
    before = table(tenant)
    assert refused(lambda: tenant.update(ALICE, "notes", theirs, score=9)) == (404, {})
    assert refused(lambda: tenant.delete(ALICE, "notes", theirs)) == (404, {})
    assert refused(lambda: tenant.update(ALICE, "notes", high, score=3)) == (422, {"score": "not_allowed"})
    assert table(tenant) == before
    assert tenant.update(ALICE, "notes", low, score=3)["score"] == 3
    tenant.delete(ALICE, "notes", low)
    assert [row["id"] for row in table(tenant)] == [high, theirs]


def test_a_check_speaks_of_the_row_after_with_the_columns_that_stay() -> None:
    tenant = tenant_of(user={"read": {}, "update": {"check": {"$or": [{"state": "draft"}, {"score": {"$gte": 5}}]}}})
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    assert refused(lambda: tenant.update(ALICE, "notes", note, state="done")) == (
        422,
        {"state": "not_allowed", "score": "not_allowed"},
    )
    assert tenant.update(ALICE, "notes", note, score=5)["score"] == 5
    assert tenant.update(ALICE, "notes", note, state="done")["state"] == "done"
    assert refused(lambda: tenant.update(ALICE, "notes", note, score=None))[0] == 422


def test_a_check_that_asks_other_rows_names_the_column_that_leads_to_them() -> None:
    """And never a column of this table that is only called like the far one that was asked about."""
    document = {"tables": {
        "lists": {"columns": {"name": {"type": "text"}}, "rules": {"user": {"read": {}}}},
        "seats": {"columns": {"list": {"type": "reference", "to": "lists", "on_delete": "cascade"},
                              "owner": {"type": "user"}, "body": {"type": "text"}}},
        "notes": {
            "columns": {"body": {"type": "text"}, "owner": {"type": "user"},
                        "list": {"type": "reference", "to": "lists", "on_delete": "cascade", "null": True}},
            "rules": {"user": {
                "read": {},
                "insert": {"check": {"list.seats": {"$some": {"owner_id": "$user.id", "body": "writer"}}}},
                "update": {"check": {"list.seats": {"$none": {"body": "closed"}}}},
            }},
        },
    }}  # fmt: skip
    tenant = Tenant(document).with_users(ALICE, BOB)
    theirs, ours = tenant.put("lists", name="Theirs"), tenant.put("lists", name="Ours")
    tenant.put("seats", list_id=theirs, owner_id=BOB.user_id, body="writer")
    tenant.put("seats", list_id=ours, owner_id=ALICE.user_id, body="writer")
    note = {"body": "x", "owner_id": ALICE.user_id}
    named = (422, {"list_id": "not_allowed"})
    assert refused(lambda: tenant.insert(ALICE, "notes", **note, list_id=theirs)) == named
    made = tenant.insert(ALICE, "notes", **note, list_id=ours)["id"]
    tenant.put("seats", list_id=theirs, owner_id=BOB.user_id, body="closed")
    assert refused(lambda: tenant.update(ALICE, "notes", made, list_id=theirs)) == named


def test_a_check_that_asks_the_rows_that_lead_here_names_no_column() -> None:
    check = {"notes": {"$none": {"state": "done"}}}
    tenant = tenant_of(user={"read": {}, "update": {"check": check}})
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    tenant.put("notes", body="y", owner_id=ALICE.user_id, parent_id=note, state="done")
    assert refused(lambda: tenant.update(ALICE, "notes", note, body="z")) == (404, {})


def test_a_check_may_compare_with_the_row_before() -> None:
    rules = {"read": {}, "update": {"check": {"score": {"$gt": "$old.score"}}}}
    tenant = tenant_of(user=rules)
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id, score=1)
    blank = tenant.put("notes", body="y", owner_id=ALICE.user_id)
    assert tenant.update(ALICE, "notes", note, score=2)["score"] == 2
    assert refused(lambda: tenant.update(ALICE, "notes", note, score=2)) == (422, {"score": "not_allowed"})
    assert refused(lambda: tenant.update(ALICE, "notes", note, body="z")) == (422, {"score": "not_allowed"})
    # There was nothing to be greater than: a missing operand makes the clause false.
    assert refused(lambda: tenant.update(ALICE, "notes", blank, score=9))[0] == 422


def test_an_empty_list_of_the_row_before_is_a_missing_operand() -> None:
    document = notes(user={"read": {}, "update": {"check": {"tags": {"$hasAll": "$old.tags"}}}})
    document["tables"]["notes"]["columns"]["tags"] = {"type": "text[]", "null": True}
    tenant = Tenant(document).with_users(ALICE)
    tagged, empty, blank = (
        tenant.put("notes", body="x", owner_id=ALICE.user_id, tags=tags) for tags in (["a"], [], None)
    )
    assert tenant.update(ALICE, "notes", tagged, tags=["b", "a"])["tags"] == ["b", "a"]
    for note, tags in ((tagged, ["b"]), (empty, ["a"]), (empty, []), (blank, ["a"])):
        assert refused(lambda: tenant.update(ALICE, "notes", note, tags=tags)) == (422, {"tags": "not_allowed"})  # noqa: B023


def test_reference_set_by_a_rule_may_be_hidden_but_must_exist() -> None:
    """The caller did not choose it, so it need not see its target; it learns about the column if it knows of it."""
    set_by_claim = {"set": {"parent_id": "$user.claims.parent"}}
    document = notes(
        user={"read": {"where": OWN}, "insert": set_by_claim, "update": set_by_claim},
        editor={"read": {"columns": ["body"]}, "insert": {**set_by_claim, "columns": ["body", "owner_id"]}},
    )
    tenant = Tenant(document).with_users(ALICE, BOB, EDITOR)
    hidden = tenant.put("notes", body="hidden", owner_id=BOB.user_id)
    mine = tenant.put("notes", body="mine", owner_id=ALICE.user_id)
    before = table(tenant)
    alice, editor = (replace(who, claims={"parent": "nowhere"}) for who in (ALICE, EDITOR))
    row = {"body": "x", "owner_id": ALICE.user_id}
    assert refused(lambda: tenant.insert(alice, "notes", **row)) == (422, {"parent_id": "no_such_row"})
    assert refused(lambda: tenant.update(alice, "notes", mine, body="x")) == (422, {"parent_id": "no_such_row"})
    batch = refused(lambda: services.insert_rows(tenant.environment, alice, "notes", [row, row]))
    assert batch == (422, {"0.parent_id": "no_such_row"})
    assert refused(lambda: tenant.insert(editor, "notes", **row)) == (422, {"$body": "conflict"})
    assert table(tenant) == before
    alice = replace(ALICE, claims={"parent": hidden})
    assert tenant.insert(alice, "notes", **row)["parent_id"] == hidden
    assert tenant.update(alice, "notes", mine, body="x")["parent_id"] == hidden


@pytest.mark.parametrize("minutes", [-10, 10])
def test_now_is_the_databases_whatever_this_process_takes_for_the_time(
    minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a row that was stamped this moment is not in the future, nor one of a minute ago yet due."""

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Skewed":
            return super().now(tz) + timedelta(minutes=minutes)

    columns = {"at": {"type": "timestamp"}, "on": {"type": "date", "null": True}, "owner": {"type": "user"}}
    rules = {
        "read": {"where": {"at": {"$lte": "$now"}, "created_at": {"$lte": "$now"}}},
        "insert": {"check": {"created_at": {"$lte": "$now"}, "at": {"$lte": "$now"}}, "set": {"on": "$now"}},
    }
    tenant = Tenant({"tables": {"posts": {"columns": columns, "rules": {"user": rules}}}}).with_users(ALICE)
    true_now = timezone.now()
    posts = {
        late: tenant.put("posts", at=(true_now + timedelta(minutes=late)).isoformat(), owner_id=ALICE.user_id)
        for late in (-5, 5)
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("rows.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Skewed)
    assert [row["id"] for row in tenant.rows(ALICE, "posts")] == [posts[-5]]
    made = tenant.insert(ALICE, "posts", at=true_now.isoformat(), owner_id=ALICE.user_id)
    assert abs(datetime.fromisoformat(made["on"]).date() - true_now.date()) <= timedelta(days=1)
    assert made["created_at"] is not None
    assert refused(
        lambda: tenant.insert(ALICE, "posts", at=(true_now + timedelta(minutes=5)).isoformat(), owner_id=ALICE.user_id)
    ) == (422, {"at": "not_allowed"})
    told = services.explain_row(tenant.environment, OPERATOR, "posts", posts[5], ALICE, knows_users=True)
    [read] = [rule for rule in told["rules"] if rule["action"] == "read"]
    due = next(clause for clause in read["clauses"] if '"at"' in clause["clause"])
    said = datetime.fromisoformat(due["why"].split('$now is "')[1].rstrip('"'))
    assert (due["verdict"], abs(said - true_now) < timedelta(minutes=1)) == (False, True)


def test_explain_tells_the_beginning_of_a_long_value() -> None:
    wanted = [{"body": {"$contains": str(number)}} for number in range(40)]
    tenant = tenant_of(user={"read": {"where": {"$or": wanted}}})
    note = tenant.put("notes", body="x" * 1_000_000, owner_id=ALICE.user_id)
    told = services.explain_row(tenant.environment, OPERATOR, "notes", note, ALICE, knows_users=True)
    assert 'body is "xxx' in str(told)
    assert "… (1,000,002 characters)" in str(told)
    assert len(str(told)) < 20_000


def explained(tenant: Tenant, asker: Principal, note: str, seen_as: Principal = ALICE, **how: Any) -> dict[str, Any]:
    return services.explain_row(tenant.environment, asker, "notes", note, seen_as, **{"knows_users": True} | how)


def test_explain_tells_an_asker_of_no_cell_that_it_may_not_read() -> None:
    """Neither by the cell, nor over a relation that is not there for it, nor of a far row that is hidden from it."""
    clauses = {"secret": {"$ne": "x"}, "parent.body": {"$ne": "x"}, "score": {"$gt": 1}, "body": {"$ne": "x"}}
    asked = {"read": {"where": clauses, "columns": ["*", "-secret"]}}
    everything = {"body": "mine", "score": 7, "secret": "hush", "owner_id": ALICE.user_id}

    def told(member: Any) -> str:
        tenant = tenant_of(user=asked, member={"read": member})
        far = tenant.put("notes", body="far away", owner_id=BOB.user_id)
        note = tenant.put("notes", **everything, parent_id=far)
        told = explained(tenant, OWNER, note)
        assert told["visible"] is True
        [read] = [rule for rule in told["rules"] if rule["action"] == "read"]
        assert [clause["verdict"] for clause in read["clauses"]] == [True] * 4
        return str(told)

    for member, shown, hidden in (
        ({}, ["hush", "far away", "score is 7", '"mine"', "'secret', 'why': 'No read rule of this role"], []),
        ({"columns": ["*", "-secret"]}, ["far away", "score is 7"], ["hush", "secret is", "'column': 'secret'"]),
        ({"columns": ["*", "-parent"]}, ["hush"], ["far away", "parent.body is"]),
        ({"columns": ["*", "-body"]}, ["hush"], ["far away", '"mine"', "body is"]),
        ({"where": {"score": 7}}, ["hush", "parent.body is null"], ["far away"]),
        (
            [{"columns": ["*", "-secret", "-score"]}, {"where": {"score": 1}}],
            ["far away", "secret is null", "score is null", "'column': 'secret'"],
            ["hush", "score is 7"],
        ),
    ):
        found = told(member)
        assert [one for one in shown if one not in found] == [], member
        assert [one for one in hidden if one in found] == [], member


def test_explain_has_a_verdict_of_each_rule_and_each_of_its_clauses() -> None:
    tenant = tenant_of(
        user={
            "read": [{"where": {**OWN, "state": "draft"}}, {"where": {"state": "done"}, "columns": ["body"]}],
            "update": {"where": {"score": {"$gt": 1}, "owner_id": "$user.claims.boss"}, "check": {"score": {"$gt": "$old.score"}}},
        }
    )  # fmt: skip
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id, score=2, state="done")

    def rules(seen_as: Principal) -> list[Any]:
        return [
            (rule["role"], rule["action"], rule["verdict"], [clause["verdict"] for clause in rule["clauses"]])
            for rule in explained(tenant, OPERATOR, note, seen_as)["rules"]
        ]

    reads = [("user", "read", False, [True, False]), ("user", "read", True, [True])]
    nothing = ("user", "delete", False, [])
    assert rules(ALICE) == [*reads, ("user", "update", False, [True, False]), nothing]
    assert rules(replace(ALICE, claims={"boss": ALICE.user_id})) == [
        *reads,
        ("user", "update", True, [True, True]),
        nothing,
    ]
    assert rules(BOB)[0] == ("user", "read", False, [False, False])
    assert rules(KEY) == [(None, action, True, []) for action in ("read", "update", "delete")]
    told = explained(tenant, OPERATOR, note)
    [update] = [rule for rule in told["rules"] if rule["action"] == "update"]
    assert [clause["why"] for clause in update["clauses"]] == [
        "score is 2",
        f'owner_id is "{ALICE.user_id}"; $user.claims.boss is missing, which makes the clause false',
    ]
    assert told["hidden_columns"] == [
        {"column": name, "why": "No read rule that matches this row shows the column."}
        for name in ("state", "score", "secret", "owner_id", "parent_id", "created_at", "updated_at")
    ]
    tenant.update(OPERATOR, "notes", note, state="draft")
    assert explained(tenant, OPERATOR, note)["hidden_columns"] == []
    locked = tenant_of(editor={"read": {}})
    hidden = locked.put("notes", body="x", owner_id=ALICE.user_id)
    assert explained(locked, OPERATOR, hidden) == {
        "visible": False,
        "rules": [
            {"role": None, "action": action, "verdict": False, "clauses": []} for action in ("read", "update", "delete")
        ],
        "hidden_columns": [],
    }
    unseen = explained(tenant, OPERATOR, note, BOB)
    assert (unseen["visible"], unseen["hidden_columns"]) == (False, [])


ANSWERED = {"notes": {"$some": {"body": "answer", "owner_id": "$user.id"}}}


def test_explain_says_what_each_quantifier_of_a_clause_came_to() -> None:
    """As its author wrote it: also a condition under $not, and each of those that a clause has."""
    where = {
        "$or": [{"owner_id": "$user.id"}, {"$and": [ANSWERED, {"score": 5}]}],
        "$not": {"parent": {"$some": {"state": "done"}}},
        "notes": {"$every": {"state": "draft"}, "$none": {"score": {"$gt": 7}}},
        "parent.notes": {"$some": {"notes": {"$every": {"body": "answer"}}}},
    }
    tenant = tenant_of(user={"read": {"where": where}})
    root = tenant.put("notes", body="root", owner_id=BOB.user_id)
    note = tenant.put("notes", body="x", owner_id=BOB.user_id, parent_id=root)

    def told(seen_as: Principal = ALICE) -> list[tuple[bool, list[str]]]:
        read = explained(tenant, OPERATOR, note, seen_as)["rules"][0]
        return [
            (clause["verdict"], [said for said in clause["why"].split("; ") if "$" in said and "$user" not in said])
            for clause in read["clauses"]
        ]

    nothing_below = [
        (False, ["$or.1.$and.0.notes.$some is false"]),
        (True, ["$not.parent.$some is false"]),
        (True, ["notes.$every is true", "notes.$none is true"]),
        (True, ["parent.notes.$some is true"]),
    ]
    assert told() == nothing_below
    assert told(BOB) == [(True, nothing_below[0][1]), *nothing_below[1:]]
    tenant.put("notes", body="answer", owner_id=ALICE.user_id, state="done", score=8, parent_id=note)
    tenant.update(OPERATOR, "notes", root, state="done")
    assert told() == [
        (False, ["$or.1.$and.0.notes.$some is true"]),
        (False, ["$not.parent.$some is true"]),
        (False, ["notes.$every is false", "notes.$none is false"]),
        (True, ["parent.notes.$some is true"]),
    ]
    assert "the rows of" not in str(explained(tenant, OPERATOR, note))


def test_explain_tells_no_quantifier_about_what_the_asker_does_not_see() -> None:
    """Beside a clause that comes out either way: the verdict of the clause alone says nothing of the rows."""
    either_way = {"$or": [ANSWERED, {"$not": {"secret": "certainly not"}}]}

    def told(member: Any, **how: Any) -> tuple[bool, str]:
        tenant = tenant_of(user={"read": {"where": either_way}}, member={"read": member})
        note = tenant.put("notes", body="x", owner_id=BOB.user_id, score=1)
        tenant.put("notes", body="answer", owner_id=ALICE.user_id, parent_id=note, score=2)
        [clause] = explained(tenant, OWNER, note, **how)["rules"][0]["clauses"]
        return clause["verdict"], clause["why"]

    assert told({})[1].startswith('secret is null; $or.0.notes.$some is true; $user.id is "')
    for member in (
        {"where": {"score": 1}},  # hides the other row
        {"columns": ["*", "-body"]},  # the cell that decides
        {"columns": ["*", "-parent"]},  # the relation
        [{"columns": ["*", "-body"]}, {"where": {"score": 1}}],  # the cell of the other row
        [{"columns": ["*", "-parent"]}, {"where": {"score": 1}}],
    ):
        verdict, why = told(member)
        assert verdict is True
        assert "the rows of notes are checked" in why, member
        assert "$or.0" not in why, member


def test_explain_reveals_user_dependent_quantifiers_only_with_permission() -> None:
    named = {"notes": {"$some": {"body": "$user.claims.word"}}}
    tenant = tenant_of(user={"read": {"where": {"$or": [named, {"secret": None}]}}})
    note = tenant.put("notes", body="x", owner_id=BOB.user_id)
    tenant.put("notes", body="mellon", owner_id=BOB.user_id, parent_id=note)
    alice = replace(ALICE, claims={"word": "mellon"})
    for knows_users in (True, False):
        [clause] = explained(tenant, OPERATOR, note, alice, knows_users=knows_users)["rules"][0]["clauses"]
        assert clause["verdict"] is True
        assert ("$or.0.notes.$some is true" in clause["why"]) is knows_users
        assert ("the rows of notes are checked" in clause["why"]) is not knows_users


def test_explain_finds_no_row_that_the_asker_does_not_see() -> None:
    tenant = tenant_of(user={"read": {"where": OWN}}, member={"read": {"where": {"state": "done"}}})
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    for asker in (OWNER, BOB):
        for missing in (note, "nowhere", "no id", "", "\0", "\ud800"):
            assert refused(lambda: explained(tenant, asker, missing, ALICE)) == (404, {})  # noqa: B023
    assert explained(tenant, ALICE, note, OWNER)["visible"] is False


def test_explain_tells_of_a_user_what_it_may() -> None:
    where = {
        **OWN,
        "secret": {"$ne": "$user.claims.team"},
        "created_at": {"$lte": "$now"},
        "price": "$user.claims.pays",
    }
    document = notes(user={"read": {"where": where}}, server={"read": {"where": {"body": {"$ne": "$key.id"}}}})
    document["tables"]["notes"]["columns"]["price"] = {"type": "decimal", "precision": 4, "scale": 2}
    tenant = Tenant(document).with_users(ALICE)
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id, secret="s", price="1.50")
    alice = replace(ALICE, claims={"team": "red", "pays": "1.50"})
    for asker, knows_users, knows in ((OPERATOR, True, True), (OPERATOR, False, False), (alice, False, True)):
        told = str(explained(tenant, asker, note, alice, knows_users=knows_users))
        assert f'$user.id is "{ALICE.user_id}"' in told
        assert '$now is "' in told
        assert ('$user.claims.team is "red"' in told) is knows
        assert ('$user.claims.pays is "1.50"' in told) is knows
        assert ("$user.claims.team has a value" in told) is not knows
    told = explained(tenant, OPERATOR, note, KEY, knows_users=False)
    assert told["rules"][0]["clauses"][0]["why"] == f'body is "x"; $key.id is "{KEY.key_id}"'


def test_a_check_on_a_column_that_the_writer_may_not_know_says_nothing() -> None:
    tenant = tenant_of(
        user={
            "read": {"columns": ["body"]},
            "update": {"check": {"secret": {"$null": True}}, "columns": ["body"]},
            "insert": {"check": {"secret": "open"}, "columns": ["body", "owner_id"]},
        }
    )
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id, secret="shut")
    before = table(tenant)
    assert refused(lambda: tenant.update(ALICE, "notes", note, body="y")) == (404, {})
    assert refused(lambda: tenant.insert(ALICE, "notes", body="y", owner_id=ALICE.user_id)) == (404, {})
    assert table(tenant) == before


@pytest.mark.django_db(databases="__all__", transaction=True)  # what is refused is rolled back by the write itself
def test_rule_that_returns_to_its_table_sees_it_after_the_write() -> None:
    """At most one child in state done for each parent: the row that is written counts, too."""
    one_done = {"parent.notes": {"$none": {"state": "done", "score": 1}}}
    tenant = tenant_of(user={"read": {}, "update": {"check": one_done}, "insert": {"check": one_done}})
    parent = tenant.put("notes", body="parent", owner_id=ALICE.user_id)
    child = tenant.put("notes", body="child", owner_id=ALICE.user_id, parent_id=parent, score=1)
    before = table(tenant)
    assert refused(lambda: tenant.update(ALICE, "notes", child, state="done"))[0] in (404, 422)
    cells = {"body": "x", "owner_id": ALICE.user_id, "parent_id": parent, "score": 1, "state": "done"}
    assert refused(lambda: tenant.insert(ALICE, "notes", **cells))[0] in (404, 422)
    both = [{**cells, "score": 2}, cells]
    assert refused(lambda: services.insert_rows(tenant.environment, ALICE, "notes", both))[0] in (404, 422)
    assert table(tenant) == before
    assert tenant.insert(ALICE, "notes", **{**cells, "score": 2})["state"] == "done"
    assert tenant.update(ALICE, "notes", child, score=2, state="done")["state"] == "done"


def test_what_a_hidden_cell_refers_to_cannot_be_guessed_by_sending_it() -> None:
    rules = {"read": [{"where": OWN}, {"where": {"state": "done"}, "columns": ["body"]}], "update": {"check": {}}}
    tenant = tenant_of(user=rules)
    hidden = tenant.put("notes", body="hidden", owner_id=BOB.user_id)
    shown = tenant.put("notes", body="shown", owner_id=BOB.user_id, state="done", parent_id=hidden)
    for guess in (hidden, "nowhere"):
        how = refused(lambda: tenant.update(ALICE, "notes", shown, parent_id=guess))  # noqa: B023
        assert how == (422, {"parent_id": "no_such_row"}), guess
    assert tenant.update(BOB, "notes", shown, parent_id=hidden)["parent_id"] == hidden


def test_hidden_reference_is_not_revealed_by_another_error() -> None:
    tenant = tenant_of(user={"read": {"where": OWN}, "update": {}})
    referred, other = (tenant.put("notes", body="far", owner_id=BOB.user_id) for _ in range(2))
    hidden = tenant.put("notes", body="hidden", owner_id=BOB.user_id, parent_id=referred)
    for guess in (referred, other):
        named = refused(lambda guess=guess: tenant.update(ALICE, "notes", hidden, nothing=1, parent_id=guess))
        assert named == (422, {"nothing": "unknown"})


@pytest.mark.parametrize("what", ["row", "cell"])
def test_write_response_applies_read_rules_to_the_table_after_the_write(what: str) -> None:
    while_done = {"where": {"parent.state": "done"}}
    read = while_done if what == "row" else [{"columns": ["*", "-secret"]}, while_done]
    tenant = tenant_of(user={"read": read, "update": {}})
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id, state="done", secret="s")
    tenant.update(OPERATOR, "notes", note, parent_id=note)
    assert tenant.get(ALICE, "notes", note)["secret"] == "s"
    answer = tenant.update(ALICE, "notes", note, state="draft")
    assert answer == {"id": note} if what == "row" else answer["secret"] is None


def test_a_row_that_its_writer_may_not_read_any_more_answers_its_id_alone() -> None:
    tenant = tenant_of(user={"read": {"where": OWN}, "update": {"check": {}}, "insert": {}})
    note = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    answer = services.update_row(tenant.environment, ALICE, "notes", note, {"owner_id": BOB.user_id})
    assert answer == services.RowResult(note, b'{"id":"%s"}' % note.encode(), None)
    assert tenant.get(BOB, "notes", note)["owner_id"] == BOB.user_id
    made = tenant.insert(ALICE, "notes", body="y", owner_id=BOB.user_id)
    assert set(made) == {"id"}


def test_who_may_insert_and_not_read_gets_the_id() -> None:
    tenant = tenant_of(user={"insert": {"columns": ["body"], "set": OWN}})
    made = tenant.insert(ALICE, "notes", body="x")
    assert set(made) == {"id"}
    assert tenant.get(OPERATOR, "notes", made["id"])["owner_id"] == ALICE.user_id
    assert refused(lambda: tenant.rows(ALICE, "notes"))[0] == 404


CELLS = {
    "read": [
        {"where": {"state": "done"}, "columns": ["body", "state"]},
        {"where": OWN, "columns": ["*"]},
    ]
}


@pytest.fixture
def cells() -> tuple[Tenant, list[str]]:
    """Three notes that Alice sees: all of her own, and a little of Bob's, which is done."""
    tenant = tenant_of(user=CELLS)
    ids = [
        tenant.put("notes", body="mine", owner_id=ALICE.user_id, score=2, secret="a"),
        tenant.put("notes", body="theirs", owner_id=BOB.user_id, score=1, state="done", secret="b"),
        tenant.put("notes", body="both", owner_id=ALICE.user_id, score=3, state="done", secret="c"),
    ]
    tenant.put("notes", body="hidden", owner_id=BOB.user_id, score=0)
    return tenant, ids


def test_a_cell_is_readable_where_a_matching_rule_grants_its_column(cells: tuple[Tenant, list[str]]) -> None:
    tenant, ids = cells
    assert [(row["id"], row["body"], row["score"], row["secret"]) for row in tenant.rows(ALICE, "notes")] == [
        (ids[0], "mine", 2, "a"),
        (ids[1], "theirs", None, None),
        (ids[2], "both", 3, "c"),
    ]
    assert tenant.get(ALICE, "notes", ids[1])["owner_id"] is None


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"score": 1}, []),
        ({"score": {"$null": True}}, [1]),
        ({"score": {"$lt": 9}}, [0, 2]),
        ({"score": {"$ne": 2}}, [1, 2]),
        ({"$not": {"score": {"$gt": 2}}}, [0, 1]),
        ({"secret": {"$in": ["a", "b", "c"]}}, [0, 2]),
        ({"secret": {"$search": "b"}}, []),
        ({"$search": "b"}, [2]),
        ({"$search": "A Min"}, [0]),  # each in a cell of its own
        ({"$search": "ea"}, []),  # half in one cell, half in the next
        ({"owner_id": BOB.user_id}, []),
        ({"body": "theirs"}, [1]),
        ({"body": {"$gt": {"$column": "secret"}}}, [0]),
        ({"secret": {"$lt": {"$column": "body"}}}, [0]),
    ],
)
def test_filters_see_an_unreadable_cell_as_null(
    cells: tuple[Tenant, list[str]], where: dict[str, Any], found: list[int]
) -> None:
    tenant, ids = cells
    assert [row["id"] for row in tenant.rows(ALICE, "notes", where=where)] == [ids[index] for index in found]
    assert tenant.page(ALICE, "notes", where=where, count="exact")["count"] == len(found)


def test_orders_and_cursors_see_an_unreadable_cell_as_null(cells: tuple[Tenant, list[str]]) -> None:
    tenant, ids = cells
    for order, expected in (
        ("score.asc.nullsfirst", [1, 0, 2]),
        ("score.asc", [0, 2, 1]),
        ("score.desc.nullslast", [2, 0, 1]),
        ("score.desc", [1, 2, 0]),
    ):
        for limit in (1, 2, 3):
            found = [row["id"] for row in tenant.pages(ALICE, "notes", order=order, limit=limit)]
            assert found == [ids[index] for index in expected], order


def test_far_rules_are_asked_wherever_a_caller_walks() -> None:
    """Threat T2: a hidden far row through filter, order, `with` and count."""
    tenant = tenant_of(user={"read": {"where": {"$or": [OWN, {"state": "done"}]}}})
    hidden = tenant.put("notes", body="hidden", owner_id=BOB.user_id, score=7)
    child = tenant.put("notes", body="child", owner_id=ALICE.user_id, parent_id=hidden)
    assert tenant.get(ALICE, "notes", child)["parent_id"] == hidden
    assert tenant.get(ALICE, "notes", child, "parent")["parent"] is None
    for where, found in (
        ({"parent.body": "hidden"}, 0),
        ({"parent.score": {"$gt": 0}}, 0),
        ({"parent.body": {"$ne": "hidden"}}, 1),
        ({"parent.body": {"$null": True}}, 1),
        ({"parent.body": {"$null": False}}, 0),
        ({"parent": {"$some": {}}}, 0),
        ({"parent": {"$none": {"score": 7}}}, 1),
    ):
        page = tenant.page(ALICE, "notes", where=where, count="exact", order="parent.score.desc")
        assert (len(page["data"]), page["count"]) == (found, found), where
    tenant.update(OPERATOR, "notes", hidden, state="done")
    assert len(tenant.rows(ALICE, "notes", where={"parent.body": "hidden"})) == 1
    assert tenant.rows(BOB, "notes", withs="notes")[0]["notes"] == []


def test_a_link_that_may_not_be_read_leads_nowhere() -> None:
    """Threat T2: both rows are to be seen, and not that one refers to the other."""
    tenant = tenant_of(user={"read": [{"columns": ["*", "-parent_id"]}, {"where": OWN}]})
    high = tenant.put("notes", body="high", owner_id=ALICE.user_id, score=9)
    low = tenant.put("notes", body="low", owner_id=ALICE.user_id, score=1)
    known = tenant.put("notes", body="known", owner_id=ALICE.user_id, score=5, parent_id=low)
    blind = tenant.put("notes", body="blind", owner_id=BOB.user_id, score=5, parent_id=high)
    of_fives = {"score": 5}
    assert [row["id"] for row in tenant.rows(ALICE, "notes", where=of_fives, order="parent.score.desc.nullslast")] == [
        known,
        blind,
    ]
    assert [
        row["parent"] and row["parent"]["id"] for row in tenant.rows(ALICE, "notes", where=of_fives, withs="parent")
    ] == [low, None]
    assert [row["notes"] for row in tenant.rows(ALICE, "notes", where={"id": high}, withs="notes")] == [[]]
    for where, found in (
        ({"parent.score": {"$gte": 1}}, [known]),
        ({"parent.score": {"$null": False}}, [known]),
        ({"parent": {"$some": {}}}, [known]),
        ({"notes": {"$some": {}}}, [low]),
        ({"notes": {"$none": {}}}, [high, known, blind]),
    ):
        assert [row["id"] for row in tenant.rows(ALICE, "notes", where=where)] == found, where


def test_a_unique_value_of_a_hidden_row_is_refused_without_a_word_of_it() -> None:
    """Finding 10: a constraint sees every row. Its columns are named to those who know them all."""
    document = notes(
        user={
            "read": {"where": OWN, "columns": ["*", "-secret"]},
            "insert": {"columns": ["*", "-secret"]},
            "update": {"columns": ["*", "-secret"]},
        }
    )
    document["tables"]["notes"]["unique"] = [["body"], ["score", "secret"]]
    tenant = Tenant(document).with_users(ALICE, BOB)
    tenant.put("notes", body="taken", owner_id=BOB.user_id, score=1, secret="s")
    mine = tenant.put("notes", body="mine", owner_id=ALICE.user_id, secret="s")
    taken = (422, {"body": "taken"})
    assert refused(lambda: tenant.insert(ALICE, "notes", body="taken", owner_id=ALICE.user_id)) == taken
    assert refused(lambda: tenant.update(ALICE, "notes", mine, body="taken")) == taken
    both = [{"body": "free", "owner_id": ALICE.user_id}, {"body": "taken", "owner_id": ALICE.user_id}]
    assert refused(lambda: services.insert_rows(tenant.environment, ALICE, "notes", both)) == (422, {"1.body": "taken"})
    assert refused(lambda: tenant.update(KEY, "notes", mine, score=1)) == (422, {"score": "taken", "secret": "taken"})
    # Alice has no column `secret`, so she is not told that it takes part.
    assert refused(lambda: tenant.update(ALICE, "notes", mine, score=1)) == (422, {"$body": "taken"})


def test_deleting_what_other_rows_hold_fast_is_a_conflict() -> None:
    document = notes()
    document["tables"]["notes"]["columns"]["parent"]["on_delete"] = "restrict"
    tenant = Tenant(document).with_users(ALICE)
    parent = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    child = tenant.put("notes", body="y", owner_id=ALICE.user_id, parent_id=parent)
    assert refused(lambda: tenant.delete(KEY, "notes", parent))[0] == 409
    assert len(table(tenant)) == 2
    tenant.delete(KEY, "notes", child)
    tenant.delete(KEY, "notes", parent)
    assert table(tenant) == []


def test_more_rows_than_are_looked_for_hold_one_fast() -> None:
    document = notes()
    document["tables"]["notes"]["columns"]["parent"]["on_delete"] = "restrict"
    tenant = Tenant(document).with_users(ALICE)
    parent = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    tenant.raw(
        "INSERT INTO {}.notes (id, body, owner_id, parent_id) SELECT 'n' || n, 'x', %s, %s FROM generate_series(1, 10002) n",
        ALICE.user_id,
        parent,
    )
    with pytest.raises(Conflict, match="deleted: at least 10,002 of notes."):
        tenant.delete(KEY, "notes", parent)


def test_too_many_rows_are_not_taken_along() -> None:
    tenant = tenant_of()
    parent = tenant.put("notes", body="x", owner_id=ALICE.user_id)
    tenant.raw(
        "INSERT INTO {}.notes (id, body, owner_id, parent_id) SELECT 'n' || n, 'x', %s, %s FROM generate_series(1, 10001) n",
        ALICE.user_id,
        parent,
    )
    assert refused(lambda: tenant.delete(KEY, "notes", parent))[0] == 409
    tenant.raw("DELETE FROM {}.notes WHERE id IN ('n1')")
    tenant.delete(KEY, "notes", parent)
    assert table(tenant) == []


@pytest.mark.parametrize(
    "claims", [{}, {"teams": []}, {"teams": None}, {"teams": "x"}, {"teams": [1]}, {"teams": {"a": 1}}]
)
@pytest.mark.parametrize(
    "where",
    [
        {"body": {"$in": "$user.claims.teams"}},
        {"body": {"$nin": "$user.claims.teams"}},
        {"$not": {"body": {"$in": "$user.claims.teams"}}},
        {"$or": [{"body": {"$nin": "$user.claims.teams"}}, {"body": {"$in": "$user.claims.teams"}}]},
        {"notes": {"$none": {"body": {"$in": "$user.claims.teams"}}}},
        {"notes": {"$every": {"body": {"$in": "$user.claims.teams"}}}},
    ],
)
def test_a_missing_or_empty_operand_opens_nothing(claims: dict[str, Any], where: dict[str, Any]) -> None:
    """Threat T4."""
    tenant = tenant_of(user={"read": {"where": where}})
    tenant.put("notes", body="x", owner_id=ALICE.user_id)
    who = Principal("user", user_id=ALICE.user_id, claims=claims)
    assert tenant.rows(who, "notes") == []
    with pytest.raises(NotFound):
        tenant.get(who, "notes", table(tenant)[0]["id"])
    allowed = Principal("user", user_id=ALICE.user_id, claims={"teams": ["x"]})
    denied = Principal("user", user_id=ALICE.user_id, claims={"teams": ["y"]})
    assert tenant.rows(allowed, "notes") or tenant.rows(denied, "notes")


@pytest.mark.parametrize("operator", ["$like", "$ilike", "$ieq"])
def test_a_variable_in_a_pattern_matches_literally(operator: str) -> None:
    """An email with `_` or `%` must not read the rows of other emails."""
    tenant = tenant_of(user={"read": {"where": {"body": {operator: "$user.email"}}}})
    tenant.put("notes", body="axb@example.com", owner_id=ALICE.user_id)
    own = tenant.put("notes", body="a_b@example.com", owner_id=ALICE.user_id)
    wildcard = tenant.put("notes", body="%", owner_id=ALICE.user_id)

    def ids(email: str) -> list[str]:
        who = replace(CHARLIE, email=email)
        return [note["id"] for note in tenant.pages(who, "notes")]

    assert ids("a_b@example.com") == [own]
    assert ids("%") == [wildcard]
    assert ids("a\\") == []


def test_ieq_and_iin_ignore_case_and_know_no_wildcards() -> None:
    tenant = tenant_of(user={"read": {}})
    ada, pattern, null = (
        tenant.put("notes", body="x", secret=text, owner_id=ALICE.user_id) for text in ("Ada", "A_a", None)
    )
    tenant.put("notes", body="x", secret="Adam", owner_id=ALICE.user_id)

    def ids(**where: Any) -> list[str]:
        return sorted(note["id"] for note in tenant.pages(ALICE, "notes", where={"secret": where}))

    assert ids(**{"$ieq": "ADA"}) == [ada]
    assert ids(**{"$ieq": "a_A"}) == [pattern]
    assert ids(**{"$iin": ["aDA", "a_a", None]}) == sorted([ada, pattern, null])
    assert ids(**{"$iin": []}) == []


@pytest.mark.parametrize(
    "where",
    [{"body": "$user.email"}, {"body": {"$in": ["$user.email", "other"]}}, {"body": {"$not": {"$ne": "$user.email"}}}],
)
def test_a_column_equals_the_callers_email_whatever_its_case(where: Any) -> None:
    tenant = tenant_of(user={"read": {"where": where}})
    mine = tenant.put("notes", body="Charlie@Example.COM", owner_id=ALICE.user_id)
    tenant.put("notes", body="xcharlie@example.com", owner_id=ALICE.user_id)
    assert [note["id"] for note in tenant.pages(CHARLIE, "notes")] == [mine]
    assert tenant.pages(replace(CHARLIE, email="char_ie@example.com"), "notes") == []
