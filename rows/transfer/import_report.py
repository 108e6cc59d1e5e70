"""What an import reports: the lines that cannot become rows, and why nothing was imported."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from rows.schema import identifiers

SHOWN: Final = 1000
"""Bad lines are kept up to that many; beyond it they are only counted."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot become a row. `column` is None where it is about the line as a whole."""

    number: int
    column: str | None
    message: str

    def __str__(self) -> str:
        return (
            f"line {self.number}: {self.column}: {self.message}"
            if self.column
            else f"line {self.number}: {self.message}"
        )


@dataclass(slots=True)
class Report:
    """What an import did. `bad_lines` counts all, `bad` has the first SHOWN complaints."""

    rows: int = 0
    events: int = 0
    bad_lines: int = 0
    bad: list[BadLine] = field(default_factory=list)

    def complain(self, lines: Collection[BadLine]) -> None:
        """Note complaints about one line."""
        self.bad_lines += 1
        if len(self.bad) < SHOWN:
            self.bad += lines


class ImportFailed(Exception):
    """Base of the errors below. Never raised itself."""


class NoSuchTable(ImportFailed):
    """The environment's schema has no such table; the text is for people, and names one that may be meant."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"The environment has no table {name}{identifiers.did_you_mean(name, known) or '.'}")


class BadLines(ImportFailed):
    """There are invalid lines and skipping them was not requested: nothing was imported."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(f"{report.bad_lines} bad lines")


class ChangedDuringImport(ImportFailed):
    """Others changed the schema, or wrote conflicting rows, at the same time, or are still at it: nothing was
    imported."""


class TooLong(ImportFailed):
    """Values of a row are too long together for an index of several columns: nothing was imported. Its arguments are
    the columns, none where PostgreSQL does not say."""
