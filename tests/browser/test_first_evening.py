"""A new user's first evening at `/console`, without curl: from an empty project to a merge, wide and on a phone."""

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from platform_site import demo_receiver
from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, open_new, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.service import Up

pytestmark = in_a_browser


def go(page: Page, section: str) -> None:
    menu = page.get_by_role("button", name="Menu")
    if menu.is_visible():
        menu.click()
    page.get_by_label("Sections").get_by_role("link", name=section, exact=True).click()
    expect(page.locator("#sidebar a[aria-current]")).to_have_text(re.compile(section))


def create_table(page: Page) -> None:
    go(page, "Schema")
    page.get_by_label("Name", exact=True).fill("notes")
    page.get_by_label(re.compile("^Columns")).fill("title text\nowner user?")
    page.get_by_role("button", name="Add to the document").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The schema is at version 1.")).to_be_visible()


def add_row(page: Page, title: str) -> None:
    go(page, "Tables")
    page.get_by_role("button", name="New row").click()
    page.get_by_label(re.compile("^title")).fill(title)
    page.get_by_role("button", name="Insert").click()
    expect(page.get_by_text(title, exact=True)).to_be_visible()


def write_rule(page: Page) -> None:
    go(page, "Schema")
    document = page.get_by_label("Document (JSON)")
    changed = json.loads(document.input_value())
    changed["tables"]["notes"]["rules"] = {"user": {"read": {"where": {"owner_id": "$user.id"}}}}
    document.fill(json.dumps(changed, indent=2))
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The schema is at version 2.")).to_be_visible()


def add_user(page: Page) -> None:
    go(page, "Auth")
    page.get_by_label("Email", exact=True).fill("eve@example.com")
    page.get_by_role("button", name="Add user").click()
    expect(page.get_by_role("heading", name="eve@example.com")).to_be_visible()


def view_as_user(page: Page) -> None:
    go(page, "Tables")
    if page.viewport_size == {"width": NARROW, "height": 900}:
        page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_label("View as").fill("eve@example.com")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="hidden: why?").click()
    expect(page.get_by_text("owner_id").first).to_be_visible()


def create_key(page: Page) -> None:
    go(page, "Home")
    page.get_by_role("button", name=re.compile("New Server key")).click()
    expect(page.get_by_text("Server key created.")).to_be_in_viewport()


def run_function(page: Page) -> None:
    go(page, "Functions")
    page.get_by_label("Name", exact=True).fill("count")
    source = "export default async (_, ctx) => (await ctx.rows.list('notes', {})).data.length;"
    page.get_by_label(re.compile("^Source")).fill(source)
    page.get_by_role("button", name="Deploy").click()
    page.wait_for_url("**/functions/count")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#run-panel pre")).to_have_text("1")


def see_delivery(page: Page, url: str) -> None:
    go(page, "Webhooks")
    page.get_by_label("URL", exact=True).fill(url)
    page.get_by_role("button", name="Create webhook").click()
    expect(page.get_by_text("Copy this signing secret now")).to_be_visible()
    add_row(page, "Butter")
    go(page, "Webhooks")
    page.get_by_role("row").filter(has_text=url).get_by_role("link").click()
    page.get_by_label("Pages of this webhook").get_by_role("link", name="Deliveries").click()
    expect(page.get_by_text("notes.insert")).to_be_visible()


def branch_change_merge(page: Page) -> None:
    go(page, "Branches")
    open_new(page)
    page.get_by_label("Name", exact=True).fill("fix/notes")
    page.get_by_role("button", name="Create branch").click()
    expect(page.get_by_text("The branch fix/notes is created.")).to_be_visible()
    page.locator("main").get_by_role("link", name="fix/notes", exact=True).click()
    go(page, "Schema")
    document = page.get_by_label("Document (JSON)")
    changed = json.loads(document.input_value())
    changed["tables"]["notes"]["columns"]["done"] = {"type": "boolean", "default": False}
    document.fill(json.dumps(changed, indent=2))
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The schema is at version 3.")).to_be_visible()
    go(page, "Branches")
    page.get_by_role("link", name=re.compile("^Merge .* into ")).click()
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_text("add column notes.done")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("All changes of the plan are applied.")).to_be_in_viewport()


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_from_an_empty_project_to_a_merge(window: Callable[..., Page], served: Up, width: int) -> None:
    page = window(width=width)
    enter_console(page, served)
    page.goto(f"{served.base_url}/console/?new=1")
    page.get_by_label("Name").fill("First evening")
    page.get_by_role("button", name="Create project").click()
    create_table(page)
    add_row(page, "Bread")
    write_rule(page)
    add_user(page)
    view_as_user(page)
    create_key(page)
    run_function(page)
    see_delivery(page, served.base_url + demo_receiver.PATH)
    branch_change_merge(page)
    go(page, "Logs")
    expect(page.get_by_text("No request yet.")).to_be_visible()  # the console's own calls are not the application's
    page.get_by_role("link", name="Audit log").click()
    for action in (
        "schema.applied",
        "function.deployed",
        "webhook.created",
        "key.issued",
        "user.created",
        "config.applied",
    ):
        expect(page.get_by_role("link", name=action).first).to_be_visible()
    save_screenshot(page, f"console-evening-{width}")
    go(page, "Settings")
    page.get_by_label(re.compile("To delete the project")).fill("First evening")
    page.get_by_role("button", name="Delete project").click()
    page.wait_for_url(lambda url: "/settings" not in url)
