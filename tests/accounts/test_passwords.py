"""Passwords: equal time for all users, one hash at a time, limits that concurrency and headers cannot bypass."""

import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import pytest
from django.db import connection

from accounts.models import User
from accounts.users import passwords
from platform_site.http.errors import RateLimited, ValidationFailed
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, branch_of, token
from tests.support.client import Api
from tests.support.rate_limits import assert_within_one_window
from tests.support.timing import are_indistinguishable, medians, within

pytestmark = pytest.mark.usefixtures("hashing_as_in_production")


@pytest.fixture
def wrong_sign_ins(api: Api, alice: User, make_user: Callable[..., User]) -> dict[str, Callable[[], None]]:
    """A refused sign-in of each kind of user, and of an unknown one."""
    make_user("disabled")
    User.objects.filter(email="disabled@example.com").update(disabled_at="2026-01-01T00:00:00Z")
    make_user("passwordless", password=None)

    def sign_in(name: str) -> None:
        assert token(api, email=f"{name}@example.com", password="wrong password").status == 400

    return {name: partial(sign_in, name) for name in ("alice", "nobody", "disabled", "passwordless")}


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__")
def test_unknown_disabled_and_passwordless_users_cost_a_hash(
    wrong_sign_ins: dict[str, Callable[[], None]],
) -> None:
    """By the processor's time, which is nearly all of a sign-in's and does not count what else the machine does."""
    cost = medians(wrong_sign_ins, rounds=9, clock=time.process_time)
    assert max(cost.values()) < 1.5 * min(cost.values()), cost


@pytest.mark.slow
@pytest.mark.django_db(databases="__all__")
def test_unknown_disabled_and_passwordless_users_take_as_long(wrong_sign_ins: dict[str, Callable[[], None]]) -> None:
    took = medians(wrong_sign_ins)
    assert are_indistinguishable(took), took


def test_a_password_is_hashed_by_argon2id_at_owasps_minimum() -> None:
    encoded = passwords.hashed(PASSWORD)
    assert encoded.startswith("argon2$argon2id$v=19$m=12288,t=3,p=1$")
    assert passwords.is_correct(PASSWORD, encoded)
    assert not passwords.is_correct(PASSWORD + "x", encoded)
    assert passwords.hashed(PASSWORD) != encoded
    assert not passwords.is_outdated(encoded, "correct horse battery")


@pytest.mark.parametrize("encoded", [None, "", "!", "!abc", "md5$x$y", "plain text"])
def test_nothing_matches_what_is_no_hash(encoded: str | None) -> None:
    for password in ("", "!", "the password of no user", encoded or "x"):
        assert not passwords.is_correct(password, encoded)


def test_a_password_beyond_4096_characters_is_not_hashed() -> None:
    encoded = passwords.hashed(PASSWORD)
    began = time.perf_counter()
    for _ in range(100):
        assert not passwords.is_correct("x" * 4097, encoded)
    assert time.perf_counter() - began < within(0.1)


@pytest.mark.exhaustive
def test_white_space_and_every_character_of_a_password_count() -> None:
    for password in (" leading", "trailing ", "emoji 🦊🦊🦊", "é́combined", "x" * 1000):
        encoded = passwords.hashed(password)
        assert passwords.is_correct(password, encoded)
        assert not passwords.is_correct(password.strip() + "?", encoded)
        assert not passwords.is_correct(password[:-1], encoded)


