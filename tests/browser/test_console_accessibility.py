"""Every page of the members' console: it fits, and axe-core finds nothing that it calls serious or critical."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, owner, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import RULES_OF_COLORS, findings, fits
from tests.support.console_pages import pages_of
from tests.support.service import Up

pytestmark = in_a_browser


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_page_fits_and_has_no_serious_finding(window: Callable[..., Page], served: Up, width: int) -> None:
    """By night only the colours differ, so the page need not be loaded again."""
    page = window(width=width)
    found: dict[str, list[str]] = {}

    def look(name: str) -> None:
        fits(page)
        found[name] = findings(page)
        save_screenshot(page, f"console-{name}-{width}-light")
        page.emulate_media(color_scheme="dark")
        if width == WIDE:
            found[f"{name} by night"] = findings(page, only=RULES_OF_COLORS)
        save_screenshot(page, f"console-{name}-{width}-dark")
        page.emulate_media(color_scheme="light")

    page.goto(f"{served.base_url}/console/sign-in")
    look("sign-in")
    base = enter_console(page, served)
    api, token = owner(served)
    for values in ({"name": "Logged"}, {"nothing": 1}):  # for the log
        api.post("/v1/rows/lists", token=token, environment=served.facts["environments"]["production"], json=values)
    for name, path in pages_of(served).items():
        page.goto(base + path)
        expect(page.locator("h1")).to_be_visible()
        look(name)
    if width == NARROW:
        expect(page.locator("#sidebar")).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
    expect(page.locator("#sidebar a[aria-current]")).to_be_visible()
    page.goto(base + "tables/tasks")
    page.get_by_role("button", name="New row").click()
    found["new row"] = findings(page)
    assert {name: each for name, each in found.items() if each} == {}


def test_a_merge_with_conflicts_has_no_serious_finding(window: Callable[..., Page], served: Up) -> None:
    api, token = owner(served)
    production = served.facts["environments"]["production"]
    environments = f"/v1/projects/{served.facts['project_id']}/environments"

    def deploy(environment: str, number: int) -> None:
        source = f"export default () => {number};"
        path = "/v1/functions/conflicting"
        answer = api.request("PUT", path, json={"source": source}, token=token, environment=environment)
        assert answer.status < 300, answer.json

    deploy(production, 0)
    wanted = {"name": "conflicting", "from": production, "data": "none"}
    branch = api.post(environments, json=wanted, token=token).json["id"]
    try:
        deploy(production, 1)
        deploy(branch, 2)
        page = window()
        base = enter_console(page, served)
        page.goto(f"{base}branches/merge?from={branch}")
        page.get_by_role("button", name="Plan").first.click()
        expect(page.get_by_text("Resolve the conflicts first.")).to_be_visible()
        save_screenshot(page, "merge-conflicts")
        assert findings(page) == []
    finally:
        api.request("DELETE", f"{environments}/{branch}", token=token)
        api.request("DELETE", "/v1/functions/conflicting", token=token, environment=production)


def test_a_control_without_a_name_would_be_found(window: Callable[..., Page], served: Up) -> None:
    pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -r requirements-dev.lock")
    page = window()
    page.goto(f"{served.base_url}/console/sign-in")
    page.evaluate("document.querySelector('main').append(document.createElement('select'))")
    assert any(each.startswith("select-name") for each in findings(page))
