"""`manage.py export_rows`: all rows of a table into a CSV or NDJSON file that `import_rows` reads back."""

import gzip
import sys
from argparse import ArgumentParser
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from django.core.management.base import CommandError

from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from platform_site.cli import base
from rows.query.tables.catalog import estimated_sizes
from rows.transfer import exporter
from rows.transfer.exporter import NoSuchColumn
from rows.transfer.file_formats import FORMATS, format_of
from rows.transfer.import_report import NoSuchTable
from rows.transfer.partial_file import partial_file


class Command(base.Command):
    help = (
        "Export all rows of a table, in the order of their ids and as of one moment, as CSV or NDJSON. The file is "
        "complete or not there (it is written beside its name and renamed at the end), and readable by its owner alone."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("table", metavar="TABLE", help="its name in the schema")
        parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="default -, standard output")
        parser.add_argument("--format", choices=FORMATS, help="default: by the file's name, else ndjson")
        parser.add_argument(
            "--columns", nargs="+", metavar="COLUMN", help="only these, in this order, separated by commas or spaces"
        )
        parser.add_argument("--no-progress", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = environment_ref_named(options["environment"])
        name: str = options["file"]
        form = options["format"] or format_of(name) or "ndjson"
        columns = [one for each in options["columns"] or () for one in each.split(",") if one] or None
        rows = 0
        try:
            table = exporter.table_of(environment, options["table"])
            sizes = estimated_sizes(environment.cluster, environment.environment_id)
            with (
                _target(name) as target,
                base.progress_bar(
                    self, options, total=sizes.get(table.name, (0, 0))[0], unit=" rows", desc=table.name
                ) as bar,
            ):
                for piece, held in exporter.export_rows(environment, table, form, columns):
                    target.write(piece)
                    rows += held
                    if rows % 1000 == 0:
                        bar.update(rows - bar.n)
                bar.update(rows - bar.n)
        except NoSuchTable as error:
            raise CommandError(str(error)) from None
        except NoSuchColumn as error:
            raise CommandError(f"The table {options['table']} has no column {error}.") from None
        except BrokenPipeError:
            raise CommandError("The program that read the rows has ended.") from None
        except OSError as error:
            raise CommandError(f"{name} cannot be written: {error.strerror}.") from None
        self.stderr.write(f"{rows} rows exported.", self.style.SUCCESS)


@contextmanager
def _target(name: str) -> Generator[IO[bytes]]:
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with partial_file(Path(name)) as file:
        if name.lower().endswith(".gz"):
            with gzip.GzipFile(Path(name).name.removesuffix(".gz"), "wb", fileobj=file) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file
