"""The page of docs/how-to/clients.md that shows a publishable key, in a browser, from an origin of its own."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import in_a_browser, owner
from tests.support.doc_examples import fenced
from tests.support.service import ROOT, Up

pytestmark = in_a_browser


def document() -> dict[str, Any]:
    """The tables of the two recipes that the page of clients names."""
    tables: dict[str, Any] = {}
    cookbook = (ROOT / "docs" / "how-to" / "rules-cookbook.md").read_text()
    for recipe in ("A blog that everyone can read", "A form that everyone can fill in"):
        section = cookbook.split(f"\n## {recipe}\n")[1]
        found = re.search(r"^```json\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        assert found
        tables |= json.loads(found[1])["tables"]
    return {"tables": tables}


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    """Serves `site.page` at every path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = self.path == "/"
            self.send_response(200 if is_page else 204)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if is_page:
                self.wfile.write(server.__dict__["page"].encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_page_shows_what_is_published_and_sends_a_letter(
    served: Up, window: Callable[..., Page], site: ThreadingHTTPServer
) -> None:
    api, token = owner(served)
    project = api.post("/v1/projects", token=token, json={"name": "Shop window", "region": "us-east-1"}).json
    try:
        environment = next(each["id"] for each in project["environments"] if each["name"] == "production")
        assert api.put("/v1/schema", token=token, environment=environment, json={"document": document()}).status == 200
        posts = [{"title": "Out", "body": "…", "published": True}, {"title": "Draft", "body": "…"}]
        assert api.post("/v1/rows/posts", token=token, environment=environment, json=posts).status == 201
        made = api.post("/v1/keys", token=token, environment=environment, json={"name": "page", "publishable": True})
        origin = f"http://127.0.0.1:{site.server_address[1]}"
        path = f"/v1/projects/{project['id']}/environments/{environment}"
        assert api.patch(path, token=token, json={"allowed_origins": [origin]}).status == 200
        [page] = [text for language, text in fenced("how-to/clients.md") if language == "html"]
        site.__dict__["page"] = page.replace("http://127.0.0.1:8000", served.base_url).replace(
            "pk_…", made.json["secret"]
        )

        opened = window()
        opened.goto(origin + "/")
        expect(opened.locator("#posts li")).to_have_text(["Out"])
        opened.fill("[name=email]", "ida@example.org")
        opened.fill("[name=text]", "Too small.")
        opened.click("button")
        expect(opened.get_by_text("Thank you.")).to_be_visible()
        [letter] = api.get("/v1/rows/letters", token=token, environment=environment).json["data"]
        assert (letter["text"], letter["form"]) == ("Too small.", made.json["id"])
    finally:
        api.delete(f"/v1/projects/{project['id']}", token=token)
