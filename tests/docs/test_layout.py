"""Rules for every page: its kind, its length, its lines."""

import re
from pathlib import Path

import pytest

from tests.support.service import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
KINDS = {"tutorials", "how-to", "reference", "explanation", "adr"}
MAX_WORDS = 35_000


def outside_code(page: Path) -> list[str]:
    parts = re.split(r"^ *```.*$", page.read_text(), flags=re.MULTILINE)
    return [line for part in parts[::2] for line in part.splitlines() if not line.startswith("    ")]


def test_every_page_is_of_one_kind() -> None:
    assert {page.relative_to(DOCS).parts[0] for page in DOCS.rglob("*.md")} == {*KINDS, "README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_outside_tables_have_at_most_120_characters(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_all_pages_together_have_at_most_so_many_words() -> None:
    lines = [line for page in PAGES for line in outside_code(page)]
    assert len([word for line in lines for word in line.split() if re.search(r"\w", word)]) <= MAX_WORDS
