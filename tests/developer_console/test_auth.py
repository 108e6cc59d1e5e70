"""Auth: users, invitations, sign-up and providers, with the errors at their fields; and those who may not look."""

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from accounts.models import User
from accounts.models.oauth import IdentityProvider
from accounts.models.registration import AccountEmail
from accounts.users import sessions
from accounts.users.sessions import Device
from projects.models import Environment
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at, without_token
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

PAGES = ("auth/", "auth/invitations", "auth/sign-up", "auth/providers")
PASSWORD = "a long enough passphrase"


def text_of(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


def fingerprint(answer: Any, number: int = 0) -> str:
    return re.findall(r'name="fingerprint" value="(\w+)"', answer.content.decode())[number]


def user(tracker: Tracker, name: str = "alice") -> Any:
    return tracker.get("owner", f"/users/{tracker.users[name]}").json


def test_a_user_is_added_and_found(tracker: Tracker, desk: Desk) -> None:
    values = {
        "email": "Ada@Example.com", "name": "<b>Ada</b>", "role": "editor", "claims": '{"team": 1}',
        "password": PASSWORD, "email_verified": "on",
    }  # fmt: skip
    made = desk.post("auth/", {"action": "new", **values})
    page = desk.browser.get(made["Location"])
    assert "ada@example.com" in text_of(page)
    assert "<b>Ada</b>" not in page.content.decode()
    assert PASSWORD not in text_of(page)
    found = tracker.get("owner", "/users?email=ada@example.com").json["data"][0]
    assert (found["role"], found["claims"]) == ("editor", {"team": 1})
    assert found["email_verified_at"] is not None
    listed = text_of(desk.get("auth/", data={"find": "Ada"}))
    assert "ada@example.com" in listed
    assert "alice@" not in listed
    assert desk.get("auth/", data={"find": found["id"]})["Location"] == desk.url(f"auth/users/{found['id']}")
    for odd in ("<b>nobody", "usr_a/b", "usr_", "x" * 3000):
        assert "No user's email or name begins with" in text_of(desk.get("auth/", data={"find": odd})), odd


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"email": "nothing"}, "email"),
        ({"email": ""}, "email"),
        ({"email": "alice@tracker.example"}, "email"),
        ({"email": "b@b.example", "role": "anonymous"}, "role"),
        ({"email": "b@b.example", "role": "Not A Role"}, "role"),
        ({"email": "b@b.example", "claims": "{"}, "claims"),
        ({"email": "b@b.example", "claims": "[1]"}, "claims"),
        ({"email": "b@b.example", "password": "short"}, "password"),
    ],
)
def test_an_error_of_a_new_user_is_at_its_field(
    tracker: Tracker, desk: Desk, values: dict[str, str], field: str
) -> None:
    answer = desk.post("auth/", {"action": "new", **values})
    assert answer.status_code in (409, 422)
    assert f'id="new-{field}-problem"' in answer.content.decode()
    assert "short" not in re.findall(r'type="password" value="([^"]*)"', answer.content.decode())
    assert User.objects.filter(environment_id=tracker.environment_id).count() == 2


def test_a_user_is_edited_and_a_stale_form_is_not_saved(tracker: Tracker, desk: Desk) -> None:
    path = f"auth/users/{tracker.users['alice']}"
    values = {"action": "edit", "email": "alice@tracker.example", "name": "Alice", "role": "editor", "claims": ""}
    values["fingerprint"] = fingerprint(desk.get(path))
    assert "The user is saved." in text_of(desk.post(path, values))
    assert user(tracker)["role"] == "editor"
    stale = desk.post(path, values | {"role": "admin"})
    assert stale.status_code == 412
    assert user(tracker)["role"] == "editor"
    values["fingerprint"] = fingerprint(stale)
    wrong = desk.post(path, values | {"email": "bob@tracker.example"})
    assert wrong.status_code in (409, 422)
    assert "bob@tracker.example" in wrong.content.decode()
    assert "The user is saved." in text_of(desk.post(path, values | {"role": "", "email_verified": "on"}))
    assert user(tracker)["role"] is None
    assert user(tracker)["email_verified_at"] is not None


