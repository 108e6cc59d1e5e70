"""The code editors in a real browser: the colours follow the text, and the field is what a screen reader has."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, open_new, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.service import Up

pytestmark = in_a_browser


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_colours_follow_the_text(window: Callable[..., Page], served: Up, width: int, theme: str) -> None:
    page = window(width=width, theme=theme)
    base = enter_console(page, served)
    page.goto(f"{base}functions/sum")
    source = page.get_by_label("Source", exact=True)
    source.fill("// <b>note</b>\nconst total = 12; // \u202e\nreturn `${'a'}`;\n({ $in: [] });\n")
    copy = page.locator(".code-editor", has=source).locator("pre")
    expect(copy.locator(".comment").first).to_have_text("// <b>note</b>")
    expect(copy.locator(".word")).to_have_text(["const", "return"])
    expect(copy.locator(".number")).to_have_text("12")
    assert copy.evaluate("each => each.textContent") == source.input_value() + "\n"
    save_screenshot(page, f"editor-typescript-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    page.goto(f"{base}schema")
    document = page.get_by_label("Document (JSON)")
    expect(page.locator(".code-editor .name").first).to_have_text('"tables"')
    document.evaluate("field => { field.scrollTop = 120; }")
    expect(page.locator(".code-editor", has=document).locator("pre")).to_have_js_property("scrollTop", 120)
    sizes = page.evaluate(
        """() => [document.getElementById("document"), document.querySelector("#document ~ pre, .code-editor pre")]
            .map((each) => [getComputedStyle(each).fontSize, getComputedStyle(each).lineHeight, each.scrollHeight])"""
    )
    assert sizes[0][:2] == sizes[1][:2]
    assert abs(sizes[0][2] - sizes[1][2]) <= 22
    document.fill('{"x": "' + "y" * 70_000 + '"}')
    expect(page.locator(".code-editor.coloured")).to_have_count(0)
    save_screenshot(page, f"editor-json-{width}-{theme}")


def test_an_editor_says_how_the_keyboard_leaves_it(window: Callable[..., Page], served: Up) -> None:
    page = window()
    page.goto(f"{enter_console(page, served)}functions/sum")
    source, keys = page.get_by_label("Source", exact=True), "Press Esc, then Tab to leave."
    expect(source).to_have_accessible_description(keys)
    source.focus()
    expect(page.get_by_text(keys).first).to_be_visible()
    assert findings(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(source).not_to_be_focused()
    expect(page.get_by_text(keys).first).to_be_hidden()


def test_the_browser_asks_before_a_source_is_lost(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window()
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    base = enter_console(page, served)
    page.goto(f"{base}functions/sum")
    page.on("dialog", stay)
    source = page.get_by_label("Source", exact=True)
    before = source.input_value()
    source.press_sequentially("// edited")
    page.get_by_role("link", name="Versions").click()
    expect(source).to_have_value(re.compile("edited"))
    source.fill("export default (")
    page.get_by_role("button", name="Deploy").click()
    expect(page.locator("main .problem").first).to_be_visible()
    page.get_by_role("link", name="Versions").click()
    expect(source).to_have_value("export default (")
    assert asked == ["beforeunload", "beforeunload"], "also after an error"
    source.fill(before)
    page.get_by_role("button", name="Deploy").click()
    expect(page.locator("main .problem")).to_have_count(0)
    page.get_by_role("link", name="Versions").click()
    page.wait_for_url("**/versions")
    assert len(asked) == 2
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]


def test_a_form_without_an_answer_keeps_its_values(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(f"{base}webhooks/")
    open_new(page)
    page.get_by_label("URL").fill("https://hooks.example/kept")
    page.context.set_offline(True)
    page.get_by_role("button", name="Create webhook").click()
    problem = page.get_by_text("The service cannot be reached.")
    expect(problem).to_be_in_viewport()
    save_screenshot(page, "form-without-an-answer")
    page.context.set_offline(False)
    expect(page.get_by_label("URL")).to_have_value("https://hooks.example/kept")
    page.get_by_label("Events, one per line").fill("no event")
    page.get_by_role("button", name="Create webhook").click()
    expect(problem).to_have_count(0)
    expect(page.locator("main .problem").first).to_be_visible()
    known = ("ERR_INTERNET_DISCONNECTED", "htmx:sendError", "htmx:afterRequest", "a status of 422")
    browser_errors[:] = [each for each in browser_errors if not any(text in each for text in known)]


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_a_source_outlives_the_session(
    window: Callable[..., Page], served: Up, browser_errors: list[str], width: int, theme: str
) -> None:
    page = window(width=width, theme=theme)
    base = enter_console(page, served)
    page.goto(f"{base}functions/sum")
    source = page.get_by_label("Source", exact=True)
    before = source.input_value()
    source.press_sequentially("// edited")
    edited = source.input_value()
    page.context.clear_cookies(name="console_session")
    page.get_by_role("button", name="Deploy").click()
    problem = page.get_by_text("Your session has ended.")
    expect(problem).to_be_in_viewport()
    save_screenshot(page, f"session-ended-{width}-{theme}")
    assert findings(page) == []
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Sign in in another tab").click()
    other = opened.value
    other.get_by_label("Email").fill(served.facts["account"]["email"])
    other.get_by_label("Password").fill(served.facts["account"]["password"])
    other.get_by_role("button", name="Sign in").click()
    other.wait_for_url(f"{base}functions/sum")
    other.close()
    expect(source).to_have_value(edited)
    asked: list[Dialog] = []
    page.once("dialog", lambda dialog: (asked.append(dialog), dialog.dismiss()))
    page.get_by_role("link", name="Versions").click()
    expect(source).to_have_value(edited)
    assert asked, "it asks again before the page is left"
    page.get_by_role("button", name="Deploy").click()
    expect(problem).to_have_count(0)
    expect(page.locator("main .notice").first).to_be_visible()
    page.reload()
    expect(source).to_have_value(edited)
    source.fill(before)
    page.get_by_role("button", name="Deploy").click()
    expect(page.locator("main .notice").first).to_be_visible()
    browser_errors[:] = [each for each in browser_errors if "a status of 401" not in each]


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_too_many_requests_keep_what_was_typed(
    window: Callable[..., Page], served: Up, browser_errors: list[str], width: int, theme: str
) -> None:
    page = window(width=width, theme=theme)
    base = enter_console(page, served)
    page.goto(f"{base}webhooks/")
    open_new(page)
    page.get_by_label("URL").fill("https://hooks.example/kept")
    headers = {"HX-Reswap": "none", "HX-Trigger": '{"console:refused": "Too many <b>requests</b>."}'}
    page.route(f"{base}webhooks/", lambda route: route.fulfill(status=429, headers=headers))
    button = page.get_by_role("button", name="Create webhook")
    button.click()
    expect(page.get_by_role("alert")).to_have_text("Too many <b>requests</b>.")
    expect(page.get_by_role("alert")).to_be_in_viewport()
    expect(page.get_by_label("URL")).to_have_value("https://hooks.example/kept")
    expect(button).to_be_focused()
    save_screenshot(page, f"too-many-requests-{width}-{theme}")
    assert findings(page) == []
    page.unroute(f"{base}webhooks/")
    page.get_by_label("Events, one per line").fill("no event")
    button.click()
    expect(page.get_by_text("Too many")).to_have_count(0)
    expect(page.get_by_label("URL")).to_have_value("https://hooks.example/kept")
    browser_errors[:] = [each for each in browser_errors if "a status of 4" not in each]
