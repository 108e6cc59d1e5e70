"""The parts of a schema document with a form, and how a draft, which may hold anything, is changed there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from platform_site.developer_console.forms import invalid
from platform_site.http import exact_json
from rows.schema.document_renames import mapping

CONTAINERS: Final[Mapping[str, str]] = {
    "column": "columns",
    "unique": "unique",
    "index": "indexes",
    "rule": "rules",
    "condition": "conditions",
    "check": "checks",
}
LISTS: Final = frozenset({"unique", "index"})
KINDS: Final = frozenset({*CONTAINERS, "table", "users"})


@dataclass(frozen=True, slots=True)
class Part:
    """The path of a part. A new one has no name; a unique's or index's name is its position."""

    kind: str
    table: str = ""
    name: str = ""
    action: str = ""
    """Of a rule, whose name is its role."""

    @property
    def code(self) -> str:
        return exact_json.dumps([self.kind, self.table, self.name, self.action])

    @property
    def is_new(self) -> bool:
        return self.kind != "table" and not self.name

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to it; empty for a new part."""
        if self.kind == "users":
            return ("users", self.name)
        if self.kind == "table":
            return ("tables", self.table)
        if not self.name:
            return ()
        own = (self.name, self.action) if self.kind == "rule" else (self.name,)
        return ("tables", self.table, CONTAINERS[self.kind], *own)


def title_of(document: Any, part: Part) -> str:
    if part.kind == "table":
        return f"table {part.table}"
    kind = {"users": "fields of users, role", "unique": "unique constraint"}.get(part.kind, part.kind)
    value = value_of(document, part)
    name = ", ".join(map(str, value)) if part.kind in LISTS and isinstance(value, list) else part.name
    where = f" of {part.table}" if part.table else ""
    return f"{kind} {name} {part.action}".strip() + where if part.name else f"new {kind}{where}"


def part_of(code: str) -> Part:
    try:
        kind, table, name, action = exact_json.loads(code)
    except (ValueError, TypeError):
        kind, table, name, action = "", "", "", ""
    if kind not in KINDS or not all(isinstance(each, str) for each in (table, name, action)):
        raise invalid("part", "The schema has no such part.")
    return Part(kind, table, name, action)


def table_of(document: Any, name: str) -> dict[str, Any]:
    return mapping(mapping(mapping(document).get("tables")).get(name))


def value_at(document: Any, path: tuple[str, ...]) -> Any:
    found = document
    for key in path:
        if isinstance(found, list):
            found = found[int(key)] if key.isascii() and key.isdigit() and int(key) < len(found) else None
        else:
            found = mapping(found).get(key)
    return found


def value_of(document: Any, part: Part) -> Any:
    return value_at(document, part.path) if part.path else None


def put(document: dict[str, Any], part: Part, name: str, action: str, value: Any) -> Part:
    """Write a part under its name, perhaps a new one, keeping the order. Returns its new path."""
    holder, key = _holder(document, part)
    if part.kind in LISTS:
        found = holder.get(key)
        holder[key] = items = found if isinstance(found, list) else []
        if part.name and value_at(items, (part.name,)) is not None:
            items[int(part.name)] = value
            return part
        items.append(value)
        return Part(part.kind, part.table, str(len(items) - 1))
    holder[key] = entries = mapping(holder.get(key))
    if part.kind == "rule":
        return _put_rule(entries, part, name, action, value)
    if name != part.name and name in entries:
        raise invalid("part_name", f"There is a {part.kind} {name} already.")
    holder[key] = {name if old == part.name else old: each for old, each in entries.items()} | {name: value}
    return Part(part.kind, part.table, name)


def _holder(document: dict[str, Any], part: Part) -> tuple[dict[str, Any], str]:
    """The object with the parts of this kind, and their key there."""
    if part.kind == "users":
        return document, "users"
    found: Any = mapping(document.get("tables")).get(part.table)
    if not isinstance(found, dict):
        raise invalid("part", f"The draft has no table {part.table}.")
    return found, CONTAINERS[part.kind]


def _put_rule(roles: dict[str, Any], part: Part, role: str, action: str, value: Any) -> Part:
    if (role, action) != (part.name, part.action):
        if action in mapping(roles.get(role)):
            raise invalid("part_action", f"The role {role} has a rule for {action} already.")
        _drop_rule(roles, part)
    roles[role] = actions = mapping(roles.get(role))
    actions[action] = value
    return Part("rule", part.table, role, action)


def _drop_rule(roles: dict[str, Any], part: Part) -> None:
    actions = mapping(roles.get(part.name))
    actions.pop(part.action, None)
    if not actions:
        roles.pop(part.name, None)


def remove(document: dict[str, Any], part: Part) -> None:
    if part.kind == "table":
        mapping(document.get("tables")).pop(part.table, None)
        return
    holder, key = _holder(document, part)
    found = holder.get(key)
    if isinstance(found, list) and value_at(found, (part.name,)) is not None:
        del found[int(part.name)]
    elif part.kind == "rule":
        _drop_rule(mapping(found), part)
    else:
        mapping(found).pop(part.name, None)
    if found in ({}, []) and part.kind != "column":
        del holder[key]
