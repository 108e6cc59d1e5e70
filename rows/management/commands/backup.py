"""`manage.py backup`: everything of an environment that lives in its region, in one file."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from platform_site.cli.base import counted, progress_bar
from platform_site.postgres import sqlstates
from rows.query.tables.catalog import estimated_sizes
from rows.transfer import backup
from rows.transfer.backup import NotRestorable
from rows.transfer.backup_content import Summary


class Command(BaseCommand):
    help = (
        "Back up an environment: its schema with all versions, rows, webhooks and functions (without secrets), as of "
        "one moment, while it is read and written. The file is complete or not there, and readable by its owner alone."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("--to", metavar="FILE", help="default: <id>-<time>.zip in this directory")
        parser.add_argument("--replace", action="store_true", help="overwrite an existing file")
        parser.add_argument("--no-progress", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = environment_ref_named(options["environment"])
        path = Path(options["to"] or f"{environment.environment_id}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
        try:
            sizes = estimated_sizes(environment.cluster, environment.environment_id)
            with progress_bar(self, options, total=sum(rows for rows, _ in sizes.values()), unit=" rows") as bar:

                def progress(table: str, rows: int) -> None:
                    bar.set_description(table, refresh=False)
                    bar.update(rows)

                summary = backup.backup(environment, path, replace=options["replace"], progress=progress)
        except FileExistsError:
            raise CommandError(f"{path} exists. Name another file, or pass --replace.") from None
        except NotRestorable as error:
            raise CommandError(f"This backup could not be restored: {error}. Nothing was written.") from None
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}.") from None
        except Error as error:
            if sqlstates.sqlstate(error) in sqlstates.INTERFERED:
                raise CommandError("The schema was being changed. Nothing was written; try again.") from None
            raise CommandError(
                f"The region's database cannot be read ({type(error).__name__}). Nothing was written."
            ) from error
        self.stdout.write(self.style.SUCCESS(f"{path}: {described(summary)}; {path.stat().st_size} bytes."))


def described(summary: Summary) -> str:
    counts = {"tables": len(summary.rows), "rows": sum(summary.rows.values()), **summary.parts}
    held = ", ".join(counted(count, name.replace("_", " ")) for name, count in counts.items())
    return f"version {summary.schema_version}, {held}"
