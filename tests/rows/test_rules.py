"""Rules: which role's apply, what they grant, that a missing operand grants nothing, and how a wrong rule is named."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform_site.identity.callers import ENVIRONMENT_SCOPES, Caller, EnvironmentRef
from rows.rules.access import Access
from rows.rules.conditions import (
    FALSE,
    TRUE,
    And,
    Compare,
    Condition,
    Constant,
    Path,
    Present,
    Quantified,
    Variable,
    all_of,
    guarded,
    negate,
)
from rows.rules.evaluator import Facts, holds
from rows.rules.grammar import read_rule
from rows.rules.operators import ALL_OPERATORS
from rows.rules.principal import Principal, bind, resolve
from rows.rules.rules import InvalidRule, Ruleset, validate
from rows.schema.model import Hop, InvalidDocument, Schema
from tests.support.missing_operands import CLAIMS, uses
from tests.support.tracker import tracker

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ALICE = Principal(
    "user", user_id="usr_alice", email="alice@example.com", claims={"team": "red", "teams": ["red", "blue"]}
)
BOB = Principal("user", user_id="usr_bob", email="bob@example.com", role="editor")
KEY = Principal("key", key_id="key_1")
MEMBER = Principal("account", user_id="usr_owner")
VIEWER = Principal("account", user_id="usr_viewer", reads_only=True)
ROOT = Principal("key", key_id="key_root", bypass=True)


def schema_with(rules: Any, **columns: Any) -> Schema:
    """One table `pages` under `rules`, beside the tracker's."""
    made = {
        "body": {"type": "text"},
        "team": {"type": "text", "null": True},
        "level": {"type": "integer", "null": True},
        "tags": {"type": "text[]", "null": True},
        "meta": {"type": "json", "null": True},
        "secret": {"type": "text", "null": True},
        "owner": {"type": "user", "null": True},
        "task": {"type": "reference", "to": "tasks", "on_delete": "cascade", "null": True},
        **columns,
    }
    return tracker(pages={"columns": made, "rules": rules})


def reads(where: Any) -> Any:
    return {"user": {"read": {"where": where}}}


def access(rules: Any, principal: Principal = ALICE) -> Access:
    schema = schema_with(rules)
    assert validate(schema) == []
    ruleset = Ruleset(schema)
    return ruleset.access("pages", ruleset.role_key(principal))


def no_rows(hop: Hop, row: Any) -> list[Any]:
    return []


@cache
def read_rule_of(where: str) -> Condition:
    """The condition under which a user reads a row of `pages` whose rule is `where`, which must be valid."""
    schema = schema_with(reads(json.loads(where)))
    assert validate(schema) == []
    rule = Ruleset(schema).access("pages", "user").read
    assert rule is not None
    return rule.where


def is_readable(where: Any, row: Any, principal: Principal = ALICE, related: Any = no_rows) -> bool:
    condition = read_rule_of(json.dumps(where))
    return holds(condition, row, Facts(variable=partial(resolve, principal=principal, now=NOW), related=related))


# The caller and the role


def test_a_caller_becomes_a_principal() -> None:
    environment = EnvironmentRef("env_1", "production", "prj_1", "us-east-1", "us-east-1", "free", "env_1")
    user = Caller(
        "user", "usr_1", frozenset(), environment=environment, email="a@b.c", role="editor", claims={"team": "red"}
    )
    assert Principal.of(user) == Principal("user", "usr_1", "a@b.c", "editor", {"team": "red"})
    key = Caller("key", "key_1", frozenset({"rows:read"}), environment=environment)
    assert Principal.of(key) == KEY
    assert Principal.of(Caller("key", "key_root", ENVIRONMENT_SCOPES, environment=environment)) == ROOT
    for role, reads_only in (("owner", False), ("developer", False), ("viewer", True), (None, True)):
        its = EnvironmentRef("env_1", "production", "prj_1", "us-east-1", "us-east-1", "free", "env_1", role)  # type: ignore[arg-type]
        found = Principal.of(Caller("account", "usr_9", frozenset({"rows:bypass_rules"}), environment=its))
        assert (found.kind, found.reads_only, found.bypass) == ("account", reads_only, False)
    assert Principal.of(Caller("account", "usr_9", frozenset(), email="d@e.f")) == Principal(
        "account", "usr_9", "d@e.f", reads_only=True
    )


def test_role_of_each_principal() -> None:
    rules = Ruleset(schema_with({"editor": {"read": {}}}))
    assert [rules.role_key(p) for p in (ALICE, BOB, KEY, MEMBER, VIEWER, ROOT)] == [
        "user",
        "user:editor",
        "server",
        "member",
        "viewer",
        "all",
    ]
    stranger = Principal("user", user_id="u", role="nobody-names-it")
    assert rules.role_key(stranger) == "user"


