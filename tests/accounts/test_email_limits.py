"""How many emails an environment sends, and that requests by others never keep a user from a new password."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now

from accounts import audit
from accounts.models import AccountEmail, User
from accounts.registration import email_outbox, pool_settings
from projects.models import Environment
from tests.accounts.conftest import PASSWORD
from tests.support.client import Api
from tests.support.postbox import Postbox
from tests.support.rate_limits import assert_within_one_window

pytestmark = pytest.mark.django_db(databases="__all__")

_networks = itertools.count(1)


@pytest.fixture
def opened(production: Environment) -> Environment:
    """Production, where sign-up is open."""
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
    return production


def somebody() -> str:
    return f"{time.time_ns()}@example.com"


def anywhere() -> str:
    """An IP address of a network without any requests so far."""
    return f"2001:db8:{next(_networks):x}::1"


def sign_up(api: Api, environment: Environment, email: str, remote_addr: str | None = None) -> int:
    body = {"email": email, "password": PASSWORD}
    path = "/v1/auth/signup"
    return api.post(path, json=body, environment=environment.pk, remote_addr=remote_addr or anywhere()).status


def reset(api: Api, environment: Environment, email: str) -> int:
    path = "/v1/auth/password-reset"
    return api.post(path, json={"email": email}, environment=environment.pk, remote_addr=anywhere()).status


@pytest.mark.parametrize("mode", ["off", "invited", "open"])
def test_sign_ups_with_an_email_do_not_use_up_its_password_reset(
    api: Api, production: Environment, una: User, settings: Any, mode: str
) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up=mode)
    taken = 202 if mode == "open" else 403

    def attack() -> list[int]:
        return [*(sign_up(api, production, una.email) for _ in range(8)), reset(api, production, una.email)]

    assert_within_one_window(attack, [taken] * 6 + [429] * 2 + [202])


def test_environment_emails_a_limited_number_of_unknown_people(
    api: Api, opened: Environment, una: User, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01  # three of three hundred

    def five() -> list[int]:
        return [*(sign_up(api, opened, somebody()) for _ in range(4)), reset(api, opened, una.email)]

    assert_within_one_window(five, [202] * 3 + [429] + [202])
    answer = api.post(
        "/v1/auth/signup",
        json={"email": somebody(), "password": PASSWORD},
        environment=opened.pk,
        remote_addr=anywhere(),
    )
    assert answer.json["error"]["message"] == "The plan's limit of emails per hour is reached."
    assert 1 <= int(answer.headers["Retry-After"]) <= 3601
    assert answer.headers["RateLimit-Policy"] == '"emails-pool";q=3;w=3600'


def test_what_is_refused_uses_nothing_of_the_pools_share_up(api: Api, production: Environment, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01

    def attempts() -> list[int]:
        pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="off")
        closed = [sign_up(api, production, somebody()) for _ in range(4)]
        pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
        # The second and further requests of one network are refused, which counts for no other network.
        here = anywhere()
        alone = [sign_up(api, production, somebody(), here) for _ in range(6)]
        return [*closed, *alone, *(sign_up(api, production, somebody()) for _ in range(2))]

    assert_within_one_window(attempts, [403] * 4 + [202] + [429] * 5 + [202] * 2)


def test_one_network_asks_for_a_hundred_emails_an_hour(api: Api, opened: Environment, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.04  # four of a hundred; of sixty a minute two

    def hundred() -> list[int]:
        here = anywhere()
        answers = []
        for _ in range(6):
            path, body = "/v1/auth/password-reset", {"email": somebody()}
            answers.append(api.post(path, json=body, environment=opened.pk, remote_addr=here))
        return [int('"emails-address";q=4;w=3600' in each.headers["RateLimit-Policy"]) for each in answers]

    assert_within_one_window(hundred, [1] * 6)


def test_environments_that_are_made_up_are_counted(api: Api, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01  # three of three hundred a minute

    def five() -> list[int]:
        path, here = "/v1/auth/password-reset", anywhere()
        body = {"email": "nia@example.com"}
        made_up = "env_01m81vs2b3e3882dcxwnd43a4g"
        return [api.post(path, json=body, environment=made_up, remote_addr=here).status for _ in range(5)]

    assert_within_one_window(five, [404] * 3 + [429] * 2)


# ── Emails to existing accounts: counted where they are sent ──


def waiting() -> int:
    return AccountEmail.objects.filter(sent_at=None, next_attempt_at__gt=Now(), attempts=0).count()


def test_made_up_addresses_leave_the_users_their_new_passwords(
    api: Api, opened: Environment, una: User, postbox: Postbox, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.001  # one of a thousand an hour

    def attack() -> list[int]:
        postbox.messages.clear()
        asked = [*(reset(api, opened, somebody()) for _ in range(5)), reset(api, opened, una.email)]
        email_outbox.send_due()
        return [*asked, len(postbox.messages)]

    assert_within_one_window(attack, [202] * 6 + [1])
    assert postbox.messages[0]["To"] == una.email


def test_what_is_beyond_a_pools_share_waits_and_is_not_lost(
    api: Api, opened: Environment, make_user: Callable[..., User], postbox: Postbox, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.002  # two of a thousand an hour
    users = [make_user(f"u{number}", pool_id=opened.pk) for number in range(4)]

    def attack() -> list[int]:
        AccountEmail.objects.all().delete()
        postbox.messages.clear()
        for user in users:
            assert reset(api, opened, user.email) == 202
        email_outbox.send_due()
        return [len(postbox.messages), waiting()]

    assert_within_one_window(attack, [2, 2])
    for late in AccountEmail.objects.filter(sent_at=None):
        assert (
            late.expires_at - late.next_attempt_at
            >= email_outbox.email_templates.LIFETIMES[AccountEmail.Kind.RESET_PASSWORD]
        )
    settings.RATE_LIMIT_FACTOR = 1000  # the hour is over
    AccountEmail.objects.filter(sent_at=None).update(next_attempt_at=Now())
    assert email_outbox.send_due() == 2
    assert {message["To"] for message in postbox.messages} == {user.email for user in users}


def test_notices_per_mailbox_are_limited(
    opened: Environment, make_user: Callable[..., User], postbox: Postbox, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.5  # three of six an hour
    una = make_user("una", pool_id=opened.pk, is_email_verified=True)
    kind = AccountEmail.Kind.PASSWORD_CHANGED

    def attack() -> list[int]:
        AccountEmail.objects.all().delete()
        postbox.messages.clear()
        for _ in range(7):
            email_outbox.notify(una, kind)
            email_outbox.send_due()
        return [len(postbox.messages), waiting()]

    assert_within_one_window(attack, [3, 1])


def test_an_email_that_is_tried_again_is_counted_once(
    api: Api, opened: Environment, una: User, postbox: Postbox, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.001  # one of a thousand an hour

    def attempts() -> list[int]:
        AccountEmail.objects.all().delete()
        postbox.messages.clear()
        postbox.answers[:] = ["450 later", "450 later"]
        assert reset(api, opened, una.email) == 202
        for _ in range(3):
            email_outbox.send_due()
            AccountEmail.objects.filter(sent_at=None).update(next_attempt_at=Now())
        return [len(postbox.messages)]

    assert_within_one_window(attempts, [1])
