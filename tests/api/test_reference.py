"""The API reference in a real browser: rendered with the platform's own files, without a violation of its policy."""

from collections.abc import Callable

from playwright.sync_api import Page

from tests.support.browser import in_a_browser
from tests.support.service import Up, wait_for

pytestmark = in_a_browser


def has_dark_class(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.classList.contains('dark-mode')"))


def wait_until_dark(page: Page) -> None:
    """Class and color change over a moment."""

    def is_dark() -> bool:
        ground: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        shade = ground.removeprefix("rgb(").removesuffix(")").split(",")
        return has_dark_class(page) and ground.startswith("rgb(") and all(int(part) < 80 for part in shade)

    wait_for("the page is dark", is_dark, 10)


def test_the_reference_is_drawn_and_keeps_its_policy_and_theme(window: Callable[..., Page], served: Up) -> None:
    page = window()
    elsewhere: list[str] = []
    page.on(
        "request",
        lambda request: elsewhere.append(request.url) if not request.url.startswith(served.base_url) else None,
    )
    page.goto(f"{served.base_url}/docs")
    page.locator("#operations-tag-projects").click()
    listing = page.locator("#operations-projects-listEnvironments")
    listing.get_by_text("/v1/projects/{project_id}/environments", exact=True).wait_for()
    page.locator("#operations-projects-createProject").click()
    page.get_by_text("Idempotency-Key").first.wait_for()
    page.get_by_text("validation_failed", exact=False).first.wait_for()
    assert [url for url in elsewhere if not url.startswith("data:")] == []
    assert not has_dark_class(page)
    page.emulate_media(color_scheme="dark")
    wait_until_dark(page)


def test_a_call_can_be_tried_from_it_in_the_dark(window: Callable[..., Page], served: Up) -> None:
    page = window(theme="dark")
    page.goto(f"{served.base_url}/docs")
    page.locator(".btn.authorize").first.click()
    wait_until_dark(page)
    page.locator(".auth-container input").fill(served.facts["server_key"])
    page.locator(".auth-btn-wrapper .authorize").click()
    page.locator(".auth-btn-wrapper .btn-done").click()
    page.locator("#operations-tag-projects").click()
    operation = page.locator("#operations-projects-listProjects")
    operation.click()
    operation.locator(".execute").click()
    operation.locator(".live-responses-table").get_by_text("next_cursor").first.wait_for()
    assert served.facts["project_id"] in operation.locator(".live-responses-table").inner_text()