@pytest.mark.parametrize("role", ["server", "member", "user", "all", "viewer"])
def test_a_user_cannot_have_the_rules_of_a_built_in_role(role: str) -> None:
    rules = Ruleset(
        schema_with({"server": {"read": {}}, "member": {"read": {}}, "user": {"read": {"where": {"level": 1}}}})
    )
    role_key = rules.role_key(Principal("user", user_id="usr_1", role=role))
    assert role_key == "user"
    assert rules.access("pages", role_key).read == rules.access("pages", "user").read


def test_a_user_whose_role_the_table_does_not_name_has_the_rules_of_user() -> None:
    rules = Ruleset(schema_with({"editor": {"read": {}}}))
    role_key = rules.role_key(BOB)
    assert rules.access("pages", role_key).role == "editor"
    assert rules.access("tasks", role_key).role == "user"
    assert rules.access("secrets", role_key) == Access(None)


def test_no_rule_is_nothing_for_users_and_everything_for_members_and_keys() -> None:
    rules = Ruleset(tracker())
    nothing = rules.access("secrets", "user")
    assert (nothing.read, nothing.insert, nothing.update, nothing.delete) == (None, None, None, None)
    for role_key in ("member", "server", "all"):
        found = rules.access("secrets", role_key)
        assert found.read
        assert found.insert
        assert found.update
        assert found.delete
        assert found.read.where == found.insert.check == found.update.where == found.delete.where == TRUE
        assert found.read.columns == ("id", "body", "task_id", "created_at", "updated_at")
        assert found.insert.columns == {"id", "body", "task_id"}
        assert found.update.columns == {"body", "task_id"}


def test_a_viewer_only_reads() -> None:
    assert access({}, VIEWER) == Access(None, read=access({}, MEMBER).read)
    ruled = {"member": {"read": {"where": {"level": 1}}, "delete": {}}}
    assert access(ruled, VIEWER) == Access("member", read=access(ruled, MEMBER).read)
    assert access(ruled, MEMBER).delete


def test_a_table_that_names_member_or_server_binds_them() -> None:
    rules = {"server": {"read": {"columns": ["body"]}}, "member": {"read": {}}}
    server, member = access(rules, KEY), access(rules, MEMBER)
    assert server.read
    assert server.read.columns == ("id", "body")
    assert (server.insert, server.update, server.delete) == (None, None, None)
    assert (member.insert, member.update, member.delete) == (None, None, None)
    assert access(rules, ROOT).delete


def test_user_role_named_all_or_viewer_grants_nothing_to_such_callers() -> None:
    rules = {role: {"read": {"where": {"level": 1}}} for role in ("all", "viewer")}
    for principal in (ROOT, VIEWER):
        assert access(rules, principal) == access({}, principal)


def test_constants_are_told_apart_by_what_is_bound() -> None:
    """Alternatives that are equal are asked once, statements of equal shapes are shared."""
    one = Constant(b"1", "bigint", 1)
    assert one == Constant(b"1", "bigint")
    assert not [other for other in (Constant(b"2", "bigint", 1), Constant(b"1", "text", 1), b"1", None) if one == other]


def test_rule_that_cannot_be_compiled_denies_reading() -> None:
    """`validate` rejects such rules; one that got in through a defect grants nothing."""
    rules = Ruleset(schema_with({"user": {"read": {"where": {"nope": 1}}, "insert": {"columns": ["nope"]}}}))
    for ask in (lambda: rules.access("pages", "user"), lambda: rules.resolver("user").column("pages", "body")):
        with pytest.raises(InvalidRule, match="tables.pages.rules.user.read.where.nope: "):
            ask()
    assert rules.access("pages", "member").read


# Reading


def test_columns_are_granted_and_revoked() -> None:
    def columns(*patterns: str) -> Any:
        rule = access({"user": {"read": {"columns": [*patterns]}}}).read
        return rule and rule.columns

    everything = (
        "id",
        "body",
        "team",
        "level",
        "tags",
        "meta",
        "secret",
        "owner_id",
        "task_id",
        "created_at",
        "updated_at",
    )
    assert columns("*") == everything
    assert columns("*", "-secret", "-task") == tuple(n for n in everything if n not in ("secret", "task_id"))
    assert columns("-secret", "*") == columns("*", "-secret")
    assert columns("body", "owner") == ("id", "body", "owner_id")
    assert columns("*", "-id", "-created_at")[0] == "id"
    assert columns() == ("id",)


def test_several_read_rules_grant_each_cell_by_itself() -> None:
    rule = access(
        {
            "user": {
                "read": [
                    {"where": {"owner_id": "$user.id"}},
                    {"where": {"team": "$user.claims.team"}, "columns": ["body", "team"]},
                ]
            }
        }
    ).read
    assert rule is not None
    facts = Facts(variable=partial(resolve, principal=ALICE, now=NOW))
    own, teams, others = (
        {"owner_id": "usr_alice", "team": "blue"},
        {"owner_id": "usr_bob", "team": "red"},
        {"owner_id": "usr_bob", "team": None},
    )
    assert [holds(rule.where, row, facts) for row in (own, teams, others)] == [True, True, False]
    assert [holds(rule.cell("secret"), row, facts) for row in (own, teams, others)] == [True, False, False]
    assert rule.cell("body") == rule.cell("id") == TRUE
    assert rule.cell("nope") == FALSE
    assert "secret" in rule.columns
    assert set(rule.partial) == set(rule.columns) - {"id", "body", "team"}


