"""A real Chromium before the real service. Skipped, with the reason, where there is none.

`page` is a fresh window (BROWSER_WIDTH by BROWSER_HEIGHT) that collects what the browser complains about: a script that
failed, a file that was missing, or something that broke the content policy fails the test.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.client import Api
from tests.serving import Up

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
WIDE, NARROW = 1280, 390
PATIENCE_MS = 20_000
"""For anything that is waited for; a slow machine is not a failure."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.served)
        item.add_marker(pytest.mark.timeout(300))
        if CHROMIUM is None:
            item.add_marker(pytest.mark.skip(reason="no Chromium on this machine: apt-get install chromium"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def window(browser: Browser, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Opens a window: `window(width=390, theme="dark")`. Nothing in it may have complained at the end."""
    contexts = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and "favicon" not in message.location.get("url", ""):
            complaints.append(message.text)

    def make(*, width: int = WIDE, theme: str = "light", **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


def sign_in(page: Page, served: Up) -> None:
    page.goto(f"{served.base_url}/admin/login/?next=/admin/")
    page.locator("input[name=username]").fill(served.facts["admin"]["email"])
    page.locator("input[name=password]").fill(served.facts["admin"]["password"])
    page.locator("button[type=submit]").first.click()
    page.wait_for_url(f"{served.base_url}/admin/")


def owner(served: Up) -> tuple[Api, str]:
    """The API of the demo's service and a token of its owner."""
    api = Api(served.base_url)
    account = served.facts["account"]
    credentials = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    return api, str(api.post("/v1/auth/token", json=credentials).json["access_token"])


def keep(page: Page, name: str) -> None:
    """A picture of the whole page for people to look at, where SCREENSHOTS names a directory."""
    if directory := os.environ.get("SCREENSHOTS"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(directory) / f"{name}.png"), full_page=True)
