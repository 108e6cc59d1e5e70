"""A publishable key is public: it permits what the rules of role `anonymous` permit, and nothing else.

The attacker here has read the key in a web page, tries every operation of the API with it, asks for hidden rows, uses
variables that only signed-in callers have, and tries to get another anonymous caller's responses or share of the limits.
"""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client

from accounts import audit
from accounts.keys import server_keys
from accounts.models import AuditEntry, ServerKey, User
from accounts.tokens import credentials
from accounts.users import service as user_service
from platform_site.http.models import IdempotencyRecord
from platform_site.identity.callers import PUBLISHABLE_SCOPES, SCOPES
from platform_site.identity.plans import PLANS
from platform_site.redis import client as redis_client
from projects.models import Environment, Project
from rows.changes import stream_counts
from rows.rules.principal import Principal
from rows.rules.rules import Ruleset
from tests.projects.conftest import environment_of, key_for, publishable_key_for, token_of
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer, Api
from tests.support.openapi import OPEN, filled, name, operations
from tests.support.rate_limits import fresh_identity
from tests.support.site import SITE
from tests.support.tracker import tracker as schema_with

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def where(of: Any) -> str:
    return quote(json.dumps(of))


@pytest.fixture
def site(make_tracker: Any) -> Tracker:  # noqa: F811
    """The application of SITE; `visitor` uses its publishable key."""
    made: Tracker = make_tracker(SITE)
    made.tokens["visitor"] = publishable_key_for(made.environment_id)
    author = planted(made, "authors", pen_name="Bell", real_name="Brontë")
    planted(made, "posts", title="Out", draft=False, earned=5, author_id=author)
    planted(made, "posts", title="Not yet", draft=True, earned=9)
    planted(made, "private", text="x")
    planted(made, "no_rules", text="x")
    return made


def planted(site: Tracker, table: str, **cells: Any) -> str:
    made = site.post("operator", f"/rows/{table}", cells)
    assert made.status == 201, made.json
    return str(made.json["id"])


def everything(site: Tracker) -> list[Any]:
    """Every row of the environment, and how many there are of what is around them."""
    rows = [site.get("operator", f"/rows/{table}").json["data"] for table in SITE["tables"]]
    counted = [model.objects.count() for model in (ServerKey, User, Environment, Project, AuditEntry)]
    return [rows, counted]


# ── Every operation ──

DOORS = {
    "GET /v1/auth/me",
    "GET /v1/limits",
    "GET /v1/rows/{table}",
    "POST /v1/rows/{table}",
    "PATCH /v1/rows/{table}",
    "DELETE /v1/rows/{table}",
    "POST /v1/rows/{table}/query",
    "POST /v1/rows/{table}/aggregate",
    "POST /v1/batch",
    "POST /v1/changes",
    "GET /v1/rows/{table}/{row_id}",
    "PATCH /v1/rows/{table}/{row_id}",
    "DELETE /v1/rows/{table}/{row_id}",
    "POST /v1/functions/{name}/invoke",
}
"""Where a publishable key is let in at all, to whatever the rules then say. Everything else is 403."""

WELL_FORMED = {
    "POST /v1/keys": {"name": "mine", "scopes": ["rows:read"]},
    "PATCH /v1/auth/me": {"name": "Eve"},
    "POST /v1/auth/revoke": {"scope": "all"},
}
"""Bodies of those that read theirs before they look at who asks."""


def test_every_other_operation_is_refused(api: Api, site: Tracker) -> None:
    """Walked over the description, so that a new endpoint is included automatically; with ids that are the key's
    own."""
    before = everything(site)
    real = {"project_id": site.project.pk, "environment_id": site.environment_id, "user_id": site.users["alice"]}
    walked = set()
    for operation in operations():
        method, path, described = operation
        if name(operation) in OPEN or name(operation) in DOORS:
            continue
        for parameter, value in real.items():
            path = path.replace("{" + parameter + "}", value)
        answer = api.request(
            method,
            filled(path, described),
            token=site.tokens["visitor"],
            **({"json": WELL_FORMED.get(name(operation), {})} if "requestBody" in described else {}),
        )
        assert (answer.status, answer.error) == (403, "forbidden"), (name(operation), answer.json)
        walked.add(name(operation))
    assert len(walked) > 50
    assert everything(site) == before


