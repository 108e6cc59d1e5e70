"""Every request body that these endpoints can be sent: refused by name, below 500, and nothing changed. The `api`
fixture also checks each response against `tests.support.response_invariants`."""

from collections.abc import Iterator
from typing import Any

import pytest

from accounts.models import AuditEntry, ServerKey, Session, User
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, session_of, token
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")

TEXT_OF_WRONG_TYPE: list[Any] = [None, "", 5, 1.5, True, [], {}, ["x"], {"$ne": None}]


@pytest.fixture(autouse=True)
def nothing_changed(alice: User, una: User, production: Environment) -> Iterator[None]:
    """A refusal changes nothing."""
    before = (list(User.objects.order_by("pk").values()), Session.objects.count(), ServerKey.objects.count())
    yield
    sessions_of_tests = AuditEntry.objects.filter(action="session.started").count()
    keys_of_tests = AuditEntry.objects.filter(action="key.issued").count()
    users = [{**row, "last_login": None} for row in User.objects.order_by("pk").values()]
    assert users == [{**row, "last_login": None} for row in before[0]]
    assert Session.objects.count() == before[1] + sessions_of_tests
    assert ServerKey.objects.count() == before[2] + keys_of_tests


# ── The token endpoint ──

COMPLETE = {
    "password": {"email": "alice@example.com", "password": PASSWORD},
    "refresh_token": {"refresh_token": "rt_1"},
    "authorization_code": {"code": "oac_1"},
}
MEMBERS = [(grant, name) for grant, members in COMPLETE.items() for name in members]


@pytest.mark.parametrize(("grant", "name"), MEMBERS)
def test_a_grant_names_each_member_that_it_lacks(api: Api, grant: str, name: str) -> None:
    body = {key: value for key, value in COMPLETE[grant].items() if key != name}
    answer = token(api, grant_type=grant, **body)
    assert (answer.status, answer.error, answer.fields) == (400, "invalid_grant", {name: "required"})


@pytest.mark.parametrize("value", TEXT_OF_WRONG_TYPE)
@pytest.mark.parametrize(("grant", "name"), [*MEMBERS, ("password", "grant_type")])
def test_a_grant_names_each_member_of_the_wrong_type(api: Api, grant: str, name: str, value: Any) -> None:
    answer = token(api, **({"grant_type": grant} | COMPLETE[grant] | {name: value}))
    assert (answer.status, answer.error) == (400, "invalid_grant")
    assert list(answer.fields) == [name]


@pytest.mark.parametrize("grant", ["client_credentials", "PASSWORD", "password ", "urn:x", "x" * 10_000, "🦊"])
def test_a_grant_that_is_none_is_named(api: Api, grant: str) -> None:
    answer = token(api, grant_type=grant)
    assert (answer.status, answer.error, answer.fields) == (400, "invalid_grant", {"grant_type": "not_among"})


@pytest.mark.parametrize(("grant", "name"), MEMBERS)
def test_a_grant_with_a_member_that_is_too_long_is_refused(api: Api, grant: str, name: str) -> None:
    answer = token(api, **({"grant_type": grant} | COMPLETE[grant] | {name: "x" * 4097}))
    assert (answer.status, answer.error, answer.fields) == (400, "invalid_grant", {name: "too_long"})


@pytest.mark.parametrize("text", ["🦊", "‮", "a" * 254, "' OR 1=1 --", "%", "\\", "\u2028"])
@pytest.mark.parametrize(("grant", "name"), MEMBERS)
def test_a_grant_with_strange_text_is_only_wrong(api: Api, grant: str, name: str, text: str) -> None:
    answer = token(api, **({"grant_type": grant} | COMPLETE[grant] | {name: text[:200]}))
    assert (answer.status, answer.error) == (400, "invalid_grant")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"5",
        b'"password"',
        b"{",
        b"\xff\xfe",
        b'{"grant_type": "password", "grant_type": "password"}',
        b'{"grant_type": NaN}',
        b'{"grant_type": "\\ud800"}',
        b'{"grant_type": "pass\\u0000word"}',
        b"[" * 10_000,
        b"grant_type=password&email=a&password=b",
    ],
)
def test_a_body_that_is_no_object_is_an_invalid_grant(api: Api, body: bytes) -> None:
    answer = api.post("/v1/auth/token", body=body)
    assert (answer.status, answer.error) == (400, "invalid_grant")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_a_body_of_another_type_is_an_invalid_grant(api: Api, content_type: str) -> None:
    answer = api.post("/v1/auth/token", body=b"{}", content_type=content_type)
    assert (answer.status, answer.error) == (400, "invalid_grant")


def test_other_methods_are_no_grant_at_all(api: Api) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        assert api.request(method, "/v1/auth/token").error == "method_not_allowed"


# ── Bodies of members ──


