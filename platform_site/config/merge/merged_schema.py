"""Three-way merge of schema documents that follows renames: tables and columns are matched by their origin in the base,
and names are merged like values. A name with different meanings is a conflict: rules that use it would change
silently."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from platform_site.config.merge.three_way import MISSING, Merger, Sides
from platform_site.identity.callers import EnvironmentRef
from rows.migrate import versions as schema_versions
from rows.schema import document_renames, parser
from rows.schema.model import EMPTY

Document = Mapping[str, Any]
MergeOne = Callable[[str, Sides, Sides], Any]
"""Merges one table or column: its path, its names (None where it is missing) and its bodies."""
_BY_NAME: Final = ("conditions", "checks")
_WHOLE: Final = ("id_prefix", "unique", "indexes")


@dataclass(frozen=True, slots=True)
class Names:
    tables: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By the base's table; keys of documents."""


def same_names(document: Document) -> Names:
    tables = document["tables"]
    return Names(
        {name: name for name in tables}, {name: {key: key for key in tables[name]["columns"]} for name in tables}
    )


def names_now(environment: EnvironmentRef, base: Document, version: int, then: Names | None) -> Names:
    """Follows renames of `environment` since `version`, whose names were `then`."""
    if not base["tables"]:
        return Names({})
    start = then or same_names(base)
    schema = parser.parse(schema_versions.version(environment, version).document) if version else EMPTY
    columns_then = {}
    for name, name_then in start.tables.items():
        table = schema.tables.get(name_then)
        by_key = {column.key: column.name for column in table.columns.values()} if table else {}
        keys_then = start.columns.get(name, {})
        columns_then[name] = {key: by_key[then] for key, then in keys_then.items() if then in by_key}
    tables, columns, schema = schema_versions.names_now(environment, version, schema, start.tables, columns_then)
    columns_now = {}
    for name, name_now in tables.items():
        by_name = {column.name: column.key for column in schema.tables[name_now].columns.values()}
        columns_now[name] = {key: by_name[now] for key, now in columns[name].items()}
    return Names(tables, columns_now)


def merge(merger: Merger, sides: Sides, our_names: Names, their_names: Names) -> tuple[dict[str, Any], Names]:
    """The document, and names of theirs in it: the next base."""
    columns: dict[str, dict[str, str]] = {}

    def merge_table(path: str, names: Sides, bodies: Sides) -> Any:
        if None in (names.ours, names.theirs) or (names.base is None and path in merger.resolve):
            body = merger.value(path, bodies)
            if names.theirs is not None:
                chosen = body.get("columns", {}) if isinstance(body, dict) else {}
                columns[names.theirs] = {key: key for key in bodies.theirs["columns"] if key in chosen}
            return body
        our_columns, their_columns = (known.columns.get(names.base, {}) for known in (our_names, their_names))
        body, columns[names.theirs] = _merge_columns(merger, path, bodies, our_columns, their_columns)
        return body

    bodies = sides.at("tables")
    ours, theirs = _without_resolved(merger, "schema.tables", bodies, our_names.tables, their_names.tables)
    tables, names = _merge_items(merger, "schema.tables", bodies, ours, theirs, merge_table)
    document: dict[str, Any] = {"tables": tables}
    users = merger.mapping("schema.users", sides.at("users", {}))
    if users:
        document["users"] = users
    return document, Names(names, columns)


def _merge_items(
    merger: Merger, path: str, sides: Sides, ours: Mapping[str, str], theirs: Mapping[str, str], merge_one: MergeOne
) -> tuple[dict[str, Any], dict[str, str]]:
    """Tables, or a table's columns, and names of theirs in the result. `ours` and `theirs`: names by the base's."""
    items: dict[str, Any] = {}
    names_in_result: dict[str, str] = {}
    for names in _matched_names(sides, ours, theirs):
        bodies = Sides(*(MISSING if name is None else side[name] for side, name in zip(sides, names, strict=True)))
        name = _merged_name(merger, path, names)
        body = merge_one(f"{path}.{name}", names, bodies)
        if body is None or body is MISSING:  # deleted, perhaps by a resolution
            continue
        if names.theirs is not None:
            names_in_result[names.theirs] = name
        if names.ours not in (None, name) and isinstance(body, dict):
            body = {**body, "renamed_from": names.ours}
        if name in items:
            merger.conflict(f"{path}.{name}", Sides(bodies.base, items[name], body))
        items[name] = body
    for name in _with_double_meaning(sides, ours, theirs):
        merger.conflict(f"{path}.{name}", Sides(None, sides.ours[name], sides.theirs[name]))
    return items, names_in_result


