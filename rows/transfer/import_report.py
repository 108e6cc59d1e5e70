from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from rows.schema import identifiers
from rows.schema.column_values import MAX_ROW_BYTES

SHOWN: Final = 1000
TOO_LARGE: Final = f"holds more than {MAX_ROW_BYTES >> 20} MB"


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int
    column: str | None
    message: str

    def __str__(self) -> str:
        return f"line {self.number}: {f'{self.column}: ' if self.column else ''}{self.message}"


@dataclass(slots=True)
class Report:
    rows: int = 0
    events: int = 0
    bad_lines: int = 0
    bad: list[BadLine] = field(default_factory=list)

    def add_bad_line(self, lines: Collection[BadLine]) -> None:
        """`bad_lines` counts all, `bad` has the first SHOWN."""
        self.bad_lines += 1
        if len(self.bad) < SHOWN:
            self.bad += lines


class NoSuchTable(Exception):
    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"The environment has no table {name}{identifiers.did_you_mean(name, known) or '.'}")


class BadLines(Exception):
    """Invalid lines without `skip_bad`: nothing was imported."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(f"{report.bad_lines} bad lines")


class ChangedDuringImport(Exception):
    """A concurrent schema change or conflicting write: nothing was imported."""


class TooLong(Exception):
    """A row's values are too long for an index: nothing was imported. Arguments: the columns, if known."""
