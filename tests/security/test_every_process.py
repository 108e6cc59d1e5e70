"""Threat T5: what is not allowed any more is allowed by no web process, from the answer that said so on.

Each web process remembers schemas, compiled rules and callers. Here all of them have seen the old state, and know it
well, before it changes through one of them; then 200 requests go to all (fifty to each of four endpoints), and not one may
be answered by it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Api
from tests.support.every_process import REQUESTS, Seen, ask_everywhere
from tests.support.service import Up, manage

pytestmark = pytest.mark.served

WARMING = 20
COLUMNS = {"body": {"type": "text"}, "wage": {"type": "integer", "null": True}, "owner": {"type": "user", "null": True}}


def document(columns: dict[str, Any] = COLUMNS, **rules: Any) -> dict[str, Any]:
    return {"tables": {"notes": {"columns": columns, "rules": {"server": {"read": {}, "insert": {}}, **rules}}}}


class House:
    """A project's production environment on the served service, with the account that owns it."""

    def __init__(self, up: Up) -> None:
        self.up, self.api = up, Api(up.base_url)
        account = up.facts["account"]
        self.owner = self.sign_in(account)
        made = self.call(self.owner, "POST", "/projects", {"name": "Every process", "region": "us-east-1"}, place=False)
        self.project = made["id"]
        self.environment = next(e["id"] for e in made["environments"] if e["name"] == "production")

    def sign_in(self, who: dict[str, Any], environment: str | None = None) -> str:
        body = {"grant_type": "password", "email": who["email"], "password": who["password"]}
        answer = self.api.post("/v1/auth/token", json=body, environment=environment)
        assert answer.status == 200, answer.json
        return str(answer.json["access_token"])

    def call(self, token: str, method: str, path: str, body: Any = None, *, place: bool = True) -> Any:
        how = {} if body is None else {"json": body}
        environment = self.environment if place else None
        answer = self.api.request(method, f"/v1{path}", token=token, environment=environment, **how)
        assert answer.status < 300, (method, path, answer.json)
        return answer.json

    def user(self, name: str, **facts: Any) -> tuple[str, str]:
        """A user of the application: id and access token."""
        who = {"email": f"{name}@everywhere.example", "password": "correct horse battery"}
        made = self.call(self.owner, "POST", "/users", {**who, **facts})
        return made["id"], self.sign_in(who, self.environment)

    def apply(self, wanted: dict[str, Any], *confirm: str) -> None:
        self.call(self.owner, "PUT", "/schema", {"document": wanted, "confirm": list(confirm)})

    def ask(
        self, token: str, path: str, method: str = "GET", body: Any = None, *, requests: int = REQUESTS // 4
    ) -> list[Seen]:
        return ask_everywhere(
            self.up, method, path, token=token, environment=self.environment, body=body, requests=requests
        )

    def warm(self, expected: int, *asked: Any) -> None:
        """Let every process answer as things are now, with this status."""
        assert statuses(self.ask(*asked, requests=WARMING)) == {expected}


def statuses(answers: list[Seen]) -> set[int]:
    return {answer.status for answer in answers}


@pytest.fixture
def house(served: Up) -> Iterator[House]:
    made = House(served)
    yield made
    made.call(made.owner, "DELETE", f"/projects/{made.project}", place=False)


def columns_seen(answers: list[Seen]) -> set[frozenset[str]]:
    """Which columns the rows of these lists have; each list has rows."""
    assert statuses(answers) == {200}
    assert all(answer.body["data"] for answer in answers)
    return {frozenset(row) for answer in answers for row in answer.body["data"]}


SHOWN = frozenset({"id", "created_at", "updated_at", "body", "wage", "owner_id"})