def test_disabling_and_a_new_password_end_sessions(tracker: Tracker, desk: Desk) -> None:
    path = f"auth/users/{tracker.users['alice']}"
    assert tracker.get("alice", "/rows/tasks").status == 200
    assert "The user is disabled." in text_of(desk.post(path, {"action": "disable"}))
    assert tracker.get("alice", "/rows/tasks").status == 401
    assert "The user is enabled" in text_of(desk.post(path, {"action": "enable"}))
    assert tracker.get("bob", "/rows/tasks").status == 200
    other = f"auth/users/{tracker.users['bob']}"
    weak = desk.post(other, {"action": "password", "password": "short"})
    assert 'id="password-password-problem"' in weak.content.decode()
    assert "The password is set." in text_of(desk.post(other, {"action": "password", "password": PASSWORD}))
    assert tracker.get("bob", "/rows/tasks").status == 401


def test_a_form_sends_a_name_with_control_characters_unchanged(tracker: Tracker, desk: Desk) -> None:
    """From before they were refused."""
    User.objects.filter(pk=tracker.users["alice"]).update(name="Al\x1bice")
    path = f"auth/users/{tracker.users['alice']}"
    values = {"action": "edit", "email": "alice@tracker.example", "name": "Al\x1bice", "role": "editor", "claims": ""}
    assert "The user is saved." in text_of(desk.post(path, values | {"fingerprint": fingerprint(desk.get(path))}))
    assert (user(tracker)["name"], user(tracker)["role"]) == ("Al\x1bice", "editor")


def test_sessions_of_a_user_are_listed_and_ended(tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]) -> None:
    agent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    alice = User.objects.get(pk=tracker.users["alice"])
    sessions.start(alice, environment_id=tracker.environment_id, device=Device(agent, "203.0.113.7"), method="password")
    path = f"auth/users/{alice.pk}"
    page = text_of(desk.get(path))
    assert "Firefox on Linux" in page
    assert "203.0.113.7" in page
    found = re.findall(r'name="session" value="(ses_\w+)"', page)
    assert len(found) == 2
    assert tracker.get("alice", "/rows/tasks").status == 200
    assert desk_of("viewer").post(path, {"action": "end-sessions"}).status_code == 403
    assert desk.post(path, {"action": "end-session", "session": "ses_none"}).status_code == 404
    assert "The session has ended." in text_of(desk.post(path, {"action": "end-session", "session": found[0]}))
    assert tracker.get("alice", "/rows/tasks").status == 200
    ended = text_of(desk.post(path, {"action": "end-sessions"}))
    assert "The sessions have ended." in ended
    assert "The user is not signed in." in ended
    assert tracker.get("alice", "/rows/tasks").status == 401
    assert tracker.get("bob", "/rows/tasks").status == 200


def test_a_branch_has_sessions_of_its_own(tracker: Tracker, desk: Desk) -> None:
    desk.post("branches/", {"action": "create", "name": "blue", "from": desk.environment_id, "data": "none"})
    branch = Environment.objects.get(project=tracker.project, name="blue")
    page = text_of(Desk(desk.browser, desk.project_id, branch.pk).get(f"auth/users/{tracker.users['alice']}"))
    assert "No sessions here." in page
    assert "The user is not signed in." not in page


def test_a_password_reset_is_sent_to_the_user(tracker: Tracker, desk: Desk) -> None:
    answer = desk.post(f"auth/users/{tracker.users['alice']}", {"action": "send-reset"})
    assert "sent by email" in text_of(answer)
    email = AccountEmail.objects.get()
    assert (email.recipient, email.environment_id) == ("alice@tracker.example", tracker.environment_id)


def test_a_user_is_deleted_by_its_email(tracker: Tracker, desk: Desk) -> None:
    path = f"auth/users/{tracker.users['alice']}"
    assert desk.post(path, {"action": "delete", "confirm": "bob@tracker.example"}).status_code == 422
    assert desk.post(path, {"action": "odd"}).status_code == 400
    gone = desk.post(path, {"action": "delete", "confirm": "alice@tracker.example"})
    assert gone["Location"] == desk.url("auth/")
    assert desk.get(path).status_code == 404


def test_a_user_is_invited_and_the_invitation_withdrawn(tracker: Tracker, desk: Desk) -> None:
    assert "No open invitation." in text_of(desk.get("auth/invitations"))
    invited = {"action": "invite", "email": "eve@x.example", "role": "editor"}
    assert "is invited by email" in text_of(desk.post("auth/invitations", invited))
    invitation = tracker.get("owner", "/invitations").json["data"][0]
    assert invitation["role"] == "editor"
    withdrawn = desk.post("auth/invitations", {"action": "withdraw", "invitation": invitation["id"]})
    assert "The invitation is withdrawn." in text_of(withdrawn)
    assert desk.post("auth/invitations", {"action": "withdraw", "invitation": "../users"}).status_code == 404
    wrong = desk.post("auth/invitations", {"action": "invite", "email": "nothing"})
    assert 'id="invite-email-problem"' in wrong.content.decode()


