"""Named conditions (`$is`) and columns compared with columns (`$column`). docs/reference/rules.md."""

from typing import Any

import pytest

from rows.rules import rules
from rows.rules.conditions import Compare, Not, OtherCell, Path
from rows.rules.evaluator import holds
from tests.rows.conftest import Tracker
from tests.support.client import Answer

MEMBER = {"is_member": {"memberships": {"$some": {"member_id": "$user.id"}}}}
TEAM: dict[str, Any] = {
    "tables": {
        "organizations": {
            "columns": {"name": {"type": "text"}, "owner": {"type": "user"}},
            "conditions": {
                **MEMBER,
                "is_owner": {"owner_id": "$user.id"},
                "may_see": {"$or": [{"$is": "is_owner"}, {"$is": "is_member"}]},
                "is_named": {"name": {"$ne": ""}},
            },
            "rules": {
                "user": {
                    "read": {"where": {"$is": "may_see"}},
                    "insert": {"set": {"owner_id": "$user.id"}},
                    "update": {"where": {"$is": "is_owner"}},
                }
            },
        },
        "memberships": {
            "columns": {
                "organization": {"type": "reference", "to": "organizations", "on_delete": "cascade"},
                "member": {"type": "user"},
                "role": {"type": "enum", "values": ["owner", "member"], "default": "member"},
            },
            "unique": [["organization", "member"]],
            "rules": {
                "user": {
                    "read": {"where": {"organization": {"$is": "may_see"}}},
                    "insert": {"check": {"organization": {"$is": "is_owner"}}},
                }
            },
        },
        "projects": {
            "columns": {
                "organization": {"type": "reference", "to": "organizations", "on_delete": "cascade"},
                "title": {"type": "text"},
                "starts_on": {"type": "date", "null": True},
                "ends_on": {"type": "date", "null": True},
                "budget": {"type": "decimal", "precision": 10, "scale": 2, "default": "0.00"},
                "cost": {"type": "integer", "null": True},
                "secret": {"type": "date", "null": True},
            },
            "conditions": {
                "is_late": {"ends_on": {"$lt": {"$column": "starts_on"}}},
                "uses_hidden": {"secret": None},
                "title": {"title": "Boats"},
            },
            "rules": {
                "user": {
                    "read": {"where": {"organization": {"$is": "is_member"}}, "columns": ["*", "-secret"]},
                    "insert": {"check": {"organization": {"$is": "is_member"}}},
                }
            },
        },
    }
}

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def app(make_tracker: Any) -> Tracker:
    tracker: Tracker = make_tracker(TEAM, "Team", users=("alice", "bob", "eve"))
    return tracker


def document(**tables: Any) -> dict[str, Any]:
    """TEAM with other parts in its tables."""
    return {"tables": {name: {**table, **tables.get(name, {})} for name, table in TEAM["tables"].items()}}


def plan(app: Tracker, proposed: dict[str, Any]) -> Answer:
    return app.call("owner", "PUT", "/schema", json={"document": proposed, "dry_run": True})


def refused(app: Tracker, proposed: dict[str, Any]) -> dict[str, str]:
    got = plan(app, proposed)
    assert got.status == 422, got.json
    return {path.removeprefix("document."): code for path, code in got.fields.items()}


def organization(app: Tracker, who: str = "alice", *members: str) -> str:
    operations = [{"op": "insert", "table": "organizations", "values": {"name": "Acme"}, "name": "org"}]
    operations += [
        {"op": "insert", "table": "memberships",
         "values": {"organization_id": {"$ref": "org.id"}, "member_id": app.users[member]}}
        for member in (who, *members)
    ]  # fmt: skip
    made = app.post(who, "/batch", {"operations": operations})
    assert made.status == 200, made.json
    return str(made.json["results"][0]["row"]["id"])


def titles(app: Tracker, who: str, where: str | None = None) -> list[str]:
    got = app.post(who, "/rows/projects/query", {} if where is None else {"where": {"$is": where}, "order": "title"})
    assert got.status == 200, got.json
    return [row["title"] for row in got.json["data"]]