def test_a_column_that_only_some_rules_show_may_read_null() -> None:
    rules_of = Ruleset(schema_with({"user": {"read": [{"where": {"level": 1}}, {"columns": ["body"]}]}}))
    resolver, known = rules_of.resolver("user"), rules_of.schema.tables["pages"].all_columns
    body, created_at = resolver.column("pages", "body"), resolver.column("pages", "created_at")
    assert created_at
    assert created_at.null
    assert body is known["body"]
    assert not body.null
    author = rules_of.author.column("pages", "created_at")
    assert author
    assert not author.null


def test_an_unconditional_rule_beside_another_shows_its_columns_everywhere() -> None:
    for columns in ({}, {"columns": ["body"]}):
        rule = access({"user": {"read": [{"where": {"level": 1}, **columns}, {}]}}).read
        assert rule is not None
        assert (rule.where, rule.partial) == (TRUE, {})


def test_an_empty_list_of_read_rules_is_no_rule() -> None:
    assert access({"user": {"read": []}}).read is None


def test_a_role_without_an_action_may_not_do_it() -> None:
    assert access({"user": {"insert": {}}}) == Access("user", insert=access({"user": {"insert": {}}}).insert)
    found = access({"user": {"read": {}}})
    assert (found.insert, found.update, found.delete) == (None, None, None)


# Sight


def test_a_relation_exists_if_both_ends_may_be_seen() -> None:
    schema = tracker(
        pages={
            "columns": {
                "task": {"type": "reference", "to": "tasks", "on_delete": "cascade"},
                "secret_task": {
                    "type": "reference",
                    "to": "tasks",
                    "on_delete": "cascade",
                    "related_name": "secret_pages",
                },
                "secret": {"type": "reference", "to": "secrets", "null": True},
            },
            "rules": {"user": {"read": {"columns": ["*", "-secret_task"]}}},
        }
    )
    rules = Ruleset(schema)
    user, every = rules.resolver("user"), rules.resolver("all")
    assert user.relation("pages", "task") == Hop("task", "tasks", "task_id")
    assert user.relation("tasks", "pages") == Hop("pages", "pages", "task_id", many=True)
    assert user.relation("pages", "secret_task") is None
    assert user.relation("tasks", "secret_pages") is None
    assert user.relation("tasks", "secrets") is None
    assert user.column("pages", "secret_id")
    assert user.relation("pages", "secret") is None
    assert every.relation("pages", "secret")
    assert every.relation("pages", "secret_task")
    assert every.relation("tasks", "secret_pages")
    assert every.relation("tasks", "secrets")
    assert rules.author.relation("tasks", "secrets")
    assert list(user.relations("tasks")) == ["list", "parent", "tasks", "comments", "pages"]


def test_sights_of_different_versions_never_share_what_was_parsed() -> None:
    one, other = Ruleset(tracker()), Ruleset(tracker())
    tokens = {
        resolver.token
        for rules in (one, other)
        for resolver in (rules.resolver("user"), rules.resolver("all"), rules.author)
    }
    assert len(tokens) == 6
    assert one.resolver("user").token == one.resolver("user").token


# Writing


def test_an_insert_is_checked_and_completed() -> None:
    rule = Ruleset(tracker()).access("tasks", "user").insert
    assert rule is not None
    user = Variable("user.id", "text")
    assert rule.columns == {"title", "list_id"}
    assert rule.set == {"owner_id": user}
    list_owner = Path((Hop("list", "lists", "list_id"),), "owner_id")
    assert rule.check == And((Present(user), Compare(list_owner, "eq", user)))


def test_an_update_asks_the_read_rule_too() -> None:
    found = access(
        {
            "user": {
                "read": {"where": {"level": 1}},
                "update": {"where": {"team": "red"}},
                "delete": {"where": {"team": "blue"}},
            }
        }
    )
    assert found.read
    assert found.update
    assert found.delete
    level, red, blue = (
        Compare(Path((), name), "eq", Constant(wire, type_))  # type: ignore[arg-type]
        for name, wire, type_ in (("level", b"1", "bigint"), ("team", b"red", "text"), ("team", b"blue", "text"))
    )
    assert found.update.where == And((level, red))
    assert found.delete.where == And((level, blue))
    assert [clause.text for clause in found.update.where_clauses] == ['{"team": "red"}']