def test_sign_up_and_redirect_uris_are_saved(tracker: Tracker, desk: Desk) -> None:
    page = desk.get("auth/sign-up")
    values = {
        "action": "settings", "fingerprint": fingerprint(page), "sign_up": "open", "app_name": "Tasks",
        "link_urls.reset_password": "https://app.example.com/reset?token={token}",
    }  # fmt: skip
    uris = {"action": "redirects", "fingerprint": fingerprint(page, 1), "redirect_uris": "https://a.example/in\r\n"}
    assert "The sign-up settings are saved." in text_of(desk.post("auth/sign-up", values))
    found = tracker.get("owner", "/auth/settings").json
    assert (found["sign_up"], found["app_name"]) == ("open", "Tasks")
    assert found["link_urls"] == {"reset_password": values["link_urls.reset_password"]}
    stale = desk.post("auth/sign-up", values | {"sign_up": "off"})
    assert stale.status_code == 412
    now = values | {"fingerprint": fingerprint(stale)}
    for wrong, field in (
        ({"sign_up": "sometimes"}, "settings-sign_up"),
        ({"app_url": "nothing"}, "settings-app_url"),
        ({"link_urls.reset_password": "https://app.example.com/"}, "settings-link_urls.reset_password"),
    ):
        refused = desk.post("auth/sign-up", now | wrong)
        assert refused.status_code == 422
        assert f'id="{field}-problem"' in refused.content.decode(), field
    assert "The redirect URIs are saved." in text_of(desk.post("auth/sign-up", uris))
    assert desk.post("auth/sign-up", uris).status_code == 412
    uris["fingerprint"] = fingerprint(desk.get("auth/sign-up"), 1)
    refused = desk.post("auth/sign-up", uris | {"redirect_uris": "https://*.example/"})
    assert 'id="redirects-redirect_uris-problem"' in refused.content.decode()
    refused = desk.post("auth/sign-up", uris | {"redirect_uris": "https://a.example/in\r\n\r\nhttp://b.example/\r\n"})
    assert "http://b.example/: http:// is allowed only for localhost" in text_of(refused)
    assert tracker.get("owner", "/redirect-uris").json["redirect_uris"] == ["https://a.example/in"]


def test_a_provider_is_added_by_preset_and_edited(tracker: Tracker, desk: Desk) -> None:
    values = {"preset": "github", "name": "", "client_id": "id", "client_secret": "swordfish"}
    made = desk.post("auth/providers", {"action": "new", **values})
    page = desk.browser.get(made["Location"])
    provider = tracker.get("owner", "/identity-providers").json["data"][0]
    assert (provider["name"], provider["display_name"]) == ("github", "GitHub")
    assert provider["callback_url"] in text_of(page)
    assert "swordfish" not in text_of(page)
    path = f"auth/providers/{provider['id']}"
    edit = {
        "action": "edit", "fingerprint": fingerprint(page), "display_name": "Hub", "client_id": "other", "client_secret": "",
        "scopes": "read:user\nuser:email", "sign_up": "on",
    }  # fmt: skip
    assert "The provider is saved." in text_of(desk.post(path, edit))
    now = tracker.get("owner", f"/identity-providers/{provider['id']}").json
    assert (now["display_name"], now["client_id"], now["enabled"]) == ("Hub", "other", False)
    assert now["has_client_secret"]
    assert desk.post(path, edit).status_code == 412
    again = desk.post("auth/providers", {"action": "new", **values})
    assert again.status_code == 422
    assert 'id="new-name-problem"' in again.content.decode()
    assert "swordfish" not in text_of(again)
    assert desk.post(path, {"action": "delete"})["Location"] == desk.url("auth/providers")
    assert desk.get(path).status_code == 404


