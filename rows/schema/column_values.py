import json
import re
from decimal import Decimal
from typing import Any, Final

from platform_site.identity import ids
from rows.schema.formats import FORMATS
from rows.schema.model import ID, SQL_TYPES, Column, ColumnType, Table
from rows.schema.values import InvalidValue, read, wire

MAX_INDEXED_BYTES: Final = 2_600
"""A btree entry has 2,704 bytes; longer would be error 54000."""

ROW_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
RESERVED_IDS: Final = frozenset({"query", "explain"})


def missing_row() -> InvalidValue:
    """One error for missing and invisible rows."""
    return InvalidValue("no_such_row", "The row does not exist, or you have no permission to read it.")


def missing_user() -> InvalidValue:
    return InvalidValue("no_such_user", "There is no such user.")


MAX_ROW_BYTES: Final = 8 * 2**20
"""Of a row's texts, arrays and JSON, as stored: it is a response, and twice in its event. JSON's exponents and defaults
can exceed a request's 1 MB."""
LONG_TYPES: Final = frozenset[ColumnType]({"text", "json", "text[]"})


def stored_size(column: Column, cell: bytes) -> int:
    """Bytes of a cell of LONG_TYPES as PostgreSQL returns it, without JSON's blanks. JSON numbers lose exponents: 1e308
    becomes 309 bytes."""
    if column.type != "json" or (b"e+" not in cell and b"e-" not in cell):
        return len(cell)
    size = len(cell)

    def spelled(number: str) -> int:
        nonlocal size
        size += len(format(Decimal(number), "f")) - len(number)
        return 0

    json.loads(cell, parse_float=spelled)
    return size


def read_operand(column: Column, value: Any) -> Any:
    """Raises InvalidValue, also for null. Accepts any length, scale and id."""
    read_value = read(SQL_TYPES[column.type], value)
    if column.type == "enum" and read_value not in column.values:
        raise _not_among(column)
    return read_value


def read_cell(column: Column, value: Any) -> Any:
    """A cell's Python value, None for null; references are not checked. Raises InvalidValue."""
    cell = read_unbounded(column, value)
    if cell is not None and column.min is not None and cell < column.min:
        raise InvalidValue("out_of_range", f"Must be at least {_spelled(column, column.min)}.")
    if cell is not None and column.max is not None and cell > column.max:
        raise InvalidValue("out_of_range", f"Must be at most {_spelled(column, column.max)}.")
    return cell


def read_unbounded(column: Column, value: Any) -> Any:
    """As `read_cell` without `min` and `max`: for increments."""
    if value is None and column.null:
        return None
    cell = read(SQL_TYPES[column.type], value)
    match column.type:
        case "text":
            _check_length(column, cell)
            if column.format is not None and not FORMATS[column.format].matches(cell):
                raise InvalidValue("invalid", FORMATS[column.format].message)
        case "text[]":
            for part in cell:
                _check_length(column, part)
        case "decimal":
            _check_digits(column, cell)
        case "enum":
            if cell not in column.values:
                raise _not_among(column)
        case "reference" | "user" if not is_possible_id(column, cell):
            raise missing_row() if column.is_reference else missing_user()
    return cell


def is_possible_id(column: Column, cell: Any) -> bool:
    """False for a text that is no id of the rows or users in the column."""
    if column.is_reference:
        return ROW_ID.fullmatch(cell) is not None
    return not column.is_user or ids.matches("usr", cell)


def _spelled(column: Column, cell: Any) -> str:
    return wire(SQL_TYPES[column.type], cell).decode()


def mismatch(column: Column) -> InvalidValue:
    """The error of the column's CHECK constraint; PostgreSQL does not say which value."""
    if column.min is None and column.max is None:
        return InvalidValue("invalid", "The column does not allow this value.")
    if column.max is None:
        return InvalidValue("out_of_range", f"Must be at least {_spelled(column, column.min)}.")
    if column.min is None:
        return InvalidValue("out_of_range", f"Must be at most {_spelled(column, column.max)}.")
    message = f"Must be from {_spelled(column, column.min)} to {_spelled(column, column.max)}."
    return InvalidValue("out_of_range", message)


def _not_among(column: Column) -> InvalidValue:
    return InvalidValue("not_among", f"Must be one of {', '.join(column.values)}.")


def _check_length(column: Column, text: str) -> None:
    if column.max_length is not None and len(text) > column.max_length:
        raise InvalidValue("too_long", f"Must have at most {column.max_length} characters.")
    if column.min_length is not None and len(text) < column.min_length:
        raise InvalidValue("too_short", f"Must have at least {column.min_length} characters.")


def _check_digits(column: Column, value: Decimal) -> None:
    if column.precision is None:
        return
    scale = column.scale or 0
    whole, _, fraction = format(value, "f").partition(".")
    if len(fraction.rstrip("0")) > scale:  # "1.500" fits a scale of 1: zeros at the end add nothing
        raise InvalidValue("too_precise", f"Must have at most {scale} digits after the point.")
    if len(whole.lstrip("-0")) > column.precision - scale:
        raise InvalidValue("out_of_range", f"Must have at most {column.precision - scale} digits before the point.")


def encode_cell(table: Table, column: Column, value: Any) -> bytes | None:
    """Raises InvalidValue."""
    if column is ID:
        if isinstance(value, str) and ROW_ID.fullmatch(value):
            return value.encode()
        raise InvalidValue("invalid", "Must be 1-64 letters, digits, hyphens or underscores.")
    cell = read_cell(column, value)
    encoded = None if cell is None else wire(SQL_TYPES[column.type], cell)
    if encoded is not None and column.type == "text" and len(encoded) > MAX_INDEXED_BYTES and is_indexed(table, column):
        raise InvalidValue("too_long", f"Must have at most {MAX_INDEXED_BYTES} bytes, since it is indexed.")
    return encoded


def is_indexed(table: Table, column: Column) -> bool:
    indexed = any(key.column == column.name for index in table.indexes for key in index.keys)
    return indexed or any(column.name in unique for unique in table.unique)