def test_without_a_check_an_update_leaves_a_row_that_it_could_update() -> None:
    own = {"where": {"owner_id": "$user.id"}}
    kept = access({"user": {"read": {}, "update": own}}).update
    given = access({"user": {"read": {}, "update": {**own, "check": {}}}}).update
    assert kept
    assert given
    assert kept.check == kept.where != TRUE
    assert given.check == TRUE


def test_set_takes_variables_literals_and_null() -> None:
    rule = access(
        {
            "user": {
                "insert": {
                    "set": {
                        "owner": "$user.id",
                        "team": "$$red",
                        "level": 3,
                        "secret": None,
                        "meta": {"by": ["$$user.id"]},
                    },
                    "columns": ["body"],
                }
            }
        }
    ).insert
    assert rule is not None
    assert rule.set == {
        "owner_id": Variable("user.id", "text"),
        "team": Constant(b"$red", "text"),
        "level": Constant(b"3", "bigint"),
        "secret": None,
        "meta": Constant(b'{"by":["$user.id"]}', "jsonb"),
    }
    assert rule.columns == {"body"}
    assert rule.check == Present(Variable("user.id", "text"))


def test_what_is_set_cannot_be_sent() -> None:
    rule = access({"user": {"insert": {"set": {"level": 1}}}}).insert
    assert rule
    assert "level" not in rule.columns
    assert "body" in rule.columns
    whole = access({"user": {"insert": {"set": {"level": 1}, "columns": ["*"]}}}).insert
    assert whole
    assert whole.columns == rule.columns


def test_only_members_and_keys_choose_ids() -> None:
    rules = {role: {"read": {}, "insert": {}, "update": {}} for role in ("user", "member", "server")}
    assert [("id" in (access(rules, p).insert or rules).columns) for p in (ALICE, MEMBER, KEY)] == [False, True, True]  # type: ignore[union-attr]
    for principal in (ALICE, MEMBER, KEY, ROOT):
        update = access(rules, principal).update
        assert update
        assert not update.columns & {"id", "created_at", "updated_at"}
    narrow = access({"server": {"insert": {"columns": ["body"]}}}, KEY).insert
    assert narrow
    assert narrow.columns == {"body"}


def test_a_check_knows_the_old_row() -> None:
    rule = access({"user": {"read": {}, "update": {"check": {"level": {"$gte": "$old.level"}}}}}).update
    assert rule is not None
    facts = partial(Facts, variable=partial(resolve, principal=ALICE, now=NOW))
    assert holds(rule.check, {"level": 5}, facts(old={"level": 5}))
    assert not holds(rule.check, {"level": 4}, facts(old={"level": 5}))
    assert not holds(rule.check, {"level": 5}, facts(old={"level": None}))


# Variables


@pytest.mark.parametrize(
    ("variable", "value", "wire"),
    [
        (Variable("user.id", "text"), "usr_alice", b"usr_alice"),
        (Variable("user.email", "text", "contains"), "%alice@example.com%", b"%alice@example.com%"),
        (Variable("user.email", "text[]", "words"), ("%alice@example.com%",), b'{"%alice@example.com%"}'),
        (Variable("user.role", "text"), None, None),
        (Variable("key.id", "text"), None, None),
        (Variable("user.claims.team", "text"), "red", b"red"),
        (Variable("user.claims.team", "text[]", "one"), ("red",), b'{"red"}'),
        (Variable("user.claims.teams", "text[]"), ("red", "blue"), b'{"red","blue"}'),
        (Variable("user.claims.teams", "text"), None, None),
        (Variable("user.claims.teams", "jsonb"), ["red", "blue"], b'["red","blue"]'),
        (Variable("user.claims.team.x", "text"), None, None),
        (Variable("user.claims.nope", "text"), None, None),
        (Variable("now", "timestamptz"), NOW, None),  # asked of the database's clock
        (Variable("now", "date"), date(2026, 3, 1), None),
    ],
)
def test_what_a_variable_is_worth(variable: Variable, value: Any, wire: bytes | None) -> None:
    assert resolve(variable, ALICE, NOW) == value
    if variable.name != "now":
        assert bind(variable, ALICE) == wire


@pytest.mark.parametrize(
    ("claim", "type_", "form", "value"),
    [
        (False, "boolean", "plain", False),
        (0, "bigint", "plain", 0),
        ({"deep": 1}, "jsonb", "plain", {"deep": 1}),
        ("100%", "text", "starts_with", "100\\%%"),
        (None, "text", "plain", None),
        ("", "text", "plain", None),
        ("", "text", "contains", None),
        (" ", "text[]", "words", None),
        ([], "text[]", "plain", None),
        ([], "jsonb", "plain", None),
        ({}, "jsonb", "plain", None),
        ("5", "bigint", "plain", None),
        (True, "bigint", "plain", None),
        (5, "text", "plain", None),
        ([1], "text[]", "plain", None),
        (["a", None], "text[]", "plain", None),
        ("nul\0", "text", "plain", None),
        ("trailing\\", "text", "like", "trailing\\\\"),
        ("a_b%", "text", "like", "a\\_b\\%"),
        ("a_b%", "text", "exact", "a\\_b\\%"),
        ("x" * 501, "text", "contains", None),
        ("yesterday", "date", "plain", None),
    ],
)
def test_a_claim_of_no_use_is_missing(claim: Any, type_: Any, form: Any, value: Any) -> None:
    principal = Principal("user", user_id="usr_1", claims={"x": claim})
    found = resolve(Variable("user.claims.x", type_, form), principal, NOW)
    assert found == value
    assert type(found) is type(value)


