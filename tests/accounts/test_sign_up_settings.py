"""`GET|PATCH /v1/auth/settings`: who may sign up, and the target of links in emails. No URL comes from a request."""

from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import AuditEntry, PoolSettings, User
from accounts.registration import email_outbox
from accounts.signal_handlers import delete_pool
from projects.models import Environment
from tests.accounts.conftest import branch_of, make_environment, session_of
from tests.support.client import Answer, Api
from tests.support.postbox import Postbox, link_in, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

PATH = "/v1/auth/settings"
DEFAULTS = {"sign_up": "off", "app_name": "", "app_url": "", "link_urls": {}}


@pytest.fixture
def manager(production: Environment, make_key: Callable[..., Any]) -> str:
    return str(make_key(production, "users:manage")[1])


def change(api: Api, manager: str, **body: Any) -> Answer:
    return api.patch(PATH, token=manager, json=body)


def test_sign_up_is_closed_by_default(api: Api, manager: str) -> None:
    assert api.get(PATH, token=manager).json == DEFAULTS
    assert not PoolSettings.objects.exists()
    wanted = {"sign_up": "open", "app_name": "Tracker", "app_url": "https://app.example.com/"}
    assert change(api, manager, **wanted).json == DEFAULTS | wanted
    assert change(api, manager, sign_up="invited").json == DEFAULTS | wanted | {"sign_up": "invited"}
    assert change(api, manager).json == api.get(PATH, token=manager).json
    changes = AuditEntry.objects.filter(action="sign_up.changed").order_by("pk").values_list("detail", flat=True)
    assert [detail["fields"] for detail in changes] == [["sign_up", "app_name", "app_url"], ["sign_up"]]


def test_an_environment_has_settings_of_its_own_which_go_with_it(
    api: Api, alice: User, production: Environment, manager: str, make_key: Callable[..., Any]
) -> None:
    other = make_key(make_environment(alice), "users:manage")[1]
    change(api, manager, sign_up="open")
    assert api.get(PATH, token=other).json == DEFAULTS
    change(api, other, app_name="Other")
    delete_pool(environment_id=production.pk)
    assert [found.app_name for found in PoolSettings.objects.all()] == ["Other"]


def test_only_who_manages_users_changes_them_and_nobody_in_a_branch(
    api: Api, una: User, production: Environment, make_key: Callable[..., Any]
) -> None:
    for secret in (make_key(production, "rows:read", "rows:write")[1], session_of(una).access_token):
        assert api.get(PATH, token=secret).error == "forbidden"
        assert change(api, secret, sign_up="open").error == "forbidden"
    branch = make_key(branch_of(production), "users:manage")[1]
    assert api.get(PATH, token=branch).json == DEFAULTS
    assert change(api, branch, sign_up="open").error == "forbidden"
    assert not PoolSettings.objects.exists()


def test_a_link_leads_to_the_applications_own_page(
    api: Api, una: User, production: Environment, manager: str, postbox: Postbox
) -> None:
    urls = {"reset_password": "https://app.example.com/#/reset?t={token}&lang=en"}
    assert change(api, manager, link_urls=urls).json["link_urls"] == urls
    api.post("/v1/auth/password-reset", json={"email": una.email}, environment=production.pk)
    email_outbox.send_due()
    message = postbox.last(una.email)
    token = token_in(message)
    assert f"https://app.example.com/#/reset?t={token}&lang=en" in message.get_body(("plain",)).get_content()  # type: ignore[union-attr]
    # What it replaces is gone.
    assert change(api, manager, link_urls={}).json["link_urls"] == {}
    api.post("/v1/auth/password-reset", json={"email": una.email}, environment=production.pk)
    email_outbox.send_due()
    assert link_in(postbox.last(una.email)).startswith("http://127.0.0.1:8000/auth/reset-password?token=lnk_")


@pytest.mark.parametrize(
    "url",
    [
        "https://app.example.com/reset?token={token}",
        "https://app.example.com:8443/{token}",
        "https://xn--exmple-cua.com/#{token}",
        "https://[2001:db8::1]/{token}",
        "http://localhost:5173/reset/{token}",
        "http://127.0.0.1:3000/?t={token}",
        "http://[::1]/?t={token}",
    ],
)
def test_an_address_of_a_link_is_taken_as_it_is(api: Api, manager: str, url: str) -> None:
    assert change(api, manager, link_urls={"sign_up": url}).json["link_urls"] == {"sign_up": url}


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://app.example.com/reset", "no_token"),
        ("https://app.example.com/{token}/{token}", "no_token"),
        ("https://{token}.example.com/", "no_token"),
        ("https://{token}", "no_token"),
        ("http://app.example.com/{token}", "invalid_url"),
        ("http://localhost.example.com/{token}", "invalid_url"),
        ("http://10.0.0.1/{token}", "invalid_url"),
        ("//app.example.com/{token}", "invalid_url"),
        ("/reset/{token}", "invalid_url"),
        ("javascript:alert('{token}')", "invalid_url"),
        ("javascript://x/%0aalert({token})", "invalid_url"),
        ("data://x/{token}", "invalid_url"),
        ("ftp://app.example.com/{token}", "invalid_url"),
        ("https://user:secret@app.example.com/{token}", "invalid_url"),
        ("https://platform.example@evil.example/{token}", "invalid_url"),
        ("https://app.example.com\\@evil.example/{token}", "invalid_url"),
        ("https://app.example.com/a b?{token}", "invalid_url"),
        ('https://app.example.com/"onclick="{token}', "invalid_url"),
        ("https://app.example.com/<{token}>", "invalid_url"),
        ("https://app.example.com:99999/{token}", "invalid_url"),
        ("https:///{token}", "invalid_url"),
        ("https://exämple.com/{token}", "invalid_url"),
        ("https://app.example.com/{user}/{token}", "invalid_url"),
        ("https://a.example/\n{token}", "invalid_url"),
        ("https://a.example/" + "x" * 490 + "{token}", "too_long"),
    ],
)
def test_what_is_no_address_of_a_link_is_refused(api: Api, manager: str, url: str, code: str) -> None:
    answer = change(api, manager, link_urls={"reset_password": url})
    assert (answer.error, answer.fields) == ("validation_failed", {"link_urls.reset_password": code})
    assert not PoolSettings.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"sign_up": "anybody"}, "sign_up"),
        ({"sign_up": None}, "sign_up"),
        ({"app_name": "x" * 65}, "app_name"),
        ({"app_name": "Tracker\r\nBcc: x@example.com"}, "app_name"),
        ({"app_name": "Visit http://evil.example"}, "app_name"),
        ({"app_name": "WWW.evil.example"}, "app_name"),
        ({"app_name": "a\u202eb"}, "app_name"),
        ({"app_url": "javascript:alert(1)"}, "app_url"),
        ({"app_url": "http://app.example.com"}, "app_url"),
        ({"link_urls": []}, "link_urls"),
        ({"link_urls": {"other": "https://a.example/{token}"}}, "link_urls.other"),
        ({"redirect_to": "https://a.example"}, "redirect_to"),
    ],
)
def test_what_is_wrong_is_named(api: Api, manager: str, body: dict[str, Any], field: str) -> None:
    answer = change(api, manager, **body)
    assert answer.error == "validation_failed"
    assert field in answer.fields or field in {name.split(".")[0] for name in answer.fields}
    assert not PoolSettings.objects.exists()
