"""The console in a real browser: find a project, rename it, delete it; nothing breaks its own content policy."""

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browsing import NARROW, WIDE, in_a_browser, sign_in
from tests.serving import Up

pytestmark = in_a_browser


@pytest.fixture(params=[WIDE, NARROW], ids=["wide", "narrow"])
def page(request: pytest.FixtureRequest, window: Callable[..., Page]) -> Page:
    return window(width=request.param)


def made_over_the_api(served: Up) -> str:
    account = served.facts["account"]
    credentials = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    with httpx.Client(base_url=served.base_url) as client:
        token = client.post("/v1/auth/token", json=credentials).json()["access_token"]
        made = client.post("/v1/projects", headers={"Authorization": f"Bearer {token}"}, json={"name": "Browsed"})
        return str(made.json()["id"])


def test_an_operator_finds_renames_and_deletes_a_project(page: Page, served: Up) -> None:
    project_id = made_over_the_api(served)

    sign_in(page, served)
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
