"""Functions in the members' console, in a real browser: deployed, run, followed and rolled back, with the keyboard."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.support.browser import browser as browser
from tests.support.browser import enter_console, in_a_browser, open_new, save_screenshot
from tests.support.browser import window as window
from tests.support.service import Up

pytestmark = in_a_browser

GREETS = (
    "export default async (input) => {\n  console.log('greets', input.name);\n  return { hello: input.name };\n};\n"
)
SLEEPS = "export default () => new Promise((done) => setTimeout(done, 4000));\n"


def test_a_function_is_deployed_run_and_rolled_back(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window()
    enter_console(page, served)
    page.get_by_role("link", name="Functions", exact=True).click()
    open_new(page)
    page.get_by_label("Name", exact=True).fill("greets")
    source = page.get_by_label(re.compile("^Source"))
    source.fill("export default (")
    page.get_by_role("button", name="Deploy").click()
    expect(page.locator("#new-source-problem")).to_be_in_viewport()
    assert "\n" in page.locator("#new-source-problem bdi").inner_text(), "the error shows the line"
    save_screenshot(page, "console-function-error")
    page.get_by_label(re.compile("^Source")).fill(GREETS)
    page.get_by_role("button", name="Deploy").click()
    page.wait_for_url("**/functions/greets")

    page.get_by_label("Input (JSON)").fill('{"name": "Ada"}')
    editor = page.get_by_label("Source", exact=True)
    editor.press("Control+End")
    editor.press_sequentially("// unsaved")
    expect(page.get_by_text("Not deployed yet")).to_be_visible()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text('"hello": "Ada"')).to_be_visible()
    expect(page.locator(".log")).to_contain_text("greets Ada")
    expect(editor).to_have_value(re.compile("// unsaved"))
    save_screenshot(page, "console-function-run")
    page.get_by_role("button", name="Deploy").click()
    expect(page.get_by_text("Version 2 is deployed and active.")).to_be_in_viewport()
    page.get_by_role("link", name="Versions").click()
    page.get_by_role("button", name="Activate version 1").click()
    expect(page.get_by_text("Version 1 is active.")).to_be_in_viewport()
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]


def test_a_background_run_is_followed_to_its_end(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "functions/")
    open_new(page)
    page.get_by_label("Name", exact=True).fill("sleeps")
    page.get_by_label(re.compile("^Source")).fill(SLEEPS)
    page.get_by_role("button", name="Deploy").click()
    page.wait_for_url("**/functions/sleeps")
    page.get_by_role("button", name="Run in the background").click()
    page.wait_for_url("**/runs/run_*")
    expect(page.get_by_role("button", name="Cancel this run")).to_be_visible()
    save_screenshot(page, "console-run-followed")
    expect(page.get_by_text("succeeded")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel this run")).to_have_count(0)


def test_the_editor_indents_and_lets_the_keyboard_out(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "functions/sum")
    editor = page.get_by_label("Source", exact=True)
    editor.press("Control+Home")
    editor.press("Tab")
    expect(editor).to_be_focused()
    expect(editor).to_have_value(re.compile("^  "))
    editor.press("Escape")
    editor.press("Tab")
    expect(page.get_by_role("button", name="Deploy")).to_be_focused()


def test_the_whole_message_of_a_failed_run_is_in_view(window: Callable[..., Page], served: Up) -> None:
    page = window()
    page.goto(f"{enter_console(page, served)}functions/")
    open_new(page)
    page.get_by_label("Name", exact=True).fill("fails")
    message = " ".join(["A long message."] * 20)
    page.get_by_label(re.compile("^Source")).fill(f"export default () => {{ throw new Error({message!r}); }};")
    page.get_by_role("button", name="Deploy").click()
    page.wait_for_url("**/functions/fails")
    page.get_by_role("button", name="Run", exact=True).click()
    error = page.locator("pre.wrong")
    expect(error).to_contain_text(message)
    assert error.evaluate("each => each.scrollWidth <= each.clientWidth")
