"""Staff at `/console/staff` in a real browser: they ask with a reason, enter, and end their access."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.keyboard import Keyboard
from tests.support.service import Up

pytestmark = in_a_browser


def looks_right(page: Page, name: str, width: int, theme: str) -> None:
    save_screenshot(page, f"console-staff-{name}-{width}-{theme}")
    fits(page)
    assert findings(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_staff_ask_enter_and_end_their_access(window: Callable[..., Page], served: Up, width: int, theme: str) -> None:
    page = window(width=width, theme=theme)
    environment = served.facts["environments"]["production"]
    inside = f"{served.base_url}/console/{served.facts['project_id']}/{environment}/"
    page.goto(f"{served.base_url}/console/sign-in")
    page.get_by_label("Email").fill(served.facts["admin"]["email"])
    page.get_by_label("Password").fill(served.facts["admin"]["password"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/sign-in" not in url)
    page.goto(inside + "webhooks/")
    page.wait_for_url(f"**/console/staff?environment={environment}")
    looks_right(page, "ask", width, theme)
    page.get_by_label("Reason").fill("x" * 501)
    page.get_by_role("button", name="Get access").click()
    expect(page.get_by_label("Reason")).to_have_attribute("aria-invalid", "true")
    looks_right(page, "refused", width, theme)
    keys = Keyboard(page)
    keys.fill(page.get_by_label("Reason"), "ticket 7")
    keys.use(page.get_by_role("button", name="Get access"))
    page.wait_for_url(inside)
    expect(page.get_by_text("Staff access, read-only")).to_be_visible()
    looks_right(page, "inside", width, theme)
    page.goto(f"{served.base_url}/console/staff")
    expect(page.get_by_role("heading", name="Open now")).to_be_visible()
    looks_right(page, "open", width, theme)
    assert keys.missed() == []
    page.get_by_role("button", name="End").click()
    expect(page.get_by_role("heading", name="Open now")).to_be_hidden()
    page.goto(inside)
    page.wait_for_url(f"**/console/staff?environment={environment}")
