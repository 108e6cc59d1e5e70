"""Limits the size of a row without revealing the length of cells that the caller may not read. A row has at most
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
from rows.query.sql.expressions import ALWAYS, Sql, boolean, joined, listed
from rows.query.sql.statement import Cell
from rows.rules.conditions import FALSE
from rows.schema.column_values import LONG_TYPES, MAX_ROW_BYTES, stored_size
from rows.schema.model import Table

LARGE_WRITE: Final = 16 * 1024
"""Bytes of an update's new cells above which the row's size is checked. Smaller updates of a table's 200 columns exceed
MAX_ROW_BYTES by at most 3 MB."""

_HALF: Final = MAX_ROW_BYTES // 2
_MEGABYTE: Final = 2**20
_UNREAD: Final = _MEGABYTE
"""The part of the caller's half for all columns that it may write but not always read: as large as a request body."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes: `known` for what the caller may read and what is reserved for the rest, and `most_unread` for each of
    `unread`, the long columns that it may write and not read in every row."""

    known: int
    unread: tuple[str, ...] = ()
    most_unread: int = 0

    @property
    def own(self) -> int:
        """For what the caller may read, unless the rest has more than its half."""
        return self.known - _HALF


def stored_lengths(table: Table, named: Mapping[Any, bytes | None]) -> dict[str, int]:
    """Bytes of the texts, arrays and JSON among the values of a write, by column."""
    lengths: dict[str, int] = {}
    for key, cell in named.items():
        if cell is not None and type(key) is Cell:
            column = table.columns[key.column]
            if column.type in LONG_TYPES:
                lengths[column.name] = stored_size(column, cell)
    return lengths


def is_large(table: Table, named: Mapping[Any, bytes | None]) -> bool:
    return sum(stored_lengths(table, named).values()) > LARGE_WRITE


def shares(role_view: RoleView, table: Table, writable: Collection[str]) -> Shares | None:
    """None if the caller may read every long cell of the rows that it may read."""
    partial = [name for name in _long(table) if role_view.mask(table.name, name) is not None]
    unread = tuple(name for name in partial if name in writable)
    if not partial:
        return None
    return Shares(MAX_ROW_BYTES - _UNREAD, unread, _UNREAD // len(unread)) if unread else Shares(MAX_ROW_BYTES)


def new_row_fits(role_view: RoleView, table: Table, lengths: Mapping[str, int], writable: Collection[str]) -> bool:
    """`lengths` are of the cells as stored. Those that are not `writable` are from the document."""
    whole = sum(lengths.values())
    if whole <= LARGE_WRITE:
        return True
    shared = shares(role_view, table, writable)
    if shared is None:
        return whole <= MAX_ROW_BYTES
    sent = sum(length for name, length in lengths.items() if name in writable)
    hidden = max(_HALF, -(-(whole - sent) // _MEGABYTE) * _MEGABYTE)
    never = (name for name in shared.unread if role_view.mask(table.name, name) == FALSE)
    return sent + hidden <= MAX_ROW_BYTES and all(lengths.get(name, 0) <= shared.most_unread for name in never)


def updated_row_fits(role_view: RoleView, table: Table, cells: Mapping[str, Any], writable: Collection[str]) -> Sql:
    """Whether the new `cells` have at most LARGE_WRITE bytes, the whole row fits, or its readable part does not grow.
    PostgreSQL knows the length of a stored text without reading it."""
    shared = shares(role_view, table, writable)
    masks = {name: role_view.readable(table.name, name, CURRENT_ROW) for name in _long(table)}
    before = {name: CURRENT_ROW.column(name) for name in masks}
    sent = {name: cells[name] for name in masks if name in cells}
    after = before | sent
    size, limit = _readable_size(masks, after), MAX_ROW_BYTES  # the whole row, unless some is unreadable
    unread: list[Sql] = []
    if shared is not None:
        size, limit = Sql(size, " + ", _size_of_unreadable(shared, masks, after, sent)), shared.known
        sizes = [_unreadable_size(masks, {name: sent[name]}) for name in shared.unread if name in sent]
        unread = [boolean("(", each, f" <= {shared.most_unread})") for each in sizes]
    fits = boolean("(", size, f" <= {limit})")
    size_before = _readable_size(masks, {name: before[name] for name in sent})
    does_not_grow = boolean("(", _readable_size(masks, sent), " <= ", size_before, ")")
    large = joined(" AND ", [boolean("(", fits, " OR ", does_not_grow, ")"), *unread], ALWAYS)
    return boolean("(", _size(sent.values()), f" <= {LARGE_WRITE} OR ", large, ")")


_Masks = Mapping[str, Any]
"""The condition under which the caller may read each long column; None for always."""


def _size_of_unreadable(shared: Shares, masks: _Masks, after: Mapping[str, Any], sent: Collection[str]) -> Sql:
    """What counts for the cells that the caller may not read. Those that it may write have a limit of their own, and
    only count if another caller made them longer."""
    others = {name: cell for name, cell in after.items() if name not in shared.unread}
    sizes = [_in_megabytes(_unreadable_size(masks, others))]
    for name in shared.unread:
        if name not in sent:
            size = _unreadable_size(masks, {name: after[name]})
            too_long = Sql(size, f" > {shared.most_unread}")
            sizes.append(Sql("(CASE WHEN ", too_long, " THEN ", _in_megabytes(size), " ELSE 0 END)"))
    return Sql(f"greatest({_HALF}, ", listed(sizes, " + "), ")")


def _long(table: Table) -> list[str]:
    return [name for name, column in table.columns.items() if column.type in LONG_TYPES]


def _readable_size(masks: _Masks, cells: Mapping[str, Any]) -> Sql:
    return _size(
        cell if masks[name] is None else Sql("(CASE WHEN ", masks[name], " THEN ", cell, " END)")
        for name, cell in cells.items()
    )


def _unreadable_size(masks: _Masks, cells: Mapping[str, Any]) -> Sql:
    return _size(
        Sql("(CASE WHEN ", masks[name], " THEN NULL ELSE ", cell, " END)")
        for name, cell in cells.items()
        if masks[name] is not None
    )


def _size(cells: Iterable[Any]) -> Sql:
    parts: list[Any] = ["(0"]
    for cell in cells:
        parts += [" + coalesce(octet_length((", cell, ")::text), 0)"]
    return Sql(*parts, ")")


def _in_megabytes(size: Sql) -> Sql:
    return Sql("(", size, f" + {_MEGABYTE - 1}) / {_MEGABYTE} * {_MEGABYTE}")
