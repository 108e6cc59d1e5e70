"""The page of one's own sessions: each is ended alone, or all others at once, and nobody else's."""

import re

import pytest
from django.test import Client

from accounts.models import AuditEntry, Session
from accounts.users import passwords, sessions
from accounts.users.sessions import Device
from tests.developer_console.conftest import PASSWORD, Desk, desk_at, member, sign_in, without_token
from tests.rows.conftest import Tracker
from tests.support.statements import counted

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def is_in(browser: Client, desk: Desk) -> bool:
    return bool(browser.get(desk.url("sessions")).status_code == 200)


def others(desk: Desk) -> list[str]:
    """The sessions with a button to end them, the newest first."""
    return re.findall('name="session" value="([^"]+)"', desk.get("sessions").content.decode())


def test_one_session_is_ended_and_the_others_stay(tracker: Tracker, desk: Desk) -> None:
    owner = member(tracker.project, "owner")
    phone, laptop = sign_in(owner), sign_in(owner)
    Session.objects.filter(pk=others(desk)[1]).update(user_agent="<b>Phone</b>")
    agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150.0 Safari/537.36"
    Session.objects.filter(pk=others(desk)[0]).update(user_agent=agent)
    newest, second, *_ = others(desk)
    page = desk.get("sessions").content.decode()
    assert page.count(">this session</span>") == 1
    assert ">&lt;b&gt;Phone&lt;/b&gt;<" in page
    assert f'title="{agent}">Chrome on Linux<' in page
    ended = desk.post("sessions", {"action": "end", "session": newest})
    assert "The session has ended." in ended.content.decode()
    assert newest not in others(desk)
    assert (is_in(laptop, desk), is_in(phone, desk), is_in(desk.browser, desk)) == (False, True, True)
    assert second in others(desk)
    assert AuditEntry.objects.filter(action="session.revoked", actor_id=owner.pk).count() == 1


def test_a_session_says_what_it_was_started_for(tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> list[str]:
        return re.findall(r'<span class="tag neutral">([^<]+)</span>', desk.get("sessions").content.decode())

    owner = member(tracker.project, "owner")
    for method in ("password", "command line", "console, second factor"):
        sessions.start(owner, environment_id=None, device=Device(), method=method, password_hash=owner.password)
    assert shown()[:4] == ["Console", "Command platform", "API", "Console"]
    with counted(monkeypatch) as few:
        shown()
    for _ in range(5):
        sign_in(owner)
    with counted(monkeypatch) as many:
        assert shown()[:5] == ["Console"] * 5
    assert len(many) == len(few)


def test_all_other_sessions_are_ended_at_once(tracker: Tracker, desk: Desk) -> None:
    phone = sign_in(member(tracker.project, "owner"))
    assert others(desk)
    answer = desk.post("sessions", {"action": "end-others"}).content.decode()
    assert "All other sessions have ended." in answer
    assert "Sign out everywhere else" not in answer
    assert others(desk) == []
    assert (is_in(phone, desk), is_in(desk.browser, desk)) == (False, True)


def test_sessions_of_others_stay(tracker: Tracker, desk: Desk) -> None:
    viewer = desk_at(tracker, "viewer")
    before = others(desk)
    assert before
    assert set(others(viewer)).isdisjoint(before)
    for wrong in (before[0], "", "ses_nothing", "../keys"):
        assert viewer.post("sessions", {"action": "end", "session": wrong}).status_code in (404, 405), wrong
    viewer.post("sessions", {"action": "end-others"})
    assert without_token(desk).post("sessions", {"action": "end-others"}).status_code == 403
    assert others(desk) == before
    assert is_in(desk.browser, desk)


def test_the_password_is_changed_and_other_sessions_end(tracker: Tracker, desk: Desk) -> None:
    owner = member(tracker.project, "owner")
    other = sign_in(owner)
    assert f'href="{desk.url("sessions")}#password"' in desk.get().content.decode()
    values = {"action": "password", "current_password": PASSWORD, "password": "another horse battery"}
    for wrong, field in (({"current_password": "wrong"}, "current_password"), ({"password": "short"}, "password")):
        refused = desk.post("sessions", values | wrong)
        assert refused.status_code == 422
        assert f'id="password-{field}-problem"' in refused.content.decode()
    changed = desk.post("sessions", values)
    assert "The password is changed. All other sessions have ended." in changed.content.decode()
    assert (is_in(desk.browser, desk), is_in(other, desk)) == (True, False)
    owner.refresh_from_db()
    assert passwords.is_correct("another horse battery", owner.password)