def _without_resolved(
    merger: Merger, path: str, sides: Sides, ours: Mapping[str, str], theirs: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """A resolution of a name with two meanings declares that both sides mean the same. So its origins no longer count:
    the name, and others that came from them, are new."""
    resolved = [name for name in _with_double_meaning(sides, ours, theirs) if f"{path}.{name}" in merger.resolve]
    merger.paths.update(f"{path}.{name}" for name in resolved)
    origins = {old for known in (ours, theirs) for old, now in known.items() if now in resolved}
    return (
        {old: now for old, now in ours.items() if old not in origins},
        {old: now for old, now in theirs.items() if old not in origins},
    )


def _with_double_meaning(sides: Sides, ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Names that both sides use for different things."""
    our_olds, their_olds = ({now: old for old, now in known.items()} for known in (ours, theirs))
    return [name for name in sides.ours if name in sides.theirs and our_olds.get(name) != their_olds.get(name)]


def _matched_names(sides: Sides, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[Sides]:
    """The names of each table or column on the three sides."""
    our_olds = {now: old for old, now in ours.items()}
    known_theirs = set(theirs.values())
    for name in sides.ours:
        old = our_olds.get(name)
        if old is not None:
            yield Sides(old, name, theirs.get(old))
        else:
            yield Sides(None, name, name if name in sides.theirs and name not in known_theirs else None)
    for old in sides.base:
        if old not in ours and old in theirs:
            yield Sides(old, None, theirs[old])
    for name in sides.theirs:
        if name not in known_theirs and not (name in sides.ours and name not in our_olds):
            yield Sides(None, None, name)


def _merged_name(merger: Merger, path: str, names: Sides) -> str:
    if None in names or names.ours == names.theirs:
        return str(names.theirs if names.ours is None else names.ours)
    name = merger.value(f"{path}.{names.ours}.name", names)
    return name if isinstance(name, str) else str(names.ours)


def _with_names(table: Document, names: Mapping[str, str]) -> Document:
    """The table with columns renamed where it uses them, so that another name is no change of what uses it."""
    changed = {key: name for key, name in names.items() if name and name != key}
    if not changed:
        return table
    renamed = copy.deepcopy(dict(table))
    document_renames.columns(renamed, changed)
    return renamed


def _merge_columns(
    merger: Merger, path: str, sides: Sides, ours: Mapping[str, str], theirs: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """A table that both sides have, and names of their columns in it."""
    bodies = sides.at("columns", {})
    ours, theirs = _without_resolved(merger, f"{path}.columns", bodies, ours, theirs)
    columns, names = _merge_items(
        merger, f"{path}.columns", bodies, ours, theirs, lambda path, _, bodies: merger.value(path, bodies)
    )
    table: dict[str, Any] = {"columns": columns}
    in_result = {old: names.get(theirs.get(old, ""), ours.get(old, "")) for old in bodies.base}
    sides = Sides(
        _with_names(sides.base, in_result),
        _with_names(sides.ours, {now: in_result[old] for old, now in ours.items()}),
        _with_names(sides.theirs, names),
    )
    for key in _WHOLE:
        value = merger.value(f"{path}.{key}", sides.at(key))
        if value is not MISSING:
            table[key] = value
    for key in _BY_NAME:
        if value := merger.mapping(f"{path}.{key}", sides.at(key, {})):
            table[key] = value
    rules = sides.at("rules", {})
    for role in dict.fromkeys([*rules.ours, *rules.theirs, *rules.base]):
        if value := merger.mapping(f"{path}.rules.{role}", rules.at(role, {})):
            table.setdefault("rules", {})[role] = value
    return table, names
