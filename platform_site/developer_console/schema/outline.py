from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from platform_site.developer_console.schema.parts import CONTAINERS, Part, table_of, title_of, value_of
from platform_site.http import exact_json
from rows.schema.document_renames import mapping

LINKS: Final = ("reference", "user")
_MAX_LENGTH: Final = 160
_HIDDEN_KEYS: Final = ("type", "null", "renamed_from")


@dataclass(slots=True)
class Line:
    part: Part
    title: str
    summary: str = ""
    mark: str = ""
    """`new` or `changed`, against the current schema."""
    errors: list[str] = field(default_factory=list)
    full_title: str = ""
    """With kind and table, for screen readers."""


@dataclass(slots=True)
class Group:
    title: str
    new: Part
    button: str
    lines: list[Line] = field(default_factory=list)


def groups_of(draft: Any, current: Any, name: str, problems: Sequence[dict[str, Any]]) -> list[Group]:
    table = table_of(draft, name)
    columns = mapping(table.get("columns"))
    plain = Group("Columns", Part("column", name), "Add a column")
    relations = Group("Relations", Part("column", name, action="relation"), "Add a relation")
    groups = [plain, relations]
    for key, column in columns.items():
        group = relations if mapping(column).get("type") in LINKS else plain
        group.lines.append(Line(Part("column", name, key), key, _column(mapping(column))))
    lists = (("unique", "Unique constraints", "Add a unique constraint"), ("index", "Indexes", "Add an index"))
    for kind, title, adding in lists:
        entries = table.get(CONTAINERS[kind])
        lines = [
            Line(Part(kind, name, str(index)), _list_text(entry))
            for index, entry in enumerate(entries if isinstance(entries, list) else [])
        ]
        groups.append(Group(title, Part(kind, name), adding, lines))
    rules = [
        Line(Part("rule", name, role, action), f"{role}: {action}", _text(rule) if rule else "all rows and columns")
        for role, actions in mapping(table.get("rules")).items()
        for action, rule in mapping(actions).items()
    ]
    groups.append(Group("Rules", Part("rule", name), "Add a rule", rules))
    for kind, title in (("condition", "Named conditions"), ("check", "Checks")):
        found = mapping(table.get(CONTAINERS[kind]))
        lines = [Line(Part(kind, name, key), key, _text(value)) for key, value in found.items()]
        groups.append(Group(title, Part(kind, name), f"Add a {kind}", lines))
    _finish([line for group in groups for line in group.lines], draft, current, problems)
    return groups


def user_fields(draft: Any, current: Any, problems: Sequence[dict[str, Any]]) -> Group:
    lines = [
        Line(Part("users", name=role), role, _list_text(fields))
        for role, fields in mapping(mapping(draft).get("users")).items()
    ]
    _finish(lines, draft, current, problems)
    return Group("Visible fields of users", Part("users"), "Add a role", lines)


def tables_of(draft: Any, current: Any, problems: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for name, table in mapping(mapping(draft).get("tables")).items():
        before = mapping(mapping(current).get("tables")).get(name)
        mark = "" if before == table else "changed" if before or mapping(table).get("renamed_from") else "new"
        is_wrong = any(is_inside(each["field"], ("tables", name)) for each in problems)
        found.append({"name": name, "part": Part("table", name), "mark": mark, "is_wrong": is_wrong})
    return found


def _column(column: dict[str, Any]) -> str:
    words = [str(column.get("type")) + ("?" if column.get("null") else "")]
    if "to" in column:
        words.append(f"→ {column['to']}")
    words += [
        f"{key} {value if isinstance(value, str) else exact_json.dumps(value)}"
        for key, value in column.items()
        if key not in (*_HIDDEN_KEYS, "to")
    ]
    return _cut(", ".join(words))


def _text(value: Any) -> str:
    return _cut(exact_json.dumps(value))


def _list_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else _text(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"


def _finish(lines: list[Line], draft: Any, current: Any, problems: Sequence[dict[str, Any]]) -> None:
    for line in lines:
        part, before = line.part, value_of(current, line.part)
        line.full_title = title_of(draft, part)
        now = value_of(draft, part)
        is_renamed = isinstance(now, dict) and "renamed_from" in now
        line.mark = "" if before == now else "changed" if before is not None or is_renamed else "new"
        line.errors = [each["message"] for each in problems if is_inside(each["field"], part.path)]


def is_inside(path: str, path_of_part: tuple[str, ...]) -> bool:
    """Whether an error's path, such as `document.tables.notes.columns.title.type`, is at or below that of a part."""
    wanted = ".".join(("document", *path_of_part))
    return path == wanted or path.startswith(f"{wanted}.")