def test_each_principal_has_variables_of_its_own() -> None:
    names = ("user.id", "user.email", "user.role", "key.id")
    found = {p: [resolve(Variable(name, "text"), p) for name in names] for p in (BOB, KEY, MEMBER)}
    assert found == {
        BOB: ["usr_bob", "bob@example.com", "editor", None],
        KEY: [None, None, None, "key_1"],
        MEMBER: ["usr_owner", None, None, None],
    }


@pytest.mark.parametrize("variable", [Variable("old.level", "bigint"), Variable("now", "timestamptz")])
def test_the_old_row_and_the_clock_are_nobodys_value(variable: Variable) -> None:
    with pytest.raises(LookupError):
        bind(variable, ALICE)


# A missing operand grants nothing

ROWS = [
    {"team": team, "level": level, "tags": tags, "meta": meta, "body": "x", "owner_id": owner, "task_id": task}
    for team in (None, "", "red")
    for level in (None, 0, 3)
    for tags in (None, [], ["red"])
    for meta in (None, {}, {"red": 1}, ["red"])
    for owner, task in ((None, None), ("usr_alice", "tsk_1"))
]


def rows_read(where: Any, claims: Any) -> int:
    """How many of ROWS, with and without a related row, a rule lets a user with these claims read."""
    tasks = [{"id": "tsk_1", "title": "red", "task_id": None}]
    alice = Principal("user", user_id="usr_alice", claims=claims)
    return sum(
        is_readable(where, row, alice, lambda hop, row, there=there: there if row["task_id"] else [])
        for row in ROWS
        for there in (tasks, [])
    )


VARIABLE_CLAUSES = [
    (word, clause) for word, clauses in uses("$user.claims.x", "$user.claims.x").items() for clause in clauses
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("word", "clause"), VARIABLE_CLAUSES, ids=lambda value: value if isinstance(value, str) else json.dumps(value)
)
def test_a_missing_claim_reads_no_row(word: str, clause: Any) -> None:
    for claims in CLAIMS.values():
        assert rows_read(clause, claims) == 0
        # At the maximum depth, with anything but an alternative around it.
        assert rows_read({"$not": {"$not": clause}}, claims) == 0
        assert rows_read({"$not": clause}, claims) == 0
        assert rows_read({"body": "x", "$or": [clause]}, claims) == 0
        assert rows_read({"$or": [clause, {"body": "x"}]}, claims) == 2 * len(ROWS)


@pytest.mark.exhaustive
def test_the_table_of_missing_operands_has_every_operator() -> None:
    assert uses("", []).keys() == ALL_OPERATORS
    # And none of its clauses is false for another reason: with a claim of some type, some row is read.
    for word, clause in VARIABLE_CLAUSES:
        claims = ["red", "other", 3, 1, ["red"], {"red": 1}, ["nope"], [0, 3], [7]]
        assert any(rows_read(clause, {"x": claim}) for claim in claims), (word, clause)


@pytest.mark.parametrize("word", ["$in", "$nin", "$hasAny", "$hasAll"])
def test_an_empty_list_in_a_rule_reads_no_row(word: str) -> None:
    for clause in uses("red", [])[word]:
        assert rows_read(clause, {}) == 0
        assert rows_read({"$not": clause}, {}) == 0
    assert rows_read({"task": {"$none": {"title": {"$in": []}}}}, {}) == 0
    assert rows_read({"task": {"$every": {"title": {"$nin": []}}}}, {}) == 0
    assert rows_read({"tags": {"$eq": []}}, {}) == 0
    assert rows_read({"tags": {"$ne": []}}, {}) == 0


def test_a_literal_null_means_null() -> None:
    without = sum(2 for row in ROWS if row["team"] is None)
    assert rows_read({"team": None}, {}) == rows_read({"team": {"$null": True}}, {}) == without
    assert rows_read({"team": {"$ne": None}}, {}) == 2 * len(ROWS) - without
    assert rows_read({"team": {"$in": [None, "red"]}}, {}) == sum(2 for row in ROWS if row["team"] != "")


@pytest.mark.parametrize(
    "word",
    sorted(ALL_OPERATORS - {"$eq", "$ne", "$in", "$iin", "$nin", "$not", "$and", "$or", "$some", "$none", "$every"}),
)
def test_a_literal_null_elsewhere_is_refused(word: str) -> None:
    for clause in uses(None, None)[word] or [{"team": {"$null": None}}]:
        assert validate(schema_with(reads(clause))), clause


