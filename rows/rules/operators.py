"""The operators of each column type, and their operands."""

from collections.abc import Mapping
from typing import Any, Final

from rows.rules.conditions import Form, Operator
from rows.schema.types import Type
from rows.schema.values import InvalidValue

MAX_PATTERN: Final = 500
MAX_WORDS: Final = 10

QUANTIFIERS: Final = frozenset({"$some", "$none", "$every"})
COMBINATORS: Final = frozenset({"$and", "$or", "$not"})
PATTERN_FORMS: Final[Mapping[str, tuple[Operator, Form]]] = {
    "$ieq": ("ilike", "exact"),
    "$like": ("like", "like"),
    "$ilike": ("ilike", "like"),
    "$contains": ("like", "contains"),
    "$icontains": ("ilike", "contains"),
    "$startsWith": ("like", "starts_with"),
    "$istartsWith": ("ilike", "starts_with"),
    "$endsWith": ("like", "ends_with"),
    "$iendsWith": ("ilike", "ends_with"),
}
RANGE_OPERATORS: Final[Mapping[str, Operator]] = {"$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}
MEMBER_OPERATORS: Final[Mapping[str, tuple[Operator, Form]]] = {
    "$has": ("has_all", "one"),
    "$hasAny": ("has_any", "plain"),
    "$hasAll": ("has_all", "plain"),
}

_EQUALITY: Final = frozenset({"$eq", "$ne", "$in", "$nin", "$null"})
_ORDERED: Final = _EQUALITY | {*RANGE_OPERATORS, "$between"}
_WHOLE: Final = frozenset({"$eq", "$ne", "$null", *MEMBER_OPERATORS})
OPERATORS: Final[Mapping[str, frozenset[str]]] = {
    "text": _ORDERED | {*PATTERN_FORMS, "$iin", "$search"},
    **dict.fromkeys(("integer", "decimal", "float"), _ORDERED),
    "boolean": _EQUALITY,
    **dict.fromkeys(("date", "timestamp", "uuid"), _ORDERED),
    "json": _WHOLE | {"$contains"},
    "text[]": _WHOLE,
    **dict.fromkeys(("enum", "reference", "user"), _EQUALITY),
}
"""By column type; `$not` fits all. Compared with docs/reference/filters.md."""

ALL_OPERATORS: Final = frozenset().union(*OPERATORS.values(), COMBINATORS, QUANTIFIERS)


def escape_pattern(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def shape_operand(form: Form, value: Any) -> Any:
    """Raises InvalidValue for a pattern that ends in a backslash: PostgreSQL's error 22025."""
    if form == "plain":
        return value
    if form == "one":
        return (value,)
    if len(value) > MAX_PATTERN:
        raise InvalidValue("too_long", f"Must have at most {MAX_PATTERN} characters.")
    match form:
        case "words":
            return _words(value)
        case "like":
            if (len(value) - len(value.rstrip("\\"))) % 2:
                raise InvalidValue("invalid", "Must not end with a single backslash.")
            return value
        case "exact":
            return escape_pattern(value)
        case "contains":
            return f"%{escape_pattern(value)}%"
        case "starts_with":
            return f"{escape_pattern(value)}%"
        case "ends_with":
            return f"%{escape_pattern(value)}"


def _words(text: str) -> tuple[str, ...]:
    # White space includes U+001F, which joins the cells that are searched: no word can reach over two of them.
    words = dict.fromkeys(text.split())
    if len(words) > MAX_WORDS:
        raise InvalidValue("too_many", f"Must have at most {MAX_WORDS} words.")
    return tuple(f"%{escape_pattern(word)}%" for word in words)


def type_of_operand(type_: Type, form: Form) -> Type:
    return "text[]" if form in ("one", "words") else type_
