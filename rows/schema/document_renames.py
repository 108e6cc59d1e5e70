"""Renames in a document, which may be invalid: `renamed_from`, and uses of the old name in the same table."""

from collections.abc import Mapping
from typing import Any

from rows.schema.column_parser import COLUMN_NAME_ENDING


def mapping(value: Any) -> dict[str, Any]:
    """The object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def mark(part: dict[str, Any], old: str, new: str, current: Mapping[str, Any]) -> None:
    before = part.get("renamed_from", old if old in current else None)
    if before is None or before == new:
        part.pop("renamed_from", None)
    else:
        part["renamed_from"] = before


def table(document: dict[str, Any], old: str, new: str) -> None:
    for each in mapping(document.get("tables")).values():
        for column_ in mapping(mapping(each).get("columns")).values():
            if mapping(column_).get("to") == old:
                column_["to"] = new


def columns(table: dict[str, Any], new_names: Mapping[str, str]) -> None:
    """Rename columns (by their keys) where the rest of the table uses them."""
    found = mapping(table.get("columns"))
    names = dict(new_names)
    for key, new in new_names.items():
        if mapping(found.get(key) or found.get(new)).get("type") in ("reference", "user"):
            names[key + COLUMN_NAME_ENDING] = new + COLUMN_NAME_ENDING
    for key in ("unique", "indexes"):
        entries = table.get(key)
        if isinstance(entries, list):
            table[key] = [_keys(entry, names) for entry in entries]
    for key in ("conditions", "checks"):
        found = mapping(table.get(key))
        found.update({name: _condition(value, names) for name, value in found.items()})
    for actions in mapping(table.get("rules")).values():
        found = mapping(actions)
        found.update({action: _rule(rule, names) for action, rule in found.items()})


def _keys(entry: Any, names: Mapping[str, str]) -> Any:
    return [_key(each, names) for each in entry] if isinstance(entry, list) else entry


def _key(key: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(key, str):
        return key
    name, point, ending = key.removeprefix("-").partition(".")
    return "-" * key.startswith("-") + names.get(name, name) + point + ending


def _rule(rule: Any, names: Mapping[str, str]) -> Any:
    if isinstance(rule, list):
        return [_rule(each, names) for each in rule]
    if not isinstance(rule, dict):
        return rule
    changed = {
        key: _condition(value, names) if key in ("where", "check", "set") else value for key, value in rule.items()
    }
    if "columns" in changed:
        changed["columns"] = _keys(changed["columns"], names)
    return changed


def _condition(value: Any, names: Mapping[str, str], *, has_columns: bool = True) -> Any:
    """With own columns renamed, also at the start of a path. Keys inside a column's operand are no columns."""
    if isinstance(value, list):
        return [_condition(each, names, has_columns=has_columns) for each in value]
    if isinstance(value, dict):
        renamed = {}
        for key, operand in value.items():
            if key == "$column":
                renamed[key] = _key(operand, names)
                continue
            new_key = _key(key, names) if has_columns and not key.startswith("$") else key
            below_has_columns = has_columns and key in ("$and", "$or", "$not")
            renamed[new_key] = _condition(operand, names, has_columns=below_has_columns)
        return renamed
    if isinstance(value, str) and value.startswith("$old."):
        return f"$old.{_key(value.removeprefix('$old.'), names)}"
    return value
