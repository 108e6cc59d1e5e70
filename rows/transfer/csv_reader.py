"""CSV (RFC 4180) that distinguishes an empty cell (None) from an empty text, with line numbers. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rows.schema.column_values import MAX_ROW_BYTES

MAX_RECORD_BYTES: Final = 7 * MAX_ROW_BYTES
"""An unclosed quote would make one record of the whole file. JSON has six bytes for a control character, and a seventh
is for the rest of a row."""

_BOM: Final = "\N{BYTE ORDER MARK}"


class InvalidRecord(Exception):
    def __init__(self, number: int, message: str) -> None:
        self.number = number
        self.message = message
        super().__init__(f"line {number}: {message}")


class EndlessRecord(InvalidRecord):
    pass


def read(lines: Iterable[bytes], delimiter: str = ",") -> Iterator[tuple[int, list[str | None] | InvalidRecord]]:
    cells = _Cells(delimiter)
    separator = delimiter.encode()
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if b'"' not in line and separator in line:
            if (text := _decoded(number, line)) is not None:
                yield number, [cell or None for cell in text.split(delimiter)]
            else:
                yield number, InvalidRecord(number, "is not UTF-8")
            continue
        if line.count(b'"') % 2 and cells.are_open(line.decode("utf-8", "replace").removeprefix(_BOM)):
            line = _whole(number, line, numbered)
        text = _decoded(number, line)
        if text is None:
            yield number, InvalidRecord(number, "is not UTF-8")
        elif text:
            yield number, cells.of(number, text)


def _whole(number: int, line: bytes, rest: Iterator[tuple[int, bytes]]) -> bytes:
    record, size, quotes = [line], len(line), line.count(b'"')
    while quotes % 2:
        _, line = next(rest, (0, b""))
        size += len(line)
        if not line or size > MAX_RECORD_BYTES:
            raise EndlessRecord(number, "a quote is opened here and never closed")
        quotes += line.count(b'"')
        record.append(line)
    return b"".join(record)


def _decoded(number: int, line: bytes) -> str | None:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return None
    text = text.removesuffix("\n").removesuffix("\r")
    return text.removeprefix(_BOM) if number == 1 else text


class _Cells:
    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        ending = re.escape(delimiter)
        self._cell = re.compile(rf'(?:"((?:[^"]|"")*+)"|([^"{ending}]*+))({ending}|\Z)')

    def are_open(self, text: str) -> bool:
        at = 0
        while found := self._cell.match(text, at):
            if not found[3]:
                return False
            at = found.end()
        return text.startswith('"', at) and not text[at + 1 :].replace('""', "").count('"')

    def of(self, number: int, text: str) -> list[str | None] | InvalidRecord:
        cells: list[str | None] = []
        at = 0
        while found := self._cell.match(text, at):
            quoted, plain, ending = found.groups()
            cells.append((plain or None) if quoted is None else quoted.replace('""', '"'))
            if not ending:
                return cells
            at = found.end()
        return InvalidRecord(number, f"has a quote inside cell {len(cells) + 1}: quote the cell and double it")
