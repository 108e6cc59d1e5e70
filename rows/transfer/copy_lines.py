import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from platform_site.identity import ids
from rows.schema import column_values
from rows.schema.column_values import MAX_ROW_BYTES, RESERVED_IDS
from rows.schema.model import ID, NOW, RANDOM, Column, Table
from rows.schema.values import InvalidValue
from rows.transfer.import_report import SHOWN, BadLine

MISSING: Final = object()
"""The record lacks the cell: use the default."""

CHUNK: Final = 256 * 1024
_ESCAPES: Final = ((b"\\", rb"\\"), (b"\t", rb"\t"), (b"\n", rb"\n"), (b"\r", rb"\r"))
_NULL: Final = rb"\N"
_REMEMBERED: Final = 20_000


def in_chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size > CHUNK:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)


class LineEncoder:
    """Precomputes what it can, because it is called for each row."""

    def __init__(self, table: Table, columns: Sequence[Column], now: datetime, *, events: bool) -> None:
        self.table, self.events = table, events
        self.columns = [(column.name, column, _quick(table, column)) for column in columns]
        self.fillers = {column.name: self._filler(column, now) for column in columns}

    def line(self, number: int, record: "Mapping[str, Any] | str") -> bytes | list[BadLine]:
        if isinstance(record, str):
            return [BadLine(number, None, record)]
        bad: list[BadLine] = []
        parts = [b"%d" % number, ids.new("evt").encode() if self.events else b""]
        known = 0
        get = record.get
        for name, column, quick in self.columns:
            value = get(name, MISSING)
            if value is MISSING:
                filler = self.fillers[name]
                if filler is None:
                    bad.append(BadLine(number, name, "Required."))
                else:
                    parts.append(filler if type(filler) is bytes else filler())  # type: ignore[operator]
                continue
            known += 1
            try:
                parts.append(quick(value) or _cell(self.table, column, value))
            except InvalidValue as error:
                bad.append(BadLine(number, name, error.message))
        if known < len(record):
            names = {name for name, _, _ in self.columns}
            strange = islice((name for name in record if name not in names), SHOWN)
            bad += [BadLine(number, name[:100], "There is no such column.") for name in strange]
        return bad or b"\t".join(parts) + b"\n"

    def _filler(self, column: Column, now: datetime) -> bytes | Callable[[], bytes] | None:
        """The default of a missing cell, or what makes it; None if required."""
        if column is ID:
            prefix = self.table.id_prefix
            return lambda: (prefix + ids.suffix()).encode()
        if column.default is None:
            return _NULL if column.null else None
        if column.default == RANDOM and column.type == "uuid":
            return lambda: str(uuid.uuid4()).encode()
        moment = now.astimezone(UTC)
        word = {"timestamp": moment.isoformat(), "date": moment.date().isoformat()}.get(column.type)
        if column.default == NOW and word is not None:
            return word.encode()
        return _escaped(column_values.encode_cell(self.table, column, column.default) or b"")


def _cell(table: Table, column: Column, value: Any) -> bytes:
    cell = column_values.encode_cell(table, column, value)
    if cell is None:
        return _NULL
    quotes = 2 * len(value) if column.type == "text[]" else 0  # of most texts PostgreSQL stores none
    if len(cell) - quotes > MAX_ROW_BYTES:
        raise InvalidValue("too_large", f"Holds more than {MAX_ROW_BYTES >> 20} MB.")
    if column is ID and cell.decode() in RESERVED_IDS:
        raise InvalidValue("reserved", "Is reserved.")
    return _escaped(cell)


def _quick(table: Table, column: Column) -> Callable[[Any], bytes | None]:
    """A faster `_cell` for common values of the column. None or nothing leaves a value to `_cell`."""
    if column is ID:
        return lambda value: (
            value.encode()
            if type(value) is str and column_values.ROW_ID.fullmatch(value) and value not in RESERVED_IDS
            else None
        )
    match column.type:
        case _ if any(each is not None for each in (column.min, column.max, column.min_length, column.format)):
            return lambda value: None
        case "text":
            is_indexed = column_values.is_indexed(table, column)
            # A character takes at most four bytes, so below this no text can be too long for an index.
            most = min(column.max_length or CHUNK, column_values.MAX_INDEXED_BYTES // 4 if is_indexed else CHUNK)
            null = _NULL if column.null else None

            def text(value: Any) -> bytes | None:
                # Of the printable characters only the backslash is special in COPY; surrogates and NUL are not
                # printable.
                if type(value) is str and len(value) <= most and value.isprintable() and "\\" not in value:
                    return value.encode()
                return null if value is None else None

            return text
        case "integer":
            return lambda value: b"%d" % value if type(value) is int and -(2**63) <= value < 2**63 else None
        case "boolean":
            return lambda value: b"true" if value is True else b"false" if value is False else None
        case "reference" | "user" | "enum" | "date":
            seen: dict[str, bytes] = {}

            def remembered(value: Any) -> bytes | None:
                if type(value) is not str:
                    return None
                cell = seen.get(value)
                if cell is None:
                    cell = _cell(table, column, value)
                    if len(seen) < _REMEMBERED and len(value) <= 100:
                        seen[value] = cell
                return cell

            return remembered
    return lambda value: None


def _escaped(cell: bytes) -> bytes:
    for character, escaped in _ESCAPES:
        cell = cell.replace(character, escaped)
    return cell
