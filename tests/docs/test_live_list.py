"""docs/how-to/live-list.md: its page shows every change, in a browser, across a cut connection."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from tests.support.browser import in_a_browser
from tests.support.live_changes import App
from tests.support.pages import page_server
from tests.support.service import Up

pytestmark = in_a_browser

GUIDE = Path(settings.BASE_DIR, "docs/how-to/live-list.md")


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    """Its tasks have the columns of the guide."""
    app = App(served)
    columns = {"title": {"type": "text"}, "done": {"type": "boolean", "default": False}, "owner": {"type": "user"}}
    rules = {"user": {"read": {"where": {"owner_id": "$user.id"}}}}
    document = app.ok("owner", "GET", "/schema")["document"]
    document["tables"] = {"tasks": {"columns": columns, "rules": rules}}
    confirm = [f"drop table {name}" for name in ("members", "notes", "posts", "teams")]
    confirm += [f"drop column tasks.{name}" for name in ("amount", "rank", "secret")]
    app.ok("owner", "PUT", "/schema", document=document, confirm=confirm)
    yield app
    app.close()


def test_the_page_shows_every_change(served: Up, app: App, window: Callable[..., Page]) -> None:
    [html] = re.findall(r"```html\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(html.splitlines()) <= 50
    token = app.clients["ada"].headers["Authorization"].removeprefix("Bearer ")
    given = f"<script>const base = {served.base_url!r}, token = {token!r}</script>"
    first = app.put("tasks", title="First", owner_id=app.users["ada"])
    with page_server('<link rel="icon" href="data:,">' + given + html) as origin:
        path = f"/projects/{app.project_id}/environments/{app.environment}"
        app.ok("owner", "PATCH", path, allowed_origins=[origin])
        page = window()
        page.goto(f"{origin}/")
        follow(page, app, first)


def follow(page: Page, app: App, first: Any) -> None:
    items = page.locator("li")
    expect(items).to_have_text(["First"])
    app.put("tasks", title="Bob's", owner_id=app.users["bob"])
    second = app.put("tasks", title="<b>Second</b>", owner_id=app.users["ada"])
    expect(items).to_have_text(["First", "<b>Second</b>"])
    app.change("tasks", first["id"], done=True)
    expect(items).to_have_text(["<b>Second</b>"])

    page.context.set_offline(True)
    app.change("tasks", second["id"], title="While offline")
    page.wait_for_timeout(1_000)
    page.context.set_offline(False)
    expect(items).to_have_text(["While offline"])
    app.put("tasks", title="Again", owner_id=app.users["ada"])
    expect(items).to_have_text(["While offline", "Again"])