@pytest.mark.parametrize("word", ["$like", "$contains", "$istartsWith", "$search"])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_pattern_in_a_rule_is_refused(word: str, empty: str) -> None:
    if empty == " " and word != "$search":
        return
    (error,) = validate(schema_with(reads({"team": {word: empty}})))
    assert error.field == f"tables.pages.rules.user.read.where.team.{word}"


def test_a_list_may_hold_variables() -> None:
    where = {"team": {"$in": ["blue", "$user.claims.team", None]}}
    assert [is_readable(where, {"team": team}) for team in ("blue", "red", None, "green")] == [True, True, True, False]
    # A missing one removes its alternative, and everything in the opposite case.
    nobody = Principal("user", user_id="usr_1")
    assert [is_readable(where, {"team": team}, nobody) for team in ("blue", "red")] == [True, False]
    assert not is_readable({"team": {"$nin": ["blue", "$user.claims.team"]}}, {"team": "green"}, nobody)
    # Also within a relation, but not below `$none`, of which an alternative less would be more.
    either = {"$or": [{"title": "$user.claims.team"}, {"title": "blue"}]}
    for word, found in (("$some", [True, False]), ("$none", [False, False])):
        rule = {"task": {word: either}}
        titles = [
            is_readable(rule, {}, nobody, lambda hop, row, title=title: [{"title": title}]) for title in ("blue", "red")
        ]
        assert titles == found, word
    assert is_readable({"team": {"$nin": ["blue", "$user.claims.team"]}}, {"team": "green"})


def test_a_dollar_is_doubled_to_be_one() -> None:
    assert is_readable({"team": "$$user.id"}, {"team": "$user.id"})
    assert is_readable({"team": {"$in": ["$$a"]}}, {"team": "$a"})
    assert is_readable({"team": {"$startsWith": "$$a"}}, {"team": "$ab"})


# Guards and normal form agree with plain logic while nothing is missing

_atoms = st.sampled_from(
    [
        {"team": "$user.claims.team"},
        {"team": {"$ne": "$user.claims.team"}},
        {"team": {"$in": "$user.claims.teams"}},
        {"level": {"$gt": 1}},
        {"level": None},
        {"tags": {"$has": "$user.claims.team"}},
        {"task": {"$some": {"title": "$user.claims.team"}}},
        {"task": {"$none": {"title": "$user.claims.team"}}},
        {"task": {"$every": {"title": {"$nin": "$user.claims.teams"}}}},
        {"task.title": "$user.claims.team"},
    ]
)
_rules = st.recursive(
    _atoms,
    lambda inner: (
        st.builds(lambda a, b: {"$and": [a, b]}, inner, inner)
        | st.builds(lambda a, b: {"$or": [a, b]}, inner, inner)
        | st.builds(lambda a: {"$not": a}, inner)
        | st.builds(lambda a: {"task": {"$none": {"pages": {"$some": a}}}}, inner)
    ),
    max_leaves=4,
)
RULES = Ruleset(schema_with(reads({})))


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(
    where=_rules,
    team=st.sampled_from([None, "red", "green"]),
    level=st.sampled_from([None, 1, 2]),
    title=st.sampled_from([None, "red", "blue", "green"]),
)
def test_guards_change_nothing_while_every_operand_is_there(where: Any, team: Any, level: Any, title: Any) -> None:
    try:
        plain = read_rule(where, "pages", RULES.author)
    except Exception as error:
        assert "6 levels" in str(error)  # noqa: PT017 - a rule may be drawn too deep
        return
    row = {"id": "p1", "team": team, "level": level, "tags": [team] if team else None, "task_id": title and "t1"}
    task = {"id": "t1", "title": title}

    def related(hop: Hop, at: Any) -> list[Any]:
        return [row] if hop.many else [task] if at.get(hop.column) else []

    facts = Facts(variable=partial(resolve, principal=ALICE, now=NOW), related=related)
    assert holds(guarded(plain), row, facts) == holds(plain, row, facts)
    assert holds(guarded(negate(plain)), row, facts) != holds(plain, row, facts)
    # And while something is missing, a rule never grants both itself and its opposite.
    nobody = Facts(variable=lambda variable: None, related=related)
    assert not (holds(guarded(plain), row, nobody) and holds(guarded(negate(plain)), row, nobody))


def test_a_guarded_rule_cannot_be_negated() -> None:
    with pytest.raises(TypeError):
        negate(guarded(read_rule({"team": "$user.id"}, "pages", RULES.author)))


def test_under_none_every_variable_is_asked_for_first() -> None:
    found = guarded(
        read_rule({"task": {"$none": {"title": "$user.id", "notes": "$user.email"}}}, "pages", RULES.author)
    )
    assert isinstance(found, And)
    *guards, clause = found.conditions
    assert guards == [Present(Variable("user.id", "text")), Present(Variable("user.email", "text", "exact"))]
    assert isinstance(clause, Quantified)
    assert clause.kind == "none"


