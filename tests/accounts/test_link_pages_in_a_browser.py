"""Sign-up, a forgotten password and an invitation as people meet them: `manage.py up` shows the emails in its terminal, and
the links in them are followed in a real browser, on a desk and on a telephone, by day and by night, without scripts."""

import secrets
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot
from tests.support.printed_emails import link_to
from tests.support.service import Up

pytestmark = in_a_browser

FIRST, SECOND = "correct horse battery", "a different horse"


@pytest.fixture(params=[(WIDE, "light"), (NARROW, "dark")], ids=["desk by day", "telephone by night"])
def page(request: pytest.FixtureRequest, window: Callable[..., Page]) -> Page:
    width, theme = request.param
    return window(width=width, theme=theme, java_script_enabled=False)


@pytest.fixture
def api(served: Up) -> Iterator[httpx.Client]:
    """The demo's server key; sign-up is open, and afterwards it is closed again and new users are deleted."""
    key = {"Authorization": f"Bearer {served.facts['server_key']}"}
    with httpx.Client(base_url=served.base_url, headers=key, timeout=30) as client:
        before = {user["id"] for user in client.get("/v1/users?limit=100").json()["data"]}
        opened = {"sign_up": "open", "app_name": "Tracker", "app_url": f"{served.base_url}/docs"}
        assert client.patch("/v1/auth/settings", json=opened).status_code == 200
        yield client
        closed = {"sign_up": "off", "app_name": "", "app_url": "", "link_urls": {}}
        assert client.patch("/v1/auth/settings", json=closed).status_code == 200
        for user in client.get("/v1/users?limit=100").json()["data"]:
            if user["id"] not in before:
                assert client.delete(f"/v1/users/{user['id']}").status_code == 204


def fits(page: Page) -> None:
    """Nothing is wider than the window."""
    width = page.viewport_size["width"] if page.viewport_size else 0
    for element in page.locator("main, h1, input:not([type=hidden]), button").all():
        box = element.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def look(page: Page, name: str) -> None:
    save_screenshot(page, f"{name}-{page.viewport_size['width'] if page.viewport_size else 0}")


def test_sign_up_and_password_reset(
    page: Page,
    served: Up,
    api: httpx.Client,
) -> None:
    email = f"nia-{secrets.token_hex(4)}@example.com"
    environment = {"X-Environment": served.facts["environments"]["production"]}
    stranger = httpx.Client(base_url=served.base_url, headers=environment, timeout=30)
    with stranger:
        asked = stranger.post("/v1/auth/signup", json={"email": email, "password": FIRST, "name": "Nia"})
        assert asked.status_code == 202

        page.goto(link_to(served, email, "confirm-sign-up"))
        expect(page.get_by_role("heading", name="Confirm your account")).to_be_visible()
        expect(page.get_by_label("Email")).to_have_value(email)
        fits(page)
        look(page, "confirm-sign-up")
        page.get_by_label("Password").fill("not what I chose")
        page.get_by_role("button", name="Confirm my account").click()
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_text("This is not the password of the account")).to_be_visible()
        fits(page)
        look(page, "confirm-sign-up-wrong")
        page.get_by_label("Password").fill(FIRST)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Your account is ready")).to_be_visible()
        expect(page.get_by_role("link", name="Go to Tracker")).to_have_attribute("href", f"{served.base_url}/docs")
        look(page, "confirm-sign-up-done")

        signing_in = {"grant_type": "password", "email": email, "password": FIRST}
        assert stranger.post("/v1/auth/token", json=signing_in).status_code == 200
        assert stranger.post("/v1/auth/password-reset", json={"email": email}).status_code == 202

        link = link_to(served, email, "reset-password")
        page.goto(link)
        page.get_by_label("New password").fill(SECOND)
        page.get_by_label("Repeat the password").fill(SECOND + "?")
        page.get_by_role("button", name="Set the new password").click()
        expect(page.get_by_text("The two passwords differ.")).to_be_visible()
        fits(page)
        look(page, "reset-password-wrong")
        page.get_by_label("New password").fill(SECOND)
        page.get_by_label("Repeat the password").fill(SECOND)
        page.get_by_role("button", name="Set the new password").click()
        expect(page.get_by_role("heading", name="Your password is changed")).to_be_visible()

        assert stranger.post("/v1/auth/token", json=signing_in).json()["error"]["code"] == "invalid_grant"
        assert stranger.post("/v1/auth/token", json=signing_in | {"password": SECOND}).status_code == 200
        page.goto(link)
        expect(page.get_by_role("heading", name="The link no longer works")).to_be_visible()
        fits(page)
        look(page, "dead-link")


def test_invitation_from_email_to_sign_in(page: Page, served: Up, api: httpx.Client) -> None:
    email = f"ida-{secrets.token_hex(4)}@example.com"
    assert api.post("/v1/invitations", json={"email": email, "name": "Ida", "role": "editor"}).status_code == 201
    page.goto(link_to(served, email, "accept-invitation"))
    expect(page.get_by_role("heading", name="Join Tracker")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("Ida")
    page.get_by_label("New password").fill(FIRST)
    page.get_by_label("Repeat the password").fill(FIRST)
    fits(page)
    look(page, "accept-invitation")
    page.get_by_role("button", name="Create my account").click()
    expect(page.get_by_role("heading", name="Your account is ready")).to_be_visible()
    [made] = [user for user in api.get("/v1/users?limit=100").json()["data"] if user["email"] == email]
    assert (made["name"], made["role"], made["email_verified_at"] is not None) == ("Ida", "editor", True)