def test_public_operations_return_nothing_without_a_rule(site: Tracker) -> None:
    """Byte for byte as where there is no such table, whatever is asked."""
    before = everything(site)
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None), ("GET", "?where=x", None), ("POST", "", {"text": "x"}), ("POST", "", {"text": 5}),
        ("POST", "/aggregate", {"count": True}), ("POST", "/aggregate", {"count": 5}),
        ("POST", "/query", {}), ("GET", "/x", None), ("PATCH", "/x", {"text": "y"}), ("DELETE", "/x", None),
        ("PATCH", "?where={}", {"text": "y"}), ("DELETE", "?where={}", None),
        ("POST", "?on_conflict=text", {"text": "x"}),
    ]  # fmt: skip
    for method, path, body in asked:
        how = {} if body is None else {"json": body}
        bodies = set()
        for table in ("private", "no_rules", "nothing"):
            answer = site.call("visitor", method, f"/rows/{table}{path}", **how)
            assert answer.status in (404, 405), (method, path, answer.json)
            bodies.add((answer.status, told(answer).replace(table, "…")))
        assert len(bodies) == 1, (method, path, bodies)
    assert everything(site) == before


def test_a_stream_of_changes_opens_for_no_table_without_a_rule(site: Tracker) -> None:
    bodies = set()
    for table in ("private", "no_rules", "nothing"):
        answer = site.post("visitor", "/changes", {"subscriptions": {"a": {"table": table}}})
        assert answer.status == 404, answer.json
        bodies.add(told(answer).replace(table, "…"))
    assert len(bodies) == 1, bodies


