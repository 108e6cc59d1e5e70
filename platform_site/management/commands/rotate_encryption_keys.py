"""`manage.py rotate_encryption_keys`: re-encrypts everything with the first of ENCRYPTION_KEYS."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from platform_site.security import rotation


class Command(BaseCommand):
    help = (
        "Encrypt every secret in the databases with the first of ENCRYPTION_KEYS, while the service runs. Before it, "
        "add the new key in all processes, then put it first in all of them; afterwards, remove the old key. It may be "
        "interrupted and repeated."
    )
    requires_migrations_checks = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check",
            action="store_true",
            help="only count what needs an older key, or one that ENCRYPTION_KEYS does not have; exit 1 if any",
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
        self.stdout.write(f"{rotated} values are now encrypted with the first key.")
        for row, reason in failed:
            self.stderr.write(f"{row}: {reason}")
        if failed:
            raise CommandError(
                f"{len(failed)} values could not be decrypted and were not changed; keep the older keys."
            )

    def _report(self, waiting: list[tuple[rotation.Column, int]]) -> None:
        total = unknown = 0
        for column, count in waiting:
            if not count:
                continue
            lost = rotation.count_unknown(column)
            total, unknown = total + count, unknown + lost
            note = f", {lost} of them a key that ENCRYPTION_KEYS does not have" if lost else ""
            self.stdout.write(f"{column.name}: {count} need an older key{note}")
        if unknown:
            raise CommandError(f"{unknown} values cannot be decrypted: their key is not in ENCRYPTION_KEYS.")
        if total:
            raise CommandError(f"{total} values can be decrypted, but need an older key of ENCRYPTION_KEYS.")
        self.stdout.write("Everything is encrypted with the first key; older keys can be removed.")
