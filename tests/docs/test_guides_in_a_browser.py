"""The guides in a browser: width, search and copy buttons."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import in_a_browser
from tests.support.service import Up

pytestmark = in_a_browser


@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_the_window(served: Up, window: Callable[..., Page], width: int, theme: str) -> None:
    page = window(width=width, theme=theme)
    for name in ("tutorials/quick-start", "reference/errors", "reference/settings", "explanation/performance"):
        page.goto(f"{served.base_url}/docs/guides/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_search_leads_to_the_section(served: Up, window: Callable[..., Page]) -> None:
    page = window()
    page.goto(f"{served.base_url}/docs/guides")
    page.keyboard.press("/")
    page.keyboard.type("publishable keys")
    expect(page.get_by_role("option").first).to_contain_text("Publishable keys")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/docs/guides/reference/sign-in#publishable-keys$"))
    page.get_by_role("combobox").fill("live changes")
    expect(page.get_by_role("option").first.locator("strong")).to_have_text("Live changes")
    page.get_by_role("combobox").fill("qqqq")
    expect(page.get_by_text("Nothing found.")).to_be_visible()


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("unique", "Schema: Tables"),
        ("rename column", "Schema: Column types"),
        ("double booking", "Rules cookbook: Bookings: free slots, no double booking"),
        ("exclusion constraint", "Concepts: Not included"),
        ("guest", "Concepts: Not included"),
        ("reminder", "Concepts: Not included"),
        ("add an endpoint", "Extend the code: Add an endpoint"),
    ],
)
def test_search_shows_pages_for_contributors_last(
    served: Up, window: Callable[..., Page], query: str, first: str
) -> None:
    page = window()
    page.goto(f"{served.base_url}/docs/guides")
    page.get_by_role("combobox").fill(query)
    expect(page.get_by_role("option").first.locator("strong")).to_have_text(first)


def test_a_button_copies_the_code(served: Up, window: Callable[..., Page]) -> None:
    page = window()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{served.base_url}/docs/guides/how-to/functions")
    page.locator(".code").first.hover()
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("main pre").first.inner_text().rstrip()
