"""The first evening of `test_first_evening.py` with the keyboard alone: Tab, Enter, Escape, arrows and Ctrl K."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from platform_site import demo_receiver
from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_pages import pages_of
from tests.support.keyboard import Keyboard
from tests.support.service import Up

pytestmark = [*in_a_browser, pytest.mark.timeout(600)]


class Evening:
    def __init__(self, page: Page) -> None:
        self.page, self.keys = page, Keyboard(page)

    def go(self, section: str) -> None:
        self.keys.use(self.page.get_by_label("Sections").get_by_role("link", name=section, exact=True))
        expect(self.page.locator("#sidebar a[aria-current]")).to_have_text(re.compile(section))
        self.skip()

    def skip(self) -> None:
        """The first Tab of a page offers its content."""
        self.keys.use(self.page.get_by_role("link", name="Skip to content"))
        expect(self.page.locator("#main")).to_be_focused()

    def button(self, name: str | re.Pattern[str]) -> None:
        self.keys.use(self.page.locator("main").get_by_role("button", name=name, exact=isinstance(name, str)))

    def stays(self) -> None:
        """A form that was sent has not taken the focus away."""
        assert self.page.evaluate("document.activeElement.closest('main') !== null")

    def create_table(self) -> None:
        self.go("Schema")
        self.keys.fill(self.page.get_by_label("Name", exact=True), "notes")
        self.keys.fill(self.page.get_by_label(re.compile("^Columns")), "title text\nowner user?")
        self.button("Add to the document")
        expect(self.page.get_by_text("create table notes")).to_be_visible()
        self.stays()
        self.button("Apply")
        expect(self.page.get_by_text("The schema is at version 1.")).to_be_visible()
        self.stays()

    def add_row(self, title: str) -> None:
        page = self.page
        self.go("Tables")
        new_row = page.get_by_role("button", name="New row")
        self.keys.use(new_row)
        for _ in range(12):  # the dialog keeps the focus
            self.keys.press("Tab")
            assert page.evaluate("document.activeElement.matches('body, dialog *')")
        self.keys.press("Escape")
        expect(new_row).to_be_focused()
        self.keys.press("Enter")
        expect(page.get_by_label(re.compile("^title"))).to_be_focused()
        self.keys.type(title)
        self.keys.use(page.get_by_role("button", name="Insert"))
        expect(page.get_by_text(title, exact=True)).to_be_visible()

    def edit_in_the_grid(self, old: str, new: str) -> None:
        cell = self.page.locator("td[data-key=title]", has_text=old)
        self.keys.to(self.page.locator("td[tabindex='0']").first)
        self.keys.press("Home")
        self.keys.press("ArrowRight")
        expect(cell).to_be_focused()
        self.keys.press("Enter")
        self.keys.press("Control+a")
        self.keys.type(new)
        self.keys.press("Enter")
        expect(self.page.get_by_text(new, exact=True)).to_be_visible()
        self.keys.press("Control+z")
        expect(self.page.get_by_text(old, exact=True)).to_be_visible()

    def write_rule(self) -> None:
        self.go("Schema")
        self.button("Add a rule")
        expect(self.page.get_by_label("Who", exact=True)).to_be_focused()
        self.keys.choose(self.page.get_by_label("Rows", exact=True), "owner")
        self.button("Save to the draft")
        expect(self.page.get_by_role("button", name="Edit rule user read of notes")).to_be_focused()
        self.button("Apply")
        expect(self.page.get_by_text("The schema is at version 2.")).to_be_visible()
        self.stays()

    def add_user(self) -> None:
        self.go("Auth")
        self.keys.fill(self.page.get_by_label("Email", exact=True), "eve@example.com")
        self.button("Add user")
        expect(self.page.get_by_role("heading", name="eve@example.com")).to_be_visible()

    def view_as_user(self) -> None:
        self.go("Tables")
        self.keys.fill(self.page.get_by_label("View as"), "eve@example.com")
        self.button("Show")
        self.keys.to(self.page.locator("td[tabindex='0']"))
        self.keys.press("Home")
        self.keys.press("Control+Enter")
        expect(self.page.get_by_text("owner_id").first).to_be_visible()

    def create_key(self) -> None:
        self.go("Home")
        self.button(re.compile("New Server key"))
        expect(self.page.get_by_text("Server key created.")).to_be_in_viewport()
        self.stays()
        self.keys.to(self.page.locator("[data-copy=new-key]"))

    def run_function(self) -> None:
        self.go("Functions")
        self.keys.fill(self.page.get_by_label("Name", exact=True), "count")
        source = "export default async (_, ctx) =>\n\t(await ctx.rows.list('notes', {})).data.length;"
        self.keys.fill(self.page.get_by_label(re.compile("^Source")), source)
        self.button("Deploy")
        self.page.wait_for_url("**/functions/count")
        self.button("Run")
        expect(self.page.locator("#run-panel pre")).to_have_text("1")

    def see_delivery(self, url: str) -> None:
        self.go("Webhooks")
        self.keys.fill(self.page.get_by_label("URL", exact=True), url)
        self.button("Create webhook")
        expect(self.page.get_by_text("Copy this signing secret now")).to_be_visible()
        self.stays()
        self.add_row("Butter")
        self.go("Webhooks")
        self.keys.use(self.page.get_by_role("row").filter(has_text=url).get_by_role("link"))
        self.keys.use(self.page.get_by_label("Pages of this webhook").get_by_role("link", name="Deliveries"))
        expect(self.page.get_by_text("notes.insert")).to_be_visible()

    def find(self, name: str) -> None:
        """By Ctrl K, whatever has the focus; Escape gives it back."""
        before = self.page.evaluate_handle("document.activeElement")
        self.keys.press("Control+k")
        self.keys.press("Escape")
        self.page.wait_for_function("before => before === document.activeElement", arg=before)
        self.keys.press("Control+k")
        self.keys.type(name)
        expect(self.page.locator("#search-results").get_by_role("link", name=name).first).to_be_visible()
        self.keys.press("ArrowDown")
        self.keys.press("Enter")

    def branch_change_merge(self) -> None:
        page = self.page
        self.go("Branches")
        self.keys.use(page.locator("summary", has_text="New branch"))
        expect(page.get_by_label("Name", exact=True)).to_be_focused()
        self.keys.fill(page.get_by_label("Name", exact=True), "fix/notes")
        self.button("Create branch")
        expect(page.get_by_text("The branch fix/notes is created.")).to_be_visible()
        self.stays()
        self.keys.use(page.locator("main").get_by_role("link", name="fix/notes", exact=True))
        self.go("Schema")
        self.button("Add a column")
        expect(page.get_by_label("Column name")).to_be_focused()
        self.keys.type("done")
        self.keys.choose(page.get_by_label("Type", exact=True), "boolean")
        self.keys.to(page.get_by_label("May be null"))
        self.keys.press("Space")
        self.button("Save to the draft")
        expect(page.get_by_text("add column notes.done")).to_be_visible()
        self.button("Apply")
        expect(page.get_by_text("The schema is at version 3.")).to_be_visible()
        self.stays()
        self.go("Branches")
        self.keys.use(page.get_by_role("link", name=re.compile("^Merge .* into ")))
        self.button("Plan")
        expect(page.get_by_text("add column notes.done")).to_be_visible()
        self.button("Apply")
        expect(page.get_by_text("All changes of the plan are applied.")).to_be_in_viewport()
        self.stays()


def test_from_an_empty_project_to_a_merge(window: Callable[..., Page], served: Up) -> None:
    page = window()
    enter_console(page, served)
    evening = Evening(page)
    keys = evening.keys
    page.goto(f"{served.base_url}/console/?new=1")
    keys.fill(page.get_by_label("Name"), "By keyboard")
    keys.press("Enter")
    expect(page.get_by_label("Project and environment")).to_contain_text("By keyboard")
    evening.create_table()
    evening.add_row("Bread")
    evening.edit_in_the_grid("Bread", "Rye bread")
    evening.write_rule()
    evening.add_user()
    evening.view_as_user()
    evening.create_key()
    evening.run_function()
    evening.see_delivery(served.base_url + demo_receiver.PATH)
    evening.find("count")
    page.wait_for_url("**/functions/count")
    evening.branch_change_merge()
    save_screenshot(page, "console-evening-keyboard")
    evening.go("Settings")
    keys.fill(page.get_by_label(re.compile("To delete the project")), "By keyboard")
    evening.button("Delete project")
    page.wait_for_url(lambda url: "/settings" not in url)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_tab_reaches_every_control_of_a_page_in_view(window: Callable[..., Page], served: Up, width: int) -> None:
    page = window(width=width)
    base = enter_console(page, served)
    for path in pages_of(served).values():
        page.goto(base + path)
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("[hx-trigger=load]")).to_have_count(0)  # the charts of Home come later
        assert Keyboard(page).missed() == [], path


def test_the_menu_of_a_narrow_page_closes_and_gives_the_focus_back(window: Callable[..., Page], served: Up) -> None:
    page = window(width=NARROW)
    enter_console(page, served)
    keys = Keyboard(page)
    menu = page.get_by_role("button", name="Menu")
    keys.use(menu)
    expect(page.locator("#sidebar")).to_be_visible()
    keys.to(page.get_by_label("Sections").get_by_role("link", name="Schema"))
    keys.press("Escape")
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(menu).to_be_focused()
    keys.press("Enter")
    keys.use(page.get_by_label("Sections").get_by_role("link", name="Schema"))
    expect(page.get_by_role("heading", name="Schema")).to_be_visible()


def test_a_grid_is_one_stop_of_tab(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "tables/tasks")
    keys = Keyboard(page)
    stop = page.locator("tbody td[tabindex='0']")
    keys.to(stop)
    keys.press("Shift+Space")
    expect(page.locator("tbody [data-select]:checked")).to_have_count(1)
    keys.press("Shift+Space")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.closest('.grid')") is None
    keys.to(page.locator("details.columns summary"))
    keys.press("Enter")
    column = stop.get_attribute("data-key")
    keys.to(page.get_by_label(f"Show {column}", exact=True))
    keys.press("Space")
    keys.press("Escape")
    expect(page.locator("details.columns summary")).to_be_focused()
    expect(stop).to_be_visible()
    keys.to(stop)


def test_a_control_without_a_visible_focus_would_be_found(window: Callable[..., Page], served: Up) -> None:
    page = window()
    page.goto(f"{served.base_url}/console/sign-in")
    assert Keyboard(page).missed() == []
    page.reload()
    page.evaluate(
        """() => {
            const rules = new CSSStyleSheet();
            rules.replaceSync("button { outline: none !important }");
            document.adoptedStyleSheets = [rules];
        }"""
    )
    (missed,) = Keyboard(page).missed()
    assert missed.startswith("<button")
