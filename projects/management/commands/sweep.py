"""`manage.py sweep`: what beat does anyway, now: finish deletions and drop schemas that nobody owns."""

from typing import Any

from django.core.management.base import BaseCommand

from platform_site.api.sweeps import all_sweeps
from projects import tasks


class Command(BaseCommand):
    help = "Finishes deletions that a crash left half done, and drops schemas that no environment owns."

    def handle(self, *args: Any, **options: Any) -> None:
        (ours,) = [sweep for sweep in all_sweeps() if sweep.function is tasks.finish_and_clean]
        if not ours.run():
            self.stdout.write("Another process is sweeping at this moment.")
