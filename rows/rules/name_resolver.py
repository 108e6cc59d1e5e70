"""The names that a filter or rule may use, and the errors for those it may not. Every name goes through a
`NameResolver`, which knows what this caller may know of, and nothing else: an unknown name and a hidden one take the
same way to the same bytes."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Literal, NoReturn, Protocol

from rows.rules.conditions import Hop
from rows.rules.operators import COMBINATORS
from rows.schema.identifiers import did_you_mean
from rows.schema.model import Column, Relation, Schema, Table

_tokens = count(1)


class InvalidCondition(Exception):
    """A filter or rule that cannot be understood. `path` leads to the offending node (`$or.1.list.name`)."""

    def __init__(self, path: str, code: str, message: str) -> None:
        self.path = path
        self.code = code
        self.message = message
        super().__init__(f"{path}: {message}" if path else message)


class NameResolver(Protocol):
    """What one caller may know of a schema: the only way from a name to a column or relation."""

    @property
    def token(self) -> int:
        """Equal for equal sights of one schema version, never reused: a key for what was parsed under it."""

    def column(self, table: str, name: str) -> Column | None:
        """The column by its stored name, if this caller may read it in some row; `null` if its cells may read null."""

    def relation(self, table: str, name: str) -> Hop | None:
        """The relation, if the far table has a read rule for this caller and the column that links is readable."""

    def names(self, table: str) -> Iterable[str]:
        """All that `column` and `relation` know: what may be proposed in the place of a name that they do not."""

    def named_condition(self, table: str, name: str) -> Mapping[str, Any] | None:
        """The table's named condition as its author wrote it; None if there is none."""

    def searchable(self, table: str) -> tuple[str, ...]:
        """The readable columns of type text, without `id`: what a `$search` without a column looks through."""

    @property
    def user_fields(self) -> tuple[str, ...]:
        """The fields of users that this caller may embed; none unless the document opens them."""


class SchemaNames:
    user_fields: tuple[str, ...] = ()

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.token = next(_tokens)

    def named_condition(self, table: str, name: str) -> Mapping[str, Any] | None:
        return self.schema.tables[table].conditions.get(name)


class AuthorNames(SchemaNames):
    """A NameResolver of all names, for the author of the rules."""

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


Use = Literal["filter", "rule", "check", "record"]
"""A caller's filter; a rule's `where`; a rule's `check`, which also knows `$old`; a webhook's filter, which knows no
other variable."""


def join_path(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def refuse_unknown(path: str, word: str = "", known: Iterable[str] = ()) -> NoReturn:
    """`known` are the names that the asker may see: nothing else is ever proposed."""
    combinator = f"${word.lower()}"
    slip = f'; did you mean "{combinator}"?' if combinator in COMBINATORS else did_you_mean(word, known)
    raise InvalidCondition(path, "unknown", f"there is no such column or relation{slip or '.'}")


def user_column(table: str, name: str, resolver: NameResolver) -> str | None:
    """The readable column with the id of the user `name`: `owner_id` for `owner`."""
    column = resolver.column(table, f"{name}_id")
    return column.name if column is not None and column.is_user else None


def refuse_user(path: str, table: str, name: str, resolver: NameResolver) -> None:
    if column := user_column(table, name, resolver):
        raise InvalidCondition(path, "unknown", f"{name} is a user: conditions can only use {column}.")


def unknown_operator(path: str, word: str, known: Iterable[str]) -> InvalidCondition:
    """Names the operator that is most likely meant (other systems spell them `gte`, `_gte`, `starts_with`), or all that
    fit."""
    meant = f"${word.lstrip('$').replace('_', '')}".lower()
    spelled = {one.lower(): one for one in known}
    slip = f'; did you mean "{spelled[meant]}"?' if meant in spelled else f": here are {', '.join(sorted(known))}."
    return InvalidCondition(path, "unknown_operator", f"there is no such operator{slip}")


def shown(path: str) -> str:
    """A path as an answer may repeat it: shortened, and without characters that could not be sent."""
    return path[:200].encode("unicode_escape").decode()
