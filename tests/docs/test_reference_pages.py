"""Pages that list what the code has: nothing is missing, nothing is invented, no link leads nowhere."""

import re
from pathlib import Path

import pytest

from tests import invariants
from tests.serving import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def test_the_page_of_errors_has_every_code_with_its_status() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", page, re.MULTILINE)
    documented = {code: {int(status) for status in statuses.split(",")} for code, statuses in rows}
    assert documented == invariants.CODES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_or_another_page_leads_to_each_page() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
        if "://" not in target
    }
    assert [page for page in PAGES if page.name != "README.md" and page not in linked] == []
