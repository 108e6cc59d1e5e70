"""Ctrl K in a real browser: it finds things by name, and says so if it finds nothing."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot, sign_in
from tests.support.browser import browser as browser  # fixtures
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import window as window
from tests.support.service import Up

pytestmark = in_a_browser


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (WIDE, "dark"), (NARROW, "light")])
def test_ctrl_k_finds_a_table_and_has_an_empty_state(
    window: Callable[..., Page], served: Up, width: int, theme: str
) -> None:
    page = window(width=width, theme=theme)
    sign_in(page, served)
    page.wait_for_load_state("networkidle")
    page.keyboard.press("Control+k")
    expect(page.locator("#search-input-command")).to_be_focused()
    page.keyboard.type("tasks", delay=20)
    results = page.locator("#command-results-list")
    expect(results.get_by_text("Table of production").first).to_be_visible()
    save_screenshot(page, f"palette-{width}-{theme}")
    page.locator("#search-input-command").press("Control+a")
    page.keyboard.type("zzzzz", delay=20)
    expect(results.get_by_text("No results for")).to_be_visible()
    save_screenshot(page, f"palette-empty-{width}-{theme}")
