"""The forms of the schema in a real browser: wide with the mouse, on a phone, and with the keyboard alone."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.console_grid import Things, forget
from tests.support.console_grid import things as things
from tests.support.service import Up

pytestmark = in_a_browser


def draft_of(page: Page) -> Any:
    return json.loads(page.get_by_label("Document (JSON)").input_value())


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_parts_are_edited_by_form(
    window: Callable[..., Page], served: Up, browser_errors: list[str], width: int, theme: str
) -> None:
    page = window(width=width, theme=theme)
    base = enter_console(page, served)
    page.goto(f"{base}schema?table=tasks")
    page.get_by_role("button", name="Add a column").click()
    expect(page.get_by_label("Column name")).to_be_focused()
    page.get_by_label("Column name").fill("state")
    expect(page.get_by_label("Values, one per line")).to_be_hidden()
    page.get_by_label("Type", exact=True).select_option("enum")
    page.get_by_label("Values, one per line").fill("open\nclosed")
    page.get_by_label("Default").fill("closd")
    save_screenshot(page, f"schema-column-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    page.get_by_role("button", name="Save to the draft").click()
    expect(page.locator(".part-form .problem").first).to_be_in_viewport()
    save_screenshot(page, f"schema-column-error-{width}-{theme}")
    fits(page)
    page.get_by_label("Default").fill("open")
    page.get_by_role("button", name="Save to the draft").click()
    expect(page.get_by_text("add column tasks.state")).to_be_visible()
    assert draft_of(page)["tables"]["tasks"]["columns"]["state"] == {
        "type": "enum", "default": "open", "values": ["open", "closed"],
    }  # fmt: skip
    page.get_by_role("button", name="Add a rule").click()
    expect(page.get_by_label("Who", exact=True)).to_be_focused()
    expect(page.get_by_label("Role", exact=True)).to_be_hidden()
    expect(page.get_by_label("Rows: where (JSON)")).to_be_hidden()
    expect(page.get_by_label("Set by the platform (JSON)")).to_be_hidden()
    save_screenshot(page, f"schema-rule-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    page.get_by_label("Who", exact=True).select_option("role")
    page.get_by_label("Role", exact=True).fill("editor")
    page.get_by_label("Rows", exact=True).select_option("json")
    page.get_by_label("Rows: where (JSON)").fill('{"state": "open"}')
    page.get_by_role("button", name="Save to the draft").click()
    expect(page.get_by_role("button", name="Edit rule editor read of tasks")).to_be_focused()
    save_screenshot(page, f"schema-draft-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    page.get_by_role("button", name="Remove column state of tasks").click()
    expect(page.locator("main .problem").first).to_be_visible()
    page.get_by_role("button", name="Line").first.click()
    page.get_by_role("link", name="Discard draft").click()
    expect(page.get_by_text("draft", exact=True)).to_be_hidden()
    assert "editor" not in draft_of(page)["tables"]["tasks"].get("rules", {})
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_rows_of_a_table_lead_to_its_columns(
    window: Callable[..., Page], served: Up, width: int, theme: str
) -> None:
    page = window(width=width, theme=theme)
    base = enter_console(page, served)
    page.goto(f"{base}tables/tasks")
    if width == NARROW:
        page.get_by_role("button", name="Columns and files").click()
    save_screenshot(page, f"table-tools-{width}-{theme}")
    page.get_by_role("link", name="Add column").click()
    expect(page.get_by_role("group", name="New column of tasks")).to_be_visible()
    expect(page.get_by_label("Column name")).to_be_focused()
    save_screenshot(page, f"add-column-{width}-{theme}")
    fits(page)
    page.get_by_label("Column name").fill("state")
    page.get_by_label("May be null").check()
    page.get_by_role("button", name="Save to the draft").click()
    expect(page.get_by_text("add column tasks.state")).to_be_visible()
    page.get_by_role("link", name="Discard draft").click()
    page.goto(f"{base}tables/comments")
    page.get_by_label("Pages of comments").get_by_role("link", name="Definition").click()
    expect(page.get_by_role("button", name="comments", exact=True)).to_have_attribute("aria-current", "true")
    expect(page.get_by_label("Column name")).to_have_count(0)


def test_an_open_form_is_not_lost(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(f"{base}schema?table=tasks")
    page.get_by_role("button", name="Remove index owner, -created_at of tasks").click()
    expect(page.get_by_role("button", name="Apply")).to_be_visible()
    page.get_by_role("button", name="Add a column").click()
    expect(page.get_by_role("button", name="Apply")).to_have_count(0)
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("button", name="Apply")).to_be_visible()
    expect(page.get_by_role("button", name="Plan", exact=True)).to_be_focused()
    page.get_by_label("Column name").fill("state")
    page.get_by_label("May be null").check()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The column state of tasks was not in the document.")).to_be_in_viewport()
    expect(page.get_by_text("add column tasks.state")).to_be_visible()
    save_screenshot(page, "schema-late-column")
    page.get_by_role("link", name="Discard draft").click()
    page.get_by_role("button", name="Add a column").click()
    page.get_by_label("Type", exact=True).select_option("date")
    asked = []
    page.once("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.evaluate("location.reload()")
    expect(page.get_by_label("Type", exact=True)).to_have_value("date")
    assert asked == ["beforeunload"]
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_label("Column name")).to_have_count(0)
    page.goto(base)


def test_an_open_form_follows_the_json(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(f"{base}schema?table=tasks")
    document = page.get_by_label("Document (JSON)")
    before = draft_of(page)
    buttons = page.get_by_role("button", name=re.compile("^(Edit|Add an?) (?!table)"))
    names = [each.get_attribute("aria-label") or each.inner_text() for each in buttons.all()]
    assert len(names) > 10
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.get_by_text("This is the schema already")).to_have_count(0)
        expect(page.locator(".part-form")).to_be_visible()
        page.get_by_role("button", name="Plan", exact=True).click()
        expect(page.get_by_text("This is the schema already")).to_be_visible()
        expect(page.locator(".part-form")).to_be_visible()
        assert draft_of(page) == before, name
    page.get_by_role("button", name="Edit column title of tasks").click()
    expect(page.get_by_role("group", name="Column title of tasks")).to_be_visible()
    before["tables"]["tasks"]["columns"]["title"]["min_length"] = 1
    document.fill(json.dumps(before))
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_label("Minimum length")).to_have_value("1")
    page.get_by_label("Minimum length").fill("2")
    before["tables"]["tasks"]["columns"]["title"]["min_length"] = 3
    document.fill(json.dumps(before))
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_text("This part was changed in the JSON and in the form.")).to_be_in_viewport()
    expect(page.get_by_label("Minimum length")).to_have_value("2")
    assert draft_of(page) == before
    save_screenshot(page, "schema-changed-twice")
    page.get_by_role("button", name="Cancel").click()
    assert draft_of(page) == before
    page.get_by_role("link", name="Discard draft").click()


def test_a_column_is_renamed_with_the_keyboard_alone(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(f"{base}schema?table=tasks")
    page.get_by_role("button", name="Edit column title of tasks").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Column name")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("subject")
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile("rename column tasks.title"))).to_be_visible()
    assert draft_of(page)["tables"]["tasks"]["columns"]["subject"]["renamed_from"] == "title"


def test_enter_presses_the_button_of_its_part(
    window: Callable[..., Page], served: Up, things: Things, browser_errors: list[str]
) -> None:
    page = window()
    production = served.facts["environments"]["production"]
    base = enter_console(page, served).replace(production, things.environment)
    page.goto(f"{base}schema?table=boxes")
    page.get_by_text("Add a table", exact=True).click()
    page.get_by_label("Columns, one per line").fill("title text")
    page.get_by_label("Name", exact=True).fill("extras")
    page.once("dialog", lambda asked: asked.dismiss())
    page.evaluate("location.reload()")  # the browser asks first
    page.keyboard.press("Enter")
    expect(page.get_by_text("create table extras", exact=True)).to_be_visible()
    page.get_by_role("link", name="Discard draft").click()
    page.goto(f"{base}schema?table=things")
    page.get_by_role("button", name="Remove column size of things").click()
    page.set_viewport_size({"width": WIDE, "height": 300})
    page.get_by_label("to confirm").fill("drop column things")
    page.evaluate("scrollBy(0, 1000)")
    page.keyboard.press("Enter")
    expect(page.locator("main .problem")).to_be_visible()
    top = page.locator("main .problem").evaluate("problem => problem.getBoundingClientRect().top")
    assert top >= page.locator("header.bar").evaluate("header => header.offsetHeight"), "it is not under the header"
    expect(page.get_by_label("to confirm")).to_have_value("drop column things")
    save_screenshot(page, "schema-unconfirmed")
    page.get_by_label("to confirm").fill("drop column things.size")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The schema is at version")).to_be_visible()
    forget(browser_errors, 422)


def test_a_long_name_of_a_table_fits_a_phone(window: Callable[..., Page], things: Things) -> None:
    page = window(width=NARROW)
    things.open(page)
    page.get_by_role("link", name="Definition").click()
    long = "a_table_with_a_very_long_name_that_goes_on_and"
    document = draft_of(page)
    document["tables"] = {name: {"columns": {"n": {"type": "text"}}} for name in (long, *map("t{}".format, range(12)))}
    page.get_by_label("Document (JSON)").fill(json.dumps(document))
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("button", name=re.compile(f"^{long}"))).to_be_visible()
    tabs = page.get_by_role("group", name="Table to edit")
    assert tabs.evaluate("each => each.scrollWidth <= each.clientWidth")
    fits(page)
