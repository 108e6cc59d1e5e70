"""Sessions and oneself: `/v1/auth/sessions`, `/v1/auth/revoke`, `/v1/auth/me`. What ends is 401 on the next call."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts import audit
from accounts.models import AuditEntry, Session, User
from accounts.users import service as user_service
from accounts.users import sessions
from platform_site.identity import signals
from platform_site.redis import client as redis_client
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, make_environment, token
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")


def works(api: Api, who: SignedIn) -> bool:
    """Whether the access token is accepted; the refresh token must then agree with it."""
    status = api.get("/v1/auth/me", token=who.access_token).status
    assert status in (200, 401)
    return status == 200


def refreshes(api: Api, who: SignedIn) -> bool:
    return token(api, grant_type="refresh_token", refresh_token=who.refresh_token).status == 200


@pytest.fixture
def three(api: Api, alice: User, sign_in: Callable[..., SignedIn]) -> list[SignedIn]:
    """Three sessions of alice, each met by the caller's cache already."""
    made = [sign_in(alice) for _ in range(3)]
    assert all(works(api, one) and works(api, one) for one in made)
    return made


def test_own_sessions_are_listed_newest_first(
    api: Api, three: list[SignedIn], bob: User, sign_in: Callable[..., SignedIn]
) -> None:
    sign_in(bob)
    answer = api.get("/v1/auth/sessions", token=three[1].access_token)
    data = answer.json["data"]
    assert [one["current"] for one in data] == [False, True, False]
    assert [one["id"] for one in data] == list(
        Session.objects.filter(user=three[0].user).order_by("-id").values_list("pk", flat=True)
    )
    assert set(data[0]) == {
        "id", "current", "environment_id", "user_agent", "ip_address", "created_at", "refreshed_at", "expires_at",
        "ended_at", "end_reason",
    }  # fmt: skip
    assert answer.json["next_cursor"] is None


