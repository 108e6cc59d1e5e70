"""`/v1/users`: the users of one application, managed with the scope `users:manage` and not without it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection

from accounts import audit
from accounts.models import AuditEntry, ServerKey, Session, User
from accounts.users import service as user_service
from platform_site.http.errors import QuotaExceeded, ValidationFailed
from platform_site.identity import signals
from projects.directory import environment_cache
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, make_environment, token
from tests.support.client import Answer, Api

pytestmark = pytest.mark.django_db(databases="__all__")

NEW = {
    "email": "New@Example.com",
    "password": PASSWORD,
    "name": "Nia 🦊",
    "role": "editor",
    "claims": {"teams": [1, "a"]},
}


@pytest.fixture
def manager(production: Environment, make_key: Callable[..., tuple[ServerKey, str]]) -> str:
    """A key that handles users."""
    return make_key(production, "users:manage")[1]


def test_a_weak_password_is_named_beside_the_other_fields(api: Api, manager: str, production: Environment) -> None:
    signed_up = {"email": "nia", "password": "short"}
    services_own = signed_up | {"role": "server"}
    for answer, fields in (
        (api.post("/v1/users", token=manager, json=services_own), ["email", "password", "role"]),
        (api.post("/v1/auth/signup", environment=production.pk, json=signed_up), ["email", "password"]),
        *(
            (api.post(f"/v1/auth/{path}", json={"token": "x" * 201, "password": "short"}), ["password", "token"])
            for path in ("password-reset/confirm", "invitation/accept", "member-invitation/accept")
        ),
    ):
        assert (answer.status, answer.error) == (422, "validation_failed")
        assert sorted(field["field"] for field in answer.json["error"]["fields"]) == fields
        codes = {field["field"]: field["code"] for field in answer.json["error"]["fields"]}
        assert codes["password"] == "password_too_short"
    assert not User.objects.filter(environment_id=production.pk).exists()


@pytest.mark.usefixtures("hashing_as_in_production")
def test_a_user_is_created_read_and_signs_in(api: Api, manager: str, production: Environment) -> None:
    answer = api.post("/v1/users", token=manager, json=NEW)
    assert answer.status == 201
    user = answer.json
    assert set(user) == {"id", "email", "name", "role", "claims", "email_verified_at", "disabled_at", "created_at"}
    assert {name: user[name] for name in ("email", "name", "role", "claims", "disabled_at")} == {
        "email": "new@example.com",
        "name": "Nia 🦊",
        "role": "editor",
        "claims": {"teams": [1, "a"]},
        "disabled_at": None,
    }
    assert answer.headers["Location"] == f"/v1/users/{user['id']}"
    assert api.get(answer.headers["Location"], token=manager).json == user
    entered = token(api, email="new@example.com", password=PASSWORD, environment=production.pk)
    assert entered.json["user"] == {"id": user["id"], "email": "new@example.com", "name": "Nia 🦊"}
    stored = User.objects.get(pk=user["id"])
    assert stored.environment_id == production.pk
    assert stored.password.startswith("argon2$argon2id$v=19$m=12288,t=3,p=1$")
    assert not stored.is_staff
    entry = AuditEntry.objects.get(action="user.created", target_id=user["id"])
    assert (entry.actor_kind, entry.environment_id, entry.project_id) == ("key", production.pk, production.project_id)


def test_each_field_of_a_user_changes_by_itself(api: Api, manager: str, una: User) -> None:
    path = f"/v1/users/{una.pk}"
    before = api.get(path, token=manager).json
    for change in (
        {"name": "Other"},
        {"name": ""},
        {"email": "other@example.com"},
        {"role": "admin"},
        {"role": None},
        {"claims": {"a": {"b": [None, True, 1.5]}}},
        {"claims": {}},
        {},
    ):
        answer = api.patch(path, token=manager, json=change)
        assert answer.status == 200
        assert answer.json == before | change
        before = answer.json
    assert api.get(path, token=manager).json == before
    changed = AuditEntry.objects.filter(action="user.changed", target_id=una.pk).count()
    assert changed == 7, "an empty change leaves no entry"


def test_names_have_no_control_characters(api: Api, manager: str, una: User, sign_in: Callable[..., SignedIn]) -> None:
    name, user = {"name": "a\x1b[2Kb"}, {"email": "new@example.com", "password": "a good password 1"}
    for method, path, bearer, body in (
        ("PATCH", f"/v1/users/{una.pk}", manager, {}),
        ("POST", "/v1/users", manager, user),
        ("PATCH", "/v1/auth/me", sign_in(una).access_token, {}),
        ("POST", "/v1/keys", manager, {"scopes": ["rows:read"]}),
    ):
        assert api.request(method, path, token=bearer, json=body | name).fields == {"name": "malformed"}


def test_a_name_from_before_that_rule_can_be_sent_unchanged(
    api: Api, manager: str, una: User, sign_in: Callable[..., SignedIn]
) -> None:
    User.objects.filter(pk=una.pk).update(name="a\x1bb")
    for path, bearer in ((f"/v1/users/{una.pk}", manager), ("/v1/auth/me", sign_in(una).access_token)):
        assert api.patch(path, token=bearer, json={"name": "a\x1bb"}).json["name"] == "a\x1bb"
        assert api.patch(path, token=bearer, json={"name": "a\x1bc"}).fields == {"name": "malformed"}


def test_claims_that_are_equal_for_python_alone_are_a_change(api: Api, manager: str, una: User) -> None:
    path = f"/v1/users/{una.pk}"
    for value in (True, 1, 1.0, [1, False], [1, 0]):
        answer = api.patch(path, token=manager, json={"claims": {"vip": value}})
        assert answer.status == 200
        shown = api.get(path, token=manager).json["claims"]["vip"]
        assert repr(shown) == repr(value)
    api.patch(path, token=manager, json={"claims": {"vip": [1, 0]}})
    changed = AuditEntry.objects.filter(action="user.changed", target_id=una.pk).count()
    assert changed == 5, "the same once more is no change"


def test_claims_with_a_number_beyond_64_bits_are_served(
    api: Api, manager: str, una: User, sign_in: Callable[..., SignedIn]
) -> None:
    path, claims = f"/v1/users/{una.pk}", {"most": 1e20, "least": [-1e300]}
    assert api.patch(path, token=manager, json={"claims": claims}).json["claims"] == claims
    for shown in (api.get(path, token=manager).json, api.get("/v1/users", token=manager).json["data"][0]):
        assert repr(shown["claims"]) == repr(claims)
    assert api.get("/v1/auth/me", token=sign_in(una).access_token).status == 200


def test_disabling_by_the_api_is_401_on_the_next_call(
    api: Api, manager: str, una: User, sign_in: Callable[..., SignedIn]
) -> None:
    one = sign_in(una)
    assert [api.get("/v1/auth/me", token=one.access_token).status for _ in range(2)] == [200, 200]
    answer = api.patch(f"/v1/users/{una.pk}", token=manager, json={"disabled": True})
    assert answer.json["disabled_at"] is not None
    assert [api.get("/v1/auth/me", token=one.access_token).status for _ in range(2)] == [401, 401]
    again = api.patch(f"/v1/users/{una.pk}", token=manager, json={"disabled": True})
    assert again.json == answer.json
    assert api.patch(f"/v1/users/{una.pk}", token=manager, json={"disabled": False}).json["disabled_at"] is None


def test_deleting_says_so_below_and_is_complete(
    api: Api, manager: str, una: User, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    one, heard = sign_in(una), []

    def hear(**facts: Any) -> None:
        heard.append((facts["user_id"], facts["pool_id"], connection.in_atomic_block))

    signals.user_deleted.connect(hear)
    try:
        assert api.delete(f"/v1/users/{una.pk}", token=manager).status == 204
    finally:
        signals.user_deleted.disconnect(hear)
    assert heard == [(una.pk, production.pk, True)]
    assert api.get("/v1/auth/me", token=one.access_token).status == 401
    for method in ("GET", "PATCH", "DELETE"):
        assert api.request(method, f"/v1/users/{una.pk}", token=manager, json={}).status == 404
    assert not User.objects.filter(pk=una.pk).exists()
    assert AuditEntry.objects.filter(action="user.deleted", target_id=una.pk).count() == 1


def test_users_come_in_pages_while_others_come_and_go(
    api: Api, manager: str, production: Environment, alice: User
) -> None:
    bulk = [User(environment_id=production.pk, email=f"u{n}@example.com", password="!") for n in range(45)]
    User.objects.bulk_create(bulk)
    seen: list[str] = []
    cursor = None
    for _ in range(10):
        page = api.get("/v1/users?limit=20" + (f"&cursor={cursor}" if cursor else ""), token=manager).json
        seen += [user["id"] for user in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        User.objects.create(environment_id=production.pk, email=f"late{len(seen)}@example.com", password="!")
        User.objects.filter(pk=seen[-1]).delete()
    assert seen == sorted((user.pk for user in bulk), reverse=True)
    assert alice.pk not in seen


def test_one_is_found_by_an_address(
    api: Api, manager: str, una: User, bob: User, make_user: Callable[..., User]
) -> None:
    elsewhere = make_user("eve", pool_id=make_environment(bob).pk)

    def with_email(text: str) -> list[str]:
        got = api.get("/v1/users?" + urlencode({"email": text}), token=manager)
        assert (got.status, got.json["next_cursor"]) == (200, None)
        return [each["id"] for each in got.json["data"]]

    assert with_email(una.email.upper()) == [una.pk]
    assert with_email(elsewhere.email) == []
    assert with_email("") == []
    assert with_email("%") == []
    made = api.post("/v1/users", token=manager, json={"email": "ada+test@example.org", "password": PASSWORD})
    for spelling in ("ada+test@example.org", "ada%2Btest@example.org", "ADA%20test@example.org"):
        found = api.get(f"/v1/users?email={spelling}", token=manager).json["data"]
        assert [user["id"] for user in found] == [made.json["id"]], spelling
    assert api.get("/v1/users?email=a&email=b", token=manager).fields == {"email": "repeated"}


def test_they_are_found_by_the_beginning_of_an_email_or_name(
    api: Api, manager: str, una: User, bob: User, make_user: Callable[..., User]
) -> None:
    make_user("nia", pool_id=make_environment(bob).pk)
    named = {
        "nia@example.org": "Bea",
        "b+n@example.org": "Niamh \u00c9ile",
        "c_d%@example.org": "",
        "cxd@example.org": "100%",
        "i@example.org": "\u0130brahim",
        "k@example.org": "\u039d\u0399\u039a\u039f\u03a3",
    }
    made = {
        email: api.post("/v1/users", token=manager, json={"email": email, "name": name}).json["id"]
        for email, name in named.items()
    }  # fmt: skip

    def ask(search: str, **more: str) -> Answer:
        return api.get("/v1/users?" + urlencode({"search": search, **more}), token=manager)

    def found(search: str) -> set[str]:
        ids = {each["id"] for each in ask(search).json["data"]}
        return {email for email, user_id in made.items() if user_id in ids}

    assert found("NIA") == {"nia@example.org", "b+n@example.org"}
    assert found("niamh \u00e9") == found("niamh e\u0301") == found("b+n") == found("b n@") == {"b+n@example.org"}
    assert found("\u0130br") == {"i@example.org"}
    assert found("\u039d\u0399\u039a\u039f\u03a3") == {"k@example.org"}
    assert found("c_") == found("c_d%") == {"c_d%@example.org"}
    assert found("100%") == {"cxd@example.org"}
    assert found("%") == found("_") == found("ia") == found("\\") == found("x" * 200) == set()
    first = ask("nia", limit="1").json
    second = ask("nia", limit="1", cursor=first["next_cursor"]).json
    assert [each["id"] for each in (*first["data"], *second["data"])] == [
        made["b+n@example.org"],
        made["nia@example.org"],
    ]
    assert second["next_cursor"] is None
    assert ask("c", cursor=first["next_cursor"]).fields == {"cursor": "invalid_cursor"}
    assert [each["id"] for each in ask("nia", ids=f"{una.pk},{made['nia@example.org']}").json["data"]] == [
        made["nia@example.org"]
    ]
    for wrong in ("", " ", "x" * 201):
        assert ask(wrong).fields == {"search": "invalid"}, wrong
    assert ask("nia", email="nia@example.org").fields == {"search": "invalid"}
    assert ask("\0").status in (200, 400, 422)


def test_the_beginning_of_an_email_or_name_is_found_by_indexes(production: Environment) -> None:
    pool = production.pk
    User.objects.bulk_create(
        User(environment_id=pool, email=f"user{number}@example.com", name=f"Name {number}", password="!")
        for number in range(3000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE accounts_user")
    plan = User.objects.beginning_with(pool, "nia").order_by("-id")[:51].explain()
    assert "user_of_pool_by_email" in plan
    assert "user_of_pool_by_name" in plan


def test_several_are_found_by_their_ids(
    api: Api, manager: str, una: User, bob: User, make_user: Callable[..., User]
) -> None:
    elsewhere = make_user("eve", pool_id=make_environment(bob).pk)
    two = api.post("/v1/users", token=manager, json={"email": "two@example.com"}).json["id"]

    def found(*ids: str, **more: str) -> Answer:
        return api.get("/v1/users?" + urlencode({"ids": ",".join(ids), **more}), token=manager)

    unknown = "usr_" + "0" * 26
    both = found(una.pk, two, elsewhere.pk, bob.pk, unknown, una.pk)
    assert [user["id"] for user in both.json["data"]] == sorted([una.pk, two], reverse=True)
    assert both.json["next_cursor"] is None
    assert [user["id"] for user in found(una.pk, two, email=una.email).json["data"]] == [una.pk]
    first = found(una.pk, two, limit="1").json
    assert [user["id"] for user in found(una.pk, two, cursor=first["next_cursor"]).json["data"]] == [una.pk]
    assert found(una.pk, cursor=first["next_cursor"]).fields == {"cursor": "invalid_cursor"}
    for wrong in ("", "una", f"{una.pk},", "prj_" + "0" * 26):
        assert found(wrong).fields == {"ids": "invalid"}, wrong
    many = [f"usr_{number:026d}" for number in range(101)]
    assert found(*many[:100]).json["data"] == []
    assert found(*many).fields == {"ids": "too_many"}


def test_other_pools_do_not_exist(
    api: Api, manager: str, alice: User, bob: User, production: Environment, make_user: Callable[..., User]
) -> None:
    elsewhere = make_user("eve", pool_id=make_environment(bob).pk)
    for user in (alice, elsewhere):
        for method in ("GET", "PATCH", "DELETE"):
            answer = api.request(method, f"/v1/users/{user.pk}", token=manager, json={"name": "x"})
            unknown = api.request(method, "/v1/users/usr_01k60000000000000000000000", token=manager, json={"name": "x"})
            assert answer.status == unknown.status == 404
            assert answer.json["error"] | {"request_id": ""} == unknown.json["error"] | {"request_id": ""}
    assert set(User.objects.values_list("name", flat=True)) >= {"Alice", "Eve"}
    # The same email is free in another pool.
    assert api.post("/v1/users", token=manager, json=NEW | {"email": "eve@example.com"}).status == 201


def test_only_the_scope_opens_it(
    api: Api,
    alice: User,
    bob: User,
    charlie: User,
    dora: User,
    una: User,
    production: Environment,
    sign_in: Callable[..., SignedIn],
    make_key: Callable[..., tuple[ServerKey, str]],
) -> None:
    environment = make_environment(alice, developer=bob, viewer=dora)
    statuses = {
        user.name: api.get("/v1/users", token=sign_in(user).access_token, environment=environment.pk).status
        for user in (alice, bob, dora, charlie)
    }
    assert statuses == {"Alice": 200, "Bob": 200, "Dora": 403, "Charlie": 404}
    assert api.get("/v1/users", token=sign_in(una).access_token).status == 403
    assert api.get("/v1/users", token=make_key(production, "rows:read", "keys:manage")[1]).status == 403


def test_an_account_with_two_projects_must_say_which(
    api: Api, alice: User, bob: User, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    assert api.get("/v1/users", token=sign_in(bob).access_token).fields == {"X-Environment": "required"}
    theirs = make_environment(bob)
    environment_cache.evict_account(bob.pk)
    only = sign_in(bob)
    assert api.get("/v1/auth/me", token=only.access_token, environment=theirs.pk).json["role"] == "owner"
    assert api.get("/v1/users", token=only.access_token).status == 200, "its only project's production"
    make_environment(alice)
    answer = api.get("/v1/users", token=sign_in(alice).access_token)
    assert (answer.status, answer.fields) == (422, {"X-Environment": "required"})


def test_a_branch_shows_its_parents_users_and_changes_none(
    api: Api, una: User, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    _, secret = make_key(branch_of(production))
    assert [user["id"] for user in api.get("/v1/users", token=secret).json["data"]] == [una.pk]
    assert api.get(f"/v1/users/{una.pk}", token=secret).status == 200
    assert api.post("/v1/users", token=secret, json=NEW).status == 403
    assert api.patch(f"/v1/users/{una.pk}", token=secret, json={"name": "x"}).status == 403
    assert api.delete(f"/v1/users/{una.pk}", token=secret).status == 403
    assert User.objects.get(pk=una.pk).name == "Una"


def test_the_pool_has_a_quota(api: Api, production: Environment) -> None:
    make = lambda name, most: user_service.create_user(  # noqa: E731
        pool_id=production.pk, email=f"{name}@example.com", password=None, actor=audit.SYSTEM, most=most
    )
    make("a", 2)
    make("b", 2)
    with pytest.raises(QuotaExceeded):
        make("c", 2)
    make("c", 3)


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_one_email_is_one_user_however_many_ask_at_once(alice: User) -> None:
    environment = make_environment(alice)
    barrier = Barrier(8)

    def attempt(number: int) -> bool:
        barrier.wait(20)
        email = "same@example.com" if number % 2 else "SAME@example.com"
        try:
            user_service.create_user(pool_id=environment.pk, email=email, password=None, actor=audit.SYSTEM)
        except ValidationFailed as error:
            return [field.code for field in error.fields] != ["taken"]
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        made = [each.result(30) for each in [pool.submit(attempt, number) for number in range(8)]]
    assert sum(made) == 1
    assert User.objects.in_pool(environment.pk).count() == 1


def test_the_same_idempotency_key_answers_the_same_and_makes_one(
    api: Api, manager: str, production: Environment
) -> None:
    def post(body: dict[str, Any]) -> Answer:
        return api.post("/v1/users", token=manager, json=body, headers={"Idempotency-Key": "abc"})

    first, second = post(NEW), post(NEW)
    assert first.body == second.body
    assert second.headers["Idempotency-Replayed"] == "true"
    assert post(NEW | {"name": "Other"}).fields == {"Idempotency-Key": "reused"}
    assert User.objects.in_pool(production.pk).count() == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(row_to_json(t)::text, '') FROM api_idempotencyrecord t")
        assert PASSWORD not in cursor.fetchone()[0]


def test_two_patches_at_once_both_count(alice: User) -> None:
    """A change locks its row: the second one sees the first."""
    stale = User.objects.get(pk=alice.pk)
    user_service.change_user(alice, actor=audit.SYSTEM, name="First")
    user_service.change_user(stale, actor=audit.SYSTEM, role="editor")
    fresh = User.objects.get(pk=alice.pk)
    assert (fresh.name, fresh.role) == ("First", "editor")
    assert Session.objects.count() == 0