@pytest.fixture
def owner(alice: User) -> SignedIn:
    return session_of(alice)


def refused(
    api: Api, method: str, path: str, who: SignedIn, body: Any, environment: str | None = None
) -> dict[str, str]:
    answer = api.request(method, path, token=who.access_token, json=body, environment=environment)
    assert (answer.status, answer.error) == (422, "validation_failed"), answer.body
    return answer.fields


USER = {"email": "new@example.com", "password": PASSWORD, "name": "New", "role": "editor", "claims": {"team": "a"}}
WRONG_USERS = [
    ({"email": None}, "email"),
    ({"email": ""}, "email"),
    ({"email": 5}, "email"),
    ({"email": ["a@example.com"]}, "email"),
    ({"email": "a"}, "email"),
    ({"email": "a@"}, "email"),
    ({"email": "a@example.com, b@example.com"}, "email"),
    ({"email": "ſ@example.com"}, "email"),
    ({"email": "🦊@example.com"}, "email"),
    ({"email": "a@exämple.com"}, "email"),
    ({"email": "a" * 250 + "@example.com"}, "email"),
    ({"email": "una@example.com"}, "email"),
    ({"email": "UNA@EXAMPLE.COM"}, "email"),
    ({"password": None}, "password"),
    ({"password": ""}, "password"),
    ({"password": 12345678}, "password"),
    ({"password": "short"}, "password"),
    ({"password": "password1"}, "password"),
    ({"password": "new@example.com"}, "password"),
    ({"password": "x1y2" * 251}, "password"),
    ({"name": None}, "name"),
    ({"name": 5}, "name"),
    ({"name": "x" * 201}, "name"),
    ({"role": ""}, "role"),
    ({"role": 5}, "role"),
    ({"role": "user"}, "role"),
    ({"role": "member"}, "role"),
    ({"role": "server"}, "role"),
    ({"role": "Editor"}, "role"),
    ({"role": "x" * 49}, "role"),
    ({"role": "a-b"}, "role"),
    ({"claims": None}, "claims"),
    ({"claims": []}, "claims"),
    ({"claims": "x"}, "claims"),
    ({"claims": {"x": "y" * 4096}}, "claims"),
    ({"is_staff": True}, "is_staff"),
    ({"is_superuser": True}, "is_superuser"),
    ({"environment_id": None}, "environment_id"),
    ({"id": "usr_01k60000000000000000000000"}, "id"),
]


@pytest.mark.parametrize(("change", "field"), WRONG_USERS)
def test_a_user_with_a_wrong_member_is_refused_by_its_name(
    api: Api, owner: SignedIn, production: Environment, una: User, change: dict[str, Any], field: str
) -> None:
    assert list(refused(api, "POST", "/v1/users", owner, USER | change, production.pk)) == [field]
    if change != {"email": "una@example.com"} and change != {"email": "UNA@EXAMPLE.COM"} and "password" not in change:
        assert list(refused(api, "PATCH", f"/v1/users/{una.pk}", owner, change, production.pk)) == [field]


def test_a_user_needs_an_email(api: Api, owner: SignedIn, production: Environment) -> None:
    body = {name: value for name, value in USER.items() if name != "email"}
    assert refused(api, "POST", "/v1/users", owner, body, production.pk) == {"email": "required"}


def test_all_wrong_members_are_named_at_once(api: Api, owner: SignedIn, production: Environment) -> None:
    body = {"email": 5, "password": None, "name": [], "role": "server", "claims": 1, "extra": 1}
    assert set(refused(api, "POST", "/v1/users", owner, body, production.pk)) == set(body)


def test_claims_hold_no_number_that_an_answer_could_not_carry(
    api: Api, owner: SignedIn, production: Environment, una: User
) -> None:
    answer = api.patch(
        f"/v1/users/{una.pk}",
        token=owner.access_token,
        environment=production.pk,
        body=b'{"claims": {"x": [18446744073709551616]}}',
    )
    assert (answer.status, answer.fields) == (422, {"claims": "too_large"})


KEY = {"name": "Key", "scopes": ["rows:read"]}
WRONG_KEYS = [
    ({"name": None}, "name"),
    ({"name": ""}, "name"),
    ({"name": "   "}, "name"),
    ({"name": 5}, "name"),
    ({"name": "x" * 101}, "name"),
    ({"scopes": None}, "scopes"),
    ({"scopes": []}, "scopes"),
    ({"scopes": "rows:read"}, "scopes"),
    ({"scopes": {"rows:read": True}}, "scopes"),
    ({"scopes": ["rows:read", "rows:read"]}, "scopes"),
    ({"scopes": ["rows:everything"]}, "scopes.0"),
    ({"scopes": [None]}, "scopes.0"),
    ({"scopes": [5]}, "scopes.0"),
    ({"scopes": ["rows:read"] * 101}, "scopes"),
    ({"scopes": ["projects:create"]}, "scopes"),
    ({"environment_id": 5}, "environment_id"),
    ({"environment_id": ""}, "environment_id"),
    ({"environment_id": "prj_01k60000000000000000000000"}, "environment_id"),
    ({"expires_at": "tomorrow"}, "expires_at"),
    ({"expires_at": 5}, "expires_at"),
    ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
    ({"expires_at": "2040-01-01T00:00:00"}, "expires_at"),
    ({"expires_at": "99999-01-01T00:00:00Z"}, "expires_at"),
    ({"secret": "sk_"}, "secret"),
    ({"created_by": "usr_"}, "created_by"),
]


