"""From a request to a caller: what it costs, which environment it means, and how soon a change is noticed."""

import time
from functools import lru_cache

import orjson
import pytest
from django.conf import LazySettings, settings
from django.test import override_settings

from accounts import audit
from accounts.keys import server_keys
from accounts.models import ServerKey, User
from accounts.users import service as accounts
from platform_site.concurrency.memo import Memo
from platform_site.identity.plans import plan_limits
from projects import services
from projects.api import authentication
from projects.directory import environment_cache
from projects.models import Environment, Project
from tests.projects.conftest import (
    Make,
    RoundTrips,
    environment_of,
    key_for,
    make_project,
    publishable_key_for,
    token_of,
)
from tests.support import valkey as embedded_valkey
from tests.support.client import Answer, Api
from tests.support.flush import flush_redis

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.urls("tests.projects.urls"),
]


def required(api: Api, token: str, **how: object) -> Answer:
    return api.get("/v1/test/required", token=token, **how)


# ── What it costs ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("use", ["unused", "optional", "required"])
@pytest.mark.parametrize("who", ["account", "naming account", "user", "key", "anonymous"])
def test_known_caller_costs_one_redis_round_trip_and_new_one_a_query(
    api: Api, alice: User, make_account: Make, production: Environment, trips: RoundTrips, who: str, use: str
) -> None:
    user = make_account("uma", pool_id=production.pk)
    token, named = {
        "account": (token_of(alice), None),
        "naming account": (token_of(alice), production.pk),
        "user": (token_of(user, production.pk), None),
        "key": (key_for(production.pk, "rows:read"), None),
        "anonymous": (publishable_key_for(production.pk), None),
    }[who]
    flush_redis()  # a project was just made, and until the mark of that expires nothing is cached
    trips.reset()
    first = api.get(f"/v1/test/{use}", token=token, environment=named)
    assert first.status == 200
    notes_the_use = 1 if who in ("key", "anonymous") else 0  # `last_used_at`, once a minute
    assert trips.counts == (1, 1 + notes_the_use), trips.statements
    trips.reset()
    for _ in range(3):
        assert api.get(f"/v1/test/{use}", token=token, environment=named).json == first.json
    assert trips.counts == (3, 0), trips.statements


def test_an_address_that_needs_no_environment_asks_for_none(api: Api, alice: User, trips: RoundTrips) -> None:
    token = token_of(alice)
    trips.reset()
    api.get("/v1/test/unused", token=token)
    assert len(trips.statements) == 1
    assert "projects_" not in trips.statements[0]


def test_junk_costs_neither_a_statement_nor_a_trip_for_records(api: Api, trips: RoundTrips) -> None:
    for token in ("sk_" + "a" * 38, "nonsense", "a.b.c", "sk_"):
        trips.reset()
        assert api.get("/v1/test/unused", token=token).status == 401
        assert trips.counts == (1, 0)  # the count of refusals for its IP address
    trips.reset()
    assert api.get("/v1/test/unused").status == 401
    assert trips.counts == (0, 0)


def test_without_redis_every_call_is_answered_from_postgresql(
    api: Api, alice: User, production: Environment, trips: RoundTrips
) -> None:
    with override_settings(REDIS_URL="unix:///nowhere/valkey.sock"):
        token = token_of(alice)
        trips.reset()
        assert required(api, token).json["environment_id"] == production.pk
        assert required(api, token).json["environment_id"] == production.pk
        assert len(trips.statements) == 2


# ── Which environment ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_account_without_a_project_is_asked_to_name_an_environment(api: Api, charlie: User) -> None:
    answer = required(api, token_of(charlie))
    assert (answer.status, answer.error, answer.fields) == (422, "validation_failed", {"X-Environment": "required"})


def test_the_only_project_means_its_production(api: Api, alice: User, production: Environment) -> None:
    answer = required(api, token_of(alice))
    assert answer.json["environment_id"] == production.pk
    assert answer.json["role"] == "owner"
    assert answer.json["plan"] == "pro"


def test_two_projects_mean_none(api: Api, alice: User, production: Environment) -> None:
    token = token_of(alice)
    assert required(api, token).status == 200
    second = make_project(alice, "Second")
    answer = required(api, token)
    assert (answer.status, answer.fields) == (422, {"X-Environment": "required"})
    assert api.get("/v1/test/optional", token=token).json["environment_id"] is None
    # Named, either is fine.
    for environment in (production, environment_of(second, "development")):
        assert required(api, token, environment=environment.pk).json["environment_id"] == environment.pk
    # One project again: at once, not when a record expires.
    services.delete_project(second.pk, actor=audit.SYSTEM)
    assert required(api, token).json["environment_id"] == production.pk


