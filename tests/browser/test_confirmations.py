"""Dangerous buttons work only once their confirmation is typed, and an error is shown next to its cause."""

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot, sign_in
from tests.support.browser import browser as browser  # fixtures
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import window as window
from tests.support.service import Up

pytestmark = in_a_browser


def schema_page(page: Page, served: Up) -> None:
    sign_in(page, served)
    environment = served.facts["environments"]["production"]
    page.goto(f"{served.base_url}/admin/rows/schemaversion/?environment={environment}")


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_an_error_of_the_schema_is_in_the_viewport(
    window: Callable[..., Page], served: Up, width: int, theme: str
) -> None:
    page = window(width=width, theme=theme)
    schema_page(page, served)
    page.locator("#document").fill('{"tables": {"a b": {}}}')
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("alert")).to_be_in_viewport()
    assert page.get_by_role("alert").count() == 1
    save_screenshot(page, f"schema-error-{width}-{theme}")


def test_apply_waits_for_every_confirmation(window: Callable[..., Page], served: Up) -> None:
    page = window()
    schema_page(page, served)
    document = json.loads(page.locator("#document").input_value())
    dropped = list(document["tables"])[-1]
    document["tables"] = {"other": {"columns": {"x": {"type": "text"}}}}
    page.locator("#document").fill(json.dumps(document))
    page.get_by_role("button", name="Plan", exact=True).click()
    confirmations = page.locator("input[name=confirm]")
    expect(confirmations.first).to_be_visible()
    apply = page.get_by_role("button", name="Apply", exact=True)
    count = confirmations.count()
    for number in range(count):
        expect(apply).to_be_disabled()
        confirmations.nth(number).fill(confirmations.nth(number).get_attribute("data-expected") or "")
    expect(apply).to_be_enabled()
    confirmations.first.fill("drop")
    expect(apply).to_be_disabled()
    assert f"drop table {dropped}" in page.content()