def test_a_provider_without_its_client_secret_is_marked(tracker: Tracker, desk: Desk) -> None:
    public = {"name": "public", "preset": "gitlab", "client_id": "id"}
    assert tracker.call("owner", "POST", "/identity-providers", json=public).status == 201
    assert "needs a client secret" not in text_of(desk.get("auth/providers")), "GitLab has public clients"
    made = desk.post("auth/providers", {"action": "new", "preset": "google", "client_id": "id"})
    page = text_of(desk.get("auth/providers"))
    assert "needs a client secret" in page
    assert page.count("enabled") == 1
    provider = made["Location"].removeprefix(desk.url())
    page = desk.get(provider)
    assert "<code>error_code=provider_refused</code>" in text_of(page)
    assert "keep the current one" not in text_of(page)
    values = {"display_name": "Google", "issuer": "https://accounts.google.com", "client_id": "id", "enabled": "on"}
    values |= {"scopes": "openid\nemail\nprofile", "sign_up": "on", "client_secret": "s"}
    saved = desk.post(provider, {"action": "edit", "fingerprint": fingerprint(page), **values})
    assert "The provider is saved." in text_of(saved)
    assert "needs a client secret" not in text_of(saved)
    assert "keep the current one" in text_of(saved)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"preset": "github", "client_id": ""}, "client_id"),
        ({"preset": "", "name": "mine", "client_id": "id", "issuer": "http://plain.example"}, "issuer"),
        ({"preset": "apple", "client_id": "id", "team_id": "T", "key_id": "K", "private_key": "no key"}, "private_key"),
        ({"preset": "myspace", "client_id": "id"}, "preset"),
    ],
)
def test_an_error_of_a_new_provider_is_at_its_field(desk: Desk, values: dict[str, str], field: str) -> None:
    answer = desk.post("auth/providers", {"action": "new", **values})
    assert answer.status_code == 422
    assert f'id="new-{field}-problem"' in answer.content.decode()
    assert "no key" not in text_of(answer)
    assert not IdentityProvider.objects.exists()


def test_text_of_tenants_cannot_turn_a_question_around(tracker: Tracker, desk: Desk) -> None:
    name = "\u202eevil\u202c"
    values = {"name": "odd", "preset": "github", "client_id": "id", "client_secret": "s", "display_name": name}
    assert tracker.call("owner", "POST", "/identity-providers", json=values).status == 201
    provider = tracker.get("owner", "/identity-providers").json["data"][0]
    page = unescape(desk.get(f"auth/providers/{provider['id']}").content.decode())
    assert f"<bdi>{name}</bdi>" in page
    assert "Remove the provider \u2068evil\u2069 and all" in page


def test_a_viewer_sees_no_user_and_changes_none(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    alice = f"auth/users/{tracker.users['alice']}"
    for path in (*PAGES, alice):
        page = viewer.get(path)
        assert page.status_code == 403
        assert "You don't have access" in text_of(page)
        assert "alice@tracker.example" not in text_of(page)
    before = user(tracker)
    for path, values in (
        ("auth/", {"action": "new", "email": "x@x.example"}),
        ("auth/invitations", {"action": "invite", "email": "x@x.example"}),
        ("auth/sign-up", {"action": "settings", "sign_up": "open"}),
        ("auth/sign-up", {"action": "redirects", "redirect_uris": "https://evil.example/"}),
        ("auth/providers", {"action": "new", "preset": "github", "client_id": "id", "client_secret": "s"}),
        (alice, {"action": "disable"}),
        (alice, {"action": "send-reset"}),
        (alice, {"action": "delete", "confirm": "alice@tracker.example"}),
    ):
        answer = viewer.post(path, values)
        assert answer.status_code == 403, (path, values)
        assert "This needs the scope" in text_of(answer)
    assert user(tracker) == before
    assert not AccountEmail.objects.exists()
    assert not IdentityProvider.objects.exists()


def test_members_of_other_projects_find_no_user(tracker: Tracker, make_tracker: Callable[..., Tracker]) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    theirs = Desk(stranger.browser, tracker.project.pk, tracker.environment_id)
    alice = f"auth/users/{tracker.users['alice']}"
    for path in (*PAGES, alice):
        assert theirs.get(path).status_code == 404
        assert theirs.post(path, {"action": "disable", "email": "x@x.example"}).status_code == 404
    assert stranger.get(alice).status_code == 404
    assert stranger.post(alice, {"action": "disable"}).status_code == 404
    found = stranger.get("auth/", data={"find": "alice@tracker.example"})
    assert "No user's email or name begins with" in text_of(found)
    assert user(tracker)["disabled_at"] is None


def test_a_form_without_its_token_is_refused(tracker: Tracker, desk: Desk) -> None:
    strict = without_token(desk)
    for path in (*PAGES, f"auth/users/{tracker.users['alice']}"):
        assert strict.post(path, {"action": "disable", "email": "x@x.example"}).status_code == 403
    assert user(tracker)["disabled_at"] is None
    assert json.dumps(tracker.get("owner", "/invitations").json["data"]) == "[]"