def test_being_added_to_a_project_changes_no_call_without_an_environment(
    api: Api, bob: User, project: Project, production: Environment
) -> None:
    """Any owner may add any account, also as an owner: neither to get its rows nor to stop its calls."""
    own = environment_of(make_project(bob, "Own"))
    token = token_of(bob)
    assert required(api, token).json["environment_id"] == own.pk
    services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    assert required(api, token).json["environment_id"] == own.pk
    assert required(api, token, environment=production.pk).json["role"] == "owner"
    Environment.objects.filter(pk=own.pk).update(status=Environment.Status.CREATING)
    environment_cache.evict_account(bob.pk)
    assert required(api, token).fields == {"X-Environment": "required"}, "its own counts while it cannot be reached"
    Environment.objects.filter(pk=own.pk).update(status=Environment.Status.READY)
    services.suspend_project(own.project_id, reason="A bill", actor=audit.SYSTEM)
    assert required(api, token).error == "project_suspended"


def test_an_account_that_owns_none_has_an_only_project_or_must_name_one(
    api: Api, alice: User, bob: User, project: Project, production: Environment
) -> None:
    token = token_of(bob)
    second = make_project(alice, "Second")
    services.add_member(project.pk, email=bob.email, role="developer", actor=audit.SYSTEM)
    assert required(api, token).json["environment_id"] == production.pk
    services.add_member(second.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    assert required(api, token).fields == {"X-Environment": "required"}
    services.remove_member(second.pk, alice.pk, actor=audit.SYSTEM)
    assert required(api, token_of(alice)).json["environment_id"] == production.pk, "it has left the one of both"
    services.remove_member(project.pk, bob.pk, actor=audit.SYSTEM)
    assert required(api, token).json["environment_id"] == environment_of(second).pk


def test_a_host_names_an_environment(api: Api, alice: User, project: Project) -> None:
    development = environment_of(project, "development")
    host = development.pk.replace("_", "-") + ".localhost:8000"
    assert required(api, token_of(alice), headers={"Host": host}).json["environment_id"] == development.pk


@pytest.mark.parametrize(
    "named", ["", "env_", "production", "env_" + "z" * 26, "prj_01h455vb4pex5vsknk084sn02q", "é", "%00"]
)
def test_a_malformed_name_is_refused_and_never_taken_for_none(
    api: Api, alice: User, production: Environment, named: str
) -> None:
    answer = required(api, token_of(alice), environment=named)
    if named == "":
        assert answer.json["environment_id"] == production.pk  # an empty header names nothing
    else:
        assert (answer.status, answer.fields) == (422, {"X-Environment": "invalid_id"})


def test_unknown_and_foreign_environments_are_the_same_404(
    api: Api, alice: User, charlie: User, production: Environment
) -> None:
    make_project(charlie)
    token = token_of(charlie)
    unknown = required(api, token, environment="env_01h455vb4pex5vsknk084sn02q")
    hidden = required(api, token, environment=production.pk)
    assert unknown.status == hidden.status == 404
    assert unknown.json["error"] | {"request_id": ""} == hidden.json["error"] | {"request_id": ""}


def test_users_and_keys_carry_their_environment_and_may_name_no_other(
    api: Api, make_account: Make, project: Project, production: Environment
) -> None:
    development = environment_of(project, "development")
    user = token_of(make_account("uma", pool_id=production.pk), production.pk)
    key = key_for(production.pk, "rows:read")
    for token in (user, key):
        assert required(api, token).json["environment_id"] == production.pk
        assert required(api, token, environment=production.pk).json["environment_id"] == production.pk
        for use in ("required", "unused"):
            answer = api.get(f"/v1/test/{use}", token=token, environment=development.pk)
            assert (answer.status, answer.error) == (404, "not_found")
        assert required(api, token, environment="nonsense").status == 404


def test_an_accounts_key_reaches_no_environment(api: Api, alice: User, production: Environment) -> None:
    key = key_for(None, "projects:read", account=alice)
    assert api.get("/v1/test/unused", token=key).json["scopes"] == ["projects:read"]
    assert api.get("/v1/test/optional", token=key, environment=production.pk).json["environment"] is None
    answer = required(api, key, environment=production.pk)
    assert (answer.status, answer.error) == (403, "forbidden")


def test_an_environment_that_is_being_made_is_not_there_yet(
    api: Api, alice: User, make_account: Make, production: Environment
) -> None:
    Environment.objects.filter(pk=production.pk).update(status="creating")
    token = token_of(alice)
    assert required(api, token, environment=production.pk).status == 404
    key = key_for(production.pk, "rows:read")
    for of_it in (key, token_of(make_account("uma", pool_id=production.pk), production.pk)):
        for use in ("required", "unused"):
            assert api.get(f"/v1/test/{use}", token=of_it).status == 503
    Environment.objects.filter(pk=production.pk).update(status="deleting")
    assert api.get("/v1/test/required", token=key).status == 401
    Environment.objects.filter(pk=production.pk).update(status="ready")
    assert required(api, token, environment=production.pk).status == 200


# ── What it may ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("owner", {"projects:delete", "rows:write", "keys:manage", "schema:write"}, set()),
        ("developer", {"rows:write", "keys:manage", "schema:write", "functions:deploy"}, {"projects:delete"}),
        ("viewer", {"rows:read", "schema:read", "webhooks:read"}, {"rows:write", "keys:manage", "functions:invoke"}),
    ],
)
def test_an_accounts_scopes_follow_from_its_role(
    api: Api, project: Project, bob: User, role: str, may: set[str], may_not: set[str]
) -> None:
    services.add_member(project.pk, email=bob.email, role=role, actor=audit.SYSTEM)
    answer = required(api, token_of(bob))
    scopes = set(answer.json["scopes"])
    assert answer.json["role"] == role
    assert may <= scopes
    assert not may_not & scopes
    assert all(scope.endswith(":read") for scope in scopes) == (role == "viewer")