def test_a_claim_is_found_five_levels_deep() -> None:
    deep = replace(ALICE, claims={"a": {"b": {"c": {"d": {"e": "red"}}}}})
    assert is_readable({"team": "$user.claims.a.b.c.d.e"}, {"team": "red"}, deep)
    assert not is_readable({"team": "$user.claims.a.b.c.d.e"}, {"team": "blue"}, deep)


# What is wrong is named when the schema is applied

WRONG: list[tuple[Any, str, str]] = [
    (reads({"nope": 1}), "read.where.nope", "unknown"),
    (reads({"$or": [{"level": 1}, {"task.nope": 1}]}), "read.where.$or.1.task.nope", "unknown"),
    (reads({"level": "five"}), "read.where.level", "wrong_type"),
    (reads({"level": {"$regex": 1}}), "read.where.level.$regex", "unknown_operator"),
    (reads({"team": "$user.name"}), "read.where.team", "unknown"),
    (reads({"team": "$user.claims"}), "read.where.team", "unknown"),
    (reads({"team": "$user.claims.a..b"}), "read.where.team", "unknown"),
    (reads({"team": "$user.claims.a.b.c.d.e.f"}), "read.where.team", "unknown"),
    (reads({"team": "$"}), "read.where.team", "unknown"),
    (reads({"team": "$old.team"}), "read.where.team", "unknown"),
    (reads({"team": "$now"}), "read.where.team", "wrong_type"),
    (reads({"level": "$user.id"}), "read.where.level", "wrong_type"),
    (reads({"tags": {"$hasAny": "$user.id"}}), "read.where.tags.$hasAny", "wrong_type"),
    (reads({"team": {"$in": "$user.email"}}), "read.where.team.$in", "wrong_type"),
    (reads({"level": {"$null": "$user.claims.x"}}), "read.where.level.$null", "wrong_type"),
    ({"user": {"read": [{}, {"where": {"nope": 1}}]}}, "read.1.where.nope", "unknown"),
    ({"user": {"read": {"columns": ["nope"]}}}, "read.columns.0", "unknown"),
    ({"user": {"read": {"columns": ["*", "-nope"]}}}, "read.columns.1", "unknown"),
    ({"user": {"read": {"columns": ["-secret"]}}}, "read.columns.0", "invalid"),
    ({"user": {"insert": {"check": {"team": "$old.team"}}}}, "insert.check.team", "unknown"),
    ({"user": {"insert": {"columns": ["id", "body"]}}}, "insert.columns.0", "invalid"),
    ({"server": {"insert": {"columns": ["created_at", "body"]}}}, "insert.columns.0", "invalid"),
    ({"user": {"insert": {"columns": ["team"]}}}, "insert.columns", "required"),
    ({"user": {"insert": {"set": {"nope": 1}}}}, "insert.set.nope", "unknown"),
    ({"user": {"insert": {"set": {"id": "x"}}}}, "insert.set.id", "invalid"),
    ({"user": {"insert": {"set": {"body": None}}}}, "insert.set.body", "null"),
    ({"user": {"insert": {"set": {"level": "x"}}}}, "insert.set.level", "wrong_type"),
    ({"user": {"insert": {"set": {"level": "$user.id"}}}}, "insert.set.level", "wrong_type"),
    ({"user": {"insert": {"set": {"team": "$old.team"}}}}, "insert.set.team", "unknown"),
    ({"user": {"insert": {"set": {"team": "a"}, "columns": ["body", "team"]}}}, "insert.columns", "invalid"),
    ({"user": {"read": {}, "update": {"check": {"level": "$old.team"}}}}, "update.check.level", "wrong_type"),
    (
        {"user": {"read": {}, "update": {"check": {"team": {"$contains": "$old.team"}}}}},
        "update.check.team.$contains",
        "invalid",
    ),
    ({"user": {"read": {}, "update": {"check": {"team": "$old.nope"}}}}, "update.check.team", "unknown"),
    ({"user": {"read": {}, "update": {"where": {"team": "$old.team"}}}}, "update.where.team", "unknown"),
    ({"user": {"update": {}}}, "update", "invalid"),
    ({"user": {"delete": {"where": {"level": 1}}}}, "delete", "invalid"),
    (reads({"$or": [{"level": 1}] * 100}), "read.where.$or.99.level", "too_many"),
    # Where it would be taken for a literal text, a variable was meant.
    (reads({"tags": {"$hasAny": ["a", "$user.id"]}}), "read.where.tags.$hasAny.1", "invalid"),
    (reads({"tags": ["$user.id"]}), "read.where.tags.0", "invalid"),
    (reads({"meta": {"by": "$user.id"}}), "read.where.meta.by", "invalid"),
    ({"user": {"insert": {"set": {"meta": {"by": ["$user.id"]}}}}}, "insert.set.meta.by.0", "invalid"),
]


