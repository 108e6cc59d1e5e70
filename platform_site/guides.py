"""The guides: the pages of `docs/` as the service shows them at `/docs/guides`.

The files are the source; what stands in the repository is what is read here. The order of the pages, and with it the
navigation, is that of `docs/README.md`. A page's name is looked up, never made into a path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

_INDEX: Final = "README"
_ENTRY: Final = re.compile(r"^- \[([^\]]+)\]\(([\w/-]+)\.md\)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """A page in the navigation: the address's last part (`rows-http`), and the words that lead there."""

    name: str
    title: str


@dataclass(frozen=True)
class Guide:
    """A page, ready to be shown."""

    title: str
    html: str


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return _shown(request, _INDEX)


@require_safe
def guide(request: HttpRequest, name: str) -> HttpResponse:
    if name not in _files() or name == _INDEX:
        raise Http404
    return _shown(request, name)


def _shown(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "guide.html", {"guide": read(name), "name": name, "sections": sections()})


@cache
def sections() -> list[tuple[str, list[Entry]]]:
    """The navigation: each heading of the index with its pages."""
    parts = _files()[_INDEX].read_text().split("\n## ")[1:]
    return [
        (part.partition("\n")[0], [Entry(_name(path), title) for title, path in _ENTRY.findall(part)]) for part in parts
    ]


@cache
def read(name: str) -> Guide:
    """The page `name` as HTML. Raw HTML in the source is text; links to other pages lead to their addresses."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_files()[name].read_text())
    title = next((each.content for each in _following(tokens, "h1")), name)
    for heading, content in zip(_opening(tokens), _following(tokens, "h1", "h2", "h3"), strict=True):
        heading.attrSet("id", slugify(content.content))
    for token in tokens:
        if align := token.attrs.pop("style", None):  # of a table's column; the content policy allows no style here
            token.attrSet("class", str(align).replace("text-align:", ""))
    _label(tokens)
    titles = {entry.name: entry.title for _, entries in sections() for entry in entries}
    for token in tokens:
        for link, text in zip(token.children or (), (token.children or ())[1:], strict=False):
            if link.type == "link_open":
                if text.content.endswith(".md"):  # a page that is called by its file in the repository
                    text.content = titles.get(_name(text.content.removesuffix(".md")), text.content)
                link.attrSet("href", _address(str(link.attrGet("href"))))
    return Guide(title, parser.renderer.render(tokens, parser.options, {}))


def _label(tokens: list[Token]) -> None:
    """Say at each cell of a table what its column is called: where there is no room for columns, cells stand below each
    other, and `pages.css` writes that before them."""
    names: list[str] = []
    column = 0
    for token, inside in zip(tokens, tokens[1:], strict=False):
        match token.type:
            case "thead_open":
                names = []
            case "tr_open":
                column = 0
            case "th_open":
                names.append("".join(each.content for each in inside.children or ()))
            case "td_open":
                if names[column]:
                    token.attrSet("data-label", names[column])
                column += 1


def _opening(tokens: list[Token]) -> Iterator[Token]:
    return (each for each in tokens if each.type == "heading_open" and each.tag in ("h1", "h2", "h3"))


def _following(tokens: list[Token], *tags: str) -> Iterator[Token]:
    """The text of each heading of these tags."""
    pairs = zip(tokens, tokens[1:], strict=False)
    return (content for each, content in pairs if each.type == "heading_open" and each.tag in tags)


def _address(target: str) -> str:
    """Where a link of a page leads: another page to its address, everything else as it is."""
    path, _, anchor = target.partition("#")
    if "://" in path or not path.endswith(".md"):
        return target
    name = _name(path.removesuffix(".md"))
    address = reverse("guides") if name == _INDEX else reverse("guide", args=[name])
    return f"{address}#{anchor}" if anchor else address


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted((Path(settings.BASE_DIR) / "docs").rglob("*.md"))}