def test_sessions_come_in_pages(api: Api, three: list[SignedIn], bob: User, sign_in: Callable[..., SignedIn]) -> None:
    seen, cursor = [], None
    while True:
        query = "?limit=2" + (f"&cursor={cursor}" if cursor else "")
        page = api.get(f"/v1/auth/sessions{query}", token=three[0].access_token).json
        seen += [one["id"] for one in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        # A cursor of alice's list is none of bob's.
        other = api.get(f"/v1/auth/sessions?cursor={cursor}", token=sign_in(bob).access_token)
        assert other.fields == {"cursor": "invalid_cursor"}
    assert len(seen) == len(set(seen)) == 3


@pytest.mark.parametrize(
    ("scope", "left"), [("current", [1, 2]), ("others", [0]), ("all", [])], ids=["current", "others", "all"]
)
def test_revoking_ends_what_it_says_at_once(api: Api, three: list[SignedIn], scope: str, left: list[int]) -> None:
    answer = api.post("/v1/auth/revoke", token=three[0].access_token, json={"scope": scope})
    assert (answer.status, answer.body) == (204, b"")
    assert [number for number, one in enumerate(three) if works(api, one)] == left
    assert [number for number, one in enumerate(three) if refreshes(api, one)] == left
    assert set(Session.objects.filter(revoked_at__isnull=False).values_list("revoked_reason", flat=True)) == {
        "signed_out"
    }
    entry = AuditEntry.objects.get(action="session.revoked")
    assert entry.detail == {"reason": "signed_out", "count": 3 - len(left), "scope": scope}


def test_one_session_is_ended_by_its_id_and_only_by_its_owner(
    api: Api, three: list[SignedIn], charlie: User, sign_in: Callable[..., SignedIn]
) -> None:
    oldest = Session.objects.order_by("pk").values_list("pk", flat=True)[0]
    assert api.delete(f"/v1/auth/sessions/{oldest}", token=sign_in(charlie).access_token).status == 404
    assert works(api, three[0])
    assert api.delete(f"/v1/auth/sessions/{oldest}", token=three[1].access_token).status == 204
    assert [works(api, one) for one in three] == [False, True, True]
    assert api.delete(f"/v1/auth/sessions/{oldest}", token=three[1].access_token).status == 404


def test_a_key_has_no_sessions(api: Api, production: Environment, make_key: Callable[..., tuple[Any, str]]) -> None:
    _, secret = make_key(production)
    assert api.get("/v1/auth/sessions", token=secret).status == 403
    assert api.post("/v1/auth/revoke", token=secret, json={"scope": "all"}).status == 403
    assert api.patch("/v1/auth/me", token=secret, json={"name": "Key"}).status == 403


# ── What else ends sessions ──


def test_disabling_ends_every_session_and_enabling_revives_none(api: Api, three: list[SignedIn]) -> None:
    alice = three[0].user
    user_service.change_user(alice, actor=audit.SYSTEM, is_disabled=True)
    assert not any(works(api, one) for one in three)
    assert token(api, email=alice.email, password=PASSWORD).error == "invalid_grant"
    user_service.change_user(alice, actor=audit.SYSTEM, is_disabled=False)
    assert not any(works(api, one) or refreshes(api, one) for one in three)
    assert token(api, email=alice.email, password=PASSWORD).status == 200
    actions = AuditEntry.objects.filter(target_id=alice.pk).order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["user.created", "user.disabled", "user.enabled"]


def test_a_new_password_of_ones_own_ends_every_other_session(api: Api, three: list[SignedIn]) -> None:
    body = {"current_password": PASSWORD, "password": "a different horse"}
    assert api.patch("/v1/auth/me", token=three[0].access_token, json=body).status == 200
    assert [works(api, one) for one in three] == [True, False, False]
    assert [refreshes(api, one) for one in three] == [True, False, False]
    assert token(api, email=three[0].user.email, password=PASSWORD).error == "invalid_grant"
    assert token(api, email=three[0].user.email, password="a different horse").status == 200
    assert "different" not in repr(list(AuditEntry.objects.values()))


def test_password_set_by_an_operator_ends_every_session(api: Api, three: list[SignedIn]) -> None:
    user_service.change_user(three[0].user, actor=audit.SYSTEM, password="a different horse")
    assert not any(works(api, one) or refreshes(api, one) for one in three)


def test_deleting_a_user_ends_every_session(api: Api, three: list[SignedIn]) -> None:
    user_service.delete_user(three[0].user, actor=audit.SYSTEM)
    assert not any(works(api, one) or refreshes(api, one) for one in three)
    assert Session.objects.count() == 0


def test_more_sessions_than_are_ended_in_one_statement_all_end(alice: User) -> None:
    Session.objects.bulk_create(
        Session(user=alice, family_hash=b"%032d" % number, refresh_hash=b"", expires_at=Now() + sessions.LIFETIME)
        for number in range(1_001)
    )
    assert sessions.end_where(Q(user=alice), "signed_out") == 1_001
    assert not sessions.of_user(alice.pk).exists()


def test_an_expired_session_is_401(api: Api, three: list[SignedIn]) -> None:
    Session.objects.update(expires_at="2020-01-01T00:00:00Z")
    redis_client.current().mark({f"who:{pk}": b"?" for pk in Session.objects.values_list("pk", flat=True)})
    assert not any(works(api, one) or refreshes(api, one) for one in three)


def test_a_branch_lists_and_ends_only_its_own_sessions(
    api: Api, una: User, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    here = sign_in(una)
    there, other = (sign_in(una, environment=branch_of(production, name).pk) for name in ("one", "two"))
    ids = {each["id"] for each in api.get("/v1/auth/sessions", token=here.access_token).json["data"]}
    [only] = api.get("/v1/auth/sessions", token=there.access_token).json["data"]
    assert (len(ids), only["id"] in ids) == (3, True)
    for session_id in ids - {only["id"]}:
        assert api.delete(f"/v1/auth/sessions/{session_id}", token=there.access_token).status == 404
    for scope in ("others", "all"):
        assert api.post("/v1/auth/revoke", token=there.access_token, json={"scope": scope}).status == 204
    assert [works(api, one) for one in (here, there, other)] == [True, False, True]
    assert api.post("/v1/auth/revoke", token=here.access_token, json={"scope": "all"}).status == 204
    assert not works(api, other)


def test_an_environment_that_goes_takes_its_sessions_and_keys_along(
    api: Api, una: User, production: Environment, sign_in: Callable[..., SignedIn], make_key: Callable[..., Any]
) -> None:
    branch = branch_of(production)
    here, there = sign_in(una), sign_in(una, environment=branch.pk)
    _, key = make_key(production)
    _, branch_key = make_key(branch)
    assert works(api, here)
    assert works(api, there)
    assert api.get("/v1/auth/me", token=key).status == 200
    signals.environment_deleting.send(Environment, environment_id=production.pk, cluster="us-east-1")
    assert not works(api, here)
    assert not works(api, there), "a user of the pool in a branch of it"
    assert api.get("/v1/auth/me", token=key).status == 401
    assert api.get("/v1/auth/me", token=branch_key).status == 200
    signals.environment_deleted.send(Environment, environment_id=production.pk, cluster="us-east-1")
    assert not User.objects.filter(environment_id=production.pk).exists()
    assert not Session.objects.exists()
    signals.environment_deleted.send(Environment, environment_id=production.pk, cluster="us-east-1")  # runs twice


# ── Redis ──


def flush() -> None:
    """As FLUSHALL would; that the service's own user may not do."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.delete(*client.scan_iter(count=1000))
    assert not list(client.scan_iter())


def test_flushed_redis_neither_revokes_nor_revives_sessions(api: Api, three: list[SignedIn]) -> None:
    api.post("/v1/auth/revoke", token=three[0].access_token, json={"scope": "current"})
    flush()
    for _ in range(3):
        assert [works(api, one) for one in three] == [False, True, True]


def test_a_record_read_before_a_revocation_cannot_be_filled_in_after_it(api: Api, alice: User) -> None:
    """The late writer: its NX meets the mark, whether the revocation has committed or not."""
    grant = sessions.sign_in(
        pool_id=None, environment_id=None, email=alice.email, password=PASSWORD, device=sessions.Device()
    )
    session_id = Session.objects.get().pk
    me = lambda: api.get("/v1/auth/me", token=grant.access_token).status  # noqa: E731
    assert me() == 200
    assert me() == 200  # the record is in the cache by now
    trip = redis_client.round_trip()
    record = trip.get(f"who:{session_id}")
    trip.run()
    assert record.value
    user_service.change_user(alice, actor=audit.SYSTEM, is_disabled=True)
    redis_client.current().fill(f"who:{session_id}", record.value)
    assert me() == 401


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_rolled_back_revocation_revokes_nothing(api: Api, alice: User, sign_in: Callable[..., SignedIn]) -> None:
    one = sign_in(alice)
    assert works(api, one)
    with transaction.atomic():
        user_service.change_user(alice, actor=audit.SYSTEM, is_disabled=True)
        transaction.set_rollback(True)
    assert works(api, one)
    assert AuditEntry.objects.filter(action="user.disabled").count() == 0
    connection.close()


# ── Oneself ──


def test_me_says_who_calls(
    api: Api,
    alice: User,
    una: User,
    production: Environment,
    sign_in: Callable[..., SignedIn],
    make_key: Callable[..., Any],
) -> None:
    account = api.get("/v1/auth/me", token=sign_in(alice).access_token, environment=production.pk).json
    assert account["kind"] == "account"
    assert (account["id"], account["email"], account["name"]) == (alice.pk, alice.email, "Alice")
    assert (account["role"], account["environment_id"]) == ("owner", production.pk)
    assert "users:manage" in account["scopes"]
    user_service.change_user(una, actor=audit.SYSTEM, role="editor")
    user = api.get("/v1/auth/me", token=sign_in(una).access_token).json
    assert (user["kind"], user["id"], user["role"], user["environment_id"]) == ("user", una.pk, "editor", production.pk)
    assert "keys:manage" not in user["scopes"]
    made, secret = make_key(production, "rows:read", "users:manage")
    key = api.get("/v1/auth/me", token=secret).json
    assert key == {
        "kind": "key",
        "id": made.pk,
        "email": None,
        "email_verified": None,
        "pending_email": None,
        "has_password": None,
        "name": "Test key",
        "role": None,
        "environment_id": production.pk,
        "scopes": ["rows:read", "users:manage"],
    }


def test_my_name_changes_and_the_next_call_knows_it(api: Api, alice: User, sign_in: Callable[..., SignedIn]) -> None:
    one = sign_in(alice)
    assert [works(api, one) for _ in range(2)] == [True, True]
    answer = api.patch("/v1/auth/me", token=one.access_token, json={"name": "Alice 🦊"})
    assert (answer.status, answer.json["name"]) == (200, "Alice 🦊")
    assert api.get("/v1/auth/me", token=one.access_token).json["name"] == "Alice 🦊"
    assert api.patch("/v1/auth/me", token=one.access_token, json={}).json["name"] == "Alice 🦊"


def test_a_changed_role_is_known_on_the_next_call(api: Api, una: User, sign_in: Callable[..., SignedIn]) -> None:
    one = sign_in(una)
    for role in ("editor", "admin", None):
        user_service.change_user(una, actor=audit.SYSTEM, role=role)
        assert [api.get("/v1/auth/me", token=one.access_token).json["role"] for _ in range(3)] == [role] * 3


def test_environment_of_another_project_is_not_found(
    api: Api, una: User, charlie: User, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    strange = make_environment(charlie)
    for user in (una, charlie):
        other = strange.pk if user == una else production.pk
        assert api.get("/v1/auth/me", token=sign_in(user).access_token, environment=other).status == 404
