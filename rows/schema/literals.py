"""Values in a schema document: defaults and backfills, validated like rows and converted for DDL."""

from typing import Any, Final

from rows.schema import column_values, values
from rows.schema.model import NOW, RANDOM, Column

_WORDS: Final = {"date": NOW, "timestamp": NOW, "uuid": RANDOM}
_MAX_JSON: Final = 10_000
"""Characters of a default: it is copied into the catalog, and into every row that names no value."""


def unstorable(text: str) -> bool:
    """Whether PostgreSQL cannot hold it: NUL characters and lone surrogates."""
    return "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)


def problem(column: Column, raw: Any) -> str | None:
    """Why the JSON value `raw` cannot stand in `column`, as a sentence; None if it can."""
    try:
        value(column, raw)
    except values.InvalidValue as error:
        word = _WORDS.get(column.type)
        return f'{error.message} Or "{word}".' if word and error.code == "wrong_type" else error.message
    return None


def value(column: Column, raw: Any) -> Any:
    """`raw` as Django takes it (`NOW` and `RANDOM` as they are). Raises values.InvalidValue."""
    if raw is not None and raw == _WORDS.get(column.type):
        return raw
    if len(str(raw)) > _MAX_JSON:
        raise values.InvalidValue("too_long", f"Must have at most {_MAX_JSON} characters.")
    cell = column_values.read_cell(column, raw)
    return list(cell) if isinstance(cell, tuple) else cell
