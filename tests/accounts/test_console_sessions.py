"""How long a console session lasts: by its settings, from the last click and from signing in."""

from collections.abc import Callable

import pytest
from django.conf import LazySettings
from django.test import Client

from accounts.models import AuditEntry, User
from accounts.staff.sessions import BEGAN, SEEN

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def browser(make_user: Callable[..., User]) -> Client:
    browser = Client()
    browser.force_login(make_user("boss", is_staff=True))
    return browser


def click_after(browser: Client, seconds: float) -> bool:
    """Whether the console still shows its pages so long after the last click."""
    session = browser.session
    for moment in (BEGAN, SEEN):
        session[moment] -= seconds
    session.save()
    answer = browser.get("/admin/")
    assert answer.status_code in (200, 302)
    return answer.status_code == 200


@pytest.mark.parametrize("idle", [60, 90, 3600])
def test_whoever_clicks_stays_and_whoever_does_not_is_signed_out(
    browser: Client, settings: LazySettings, idle: int
) -> None:
    settings.CONSOLE_IDLE_SECONDS = idle
    for _ in range(5):
        assert click_after(browser, idle * 0.6)
    assert not click_after(browser, idle + 1)
    assert browser.get("/admin/").status_code == 302
    [entry] = AuditEntry.objects.filter(action="console.signed_out")
    assert entry.detail["by"] == "the end of the session"


def test_a_session_ends_however_often_somebody_clicks(browser: Client, settings: LazySettings) -> None:
    settings.CONSOLE_IDLE_SECONDS, settings.CONSOLE_SESSION_SECONDS = 3600, 7200
    assert click_after(browser, 3500)
    assert click_after(browser, 3500)
    assert not click_after(browser, 201)
