"""The guides: pages of `docs/`, served at `/docs/guides`, in the order of `docs/README.md`, by their path without
suffix (`reference/errors`). Names are looked up in a table and never used as paths."""

import posixpath
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

_INDEX: Final = "README"
_KINDS: Final = ("how-to", "tutorials", "reference", "explanation", _INDEX, "adr")
"""Of equal results, a search shows those of the first kind first."""
_FOR_CONTRIBUTORS: Final = "Change the code"
"""The heading of the index with pages that a search shows last."""
_ENTRY: Final = re.compile(r"^- \[([^\]]+)\]\(([\w/-]+)\.md\)", re.MULTILINE)
_SEARCHED: Final = ("inline", "fence", "code_block")
_SHELL: Final = re.compile(r"(cp|curl|docker|npm|pg_dump|pip|systemctl|manage\.py|\.venv/\S+|[A-Z_0-9]+=\S*) ?")


@dataclass(frozen=True)
class Entry:
    name: str
    title: str


@dataclass
class Heading:
    id: str
    title: str
    level: int
    text: str = ""
    """All text below it, up to the next heading."""


@dataclass(frozen=True)
class Guide:
    title: str
    html: str
    introduction: str
    headings: list[Heading]


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return _shown(request, _INDEX)


@require_safe
def guide(request: HttpRequest, name: str) -> HttpResponse:
    if name not in _files() or name == _INDEX:
        raise Http404
    return _shown(request, name)


@require_safe
def search_index(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"sections": _index()}, headers={"Cache-Control": "max-age=600"})


def _shown(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "guide.html", {"guide": read(name), "name": name, "sections": sections()})


@cache
def sections() -> list[tuple[str, list[Entry]]]:
    """The navigation: each heading of the index, with its pages."""
    parts = _files()[_INDEX].read_text().split("\n## ")[1:]
    return [(part.partition("\n")[0], [Entry(name, title) for title, name in _ENTRY.findall(part)]) for part in parts]


@cache
def _index() -> list[dict[str, str | bool]]:
    found: list[dict[str, str | bool]] = []
    last = {entry.name for entry in dict(sections())[_FOR_CONTRIBUTORS]}
    for name in sorted(_files(), key=lambda name: _KINDS.index(name.partition("/")[0])):
        page = read(name)
        url = _url(name)
        of_page: dict[str, str | bool] = {"page": page.title, "is_last": name in last}
        found.append({**of_page, "title": page.title, "url": url, "text": page.introduction})
        found += [
            {**of_page, "title": each.title, "url": f"{url}#{each.id}", "text": each.text} for each in page.headings
        ]
    return found


@cache
def read(name: str) -> Guide:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlighted}).enable("table")
    tokens = parser.parse(_files()[name].read_text())
    title, introduction, headings = _outline(tokens, name)
    for token in tokens:
        if token.type == "code_block":
            token.type, token.info = "fence", _language(token.content)
        if align := token.attrs.pop("style", None):  # of a column; the content policy forbids inline styles
            token.attrSet("class", str(align).replace("text-align:", ""))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _target(str(child.attrGet("href")), name))
    _label_cells(tokens)
    return Guide(title, parser.renderer.render(tokens, parser.options, {}), introduction, headings)


def _outline(tokens: list[Token], name: str) -> tuple[str, str, list[Heading]]:
    """Title, introduction and headings of a page, which get ids."""
    title, introduction, headings, ids = name, "", list[Heading](), set[str]()
    for before, token in zip(tokens, tokens[1:], strict=False):
        if before.type == "heading_open":
            text = _plain(token)
            heading_id = base = slugify(text)
            while heading_id in ids:
                heading_id = f"{base}-{len(ids)}"
            ids.add(heading_id)
            before.attrSet("id", heading_id)
            if before.tag == "h1":
                title = text
            else:
                headings.append(Heading(heading_id, text, int(before.tag[1])))
        elif token.type in _SEARCHED:
            text = " ".join(_plain(token).split())
            if headings:
                headings[-1].text = f"{headings[-1].text} {text}".strip()
            else:
                introduction = f"{introduction} {text}".strip()
    return title, introduction, headings


def _plain(token: Token) -> str:
    if token.children is None:
        return token.content
    return "".join(" " if each.type == "softbreak" else each.content for each in token.children)


def _language(code: str) -> str:
    if _SHELL.match(code):
        return "sh"
    return "json" if code.startswith(("{", '"', "[")) else "text"


def _highlighted(code: str, language: str, _: Any) -> str:
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def _label_cells(tokens: list[Token]) -> None:
    names: list[str] = []
    column = 0
    for token, inside in zip(tokens, tokens[1:], strict=False):
        match token.type:
            case "thead_open":
                names = []
            case "tr_open":
                column = 0
            case "th_open":
                names.append(_plain(inside))
            case "td_open":
                if names[column]:
                    token.attrSet("data-label", names[column])
                column += 1


def _target(href: str, name: str) -> str:
    path, _, anchor = href.partition("#")
    if "://" in path or not path.endswith(".md"):
        return href
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(name), path.removesuffix(".md")))
    return f"{_url(linked)}#{anchor}" if anchor else _url(linked)


def _url(name: str) -> str:
    return reverse("guides") if name == _INDEX else reverse("guide", args=[name])


@cache
def _files() -> dict[str, Path]:
    root = Path(settings.BASE_DIR) / "docs"
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.md"))}
