"""Which named conditions of a schema document its rules use."""

from collections.abc import Iterator, Mapping
from typing import Any

from rows.schema.model import Schema, Table

Name = tuple[str, str]
"""A table and one of its conditions."""


def used_by_rules(schema: Schema) -> Mapping[Name, list[str]]:
    """The rules that use each condition, such as `tasks.user.read`."""
    found: dict[Name, list[str]] = {}
    for table in schema.tables.values():
        for role, actions in table.rules.items():
            for action, specs in actions.items():
                names = {name for spec in specs for name in uses(schema, table, (spec.where, spec.check))}
                for name in names:
                    found.setdefault(name, []).append(f"{table.name}.{role}.{action}")
    return found


def uses(schema: Schema, table: Table, document: Any) -> frozenset[Name]:
    """Directly, or by a named condition that it uses."""
    found: set[Name] = set()
    waiting = [(table, document)]
    while waiting:
        for at, name in _mentioned(schema, *waiting.pop()):
            if name in at.conditions and (at.name, name) not in found:
                found.add((at.name, name))
                waiting.append((at, at.conditions[name]))
    return frozenset(found)


def _mentioned(schema: Schema, table: Table, document: Any) -> Iterator[tuple[Table, str]]:
    if isinstance(document, list | tuple):
        for part in document:
            yield from _mentioned(schema, table, part)
    elif isinstance(document, Mapping):
        for key, value in document.items():
            if key == "$is" and isinstance(value, str):
                yield table, value
            elif key.startswith("$"):
                yield from _mentioned(schema, table, value)
            elif (far := _at_the_end(schema, table, key)) is not None:
                yield from _mentioned(schema, far, value)


def _at_the_end(schema: Schema, table: Table, path: str) -> Table | None:
    for step in path.split("."):
        relation = table.relations.get(step)
        if relation is None:
            return None
        table = schema.tables[relation.table]
    return table
