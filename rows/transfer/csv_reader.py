"""CSV (RFC 4180) that distinguishes an empty cell (None) from an empty text, with line numbers. Pure."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from rows.schema.column_values import MAX_ROW_BYTES

MAX_RECORD_BYTES: Final = 7 * MAX_ROW_BYTES
"""An unclosed quote would make one record of the whole file. JSON has six bytes for a control character, and a seventh
is for the rest of a row."""
MAX_CELLS: Final = 1000  # more than the columns of any table


class InvalidRecord(Exception):
    """What is wrong with one record. The others can be read."""


class EndlessRecord(Exception):
    """A quote that is not closed, and its line: nothing behind it can be read."""


def records(lines: Iterable[bytes], delimiter: str = ",") -> Iterator[tuple[int, bytes]]:
    """The number of the first line of each record, and its text. Raises EndlessRecord."""
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        if line.count(b'"') % 2 and _has_open_cell(line.decode("utf-8", "replace"), delimiter):
            line = _with_next_lines(number, line, numbered)
        if record := line.removesuffix(b"\n").removesuffix(b"\r"):
            yield number, record


def cells(record: bytes, delimiter: str = ",") -> list[str | None]:
    """Raises InvalidRecord."""
    try:
        text = record.decode()
    except UnicodeDecodeError:
        raise InvalidRecord("is not UTF-8") from None
    found: list[str | None]
    if '"' in text:
        found = _with_quotes(text, delimiter)
    else:
        found = [cell or None for cell in text.split(delimiter, MAX_CELLS)]
    if len(found) > MAX_CELLS:
        raise InvalidRecord(f"has more than {MAX_CELLS} cells")
    return found


def _with_quotes(text: str, delimiter: str) -> list[str | None]:
    found: list[str | None] = []
    at, ending = 0, delimiter
    while ending and len(found) <= MAX_CELLS:
        match = _cell_pattern(delimiter).match(text, at)
        if match is None:
            raise InvalidRecord(f"has a quote inside cell {len(found) + 1}: quote the cell and double it")
        quoted, plain, ending = match.groups()
        found.append((plain or None) if quoted is None else quoted.replace('""', '"'))
        at = match.end()
    return found


def _has_open_cell(line: str, delimiter: str) -> bool:
    """Whether the last cell begins with a quote and goes on in the next line."""
    at = 0
    while match := _cell_pattern(delimiter).match(line, at):
        if not match[3]:
            return False
        at = match.end()
    return line.startswith('"', at) and not line[at + 1 :].replace('""', "").count('"')


def _with_next_lines(number: int, line: bytes, following: Iterator[tuple[int, bytes]]) -> bytes:
    record, quotes = bytearray(line), line.count(b'"')
    while quotes % 2:
        _, line = next(following, (0, b""))
        if not line or len(record) + len(line) > MAX_RECORD_BYTES:
            raise EndlessRecord(f"Line {number}: a quote is opened here and never closed")
        quotes += line.count(b'"')
        record += line
    return bytes(record)


@cache
def _cell_pattern(delimiter: str) -> re.Pattern[str]:
    ending = re.escape(delimiter)
    return re.compile(rf'(?:"((?:[^"]|"")*+)"|([^"{ending}]*+))({ending}|\Z)')
