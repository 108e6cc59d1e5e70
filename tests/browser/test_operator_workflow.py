"""An operator's day, in a real browser against the whole service: sign in, find a project, rename, suspend, resume and
delete it. And every page at the width of a telephone, in both themes. With SCREENSHOTS=<directory>, what it saw is kept
there to be looked at.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, in_a_browser, owner, save_screenshot, sign_in
from tests.support.client import Api
from tests.support.service import Up, manage

pytestmark = in_a_browser

DOCUMENT: dict[str, Any] = {
    "tables": {
        "notes": {
            "columns": {
                "title": {"type": "text"},
                "secret": {"type": "text", "null": True},
                "owner": {"type": "user"},
            },
            "rules": {"user": {"read": {"where": {"owner_id": "$user.id"}, "columns": ["*", "-secret"]}}},
        }
    }
}


class World:
    """A project of its own, so that the walk leaves the demo as it was."""

    def __init__(self, served: Up) -> None:
        self.api, self.token = owner(served)
        project = self.api.post("/v1/projects", token=self.token, json={"name": "Walked"}).json
        self.project_id: str = project["id"]
        self.environment_id: str = next(e["id"] for e in project["environments"] if e["name"] == "production")
        self.users = {name: self.make("users", email=f"{name}@walk.example", password="walk-walk-walk", name=name)
                      for name in ("ada", "bob")}  # fmt: skip

    def call(self, method: str, path: str, **body: Any) -> Any:
        got = self.api.request(method, path, token=self.token, environment=self.environment_id, json=body)
        assert got.status < 300, got.body
        return got.json

    def make(self, what: str, **body: Any) -> Any:
        return self.call("POST", f"/v1/{what}", **body)


@pytest.fixture
def world(served: Up) -> Iterator[World]:
    made = World(served)
    yield made
    Api(served.base_url).request("DELETE", f"/v1/projects/{made.project_id}", token=made.token)


def test_an_operators_day(window: Callable[..., Page], served: Up, world: World) -> None:
    page = window()
    base, environment = served.base_url, world.environment_id
    sign_in(page, served)

    # The first page has charts, and the audit log of the recent changes.
    expect(page.get_by_text("Projects by region and plan")).to_be_visible()
    expect(page.get_by_text(world.project_id).first).to_be_visible()
    save_screenshot(page, "dashboard")

    # Find the project, rename it.
    page.goto(f"{base}/admin/projects/project/")
    page.locator("input[name=q]").fill(world.project_id)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Walked").first.click()
    expect(page.get_by_role("heading", name="Danger zone")).to_be_visible()
    page.locator("input[name=name]").fill("Renamed on the way")
    page.locator("button[name=_save]").click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    assert (
        world.api.put("/v1/schema", json={"document": DOCUMENT}, token=world.token, environment=environment).status
        == 200
    )

    # Delete the project.
    suspend_and_resume_the_project(page, base, world)
    delete_the_project(page, base, world)


def suspend_and_resume_the_project(page: Page, base: str, world: World) -> None:
    page.goto(f"{base}/admin/projects/project/{quote(world.project_id)}/change/")
    page.get_by_role("link", name="Suspend this project").click()
    page.get_by_label("Reason").fill("The bill of May is open: billing@example.com")
    save_screenshot(page, "suspend")
    page.get_by_role("button", name="Suspend it").click()
    expect(page.get_by_text("is suspended.")).to_be_visible()
    expect(page.get_by_text("Suspended since")).to_be_visible()
    save_screenshot(page, "suspended")
    refused = world.api.get("/v1/webhooks", token=world.token, environment=world.environment_id)
    assert (refused.status, refused.error) == (403, "project_suspended")
    page.get_by_role("link", name="Resume this project").click()
    save_screenshot(page, "resume")
    page.get_by_role("button", name="Resume it").click()
    expect(page.get_by_text("was resumed.")).to_be_visible()
    assert world.api.get("/v1/webhooks", token=world.token, environment=world.environment_id).status == 200


def delete_the_project(page: Page, base: str, world: World) -> None:
    page.goto(f"{base}/admin/projects/project/{world.project_id}/delete/")
    expect(page.get_by_text("production").first).to_be_visible()
    page.locator("input[name=confirm]").fill("Walked")  # its old name
    expect(page.get_by_role("button", name="Delete it for good")).to_be_disabled()
    page.locator("input[name=confirm]").fill("Renamed on the way")
    page.get_by_role("button", name="Delete it for good").click()
    expect(page.get_by_text("was deleted successfully")).to_be_visible()
    gone = world.api.get(f"/v1/projects/{world.project_id}", token=world.token)
    assert gone.status == 404


LONG = "https://hooks.example.com/a/path/that/goes/on/and/on/without/anywhere/to/break/it?token=of-the-receiver"


def test_the_pages_fit_a_telephone_in_both_themes(window: Callable[..., Page], served: Up, world: World) -> None:
    """Nothing overflows the window."""
    webhook = world.make("webhooks", url=LONG, events=["*"])
    paths = ["", "timeline/", "orphaned-schemas/", "projects/project/", f"projects/project/{quote(served.facts['project_id'])}/change/",
             "accounts/user/", "accounts/auditentry/", "security/",
             "accounts/signingkey/", "platform_site/endpointmetric/", "platform_site/functionmetric/", f"timeline/?q={webhook['id']}"]  # fmt: skip
    suspended = world.api.post("/v1/projects", token=world.token, json={"name": "Suspended"}).json
    manage(served, "suspend_project", suspended["id"], "--reason", f"The bill of May is open. {LONG} {'long' * 60}")
    paths += [*(f"projects/project/{quote(suspended['id'])}/{each}/" for each in ("change", "suspend", "resume"))]  # fmt: skip
    for theme, of_the_theme in (
        ("light", paths),
        ("dark", paths if "SCREENSHOTS" in os.environ else paths[:1]),
    ):
        page = window(width=NARROW, theme=theme)
        sign_in(page, served)
        for path in of_the_theme:
            page.goto(f"{served.base_url}/admin/{path}")
            expect(page.locator("h1")).to_be_visible()
            fits(page, path)
            widths = page.locator(".sr-only").evaluate_all("each => each.map(one => one.offsetWidth)")
            assert widths
            assert max(widths) <= 1, "what only screen readers say is not seen"
            save_screenshot(page, f"{re.sub(r'[^a-z]+', '-', path.partition('?')[0]) or 'dashboard'}-{NARROW}-{theme}")
        page.get_by_role("button", name="Menu").click()
        expect(page.locator("#nav-sidebar a[href='/admin/projects/environment/']")).to_be_visible()
    for path in (
        "/docs/guides",
        "/docs/guides/reference/errors",
        "/auth/accept-invitation",
        "/auth/join-project",
        "/admin/login/",
        "/admin/login/forgotten/",
        "/nothing",
    ):
        page.goto(served.base_url + path)
        fits(page, path)
    assert world.api.delete(f"/v1/projects/{suspended['id']}", token=world.token).status == 204


CUT_OFF = """cells => cells.filter(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getBoundingClientRect().right > cell.closest("tr").getBoundingClientRect().right + 1;
}).map(cell => cell.innerText)"""
"""Of cells of the lists those whose text goes on where the card that they are in has ended."""


def fits(page: Page, path: str) -> None:
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW, (path, width)
    assert page.locator("#result_list :is(td, th)").evaluate_all(CUT_OFF) == [], path


def test_ids_and_names_stay_on_one_line_on_a_small_laptop(
    window: Callable[..., Page], served: Up, world: World
) -> None:
    world.call("PUT", "/v1/schema", document=DOCUMENT)
    world.call("PUT", "/v1/functions/announced", source="export default () => 1", on=["notes.insert"],
               allowed_hosts=["hooks.example.com"])  # fmt: skip
    page = window(width=1366)
    sign_in(page, served)
    page.goto(f"{served.base_url}/admin/projects/project/{quote(world.project_id)}/change/")
    found = page.locator("section:has(h2:text('Schema versions')) .id")
    expect(found.first).to_be_visible()
    lines = found.evaluate_all("all => all.map(one => one.getClientRects().length + one.scrollHeight / 1000)")
    assert all(each < 1.05 for each in lines), lines
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    for box in page.locator(".scroll").all():
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
