from typing import Any, Final

from rows.schema import column_values, values
from rows.schema.model import NOW, RANDOM, Column

WORDS: Final = {"date": NOW, "timestamp": NOW, "uuid": RANDOM}
_MAX_JSON: Final = 10_000
"""Characters: a default is copied into the catalog and into rows."""


def unstorable(text: str) -> bool:
    return "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)


def problem(column: Column, raw: Any) -> str | None:
    try:
        value(column, raw)
    except values.InvalidValue as error:
        word = WORDS.get(column.type)
        return f'{error.message} Or "{word}".' if word and error.code == "wrong_type" else error.message
    return None


def value(column: Column, raw: Any) -> Any:
    """As Django takes it, except `NOW` and `RANDOM`. Raises values.InvalidValue."""
    if raw is not None and raw == WORDS.get(column.type):
        return raw
    if len(str(raw)) > _MAX_JSON:
        raise values.InvalidValue("too_long", f"Must have at most {_MAX_JSON} characters.")
    cell = column_values.read_cell(column, raw)
    if column.type == "json":
        return values.floats_as_integers(cell)
    return list(cell) if isinstance(cell, tuple) else cell