def test_a_rule_that_changed_is_the_old_one_nowhere(house: House) -> None:
    house.apply(document(user={"read": {}, "update": {}}))
    _, ada = house.user("ada")
    rows = [{"body": word, "wage": 1} for word in ("shown", "hidden")]
    shown, hidden = (row["id"] for row in house.call(house.owner, "POST", "/rows/notes", rows)["data"])
    by_wage = '/rows/notes?where={"wage":1}'
    assert columns_seen(house.ask(ada, "/rows/notes", requests=WARMING)) == {SHOWN}
    house.warm(200, ada, by_wage)
    house.warm(200, ada, f"/rows/notes/{hidden}")
    house.warm(200, ada, f"/rows/notes/{shown}", "PATCH", {"body": "shown"})

    house.apply(document(user={"read": {"where": {"body": "shown"}, "columns": ["*", "-wage"]}}))
    lists = house.ask(ada, "/rows/notes")
    assert columns_seen(lists) == {SHOWN - {"wage"}}
    assert {row["id"] for seen in lists for row in seen.body["data"]} == {shown}
    assert statuses(house.ask(ada, f"/rows/notes/{hidden}")) == {404}
    assert statuses(house.ask(ada, by_wage)) == {422}
    assert statuses(house.ask(ada, f"/rows/notes/{shown}", "PATCH", {"body": "changed"})) == {404}

    house.apply(document(user={"read": {}}))
    assert columns_seen(house.ask(ada, "/rows/notes")) == {SHOWN}


@pytest.mark.timeout(300)  # three commands, each a process of its own
def test_suspension_and_resumption_apply_in_every_process(house: House, tmp_path: Path) -> None:
    house.apply(document(user={"read": {}}))
    _, ada = house.user("ada")
    body = {"name": "reader", "scopes": ["rows:read"], "environment_id": house.environment}
    key = house.call(house.owner, "POST", "/keys", body)["secret"]
    doors = [(who, "/rows/notes") for who in (ada, key, house.owner)]
    for door in doors:
        assert statuses(house.ask(*door)) == {200}
    manage(house.up, "suspend_project", house.project, "--reason", "an incident")
    for door in doors:
        answers = house.ask(*door)
        assert {(seen.status, seen.body["error"]["code"]) for seen in answers} == {(403, "project_suspended")}
    manage(house.up, "backup", house.environment, "--to", str(tmp_path / "kept.tar"))
    assert (tmp_path / "kept.tar").stat().st_size
    manage(house.up, "resume_project", house.project)
    for door in doors:
        assert statuses(house.ask(*door)) == {200}


def test_readded_column_has_no_old_grant_and_no_old_value(house: House) -> None:
    """As in an advisory of Directus, GHSA-9x5g-62gj-wqf2: there the permission outlived the column."""
    granted = {"read": {"columns": ["body", "wage"]}, "update": {"columns": ["wage"]}}
    house.apply(document(user=granted))
    _, ada = house.user("ada")
    [note] = house.call(house.owner, "POST", "/rows/notes", [{"body": "x", "wage": 7}])["data"]
    doors = (
        (ada, '/rows/notes?where={"wage":7}'),
        (ada, "/rows/notes?order=wage.desc"),
        (ada, f"/rows/notes/{note['id']}", "PATCH", {"wage": 7}),
    )
    for door in doors:
        house.warm(200, *door)

    without = {name: column for name, column in COLUMNS.items() if name != "wage"}
    house.apply(document(without, user={"read": {"columns": ["body"]}}), "drop column notes.wage")
    house.apply(document(user={"read": {"columns": ["body"]}}))
    house.call(house.owner, "POST", "/rows/notes", [{"body": "y", "wage": 7}])
    lists = house.ask(ada, "/rows/notes")
    assert columns_seen(lists) == {frozenset({"id", "body"})}
    for door, status in zip(doors, (422, 422, 404), strict=True):
        assert statuses(house.ask(*door)) == {status}, door
    by_owner = house.ask(house.owner, "/rows/notes")
    assert {row["wage"] for seen in by_owner for row in seen.body["data"]} == {None, 7}


