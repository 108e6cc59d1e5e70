"""Files of rows: CSV with a header and NDJSON, optionally gzipped, read line by line. A record maps column names to
JSON values; CSV's text is read by the column's type."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

from platform_site.http import exact_json
from platform_site.http.bodies import DuplicateName, object_of
from rows.schema import identifiers
from rows.schema.model import Column, Table
from rows.transfer import csv_reader
from rows.transfer.csv_reader import InvalidRecord

Format = Literal["csv", "ndjson"]
FORMATS: Final[tuple[Format, ...]] = ("csv", "ndjson")

_Reader = tuple[str, Any, Callable[[str], Any] | None]
"""Of a column: its name, the value of an empty cell, and what reads its text."""

_BETWEEN_REPORTS: Final = 1000
_TRUTHS: Final = {"true": True, "t": True, "1": True, "yes": True, "false": False, "f": False, "0": False, "no": False}
_INTEGER: Final = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_KEY: Final = re.compile(rb'"\s*:')
"""Finds each key of an object, and perhaps texts with quotes."""
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
        read = self._csv if self.format == "csv" else self._ndjson
        for count, record in enumerate(read(table)):
            yield record
            if count % _BETWEEN_REPORTS == 0:
                self.progress(self._position)
        self.progress(self._position)

    def _lines(self) -> Iterator[bytes]:
        self._position = 0
        source = gzip.GzipFile(fileobj=self.file) if self.gzipped else self.file
        try:
            while line := source.readline(_MAX_LINE):
                if len(line) == _MAX_LINE and not line.endswith(b"\n"):
                    raise InvalidFile(f"A line is longer than {_MAX_LINE // 1024 // 1024} MB.")
                # The position in the compressed file, for the progress bar. A pipe has no position, so other files
                # count bytes.
                self._position = self.file.tell() if self.gzipped else self._position + len(line)
                yield line
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InvalidFile(f"The file is not gzipped, or cut off: {error}.") from None

    def _ndjson(self, table: Table) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
        has_decimals = any(column.type == "decimal" for column in table.columns.values())
        for number, line in enumerate(self._lines(), 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line or line.isspace():
                continue
            try:
                record = _loads(line, exact_json.read_float if has_decimals else None)
            except DuplicateName:
                yield number, "has a key twice in a JSON object"
                continue
            except ValueError as error:
                yield number, f"is not JSON: {error}"
                continue
            yield number, record if isinstance(record, dict) else "is not a JSON object"

    def _csv(self, table: Table) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
        found = csv_reader.read(self._lines(), self.delimiter)
        try:
            _, header = next(found, (1, []))
            columns = _columns(table, header)
            readers = [(column.name, _empty(column), _PARSERS.get(column.type)) for column in columns]
            for number, cells in found:
                if isinstance(cells, InvalidRecord):
                    yield number, cells.message
                elif len(cells) != len(readers):
                    yield number, f"has {len(cells)} cells, the header has {len(readers)}"
                else:
                    yield number, _record(readers, cells)
        except csv_reader.EndlessRecord as error:
            raise InvalidFile(f"Line {error.number}: {error.message}.") from None


_OMITTED: Final = object()


def _record(readers: Sequence[_Reader], cells: Sequence[str | None]) -> Mapping[str, Any] | str:
    record: dict[str, Any] = {}
    for (name, empty, parse), cell in zip(readers, cells, strict=True):
        if cell is None:
            if empty is not _OMITTED:
                record[name] = empty
            continue
        try:
            record[name] = cell if parse is None else parse(cell)
        except DuplicateName:
            return f"has a key twice in a JSON object of {name}"
    return record


def _loads(data: bytes, parse_float: Callable[[str], float] | None = None) -> Any:
    """Raises ValueError: DuplicateName for a key that is twice in an object."""
    value = exact_json.loads(data, parse_float=parse_float)
    if len(_KEY.findall(data)) > (len(value) if type(value) is dict else 0):
        try:
            json.loads(data, object_pairs_hook=object_of)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error
    return value


def _columns(table: Table, header: Sequence[str | None] | InvalidRecord) -> list[Column]:
    if isinstance(header, InvalidRecord):
        raise InvalidFile(f"The header {header.message}.")
    if not header:
        raise InvalidFile("The file is empty: a CSV file begins with the names of its columns.")
    columns: list[Column] = []
    for name in header:
        column = table.column(name.strip()) if name else None
        if column is None:
            if name and (";" in name or "\t" in name):  # a spreadsheet's, in much of Europe
                raise InvalidFile(f'The header has the cell "{name}". Separate the cells of a CSV file by commas.')
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


def _integer(cell: str) -> Any:
    return int(cell) if _INTEGER.fullmatch(cell) else cell


def _float(cell: str) -> Any:
    try:
        return float(cell) if cell.isascii() and "_" not in cell else cell  # to Python "1_000" and "١" are numbers, too
    except ValueError:
        return cell


def _json(cell: str) -> Any:
    try:
        return _loads(cell.encode())
    except DuplicateName:
        raise
    except ValueError:
        return object()  # of no JSON type: refused as one of the wrong type


def _timestamp(cell: str) -> Any:
    return f"{cell}:00" if _SHORT_ZONE.search(cell) and ":" in cell else cell


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": _integer,
    "float": _float,
    "boolean": lambda cell: _TRUTHS.get(cell.lower(), cell),
    "json": _json,
    "text[]": _json,
    "timestamp": _timestamp,
}
