"""`manage.py import_rows`: rows of a CSV or NDJSON file into a table, all or none of them."""

import sys
from argparse import ArgumentParser
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

from django.core.management.base import CommandError

from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from platform_site.cli import base
from platform_site.cli.argument_types import whole_number
from platform_site.cli.base import counted, progress_bar
from rows.transfer import import_report, importer
from rows.transfer.file_formats import FORMATS, InvalidFile, RecordFile, format_of
from rows.transfer.import_report import BadLines, ChangedDuringImport, NoSuchTable, Report, TooLong

_EPILOG: Final = """
The file is UTF-8, plain or gzipped (.gz). CSV begins with a header of column names; an empty cell is null (or the
empty text, or the default, where the column takes no null); json and text[] cells are JSON. NDJSON has an object on
each line, as the API takes it. Columns that are left out get their defaults; without an id one is made.

Every cell is held to the schema; ids and uniques that are taken, references and users that are not there are found by
line. If any line is bad nothing is imported, unless --skip-bad.

examples:
  manage.py import_rows env_01k… tasks tasks.csv
  manage.py import_rows env_01k… tasks tasks.ndjson.gz --skip-bad
  zcat dump.gz | manage.py import_rows env_01k… tasks - --format ndjson --dry-run
"""


class Command(base.Command):
    help = "Import the rows of a CSV or NDJSON file into a table of an environment: all of them, or none."
    epilog = _EPILOG

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("table", metavar="TABLE", help="its name in the schema")
        parser.add_argument("file", metavar="FILE", help="- reads standard input")
        parser.add_argument("--format", choices=FORMATS, help="default: by the file's name")
        parser.add_argument("--delimiter", default=",", help='of CSV, one character; "\\t" is a tab')
        parser.add_argument("--skip-bad", action="store_true", help="skip bad lines and import the others")
        parser.add_argument("--events", action="store_true", help="record events for subscribed webhooks and functions")
        parser.add_argument("--dry-run", action="store_true", help="check everything and import nothing")
        parser.add_argument(
            "--show",
            type=whole_number(0, import_report.SHOWN),
            default=20,
            metavar="N",
            help="bad lines to print (default 20)",
        )
        parser.add_argument("--no-progress", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = environment_ref_named(options["environment"])
        name: str = options["file"]
        form = options["format"] or format_of(name)
        if form is None:
            raise CommandError(f"The format of {name} is not known. Pass --format csv or --format ndjson.")
        delimiter = "\t" if options["delimiter"] == "\\t" else options["delimiter"]
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise CommandError("The delimiter must be one ASCII character other than a quote.")
        with ExitStack() as stack:
            file: IO[bytes] = sys.stdin.buffer if name == "-" else stack.enter_context(_opened(name))
            size = None if name == "-" else Path(name).stat().st_size
            bar = stack.enter_context(progress_bar(self, options, total=size, unit="B", desc=options["table"]))
            source = RecordFile(
                file, form, gzipped=name.lower().endswith(".gz"), delimiter=delimiter,
                progress=lambda position: bar.update(position - bar.n),
            )  # fmt: skip
            try:
                report = importer.import_rows(
                    environment, options["table"], source,
                    skip_bad=options["skip_bad"], events=options["events"], dry_run=options["dry_run"],
                )  # fmt: skip
            except NoSuchTable as error:
                raise CommandError(str(error)) from None
            except InvalidFile as error:
                raise CommandError(f"{error} Nothing was imported.") from None
            except BadLines as error:
                bar.close()
                self._show_bad(error.report, options["show"])
                raise CommandError(f"{counted(error.report.bad_lines, 'lines')} bad. Nothing was imported.") from None
            except TooLong as error:
                of = f" of {', '.join(error.args)}" if error.args else ""
                raise CommandError(
                    f"A row's values{of} are together too long for one of the table's indexes (about 2,700 bytes). "
                    "Nothing was imported."
                ) from None
            except ChangedDuringImport:
                raise CommandError(
                    "The schema was changed, or rows with the same keys were written, at the same time. "
                    "Nothing was imported; try again."
                ) from None
        self._show_bad(report, options["show"])
        done = "would be imported" if options["dry_run"] else "imported"
        skipped = f", {counted(report.bad_lines, 'lines')} skipped" if report.bad_lines else ""
        events = f", {report.events} events" if report.events else ""
        self.stdout.write(self.style.SUCCESS(f"{report.rows} rows {done}{skipped}{events}."))

    def _show_bad(self, report: Report, most: int) -> None:
        for bad in report.bad[:most]:
            self.stderr.write(str(bad).encode("unicode_escape").decode(), lambda text: text)
        if len(report.bad) > most or report.bad_lines > len(report.bad):
            further = f" (--show {min(most * 10 or 20, import_report.SHOWN)})" if most < import_report.SHOWN else ""
            in_all = counted(report.bad_lines, "lines")
            self.stderr.write(f"… and more, {in_all} bad in all{further}", lambda text: text)


def _opened(name: str) -> IO[bytes]:
    try:
        return open(name, "rb", buffering=1024 * 1024)
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}.") from None
