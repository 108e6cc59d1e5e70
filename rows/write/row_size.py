"""Limits the size of a row without revealing the length of cells that the caller may not read. `fits` is an SQL
condition for `rows.write.statements`: whether the row stays small enough; `shares` divides its bytes. A row has at most
MAX_ROW_BYTES, which is the limit for callers that may read all of it. Other callers could measure hidden cells by that
limit, by writing more until a write is refused. So for them

- each column that they may write and not read has its own limit;
- half of the row is reserved for all other columns that they may not read, whether these have content or not. Beyond
  that half, their size is counted in whole megabytes, so that the limit reveals little, and only for such rows;
- the columns that they may read share the remainder.

docs/explanation/row-isolation.md, "Row size"; docs/reference/limits.md."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rows.query.role_view import RoleView
from rows.query.sql.conditions import CURRENT_ROW
from rows.query.sql.expressions import ALWAYS, Sql, boolean, joined
from rows.query.sql.statement import Cell
from rows.rules.conditions import FALSE
from rows.schema.column_values import LONG_TYPES, MAX_ROW_BYTES, stored_size
from rows.schema.model import Table

LARGE_WRITE: Final = 16 * 1024
"""Bytes, as stored, of an update's new cells above which the row's size is checked. Smaller updates of a table's 200
columns exceed MAX_ROW_BYTES by at most 3 MB."""

_HALF: Final = MAX_ROW_BYTES // 2
_UNIT: Final = 2**20
_UNREAD: Final = _UNIT
"""The part of the caller's half for all columns that it may write but not always read: as large as a request body."""


@dataclass(frozen=True, slots=True)
class Shares:
    """`known` for what the caller may read and what is reserved for the rest, and `most_unread` for each of `unread`,
    the long columns that it may write and not read in every row."""

    known: int
    unread: tuple[str, ...] = ()
    most_unread: int = 0

    @property
    def own(self) -> int:
        """Bytes of what the caller may read, unless the rest has more than its half."""
        return self.known - _HALF


def stored_lengths(table: Table, named: Mapping[Any, bytes | None]) -> dict[str, int]:
    """Bytes of the texts, arrays and JSON in a write, as stored, by column. `named`: the values of its parameters."""
    lengths: dict[str, int] = {}
    for key, cell in named.items():
        if cell is not None and type(key) is Cell:
            column = table.columns[key.column]
            if column.type in LONG_TYPES:
                lengths[column.name] = stored_size(column, cell)
    return lengths


def is_large(table: Table, named: Mapping[Any, bytes | None]) -> bool:
    """Whether an update has so many bytes that the row's size must be checked."""
    return sum(stored_lengths(table, named).values()) > LARGE_WRITE


def shares(role_view: RoleView, table: Table, writable: Collection[str]) -> Shares | None:
    """None if the caller may read every long cell of a row that it may read."""
    partial = [name for name in _long(table) if role_view.mask(table.name, name) is not None]
    unread = tuple(name for name in partial if name in writable)
    if not partial:
        return None
    return Shares(MAX_ROW_BYTES - _UNREAD, unread, _UNREAD // len(unread)) if unread else Shares(MAX_ROW_BYTES)


def new_fits(role_view: RoleView, table: Table, lengths: Mapping[str, int], writable: Collection[str]) -> bool:
    """Whether a new row with cells of these `lengths`, as stored, is small enough. Cells that are not `writable` are
    from the document."""
    whole = sum(lengths.values())
    if whole <= LARGE_WRITE:
        return True
    shared = shares(role_view, table, writable)
    if shared is None:
        return whole <= MAX_ROW_BYTES
    sent = sum(length for name, length in lengths.items() if name in writable)
    hidden = max(_HALF, -(-(whole - sent) // _UNIT) * _UNIT)
    never = (name for name in shared.unread if role_view.mask(table.name, name) == FALSE)
    return sent + hidden <= MAX_ROW_BYTES and all(lengths.get(name, 0) <= shared.most_unread for name in never)


def fits(role_view: RoleView, table: Table, cells: Mapping[str, Any], writable: Collection[str]) -> Sql:
    """Whether the new cells have at most LARGE_WRITE bytes, or the whole row fits, or the caller's readable part does
    not grow. PostgreSQL knows the length of a stored text without reading it."""
    shared = shares(role_view, table, writable)
    bound = shared or Shares(MAX_ROW_BYTES)
    long = _long(table)
    sent = [name for name in long if name in cells]
    before = {name: CURRENT_ROW.column(name) for name in long}
    after = {name: cells.get(name, before[name]) for name in long}
    masks = {name: role_view.readable(table.name, name, CURRENT_ROW) for name in long}

    def seen(names: Iterable[str], of: Mapping[str, Any]) -> Sql:
        return _size(_where(masks[name], of[name]) for name in names)

    def hidden(names: Iterable[str]) -> Sql:
        return _size(_unless(may, after[name]) for name in names if (may := masks[name]) is not None)

    rest: list[Any] = []
    if shared:
        units = _in_units(hidden(name for name in long if name not in shared.unread))
        for name in shared.unread:  # longer than this caller makes it, by another caller's write
            if name not in sent:
                length = hidden([name])
                longer = ("(CASE WHEN ", length, f" > {shared.most_unread} THEN ", *_in_units(length), " ELSE 0 END)")
                units += [" + ", *longer]
        rest = [f" + greatest({_HALF}, ", *units, ")"]
    has_room = boolean("(", seen(long, after), *rest, f" <= {bound.known})")
    no_longer = boolean("(", seen(sent, after), " <= ", seen(sent, before), ")")
    unread = [boolean("(", hidden([name]), f" <= {bound.most_unread})") for name in bound.unread if name in sent]
    large = joined(" AND ", [boolean("(", has_room, " OR ", no_longer, ")"), *unread], ALWAYS)
    return boolean("(", _size(after[name] for name in sent), f" <= {LARGE_WRITE} OR ", large, ")")


def _long(table: Table) -> list[str]:
    return [name for name, column in table.columns.items() if column.type in LONG_TYPES]


def _where(may: Any, cell: Any) -> Any:
    return cell if may is None else Sql("(CASE WHEN ", may, " THEN ", cell, " END)")


def _unless(may: Any, cell: Any) -> Any:
    return Sql("(CASE WHEN ", may, " THEN NULL ELSE ", cell, " END)")


def _size(cells: Iterable[Any]) -> Sql:
    parts: list[Any] = ["(0"]
    for cell in cells:
        parts += [" + coalesce(octet_length((", cell, ")::text), 0)"]
    return Sql(*parts, ")")


def _in_units(size: Sql) -> list[Any]:
    return ["(", size, f" + {_UNIT - 1}) / {_UNIT} * {_UNIT}"]