@pytest.mark.parametrize(
    ("password", "code"),
    [
        ("short", "password_too_short"),
        ("password1", "password_too_common"),
        ("una@example.com", "password_too_similar"),
        ("x" * 1001, "too_long"),
    ],
)
def test_a_weak_password_is_refused_with_its_reason(password: str, code: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        passwords.check_chosen(password, User(email="una@example.com", name="Una"))
    assert [(field.field, field.code) for field in refused.value.fields] == [("password", code)]


def test_one_hash_runs_at_a_time_and_whoever_waits_too_long_is_told() -> None:
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        passwords._hashing.run(lambda: (begun.set(), release.wait(10)))

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        begun.wait(10)
        began = time.monotonic()
        with pytest.raises(RateLimited) as refused:
            passwords.is_correct(PASSWORD, None)
        assert passwords.WAIT_SECONDS - 0.1 < time.monotonic() - began < passwords.WAIT_SECONDS + within(1)
        assert refused.value.headers["Retry-After"] == "1"
        release.set()
        holding.result(10)
    assert not passwords.is_correct(PASSWORD, None)


def test_hashes_of_one_pool_do_not_delay_those_of_others() -> None:
    """A tenant may set the passwords of its users in parallel."""
    begun, release = threading.Event(), threading.Event()
    order: list[str] = []

    def hash_for(pool_id: str) -> None:
        passwords._hashing.run(lambda: (order.append(pool_id), begun.set(), release.wait(10)), pool_id)

    with ThreadPoolExecutor(8) as pool:
        hashing = [pool.submit(hash_for, "env_a")]
        begun.wait(10)
        hashing += [pool.submit(hash_for, "env_a") for _ in range(6)]
        time.sleep(0.2)
        hashing.append(pool.submit(hash_for, "env_b"))
        time.sleep(0.2)
        release.set()
        for each in hashing:
            each.result(10)
    assert order[:2] == ["env_a", "env_b"]
    assert {*order}.isdisjoint(passwords._hashing.of_pools), "what is not needed is not kept"


# ── Limits ──


def somebody() -> str:
    """An email that no other test has counted against."""
    return f"{secrets.token_hex(8)}@example.com"


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__", transaction=True)
def test_forty_parallel_sign_ins_keep_the_limit_and_little_memory(api: Api, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1  # ten a minute for each email
    process = psutil.Process(os.getpid())
    passwords.is_correct(PASSWORD, None)
    before = process.memory_info().rss
    peak = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], process.memory_info().rss)

    def attempt(email: str, number: int) -> int:
        forged = f"203.0.113.{number}"
        try:
            answer = api.post(
                "/v1/auth/token",
                json={"grant_type": "password", "email": email, "password": "wrong password"},
                headers={"X-Forwarded-For": forged, "X-Real-IP": forged, "Forwarded": f"for={forged}"},
                remote_addr="198.51.100.1",
            )
            return answer.status if answer.status != 429 or 1 <= int(answer.headers["Retry-After"]) <= 61 else 0
        finally:
            connection.close()

    def forty() -> list[int]:
        email = somebody()
        with ThreadPoolExecutor(40) as pool:
            return sorted(pool.map(lambda number: attempt(email, number), range(40)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert_within_one_window(forty, [400] * 10 + [429] * 30)
    finally:
        done.set()
        watcher.join()
    assert peak[0] - before < 450 * 1024 * 1024


@pytest.mark.django_db(databases="__all__")
def test_an_email_has_ten_tries_a_minute_wherever_they_come_from(api: Api, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1

    def fourteen() -> list[int]:
        email = somebody()
        spellings = [email, email.upper(), f" {email} "]
        return [
            token(api, email=spellings[number % 3], password="x", remote_addr=f"198.51.100.{number + 2}").status
            for number in range(14)
        ]

    assert_within_one_window(fourteen, [400] * 10 + [429] * 4)


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__")
def test_an_address_has_sixty_tries_a_minute_whoever_they_name(api: Api, bob: User, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    addresses = iter(["192.0.2.1", "192.0.2.2", "192.0.2.3"])

    def sixty_two() -> list[int]:
        address = next(addresses)
        return [token(api, email=somebody(), password="x", remote_addr=address).status for _ in range(62)]

    assert_within_one_window(sixty_two, [400] * 60 + [429] * 2)
    assert token(api, email=bob.email, password=PASSWORD, remote_addr="192.0.2.4").status == 200


@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize(
    "body",
    [
        {"grant_type": "refresh_token", "refresh_token": "rt_x"},
        {"grant_type": "authorization_code", "code": "x"},
        {"email": "una@example.com", "password": "x", "environment": "env_01k60000000000000000000000"},
    ],
    ids=["refresh tokens", "codes", "environments that are made up"],
)
def test_an_address_guesses_nothing_else_without_end(api: Api, settings: Any, body: dict[str, Any]) -> None:
    settings.RATE_LIMIT_FACTOR = 1 / 100  # three a minute

    def five() -> list[int]:
        return [token(api, remote_addr="192.0.2.7", **body).status for _ in range(5)]

    assert_within_one_window(five, [400] * 3 + [429] * 2)


@pytest.mark.django_db(databases="__all__")
def test_the_public_keys_are_not_fetched_without_end(api: Api, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1 / 100  # three a minute

    def five() -> list[int]:
        return [api.get("/.well-known/jwks.json", remote_addr="192.0.2.7").status for _ in range(5)]

    assert_within_one_window(five, [200] * 3 + [429] * 2)


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__")
def test_a_branch_is_no_second_set_of_tries(api: Api, production: Environment, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    branch = branch_of(production)

    def twelve() -> list[int]:
        email = somebody()
        return [
            token(api, email=email, password="x", environment=(production, branch)[number % 2].pk).status
            for number in range(12)
        ]

    assert_within_one_window(twelve, [400] * 10 + [429] * 2)
