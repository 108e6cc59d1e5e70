"""The diagram of a schema: tables right of those they refer to, unrelated ones below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables.pages import schema_tables

_CHARACTER: Final = 7.3
_HEAD: Final = 32
_LINE: Final = 22
_PADDING: Final = 12
_GAP: Final = 28
_BETWEEN: Final = 90
_MAX_COLUMNS: Final = 14
"""Of a box; columns with references are always shown."""
_UNRELATED_PER_ROW: Final = 4


@dataclass(frozen=True, slots=True)
class Relation:
    table: str
    column: str
    to: str
    on_delete: str


@dataclass(slots=True)
class Box:
    name: str
    columns: list[tuple[str, str]]
    more: int
    x: int = 0
    y: int = 0
    width: int = 0
    links: list[str] = field(default_factory=list)

    @property
    def height(self) -> int:
        return _HEAD + _LINE * (len(self.columns) + (self.more > 0)) + _PADDING

    @property
    def right(self) -> int:
        return self.x + self.width

    @property
    def lines(self) -> list[tuple[str, str, int]]:
        shown = [*self.columns, *([(f"and {self.more} more", "")] if self.more else [])]
        return [(name, type_, self.y + _HEAD + _LINE * (at + 1) - 4) for at, (name, type_) in enumerate(shown)]


@dataclass(frozen=True, slots=True)
class Picture:
    boxes: list[Box]
    paths: list[str]
    width: int
    height: int


@require_safe
@page("schema")
def diagram(console: Console) -> HttpResponse:
    tables = schema_tables(console)
    relations = relations_of(tables)
    return console.render("console/diagram.html", {"picture": picture_of(tables, relations), "relations": relations})


def relations_of(tables: Mapping[str, Any]) -> list[Relation]:
    return [
        Relation(name, column, definition["to"], definition.get("on_delete", "restrict"))
        for name, table in tables.items()
        for column, definition in table["columns"].items()
        if definition["type"] == "reference"
    ]


def picture_of(tables: Mapping[str, Any], relations: Sequence[Relation]) -> Picture:
    boxes = {name: _box(name, table) for name, table in tables.items()}
    for relation in relations:
        boxes[relation.table].links.append(relation.to)
    linked = {name for each in relations for name in (each.table, each.to)}
    width = max((box.width for box in boxes.values()), default=0)
    bottom = right = 0
    for layer, names in enumerate(_layers([name for name in tables if name in linked], relations)):
        x, y = layer * (width + _BETWEEN) + _GAP, _GAP
        for name in names:
            box = boxes[name]
            box.x, box.y, box.width = x, y, width
            y += box.height + _GAP
        bottom, right = max(bottom, y), max(right, x + width)
    unrelated = [box for name, box in boxes.items() if name not in linked]
    for start in range(0, len(unrelated), _UNRELATED_PER_ROW):
        row = unrelated[start : start + _UNRELATED_PER_ROW]
        y = max(bottom, _GAP)
        for at, box in enumerate(row):
            box.x, box.y, box.width = at * (width + _GAP) + _GAP, y, width
            bottom, right = max(bottom, y + box.height + _GAP), max(right, box.right)
    paths = [_path(boxes[each.table], boxes[each.to], each.column) for each in relations]
    return Picture(list(boxes.values()), paths, right + _BETWEEN // 2, bottom)


def _box(name: str, table: Mapping[str, Any]) -> Box:
    columns = [(key, _type_text(definition)) for key, definition in table["columns"].items()]
    links = [each for each in columns if each[1].startswith("→")]
    others = [each for each in columns if each not in links][: max(0, _MAX_COLUMNS - len(links))]
    shown = [each for each in columns if each in links or each in others]
    longest = max([len(name) + 2, *(len(key) + len(type_) + 2 for key, type_ in shown)])
    return Box(name, shown, len(columns) - len(shown), width=int(longest * _CHARACTER) + 2 * _PADDING)


def _type_text(definition: Mapping[str, Any]) -> str:
    name = f"→ {definition['to']}" if definition["type"] == "reference" else definition["type"]
    return f"{name}?" if definition.get("null") else str(name)


def _layers(names: Sequence[str], relations: Sequence[Relation]) -> list[list[str]]:
    targets: dict[str, list[str]] = {name: [] for name in names}
    for each in relations:
        if each.table != each.to:
            targets[each.table].append(each.to)
    layers: list[list[str]] = []
    left = list(names)
    while left:
        waiting = set(left)
        layer = [name for name in left if not waiting.intersection(targets[name])] or [
            min(left, key=lambda name: len(waiting.intersection(targets[name])))
        ]
        layers.append(layer)
        left = [name for name in left if name not in layer]
    return layers


def _path(source: Box, target: Box, column: str) -> str:
    y1 = next(baseline for name, _, baseline in source.lines if name == column) - 5
    y2 = target.y + _HEAD // 2
    bend = _BETWEEN // 3 if target.x == source.x else _BETWEEN // 2
    x1, bent1 = (source.x, source.x - bend) if target.x < source.x else (source.right, source.right + bend)
    # Right of its source is a target in a cycle.
    x2, bent2 = (target.x, target.x - bend) if target.x > source.x else (target.right, target.right + bend)
    return f"M{x1} {y1} C{bent1} {y1} {bent2} {y2} {x2} {y2}"
