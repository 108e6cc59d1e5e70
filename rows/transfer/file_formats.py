"""Files of rows: CSV with a header and NDJSON, optionally gzipped, read line by line. A record maps column names to
JSON values; CSV's text is read by the column's type."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final, Literal

from platform_site.http import exact_json
from platform_site.http.bodies import DuplicateName, object_of
from rows.schema import identifiers
from rows.schema.column_values import MAX_ROW_BYTES
from rows.schema.model import Column, Table
from rows.transfer import csv_reader
from rows.transfer.csv_reader import InvalidRecord
from rows.transfer.import_report import TOO_LARGE

Format = Literal["csv", "ndjson"]
FORMATS: Final[tuple[Format, ...]] = ("csv", "ndjson")

_Lines = Iterator[tuple[int, bytes]]
_Read = Callable[[bytes], Mapping[str, Any]]
"""Reads a line. Raises InvalidRecord."""
_Reader = tuple[str, Any, Callable[[str], Any] | None]
"""Of a column: its name, the value of an empty cell, and what reads its text."""

_BETWEEN_REPORTS: Final = 1000
_TRUTHS: Final = {"true": True, "t": True, "1": True, "yes": True, "false": False, "f": False, "0": False, "no": False}
_INTEGER: Final = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_KEY: Final = re.compile(rb'"\s*:')  # also finds texts with quotes
_BEFORE_TEXT: Final = re.compile(rb'([^"]*+)(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))?', re.DOTALL)
"""What is between two texts of JSON, and the second text, which may not be closed."""
_MAX_VALUES: Final = MAX_ROW_BYTES + 2**20
"""Bytes of JSON without its texts. MAX_ROW_BYTES does not count numbers and dates in columns of their own."""
_SHORT_ZONE: Final = re.compile(r"[+-]\d\d\Z", re.ASCII)
_MAX_LINE: Final = csv_reader.MAX_RECORD_BYTES


class InvalidFile(Exception):
    pass


def format_of(name: str) -> Format | None:
    """By the suffix `.csv`, `.ndjson` or `.jsonl`, optionally `.gz`."""
    plain = name.lower().removesuffix(".gz")
    if plain.endswith(".csv"):
        return "csv"
    return "ndjson" if plain.endswith((".ndjson", ".jsonl")) else None


@dataclass
class RecordFile:
    file: IO[bytes]
    format: Format
    gzipped: bool = False
    delimiter: str = ","
    progress: Callable[[int], None] = lambda position: None

    def records(self, table: Table) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
        """The number of each line, and its record or what is wrong with it. Raises InvalidFile."""
        try:
            lines, read = self._csv(table) if self.format == "csv" else self._ndjson(table)
            for count, (number, line) in enumerate(lines):
                record: Mapping[str, Any] | str
                try:
                    record = read(line)
                except InvalidRecord as error:
                    record = str(error)
                yield number, record
                if count % _BETWEEN_REPORTS == 0:
                    self.progress(self._position)
        except csv_reader.EndlessRecord as error:
            raise InvalidFile(f"{error}.") from None
        self.progress(self._position)

    def _lines(self) -> Iterator[bytes]:
        self._position = 0
        source = gzip.GzipFile(fileobj=self.file) if self.gzipped else self.file
        try:
            for number, line in enumerate(iter(lambda: source.readline(_MAX_LINE), b""), 1):
                if len(line) == _MAX_LINE and not line.endswith(b"\n"):
                    raise InvalidFile(f"Line {number} is longer than {_MAX_LINE >> 20} MB.")
                # The position in the compressed file, for the progress bar. A pipe has no position, so other files
                # count bytes.
                self._position = self.file.tell() if self.gzipped else self._position + len(line)
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InvalidFile(f"The file is not gzipped, or cut off: {error}.") from None

    def _ndjson(self, table: Table) -> tuple[_Lines, _Read]:
        has_decimals = any(column.type == "decimal" for column in table.columns.values())
        parse_float = exact_json.read_float if has_decimals else None

        def read(line: bytes) -> Mapping[str, Any]:
            try:
                record = _loads(line, parse_float)
            except DuplicateName:
                raise InvalidRecord("has a key twice in a JSON object") from None
            except ValueError as error:
                raise InvalidRecord(f"is not JSON: {error}") from None
            if not isinstance(record, dict):
                raise InvalidRecord("is not a JSON object")
            return record

        numbered = enumerate(self._lines(), 1)
        return ((number, line) for number, line in numbered if line and not line.isspace()), read

    def _csv(self, table: Table) -> tuple[_Lines, _Read]:
        records = csv_reader.records(self._lines(), self.delimiter)
        _, header = next(records, (1, b""))
        try:
            columns = _columns(table, csv_reader.cells(header, self.delimiter) if header else [])
        except InvalidRecord as error:
            raise InvalidFile(f"The header {error}.") from None
        readers = [(column.name, _empty(column), _PARSERS.get(column.type)) for column in columns]
        return records, lambda record: _record(readers, csv_reader.cells(record, self.delimiter))


_OMITTED: Final = object()


def _record(readers: Sequence[_Reader], cells: Sequence[str | None]) -> Mapping[str, Any]:
    if len(cells) != len(readers):
        raise InvalidRecord(f"has {len(cells)} cells, the header has {len(readers)}")
    record: dict[str, Any] = {}
    for (name, empty, parse), cell in zip(readers, cells, strict=True):
        if cell is None:
            if empty is not _OMITTED:
                record[name] = empty
            continue
        try:
            record[name] = cell if parse is None else parse(cell)
        except DuplicateName:
            raise InvalidRecord(f"has a key twice in a JSON object of {name}") from None
        except ValueError:
            raise InvalidRecord(f"has a cell of {name} that is not JSON") from None
    return record


def _loads(data: bytes, parse_float: Callable[[str], float] | None = None) -> Any:
    """Raises InvalidRecord for values that no row holds, and ValueError: DuplicateName for a key that is twice in an
    object."""
    is_long = len(data) > MAX_ROW_BYTES
    if is_long and _has_too_many_values(data):
        raise InvalidRecord(TOO_LARGE)
    value = exact_json.loads(data, parse_float=parse_float)
    keys = len(value) if type(value) is dict else 0
    # findall is faster, but would hold all keys of a long line.
    found = list(islice(_KEY.finditer(data), keys + 1)) if is_long else _KEY.findall(data)
    if len(found) > keys:
        try:
            json.loads(data, object_pairs_hook=object_of)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error
    return value


def _has_too_many_values(data: bytes) -> bool:
    """Texts and blanks are not counted: other values can take forty times as much memory."""
    size = 0
    for part in _BEFORE_TEXT.finditer(data):
        size += len(part[1].translate(None, b" \t\r\n")) + 1  # for the text
        if size > _MAX_VALUES:
            return True
    return False


def _columns(table: Table, header: Sequence[str | None]) -> list[Column]:
    if not header:
        raise InvalidFile("The file is empty: a CSV file begins with the names of its columns.")
    columns: list[Column] = []
    for name in header:
        column = table.column(name.strip()) if name else None
        if column is None:
            if name and (";" in name or "\t" in name):  # a spreadsheet's, in much of Europe
                hint = "Separate the cells of a CSV file by commas. The command also takes --delimiter."
                raise InvalidFile(f'The header has the cell "{name}". {hint}')
            raise InvalidFile(
                f'The header names a column "{name or ""}" that {table.name} does not have'
                f"{identifiers.did_you_mean(name, table.all_columns) or '.'}"
            )
        if column in columns:
            raise InvalidFile(f'The header names the column "{column.name}" twice.')
        columns.append(column)
    return columns


def _empty(column: Column) -> Any:
    """Null; for a required column, an empty text or its default."""
    if column.null:
        return None
    if column.type == "text" and not column.implicit:
        return ""
    return _OMITTED if column.default is not None or column.implicit else None


def _float(cell: str) -> Any:
    try:
        return float(cell) if cell.isascii() and "_" not in cell else cell  # to Python "1_000" and "١" are numbers, too
    except ValueError:
        return cell


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": lambda cell: int(cell) if _INTEGER.fullmatch(cell) else cell,
    "float": _float,
    "boolean": lambda cell: _TRUTHS.get(cell.lower(), cell),
    "json": lambda cell: _loads(cell.encode()),
    "text[]": lambda cell: _loads(cell.encode()),
    "timestamp": lambda cell: f"{cell}:00" if _SHORT_ZONE.search(cell) and ":" in cell else cell,
}
