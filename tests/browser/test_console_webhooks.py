"""Webhooks in the members' console, in a real browser: created, tested, disabled, with the delivery followed."""

import json
import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from platform_site import demo_receiver
from tests.support.browser import NARROW, enter_console, in_a_browser, open_new, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.service import Up

pytestmark = in_a_browser


def test_deliveries_that_renew_themselves_move_nothing(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.set_viewport_size({"width": 390, "height": 400})
    unknown = f"webhooks/{served.facts['webhook']['id']}/deliveries?event_id=evt_{'0' * 26}&sent"
    page.goto(base + unknown)
    expect(page.get_by_text("The event is not relayed yet.")).to_be_visible()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    before = page.evaluate("scrollY")
    assert before > 0
    for _ in range(2):
        with page.expect_response(lambda response: "/deliveries" in response.url):
            pass
    page.wait_for_timeout(100)
    assert page.evaluate("[scrollY, document.activeElement === document.body]") == [before, True]


def test_a_webhook_is_created_and_its_delivery_seen(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window(permissions=["clipboard-read", "clipboard-write"])
    enter_console(page, served)
    page.get_by_role("link", name="Webhooks", exact=True).click()
    open_new(page)
    page.get_by_label("URL", exact=True).fill("ftp://example.com/")
    page.get_by_role("button", name="Create webhook").click()
    expect(page.locator("#new-url-problem")).to_be_in_viewport()
    save_screenshot(page, "console-webhook-error")
    page.get_by_label("URL", exact=True).fill(f"{served.base_url}{demo_receiver.PATH}?from=console")
    page.get_by_role("button", name="Create webhook").click()
    expect(page.get_by_text("Copy this signing secret now")).to_be_in_viewport()
    save_screenshot(page, "console-webhook-secret")
    secret = page.locator("#secret").inner_text()
    page.locator("[data-copy=secret]").click()
    expect(page.locator("[data-copy=secret]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.wait_for_url(re.compile("/webhooks/wh_"))

    page.get_by_role("button", name="Send test event").click()
    page.wait_for_url("**/deliveries?event_id=*")
    expect(page.get_by_text("webhook.test")).to_be_visible()
    page.get_by_text("1 attempt").click()
    expect(page.locator("li", has_text="answered 401")).to_be_visible()  # the demo's receiver knows another secret
    save_screenshot(page, "console-delivery-failed")
    page.get_by_role("link", name="Settings", exact=True).first.focus()
    page.get_by_label("Pages of this webhook").get_by_role("link", name="Settings").press("Enter")
    page.get_by_role("button", name="Disable").press("Enter")
    expect(page.get_by_text("The webhook is disabled.")).to_be_in_viewport()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete webhook").press("Enter")
    page.wait_for_url("**/webhooks/")
    page.get_by_role("row").filter(has_text=f"{served.base_url}{demo_receiver.PATH}").get_by_role("link").click()
    page.get_by_role("button", name="Send test event").click()
    page.wait_for_url("**/deliveries?event_id=*")
    expect(page.locator("td .tag.good")).to_have_text("delivered")
    page.get_by_role("link", name="Payload of evt_").click()
    expect(page.locator("#payload")).to_contain_text('"type": "webhook.test"')
    page.get_by_role("button", name="Copy the payload").click()
    expect(page.get_by_role("button", name="Copy the payload")).to_have_text("Copied")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["type"] == "webhook.test"
    assert findings(page) == []
    save_screenshot(page, "console-payload")
    page.set_viewport_size({"width": NARROW, "height": 900})
    page.emulate_media(color_scheme="dark")
    fits(page)
    save_screenshot(page, "console-payload-narrow-dark")
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]