@pytest.mark.parametrize(("rules", "at", "code"), WRONG)
def test_a_wrong_rule_is_named_by_its_path(rules: Any, at: str, code: str) -> None:
    (role,) = rules
    (error,) = validate(schema_with(rules))
    assert (error.field, error.code) == (f"tables.pages.rules.{role}.{at}", code)
    assert error.message.endswith((".", "?"))


@pytest.mark.parametrize(
    "rules",
    [{"user": {"read": {"columns": ["*", "-leveel"]}}}, reads({"level": {"$gt": {"$column": "leveel"}}})],
)
def test_an_unknown_column_that_the_path_lacks_is_in_the_message(rules: Any) -> None:
    (error,) = validate(schema_with(rules))
    assert "leveel" not in error.field
    assert error.message == 'no column "leveel"; did you mean "level"?'


ALWAYS_THE_SAME: list[tuple[Any, str, str]] = [
    ({"owner_id": "auth.uid()"}, "owner_id", 'The caller\'s id is "$user.id".'),
    ({"task.owner_id": {"$in": ["$user.id", "user.id"]}}, "task.owner_id.$in.1", "is not the id of a user"),
    ({"task_id": {"$ne": "Buy milk"}}, "task_id.$ne", "is not the id of a row of tasks"),
    ({"team": {"$eq": {"$column": "team"}}}, "team.$eq", "another column of the same row, here of pages."),
    ({"task.title": {"$ne": {"$column": "title"}}}, "task.title.$ne", "Columns of two rows cannot be compared"),
    (
        {"task": {"$some": {"title": {"$eq": {"$column": "title"}}}}},
        "task.$some.title.$eq",
        "here of tasks. Columns of two rows",
    ),
]


@pytest.mark.parametrize(("where", "at", "message"), ALWAYS_THE_SAME)
def test_a_new_comparison_that_is_always_the_same_is_refused(where: Any, at: str, message: str) -> None:
    schema = schema_with(reads(where))
    (error,) = validate(schema, is_strict=True)
    assert (error.field, error.code) == (f"tables.pages.rules.user.read.where.{at}", "invalid")
    assert message in error.message
    assert access(reads(where)).read is not None


def test_every_wrong_rule_is_named_at_once() -> None:
    rules = {
        "user": {"read": {"where": {"nope": 1}, "columns": ["nah"]}, "insert": {"set": {"x": 1}, "check": {"y": 1}}},
        "editor": {"read": {"where": {"z": 1}}},
    }
    assert [error.field.removeprefix("tables.pages.rules.") for error in validate(schema_with(rules))] == [
        "user.read.columns.0",
        "user.read.where.nope",
        "user.insert.set.x",
        "user.insert.check.y",
        "editor.read.where.z",
    ]


@pytest.mark.parametrize(
    ("action", "word"), [("read", "where"), ("read", "columns"), ("update", "check"), ("insert", "set")]
)
@pytest.mark.parametrize("nothing", [None, 0, False, ""])
def test_a_word_given_as_nothing_is_refused_and_not_taken_for_everything(action: str, word: str, nothing: Any) -> None:
    with pytest.raises(InvalidDocument) as refused:
        schema_with({"user": {"read": {}, action: {word: nothing}}})
    assert [error.field for error in refused.value.errors] == [f"tables.pages.rules.user.{action}.{word}"]


def test_the_trackers_rules_are_right() -> None:
    assert validate(tracker()) == []


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["$user.id", "$old.team", "$$x", "$now"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["team", "level", "task", "nope", *sorted(ALL_OPERATORS)]), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(
    where=st.dictionaries(st.sampled_from(["team", "level", "tags", "meta", "task", "$or", "$not"]), _json, max_size=3),
    raw=_json,
)
def test_whatever_stands_in_a_rule_is_valid_and_compiles_or_is_named(where: Any, raw: Any) -> None:
    rules = {"user": {"read": {"where": where}, "insert": {"set": {"team": raw, "meta": raw}, "check": where}}}
    schema = schema_with(rules)
    errors = validate(schema)
    assert all(error.field.startswith("tables.pages.rules.user.") for error in errors)
    if not errors:
        found = Ruleset(schema).access("pages", "user")
        assert found.read
        assert found.insert
    json.dumps([error.as_dict() for error in errors]).encode()


# Explaining


def test_each_member_of_a_rule_is_a_clause_of_its_own() -> None:
    rule = access(reads({"owner_id": "$user.id", "$or": [{"level": {"$gt": 3}}, {"team": None}]})).read
    assert rule is not None
    (grant,) = rule.grants
    assert [clause.text for clause in grant.clauses] == [
        '{"owner_id": "$user.id"}',
        '{"$or": [{"level": {"$gt": 3}}, {"team": null}]}',
    ]
    assert all_of(clause.condition for clause in grant.clauses) == grant.where