def test_a_team_application_defines_membership_once(app: Tracker) -> None:
    org = organization(app, "alice", "bob")
    for who, status in (("alice", 201), ("bob", 201), ("eve", 422)):
        got = app.post(who, "/rows/projects", {"organization_id": org, "title": who, "budget": "2.50"})
        assert got.status == status, got.json
    assert titles(app, "bob") == titles(app, "alice") == ["alice", "bob"] or titles(app, "bob") == ["bob", "alice"]
    assert titles(app, "eve") == []
    total = app.post("bob", "/rows/projects/aggregate", {"count": True, "sum": ["budget"]}).json["data"]
    assert total == [{"count": 2, "sum_budget": "5.00"}]
    assert app.post("eve", "/rows/projects/aggregate", {"count": True}).json["data"] == [{"count": 0}]
    invited = {"organization_id": org, "member_id": app.users["eve"]}
    assert app.post("bob", "/rows/memberships", invited).status == 422
    assert app.post("alice", "/rows/memberships", invited).status == 201
    assert len(titles(app, "eve")) == 2


def test_a_filter_uses_a_condition_without_variables(app: Tracker) -> None:
    org = organization(app)
    for title, starts, ends in (
        ("Boats", "2026-01-02", "2026-01-01"),
        ("Cars", "2026-01-01", "2026-01-02"),
        ("None", None, None),
    ):
        body = {"organization_id": org, "title": title, "starts_on": starts, "ends_on": ends}
        assert app.post("alice", "/rows/projects", body).status == 201
    assert titles(app, "alice", "is_late") == ["Boats"]
    assert titles(app, "alice", "title") == ["Boats"], "a condition may have the name of a column"


@pytest.mark.parametrize("name", ["uses_hidden", "nonono"])
def test_a_filter_cannot_probe_hidden_columns(app: Tracker, name: str) -> None:
    got = app.post("alice", "/rows/projects/query", {"where": {"$is": name}})
    assert (got.status, got.fields) == (422, {"where": "unknown"})
    assert got.json["error"]["fields"][0]["message"] == "$is: there is no condition of this name that can be used here."


def test_a_filter_cannot_use_a_condition_with_variables(app: Tracker) -> None:
    for where in ({"$is": "is_owner"}, {"$is": "may_see"}):
        got = app.post("alice", "/rows/organizations/query", {"where": where})
        assert (got.status, got.fields) == (422, {"where": "unknown"})
    through = app.post("alice", "/rows/projects/query", {"where": {"organization": {"$is": "is_member"}}})
    assert (through.status, through.fields) == (422, {"where": "unknown"})
    through = app.post("alice", "/rows/projects/query", {"where": {"organization": {"$is": "is_named"}}})
    assert through.status == 200


def test_conditions_must_not_form_a_cycle(app: Tracker) -> None:
    loop = {"a": {"$is": "b"}, "b": {"$not": {"$is": "a"}}}
    assert refused(app, document(projects={"conditions": loop})) == {
        "tables.projects.conditions.a.$is.$not.$is": "cycle",
        "tables.projects.conditions.b.$not.$is.$is": "cycle",
    }
    itself = {"a": {"organization": {"$is": "b"}}}
    there = {"b": {"projects": {"$some": {"$is": "a"}}}, **TEAM["tables"]["organizations"]["conditions"]}
    assert set(
        refused(app, document(projects={"conditions": itself}, organizations={"conditions": there})).values()
    ) == {"cycle"}


def test_a_misspelled_condition_is_reported_where_it_is_written(app: Tracker) -> None:
    rule = {"user": {"read": {"where": {"organization": {"$is": "is_membr"}}}}}
    got = plan(app, document(projects={"rules": rule}))
    path = "document.tables.projects.rules.user.read.where.organization.$is"
    assert got.fields == {path: "unknown"}
    assert got.json["error"]["fields"][0]["message"].endswith('; did you mean "is_member"?')
    there = app.post("alice", "/rows/projects/query", {"where": {"organization": {"$is": "is_nammed"}}})
    message = "organization.$is: there is no condition of this name that can be used here."
    assert there.json["error"]["fields"][0]["message"] == message, "conditions are not listed to callers"


