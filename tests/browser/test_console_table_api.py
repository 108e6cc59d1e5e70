"""The API page of a table in a real browser: its code is copied, and does what it says."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from functions.runtime.launch import deno
from tests.support.browser import browser as browser
from tests.support.browser import enter_console, in_a_browser, owner, save_screenshot
from tests.support.browser import window as window
from tests.support.service import Up

pytestmark = in_a_browser
ONE_BY_ONE = ("list", "get", "update", "delete", "insert")
RESULT = {"curl": "Sent by curl", "javascript": "Sent by JavaScript", "python": "Sent by Python"}


@contextmanager
def running(served: Up, language: str, source: str, directory: Path) -> Iterator["subprocess.Popen[str]"]:
    host = served.base_url.removeprefix("http://")
    (directory / "code.ts").write_text(source)
    program = [deno(), "run", "--no-check", f"--allow-net={host}", f"--allow-import={host}", "code.ts"]
    command = {
        "curl": ["bash", "-euo", "pipefail", "-c", source],
        "javascript": program,
        "python": [sys.executable, "-uc", source],
    }[language]
    process = subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("language", ["curl", "javascript", "python"])
def test_copied_code_works(window: Callable[..., Page], served: Up, tmp_path: Path, language: str) -> None:
    api, token = owner(served)
    environment = served.facts["environments"]["production"]
    list_id = api.get("/v1/rows/lists?limit=1", token=token, environment=environment).json["data"][0]["id"]
    owner_id = served.facts["app_users"][0]["id"]
    values = {"title": "Before", "list_id": list_id, "owner_id": owner_id}
    row = api.post("/v1/rows/tasks", token=token, environment=environment, json=values).json
    page = window(permissions=["clipboard-read", "clipboard-write"])
    base = enter_console(page, served)
    page.goto(base + "tables/tasks")
    page.get_by_label("Pages of tasks").get_by_role("link", name="API").click()
    title = {"curl": "curl", "javascript": "JavaScript", "python": "Python"}[language]
    page.get_by_label("Language").get_by_role("link", name=title).click()
    expect(page.get_by_label("Language").get_by_role("link", name=title)).to_have_attribute("aria-current", "page")
    save_screenshot(page, f"table-api-{language}")

    def copied(name: str) -> str:
        page.locator(f"[data-copy=snippet-{name}]").click()
        expect(page.locator(f"[data-copy=snippet-{name}]")).to_have_text("Copied")
        text: str = page.evaluate("navigator.clipboard.readText()")
        for shown, real in {
            "YOUR_SERVER_KEY": served.facts["server_key"],
            "YOUR_BROWSER_KEY": served.facts["server_key"],  # outside of a page
            "ROW_ID": row["id"],
            "LIST_ID": list_id,
            "OWNER_ID": owner_id,
            "Example": RESULT[language],
        }.items():
            text = text.replace(shown, real)
        return text

    setup = "" if language == "curl" else copied("setup")
    source = "\n".join([setup, *map(copied, ONE_BY_ONE)])
    with running(served, language, source, tmp_path) as process:
        printed = process.communicate(timeout=60)[0]
        assert process.returncode == 0, (source, printed)
    where = quote(f'{{"title": "{RESULT[language]}"}}')
    found = api.get(f"/v1/rows/tasks?where={where}", token=token, environment=environment).json["data"]
    assert [each["list_id"] for each in found] == [list_id]
    path = f"/v1/rows/tasks/{row['id']}"
    assert api.get(path, token=token, environment=environment).status == 404
    with running(served, language, f"{setup}\n{copied('changes')}", tmp_path) as process:
        assert process.stdout is not None
        wanted = "List the rows again" if language == "javascript" else "event: ready"
        assert any(wanted in line for line in process.stdout)
    for each in found:
        api.request("DELETE", f"/v1/rows/tasks/{each['id']}", token=token, environment=environment)


def test_the_code_of_the_types_is_checked_by_them(window: Callable[..., Page], served: Up, tmp_path: Path) -> None:
    page = window()
    base = enter_console(page, served)
    page.goto(base + "tables/tasks/api?language=javascript")
    setup, types = (page.locator(f"#snippet-{name}").inner_text() for name in ("setup", "types"))
    comment, _, typed = types.partition("\n")
    command = comment.removeprefix("// ").replace("YOUR_CI_KEY", served.facts["server_key"])
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    host = served.base_url.removeprefix("http://")

    def check(column: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "code.ts").write_text(
            f"{setup}\n{typed}\nawait typed.rows('tasks').list({{ where: {{ {column}: true }} }});"
        )
        program = [deno(), "check", f"--allow-import={host}", "code.ts"]
        return subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    right, wrong = check("done"), check("dnoe")
    assert right.returncode == 0, right.stderr
    assert "dnoe" in wrong.stderr
