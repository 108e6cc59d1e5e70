"""Files of a table in a real browser: progress, rejected lines, downloads."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.browser import NARROW, WIDE, enter_console, in_a_browser, owner, save_screenshot
from tests.support.browser import browser as browser
from tests.support.browser import window as window
from tests.support.console_checks import findings, fits
from tests.support.keyboard import Keyboard
from tests.support.service import Up

pytestmark = in_a_browser
LINES = 12_000
"""More than one part of an upload has."""


@pytest.mark.parametrize(("width", "theme", "name"), [(WIDE, "light", "x.csv"), (NARROW, "dark", "x.ndjson")])
def test_a_large_file_is_imported_in_parts(
    window: Callable[..., Page], served: Up, tmp_path: Path, width: int, theme: str, name: str
) -> None:
    api, token = owner(served)
    environment = served.facts["environments"]["development"]
    columns = {"note": {"type": "text"}, "size": {"type": "integer"}}
    table = f"files{width}"
    before = api.get("/v1/schema", token=token, environment=environment).json["document"]
    document = {"tables": {**before["tables"], table: {"columns": columns}}}
    assert api.put("/v1/schema", token=token, environment=environment, json={"document": document}).status == 200
    notes = [(f"{index} {'text ' * 10}", "x" if index in (7, LINES - 2) else str(index)) for index in range(LINES)]
    file = tmp_path / name
    if name.endswith("csv"):
        file.write_text("note,size\n" + "".join(f'"{note}\n""more""",{size}\n' for note, size in notes))
        rejected = [2 + 2 * 7, 2 + 2 * (LINES - 2)]
    else:
        file.write_text(
            "".join(
                json.dumps({"note": note, "size": int(size) if size != "x" else size}) + "\n" for note, size in notes
            )
        )
        rejected = [8, LINES - 1]
    page = window(width=width, theme=theme)
    base = enter_console(page, served)
    page.goto(base.replace(served.facts["environments"]["production"], environment) + f"tables/{table}")
    if width == NARROW:
        page.get_by_role("button", name="Columns and files").click()
    page.get_by_label("CSV or NDJSON file").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    expect(page.locator("#file-progress label")).to_have_text(re.compile(r"[1-9]\d* rows checked, \d rejected"))
    expect(page.locator("#file-report")).to_contain_text("Nothing is imported yet: 2 rows would be rejected.")
    save_screenshot(page, f"import-check-{width}-{theme}")
    assert findings(page) == []
    expect(page.locator(".grid tbody tr[data-id]")).to_have_count(0)
    page.get_by_role("button", name=f"Import the {LINES - 2} valid rows").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("#file-progress label")).to_have_text(re.compile(r"[1-9]\d* rows imported, \d rejected"))
    save_screenshot(page, f"import-progress-{width}")
    expect(page.locator("#file-report")).to_contain_text(f"{LINES - 2} rows imported, 2 rejected.")
    for line in rejected:
        expect(page.locator("#file-report")).to_contain_text(f"Line {line}:")
    expect(page.locator(".grid tbody tr[data-id]")).to_have_count(50)
    expect(page.locator("#live-state")).to_have_text("Live")
    save_screenshot(page, f"import-report-{width}-{theme}")
    fits(page)
    assert findings(page) == []
    with page.expect_download() as reasons:
        page.get_by_role("button", name="Download all 2 reasons").click()
    assert reasons.value.suggested_filename == f"{name}.rejected.csv"
    with page.expect_download() as exported:
        page.get_by_role("link", name=f"Export {name[2:].upper()}", exact=True).click()
    text = Path(exported.value.path()).read_text()
    assert exported.value.suggested_filename == f"{table}.{name[2:]}"
    assert text.count("text text") == (LINES - 2) * 5
    expect(page.locator("#grid-status")).to_contain_text(f"{LINES - 2} rows exported.")


