"""Three-way merge of schema documents that follows renames: tables and columns are matched by their origin in the base,
and names are merged like values. A name with different meanings is a conflict: rules that use it would change
silently."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from platform_site.config.merge.three_way import MISSING, Merger
from platform_site.identity.callers import EnvironmentRef
from rows.migrate import versions as schema_versions
from rows.schema import parser
from rows.schema.model import EMPTY

Document = Mapping[str, Any]
Same = tuple[str | None, str | None, str | None]
"""The names of one table or column in the base, ours and theirs."""
MergeOne = Callable[[str, Same, list[Any]], Any]
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
    by_key = {at: {column.key: column.name for column in table.columns.values()} for at, table in schema.tables.items()}
    columns_then = {
        name: {
            key: by_key[at][there] for key, there in start.columns.get(name, {}).items() if there in by_key.get(at, ())
        }
        for name, at in start.tables.items()
    }
    tables, columns, schema = schema_versions.names_now(environment, version, schema, start.tables, columns_then)
    keys = {
        name: {column.name: column.key for column in schema.tables[at].columns.values()} for name, at in tables.items()
    }
    return Names(tables, {name: {key: keys[name][at] for key, at in columns[name].items()} for name in tables})


def merge(
    merger: Merger, base: Document, ours: Document, theirs: Document, our_names: Names, their_names: Names
) -> tuple[dict[str, Any], Names]:
    """The document, and names of theirs in it: the next base."""
    columns: dict[str, dict[str, str]] = {}

    def table(path: str, same: Same, bodies: list[Any]) -> Any:
        old, our, their = same
        if our is not None and their is not None:
            if old is None and path in merger.resolve:
                body = merger.value(path, *bodies)
                chosen = body.get("columns", {}) if isinstance(body, dict) else {}
                columns[their] = {key: key for key in bodies[2]["columns"] if key in chosen}
                return body
            known = (our_names.columns.get(old, {}), their_names.columns.get(old, {})) if old else ({}, {})
            body, columns[their] = _table(merger, path, bodies, *known)
            return body
        kept: dict[str, Any] = bodies[2] if our is None else bodies[1]
        if their is not None:
            columns[their] = {key: key for key in kept["columns"]}
        return kept

    sides = [each["tables"] for each in (base, ours, theirs)]
    tables, names = _items(merger, "schema.tables", sides, our_names.tables, their_names.tables, table)
    document: dict[str, Any] = {"tables": tables}
    users = merger.mapping("schema.users", *(each.get("users", {}) for each in (base, ours, theirs)))
    if users:
        document["users"] = users
    return document, Names(names, columns)


def _items(
    merger: Merger, path: str, sides: list[Document], our: Mapping[str, str], their: Mapping[str, str], one: MergeOne
) -> tuple[dict[str, Any], dict[str, str]]:
    """Tables, or a table's columns, and names of theirs in the result. `our` and `their`: names by the base's."""
    items: dict[str, Any] = {}
    names: dict[str, str] = {}
    # A resolution declares that such a name means the same on both sides. What else came from that origin is new.
    resolved = [name for name in _with_double_meaning(sides, our, their) if f"{path}.{name}" in merger.resolve]
    merger.paths.update(f"{path}.{name}" for name in resolved)
    origins = {old for known in (our, their) for old, now in known.items() if now in resolved}
    our, their = ({old: now for old, now in known.items() if old not in origins} for known in (our, their))
    for same in _same(sides, our, their):
        bodies = [MISSING if at is None else side[at] for side, at in zip(sides, same, strict=True)]
        name = _name(merger, path, same, bodies)
        if name is None:
            continue
        _, our_name, their_name = same
        body = one(f"{path}.{name}", same, bodies)
        if body is MISSING or body is None:  # a resolution removes it
            continue
        if their_name is not None:
            names[their_name] = name
        if our_name not in (None, name) and isinstance(body, dict):
            body = {**body, "renamed_from": our_name}
        if name in items:
            merger.conflict(f"{path}.{name}", bodies[0], items[name], body)
        items[name] = body
    for name in _with_double_meaning(sides, our, their):
        merger.conflict(f"{path}.{name}", None, sides[1][name], sides[2][name])
    return items, names


def _with_double_meaning(sides: list[Document], our: Mapping[str, str], their: Mapping[str, str]) -> list[str]:
    """Names that both sides use for different things."""
    our_olds, their_olds = ({now: old for old, now in known.items()} for known in (our, their))
    return [name for name in sides[1] if name in sides[2] and our_olds.get(name) != their_olds.get(name)]


def _same(sides: list[Document], our: Mapping[str, str], their: Mapping[str, str]) -> Iterator[Same]:
    base, ours, theirs = sides
    olds = {now: old for old, now in our.items()}
    known = set(their.values())
    for name in ours:
        old = olds.get(name)
        if old is not None:
            yield old, name, their.get(old)
        else:
            yield None, name, name if name in theirs and name not in known else None
    for old in base:
        if old not in our and old in their:
            yield old, None, their[old]
    for name in theirs:
        if name not in known and not (name in ours and name not in olds):
            yield None, None, name


def _name(merger: Merger, path: str, same: Same, bodies: list[Any]) -> str | None:
    """The resulting name; None if deleted. A deletion and a change conflict."""
    old, our, their = same
    if our is not None and their is not None:
        if old is None or our == their:
            return our
        name = merger.value(f"{path}.{our}.name", old, our, their)
        return name if isinstance(name, str) else our
    if old is None:
        return our or their
    kept = our if our is not None else their
    if kept == old and (bodies[1] if our is not None else bodies[2]) == bodies[0]:
        return None
    found = merger.value(f"{path}.{kept}", *bodies)
    return None if found is MISSING or found is None else kept


def _table(
    merger: Merger, path: str, sides: list[Any], our_columns: Mapping[str, str], their_columns: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    base, ours, theirs = ({} if each is MISSING else each for each in sides)

    def column(path: str, same: Same, bodies: list[Any]) -> Any:
        if same[0] is None or None not in same:
            return merger.value(path, *bodies)
        return bodies[2] if same[1] is None else bodies[1]

    columns = [each.get("columns", {}) for each in (base, ours, theirs)]
    merged, names = _items(merger, f"{path}.columns", columns, our_columns, their_columns, column)
    table: dict[str, Any] = {"columns": merged}
    for word in _WHOLE:
        value = merger.value(f"{path}.{word}", *(each.get(word, MISSING) for each in (base, ours, theirs)))
        if value is not MISSING:
            table[word] = value
    for word in _BY_NAME:
        if value := merger.mapping(f"{path}.{word}", *(each.get(word, {}) for each in (base, ours, theirs))):
            table[word] = value
    rules = [each.get("rules", {}) for each in (base, ours, theirs)]
    for role in dict.fromkeys([*rules[1], *rules[2], *rules[0]]):
        if value := merger.mapping(f"{path}.rules.{role}", *(each.get(role, {}) for each in rules)):
            table.setdefault("rules", {})[role] = value
    return table, names