def test_a_client_network_may_have_half_of_the_streams_of_a_key(site: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key may have four of these eight."""
    eight = replace(PLANS["free"], streams_per_environment=8)
    monkeypatch.setattr(stream_counts, "plan_limits", lambda plan: eight)
    headers = {"Authorization": f"Bearer {site.tokens['visitor']}"}
    body = {"subscriptions": {"posts": {"table": "posts"}}}
    opened = []
    for address, status in (
        ("2001:db8:1:1::1", 200), ("2001:db8:1:2::1", 200), ("2001:db8:1:3::1", 429), ("203.0.113.1", 200),
        ("203.0.113.2", 200), ("203.0.113.3", 429),
    ):  # fmt: skip
        answer = Client().post("/v1/changes", body, "application/json", headers=headers, REMOTE_ADDR=address)
        assert answer.status_code == status, address
        if status == 200:
            opened.append(answer)
    for stream in opened:
        stream.queue.close()
        stream.close()


def test_a_batch_of_a_publishable_key_leads_to_nothing_without_a_rule(site: Tracker) -> None:
    """As the single writes: the same answer as for a table that does not exist, and nothing is written."""
    before = everything(site)
    for operation in (
        {"op": "insert", "values": {"text": "x"}}, {"op": "insert", "values": {"text": 5}},
        {"op": "update", "id": "x", "values": {"text": "y"}}, {"op": "delete", "id": "x"},
    ):  # fmt: skip
        bodies = set()
        for table in ("private", "no_rules", "nothing"):
            answer = site.post("visitor", "/batch", {"operations": [{**operation, "table": table}]})
            assert answer.status == 404, (operation, answer.json)
            bodies.add(told(answer).replace(table, "…"))
        assert len(bodies) == 1, (operation, bodies)
    allowed = {"op": "insert", "table": "letters", "values": {"text": "x"}}
    denied = site.post("visitor", "/batch", {"operations": [allowed, {**allowed, "table": "private"}]})
    assert denied.status == 404, denied.json
    assert everything(site) == before, "all or nothing"


def told(answer: Answer) -> str:
    """An error without the id of its request."""
    error = dict(answer.json["error"])
    error.pop("request_id")
    return json.dumps(error)


def test_it_says_what_it_is_and_not_what_its_maker_calls_it(api: Api, site: Tracker) -> None:
    me = api.get("/v1/auth/me", token=site.tokens["visitor"]).json
    assert me == {
        "kind": "anonymous",
        "id": ServerKey.objects.get(name="page").pk,
        "email": None,
        "email_verified": None,
        "pending_email": None,
        "has_password": None,
        "name": None,
        "role": None,
        "environment_id": site.environment_id,
        "scopes": sorted(PUBLISHABLE_SCOPES),
    }
    limits = api.get("/v1/limits", token=site.tokens["visitor"]).json["limits"]
    assert set(limits) == {"visitor_requests_per_minute", "function_timeout_ms", "run_output_bytes"}
    assert not any("used" in limit for limit in limits.values())


# ── Rows ──


def test_large_anonymous_response_is_not_stored_and_effect_not_repeated(make_tracker: Any) -> None:  # noqa: F811
    columns = {"text": {"type": "text"}}
    book = make_tracker({"tables": {"notes": {"columns": columns, "rules": {"anonymous": {"read": {}, "insert": {}}}}}})
    book.tokens["visitor"] = publishable_key_for(book.environment_id)

    def put(who: str, text: str, key: str) -> Any:
        return book.call(who, "POST", "/rows/notes", json={"text": text}, headers={"Idempotency-Key": key})

    records = IdempotencyRecord.objects.using(book.project.cluster)
    short, long = "x" * 100, "x" * 20_000
    first, again = put("visitor", short, "short"), put("visitor", short, "short")
    assert (first.status, again.status, again.json) == (201, 201, first.json)
    first, again = put("visitor", long, "long"), put("visitor", long, "long")
    assert (first.status, again.status, again.json) == (201, 201, first.json), "the row is read again"
    assert all(len(bytes(each.sealed_answer)) < 2_000 for each in records.all())
    made = put("operator", long, "long")
    assert put("operator", long, "long").json == made.json, "a signed-in caller gets it again, however long it is"
    assert len(book.get("operator", "/rows/notes").json["data"]) == 3


def test_rules_of_anonymous_say_which_rows_and_columns(site: Tracker) -> None:
    [post] = site.get("visitor", "/rows/posts?with=author").json["data"]
    assert set(post) == {"id", "title", "author_id", "author"}
    assert (post["title"], post["author"]) == ("Out", {"id": post["author_id"], "pen_name": "Bell"})
    hidden = site.get("operator", f"/rows/posts?where={where({'draft': True})}").json["data"][0]["id"]
    missing = hidden[:-6] + "zzzzzz"
    for method, body in (("GET", None), ("PATCH", {"title": "x"}), ("DELETE", None)):
        how = {} if body is None else {"json": body}
        answers = [site.call("visitor", method, f"/rows/posts/{row}", **how) for row in (hidden, missing)]
        assert {answer.status for answer in answers} == {404}
        assert told(answers[0]).replace(hidden, "") == told(answers[1]).replace(missing, "")
    assert site.patch("visitor", f"/rows/posts/{post['id']}", {"title": "Mine"}).status == 404
    assert site.delete("visitor", f"/rows/posts/{post['id']}").status == 404
    assert site.post("visitor", "/rows/posts", {"title": "Spam"}).status == 404
    assert len(site.get("alice", "/rows/posts").json["data"]) == 2


@pytest.mark.parametrize(
    "asked",
    [
        "where={}=5", "order={}.desc", "columns=title,{}", "columns=*,-{}", "with={}", "where-not={}",
        "with=author&columns=author.{}", "where=author.{}", "order=author.{}",
    ],
)  # fmt: skip
def test_a_hidden_column_cannot_be_asked_about(site: Tracker, asked: str) -> None:
    hidden, unknown = ("real_name", "reel_name") if "author" in asked else ("earned", "earnad")
    answers = []
    for column in (hidden, unknown):
        query = asked.format(column)
        if asked == "where={}=5":
            query = f"where={where({column: 5})}"
        elif asked == "where-not={}":
            query = f"where={where({'$not': {column: 5}})}"
        elif asked.startswith("where="):
            query = f"where={where({f'author.{column}': 'x'})}"
        answers.append(site.get("visitor", f"/rows/posts?{query}"))
    assert {answer.status for answer in answers} == {422}
    assert told(answers[0]).replace(hidden, "") == told(answers[1]).replace(unknown, "")


def test_a_form_may_be_filled_in_by_who_can_read_none(site: Tracker) -> None:
    made = site.post("visitor", "/rows/letters", {"text": "hello"})
    assert (made.status, set(made.json)) == (201, {"id"})
    [letter] = site.get("operator", "/rows/letters").json["data"]
    assert (letter["text"], letter["from_page"]) == ("hello", ServerKey.objects.get(name="page").pk)
    row = f"/rows/letters/{letter['id']}"
    assert site.get("visitor", "/rows/letters").status == 404
    assert site.get("visitor", row).status == 404
    assert site.patch("visitor", row, {"text": "x"}).status == 404
    assert site.delete("visitor", row).status == 404
    assert site.post("visitor", "/rows/letters/query", {}).status == 404
    for refused in ({"text": "x", "from_page": "key_x"}, {"text": "x", "id": letter["id"]}, {"text": "x", "id": "new"}):
        assert site.post("visitor", "/rows/letters", refused).status == 422
    assert site.get("operator", "/rows/letters").json["data"] == [letter]


MISSING = [
    {"owner_id": "$user.id"},
    {"owner_id": {"$ne": "$user.id"}},
    {"$not": {"owner_id": "$user.id"}},
    {"owner_id": {"$nin": ["$user.id"]}},
    {"title": {"$ne": "$user.email"}},
    {"title": {"$ne": "$user.role"}},
    {"$not": {"title": "$user.claims.team"}},
    {"title": {"$nin": "$user.claims.teams"}},
    {"$not": {"$or": [{"title": "$user.claims.team"}, {"draft": True}]}},
    {"$not": {"author.pen_name": {"$in": ["$user.claims.a.b", "$user.email"]}}},
]


@pytest.mark.parametrize("rule", MISSING, ids=[json.dumps(rule) for rule in MISSING])
def test_a_variable_of_the_signed_in_grants_nothing(site: Tracker, rule: dict[str, Any]) -> None:
    document = json.loads(json.dumps(SITE))
    for role in ("anonymous", "user"):
        document["tables"]["posts"]["rules"][role] = {
            "read": {"where": rule}, "update": {"where": rule}, "delete": {"where": rule}, "insert": {"check": rule},
        }  # fmt: skip
    site.apply(document)
    before = site.get("operator", "/rows/posts").json["data"]
    assert site.get("visitor", "/rows/posts").json["data"] == []
    for row in before:
        assert site.get("visitor", f"/rows/posts/{row['id']}").status == 404
        assert site.patch("visitor", f"/rows/posts/{row['id']}", {"title": "x"}).status == 404
        assert site.delete("visitor", f"/rows/posts/{row['id']}").status == 404
    assert site.post("visitor", "/rows/posts", {"title": "x"}).status == 422
    assert site.get("operator", "/rows/posts").json["data"] == before


def test_what_no_scope_allows_is_403_though_a_rule_would_allow_it(site: Tracker) -> None:
    site.tokens["reader of pages"] = publishable_key_for(site.environment_id, "rows:read")
    assert len(site.get("reader of pages", "/rows/posts").json["data"]) == 1
    assert site.post("reader of pages", "/rows/letters", {"text": "x"}).status == 403
    assert site.get("operator", "/rows/letters").json["data"] == []


# ── The word `anonymous` ──


def test_role_anonymous_cannot_be_assigned(site: Tracker) -> None:
    key = key_for(site.environment_id, "users:manage")
    body = {"email": "eve@example.org", "password": "correct horse battery", "role": "anonymous"}
    made = site.api.post("/v1/users", token=key, json=body)
    assert (made.status, made.fields) == (422, {"role": "reserved_role"})
    changed = site.api.patch(f"/v1/users/{site.users['alice']}", token=key, json={"role": "anonymous"})
    assert (changed.status, changed.fields) == (422, {"role": "reserved_role"})
    assert not User.objects.filter(role="anonymous").exists()


def test_user_with_role_anonymous_keeps_only_the_access_of_that_name(site: Tracker) -> None:
    """The table's rules for that name apply, with the user's own variables; otherwise those of `user`."""
    old = user_service.create_user(
        pool_id=site.environment_id, email="old@example.org", password=None, role="anonymous", actor=audit.SYSTEM
    )
    site.tokens["old"] = token_of(old, site.environment_id)
    assert [set(row) for row in site.get("old", "/rows/posts").json["data"]] == [{"id", "title", "author_id"}]
    assert len(site.get("old", "/rows/private").json["data"]) == 1
    rules = Ruleset(schema_with())
    assert rules.role_key(Principal("user", role="anonymous")) == "user"
    document = json.loads(json.dumps(SITE))
    document["tables"]["posts"]["rules"]["anonymous"] = {"read": {"where": {"owner_id": "$user.id"}}}
    site.apply(document)
    mine = planted(site, "posts", title="Mine", owner_id=old.pk)
    assert [row["id"] for row in site.get("old", "/rows/posts").json["data"]] == [mine]
    assert site.get("visitor", "/rows/posts").json["data"] == []
    me = site.api.get("/v1/auth/me", token=site.tokens["old"]).json
    assert (me["kind"], me["role"]) == ("user", "anonymous")
    assert "projects:read" in me["scopes"]


# ── Keys that are not what they should be ──


def test_it_stays_in_its_environment(site: Tracker) -> None:
    other = environment_of(site.project, "development").pk
    for path in ("/v1/rows/posts", "/v1/auth/me", "/v1/limits"):
        assert site.api.get(path, token=site.tokens["visitor"], environment=other).status == 404
    elsewhere = publishable_key_for(other)
    assert site.api.get("/v1/rows/posts", token=elsewhere).status == 404
    assert site.api.get("/v1/rows/posts", token=elsewhere, environment=site.environment_id).status == 404


def test_a_record_that_claims_more_gives_no_more(site: Tracker) -> None:
    """However that came to be: the text of the key says what it is."""
    ServerKey.objects.filter(name="page").update(scopes=list(SCOPES))
    me = site.api.get("/v1/auth/me", token=site.tokens["visitor"]).json
    assert me["scopes"] == sorted(PUBLISHABLE_SCOPES)
    assert len(site.get("visitor", "/rows/posts").json["data"]) == 1
    assert site.get("visitor", "/rows/private").status == 404
    assert site.call("visitor", "GET", "/schema").status == 403
    ServerKey.objects.filter(name="page").update(environment_id=None, account=User.objects.get(name="owner"))
    forget(site.tokens["visitor"])
    assert site.api.get("/v1/auth/me", token=site.tokens["visitor"]).json["scopes"] == []
    for path in ("/v1/rows/posts", "/v1/projects"):
        assert site.api.get(path, token=site.tokens["visitor"]).status == 403
        assert site.api.get(path, token=site.tokens["visitor"], environment=site.environment_id).status == 403


def forget(key: str) -> None:
    """What the cache knows of the key: PostgreSQL is asked again."""
    redis_client.current().mark({credentials.key_cache_name(server_keys.digest(key)): b"?"})


def test_one_that_ended_is_401_from_the_next_request_on(site: Tracker) -> None:
    def statuses() -> set[int]:
        return {site.api.get("/v1/rows/posts", token=site.tokens["visitor"]).status for _ in range(3)}

    assert statuses() == {200}
    key = ServerKey.objects.get(name="page")
    assert site.call("owner", "DELETE", f"/keys/{key.pk}").status == 204
    assert statuses() == {401}
    site.tokens["visitor"] = publishable_key_for(site.environment_id)
    assert statuses() == {200}
    ServerKey.objects.filter(name="page").update(expires_at="2020-01-01T00:00:00Z")
    forget(site.tokens["visitor"])
    assert statuses() == {401}


def test_it_ends_with_its_project_and_pauses_with_it(site: Tracker) -> None:
    from projects import services as projects

    assert site.api.get("/v1/rows/posts", token=site.tokens["visitor"]).status == 200
    projects.suspend_project(site.project.pk, reason="an incident", actor=audit.SYSTEM)
    for path in ("/v1/rows/posts", "/v1/auth/me"):
        suspended = site.api.get(path, token=site.tokens["visitor"])
        assert (suspended.status, suspended.error) == (403, "project_suspended")
    projects.resume_project(site.project.pk, actor=audit.SYSTEM)
    assert site.api.get("/v1/rows/posts", token=site.tokens["visitor"]).status == 200
    projects.delete_project(site.project.pk, actor=audit.SYSTEM)
    assert site.api.get("/v1/rows/posts", token=site.tokens["visitor"]).status == 401


def test_server_key_and_publishable_key_are_not_interchangeable(site: Tracker) -> None:
    for text, prefix in ((site.tokens["visitor"], "sk_"), (site.tokens["operator"], "pk_")):
        assert site.api.get("/v1/rows/posts", token=prefix + text[3:]).status == 401


# ── Other anonymous callers ──


def test_each_address_has_a_share_of_its_own(site: Tracker, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01
    quota = PLANS["free"].visitor_requests_per_minute // 100
    record = credentials.key_cache_name(server_keys.digest(site.tokens["visitor"]))
    start = iter(range(1000))

    def somebody() -> str:
        """An IP address whose window has time left."""
        made = fresh_identity(lambda _: f"{record}\x00198.51.{next(start) % 256}.7")
        return made.partition("\0")[2]

    def ask(address: str, **headers: str) -> int:
        return site.api.get("/v1/rows/posts", token=site.tokens["visitor"], remote_addr=address, headers=headers).status

    greedy, other = somebody(), somebody()
    assert greedy != other
    assert [ask(greedy) for _ in range(quota + 2)] == [200] * quota + [429] * 2
    assert ask(other) == 200
    # Client-supplied headers change neither the identity nor the limits that are charged.
    assert ask(greedy, **{"X-Forwarded-For": "203.0.113.77", "X-Real-IP": "203.0.113.77"}) == 429
    shown = site.api.get("/v1/auth/me", token=site.tokens["visitor"], remote_addr=other).headers
    assert shown["RateLimit-Policy"] == f'"caller";q={quota};w=60'
    assert shown["RateLimit"].startswith(f'"caller";r={quota - 2};')


def test_the_hosts_of_one_ipv6_network_share_one(site: Tracker, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01
    quota = PLANS["free"].visitor_requests_per_minute // 100
    record = credentials.key_cache_name(server_keys.digest(site.tokens["visitor"]))
    start = iter(range(1, 1000))
    network = fresh_identity(lambda _: f"{record}\x002001:db8:77:{next(start):x}::").partition("\0")[2]
    answers = [
        site.api.get("/v1/auth/me", token=site.tokens["visitor"], remote_addr=f"{network}{host:x}").status
        for host in range(1, quota + 2)
    ]
    assert answers == [200] * quota + [429]


def test_anonymous_callers_with_the_same_idempotency_key_are_separate(site: Tracker) -> None:
    def send(address: str, text: str) -> Answer:
        return site.post(
            "visitor", "/rows/letters", {"text": text}, headers={"Idempotency-Key": "1"}, remote_addr=address
        )

    first = send("203.0.113.1", "hello")
    again = send("203.0.113.1", "hello")
    assert (again.json, again.headers["Idempotency-Replayed"]) == (first.json, "true")
    others = [send("203.0.113.2", "hello"), send("203.0.113.1", "another"), send("203.0.113.2", "another")]
    assert [other.status for other in others] == [201, 201, 201]
    assert not any("Idempotency-Replayed" in other.headers for other in others)
    assert len({answer.json["id"] for answer in (first, *others)}) == 4
    assert len(site.get("operator", "/rows/letters").json["data"]) == 4


# ── For those who write the rules ──


def test_explain_tells_what_whoever_is_not_signed_in_sees_and_not_to_them(site: Tracker) -> None:
    [draft] = site.get("operator", f"/rows/posts?where={where({'draft': True})}").json["data"]
    told = site.post("owner", "/rows/posts/explain", {"id": draft["id"], "as": "anonymous"})
    assert told.status == 200
    assert told.json["visible"] is False
    [read] = [rule for rule in told.json["rules"] if rule["action"] == "read"]
    assert (read["role"], read["verdict"]) == ("anonymous", False)
    assert site.post("visitor", "/rows/posts/explain", {"id": draft["id"]}).status == 403
    document = json.loads(json.dumps(SITE))
    document["tables"]["posts"]["rules"]["anonymous"] = {"read": {"where": {"$not": {"owner_id": "$user.id"}}}}
    site.apply(document)
    told = site.post("owner", "/rows/posts/explain", {"id": draft["id"], "as": "anonymous"}).json
    [read] = [rule for rule in told["rules"] if rule["action"] == "read"]
    assert read["verdict"] is False
    assert "$user.id" in json.dumps(read["clauses"])


def test_a_branch_has_none_of_its_parents(site: Tracker) -> None:
    made = site.call("owner", "POST", f"/projects/{site.project.pk}/environments", json={
        "name": "preview", "from": "production", "data": "full",
    })  # fmt: skip
    assert made.status == 201, made.json
    assert not ServerKey.objects.filter(environment_id=made.json["id"]).exists()
    answer = site.api.get("/v1/rows/posts", token=site.tokens["visitor"], environment=made.json["id"])
    assert answer.status == 404


def test_a_page_of_an_origin_that_is_not_listed_reads_no_answer(site: Tracker) -> None:
    """CORS keeps other people's pages from showing the data; it does not prevent requests
    (docs/explanation/security.md)."""
    Environment.objects.filter(pk=site.environment_id).update(allowed_origins=["https://shop.example"])
    forget(site.tokens["visitor"])
    for origin, allowed in (("https://shop.example", "https://shop.example"), ("https://evil.example", None)):
        answer = site.api.get("/v1/rows/posts", token=site.tokens["visitor"], headers={"Origin": origin})
        assert answer.status == 200
        assert answer.headers.get("Access-Control-Allow-Origin") == allowed