@pytest.mark.parametrize("word", ["$i", "$IS", "$any"])
def test_a_misspelled_operator_behind_a_relation_is_reported_itself(app: Tracker, word: str) -> None:
    got = app.post("alice", "/rows/projects/query", {"where": {"organization": {word: "is_named"}}})
    assert (got.status, got.fields) == (422, {"where": "unknown_operator"})
    message = got.json["error"]["fields"][0]["message"]
    assert message.startswith(f"organization.{word}: there is no such operator")
    assert "$is" in message.partition("operator")[2]


def test_conditions_are_bounded(app: Tracker) -> None:
    deep = {f"c{number}": {"$or": [{"$is": f"c{number + 1}"}]} for number in range(9)} | {"c9": {"title": "x"}}
    assert "too_deep" in refused(app, document(projects={"conditions": deep})).values()
    many = {f"c{number}": {} for number in range(51)}
    assert refused(app, document(projects={"conditions": many})) == {"tables.projects.conditions": "too_many"}


def test_names_of_conditions_are_no_levels(app: Tracker) -> None:
    chain = {f"c{number}": {"$is": f"c{number + 1}"} for number in range(49)} | {"c49": {"title": "x"}}
    assert plan(app, document(projects={"conditions": chain})).status == 200
    owner = {"$or": [{"owner_id": "$user.id"}, {"memberships": {"$some": {"member_id": "$user.id", "role": "owner"}}}]}
    changed = document(
        organizations={"conditions": {**TEAM["tables"]["organizations"]["conditions"], "is_run_by_me": owner}},
        projects={"conditions": {"is_run_by_me": {"organization": {"$is": "is_run_by_me"}}}},
    )
    changed["tables"]["remarks"] = {
        "columns": {"project": {"type": "reference", "to": "projects"}, "is_internal": {"type": "boolean"}},
        "rules": {"user": {"read": {"where": {"$or": [{"is_internal": False}, {"project": {"$is": "is_run_by_me"}}]}}}},
    }
    got = plan(app, changed)
    assert got.status == 200, got.json


