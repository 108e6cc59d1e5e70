"""The console in a real browser: find a project, rename it, delete it; nothing breaks its own content policy."""

import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.serving import Up

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.served,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture(params=[1280, 390], ids=["wide", "narrow"])
def page(request: pytest.FixtureRequest) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": request.param, "height": 900})
        browser.close()


def made_over_the_api(served: Up) -> str:
    account = served.facts["account"]
    credentials = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    with httpx.Client(base_url=served.base_url) as client:
        token = client.post("/v1/auth/token", json=credentials).json()["access_token"]
        made = client.post("/v1/projects", headers={"Authorization": f"Bearer {token}"}, json={"name": "Browsed"})
        return str(made.json()["id"])


def test_an_operator_finds_renames_and_deletes_a_project(page: Page, served: Up) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    project_id = made_over_the_api(served)

    page.goto(f"{served.base_url}/admin/")
    page.locator("input[name=username]").fill(served.facts["admin"]["email"])
    page.locator("input[name=password]").fill(served.facts["admin"]["password"])
    page.locator("button[type=submit]").click()
    expect(page.get_by_text("Projects by region and plan")).to_be_visible()
    expect(page.locator("svg.plot").first).to_be_visible()
    expect(page.get_by_text(project_id).first).to_be_visible()  # in the trail

    page.goto(f"{served.base_url}/admin/projects/project/")
    page.locator("input[name=q]").fill(project_id)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Browsed").click()
    page.locator("input[name=name]").fill("Renamed in a browser")
    page.locator("button[name=_save]").click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()

    page.goto(f"{served.base_url}/admin/projects/project/{project_id}/delete/")
    expect(page.get_by_text("production").first).to_be_visible()
    page.locator("input[name=confirm]").fill("Renamed in a browser")
    page.get_by_role("button", name="Delete it for good").click()
    expect(page.get_by_text("was deleted successfully")).to_be_visible()
    page.goto(f"{served.base_url}/admin/projects/project/?q={project_id}")
    expect(page.get_by_text("Renamed in a browser")).to_have_count(0)
    assert complaints == []