def test_an_app_user_has_its_fixed_few(api: Api, make_account: Make, production: Environment) -> None:
    scopes = required(api, token_of(make_account("uma", pool_id=production.pk), production.pk)).json["scopes"]
    assert scopes == [
        "environments:read",
        "functions:invoke",
        "functions:read",
        "projects:read",
        "rows:read",
        "rows:write",
    ]


def test_key_has_its_own_scopes_minus_those_its_kind_may_not_have(api: Api, production: Environment) -> None:
    key = key_for(production.pk, "rows:read", "webhooks:write")
    ServerKey.objects.update(scopes=["rows:read", "webhooks:write", "projects:delete"])  # as if a bug had let it in
    assert required(api, key).json["scopes"] == ["rows:read", "webhooks:write"]
    assert api.post("/v1/test/required", token=key).status == 403


# ── How soon a change is noticed ────────────────────────────────────────────────────────────────────────────────────


def test_a_role_a_plan_and_a_removal_count_from_the_next_request_on(
    api: Api, alice: User, bob: User, project: Project, production: Environment
) -> None:
    services.add_member(project.pk, email=bob.email, role="developer", actor=audit.SYSTEM)
    token = token_of(bob)
    named = {"environment": production.pk}
    for how in ({}, named):
        assert required(api, token, **how).json["role"] == "developer"
    services.change_member(project.pk, bob.pk, role="viewer", actor=audit.SYSTEM)
    for how in ({}, named):
        assert required(api, token, **how).json["role"] == "viewer"
    services.change_project(project.pk, plan="team", actor=audit.SYSTEM)
    for how in ({}, named):
        assert required(api, token, **how).json["plan"] == "team"
    services.remove_member(project.pk, bob.pk, actor=audit.SYSTEM)
    assert required(api, token).status == 422
    assert required(api, token, **named).status == 404


def test_a_plan_counts_for_keys_and_users_too(
    api: Api, make_account: Make, project: Project, production: Environment
) -> None:
    tokens = [
        key_for(production.pk, "rows:read"),
        token_of(make_account("uma", pool_id=production.pk), production.pk),
    ]
    assert [required(api, token).json["plan"] for token in tokens] == ["pro", "pro"]
    assert [required(api, token).json["plan"] for token in tokens] == ["pro", "pro"]
    services.change_project(project.pk, plan="free", actor=audit.SYSTEM)
    assert [required(api, token).json["plan"] for token in tokens] == ["free", "free"]


