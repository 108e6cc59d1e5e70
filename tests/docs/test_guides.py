"""The guides as the service shows them: every page, no dead link, no way to another file."""

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from platform_site import guides
from tests.serving import ROOT

PAGES = sorted(path.stem for path in (ROOT / "docs").rglob("*.md"))


def shown(name: str) -> Any:
    return Client().get("/docs/guides" if name == "README" else f"/docs/guides/{name}")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_with_its_title_and_links_that_lead_on(name: str) -> None:
    answer = shown(name)
    page = unescape(answer.content.decode())
    title = re.match(r"# (.+)\n", next((ROOT / "docs").rglob(f"{name}.md")).read_text())
    assert answer.status_code == 200
    assert title is not None
    assert f"<title>{title[1]} · Guides</title>" in page
    main = page.split("<main", 1)[1]
    assert " style=" not in page, "the policy refuses it"
    ids = set(re.findall(r' id="([^"]+)"', page))
    for target in re.findall(r'href="([^"]+)"', main):
        if target.startswith("#"):
            assert target[1:] in ids, target
        elif target.startswith("/"):
            assert Client().get(target.partition("#")[0]).status_code == 200, target
        else:
            assert re.match(r"https?://", target), f"{target} leads nowhere from here"


def test_the_contents_lead_to_every_page() -> None:
    linked = {entry.name for _, entries in guides.sections() for entry in entries}
    assert linked == set(PAGES) - {"README"}


@pytest.mark.parametrize("name", ["README", "nothing", "..%2Fpyproject", "adr/0002-schema-changes", "rows.md", "%00"])
def test_what_is_no_page_is_404(name: str) -> None:
    assert Client().get(f"/docs/guides/{name}").status_code == 404


def test_the_policy_is_the_strict_one_and_pages_need_no_script() -> None:
    answer = shown("rows")
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert b"<script" not in answer.content
    assert re.search(rb'<td class="right"( data-label="[^"]+")?>', shown("performance").content), "figures stand right"


def test_a_cell_says_what_its_column_is_called() -> None:
    page = shown("errors").content.decode()
    row = page.split("<code>not_found</code>", 1)[1].partition("</tr>")[0]
    assert re.findall(r'<td[^>]* data-label="([^"]+)"', row) == ["Status", "It means", "What to do"]
