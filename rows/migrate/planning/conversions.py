from collections.abc import Mapping
from typing import Final, Literal

from rows.schema.model import Column, ColumnType

Conversion = Literal["free", "checked", "lossy"]
"""`checked` fails if a value cannot be converted, `lossy` may lose data and must be confirmed."""

_TEXTUAL: Final = frozenset({"text", "enum", "user", "reference"})
_WRITTEN: Final[tuple[ColumnType, ...]] = (
    "integer", "decimal", "float", "boolean", "date", "timestamp", "uuid", "json"
)  # fmt: skip
_CONVERSIONS: Final[Mapping[tuple[ColumnType, ColumnType], Conversion]] = {
    **{(old, "text"): "free" for old in _WRITTEN},
    **{("text", new): "checked" for new in _WRITTEN},
    ("integer", "decimal"): "checked",
    ("integer", "float"): "lossy",
    ("decimal", "integer"): "lossy",
    ("decimal", "float"): "lossy",
    ("float", "decimal"): "lossy",
    ("float", "integer"): "lossy",
    ("date", "timestamp"): "free",
    ("timestamp", "date"): "lossy",
}


def conversion(old: Column, new: Column) -> Conversion | None:
    if old.type == new.type or (old.type in _TEXTUAL and new.type in _TEXTUAL):
        return "free"
    return _CONVERSIONS.get((old.type, new.type))
