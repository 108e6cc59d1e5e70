"""The grid as a spreadsheet in a real browser: keys, pickers, ranges, widths, and changes by others."""

import json
import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.console_grid import Things, cell, forget, paste
from tests.support.console_grid import things as things
from tests.support.keyboard import Keyboard

pytestmark = in_a_browser


def test_keys_are_those_of_a_spreadsheet(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    first, second = things.add(name="a", size=1), things.add(name="b", size=2)
    page = window()
    things.open(page)
    cell(page, first, "name").focus()
    page.keyboard.type("apple")
    page.keyboard.press("Enter")
    expect(cell(page, second, "name")).to_be_focused()
    page.keyboard.type("bread")
    page.keyboard.press("Tab")
    expect(cell(page, second, "size")).to_be_focused()
    page.keyboard.press("Delete")
    expect(cell(page, second, "size").locator(".cell")).to_have_text("null")
    page.keyboard.type("-3")
    page.keyboard.press("Enter")
    expect(page.locator("td.editing .problem")).to_be_in_viewport()
    save_screenshot(page, "grid-cell-error-1280")
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    expect(cell(page, second, "id")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("td.editing")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    expect(cell(page, first, "name")).to_be_focused()
    assert (things.row(first)["name"], things.row(second)["name"]) == ("apple", "bread")
    assert things.row(second)["size"] is None
    assert findings(page) == []
    forget(browser_errors, 422)


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_values_are_picked(
    window: Callable[..., Page], things: Things, browser_errors: list[str], width: int, theme: str
) -> None:
    box = things.call("post", "/v1/rows/boxes", json={"name": "Blue box"})["id"]
    things.call("post", "/v1/rows/boxes", json={"name": "Red box"})
    row_id = things.add(name="thing")
    page = window(width=width, theme=theme)
    things.open(page)
    cell(page, row_id, "box_id").dblclick()
    page.get_by_label("box_id", exact=True).fill("blue")
    expect(page.locator("td.editing").get_by_role("option")).to_have_count(1)
    save_screenshot(page, f"grid-picker-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    page.keyboard.press("Enter")
    expect(cell(page, row_id, "box_id").locator(".cell")).to_have_text("Blue box")
    assert things.row(row_id)["box_id"] == box
    save_screenshot(page, f"grid-reference-{width}-{theme}")
    page.reload()
    expect(cell(page, row_id, "box_id").locator(".cell")).to_have_text("Blue box")
    expect(cell(page, row_id, "box_id")).to_have_attribute("title", box)
    cell(page, row_id, "kind").focus()
    page.keyboard.press("Enter")
    page.get_by_label("kind", exact=True).select_option("old")
    page.keyboard.press("Enter")
    expect(cell(page, row_id, "kind").locator(".cell")).to_have_text("old")
    for key, text, shown in (
        ("due", "2026-02-03", "2026-02-03"),
        ("seen", "2026-02-03T04:05", "2026-02-03 04:05:00"),
        ("extra", '{"a": [1]}', '{"a":[1]}'),
    ):
        cell(page, row_id, key).focus()
        page.keyboard.press("F2")
        editor = page.locator("td.editing").locator("input, textarea")
        if key == "extra":
            editor.fill("{a")
            page.keyboard.press("Enter")
            expect(page.locator("td.editing .problem")).to_contain_text("not JSON")
        editor.fill(text)
        page.keyboard.press("Enter")
        expect(cell(page, row_id, key).locator(".cell")).to_have_text(shown)
    expect(cell(page, row_id, "seen")).to_have_attribute("title", "2026-02-03T04:05:00.000000Z")
    cell(page, row_id, "seen").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("seen (UTC)")).to_have_attribute("type", "datetime-local")
    save_screenshot(page, f"grid-time-{width}-{theme}")
    page.keyboard.press("Escape")
    page.reload()
    expect(cell(page, row_id, "seen").locator(".cell")).to_have_text("2026-02-03 04:05:00")
    for column in ("td", "th"):
        shown = page.locator(f"{column}[data-type=integer]").first.evaluate("cell => getComputedStyle(cell).textAlign")
        assert shown == "right"
    forget(browser_errors, 422)


def test_what_is_typed_into_a_picker_chooses(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    boxes = {name: things.call("post", "/v1/rows/boxes", json={"name": name})["id"] for name in ("Homework", "Home")}
    row_id = things.add(name="thing", box_id=boxes["Homework"])
    page = window()
    things.open(page)
    box, field = cell(page, row_id, "box_id"), page.get_by_label("box_id", exact=True)
    box.focus()
    page.keyboard.press("Enter")
    expect(field).to_have_value("Homework")
    page.keyboard.type("home")  # replaces the value, and Enter comes before the suggestions
    page.keyboard.press("Enter")
    expect(box.locator(".cell")).to_have_text("Home")
    assert things.row(row_id)["box_id"] == boxes["Home"]
    page.keyboard.type("nothing")
    expect(page.get_by_text("No match", exact=True)).to_be_visible()
    save_screenshot(page, "grid-picker-none")
    assert findings(page) == []
    page.keyboard.press("Enter")
    expect(box.locator(".problem")).to_contain_text("does not exist")
    field.fill("homew")
    page.get_by_role("button", name="Save").click()
    expect(box.locator(".cell")).to_have_text("Homework")
    centre = box.evaluate("cell => cell.getBoundingClientRect().left + cell.offsetWidth / 2")
    assert box.get_by_role("link").evaluate("link => link.getBoundingClientRect().left") > centre
    page.get_by_role("button", name="New row").click()
    page.get_by_label("name text").fill("new")
    page.get_by_label("box_id reference").fill("homew")
    page.get_by_role("button", name="Insert").click()
    expect(page.locator("td[data-key=box_id] .cell")).to_have_text(["Homework", "Homework"])
    forget(browser_errors, 422)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_boolean_is_a_box(window: Callable[..., Page], things: Things, theme: str) -> None:
    ticked, empty = things.add(name="a", done=True), things.add(name="b")
    page = window(theme=theme)
    things.open(page)
    box = cell(page, ticked, "done")
    mark = "cell => getComputedStyle(cell.querySelector('.cell'), '::before').content"
    expect(box.locator(".cell")).to_have_text("true")  # for screen readers
    assert "✓" in box.evaluate(mark)
    assert cell(page, empty, "done").evaluate(mark) == "none"
    box.focus()
    page.keyboard.press("Space")
    expect(box).to_have_attribute("data-value", "false")
    assert "✓" not in box.evaluate(mark)
    assert things.row(ticked)["done"] is False
    cell(page, empty, "done").focus()
    page.keyboard.press("Space")
    expect(cell(page, empty, "done")).to_have_attribute("data-value", "true")
    page.keyboard.press("Enter")
    editor = page.get_by_label("done", exact=True)
    assert editor.locator("option").all_inner_texts() == ["true", "false"]
    save_screenshot(page, f"grid-boolean-{theme}")
    assert findings(page) == []
    page.get_by_role("button", name="Set null").click()
    expect(cell(page, empty, "done").locator(".cell")).to_have_text("null")
    assert things.row(empty)["done"] is None
    for value in (True, False):
        box.locator(".cell").click()
        expect(box).to_have_attribute("data-value", str(value).lower())
        assert things.row(ticked)["done"] is value
    box.click(position={"x": 60, "y": 6})  # beside the box
    cell(page, empty, "done").locator(".cell").click()
    expect(cell(page, empty, "done")).to_be_focused()
    assert (things.row(ticked)["done"], things.row(empty)["done"]) == (False, None)


def test_a_user_is_shown_by_email_also_after_a_change(window: Callable[..., Page], things: Things) -> None:
    ada, grace = (
        things.call("post", "/v1/users", json={"email": f"{name}-{secrets.token_hex(4)}@example.com"})
        for name in ("ada", "grace")
    )
    row_id = things.add(name="a", owner_id=ada["id"])
    page = window()
    things.open(page)
    owner = cell(page, row_id, "owner_id")
    expect(owner.locator(".cell")).to_have_text(ada["email"])
    owner.focus()
    page.keyboard.type(grace["email"][:10])
    expect(page.locator("td.editing").get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    link = owner.get_by_role("link", name=f"User {grace['email']}")
    expect(link).to_have_attribute("href", re.compile(f"/auth/users/{grace['id']}$"))
    assert things.row(row_id)["owner_id"] == grace["id"]
    things.call("patch", f"/v1/rows/things/{row_id}", json={"owner_id": ada["id"]})
    expect(owner.locator(".cell")).to_have_text(ada["email"])
    save_screenshot(page, "grid-users")


def test_a_range_is_copied_and_pasted(window: Callable[..., Page], things: Things, browser_errors: list[str]) -> None:
    ids = [things.add(name=name, size=0) for name in ("a", "b", "c")]
    page = window()
    things.open(page)
    cell(page, ids[0], "name").focus()
    paste(page, 'one\t1\n"t""w\to"\t\nthree\t-3\nfour\t4')
    expect(page.locator("#grid-status")).to_contain_text("2 of 4 rows pasted.")
    expect(cell(page, ids[2], "size").locator(".problem")).to_contain_text("Not pasted: -3")
    save_screenshot(page, "grid-paste-1280")
    fits(page)
    rows = [things.row(each) for each in ids]
    assert [(row["name"], row["size"]) for row in rows] == [("one", 1), ('t"w\to', None), ("c", 0)]
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator("td[aria-selected]")).to_have_count(4)
    copied = page.evaluate(
        """() => {
            const data = new DataTransfer();
            document.activeElement.dispatchEvent(
                new ClipboardEvent("copy", { clipboardData: data, bubbles: true, cancelable: true }));
            return data.getData("text/plain");
        }"""
    )
    assert copied == 'one\t1\n"t""w\to"\t'
    forget(browser_errors, 422)


def test_a_pasted_row_overwrites_no_other_change(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    # Only then, as the stream may still bring the row and its tag.
    page.evaluate("""id => document.addEventListener("paste", () => {
        document.querySelector(`tr[data-id='${id}']`).dataset.etag = '"older"';
    }, { capture: true, once: true })""", row_id)  # fmt: skip
    cell(page, row_id, "name").focus()
    paste(page, "mine")
    expect(cell(page, row_id, "name").locator(".problem")).to_contain_text("Not pasted: mine")
    assert things.row(row_id)["name"] == "a"
    forget(browser_errors, 412)


def test_changes_by_others_arrive(window: Callable[..., Page], things: Things, browser_errors: list[str]) -> None:
    ids = [things.add(name=name) for name in ("a", "b", "c")]
    page = window()
    things.open(page)
    things.call("patch", f"/v1/rows/things/{ids[0]}", json={"name": "by another"})
    expect(cell(page, ids[0], "name").locator(".cell")).to_have_text("by another")
    things.call("delete", f"/v1/rows/things/{ids[1]}")
    expect(page.locator(f"tr.gone[data-id='{ids[1]}']")).to_be_visible()

    cell(page, ids[2], "name").dblclick()
    page.get_by_label("name", exact=True).fill("mine")
    things.call("patch", f"/v1/rows/things/{ids[2]}", json={"name": "theirs"})
    expect(page.locator(f"tr[data-id='{ids[2]}'][data-stale]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("td.editing .problem")).to_contain_text('"theirs"')
    expect(page.get_by_label("name", exact=True)).to_have_value("mine")
    save_screenshot(page, "grid-live-1280")
    page.get_by_role("button", name="Keep theirs").click()
    things.add(name="d")
    expect(page.locator("#live-state")).to_contain_text("1 row added or changed elsewhere.")
    page.get_by_role("link", name="Show", exact=True).click()
    expect(page.get_by_text("d", exact=True)).to_be_visible()
    forget(browser_errors, 404, 412)


def test_a_button_below_the_suggestions_may_be_pressed_slowly(window: Callable[..., Page], things: Things) -> None:
    boxes = {name: things.call("post", "/v1/rows/boxes", json={"name": name})["id"] for name in ("Home", "Homework")}
    row_id = things.add(name="thing", box_id=boxes["Home"])
    page = window()
    things.open(page)
    cell(page, row_id, "box_id").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(2)
    page.keyboard.type("homew")
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(1)
    page.get_by_role("button", name="Save").hover()
    page.mouse.down()
    page.wait_for_timeout(500)  # the suggestion is taken meanwhile
    page.mouse.up()
    expect(page.locator("td.editing")).to_have_count(0)
    assert things.row(row_id)["box_id"] == boxes["Homework"]


def test_changes_before_the_stream_begins_arrive(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    changed, deleted = things.add(name="a"), things.add(name="b")

    def change_first(route: Route) -> None:
        things.call("patch", f"/v1/rows/things/{changed}", json={"name": "by another"})
        things.call("delete", f"/v1/rows/things/{deleted}")
        things.add(name="c")
        route.continue_()

    page = window()
    page.route("**/tables/things/live*", change_first, times=1)
    things.open(page, "1 row added or changed elsewhere. Show")  # "Live" may be too short to be noticed
    expect(cell(page, changed, "name").locator(".cell")).to_have_text("by another")
    expect(page.locator(f"tr.gone[data-id='{deleted}']")).to_be_visible()
    forget(browser_errors, 404)


def test_widths_of_columns_stay(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a wide thing")
    page = window()
    things.open(page)
    handle = page.get_by_role("separator", name="Width of name")
    handle.focus()
    before = cell(page, row_id, "name").evaluate("each => each.offsetWidth")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    after = cell(page, row_id, "name").evaluate("each => each.offsetWidth")
    assert after > before
    assert int(handle.get_attribute("aria-valuenow") or "0") == after
    page.reload()
    assert cell(page, row_id, "name").evaluate("each => each.offsetWidth") == after
    handle.hover()
    page.mouse.down()
    page.mouse.move(700, 300)
    page.mouse.up()
    assert json.loads(page.evaluate("Object.values(localStorage)[0]"))["name"] != after


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ids_leave_room_for_other_columns_on_a_phone(window: Callable[..., Page], things: Things, theme: str) -> None:
    row_id = things.add(name="a row with a name")
    page = window(width=NARROW, theme=theme)
    things.open(page)
    assert cell(page, row_id, "id").evaluate("each => each.offsetWidth") < NARROW / 3
    expect(cell(page, row_id, "name").locator("bdi")).to_be_in_viewport(ratio=1)
    save_screenshot(page, f"grid-ids-{NARROW}-{theme}")
    assert findings(page) == []


def test_the_rows_are_two_tabs_away(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    keyboard = Keyboard(page)
    keyboard.press("Tab")
    keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the rows")).to_be_focused()
    save_screenshot(page, "grid-skip")
    keyboard.press("Enter")
    expect(cell(page, row_id, "name")).to_be_focused()


def test_columns_are_hidden_and_skipped(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a", size=1)
    page = window(width=NARROW)
    things.open(page)
    first = page.locator("tr[data-id]").first
    assert first.evaluate("row => row.getBoundingClientRect().top") < 450, "the rows are on the first screen of a phone"
    expect(page.get_by_label("Filter (JSON)")).to_be_hidden()
    page.get_by_role("button", name="Filter", exact=True).click()
    save_screenshot(page, "grid-filter-390")
    heights = page.locator("[data-builder] :is(select, input, button)").evaluate_all(
        "all => all.map(e => e.offsetHeight)"
    )
    assert len(set(heights)) == 1, heights
    page.get_by_role("button", name="Columns and files").click()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Show size", exact=True).uncheck()
    page.get_by_label("Show id", exact=True).uncheck()
    save_screenshot(page, "grid-columns-390")
    fits(page)
    assert findings(page) == []
    page.keyboard.press("Escape")
    expect(cell(page, row_id, "size")).to_be_hidden()
    user = things.call("post", "/v1/users", json={"email": f"ada-{secrets.token_hex(4)}@example.com"})
    grid = page.url
    page.goto(grid.partition("tables/")[0] + f"auth/?find={user['email']}")
    expect(page.locator("td[data-label=Email]")).to_be_visible()
    expect(page.locator("td[data-label=Name]")).to_have_count(0)  # it is empty
    page.goto(grid)
    page.reload()
    expect(page.get_by_role("columnheader", name="size")).to_be_hidden()
    cell(page, row_id, "name").focus()
    page.keyboard.press("ArrowRight")
    expect(cell(page, row_id, "kind")).to_be_focused()
    page.get_by_role("button", name="Columns and files").click()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Show size", exact=True).check()
    expect(cell(page, row_id, "size")).to_be_visible()


def test_a_second_click_adds_no_second_row(window: Callable[..., Page], things: Things) -> None:
    page = window()
    things.open(page)
    page.get_by_role("button", name="New row").click()
    page.get_by_label("name text").fill("once")
    page.get_by_role("button", name="Insert").evaluate("button => { button.click(); button.click(); }")
    expect(page.locator("td[data-key=name]", has_text="once")).to_have_count(1)
    assert len(things.call("get", "/v1/rows/things")["data"]) == 1


def test_what_was_typed_is_saved_before_another_cell(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    first, second = things.add(name="a", size=1), things.add(name="b", size=2)
    page = window()
    things.open(page)
    cell(page, first, "name").dblclick()
    page.get_by_label("name", exact=True).fill("typed")
    cell(page, second, "size").dblclick()
    expect(page.get_by_label("size", exact=True)).to_be_focused()
    assert things.row(first)["name"] == "typed"
    page.get_by_label("size", exact=True).fill("-1")
    cell(page, first, "name").dblclick()
    expect(cell(page, second, "size").locator(".problem")).to_be_visible()
    expect(page.get_by_label("size", exact=True)).to_have_value("-1")
    forget(browser_errors, 422)


def test_a_cell_without_an_answer_keeps_what_was_typed(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    page.context.set_offline(True)
    cell(page, row_id, "name").dblclick()
    field = page.get_by_label("name", exact=True)
    field.fill("typed")
    field.press("Enter")
    expect(page.locator("td.editing .problem")).to_contain_text("cannot be reached")
    expect(field).to_have_value("typed")
    page.context.set_offline(False)
    cookies = page.context.cookies()
    page.context.clear_cookies(name="console_session")
    field.press("Enter")
    expect(page.locator("td.editing .problem")).to_contain_text("Your session has ended.")
    expect(field).to_have_value("typed")
    page.context.add_cookies(cookies)
    field.press("Enter")
    expect(page.locator("td.editing")).to_have_count(0)
    assert things.row(row_id)["name"] == "typed"
    browser_errors[:] = [each for each in browser_errors if "ERR_INTERNET_DISCONNECTED" not in each]


def test_a_condition_has_the_control_of_its_column(window: Callable[..., Page], things: Things) -> None:
    box = things.call("post", "/v1/rows/boxes", json={"name": "Blue box"})["id"]
    things.add(name="a", box_id=box, done=True, size=5)
    page = window()
    things.open(page)
    column, operator = page.get_by_label("Column", exact=True), page.get_by_label("Operator")
    value, where = page.get_by_label("Value"), page.get_by_label("Filter (JSON)")
    wanted: dict[str, Any] = {}
    for key, option, typed, operand in (
        ("box_id", "is", "blue", {"$eq": box}),
        ("done", "is", None, {"$eq": True}),
        ("size", "≥", "5", {"$gte": 5}),
        ("name", "one of (a, b)", "a, b", {"$in": ["a", "b"]}),
        ("kind", "is null", "", {"$null": True}),
        ("created_at", "is not null", "", {"$null": False}),
    ):
        column.select_option(key)
        operator.select_option(option)
        if typed is None:
            value.select_option("true")
        elif typed:
            value.fill(typed)
        else:
            expect(value).to_be_hidden()
        page.get_by_role("button", name="Add condition").click()
        wanted[key] = operand
        expect(where).to_have_value(json.dumps(wanted, separators=(",", ":")))
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("td[data-key=name] .cell")).to_have_text(["a"])
    column.select_option("seen")
    save_screenshot(page, "grid-builder")
    assert findings(page) == []


def test_a_condition_without_a_whole_value_is_not_added(window: Callable[..., Page], things: Things) -> None:
    page = window()
    things.open(page)
    where, value = page.get_by_label("Filter (JSON)"), page.get_by_label("Value")
    for key, typed in (("due", "12"), ("due", ""), ("size", ""), ("done", ""), ("box_id", "")):
        page.get_by_label("Column", exact=True).select_option(key)
        if typed:
            value.press_sequentially(typed)
        page.get_by_role("button", name="Add condition").click()
        expect(value).to_be_focused()
        expect(where).to_have_value("")
    page.get_by_label("Column", exact=True).select_option("due")
    value.fill("2026-12-01")
    page.get_by_role("button", name="Add condition").click()
    expect(where).to_have_value('{"due":{"$eq":"2026-12-01"}}')


def test_a_time_without_a_zone_is_in_utc(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    seen = cell(page, row_id, "seen")
    seen.focus()
    for typed, shown in (("2026-12-01 14:00:00", "14:00:00"), ("2026-12-01T15:30", "15:30:00")):
        paste(page, typed)
        expect(seen.locator(".cell")).to_have_text(f"2026-12-01 {shown}")
        assert things.row(row_id)["seen"] == f"2026-12-01T{shown}.000000Z"


def test_a_new_row_that_is_not_inserted_is_not_lost(window: Callable[..., Page], things: Things) -> None:
    box = things.call("post", "/v1/rows/boxes", json={"name": "Blue box"})["id"]
    page = window()
    things.open(page)
    dialog, asked = page.locator("#new-row"), []
    page.on("dialog", lambda each: (asked.append(each.type), each.dismiss()))
    page.get_by_role("button", name="New row").click()
    dialog.get_by_label("name").fill("typed")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("link", name="Logs").click()
    page.get_by_role("button", name="New row").click()
    assert asked == ["beforeunload"]
    expect(dialog.get_by_label("name")).to_have_value("typed")
    dialog.get_by_label("box_id").fill("blue")
    expect(dialog.locator("[role=option][aria-selected=true]")).to_have_text(f"Blue box {box}")
    dialog.get_by_label("box_id").press("Enter")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="New row").click()
    expect(dialog.get_by_label("name")).to_have_value("")
    dialog.get_by_label("name").fill("other")
    dialog.get_by_role("button", name="Insert").click()
    expect(page.locator("td[data-key=name]")).to_have_text(["other"])
    assert [row["box_id"] for row in things.call("get", "/v1/rows/things")["data"]] == [None], "not the box before"
    assert asked == ["beforeunload"], "an inserted row is saved"


def test_enter_adds_a_condition_and_shows_its_rows(window: Callable[..., Page], things: Things) -> None:
    for name in ("a", "b"):
        things.add(name=name)
    page = window()
    things.open(page)
    page.get_by_label("Filter (JSON)").fill('{"name":')
    page.get_by_label("Column", exact=True).select_option("name")
    page.get_by_label("Value").fill("b")
    page.get_by_label("Value").press("Enter")
    expect(page.get_by_label("Filter (JSON)")).to_have_value('{"name":')
    expect(page.get_by_label("Filter (JSON)")).to_be_focused()
    page.get_by_label("Filter (JSON)").fill("")
    page.get_by_label("Value").press("Enter")
    page.wait_for_url("**where=*")
    expect(page.locator("td[data-key=name] .cell")).to_have_text(["b"])


def test_the_browser_goes_back_to_the_previous_page(window: Callable[..., Page], things: Things) -> None:
    names = [f"{number:03}" for number in range(101)]
    for at in (0, 100):
        things.call("post", "/v1/rows/things", json=[{"name": name} for name in names[at : at + 100]])
    page = window()
    things.open(page)
    first = page.locator("td[data-key=name]").first
    for name in ("050", "100"):
        page.get_by_role("link", name="Next page").click()
        expect(first).to_have_text(name)
    for name in ("050", "000"):
        page.go_back()
        expect(first).to_have_text(name)
    expect(page.get_by_role("link", name="Next page")).to_be_visible()
