"""The guides as the service shows them: every page, every link, the search index, and no other file."""

import json
import re
from functools import cache
from html import unescape
from typing import Any

import pytest
from django.test import Client

from platform_site import guides
from tests.support.service import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))


def shown(name: str) -> Any:
    return Client().get("/docs/guides" if name == "README" else f"/docs/guides/{name}")


@cache
def fetched(path: str) -> tuple[int, str]:
    answer: Any = Client().get(path)
    return answer.status_code, answer.content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_its_title_and_no_dead_link(name: str) -> None:
    answer = shown(name)
    page = unescape(answer.content.decode())
    title = re.match(r"# (.+)\n", (DOCS / f"{name}.md").read_text())
    assert answer.status_code == 200
    assert title is not None
    assert f"<title>{title[1].replace('`', '')} · Guides</title>" in page
    assert " style=" not in page, "the policy refuses it"
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="([^"]+)"', page.split("</header>", 1)[1]):
        if target.startswith("#"):
            assert target[1:] in ids, target
        elif target.startswith("/"):
            path, _, anchor = target.partition("#")
            status, linked = fetched(path)
            assert status == 200, target
            assert not anchor or f' id="{anchor}"' in linked, target
        else:
            assert re.match(r"https?://", target), f"{target} leads nowhere from here"


def test_the_contents_lead_to_every_page() -> None:
    linked = {entry.name for _, entries in guides.sections() for entry in entries}
    assert linked == set(PAGES) - {"README"}


@pytest.mark.parametrize(
    "name",
    ["README", "nothing", "..%2Fpyproject", "../pyproject", "errors", "reference/errors.md", "deploy/env", "%00"],
)
def test_other_names_are_404(name: str) -> None:
    assert Client().get(f"/docs/guides/{name}").status_code == 404


def test_the_policy_is_the_strict_one_and_scripts_are_files() -> None:
    answer = shown("reference/filters")
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert re.findall(rb"<script[^>]*>", answer.content) == [b'<script src="/static/platform_site/guides.js" defer>']
    numbers = shown("explanation/performance").content
    assert re.search(rb'<td class="right"( data-label="[^"]+")?>', numbers), "numbers are aligned right"


def test_a_cell_has_the_name_of_its_column() -> None:
    page = shown("reference/errors").content.decode()
    row = page.split("<code>not_found</code>", 1)[1].partition("</tr>")[0]
    assert re.findall(r'<td[^>]* data-label="([^"]+)"', row) == ["Status", "Meaning", "What to do"]


def test_code_is_highlighted() -> None:
    page = shown("how-to/functions").content.decode()
    assert '<code class="language-python"><span class="kn">import</span>' in page
    indented = shown("reference/errors").content.decode()
    assert '<code class="language-json">' in indented, "code without a language is recognised"


def test_the_search_index_has_every_section_of_every_page() -> None:
    found = json.loads(Client().get("/docs/guides/search.json").content)["sections"]
    by_url = {each["url"]: each for each in found}
    assert len(by_url) == len(found)
    kinds = [url.removeprefix("/docs/guides/").partition("/")[0] for url in by_url if url.startswith("/docs/guides/")]
    assert list(dict.fromkeys(kinds)) == ["how-to", "tutorials", "reference", "explanation", "adr"]
    assert {url.partition("#")[0] for url in by_url} == {
        "/docs/guides" if name == "README" else f"/docs/guides/{name}" for name in PAGES
    }
    last = {url.removeprefix("/docs/guides/").partition("#")[0] for url, each in by_url.items() if each["is_last"]}
    assert {name for name in last if not name.startswith("adr/")} == {"how-to/extend", "explanation/architecture"}
    assert len([name for name in last if name.startswith("adr/")]) == 5
    roles = by_url["/docs/guides/reference/rules#roles"]
    assert (roles["page"], roles["title"]) == ("Rules", "Roles")
    assert "treat anonymous as everyone" in roles["text"]
    assert by_url["/docs/guides/reference/limits#rate-limits"]["text"].startswith("Windows are fixed")