@pytest.mark.parametrize(
    "changed",
    [{"role": None}, {"claims": {"floor": 1}}],
    ids=["role", "claims"],
)
def test_a_users_role_and_claims_are_the_new_ones_everywhere(house: House, changed: dict[str, Any]) -> None:
    house.apply(
        document(user={"read": {"where": {"body": "all"}}}, chief={"read": {"where": {"wage": "$user.claims.floor"}}})
    )
    house.call(house.owner, "POST", "/rows/notes", [{"body": "all", "wage": 1}, {"body": "chiefs", "wage": 2}])
    user, token = house.user("carl", role="chief", claims={"floor": 2})

    def bodies(requests: int) -> set[tuple[str, ...]]:
        answers = house.ask(token, "/rows/notes", requests=requests)
        assert statuses(answers) == {200}
        return {tuple(row["body"] for row in answer.body["data"]) for answer in answers}

    assert bodies(WARMING) == {("chiefs",)}
    house.call(house.owner, "PATCH", f"/users/{user}", changed)
    assert bodies(REQUESTS) == {("all",)}


def test_an_embedded_user_is_the_new_one_everywhere_and_then_none(house: House) -> None:
    house.apply(document(user={"read": {}}) | {"users": {"user": ["name"]}})
    _, ada = house.user("ada")
    user, _ = house.user("dora")
    house.call(house.owner, "PATCH", f"/users/{user}", {"name": "Dora"})
    house.call(house.owner, "POST", "/rows/notes", {"body": "x", "owner_id": user})

    def owners(requests: int) -> set[str | None]:
        answers = house.ask(ada, "/rows/notes?with=owner", requests=requests)
        assert statuses(answers) == {200}
        return {row["owner"] and row["owner"]["name"] for answer in answers for row in answer.body["data"]}

    for _ in range(3):
        assert owners(WARMING) == {"Dora"}
    house.call(house.owner, "PATCH", f"/users/{user}", {"name": "Dora II"})
    assert owners(REQUESTS) == {"Dora II"}
    house.call(house.owner, "DELETE", f"/users/{user}")
    assert owners(REQUESTS) == {None}


@pytest.mark.parametrize("how", ["disabled", "deleted"])
def test_a_user_who_is_gone_is_a_stranger_everywhere(house: House, how: str) -> None:
    house.apply(document(user={"read": {}}))
    user, token = house.user("eve")
    house.warm(200, token, "/rows/notes")
    if how == "disabled":
        house.call(house.owner, "PATCH", f"/users/{user}", {"disabled": True})
    else:
        house.call(house.owner, "DELETE", f"/users/{user}")
    assert statuses(house.ask(token, "/rows/notes", requests=REQUESTS)) == {401}


@pytest.mark.parametrize("publishable", [False, True], ids=["server key", "publishable key"])
def test_a_key_that_is_revoked_opens_nothing_anywhere(house: House, publishable: bool) -> None:
    house.apply(document(anonymous={"read": {}}))
    body = {"name": "short-lived", "scopes": ["rows:read"], "environment_id": house.environment}
    body |= {"publishable": publishable}
    made = house.call(house.owner, "POST", "/keys", body)
    house.warm(200, made["secret"], "/rows/notes")
    house.call(house.owner, "DELETE", f"/keys/{made['id']}")
    assert statuses(house.ask(made["secret"], "/rows/notes", requests=REQUESTS)) == {401}


def test_a_member_has_the_new_role_everywhere_and_then_none(house: House) -> None:
    house.apply(document(member={"read": {}, "insert": {}}))
    admin = house.up.facts["admin"]
    token = house.sign_in(admin)
    members = f"/projects/{house.project}/members"
    member = house.call(house.owner, "POST", members, {"email": admin["email"], "role": "developer"}, place=False)
    write = (token, "/rows/notes", "POST", {"body": "x"})
    house.warm(201, *write)
    house.warm(200, token, "/rows/notes")
    who = member.get("user_id") or member["id"]
    house.call(house.owner, "PATCH", f"{members}/{who}", {"role": "viewer"}, place=False)
    assert statuses(house.ask(*write)) == {403}
    assert statuses(house.ask(token, "/rows/notes")) == {200}
    house.call(house.owner, "DELETE", f"{members}/{who}", place=False)
    assert statuses(house.ask(token, "/rows/notes")) == {404}
