"""Ctrl K in a real browser: it finds things by name, and says so if it finds nothing."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browsing import NARROW, WIDE, in_a_browser, keep, sign_in
from tests.browsing import browser as browser  # fixtures
from tests.browsing import complaints as complaints
from tests.browsing import window as window
from tests.serving import Up

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
    expect(results.get_by_text("Table of production")).to_be_visible()
    keep(page, f"palette-{width}-{theme}")
    page.locator("#search-input-command").press("Control+a")
    page.keyboard.type("zzzzz", delay=20)
    expect(results.get_by_text("No results for")).to_be_visible()
    keep(page, f"palette-empty-{width}-{theme}")
