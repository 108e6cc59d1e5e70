"""The sessions of an environment's users at `/v1/users/{user_id}/sessions`: for those who manage the users."""

from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import AuditEntry, User
from projects.models import Environment
from tests.accounts.conftest import SignedIn, branch_of, make_environment, session_of
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")


def works(api: Api, who: SignedIn) -> bool:
    return api.get("/v1/auth/me", token=who.access_token).status == 200


@pytest.fixture
def owner(alice: User) -> SignedIn:
    return session_of(alice)


def listed(api: Api, token: str, environment: Environment, user: User, query: str = "") -> list[dict[str, Any]]:
    answer = api.get(f"/v1/users/{user.pk}/sessions{query}", token=token, environment=environment.pk)
    assert answer.status == 200, answer.json
    return list(answer.json["data"])


def test_sessions_of_a_user_are_listed_and_ended(
    api: Api, una: User, owner: SignedIn, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    three = [sign_in(una) for _ in range(3)]
    assert all(works(api, each) for each in three)
    found = listed(api, owner.access_token, production, una)
    assert [each["id"] for each in found] == sorted((each["id"] for each in found), reverse=True)
    assert not any(each["current"] for each in found)
    assert all(each["user_agent"] is not None and each["ip_address"] and not each["refreshed_at"] for each in found)
    base = f"/v1/users/{una.pk}/sessions"
    here = {"token": owner.access_token, "environment": production.pk}
    assert api.delete(f"{base}/{found[1]['id']}", **here).status == 204
    assert [works(api, each) for each in three] == [True, False, True]
    assert api.delete(f"{base}/{found[1]['id']}", **here).status == 404
    assert api.delete(base, **here).status == 204
    assert not any(works(api, each) for each in three)
    assert listed(api, owner.access_token, production, una) == []
    ended = listed(api, owner.access_token, production, una, "?state=ended")
    assert [each["end_reason"] for each in ended] == ["revoked_by_manager"] * 3
    entries = AuditEntry.objects.filter(action="session.revoked", target_id=una.pk).order_by("at")
    assert [
        (each.actor_kind, each.environment_id, each.detail["count"], each.detail["reason"]) for each in entries
    ] == [
        ("account", production.pk, 1, "revoked_by_manager"),
        ("account", production.pk, 2, "revoked_by_manager"),
    ]


def test_others_neither_see_nor_end_them(
    api: Api,
    una: User,
    owner: SignedIn,
    production: Environment,
    sign_in: Callable[..., SignedIn],
    make_key: Callable[..., tuple[Any, str]],
) -> None:
    own = sign_in(una)
    [session] = listed(api, owner.access_token, production, una)
    base = f"/v1/users/{una.pk}/sessions"
    _, key = make_key(production, "rows:read")
    for token in (own.access_token, key):
        for call, path in ((api.get, base), (api.delete, base), (api.delete, f"{base}/{session['id']}")):
            answer = call(path, token=token, environment=production.pk)
            assert (answer.status, "users:manage" in answer.json["error"]["message"]) == (403, True)
    _, manager = make_key(production, "users:manage")
    assert len(listed(api, manager, production, una)) == 1
    other = make_environment(owner.user)
    for path in (base, f"{base}/{session['id']}"):
        assert api.delete(path, token=owner.access_token, environment=other.pk).status == 404
    assert api.delete(f"{base}/{session['id']}x", token=owner.access_token, environment=production.pk).status == 404
    assert works(api, own)


def test_a_session_of_another_user_is_not_found(
    api: Api, una: User, owner: SignedIn, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    sign_in(una)
    [session] = listed(api, owner.access_token, production, una)
    here = {"token": owner.access_token, "environment": production.pk}
    twin = api.post("/v1/users", json={"email": "twin@app.example"}, **here).json["id"]
    assert api.delete(f"/v1/users/{twin}/sessions/{session['id']}", **here).status == 404
    account = api.get("/v1/auth/me", token=owner.access_token).json["id"]
    for user_id in (account, "usr_", "x"):
        assert api.get(f"/v1/users/{user_id}/sessions", **here).status == 404
        assert api.delete(f"/v1/users/{user_id}/sessions", **here).status == 404
    assert works(api, owner)


def test_a_branch_lists_and_ends_only_its_own(
    api: Api, una: User, owner: SignedIn, production: Environment, sign_in: Callable[..., SignedIn]
) -> None:
    branch = branch_of(production, "one")
    here, there = sign_in(una), sign_in(una, environment=branch.pk)
    assert len(listed(api, owner.access_token, production, una)) == 2
    [only] = listed(api, owner.access_token, branch, una)
    assert only["environment_id"] == branch.pk
    assert api.delete(f"/v1/users/{una.pk}/sessions", token=owner.access_token, environment=branch.pk).status == 204
    assert [works(api, each) for each in (here, there)] == [True, False]