def test_a_deleted_project_ends_its_keys_and_users_and_is_404_for_accounts(
    api: Api, alice: User, make_account: Make, project: Project, production: Environment
) -> None:
    account, key = token_of(alice), key_for(production.pk, "rows:read")
    user = token_of(make_account("uma", pool_id=production.pk), production.pk)
    for token in (account, key, user, account, key, user):
        assert required(api, token).status == 200
    services.delete_project(project.pk, actor=audit.SYSTEM)
    assert required(api, key).status == 401
    assert required(api, user).status == 401
    assert required(api, account).status == 422
    assert required(api, account, environment=production.pk).status == 404


def test_ended_credentials_are_401_from_the_next_request_on(
    api: Api, alice: User, production: Environment, trips: RoundTrips
) -> None:
    revoked, disabled = token_of(alice), token_of(alice)
    key = key_for(production.pk, "rows:read")
    for token in (revoked, disabled, key, revoked, disabled, key):
        assert required(api, token).status == 200
    assert api.post("/v1/auth/revoke", token=revoked, json={"scope": "current"}).status == 204
    assert required(api, revoked).status == 401
    assert required(api, disabled).status == 200
    accounts.change_user(alice, is_disabled=True, actor=audit.SYSTEM)
    assert required(api, disabled).status == 401
    accounts.revoke_key(ServerKey.objects.get(), actor=audit.SYSTEM)
    assert required(api, key).status == 401
    trips.reset()
    for token in (revoked, key):
        assert required(api, token).status == 401
    assert trips.counts[1] == 0, trips.statements


def test_a_late_reader_of_the_old_state_cannot_put_it_back(
    api: Api, alice: User, production: Environment, trips: RoundTrips
) -> None:
    """The record read before a revocation waits for the next trip, and finds the mark in its place."""
    token = token_of(alice)
    assert required(api, token).status == 200  # read from PostgreSQL; its record goes out with the next trip
    assert api.post("/v1/auth/revoke", token=token_of(alice), json={"scope": "all"}).status == 204
    assert required(api, token).status == 401
    assert required(api, token).status == 401


def test_flushed_redis_ends_and_revives_no_session(api: Api, alice: User, production: Environment) -> None:
    alive, ended = token_of(alice), token_of(alice)
    assert required(api, alive).status == required(api, ended).status == 200
    assert api.post("/v1/auth/revoke", token=ended, json={"scope": "current"}).status == 204
    flush_redis()
    assert required(api, alive).status == 200
    assert required(api, ended).status == 401


_WHO = ["account", "usr_1", None, "ses_1", "usr_1", None, "a@example.com", None, None, {}, []]
_WHERE = {
    "environment_id": "env_1",
    "environment_name": "production",
    "project_id": "prj_1",
    "region": "us-east-1",
    "cluster": "us-east-1",
    "plan": "pro",
    "pool_id": "env_1",
    "role": "owner",
    "allowed_origins": [],
}
_OF_OTHERS: dict[str, object] = {
    "nothing": b"",
    "no JSON": b"\x80\x04garble",
    "null": None,
    "a number": 17,
    "a text": "usr_1",
    "depth": b"[" * 100_000,
    "an object for a list": {"kind": "account"},
    "a list of another kind": [17],
    "a member less": _WHO[:-1],
    "a member more": [*_WHO, True],
    "a kind of another version": ["robot", *_WHO[1:]],
    "scopes of another type": [*_WHO[:-1], {"rows:read": True}],
    "scopes that are no texts": [*_WHO[:-1], [["rows:read"]]],
    "claims of another type": [*_WHO[:-2], ["x"], []],
    "an end of another type": [*_WHO[:2], "2026-01-01", *_WHO[3:]],
    "a place without its plan": [{name: value for name, value in _WHERE.items() if name != "plan"}],
    "a place with more in it": [{**_WHERE, "shard": 7}],
    "a plan of another version": [{**_WHERE, "plan": "galactic"}],
    "a role of another version": [{**_WHERE, "role": "auditor"}],
    "origins of another type": [{**_WHERE, "allowed_origins": "*"}],
    "a suspension of another type": [{**_WHERE, "is_suspended": "no"}],
    "an environment of another type": [{**_WHERE, "environment_id": 1}],
}


