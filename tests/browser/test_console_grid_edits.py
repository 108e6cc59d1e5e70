"""Changes in the grid that touch several rows, and back: undo, fill down, pasted rows below the last one, the order of
columns."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.console_grid import Things, cell, forget, paste
from tests.support.console_grid import things as things

pytestmark = in_a_browser


def undo(page: Page, what: str) -> None:
    page.keyboard.press("Control+z")
    expect(page.locator("#grid-status")).to_contain_text(f"{what} undone.")


def test_edits_are_undone_in_their_order(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a", size=1, extra="1")
    page = window()
    things.open(page)
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    cell(page, row_id, "name").focus()
    page.keyboard.type("b")
    page.keyboard.press("Enter")
    expect(cell(page, row_id, "name").locator(".cell")).to_have_text("b")
    cell(page, row_id, "size").focus()
    page.keyboard.press("Delete")
    expect(cell(page, row_id, "size").locator(".cell")).to_have_text("null")
    cell(page, row_id, "extra").focus()
    page.keyboard.press("Delete")
    expect(cell(page, row_id, "extra").locator(".cell")).to_have_text("null")
    undo(page, "1 of 1 change")
    expect(cell(page, row_id, "extra")).to_be_focused()
    assert things.row(row_id)["extra"] == "1", "a JSON text stays one"
    page.get_by_role("button", name="Undo").click()
    expect(cell(page, row_id, "size").locator(".cell")).to_have_text("1")
    page.get_by_role("button", name="Undo").click()
    expect(cell(page, row_id, "name").locator(".cell")).to_have_text("a")
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    row = things.row(row_id)
    assert (row["name"], row["size"], row["extra"]) == ("a", 1, "1")


def test_a_null_that_is_only_looked_at_stays_null(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    cell(page, row_id, "size").focus()
    page.keyboard.press("F2")
    expect(page.locator("td.editing")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("td.editing")).to_have_count(0)
    expect(cell(page, row_id, "size").locator(".cell")).to_have_text("null")
    assert things.row(row_id)["size"] is None


def test_deleting_shows_its_progress_and_the_rows_after(window: Callable[..., Page], things: Things) -> None:
    for number in range(51):
        things.add(name=f"thing {number}")
    page, held = window(), []

    def hold_first(route: Route) -> None:
        if held or route.request.method != "DELETE":
            return route.continue_()
        held.append(route)

    page.route("**/tables/things/rows/*", hold_first)
    page.on("dialog", lambda dialog: dialog.accept())
    things.open(page)
    page.get_by_label("Select all rows").check()
    button = page.get_by_role("button", name="Delete selected")
    button.click()
    expect(page.locator("#grid-status")).to_have_text("Deleting row 1 of 50 …")
    expect(button).to_be_disabled()
    held[0].continue_()
    expect(page.locator("#grid-status.notice")).to_have_text("50 rows deleted.")
    expect(page.locator("tr[data-id]")).to_have_count(1)
    expect(page.get_by_text("About 1 row")).to_be_visible()
    expect(page.get_by_label("Select all rows")).not_to_be_checked()
    save_screenshot(page, "grid-deleted")


def test_an_undo_overwrites_no_change_of_others(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    cell(page, row_id, "name").focus()
    page.keyboard.type("mine")
    page.keyboard.press("Enter")
    expect(cell(page, row_id, "name").locator(".cell")).to_have_text("mine")
    things.call("patch", f"/v1/rows/things/{row_id}", json={"name": "theirs"})
    expect(cell(page, row_id, "name").locator(".cell")).to_have_text("theirs")
    cell(page, row_id, "name").focus()
    page.keyboard.press("Control+z")
    expect(cell(page, row_id, "name").locator(".problem")).to_contain_text('Not undone: "a"')
    expect(page.locator("#grid-status")).to_contain_text("0 of 1 change undone.")
    assert things.row(row_id)["name"] == "theirs"
    forget(browser_errors, 412)


def test_an_undo_in_a_field_is_the_fields_own(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    cell(page, row_id, "name").focus()
    page.keyboard.type("b")
    page.keyboard.press("Enter")
    expect(cell(page, row_id, "name").locator(".cell")).to_have_text("b")
    cell(page, row_id, "name").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("c")
    page.keyboard.press("Control+z")
    expect(page.locator("td.editing input")).to_have_value("b")
    assert things.row(row_id)["name"] == "b"


def test_a_range_is_filled_down(window: Callable[..., Page], things: Things, browser_errors: list[str]) -> None:
    ids = [things.add(name=name, size=size) for name, size in (("a", None), ("b", 2), ("c", 3))]
    page = window()
    things.open(page)
    cell(page, ids[0], "name").focus()
    page.keyboard.press("Control+d")
    expect(page.locator("#grid-status")).to_contain_text("Select more than one row")
    for key in ("Shift+ArrowRight", "Shift+ArrowDown", "Shift+ArrowDown"):
        page.keyboard.press(key)
    page.keyboard.press("Control+d")
    expect(page.locator("#grid-status")).to_contain_text("2 of 2 rows filled.")
    assert [(row["name"], row["size"]) for row in map(things.row, ids)] == [("a", None)] * 3
    undo(page, "2 of 2 changes")
    assert [(row["name"], row["size"]) for row in map(things.row, ids)] == [("a", None), ("b", 2), ("c", 3)]


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "dark"), (NARROW, "light")])
def test_pasting_below_the_last_row_creates_rows(
    window: Callable[..., Page], things: Things, browser_errors: list[str], width: int, theme: str
) -> None:
    row_id = things.add(name="a", size=1)
    page = window(width=width, theme=theme)
    things.open(page)
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    cell(page, row_id, "name").focus()
    paste(page, "one\t1\nnew\t2\ntoo long for this column\t3\nbad\t-4\nempty\t")
    expect(page.locator("#grid-status")).to_contain_text("3 of 5 rows pasted.")
    assert asked == ["4 of 5 pasted rows reach below the last row. Create 4 rows?"]
    expect(page.locator("#grid-status li")).to_have_count(2)
    expect(page.locator("#grid-status")).to_contain_text("Row 3: name:")
    expect(page.locator("#grid-status")).to_contain_text("Row 4: size:")
    save_screenshot(page, f"grid-created-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    expect(page.locator("#live-state")).to_have_text("Live")
    found = things.call("get", "/v1/rows/things?order=created_at")["data"]
    assert [(row["name"], row["size"]) for row in found] == [("one", 1), ("new", 2), ("empty", None)]
    new = found[1]["id"]
    cell(page, new, "size").focus()
    page.keyboard.press("Delete")
    expect(cell(page, new, "size").locator(".cell")).to_have_text("null")
    undo(page, "1 of 1 change")
    expect(cell(page, new, "size").locator(".cell")).to_have_text("2")
    undo(page, "3 of 3 changes")
    expect(page.locator("tbody tr[data-id]")).to_have_count(1)
    assert [(row["name"], row["size"]) for row in things.call("get", "/v1/rows/things")["data"]] == [("a", 1)]
    forget(browser_errors, 422)


def test_no_row_is_created_without_consent(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    page.once("dialog", lambda dialog: dialog.dismiss())
    cell(page, row_id, "name").focus()
    paste(page, "one\ntwo")
    expect(page.locator("#grid-status")).to_contain_text("1 reach below the last row and are not created.")
    assert len(things.call("get", "/v1/rows/things")["data"]) == 1
    cell(page, row_id, "name").focus()
    paste(page, "\n".join(["many"] * 502))
    expect(page.locator("#grid-status")).to_contain_text("use an import")
    assert len(things.call("get", "/v1/rows/things")["data"]) == 1


def test_the_order_of_columns_is_of_the_user_and_the_table(window: Callable[..., Page], things: Things) -> None:
    row_id = things.add(name="a", size=1)
    page = window(width=NARROW)
    things.open(page)

    def shown() -> list[str]:
        heads = page.locator("th[data-column]").evaluate_all("each => each.map(one => one.dataset.column)")
        cells = page.locator(f"tr[data-id='{row_id}'] td[data-key]").evaluate_all(
            "each => each.map(one => one.dataset.key)"
        )
        assert heads == cells
        return list(cells)

    assert shown()[:3] == ["id", "name", "size"]
    page.get_by_role("button", name="Columns and files").click()
    page.get_by_text("Columns", exact=True).click()
    up = page.get_by_role("button", name="Move size up")
    up.focus()
    page.keyboard.press("Enter")
    expect(up).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Move id down").click()
    assert shown()[:3] == ["size", "name", "id"]
    save_screenshot(page, "grid-order-390")
    fits(page)
    assert findings(page) == []
    page.reload()
    assert shown()[:3] == ["size", "name", "id"]
    cell(page, row_id, "size").focus()
    page.keyboard.press("ArrowRight")
    expect(cell(page, row_id, "name")).to_be_focused()
    page.evaluate("document.querySelector('table.grid').dataset.user = 'usr_other'")
    assert page.evaluate("stored('order', [])") == []
    page.goto(page.url.replace("tables/things", "tables/boxes").split("?")[0])
    assert page.locator("th[data-column]").first.get_attribute("data-column") == "id"


def test_a_refused_new_row_is_corrected_with_the_keyboard(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    page, problem = window(), "#new-row .problem:visible"
    things.open(page)
    page.get_by_role("button", name="New row").click()
    page.get_by_label("size integer").fill("-1")
    page.get_by_role("button", name="Insert").press("Enter")
    expect(page.locator(problem)).to_have_count(2)
    expect(page.get_by_label("name text")).to_be_focused()
    expect(page.get_by_label("name text")).to_have_accessible_description("Required.")
    assert findings(page) == []
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="New row").click()
    expect(page.locator(problem)).to_have_count(0)
    page.keyboard.type("corrected")
    page.keyboard.press("Enter")
    expect(page.locator("#grid-status")).to_have_text("The row is inserted.")
    expect(page.get_by_role("button", name="New row")).to_be_focused()
    undo(page, "1 of 1 change")
    assert things.call("get", "/v1/rows/things")["data"] == []
    forget(browser_errors, 422)


def test_a_new_row_that_the_page_does_not_show_is_linked(window: Callable[..., Page], things: Things) -> None:
    things.add(name="a", size=1)
    page = window()
    things.open(page)
    page.get_by_label("Filter (JSON)").fill('{"size": 1}')
    page.get_by_role("button", name="Show").click()
    page.get_by_role("button", name="New row").click()
    page.get_by_label("name text").fill("elsewhere")
    page.get_by_role("button", name="Insert").click()
    page.get_by_role("link", name="Show it").click()
    expect(page.locator("td[data-key=name] .cell")).to_have_text(["elsewhere"])


def test_a_refused_filter_offers_no_change_of_rows(window: Callable[..., Page], things: Things) -> None:
    page = window()
    things.open(page)
    expect(page.get_by_role("button", name="New row")).to_be_visible()
    page.get_by_label("Filter (JSON)").fill("{")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Correct the filter to see rows.")).to_be_visible()
    for name in ("New row", "Delete selected", "Undo"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_a_change_in_a_deleted_environment_is_not_about_permissions(
    window: Callable[..., Page], things: Things, browser_errors: list[str]
) -> None:
    row_id = things.add(name="a")
    page = window()
    things.open(page)
    page.route("**/tables/things/rows/*", lambda route: route.fulfill(status=404, content_type="text/html", body=""))
    cell(page, row_id, "name").focus()
    page.keyboard.type("b")
    page.keyboard.press("Enter")
    expect(page.locator("td.editing .problem")).to_contain_text("no longer exists")
    forget(browser_errors, 404)