@pytest.mark.parametrize(("change", "field"), WRONG_KEYS)
def test_a_key_with_a_wrong_member_is_refused_by_its_name(
    api: Api, owner: SignedIn, production: Environment, change: dict[str, Any], field: str
) -> None:
    assert list(refused(api, "POST", "/v1/keys", owner, KEY | change, production.pk)) == [field]


@pytest.mark.parametrize("missing", ["name", "scopes"])
def test_a_key_needs_name_and_scopes(api: Api, owner: SignedIn, missing: str) -> None:
    body = {name: value for name, value in KEY.items() if name != missing}
    assert refused(api, "POST", "/v1/keys", owner, body) == {missing: "required"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scope"),
        ({"scope": None}, "scope"),
        ({"scope": ""}, "scope"),
        ({"scope": "everything"}, "scope"),
        ({"scope": 5}, "scope"),
        ({"scope": "all", "x": 1}, "x"),
    ],
)
def test_a_revocation_with_a_wrong_scope_revokes_nothing(api: Api, owner: SignedIn, body: Any, field: str) -> None:
    assert list(refused(api, "POST", "/v1/auth/revoke", owner, body)) == [field]
    assert api.get("/v1/auth/me", token=owner.access_token).status == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"email": "other@example.com"}, "email"),
        ({"role": "admin"}, "role"),
        ({"claims": {}}, "claims"),
        ({"is_staff": True}, "is_staff"),
        ({"password": "another good one"}, "current_password"),
        ({"current_password": PASSWORD}, "password"),
        ({"password": "another good one", "current_password": "wrong"}, "current_password"),
        ({"password": "short", "current_password": PASSWORD}, "password"),
        ({"password": "x1y2" * 251, "current_password": PASSWORD}, "password"),
    ],
)
def test_one_cannot_change_of_oneself_what_is_not_ones_own(api: Api, owner: SignedIn, body: Any, field: str) -> None:
    assert list(refused(api, "PATCH", "/v1/auth/me", owner, body)) == [field]


@pytest.mark.parametrize("path", ["/v1/users", "/v1/keys", "/v1/auth/revoke"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"name": "a\\u0000b"}', 400),
        (b'{"name": "\\ud800"}', 400),
        (b'{"name": "a", "name": "b"}', 400),
        (b"NaN", 400),
        (b"\xff", 400),
        (b"[" * 10_000, 400),
        (b"[]", 422),
        (b"5", 422),
        (b"null", 422),
        (b'"x"', 422),
    ],
)
def test_a_body_that_is_no_object_is_refused(
    api: Api, owner: SignedIn, production: Environment, path: str, body: bytes, status: int
) -> None:
    answer = api.post(path, token=owner.access_token, body=body, environment=production.pk)
    assert answer.status == status
    if status == 422:
        assert list(answer.fields) == ["$body"]


@pytest.mark.parametrize("path", ["/v1/users", "/v1/keys", "/v1/auth/sessions"])
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=abc", "limit"),
        ("limit=", "limit"),
        ("limit=1.5", "limit"),
        ("limit=%EF%BC%91", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=", "cursor"),
        ("cursor=abc", "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=" + "A" * 9000, "cursor"),
        ("where={}", "where"),
    ],
)
def test_a_list_refuses_a_malformed_parameter(
    api: Api, owner: SignedIn, production: Environment, path: str, query: str, field: str
) -> None:
    answer = api.get(f"{path}?{query}", token=owner.access_token, environment=production.pk)
    assert (answer.status, list(answer.fields)) == (422, [field])


@pytest.mark.parametrize("path", ["/v1/users/{}", "/v1/keys/{}", "/v1/auth/sessions/{}"])
@pytest.mark.parametrize("name", ["x", "usr_", "🦊", "%00", "%ED%A0%80", "..%2F..", "x" * 2000, "'%20OR%201=1"])
def test_an_id_that_is_none_is_not_found(
    api: Api, owner: SignedIn, production: Environment, path: str, name: str
) -> None:
    answer = api.delete(path.format(name), token=owner.access_token, environment=production.pk)
    assert answer.status == 404
