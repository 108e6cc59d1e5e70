"""The console for developers in a real browser: what people do there."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, owner, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.keyboard import Keyboard
from tests.support.service import Up

pytestmark = in_a_browser


def test_a_key_is_created_and_copied_and_its_code_is_there(window: Callable[..., Page], served: Up) -> None:
    page = window(permissions=["clipboard-read", "clipboard-write"])
    enter_console(page, served)
    page.get_by_role("button", name=re.compile("New Server key")).click()
    expect(page.get_by_text("Server key created.")).to_be_in_viewport()
    key = page.locator("#new-key").inner_text()
    page.locator("[data-copy=new-key]").click()
    expect(page.locator("[data-copy=new-key]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == key
    expect(page.locator("#snippet-curl")).to_contain_text(key)
    page.get_by_text("JavaScript", exact=True).click()
    expect(page.locator("#snippet-javascript")).to_be_visible()
    expect(page.locator("#snippet-curl")).to_be_hidden()
    page.reload()
    expect(page.get_by_text(key)).to_have_count(0)


def test_the_switcher_leads_to_other_environments_with_the_keyboard(window: Callable[..., Page], served: Up) -> None:
    page = window()
    enter_console(page, served)
    switcher = page.get_by_label("Project and environment")
    switcher.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="development")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="development")).to_be_hidden()
    expect(switcher).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="development").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{served.facts['environments']['development']}/")


def test_signing_out_in_one_tab_ends_the_other(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    other = page.context.new_page()
    other.goto(base)
    page.get_by_label("Account").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/console/sign-in")
    other.get_by_role("button", name=re.compile("New Server key")).click()
    with page.context.expect_page() as opened:
        other.get_by_role("link", name="Sign in in another tab").click()
    third = opened.value
    third.get_by_label("Email").fill(served.facts["account"]["email"])
    third.get_by_label("Password").fill(served.facts["account"]["password"])
    third.get_by_role("button", name="Sign in").click()
    third.wait_for_url(base)


def test_a_first_table_without_curl(window: Callable[..., Page], served: Up, browser_errors: list[str]) -> None:
    """An empty project: a table by the form, a mistake shown at its line, the plan, a row, the loss confirmed by name."""
    page = window()
    enter_console(page, served)
    page.goto(f"{served.base_url}/console/?new=1")
    page.get_by_label("Name").fill("First evening")
    page.get_by_role("button", name="Create project").click()
    page.get_by_role("link", name="Tables").click()
    page.get_by_role("link", name="Create the first one under Schema").click()
    save_screenshot(page, "console-schema-empty")
    page.get_by_label("Name", exact=True).fill("notes")
    page.get_by_label(re.compile("^Columns")).fill("title text\npages integer?")
    page.get_by_role("button", name="Add to the document").click()
    expect(page.get_by_text("create table notes")).to_be_visible()
    document = page.get_by_label("Document (JSON)")
    right = document.input_value()
    document.fill(right.replace('"integer"', '"number"'))
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_role("button", name=re.compile("^Line")).first.click()
    assert "pages" in document.evaluate(
        "editor => editor.value.slice(editor.selectionStart - 20, editor.selectionEnd + 40)"
    )
    save_screenshot(page, "console-schema-error")
    document.fill(right)
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The schema is at version 1.")).to_be_in_viewport()
    page.get_by_role("link", name="Tables").click()
    page.get_by_role("button", name="New row").click()
    page.get_by_label(re.compile("^title")).fill("Bread")
    page.get_by_label(re.compile("^pages")).fill("many")
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("dialog [data-field=pages] .problem")).to_be_visible()
    page.get_by_label(re.compile("^pages")).fill("3")
    page.get_by_role("button", name="Insert").click()
    expect(row_of(page, "Bread")).to_be_visible()

    page.get_by_role("link", name="Schema").click()
    document.fill('{"tables": {}}')
    page.get_by_role("button", name="Plan", exact=True).click()
    confirm = page.get_by_label(re.compile("drop table notes"))
    expect(confirm).to_be_visible()
    save_screenshot(page, "console-schema-loss")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("main .problem").first).to_be_visible()
    confirm.fill("drop table notes")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("The schema is at version 2.")).to_be_visible()

    page.get_by_role("link", name="Settings").click()
    page.get_by_label(re.compile("To delete the project")).fill("First evening")
    page.get_by_role("button", name="Delete project").click()
    page.wait_for_url(lambda url: "/settings" not in url)
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]


def test_buttons_of_lists_are_in_view_on_a_phone(window: Callable[..., Page], served: Up) -> None:
    page = window(width=NARROW)
    base = enter_console(page, served)
    page.goto(f"{base}settings")
    for name in ("Revoke", "Leave"):
        button = page.get_by_role("button", name=name).first
        button.scroll_into_view_if_needed()
        box = button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= NARROW, name
    scrolled = page.locator(".scroll").evaluate_all(
        "each => each.filter((one) => one.scrollWidth > one.clientWidth).length"
    )
    assert scrolled == 0
    row = page.get_by_role("row").filter(has_text="Demo")
    expect(row.locator("td").first).to_have_attribute("data-label", "Name")
    page.goto(f"{base}auth/providers")
    expect(page.get_by_label("Private key (PEM)")).to_be_hidden()
    page.get_by_label("Provider", exact=True).select_option("apple")
    expect(page.get_by_label("Private key (PEM)")).to_be_visible()


def some_user(served: Up) -> str:
    api, token = owner(served)
    environment = served.facts["environments"]["production"]
    return str(api.get("/v1/users", token=token, environment=environment).json["data"][0]["id"])


def row_of(page: Page, title: str) -> Locator:
    return page.locator("tr", has=page.get_by_text(title, exact=True))


def test_rows_are_added_edited_and_deleted_in_the_grid(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "tables/lists")
    page.get_by_role("button", name="New row").click()
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("dialog [data-field=name] .problem")).to_be_visible()
    save_screenshot(page, "console-new-row")
    page.get_by_label(re.compile("^name")).fill("From the grid")
    page.get_by_label(re.compile("^owner_id")).fill(some_user(served))
    page.get_by_role("button", name="Insert").click()
    cell = row_of(page, "From the grid").locator("[data-key=name]")
    expect(cell).to_be_visible()

    # With the keyboard alone: the error is at the cell, Escape gives up, Enter saves.
    cell.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type("x" * 101)
    page.keyboard.press("Enter")
    expect(page.locator("td.editing .problem")).to_contain_text("100")
    expect(page.locator("td.editing .problem")).to_be_in_viewport()
    save_screenshot(page, "console-cell-error")
    page.keyboard.press("Escape")
    expect(page.get_by_text("From the grid")).to_be_visible()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type("Edited in place")
    page.keyboard.press("Enter")
    expect(page.locator("td.editing")).to_have_count(0)
    page.reload()
    row = row_of(page, "Edited in place")
    expect(row).to_be_visible()

    page.on("dialog", lambda dialog: dialog.accept())
    row.get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete selected").click()
    expect(row).to_have_count(0)
    page.reload()
    expect(page.get_by_text("Edited in place")).to_have_count(0)
    browser_errors[:] = [each for each in browser_errors if "a status of 422" not in each]


def test_of_two_tabs_on_one_row_the_second_sees_both_values(
    window: Callable[..., Page], served: Up, browser_errors: list[str]
) -> None:
    page = window()
    base = enter_console(page, served)
    api, token = owner(served)
    environment = served.facts["environments"]["production"]
    user = some_user(served)
    made = api.post("/v1/rows/lists", token=token, environment=environment, json={"name": "Two tabs", "owner_id": user})
    page.goto(base + "tables/lists")
    other = page.context.new_page()
    other.goto(base + "tables/lists")
    for tab, text in ((page, "of the first"), (other, "of the second")):
        tab.locator(f"tr[data-id='{made.json['id']}'] [data-key=name]").dblclick()
        tab.get_by_label("name", exact=True).fill(text)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("td.editing")).to_have_count(0)
    other.get_by_role("button", name="Save", exact=True).click()
    expect(other.locator("td.editing .problem")).to_contain_text('"of the first"')
    expect(other.get_by_label("name", exact=True)).to_have_value("of the second")
    save_screenshot(other, "console-conflict")
    other.get_by_role("button", name="Save mine").click()
    expect(other.locator("td.editing")).to_have_count(0)
    path = f"/v1/rows/lists/{made.json['id']}"
    assert api.get(path, token=token, environment=environment).json["name"] == "of the second"
    for tab in (page, other):
        tab.goto("about:blank")  # a live update would find the row deleted
    assert api.delete(path, token=token, environment=environment).status == 204
    browser_errors[:] = [each for each in browser_errors if "a status of 412" not in each]


def test_large_numbers_keep_their_digits_after_an_edit(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    api, token = owner(served)
    environment = served.facts["environments"]["development"]
    columns = {"note": {"type": "text"}, "extra": {"type": "json"}}
    before = api.get("/v1/schema", token=token, environment=environment).json["document"]
    document = {"tables": {**before["tables"], "numbers": {"columns": columns}}}
    assert api.put("/v1/schema", token=token, environment=environment, json={"document": document}).status == 200
    values = {"note": "before", "extra": {"n": 9007199254740993}}
    made = api.post("/v1/rows/numbers", token=token, environment=environment, json=values)
    page.goto(base.replace(served.facts["environments"]["production"], environment) + "tables/numbers")
    row = page.locator(f"tr[data-id='{made.json['id']}']")
    row.locator("[data-key=note]").dblclick()
    page.get_by_label("note", exact=True).fill("edited")
    page.keyboard.press("Enter")
    expect(row.locator("[data-key=note] .cell")).to_have_text("edited")
    expect(row.locator("[data-key=extra] .cell")).to_have_text('{"n":9007199254740993}')


def test_the_filter_builder_writes_the_json(window: Callable[..., Page], served: Up) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "tables/tasks")
    page.get_by_label("Column").select_option("done")
    page.get_by_label("Value").select_option("true")
    page.get_by_role("button", name="Add condition").click()
    expect(page.get_by_label("Filter (JSON)")).to_have_value('{"done":{"$eq":true}}')
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**where=*")
    values = page.locator("[data-key=done]").evaluate_all("each => each.map(one => one.dataset.value)")
    assert set(values) <= {"true"}


def test_search_opens_with_the_keyboard_and_leads_there(window: Callable[..., Page], served: Up) -> None:
    page = window()
    enter_console(page, served)
    page.keyboard.press("Control+k")
    field = page.get_by_role("searchbox", name="Name, email or id")
    expect(field).to_be_focused()
    field.fill("no such thing")
    expect(page.get_by_text("has this name or id")).to_be_visible()
    field.fill("task")
    expect(page.get_by_role("dialog").get_by_role("link", name="open-tasks Function")).to_be_visible()
    save_screenshot(page, "console-search")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("dialog").get_by_role("link", name="open-tasks Function")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/functions/open-tasks")
    page.keyboard.press("Control+k")
    page.keyboard.type("typed")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type(served.facts["webhook"]["id"])
    expect(page.get_by_role("dialog").get_by_role("link")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/webhooks/wh_*")


def test_search_works_on_a_phone(window: Callable[..., Page], served: Up) -> None:
    page = window(width=NARROW, theme="dark")
    enter_console(page, served)
    page.get_by_role("link", name="Search").click()
    page.get_by_role("searchbox", name="Name, email or id").fill("ada@example.com")
    expect(page.get_by_role("dialog").get_by_role("link", name=re.compile("User"))).to_be_visible()
    fits(page)
    save_screenshot(page, "console-search-390")


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_many_tables_and_a_long_name_leave_room(
    window: Callable[..., Page], served: Up, width: int, theme: str
) -> None:
    api, token = owner(served)
    name = f"A project with a long name that is shown at {width} pixels"
    made = api.post("/v1/projects", token=token, json={"name": name, "region": "us-east-1"}).json
    environment = next(each["id"] for each in made["environments"] if each["name"] == "development")
    document = {"tables": {f"table_{number}": {"columns": {"title": {"type": "text"}}} for number in range(60)}}
    assert api.put("/v1/schema", token=token, environment=environment, json={"document": document}).status == 200
    page = window(width=width, theme=theme)
    enter_console(page, served)
    base = f"{served.base_url}/console/{made['id']}/{environment}/"
    page.goto(f"{base}tables/table_55")
    expect(page.get_by_label("Account")).to_be_in_viewport()
    expect(page.get_by_role("link", name="table_55")).to_be_in_viewport()
    expect(page.get_by_role("button", name="New row")).to_be_in_viewport()
    save_screenshot(page, f"many-tables-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    page.get_by_label("Find a table").fill("E_41")
    expect(page.get_by_label("Tables", exact=True).get_by_role("link")).to_have_count(1)
    page.get_by_label("Find a table").press("Enter")
    page.wait_for_url("**/tables/table_41")
    page.goto(f"{base}schema?table=table_41")
    page.get_by_label("Find a table").fill("table_3")
    page.get_by_label("Find a table").press("Enter")
    expect(page.get_by_role("heading", name="table_3", exact=True)).to_be_visible()
    fits(page)
    page.goto(f"{base}schema/diagram")
    page.get_by_label("Fit the page").check()
    picture = page.locator(".diagram")
    assert picture.evaluate("each => each.scrollWidth <= each.clientWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_filters_of_logs_are_folded_on_a_phone(window: Callable[..., Page], served: Up, theme: str) -> None:
    page = window(width=NARROW, theme=theme)
    base = enter_console(page, served)
    page.goto(f"{base}logs?status=2xx&method=GET")
    opener = page.get_by_role("button", name="Filters (2 active)")
    expect(page.locator("#logs-status")).to_be_hidden()
    expect(page.get_by_role("heading", name="Requests")).to_be_in_viewport()
    save_screenshot(page, f"logs-folded-{theme}")
    assert findings(page) == []
    Keyboard(page).to(opener)
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#logs-status")).to_have_value("2xx")
    fits(page)
    assert findings(page) == []
    page.goto(f"{base}logs?status=nine")
    expect(page.locator("#logs-status")).to_be_visible()  # its error is in view
    page.set_viewport_size({"width": WIDE, "height": 900})
    page.goto(f"{base}logs")
    expect(page.locator("#logs-status")).to_be_visible()
    expect(page.get_by_role("button", name="Filters")).to_be_hidden()
