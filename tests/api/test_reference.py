"""The API reference in a real browser: drawn, by files of ours alone, without one breach of its own policy."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.serving import Up

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.served,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def test_the_reference_is_drawn_and_keeps_its_policy(page: Page, served: Up) -> None:
    complaints: list[str] = []
    elsewhere: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: elsewhere.append(request.url) if not request.url.startswith(served.base_url) else None,
    )
    page.goto(f"{served.base_url}/docs")
    page.get_by_text("/v1/projects/{project_id}/environments", exact=True).wait_for(timeout=20_000)
    page.locator("#operations-projects-createProject").click()
    page.get_by_text("Idempotency-Key").first.wait_for()
    page.get_by_text("validation_failed", exact=False).first.wait_for()
    assert [url for url in elsewhere if not url.startswith("data:")] == []
    assert complaints == []


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