def test_a_file_without_rows_says_so(window: Callable[..., Page], served: Up, tmp_path: Path) -> None:
    page = window()
    page.goto(enter_console(page, served) + "tables/tasks")
    for text, said in (("", "The file is empty."), ("title\n", "The file has no rows.")):
        file = tmp_path / "tasks.csv"
        file.write_text(text)
        page.get_by_label("CSV or NDJSON file").set_input_files(file)
        page.get_by_role("button", name="Import").click()
        expect(page.locator("#file-report")).to_have_text(said)


def test_an_import_goes_on_after_too_many_requests(window: Callable[..., Page], served: Up, tmp_path: Path) -> None:
    page = window()
    page.goto(enter_console(page, served) + "tables/tasks")
    file = tmp_path / "tasks.csv"
    file.write_text("title\na\nb\nc\n")
    done = {"rejected": [], "skipped": [], "stopped": None, "retry_after": 0, "resume_at": 0}
    limited = {"inserted": 1, "stopped": "Too many requests.", "retry_after": 2, "resume_at": len("title\na\n")}
    answers = [{**done, "inserted": 3}, {**done, **limited}, {**done, "inserted": 2}]
    sent: list[bytes] = []

    def answer(route: Route) -> None:
        sent.append(route.request.post_data_buffer or b"")
        route.fulfill(json=answers[len(sent) - 1])

    page.route("**/import", answer)
    page.get_by_label("CSV or NDJSON file").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    expect(page.locator("#file-progress label")).to_have_text("1 row so far. Too many requests: goes on in 1 s")
    expect(page.locator("#file-report")).to_have_text("3 rows imported, 0 rejected.")
    assert [b"title\na\nb\nc\n" in each for each in sent] == [True, True, False]
    assert b"title\nb\nc\n" in sent[2], "the header and the rest"


def test_the_browser_asks_before_an_import_is_stopped(window: Callable[..., Page], served: Up, tmp_path: Path) -> None:
    page = window()
    page.goto(enter_console(page, served) + "tables/tasks")
    file = tmp_path / "tasks.ndjson"
    file.write_text("{}")
    sent: list[Route] = []
    asked: list[str] = []
    report = {"inserted": 1, "rejected": [], "skipped": [], "stopped": None}
    page.route("**/import", lambda route: sent.append(route))
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.get_by_label("CSV or NDJSON file").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    expect(page.locator("#file-progress label")).to_have_text("0 rows checked, 0 rejected")
    while not sent:
        page.wait_for_timeout(50)
    sent.pop().fulfill(json=report)
    expect(page.locator("#file-progress label")).to_have_text("0 rows imported, 0 rejected")
    while not sent:
        page.wait_for_timeout(50)
    page.get_by_role("link", name="Logs").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    assert asked == ["beforeunload"]
    sent.pop().fulfill(json=report)
    expect(page.locator("#file-report")).to_have_text("1 row imported, 0 rejected.")
    page.get_by_role("link", name="Logs").click()
    page.wait_for_url("**/logs")
    assert len(asked) == 1


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
def test_a_file_is_chosen_with_a_button_like_others(
    window: Callable[..., Page], served: Up, tmp_path: Path, width: int, theme: str
) -> None:
    file = tmp_path / "tasks-of-the-week.csv"
    file.write_text("title\n")
    page = window(width=width, theme=theme)
    page.goto(enter_console(page, served) + "tables/tasks")
    if width == NARROW:
        page.get_by_role("button", name="Columns and files").click()
    field = page.get_by_label("CSV or NDJSON file")
    Keyboard(page).to(field)
    field.set_input_files(file)
    assert field.evaluate("field => field.files[0].name") == file.name
    styles = """(element, part) => {
        const style = getComputedStyle(element, part);
        return [style.backgroundColor, style.color, style.font, style.border, style.borderRadius, style.padding];
    }"""
    other = page.get_by_role("button", name="Import")
    assert field.evaluate(styles, "::file-selector-button") == other.evaluate(styles, None)
    save_screenshot(page, f"import-chosen-{width}-{theme}")
    fits(page)
    assert findings(page) == []