def test_conditions_count_in_full_wherever_they_are_used(app: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, 100 KB of uses of a condition of 100 take a minute to read."""
    monkeypatch.setattr(rules, "MAX_IN_ALL", 1_000)
    conditions = {"large": {"$or": [{"title": str(number)} for number in range(97)]}}

    def used(times: int) -> dict[str, Any]:
        roles = {f"r{number}": {"read": {"where": {"$is": "large"}}} for number in range(times)}
        return document(projects={"conditions": conditions, "rules": roles})

    assert plan(app, used(8)).status == 200
    assert refused(app, used(11)) == {"tables": "too_many"}


@pytest.mark.parametrize(
    ("conditions", "fields"),
    [
        ({"a": {"nonono": 1}}, {"a.nonono": "unknown"}),
        ({"a": {"$is": "nonono"}}, {"a.$is": "unknown"}),
        ({"a": {"$is": 7}}, {"a.$is": "wrong_type"}),
        ({"a": {"title": {"$lt": {"$column": "nonono"}}}}, {"a.title.$lt": "unknown"}),
        ({"a": {"title": {"$lt": {"$column": 7}}}}, {"a.title.$lt": "wrong_type"}),
        ({"a": {"title": {"$lt": {"$column": "starts_on"}}}}, {"a.title.$lt": "wrong_type"}),
        ({"a": {"budget": {"$gt": {"$column": "cost"}}}}, {"a.budget.$gt": "wrong_type"}),
        ({"a": {"title": {"$like": {"$column": "title"}}}}, {"a.title.$like": "wrong_type"}),
        ({"A b": {}}, {'"A b"': "invalid"}),
        ({"a": []}, {"a": "invalid"}),
        ({"a": {"title": "$old.title"}}, {"a.title": "unknown"}),
    ],
)
def test_an_invalid_condition_names_its_place(app: Tracker, conditions: Any, fields: dict[str, str]) -> None:
    found = refused(app, document(projects={"conditions": conditions}))
    assert {path.removeprefix("tables.projects.conditions."): code for path, code in found.items()} == fields


def test_the_plan_lists_the_rules_that_a_condition_affects(app: Tracker) -> None:
    wider = {**TEAM["tables"]["organizations"]["conditions"], "is_member": {}}
    got = plan(app, document(organizations={"conditions": wider}))
    assert got.status == 200, got.json
    names = [operation["operation"] for operation in got.json["operations"]]
    assert names == [
        "change condition is_member of organizations; affects memberships.user.read, organizations.user.read, "
        "projects.user.insert, projects.user.read"
    ]


def test_explain_names_the_condition_and_its_results(app: Tracker) -> None:
    org = organization(app, "alice", "bob")
    row = app.post("alice", "/rows/projects", {"organization_id": org, "title": "Boats"}).json["id"]
    seen = app.post("key", "/rows/projects/explain", {"id": row, "as": app.users["eve"]})
    assert seen.json["visible"] is False
    clauses = {clause["clause"]: clause["why"] for rule in seen.json["rules"] for clause in rule["clauses"]}
    assert "organization.$is is false" in clauses['{"organization": {"$is": "is_member"}}']
    seen = app.post("key", "/rows/organizations/explain", {"id": org, "as": app.users["bob"]})
    clauses = {clause["clause"]: clause["why"] for rule in seen.json["rules"] for clause in rule["clauses"]}
    assert "$is.$or.1.$is.memberships.$some is true" in clauses['{"$is": "may_see"}']


# ── Columns compared with columns ──


def test_two_columns_are_compared_in_sql_and_python(app: Tracker) -> None:
    org = organization(app)
    dates = [None, "2026-01-01", "2026-01-02"]
    for starts in dates:
        for ends in dates:
            body = {"organization_id": org, "title": f"{starts} {ends}", "starts_on": starts, "ends_on": ends}
            assert app.post("alice", "/rows/projects", body).status == 201
    for operator in ("$eq", "$ne", "$lt", "$lte", "$gt", "$gte"):
        where = {"ends_on": {operator: {"$column": "starts_on"}}}
        got = app.post("alice", "/rows/projects/query", {"where": where, "limit": 100})
        assert got.status == 200, got.json
        found = {row["title"] for row in got.json["data"]}
        leaf = Compare(Path((), "ends_on"), "eq" if operator == "$ne" else operator[1:], OtherCell("starts_on", "date"))  # type: ignore[arg-type]
        condition = Not(leaf) if operator == "$ne" else leaf
        rows = [{"starts_on": starts, "ends_on": ends} for starts in dates for ends in dates]
        assert found == {f"{row['starts_on']} {row['ends_on']}" for row in rows if holds(condition, row)}


def test_a_hidden_column_cannot_be_compared(app: Tracker) -> None:
    for where in ({"starts_on": {"$lt": {"$column": "secret"}}}, {"starts_on": {"$lt": {"$column": "nonono"}}}):
        got = app.post("alice", "/rows/projects/query", {"where": where})
        assert (got.status, got.fields) == (422, {"where": "unknown"})


def test_a_path_compares_cells_of_its_last_row(app: Tracker) -> None:
    org = organization(app)
    app.post("alice", "/rows/projects", {"organization_id": org, "title": "Boats"})
    where = {"organization.created_at": {"$lte": {"$column": "updated_at"}}}
    assert len(app.post("alice", "/rows/projects/query", {"where": where}).json["data"]) == 1


def test_a_check_compares_the_new_cells(app: Tracker) -> None:
    rules = {"user": {**TEAM["tables"]["projects"]["rules"]["user"], "insert": {
        "check": {"organization": {"$is": "is_member"}, "ends_on": {"$gte": {"$column": "starts_on"}}}}}}  # fmt: skip
    app.apply(document(projects={"rules": rules}))
    org = organization(app)
    body = {"organization_id": org, "title": "Boats", "starts_on": "2026-01-02"}
    assert app.post("alice", "/rows/projects", {**body, "ends_on": "2026-01-01"}).status == 422
    assert app.post("alice", "/rows/projects", {**body, "ends_on": "2026-01-03"}).status == 201


def test_a_webhook_filter_uses_conditions_and_columns(app: Tracker) -> None:
    def hook(where: Any) -> Answer:
        body = {"url": "https://hooks.example.com/in", "events": ["projects.insert"], "filter": where}
        return app.post("owner", "/webhooks", body)

    assert hook({"$is": "is_late"}).status == 201
    assert hook({"ends_on": {"$lt": {"$column": "starts_on"}}}).status == 201
    assert hook({"$is": "nonono"}).status == 422
