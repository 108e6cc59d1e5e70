"""The API reference in a real browser: rendered with the platform's own files, without a violation of its policy."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.support.browser import in_a_browser
from tests.support.service import Up

pytestmark = in_a_browser


@pytest.fixture
def page(window: Callable[..., Page]) -> Page:
    return window()


def test_the_reference_is_drawn_and_keeps_its_policy(page: Page, served: Up) -> None:
    elsewhere: list[str] = []
    page.on(
        "request",
        lambda request: elsewhere.append(request.url) if not request.url.startswith(served.base_url) else None,
    )
    page.goto(f"{served.base_url}/docs")
    listing = page.locator("#operations-projects-listEnvironments")
    listing.get_by_text("/v1/projects/{project_id}/environments", exact=True).wait_for()
    page.locator("#operations-projects-createProject").click()
    page.get_by_text("Idempotency-Key").first.wait_for()
    page.get_by_text("validation_failed", exact=False).first.wait_for()
    assert [url for url in elsewhere if not url.startswith("data:")] == []


def test_the_reference_follows_the_reader_s_theme(window: Callable[..., Page], served: Up) -> None:
    for theme, is_dark in (("light", False), ("dark", True)):
        page = window(theme=theme)
        page.goto(f"{served.base_url}/docs")
        page.locator("#operations-projects-createProject").wait_for()
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        shade = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")[:3]] if is_dark else []
        assert all(part < 80 for part in shade), ground
        assert page.evaluate("document.documentElement.classList.contains('dark-mode')") == is_dark


def test_a_call_can_be_tried_from_it(page: Page, served: Up) -> None:
    page.goto(f"{served.base_url}/docs")
    page.locator(".btn.authorize").first.click()
    page.locator(".auth-container input").fill(served.facts["server_key"])
    page.locator(".auth-btn-wrapper .authorize").click()
    page.locator(".auth-btn-wrapper .btn-done").click()
    operation = page.locator("#operations-projects-listProjects")
    operation.click()
    operation.locator(".execute").click()
    operation.locator(".live-responses-table").get_by_text("next_cursor").first.wait_for()
    assert served.facts["project_id"] in operation.locator(".live-responses-table").inner_text()
