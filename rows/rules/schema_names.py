"""The names of a whole schema, as the author of its rules sees them."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from rows.rules.conditions import Hop
from rows.schema.model import Column, Relation, Schema, Table

_tokens = count(1)


class SchemaNames:
    user_fields: tuple[str, ...] = ()

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.token = next(_tokens)

    def named_condition(self, table: str, name: str) -> Mapping[str, Any] | None:
        return self.schema.tables[table].conditions.get(name)


class AuthorNames(SchemaNames):
    """The whole schema, as the author of its rules sees it."""

    def column(self, table: str, name: str) -> Column | None:
        return self.schema.tables[table].all_columns.get(name)

    def relation(self, table: str, name: str) -> Hop | None:
        relation = self.schema.tables[table].relations.get(name)
        return hop_of(relation) if relation else None

    def names(self, table: str) -> Iterable[str]:
        known = self.schema.tables[table]
        return [*known.all_columns, *known.relations]

    def searchable(self, table: str) -> tuple[str, ...]:
        return text_columns(self.schema.tables[table], self.schema.tables[table].columns)


def hop_of(relation: Relation) -> Hop:
    return Hop(relation.name, relation.target, relation.column, relation.many)


def text_columns(table: Table, readable: Iterable[str]) -> tuple[str, ...]:
    shown = frozenset(readable)
    return tuple(name for name, column in table.columns.items() if column.type == "text" and name in shown)
