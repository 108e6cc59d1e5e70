"""The names that a filter or rule may use: unknown and hidden names give the same error."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Literal, NoReturn

from platform_site.http.errors import FieldError
from rows.rules.operators import COMBINATORS
from rows.schema.identifiers import did_you_mean
from rows.schema.model import ID, Column, Hop, Schema

_tokens = count(1)


class InvalidCondition(Exception):
    """An invalid filter or rule. `path` leads to the node (`$or.1.list.name`)."""

    def __init__(self, path: str, code: str, message: str) -> None:
        self.path = path
        self.code = code
        self.message = message
        super().__init__(f"{path}: {message}" if path else message)

    def within(self, path: str) -> FieldError:
        return FieldError(f"{path}.{self.path}" if self.path else path, self.code, self.message)


class NameResolver:
    """The names of a schema as its author sees them; subclasses hide some."""

    user_fields: tuple[str, ...] = ()

    def __init__(self, schema: Schema, *, is_strict: bool = False) -> None:
        self.schema = schema
        self.is_strict = is_strict
        """For rules that are not stored yet: also refuse comparisons whose result is always the same."""
        self.conditions = 0
        """The number of those in all rules that were read with it."""
        self.token = next(_tokens)
        """A cache key: equal for equal resolvers of one schema version, never reused."""

    def columns(self, table: str) -> Mapping[str, Column]:
        """The columns that are readable in some row; `null`: as the caller sees it."""
        return self.schema.tables[table].all_columns

    def relations(self, table: str) -> Mapping[str, Hop]:
        return self.schema.tables[table].relations

    def column(self, table: str, name: str) -> Column | None:
        return self.columns(table).get(name)

    def relation(self, table: str, name: str) -> Hop | None:
        return self.relations(table).get(name)

    def names(self, table: str) -> Iterable[str]:
        return [*self.columns(table), *self.relations(table)]

    def named_condition(self, table: str, name: str) -> Mapping[str, Any] | None:
        return self.schema.tables[table].conditions.get(name)

    def searchable(self, table: str) -> tuple[str, ...]:
        """For `$search`."""
        return tuple(name for name, column in self.columns(table).items() if column.type == "text" and column is not ID)


Use = Literal["filter", "rule", "check", "record"]
"""A caller's filter; a rule's `where`; a rule's `check` (with `$old`); a webhook's filter (only `$old`)."""


def join_path(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def refuse_unknown(path: str, word: str = "", known: Iterable[str] = ()) -> NoReturn:
    """`known` are visible names: only those are suggested."""
    combinator = f"${word.lower()}"
    suggestion = f'; did you mean "{combinator}"?' if combinator in COMBINATORS else did_you_mean(word, known)
    raise InvalidCondition(path, "unknown", f"there is no such column or relation{suggestion or '.'}")


def user_column(table: str, name: str, resolver: NameResolver) -> str | None:
    """The readable column of the user `name`: `owner_id` for `owner`."""
    column = resolver.column(table, f"{name}_id")
    return column.name if column is not None and column.is_user else None


def refuse_user(path: str, table: str, name: str, resolver: NameResolver) -> None:
    if column := user_column(table, name, resolver):
        raise InvalidCondition(path, "unknown", f"{name} is a user: conditions can only use {column}.")


def unknown_operator(path: str, word: str, known: Iterable[str]) -> InvalidCondition:
    """Suggests the intended operator (`gte`, `_gte`, `starts_with`), or all."""
    meant = f"${word.lstrip('$').replace('_', '')}".lower()
    spelled = {one.lower(): one for one in known}
    suggestion = (
        f'; did you mean "{spelled[meant]}"?'
        if meant in spelled
        else f": the operators are {', '.join(sorted(known))}."
    )
    return InvalidCondition(path, "unknown_operator", f"there is no such operator{suggestion}")


def shown(path: str) -> str:
    return path[:200].encode("unicode_escape").decode()
