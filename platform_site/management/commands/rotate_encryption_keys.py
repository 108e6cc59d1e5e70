"""`manage.py rotate_encryption_keys`: re-encrypts everything with the first of ENCRYPTION_KEYS."""

import sys
from argparse import ArgumentParser
from collections import Counter
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from platform_site.security import rotation

_MEANING: Final[dict[rotation.Problem, str]] = {
    "older key": "need an older key",
    "unknown key": "need a key that ENCRYPTION_KEYS does not have",
    "damaged": "were changed, or belong elsewhere",
}
_NAMED: Final = 5


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
            help="only decrypt every value, and name those that the first key does not decrypt; exit 1 if any",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["check"]:
            self._report()
            return
        rotated, failed = 0, []
        for column in rotation.columns():
            if not (count := rotation.outdated(column).count()):
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

    def _report(self) -> None:
        total: Counter[rotation.Problem] = Counter()
        for column in rotation.columns():
            found = rotation.check(column)
            for problem, ids in found.items():
                total[problem] += len(ids)
                named = ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
                self.stdout.write(f"{column.name}: {len(ids)} {_MEANING[problem]} (id {named})")
        if lost := total["unknown key"] + total["damaged"]:
            raise CommandError(f"{lost} values cannot be decrypted.")
        if outdated := total["older key"]:
            raise CommandError(f"{outdated} values can be decrypted, but need an older key of ENCRYPTION_KEYS.")
        self.stdout.write("Everything is encrypted with the first key; older keys can be removed.")
