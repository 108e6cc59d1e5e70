"""Variables and literals in rules: `$user.id`, `$old.done`, `$$` for a literal `$`."""

import re
from collections.abc import Mapping
from typing import Any, Final

from rows.rules.conditions import OLD, Form, Variable
from rows.rules.name_resolver import InvalidCondition, NameResolver, Use, join_path
from rows.schema.model import SQL_TYPES
from rows.schema.types import Type

_TEXT_VARIABLES: Final = frozenset({"user.id", "user.email", "user.role", "key.id"})
_CLAIM: Final = re.compile(r"user\.claims(\.[A-Za-z0-9_-]{1,64}){1,5}", re.ASCII)


def read_literal(value: Any, path: str) -> Any:
    """A literal, with `$$` for a leading `$`. Raises InvalidCondition for a variable."""
    if isinstance(value, str) and value.startswith("$"):
        if not value.startswith("$$"):
            message = 'a variable cannot be part of a value; write "$$" for a text that begins with "$".'
            raise InvalidCondition(path, "invalid", message)
        return value[1:]
    if isinstance(value, list):
        return [read_literal(item, join_path(path, index)) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {key: read_literal(item, join_path(path, key)) for key, item in value.items()}
    return value


def read_variable(
    resolver: NameResolver, table: str, name: str, type_: Type, form: Form, path: str, use: Use = "rule"
) -> Variable:
    """`name`: without `$`. Raises InvalidCondition if unknown or never of this type. Claims are checked when bound."""
    if name.startswith(OLD) and use in ("check", "record"):
        column = resolver.column(table, name.removeprefix(OLD))
        if column is None:
            raise InvalidCondition(path, "unknown", f"there is no column for ${name}.")
        if form != "plain":
            raise InvalidCondition(path, "invalid", f"${name} cannot be used with this operator.")
        if SQL_TYPES[column.type] != type_:
            raise InvalidCondition(path, "wrong_type", f"${name} is of type {column.type}, which does not fit.")
        return Variable(name, type_, form)
    if use == "record":
        raise InvalidCondition(path, "unknown", "the only variables here are $old.<column>.")
    if name == "now":
        if type_ not in ("timestamptz", "date"):
            raise InvalidCondition(path, "wrong_type", "$now only fits dates and timestamps.")
    elif name in _TEXT_VARIABLES:
        if type_ != "text" and not (type_ == "text[]" and form in ("one", "words")):
            raise InvalidCondition(path, "wrong_type", f"${name} is a text, which does not fit.")
    elif not _CLAIM.fullmatch(name):
        raise InvalidCondition(
            path,
            "unknown",
            "unknown variable. The variables are $user.id, $user.email, $user.role, $user.claims.<name>, $key.id and "
            '$now, and in a check $old.<column>; write "$$" for a text that begins with "$".',
        )
    return Variable(name, type_, form)
