"""Refresh tokens: one successor each, repeated while it is unused; any other reuse ends the session.

after supabase/auth's TestConcurrentReuse, TestMaliciousReuse and TestFailToSaveReuse.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from accounts import audit
from accounts.models import AuditEntry, Session, User
from accounts.tokens import refresh_tokens
from accounts.tokens.refresh_tokens import RefreshToken
from accounts.users import service as user_service
from accounts.users import sessions
from accounts.users.sessions import Device, Grant
from platform_site.http.errors import InvalidGrant
from tests.support.statements import counted

pytestmark = pytest.mark.django_db(databases="__all__")


def sign_in(user: User) -> Grant:
    return sessions.sign_in(
        pool_id=user.environment_id,
        environment_id=None,
        email=user.email,
        password="correct horse battery",
        device=Device(),
    )


def refresh(token: str) -> Grant:
    return sessions.refresh(token, device=Device())


def test_a_refresh_token_is_good_for_one_successor_and_a_new_access_token(alice: User) -> None:
    first = sign_in(alice)
    second = refresh(first.refresh_token)
    third = refresh(second.refresh_token)
    assert len({first.refresh_token, second.refresh_token, third.refresh_token}) == 3
    assert len({first.access_token, second.access_token, third.access_token}) == 3
    assert third.user == alice


@pytest.mark.parametrize("later", [timedelta(0), timedelta(seconds=31), timedelta(days=29)])
def test_a_lost_response_is_repeated_until_its_successor_is_used(alice: User, later: timedelta) -> None:
    first = sign_in(alice)
    second = refresh(first.refresh_token)
    Session.objects.update(rotated_at=F("rotated_at") - later)
    assert [refresh(first.refresh_token).refresh_token for _ in range(10)] == [second.refresh_token] * 10
    assert refresh(second.refresh_token).refresh_token != second.refresh_token


def test_after_its_successor_was_used_a_token_ends_the_session(alice: User) -> None:
    first = sign_in(alice)
    second = refresh(first.refresh_token)
    third = refresh(second.refresh_token)
    for token in (first, second, third):
        with pytest.raises(InvalidGrant):
            sessions.refresh(token.refresh_token, device=Device(ip_address="203.0.113.9"))
    session = Session.objects.get()
    assert session.revoked_reason == "refresh_token_reused"
    assert (session.previous_hash, session.sealed_successor) == (None, None)
    entry = AuditEntry.objects.get(action="session.revoked", detail__reason="refresh_token_reused")
    assert (entry.detail["user_id"], entry.detail["reused_from"]) == (alice.pk, "203.0.113.9")


def test_a_token_replaced_long_ago_ends_the_session_too(alice: User) -> None:
    chain = [sign_in(alice)]
    for _ in range(4):
        chain.append(refresh(chain[-1].refresh_token))
    with pytest.raises(InvalidGrant):
        refresh(chain[0].refresh_token)
    for grant in chain:
        with pytest.raises(InvalidGrant):
            refresh(grant.refresh_token)
    assert Session.objects.get().revoked_reason == "refresh_token_reused"


def test_reuse_ends_one_session_and_no_other(alice: User) -> None:
    stolen, other = sign_in(alice), sign_in(alice)
    refresh(refresh(stolen.refresh_token).refresh_token)
    with pytest.raises(InvalidGrant):
        refresh(stolen.refresh_token)
    refresh(other.refresh_token)
    assert Session.objects.filter(revoked_at__isnull=True).count() == 1


def test_an_expired_session_is_not_refreshed(alice: User) -> None:
    grant = sign_in(alice)
    Session.objects.update(expires_at=Now())
    with pytest.raises(InvalidGrant):
        refresh(grant.refresh_token)


def test_a_session_of_a_disabled_user_is_not_refreshed(alice: User) -> None:
    grant = sign_in(alice)
    User.objects.update(disabled_at=Now())
    with pytest.raises(InvalidGrant):
        refresh(grant.refresh_token)


def test_a_refresh_moves_the_end_of_the_session(alice: User) -> None:
    grant = sign_in(alice)
    Session.objects.update(expires_at=Now() + timedelta(days=1))
    refresh(grant.refresh_token)
    session = Session.objects.annotate(left=F("expires_at") - Now()).get()
    assert timedelta(days=29, hours=23) < session.left <= timedelta(days=30)


def test_a_refresh_is_one_statement(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    token = sign_in(alice).refresh_token
    with counted(monkeypatch) as statements:
        refresh(token)
    assert [statement.split()[0] for statement in statements] == ["UPDATE"]


def test_what_cannot_be_a_refresh_token_costs_no_statement(alice: User, django_assert_num_queries: Any) -> None:
    token = sign_in(alice).refresh_token
    flipped = token[:-8] + ("a" if token[-8] != "a" else "b") + token[-7:]
    junk = [
        "",
        "rt_",
        "x" * 200,
        flipped,
        token[:-1],
        token + "a",
        token.swapcase(),
        "sk_" + token[3:],
        "rt_é" + token[4:],
    ]
    with django_assert_num_queries(0):
        for text in junk:
            with pytest.raises(InvalidGrant, match="Malformed refresh token"):
                refresh(text)
    assert refresh(token).user == alice


def test_a_made_up_token_of_the_right_form_is_unknown_and_harms_nobody(alice: User) -> None:
    grant = sign_in(alice)
    with pytest.raises(InvalidGrant):
        refresh(refresh_tokens.first().text)
    refresh(grant.refresh_token)


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_twenty_parallel_refreshes_have_one_successor(alice: User) -> None:
    token = sign_in(alice).refresh_token
    barrier = Barrier(20)

    def attempt() -> str:
        try:
            barrier.wait(10)
            return refresh(token).refresh_token
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as pool:
        successors = [each.result(30) for each in [pool.submit(attempt) for _ in range(20)]]
    assert len(set(successors)) == 1
    session = Session.objects.get()
    assert bytes(session.refresh_hash) == RefreshToken(successors[0]).hash
    assert bytes(session.previous_hash or b"") == RefreshToken(token).hash
    assert refresh(successors[0]).refresh_token not in successors


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_no_session_slips_in_behind_the_disabling_of_its_user(alice: User) -> None:
    """Whatever the order in which a sign-in and a disabling arrive, no live session is left behind."""
    for _ in range(5):
        user_service.change_user(alice, actor=audit.SYSTEM, is_disabled=False)
        barrier = Barrier(2)

        def enter(barrier: Barrier = barrier) -> None:
            barrier.wait(10)
            try:
                sign_in(alice)
            except InvalidGrant:
                pass
            finally:
                connection.close()

        def disable(barrier: Barrier = barrier) -> None:
            barrier.wait(10)
            try:
                user_service.change_user(alice, actor=audit.SYSTEM, is_disabled=True)
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(enter), pool.submit(disable)]:
                done.result(30)
        assert sessions.of_user(alice.pk).count() == 0


def test_a_refresh_token_with_any_character_changed_is_none() -> None:
    for token in (refresh_tokens.first(), refresh_tokens.first().successor()):
        assert refresh_tokens.parse(token.text) == token
        for index in range(len(token.text)):
            other = "0" if token.text[index] != "0" else "1"
            assert refresh_tokens.parse(token.text[:index] + other + token.text[index + 1 :]) is None


def test_a_successor_keeps_the_family_and_nothing_else() -> None:
    first = refresh_tokens.first()
    second, other = first.successor(), refresh_tokens.first()
    assert first.family_hash == second.family_hash != other.family_hash
    assert len({first.hash, second.hash, other.hash}) == 3
    assert first.text[25:] != second.text[25:]
    assert first.text not in repr(first)
