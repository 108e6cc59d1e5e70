"""A real Chromium before the real service. Skipped, with the reason, where there is none.

A window collects what the browser complains about: a script that failed, a file that was missing, or something that
broke the content policy fails the test that opened it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.support.client import Api
from tests.support.service import Up

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The first is what Playwright itself would start: the same engine without windows, for two thirds of the CPU time."""
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
WIDE, NARROW = 1280, 390
PATIENCE_MS = 60_000
"""For anything that is waited for; a slow machine is not a failure."""

in_a_browser = [
    pytest.mark.browser,
    pytest.mark.served,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium-headless-shell"),
]
"""For `pytestmark`."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(
    scope="module"
)  # its event loop must not outlive the module: Django refuses to ask a database beside one
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A process of its own for what would be the graphics card takes a tenth of the CPU time of a page.
        arguments = ["--no-sandbox", "--in-process-gpu"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE_MS)
        yield launched
        launched.close()


@pytest.fixture
def browser_errors() -> list[str]:
    return []


@pytest.fixture
def window(browser: Browser, browser_errors: list[str], served: Up) -> Iterator[Callable[..., Page]]:
    """Opens a window: `window(width=390, theme="dark")`. Nothing of the service may have complained at the end."""
    contexts = []

    def heard(page: Page, message: ConsoleMessage) -> None:
        url = message.location.get("url", "")
        refused = url == page.url and "the server responded with a status of 4" in message.text  # a page that says no
        if message.type == "error" and url.startswith((served.base_url, "about:")) and not refused:
            browser_errors.append(f"{message.text} {url}")

    def make(*, width: int = WIDE, theme: str = "light", **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", partial(heard, page))
        page.on("pageerror", lambda error: browser_errors.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert browser_errors == [], "\n".join(served.lines[-80:])


def sign_in(page: Page, served: Up) -> None:
    page.goto(f"{served.base_url}/admin/login/?next=/admin/")
    page.locator("input[name=username]").fill(served.facts["admin"]["email"])
    page.locator("input[name=password]").fill(served.facts["admin"]["password"])
    page.locator("button[type=submit]").first.click()
    page.wait_for_url(f"{served.base_url}/admin/")


def open_new(page: Page) -> None:
    """The form of something new, above a list that is not empty."""
    page.locator("details.new:not([open]) > summary").click()


_cookies: dict[str, list[Any]] = {}
"""Of the owner's session, by the URL of the console."""


def enter_console(page: Page, served: Up) -> str:
    """Signed in at the console as the owner; the URL of the production environment there. By the session of an earlier
    test, unless that has ended."""
    base = f"{served.base_url}/console/{served.facts['project_id']}/{served.facts['environments']['production']}/"
    page.context.add_cookies(_cookies.get(base, []))
    page.goto(base)
    if page.url != base:
        page.get_by_label("Email").fill(served.facts["account"]["email"])
        page.get_by_label("Password").fill(served.facts["account"]["password"])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(base)
        _cookies[base] = list(page.context.cookies())
    return base


def owner(served: Up) -> tuple[Api, str]:
    """The API of the demo's service and a token of its owner."""
    api = Api(served.base_url)
    account = served.facts["account"]
    credentials = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    return api, str(api.post("/v1/auth/token", json=credentials).json["access_token"])


def save_screenshot(page: Page, name: str) -> None:
    """A picture of the whole page for people to look at, where SCREENSHOTS names a directory."""
    if directory := os.environ.get("SCREENSHOTS"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(directory) / f"{name}.png"), full_page=True)
