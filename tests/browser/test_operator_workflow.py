"""An operator's day, in a real browser against the whole service: sign in, find a project, issue a key, apply a schema
by its plan, look at rows as a user, explain a hidden one, redeliver a delivery, read a failed run's log, delete the
project. And every page at the width of a telephone, in both themes. With SCREENSHOTS=<directory>, what it saw is kept
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
from tests.support.receiver import Receiver, answer
from tests.support.service import Up, manage, wait_for

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
FAILS = "export default () => { console.error('the cupboard is bare'); throw new Error('nothing to eat'); }"


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

    # Redeliver a delivery.
    with Receiver(answer("500 Broken", b"out of order")) as receiver:
        webhook = world.make("webhooks", url=receiver.url(), events=["notes.insert"])
        world.make("rows/notes", title="delivered twice", owner_id=world.users["ada"]["id"])
        deliveries = f"/v1/webhooks/{webhook['id']}/deliveries"
        wait_for("a first attempt", lambda: world.api.get(
            deliveries, token=world.token, environment=environment).json["data"][:1], 60, 0.2)  # fmt: skip
        wait_for("it arrived", lambda: receiver.requests, 60, 0.2)
        page.goto(f"{base}/admin/webhooks/delivery/?environment={environment}&webhook={webhook['id']}")
        page.get_by_role("link", name="notes.insert").first.click()
        expect(page.get_by_text('"title": "delivered twice"')).to_be_visible()
        receiver.behave = answer()
        redeliver_until_delivered(page)
        save_screenshot(page, "delivery")
        page.goto(f"{base}/admin/webhooks/webhook/{quote(webhook['id'])}/change/")
        expect(page.locator("svg.bars rect.good")).to_have_count(1)
        save_screenshot(page, "webhook")

    # Read a failed run's log.
    world.call("PUT", "/v1/functions/cook", source=FAILS)
    world.make("functions/cook/invoke", input={"meal": "soup"})
    page.goto(f"{base}/admin/functions/run/?environment={environment}&status=failed")
    page.locator("a", has_text=re.compile(r"^run_")).first.click()
    expect(page.get_by_text("the cupboard is bare")).to_be_visible()
    expect(page.get_by_text("Error: nothing to eat").first).to_be_visible()
    save_screenshot(page, "run")

    # Delete the project.
    suspend_and_resume_the_project(page, base, world)
    delete_the_project(page, base, world)


def redeliver_until_delivered(page: Page) -> None:
    """Press the button, and look again until the answer is there."""
    page.get_by_role("button", name="Redeliver").click()
    expect(page.get_by_text(re.compile("sent again|under way")).first).to_be_visible()

    def is_delivered() -> bool:
        page.reload()
        return page.locator("h2 .tag.delivered").count() == 1

    wait_for("the delivery arrived", is_delivered, 60, 0.5)
    expect(page.get_by_text("answered 200").first).to_be_visible()


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


OF_AN_ENVIRONMENT = ("webhooks/webhook", "webhooks/delivery",
                     "functions/function", "functions/run")  # fmt: skip
LONG = "https://hooks.example.com/a/path/that/goes/on/and/on/without/anywhere/to/break/it?token=of-the-receiver"


def test_the_pages_fit_a_telephone_in_both_themes(window: Callable[..., Page], served: Up, world: World) -> None:
    """Nothing overflows the window; without an environment each page leads to one."""
    webhook = world.make("webhooks", url=LONG, events=["*"])
    here = f"?environment={served.facts['environments']['production']}"
    paths = ["", "timeline/", "forgotten/", "projects/project/", f"projects/project/{quote(served.facts['project_id'])}/change/",
             "accounts/user/", "accounts/auditentry/", "security/",
             "accounts/signingkey/", "platform_site/endpointmetric/", "platform_site/functionmetric/", f"webhooks/webhook/{quote(webhook['id'])}/change/",
             *(f"{each}/{here}" for each in OF_AN_ENVIRONMENT)]  # fmt: skip
    suspended = world.api.post("/v1/projects", token=world.token, json={"name": "Suspended"}).json
    manage(served, "suspend_project", suspended["id"], "--reason", f"The bill of May is open. {LONG} {'long' * 60}")
    paths += [*(f"projects/project/{quote(suspended['id'])}/{each}/" for each in ("change", "suspend", "resume")),
              f"webhooks/webhook/?environment={suspended['environments'][0]['id']}"]  # fmt: skip
    choices = [f"{each}/" for each in OF_AN_ENVIRONMENT[:2]]
    for theme, of_the_theme in (
        ("light", paths + choices),
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
    here = f"?environment={world.environment_id}"
    for path, what in (
        (f"projects/project/{quote(world.project_id)}/change/", "section:has(h2:text('Schema versions')) .id"),
        (f"functions/function/{here}", ".listing td:first-child a:first-child, .listing td code"),
        ("functions/function/", ".listing :is(td:first-child, code)"),
    ):
        page.goto(f"{served.base_url}/admin/{path}")
        found = page.locator(what)
        expect(found.first).to_be_visible()
        lines = found.evaluate_all("all => all.map(one => one.getClientRects().length + one.scrollHeight / 1000)")
        assert all(each < 1.05 for each in lines), (path, lines)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1366, path
        for box in page.locator(".scroll").all():
            assert box.evaluate("box => box.scrollWidth <= box.clientWidth"), path


def test_a_keyboard_is_enough_to_press_a_button_and_to_answer_its_question(
    window: Callable[..., Page], served: Up, world: World
) -> None:
    webhook = world.make("webhooks", url="https://example.com/hook", events=["*"])
    page = window()
    sign_in(page, served)
    page.goto(f"{served.base_url}/admin/webhooks/webhook/{quote(webhook['id'])}/change/")
    button = page.get_by_role("button", name="Disable")
    button.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert button.evaluate("button => getComputedStyle(button).outlineStyle") == "solid", "one sees where one is"
    page.keyboard.press("Enter")
    expect(page.get_by_text("Events are held")).to_be_visible()
    page.get_by_role("button", name="Disable").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The webhook is disabled.")).to_be_visible()


def test_a_tenants_text_turns_the_direction_of_nothing_but_itself(
    window: Callable[..., Page], served: Up, world: World
) -> None:
    """A name may contain U+202E, and the text behind it is still readable: regions, ids."""
    renamed = world.api.request(
        "PATCH", f"/v1/projects/{world.project_id}", token=world.token, json={"name": "a\u202eb"}
    )
    assert renamed.status == 200
    page = window()
    sign_in(page, served)
    page.goto(f"{served.base_url}/admin/webhooks/webhook/?environment={world.environment_id}")
    name, shown_id = page.locator(".where p a").nth(1).bounding_box(), page.locator(".where p code").bounding_box()
    assert name is not None
    assert shown_id is not None
    assert name["x"] + name["width"] <= shown_id["x"]