@pytest.mark.parametrize("who", ["account", "user", "key", "anonymous"])
def test_a_record_that_this_release_cannot_read_is_asked_of_postgresql(
    api: Api, alice: User, make_account: Make, production: Environment, who: str
) -> None:
    """Another release shares the cache while hosts are replaced."""
    user = make_account("uma", pool_id=production.pk)
    token = {
        "account": token_of(alice),
        "user": token_of(user, production.pk),
        "key": key_for(production.pk, "rows:read"),
        "anonymous": publishable_key_for(production.pk),
    }[who]
    flush_redis()
    first = required(api, token)
    assert first.status == 200
    assert required(api, token).json == first.json
    client = embedded_valkey.client(settings.LAYOUT)
    records = [name for name in client.scan_iter(count=1000) if client.type(name) == b"string"]
    records = [name for name in records if not client.get(name).isdigit()]
    assert len(records) == 2, records
    for what, made in _OF_OTHERS.items():
        for name in records:
            kept = client.get(name)
            client.set(name, made if isinstance(made, bytes) else orjson.dumps(made), ex=60)
            found = required(api, token)
            assert (found.status, found.json) == (200, first.json), (what, name)
            client.set(name, kept, ex=60)
    for name in client.scan_iter(count=1000):
        client.set(name, "garble", ex=60)
    assert required(api, token).json == first.json, "nor is a counter what it was"
    refused = required(api, server_keys.make())
    assert refused.status == 401


def test_guessed_keys_soon_cost_no_query_and_known_callers_continue(
    api: Api, alice: User, production: Environment, trips: RoundTrips, settings: LazySettings
) -> None:
    settings.RATE_LIMIT_FACTOR = 1 / 40  # three refused tokens a minute
    address = "192.0.2.11"
    known = key_for(production.pk, "rows:read")
    assert required(api, known, remote_addr=address).status == 200
    found = []
    for _ in range(12):  # the minute may end in between
        trips.reset()
        found.append((required(api, server_keys.make(), remote_addr=address).status, trips.counts[1]))
    assert found[0] == (401, 1)
    assert found.count((429, 0)) >= 4, found
    assert required(api, known, remote_addr=address).status == 200
    client = embedded_valkey.client(settings.LAYOUT)
    assert client.delete(*client.scan_iter("*who:key:*", count=1000)) >= 1
    assert required(api, known, remote_addr=address).status == 200, "this process has met it"
    assert required(api, token_of(alice), remote_addr=address).status == 200, "a signature cannot be forged"


def test_sessions_of_one_user_share_only_its_rate_limit(
    api: Api, alice: User, charlie: User, production: Environment, settings: LazySettings
) -> None:
    settings.RATE_LIMIT_FACTOR = 4 / plan_limits("pro").requests_per_minute
    sessions = [required(api, token_of(alice)) for _ in range(10)]  # the minute may end in between
    keys_of_one = [required(api, key_for(production.pk, "rows:read")) for _ in range(10)]
    assert [answer.status for answer in sessions[:4]] == [200] * 4
    refused = [answer for answer in sessions if answer.status != 200]
    assert {(answer.status, answer.error) for answer in refused} == {(429, "rate_limited")}
    assert all(1 <= int(answer.headers["Retry-After"]) <= 60 for answer in refused)
    assert {answer.status for answer in keys_of_one} == {200}
    assert api.get("/v1/test/unused", token=token_of(charlie)).status == 200


def test_a_process_remembers_of_a_caller_what_its_records_say(api: Api, production: Environment) -> None:
    key = key_for(production.pk, "rows:read")
    for scopes in (["rows:read"], ["rows:read", "rows:write"], ["webhooks:read"]):
        ServerKey.objects.update(scopes=scopes)
        flush_redis()  # as if its records had expired, and every mark
        for _ in range(3):
            assert required(api, key).json["scopes"] == scopes


def test_a_process_remembers_only_so_many_callers(
    api: Api, production: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lru_cache(2)(authentication._read_records.__wrapped__)
    monkeypatch.setattr(authentication, "_read_records", records)
    monkeypatch.setattr(authentication, "_verified", Memo(1))
    tokens = [key_for(production.pk, "rows:read") for _ in range(4)]
    flush_redis()
    for _ in range(3):
        assert [required(api, token).status for token in tokens] == [200] * 4
    assert records.cache_info().currsize == 2
    assert len(authentication._verified) == 2


def test_an_expired_record_is_refused_though_it_is_cached(api: Api, production: Environment) -> None:
    key = key_for(production.pk, "rows:read")
    ServerKey.objects.update(expires_at=_in(3))
    assert required(api, key).status == 200
    assert required(api, key).status == 200
    deadline = time.monotonic() + 15
    while required(api, key).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _in(seconds: float) -> object:
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) + timedelta(seconds=seconds)
