"""`manage.py rotate_encryption_keys`: reseals everything under the first of ENCRYPTION_KEYS."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from platform_site.security import rotation


class Command(BaseCommand):
    help = (
        "Seal every secret in the databases anew with the first of ENCRYPTION_KEYS, while the service runs. First let "
        "all processes know the new key, then put it first in all of them; run this, then drop the old key. Safe to "
        "interrupt and to run again."
    )
    requires_migrations_checks = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="only count what still needs an older key; exit 1 if any"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        waiting = [(column, rotation.count_outdated(column)) for column in rotation.columns()]
        if options["check"]:
            self._report(waiting)
            return
        rotated, failed = 0, []
        for column, count in waiting:
            if not count:
                continue
            with tqdm(total=count, desc=column.name, unit="value", disable=not sys.stderr.isatty()) as bar:
                outcome = rotation.rotate(column, on_row=bar.update)
            rotated += outcome.rotated
            failed += outcome.failed
        self.stdout.write(f"{rotated} values are now sealed with the first key.")
        for row, reason in failed:
            self.stderr.write(f"{row}: {reason}")
        if failed:
            raise CommandError(f"{len(failed)} values do not open and were left as they are; keep the older keys.")

    def _report(self, waiting: list[tuple[rotation.Column, int]]) -> None:
        for column, count in waiting:
            if count:
                self.stdout.write(f"{column.name}: {count}")
        total = sum(count for _, count in waiting)
        if total:
            raise CommandError(f"{total} values still need an older key.")
        self.stdout.write("Everything is sealed with the first key; older keys can be dropped.")
