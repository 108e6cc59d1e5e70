"""Server keys: their form, who makes and ends which, and what they may do. Contract 5.2-5.4."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from psycopg import sql

from accounts import audit
from accounts.keys import permissions, server_keys
from accounts.models import AuditEntry, ServerKey, User
from accounts.tokens import credentials, token_format
from accounts.tokens.credentials import KeyCredential
from accounts.users import service as user_service
from platform_site.http.errors import QuotaExceeded, Unauthorized
from platform_site.identity.callers import ENVIRONMENT_SCOPES, PUBLISHABLE_SCOPES, SCOPES
from platform_site.redis import client as redis_client
from projects.directory import roles
from projects.models import Environment, Project
from tests.accounts.conftest import SignedIn, make_environment
from tests.support.client import Answer, Api

pytestmark = pytest.mark.django_db(databases="__all__")


# ── Form ──


def test_a_key_is_random_and_checks_itself() -> None:
    secrets = {server_keys.make() for _ in range(1000)}
    assert len(secrets) == 1000
    for secret in secrets:
        assert len(secret) == len("sk_") + 32 + 6
        assert secret.startswith("sk_")
        assert secret[3:].isalnum()
        assert server_keys.parse(secret) == server_keys.digest(secret)


def test_a_key_with_any_character_changed_is_none() -> None:
    secret = server_keys.make()
    for place in range(len(secret)):
        for other in "0aZ_":
            if secret[place] != other:
                assert server_keys.parse(secret[:place] + other + secret[place + 1 :]) is None


def test_the_checksum_is_the_crc32_in_base62() -> None:
    # Anchors: made once with an independent implementation (zlib.crc32, digits 0-9A-Za-z).
    assert token_format.is_well_formed("sk_", 32, "sk_00000000000000000000000000000000" + base62_crc("sk_" + "0" * 32))
    assert not token_format.is_well_formed("sk_", 32, "sk_00000000000000000000000000000000000000")


def base62_crc(text: str) -> str:
    import binascii

    digits, value = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", binascii.crc32(text.encode())
    found = ""
    while value:
        found, value = digits[value % 62] + found, value // 62
    return found.rjust(6, "0")


@pytest.mark.parametrize("prefix", server_keys.PREFIXES)
def test_ten_thousand_junk_keys_cost_no_statement(django_assert_num_queries: Any, prefix: str) -> None:
    with django_assert_num_queries(0):
        for number in range(10_000):
            with pytest.raises(Unauthorized):
                credentials.read(f"Bearer {prefix}{number:038}")


def test_a_publishable_key_is_known_by_its_beginning_alone() -> None:
    secret = server_keys.make(server_keys.PUBLISHABLE)
    assert (len(secret), secret[:3]) == (len("pk_") + 32 + 6, "pk_")
    assert server_keys.parse(secret) == server_keys.digest(secret)
    assert credentials.read(f"Bearer {secret}") == KeyCredential(server_keys.digest(secret), is_publishable=True)
    server = server_keys.make()
    assert credentials.read(f"Bearer {server}") == KeyCredential(server_keys.digest(server), is_publishable=False)
    assert server_keys.parse("sk_" + secret[3:]) is None
    assert server_keys.parse("pk_" + server[3:]) is None


# ── Making ──


@pytest.fixture
def owner(alice: User, sign_in: Callable[..., SignedIn]) -> SignedIn:
    return sign_in(alice)


def issue(api: Api, who: str, *scopes: str, environment: str | None = None, **body: Any) -> Answer:
    return api.post(
        "/v1/keys",
        token=who,
        json={"name": "CI", "scopes": list(scopes) or ["rows:read"], **body},
        environment=environment,
    )


def test_an_owner_issues_a_key_whose_secret_is_shown_once(api: Api, owner: SignedIn, production: Environment) -> None:
    answer = issue(api, owner.access_token, "rows:read", "rows:write", environment_id=production.pk)
    assert answer.status == 201
    key = answer.json
    assert set(key) == {
        "id", "name", "prefix", "publishable", "scopes", "environment_id", "created_at", "expires_at", "last_used_at",
        "opens", "secret",
    }  # fmt: skip
    assert answer.headers["Location"] == f"/v1/keys/{key['id']}"
    assert answer.headers["Cache-Control"] == "no-store"
    assert key["secret"].startswith(key["prefix"])
    assert len(key["prefix"]) == 9
    assert (key["scopes"], key["environment_id"]) == (["rows:read", "rows:write"], production.pk)
    assert key["publishable"] is False
    listed = api.get(f"/v1/keys?environment_id={production.pk}", token=owner.access_token)
    assert listed.json["data"] == [{name: value for name, value in key.items() if name != "secret"}]
    me = api.get("/v1/auth/me", token=key["secret"]).json
    assert (me["kind"], me["id"], me["scopes"]) == ("key", key["id"], ["rows:read", "rows:write"])
    entry = AuditEntry.objects.get(action="key.issued")
    assert (entry.actor_id, entry.target_id, entry.environment_id) == (owner.user.pk, key["id"], production.pk)
    assert entry.project_id == production.project_id


def test_a_publishable_key_is_issued_listed_and_revoked_like_any(
    api: Api, owner: SignedIn, production: Environment
) -> None:
    body = {"name": "page", "publishable": True, "environment_id": production.pk}
    made = api.post("/v1/keys", token=owner.access_token, json=body)
    assert made.status == 201
    key = made.json
    assert (key["publishable"], key["secret"][:9]) == (True, key["prefix"])
    assert key["secret"].startswith("pk_")
    assert key["scopes"] == sorted(PUBLISHABLE_SCOPES)
    listed = api.get(f"/v1/keys?environment_id={production.pk}", token=owner.access_token).json["data"]
    assert listed == [{name: value for name, value in key.items() if name != "secret"}]
    assert AuditEntry.objects.get(action="key.issued").detail["publishable"] is True
    assert api.get("/v1/auth/me", token=key["secret"]).json["kind"] == "anonymous"
    assert api.delete(f"/v1/keys/{key['id']}", token=owner.access_token).status == 204
    assert api.get("/v1/auth/me", token=key["secret"]).status == 401


def test_a_publishable_key_holds_three_scopes_at_most(api: Api, owner: SignedIn, production: Environment) -> None:
    def ask(*scopes: str, **more: Any) -> Answer:
        body = {"name": "page", "publishable": True, "environment_id": production.pk, **more}
        return api.post("/v1/keys", token=owner.access_token, json=body | ({"scopes": list(scopes)} if scopes else {}))

    for scope in SCOPES:
        if scope in PUBLISHABLE_SCOPES:
            assert ask(scope).json["scopes"] == [scope]
            continue
        for wanted in ((scope,), ("rows:read", scope)):
            refused = ask(*wanted)
            assert (refused.status, refused.fields) == (422, {"scopes": "not_for_this_key"}), scope
    assert ask(scopes=[]).status == 422
    assert ask(publishable="yes").fields == {"publishable": "invalid"}
    of_account = ask("rows:read", environment_id=None)
    assert (of_account.status, of_account.fields) == (422, {"publishable": "not_for_this_key"})
    assert ask(publishable=False).fields == {"scopes": "required"}
    assert ServerKey.objects.count() == len(PUBLISHABLE_SCOPES)


def test_a_key_hands_on_in_a_publishable_one_what_it_holds(
    api: Api, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    _, secret = make_key(production, "keys:manage", "rows:read")
    body = {"name": "page", "publishable": True}
    refused = api.post("/v1/keys", token=secret, json=body)
    assert (refused.status, refused.fields) == (422, {"scopes": "not_held"})
    assert api.post("/v1/keys", token=secret, json={**body, "scopes": ["rows:read"]}).status == 201


def test_the_secret_is_nowhere_in_the_database(api: Api, owner: SignedIn, production: Environment) -> None:
    secret = issue(api, owner.access_token, environment_id=production.pk).json["secret"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        for (table,) in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT row_to_json(t)::text FROM {} t").format(sql.Identifier(table)))
            rows = "\n".join(row for (row,) in cursor.fetchall())
            assert secret not in rows, table
            assert secret.encode().hex() not in rows, table


def test_the_header_names_the_environment_as_well(api: Api, owner: SignedIn, production: Environment) -> None:
    assert issue(api, owner.access_token, environment=production.pk).json["environment_id"] == production.pk


def test_an_account_that_names_no_environment_makes_a_key_for_itself(
    api: Api, owner: SignedIn, production: Environment
) -> None:
    answer = issue(api, owner.access_token, "projects:read", "projects:create")
    assert (answer.status, answer.json["environment_id"]) == (201, None)
    me = api.get("/v1/auth/me", token=answer.json["secret"]).json
    assert (me["kind"], me["scopes"]) == ("key", ["projects:create", "projects:read"])
    assert api.get("/v1/projects", token=answer.json["secret"]).status == 200
    assert [key["id"] for key in api.get("/v1/keys", token=owner.access_token).json["data"]] == [answer.json["id"]]
    refused = issue(api, owner.access_token, "rows:read")
    assert refused.fields == {"scopes": "not_for_this_key"}
    # A key of an account handles no keys, whatever it names.
    assert issue(api, answer.json["secret"], environment_id=production.pk).status == 403
    assert api.get("/v1/keys", token=answer.json["secret"]).status == 403


def test_a_key_grants_no_scope_that_its_maker_does_not_hold(
    api: Api, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    _, maker = make_key(production, "keys:manage", "rows:read")
    answer = issue(api, maker, "rows:read", "rows:write", "rows:bypass_rules")
    assert (answer.status, answer.fields) == (422, {"scopes": "not_held"})
    assert ServerKey.objects.count() == 1
    made = issue(api, maker, "rows:read")
    assert (made.status, made.json["environment_id"]) == (201, production.pk)
    _, powerless = make_key(production, "rows:read", "users:manage")
    assert issue(api, powerless, "rows:read").status == 403


def test_a_key_that_expires_makes_none_that_outlives_it(api: Api, owner: SignedIn, production: Environment) -> None:
    """Else an hour with `keys:manage` is for ever."""
    end = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    sooner, later = (end + timedelta(seconds=seconds) for seconds in (-60, 1))
    token, environment = owner.access_token, production.pk
    for hours in (2, 0.5):  # of these nothing depends
        another = (end + timedelta(hours=hours)).isoformat()
        assert issue(api, token, environment_id=environment, expires_at=another).status == 201
    maker = issue(api, token, "keys:manage", environment_id=environment, expires_at=end.isoformat()).json
    assert issue(api, maker["secret"], "keys:manage").json["expires_at"] == maker["expires_at"]
    made = issue(api, maker["secret"], "keys:manage", expires_at=sooner.isoformat())
    assert made.json["expires_at"] < maker["expires_at"]
    refused = issue(api, maker["secret"], "keys:manage", expires_at=later.isoformat())
    assert (refused.status, refused.fields) == (422, {"expires_at": "too_late"})
    assert not ServerKey.objects.filter(expires_at=None).exists()


def test_a_key_stays_in_its_environment(
    api: Api, alice: User, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    other = make_environment(alice)
    _, secret = make_key(production)
    assert issue(api, secret, environment_id=other.pk).status == 404
    assert api.get(f"/v1/keys?environment_id={other.pk}", token=secret).status == 404
    in_other, _ = make_key(other)
    assert api.delete(f"/v1/keys/{in_other.pk}", token=secret).status == 404
    assert ServerKey.objects.filter(environment_id=other.pk, revoked_at__isnull=True).count() == 1


def test_owners_handle_all_keys_developers_theirs_viewers_and_users_none(
    api: Api, alice: User, bob: User, charlie: User, dora: User, sign_in: Callable[..., SignedIn]
) -> None:
    environment = make_environment(alice, developer=bob, viewer=dora)
    owner, developer, viewer, stranger = (sign_in(one).access_token for one in (alice, bob, dora, charlie))
    alices = issue(api, owner, environment_id=environment.pk).json
    bobs = issue(api, developer, environment_id=environment.pk)
    assert bobs.status == 201
    path = f"/v1/keys?environment_id={environment.pk}"

    def seen(who: str) -> Any:
        answer = api.get(path, token=who)
        return {key["id"] for key in answer.json["data"]} if answer.status == 200 else answer.status

    assert seen(owner) == {alices["id"], bobs.json["id"]}
    assert seen(developer) == {bobs.json["id"]}
    assert seen(viewer) == 403
    assert seen(stranger) == 404
    assert issue(api, viewer, environment_id=environment.pk).status == 403
    assert issue(api, stranger, environment_id=environment.pk).status == 404
    for who, status in ((developer, 404), (viewer, 403), (stranger, 404)):
        assert api.delete(f"/v1/keys/{alices['id']}", token=who).status == status
    assert api.get("/v1/auth/me", token=alices["secret"]).status == 200
    assert api.delete(f"/v1/keys/{bobs.json['id']}", token=developer).status == 204
    assert api.delete(f"/v1/keys/{alices['id']}", token=owner).status == 204


def test_a_developer_hands_on_no_scope_that_the_role_lacks(
    api: Api, alice: User, bob: User, sign_in: Callable[..., SignedIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = roles.BY_ROLE["developer"] - {"users:manage"}
    monkeypatch.setitem(roles.BY_ROLE, "developer", held)
    environment = make_environment(alice, developer=bob)
    developer = sign_in(bob).access_token
    assert issue(api, developer, *held & ENVIRONMENT_SCOPES, environment_id=environment.pk).status == 201
    refused = issue(api, developer, "users:manage", environment_id=environment.pk)
    assert (refused.status, refused.fields) == (422, {"scopes": "not_held"})


def test_an_app_user_handles_no_keys(api: Api, una: User, sign_in: Callable[..., SignedIn]) -> None:
    token = sign_in(una).access_token
    assert issue(api, token).status == 403
    assert api.get("/v1/keys", token=token).status == 403
    assert api.delete("/v1/keys/key_01k60000000000000000000000", token=token).status == 403


def test_account_keys_are_private(api: Api, owner: SignedIn, charlie: User, sign_in: Callable[..., SignedIn]) -> None:
    key = issue(api, owner.access_token, "projects:read").json
    stranger = sign_in(charlie).access_token
    assert api.get("/v1/keys", token=stranger).json["data"] == []
    assert api.delete(f"/v1/keys/{key['id']}", token=stranger).status == 404


# ── Ends ──


def test_a_revoked_key_is_401_on_the_next_call_and_leaves_the_list(
    api: Api, owner: SignedIn, production: Environment
) -> None:
    key = issue(api, owner.access_token, environment_id=production.pk).json
    assert [api.get("/v1/auth/me", token=key["secret"]).status for _ in range(3)] == [200] * 3
    assert api.delete(f"/v1/keys/{key['id']}", token=owner.access_token).status == 204
    assert [api.get("/v1/auth/me", token=key["secret"]).status for _ in range(3)] == [401] * 3
    assert api.get(f"/v1/keys?environment_id={production.pk}", token=owner.access_token).json["data"] == []
    assert api.delete(f"/v1/keys/{key['id']}", token=owner.access_token).status == 404
    assert AuditEntry.objects.filter(action="key.revoked", target_id=key["id"]).count() == 1


def test_a_key_may_end_itself(
    api: Api, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    key, secret = make_key(production, "keys:manage")
    assert api.delete(f"/v1/keys/{key.pk}", token=secret).status == 204
    assert api.get("/v1/auth/me", token=secret).status == 401


def test_a_key_expires(api: Api, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]) -> None:
    key, secret = make_key(production)
    assert api.get("/v1/auth/me", token=secret).status == 200
    ServerKey.objects.filter(pk=key.pk).update(expires_at="2020-01-01T00:00:00Z")
    redis_client.current().mark({credentials.key_cache_name(server_keys.digest(secret)): b"?"})
    assert api.get("/v1/auth/me", token=secret).status == 401


def test_a_cached_key_expires_by_itself(api: Api, owner: SignedIn, production: Environment) -> None:
    end = datetime.now(UTC) + timedelta(seconds=1.5)
    secret = issue(api, owner.access_token, environment_id=production.pk, expires_at=end.isoformat()).json["secret"]
    assert api.get("/v1/auth/me", token=secret).status == 200
    assert api.get("/v1/auth/me", token=secret).status == 200
    deadline = time.monotonic() + 5
    while api.get("/v1/auth/me", token=secret).status == 200:
        assert time.monotonic() < deadline, "the key outlived its end in the cache"
        time.sleep(0.1)
    assert datetime.now(UTC) >= end


def key_of_account(account: User) -> str:
    _, secret = user_service.issue_key(
        name="By an operator",
        scopes=["projects:read"],
        authority=permissions.operators(account_id=account.pk),
        actor=audit.SYSTEM,
    )
    return secret


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_the_keys_of_a_disabled_account_die_and_come_back_with_it(api: Api, charlie: User) -> None:
    secret = key_of_account(charlie)
    assert api.get("/v1/projects", token=secret).status == 200
    user_service.change_user(charlie, actor=audit.SYSTEM, is_disabled=True)
    assert [api.get("/v1/projects", token=secret).status for _ in range(2)] == [401, 401]
    user_service.change_user(charlie, actor=audit.SYSTEM, is_disabled=False)
    assert [api.get("/v1/projects", token=secret).status for _ in range(2)] == [200, 200]


def test_the_keys_of_a_deleted_account_die_with_it(api: Api, charlie: User) -> None:
    secret = key_of_account(charlie)
    assert [api.get("/v1/projects", token=secret).status for _ in range(2)] == [200, 200]
    user_service.delete_user(charlie, actor=audit.SYSTEM)
    assert [api.get("/v1/projects", token=secret).status for _ in range(2)] == [401, 401]


def test_the_last_use_is_noted_at_most_once_a_minute(
    api: Api, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    key, secret = make_key(production)
    assert key.last_used_at is None
    api.get("/v1/auth/me", token=secret)
    noted = ServerKey.objects.get(pk=key.pk).last_used_at
    assert noted is not None
    for _ in range(5):
        redis_client.current().mark(
            {credentials.key_cache_name(server_keys.digest(secret)): b"?"}
        )  # PostgreSQL is asked each time
        assert api.get("/v1/auth/me", token=secret).status == 200
        user_service.touch_key(key.pk)
    assert ServerKey.objects.get(pk=key.pk).last_used_at == noted
    ServerKey.objects.filter(pk=key.pk).update(last_used_at="2026-01-01T00:00:00Z")
    user_service.touch_key(key.pk)
    assert ServerKey.objects.get(pk=key.pk).last_used_at >= noted


# ── Quota ──


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_thirty_parallel_keys_at_a_quota_of_twenty_are_twenty(alice: User) -> None:
    environment = make_environment(alice)
    authority = permissions.KeyAuthority(environment_id=environment.pk, grantable=ENVIRONMENT_SCOPES, most=20)
    barrier = Barrier(30)

    def attempt() -> bool:
        barrier.wait(20)
        try:
            user_service.issue_key(name="k", scopes=["rows:read"], authority=authority, actor=audit.SYSTEM)
        except QuotaExceeded:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(30) as pool:
        made = [each.result(30) for each in [pool.submit(attempt) for _ in range(30)]]
    assert sum(made) == 20
    assert ServerKey.objects.count() == 20


def test_the_plan_says_how_many(api: Api, owner: SignedIn, production: Environment) -> None:
    for _ in range(20):
        assert issue(api, owner.access_token, environment_id=production.pk).status == 201
    assert issue(api, owner.access_token, environment_id=production.pk).error == "quota_exceeded"
    Project.objects.update(plan="pro")
    assert issue(api, owner.access_token, environment_id=production.pk).status == 201


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_the_same_idempotency_key_in_parallel_makes_one_key(
    api: Api, alice: User, sign_in: Callable[..., SignedIn]
) -> None:
    environment = make_environment(alice)
    token = sign_in(alice).access_token
    barrier = Barrier(8)

    def attempt() -> Answer:
        barrier.wait(20)
        try:
            return api.post(
                "/v1/keys",
                token=token,
                json={"name": "CI", "scopes": ["rows:read"], "environment_id": environment.pk},
                headers={"Idempotency-Key": "one"},
            )
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        answers = [each.result(30) for each in [pool.submit(attempt) for _ in range(8)]]
    assert {answer.status for answer in answers} <= {201, 409}
    done = [answer for answer in answers if answer.status == 201]
    assert len({answer.json["secret"] for answer in done}) == 1
    assert ServerKey.objects.count() == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(row_to_json(t)::text, '') FROM api_idempotencyrecord t")
        assert done[0].json["secret"] not in cursor.fetchone()[0]
