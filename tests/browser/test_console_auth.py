"""Users and providers in the members' console, in a real browser: added, disabled, deleted, with the keyboard."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, enter_console, in_a_browser, open_new, owner, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.client import Api
from tests.support.console_checks import findings, fits
from tests.support.service import Up

pytestmark = in_a_browser


def test_a_user_is_added_disabled_and_deleted_on_a_phone(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window(width=NARROW)
    base = enter_console(page, served)
    page.goto(base + "auth/")
    open_new(page)
    expect(page.get_by_label("Email", exact=True)).to_be_focused()
    page.get_by_label("Email", exact=True).fill("eve@example.com")
    page.get_by_label("Claims (JSON)").fill("{team}")
    page.get_by_role("button", name="Add user").press("Enter")
    expect(page.locator("#new-claims-problem")).to_be_in_viewport()
    save_screenshot(page, "console-user-error")
    page.get_by_label("Claims (JSON)").fill('{"team": 1}')
    page.get_by_role("button", name="Add user").press("Enter")
    page.wait_for_url("**/auth/users/usr_*")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Disable").press("Enter")
    expect(page.get_by_text("The user is disabled.")).to_be_in_viewport()
    page.get_by_role("button", name="Enable").press("Enter")
    expect(page.get_by_text("The user is enabled")).to_be_in_viewport()
    page.get_by_label(re.compile("To delete the user")).fill("eve@example.com")
    page.get_by_role("button", name="Delete user").press("Enter")
    page.wait_for_url("**/auth/")
    expect(page.get_by_text("eve@example.com")).to_have_count(0)
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]


def test_sessions_of_a_user_are_ended_on_a_phone(window: Callable[..., Page], served: Up) -> None:
    api, environment = Api(served.base_url), served.facts["environments"]["production"]
    ada = served.facts["app_users"][0]
    grant = {"grant_type": "password", "email": ada["email"], "password": ada["password"]}
    for system in ("Android 16; Mobile", "Macintosh; Intel Mac OS X 26"):
        agent = {"User-Agent": f"Mozilla/5.0 ({system}; rv:140.0) Gecko/20100101 Firefox/140.0"}
        assert api.post("/v1/auth/token", json=grant, environment=environment, headers=agent).status == 200
    page = window(width=NARROW, theme="dark")
    base = enter_console(page, served)
    page.goto(f"{base}auth/users/{ada['id']}")
    expect(page.get_by_text("Firefox on Android")).to_be_visible()
    fits(page)
    assert findings(page) == []
    save_screenshot(page, "console-user-sessions")
    rows = page.locator("tbody tr")
    before = rows.count()
    rows.filter(has_text="Firefox on Android").get_by_role("button").click()
    expect(page.get_by_text("The session has ended.")).to_be_in_viewport()
    expect(rows).to_have_count(before - 1)
    expect(page.get_by_text("Firefox on macOS")).to_be_visible()
    assert api.post("/v1/auth/token", json=grant, environment=environment).status == 200
    page.reload()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="End all sessions").click()
    expect(page.get_by_text("The user is not signed in.")).to_be_visible()


def test_a_provider_is_added_from_a_preset(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "auth/providers")
    page.get_by_label("Provider", exact=True).select_option("GitHub")
    page.get_by_label("Client id").fill("id")
    page.get_by_label("Client secret").fill("secret")
    page.get_by_role("button", name="Add provider").click()
    page.wait_for_url("**/auth/providers/idp_*")
    expect(page.locator("#callback")).to_contain_text("/v1/auth/callback/idp_")
    save_screenshot(page, "console-provider")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Remove provider").click()
    page.wait_for_url("**/auth/providers")
    expect(page.get_by_text("No provider yet.")).to_be_visible()


def test_a_long_email_fits_the_list_of_users(window: Callable[..., Page], served: Up) -> None:
    api, token = owner(served)
    environment = served.facts["environments"]["production"]
    email = f"{'a' * 60}@{'long-domain-name.' * 8}example.com"
    user = {"email": email, "name": "A long name " * 4}
    made = api.post("/v1/users", json=user, token=token, environment=environment).json["id"]
    try:
        page = window()
        page.goto(enter_console(page, served) + "auth/")
        expect(page.get_by_role("link", name=email)).to_be_visible()
        assert page.locator("main .scroll").evaluate("each => each.scrollWidth <= each.clientWidth")
    finally:
        api.request("DELETE", f"/v1/users/{made}", token=token, environment=environment)
