"""Schemas that the control database has forgotten, as an operator sees them and lets go of one, in both themes."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from playwright.sync_api import Page, expect

from platform_site.embedded.data_dir import Layout, region_database
from platform_site.identity import ids
from tests.support.browser import NARROW, WIDE, in_a_browser, save_screenshot, sign_in
from tests.support.browser import browser as browser  # fixtures
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import window as window
from tests.support.service import Up

pytestmark = in_a_browser

REGION = "eu-west-1"


@pytest.fixture
def region(served: Up) -> "Iterator[psycopg.Connection[tuple[object, ...]]]":
    layout = Layout(served.data_dir)
    with psycopg.connect(layout.postgres_url(region_database(REGION)), autocommit=True) as connection:
        yield connection


def test_an_operator_sees_them_and_lets_go_of_one(
    window: Callable[..., Page],
    served: Up,
    region: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    address = f"{served.base_url}/admin/orphaned-schemas/"
    page = window()
    sign_in(page, served)
    page.get_by_role("link", name="Orphaned schemas").click()
    expect(page.get_by_text("None: every schema has its environment.")).to_be_visible()
    save_screenshot(page, "orphaned-schemas-none")
    forgotten = [f"env_{ids.new('env')[4:].replace('01', '00', 1)}" for _ in range(2)]
    for each in forgotten:
        region.execute(f'CREATE SCHEMA "{each}"')
        region.execute(f'CREATE TABLE "{each}".notes AS SELECT 1 AS n')
    for width, theme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")):
        page = window(width=width, theme=theme)
        sign_in(page, served)
        page.goto(address)
        for each in forgotten:
            expect(page.get_by_role("link", name=each)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (width, theme)
        save_screenshot(page, f"orphaned-schemas-{width}-{theme}")
        page.get_by_role("button", name=f"Drop the schema of {forgotten[0]}").click()
        expect(page.get_by_text("permanently deletes")).to_be_visible()
        save_screenshot(page, f"orphaned-schemas-asked-{width}-{theme}")
    page.locator("input[name=typed]").fill(forgotten[1])
    expect(page.get_by_role("button", name="Drop the schema")).to_be_disabled()
    page.locator("input[name=typed]").fill(forgotten[0])
    page.get_by_role("button", name="Drop the schema").click()
    expect(page.get_by_text(f"The schema of {forgotten[0]} is dropped.")).to_be_visible()
    left = region.execute("SELECT nspname FROM pg_namespace WHERE nspname = ANY (%s)", [forgotten]).fetchall()
    assert left == [(forgotten[1],)]
    region.execute(f'DROP SCHEMA "{forgotten[1]}" CASCADE')
