from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from platform_site.http import exact_json
from rows.schema.model import UNORDERED_TYPES

LONGEST_CELL: Final = 200
_OWN: Final = {"id": "text", "created_at": "timestamp", "updated_at": "timestamp"}
"""Columns of every table, which are read-only."""


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    """Its name in rows: `list_id` of the reference `list`."""
    type: str
    null: bool = False
    has_default: bool = False
    target: str | None = None
    values: tuple[str, ...] = ()

    @property
    def is_link(self) -> bool:
        return self.type in ("reference", "user")

    @property
    def has_order(self) -> bool:
        return self.type not in UNORDERED_TYPES

    @property
    def is_read_only(self) -> bool:
        return self.key in _OWN

    @property
    def is_required(self) -> bool:
        return not self.null and not self.has_default


def columns_of(table: Mapping[str, Any]) -> list[Column]:
    """In document order, `id` first, timestamps last."""
    own = {key: Column(key, type_) for key, type_ in _OWN.items()}
    found = [own["id"]]
    for name, column in table["columns"].items():
        is_link = column["type"] in ("reference", "user")
        found.append(
            Column(
                f"{name}_id" if is_link else name,
                column["type"],
                null=column.get("null", False),
                has_default="default" in column,
                target=column.get("to"),
                values=tuple(column.get("values", ())),
            )
        )
    return [*found, own["created_at"], own["updated_at"]]


def text_of(value: Any, type_: str = "text") -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) and type_ != "json" else exact_json.dumps(value)


def shown_text(value: Any, type_: str) -> str:
    text = text_of(value, type_)
    if type_ == "timestamp":
        return text[:19].replace("T", " ")
    return text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…"


def csv_cell(value: Any, type_: str) -> str:
    """Text is quoted, so that the empty text is not null."""
    text = text_of(value, type_)
    return '"' + text.replace('"', '""') + '"' if isinstance(value, (str, list, dict)) else text
